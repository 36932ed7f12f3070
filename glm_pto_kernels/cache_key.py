"""Tell compile caches what was decided here: a function whose file's text holds the decisions.

vLLM keys its compile cache by the text of every file that Dynamo traced through, and drops Dynamo's guards.
A switch or a backend is a value, not text: after a flip, vLLM would load the graph that was compiled before.
So every guard condition that runs in compiled code calls `told`, whose source file is written for the current
decisions: other decisions are another file with another text, and so another cache key. Where no file can be
written the function is the one below, and a flip needs an empty compile cache.

Sources: ``VllmBackend.__call__`` and ``_verify_source_unchanged`` of vLLM (``vllm/compilation``).
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

MODULE = "glm_pto_kernels.decisions"


def told() -> bool:
    """True. Its place in a trace is what counts."""
    return True


def folder() -> Path:
    """Where the files go: ``GLM_PTO_CACHE``, else the user's cache folder.

    Raises:
        RuntimeError: a ``~`` of a user who has no home folder.
    """
    cache = (
        os.environ.get("GLM_PTO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "glm-pto"
    )
    # vLLM opens the file by this path later, maybe from another working directory.
    return Path(cache).expanduser().absolute() / "decisions"


def tell(decisions: Mapping[str, object]) -> Callable[[], bool]:
    """The function to call in traced conditions under these decisions (`told` if nothing can be written)."""
    rows = "".join(f"#   {name}: {value!r}\n" for name, value in sorted(decisions.items()))
    head = "# Written by glm_pto_kernels for the compile caches. Decisions:\n"
    text = f"{head}{rows}\n\ndef told():\n    return True\n"
    try:
        path = folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
        _write(path, text.encode())
    except (OSError, RuntimeError):
        return told  # no home, or read-only: correct, but a flip is not seen by a filled compile cache
    # Our own text is run, not the file's: whoever can write to the folder cannot put code into this process.
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    sys.modules[MODULE] = module
    function: Callable[[], bool] = module.told
    return function


def _write(path: Path, text: bytes) -> None:
    if path.is_file() and path.read_bytes() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
