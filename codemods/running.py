"""Processes that run vLLM from a tree: they keep the code that they have loaded until they are restarted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
#: Of a process's memory map only so much is looked at; one with more is not worth the wait.
_BOUND = 8 << 20


def servers(root: Path) -> tuple[int, ...]:
    """Ids of the processes, as far as this user may look, that name vLLM and have mapped files of the tree.

    Python source is not mapped, but the extension modules beside it are, so a server is seen once it has
    loaded torch or vLLM's own libraries from there.
    """
    inside = os.fsencode(f"{os.path.realpath(root)}/")
    return tuple(
        pid
        for pid in _processes()
        if b"vllm" in _read(pid, "cmdline").lower() and inside in _read(pid, "maps")
    )


def warning(root: Path) -> tuple[str, ...]:
    """One sentence about the servers, or nothing."""
    found = servers(root)
    if not found:
        return ()
    pids = ", ".join(map(str, found))
    return (
        f"vLLM is running from this tree (process {pids}): it keeps the code of before until it is restarted",
    )


def _processes() -> Iterator[int]:
    try:
        names = [path.name for path in _PROC.iterdir()]
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit() and int(name) != os.getpid())


def _read(pid: int, name: str) -> bytes:
    try:
        with (_PROC / str(pid) / name).open("rb") as stream:
            return stream.read(_BOUND)
    except OSError:
        return b""
