"""Fetch the Python files of a released package, by name and version, into a cache outside the checkout.

``release("vllm", "0.12.0")`` gives a folder that holds ``vllm/`` (the .py files, every byte as released) and
``vllm-0.12.0.dist-info/METADATA``: what an installed package looks like to the patcher, without the
gigabytes that running it would take. ``pair`` lays two of them out as one tree that may be edited.

The archive is found and downloaded by pip in a process of its own (`glm_pto.cli.registry`), so the index is
whatever the user configured for pip. Nothing is built and nothing of the package is executed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

PACKAGES = {"vllm": "vllm", "vllm-ascend": "vllm_ascend"}
RECORD = ".fetched.json"

# "-c" keeps the folder of the script off sys.path: pip would import our modules for the standard library's.
BOOT = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
SCRIPT = Path(__file__).with_name("registry.py")


class FetchError(RuntimeError):
    """A release could not be had. The message says which, why, and what to do next."""


def cache() -> Path:
    """The cache folder: ``GLM_PTO_CACHE``, else ``~/.cache/glm-pto``."""
    return Path(os.environ.get("GLM_PTO_CACHE") or "~/.cache/glm-pto").expanduser()


def cached(name: str, version: str) -> Path | None:
    """The folder of a release that was fetched before, or None. Asks nobody."""
    home = cache() / "trees" / f"{name}-{version}"
    return home if (home / RECORD).is_file() else None


def release(name: str, version: str) -> Path:
    """Return the cached folder of a release, fetching it first where needed. It is shared: do not edit it.

    :raises FetchError: unknown package or version, no pip, no network, a wrong hash, an unsafe archive.
    """
    if name not in PACKAGES:
        raise FetchError(f"{name}: not a package that glm-pto knows ({', '.join(PACKAGES)})")
    trees = cache() / "trees"
    trees.mkdir(parents=True, exist_ok=True)
    with locked(trees / f"{name}-{version}.lock"):
        found = cached(name, version)
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(prefix=f".{name}-{version}-", dir=trees) as scratch:
            record = download(name, version, Path(scratch))
            tree = Path(scratch, "tree")
            record["files"] = unpack(Path(scratch, record["archive"]), tree, name, version)
            (tree / RECORD).write_text(json.dumps(record, indent=1) + "\n")
            home = trees / f"{name}-{version}"
            shutil.rmtree(home, ignore_errors=True)  # what an older layout may have left
            tree.rename(home)
    return home


def pair(ascend: str | None, vllm: str | None, destination: Path) -> Path:
    """Copy releases side by side into ``destination`` and return it: ``vllm/``, ``vllm_ascend/``, metadata.

    Every file is a copy of its own, never a link into the cache, so the tree may be edited. None leaves a
    package out.
    """
    for name, version in (("vllm", vllm), ("vllm-ascend", ascend)):
        if version is None:
            continue
        for part in release(name, version).iterdir():
            if part.is_dir():
                shutil.copytree(part, destination / part.name)
    return destination


def download(name: str, version: str, folder: Path) -> dict[str, Any]:
    """Have pip put the archive into ``folder``; its record, or a FetchError in words."""
    command = [sys.executable, "-c", BOOT, str(SCRIPT), name, version, PACKAGES[name], str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise FetchError(f"{name} {version}: pip stopped: {tail(done.stderr)}") from None
    if found.get("error") == "other-pip":
        return ask_pip(name, version, folder, found["detail"])
    if "error" in found:
        raise FetchError(f"{name} {version}: {reason(found, done.stderr)}")
    return found


def reason(found: dict[str, Any], log: str) -> str:
    """What went wrong and what to do next."""
    kind = found["error"]
    if kind == "no-pip":
        return (
            f"pip is not installed beside {sys.executable}; run `{sys.executable} -m ensurepip`, then again"
        )
    if kind == "hash":
        return f"the download is not what the index announced ({found['detail']}); try again"
    versions = found.get("versions")
    if versions:
        return f"no such release; the index has, among others, {', '.join(versions[-12:])}"
    detail = found.get("detail") or tail(log) or "the index lists nothing"
    return (
        f"the package index did not give it ({detail}); check the network and `pip config list`, "
        f"or copy the folder of the release into {cache() / 'trees'} from a machine that has it"
    )


def ask_pip(name: str, version: str, folder: Path, why: str) -> dict[str, Any]:
    """The whole wheel by pip's command line, for a pip whose inside differs. (An sdist it would build.)"""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(folder), f"{name}=={version}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    archive = next(folder.glob("*.whl"), None)
    if done.returncode or archive is None:
        raise FetchError(
            f"{name} {version}: this pip differs inside ({why}) and `pip download` failed: "
            f"{tail(done.stderr)}; install pip 25.3 and try again"
        )
    return {"archive": archive.name, "sha256": None}  # pip has compared the hash


def unpack(archive: Path, tree: Path, name: str, version: str) -> int:
    """Write the package's .py files and its metadata under ``tree``; return how many files that were."""
    package = PACKAGES[name]
    metadata = f"{package}-{version}.dist-info/METADATA"
    wrote: set[str] = set()
    for member, data in members(archive):
        path = PurePosixPath(member)
        if path.is_absolute() or ".." in path.parts or "\\" in member:
            raise FetchError(f"{archive.name}: the member {member!r} points outside; nothing was unpacked")
        if member == "PKG-INFO" or member.endswith(".dist-info/METADATA"):
            member = metadata
        elif path.parts[0] != package or path.suffix != ".py":
            continue
        target = tree / member
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data())
        wrote.add(member)
    for needed in (metadata, f"{package}/__init__.py"):
        if needed not in wrote:
            raise FetchError(f"{archive.name}: expected {needed}, found {len(wrote)} files without it")
    return len(wrote)


def members(archive: Path) -> Iterator[tuple[str, Any]]:
    """Name and reader of each regular file; an sdist's leading ``name-version/`` is taken off."""
    if archive.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(archive) as kept:
            for name in kept.namelist():
                yield name, lambda name=name: kept.read(name)
        return
    with tarfile.open(archive) as sources:
        for member in sources:
            file = sources.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name.partition("/")[2], file.read


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; a dead owner's goes with it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def tail(text: str) -> str:
    """The last lines of a log, on one line."""
    lines = [line for line in text.splitlines() if line.strip() and " is ignored" not in line]
    return " | ".join(lines[-3:])
