"""Find the trees and packages to work on, and their versions, without importing any of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from glm_pto.codemods.findings import UsageError
from glm_pto.codemods.reading import MAX_BYTES

#: Packages that some recipe edits.
PACKAGES = ("vllm", "vllm_ascend", "wall_x")

#: Stands for "no release candidate" in a version tuple, so that 0.13.0 sorts after 0.13.0rc3.
FINAL = 1_000_000

_VERSION = re.compile(r"^\s*v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?rc(\d+))?")


@dataclass(frozen=True)
class Package:
    """A package folder: import name, folder, and the version its metadata states (None if none is found)."""

    name: str
    path: Path
    version: str | None


@dataclass(frozen=True)
class Tree:
    """A folder that holds one or more of the packages side by side.

    ``packages`` are the ones to work on; ``beside`` are known packages that stand there too and decide facts
    (whether vllm-ascend replaces a vllm computation) but were not named by the user. ``notes`` tell what was
    done to the tree before it was read.
    """

    root: Path
    packages: tuple[Package, ...]
    beside: tuple[Package, ...] = ()
    notes: tuple[str, ...] = ()

    def find(self, name: str) -> Package | None:
        """The package called ``name``, to be worked on or beside."""
        return next((p for p in (*self.packages, *self.beside) if p.name == name), None)

    @cached_property
    def _versions(self) -> dict[str, tuple[int, ...] | None]:
        return {p.name: parse_version(p.version) for p in (*self.packages, *self.beside)}

    def version(self, name: str) -> tuple[int, ...] | None:
        """(major, minor, patch, candidate) of a package, (0, 12, 0, 1) for 0.12.0rc1; `FINAL` for a release.

        Compare with a shorter tuple as lower bound: every candidate of 0.13.0 is >= (0, 13, 0). None without
        the package or a version that can be read. Versions explain; they never decide where an edit goes.
        """
        return self._versions.get(name)


def parse_version(text: str | None) -> tuple[int, ...] | None:
    """A version string as a tuple that sorts like the releases do; None if it is not one."""
    found = _VERSION.match(text or "")
    if not found:
        return None
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), FINAL if candidate is None else int(candidate)


def find(targets: Sequence[str | Path], python: Path | None = None) -> tuple[Tree, ...]:
    """The trees that the targets name; without targets, the packages of an environment's Python.

    A target is a folder that holds packages (site-packages, the guide's layout, a repository checkout), or a
    package folder itself. Raises `UsageError` where there is nothing to work on.
    """
    if isinstance(targets, (str, Path)):
        targets = [targets]  # not a sequence of one-letter names
    if targets:
        return _merged([_tree(t) for t in targets])
    folders = _installed(python)
    if not folders:
        where = f"the environment of {python}" if python else "this environment"
        raise UsageError(
            f"none of {', '.join(PACKAGES)} is installed in {where}; name a TREE: the folder that holds "
            "vllm/ and vllm_ascend/, for example the site-packages that serves the model"
        )
    roots = dict.fromkeys(folder.parent for folder in folders)
    return tuple(_make(root, tuple(f for f in folders if f.parent == root)) for root in roots)


def _merged(found: list[Tree]) -> tuple[Tree, ...]:
    """One tree a root, by whatever names and through whichever of its packages it was given.

    A package that several roots link to is worked on in the first of them.
    """
    roots: dict[Path, list[Tree]] = {}
    for tree in found:
        roots.setdefault(tree.root.resolve(), []).append(tree)
    held: dict[Path, Path] = {}
    merged: list[Tree] = []
    for same in roots.values():
        named = {p.name for tree in same for p in tree.packages}
        folders = [same[0].root / name for name in PACKAGES if name in named]
        here = tuple(f for f in folders if held.setdefault(f.resolve(), f) == f)
        notes = [f"{f}: the same folder as {held[f.resolve()]}, where it is seen to" for f in folders]
        told = tuple(note for note, f in zip(notes, folders, strict=True) if f not in here)
        if here:
            merged.append(replace(_make(same[0].root, here), notes=told))
    return tuple(merged)


def _tree(given: str | Path) -> Tree:
    if given == "":
        raise UsageError("the name of a TREE is empty (a variable that is not set?); `.` is this folder")
    target = _absolute(Path(given))
    if target.is_file():
        raise UsageError(f"{target}: not a folder; a zip or egg has no source to edit, install it unpacked")
    if not target.is_dir():
        raise UsageError(f"{target}: no such folder; name the one that holds vllm/ and vllm_ascend/")
    folders = tuple(target / name for name in PACKAGES if is_package(target / name))
    if folders:
        return _make(target, folders)
    if target.name in PACKAGES and is_package(target):
        return _make(target.parent, (target,))
    raise UsageError(
        f"{target}: holds none of {', '.join(name + '/' for name in PACKAGES)}; name the folder that has "
        "them (site-packages, a checkout) or one of the package folders"
    )


def _absolute(path: Path) -> Path:
    """The path from the root of the file system; links stay in it unless ``..`` goes through one."""
    try:
        path = path.expanduser()
        return path.resolve() if ".." in path.parts else path.absolute()
    except OSError as error:
        raise UsageError(f"{path}: the current folder is gone ({error.strerror}); name a full path") from None
    except RuntimeError as error:
        raise UsageError(f"{path}: {error}; name a full path") from None


def is_package(folder: Path) -> bool:
    """A folder with Python source: `__init__.py`, or any module of a namespace package."""
    return folder.is_dir() and ((folder / "__init__.py").is_file() or any(folder.rglob("*.py")))


def _make(root: Path, folders: tuple[Path, ...]) -> Tree:
    beside = tuple(root / name for name in PACKAGES if root / name not in folders and is_package(root / name))
    packages, others = (tuple(Package(f.name, f, version_of(f)) for f in fs) for fs in (folders, beside))
    return Tree(root, packages, others)


def version_of(folder: Path) -> str | None:
    """The version that a package states of itself: `_version.py`, its dist-info, or its PKG-INFO."""
    own = folder / "_version.py"
    if own.is_file():
        found = re.search(r"^(?:__version__|version)\b.*?['\"]([^'\"]+)['\"]", _head(own), re.M)
        if found:
            return found[1]
    # Not by glob, which takes a folder that it may not list for an empty one.
    beside = sorted(folder.parent / name for name in os.listdir(folder.parent))  # noqa: PTH208
    infos = [p for p in beside if p.name.startswith(f"{folder.name}-") and p.name.endswith(".dist-info")]
    for metadata in (*(info / "METADATA" for info in infos), folder.parent / "PKG-INFO"):
        if metadata.is_file():
            text = _head(metadata)
            name = re.search(r"^Name: *(\S+)", text, re.M)
            version = re.search(r"^Version: *(\S+)", text, re.M)
            if name and version and name[1].replace("-", "_").lower() == folder.name:
                return version[1]
    return None


def _head(path: Path) -> str:
    """The beginning of a file, which is where a version stands."""
    with path.open("rb") as stream:
        try:
            return stream.read(MAX_BYTES).decode(errors="replace")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def _installed(python: Path | None) -> list[Path]:
    """Folders of the known packages that a Python would import; found, never imported."""
    if python is None:
        found = [(s.origin, s.submodule_search_locations) for s in map(find_spec, PACKAGES) if s]
        places = [[origin or "", *(paths or ())] for origin, paths in found]
    else:
        from glm_pto.codemods import interpreter

        places = interpreter.ask(python, _QUESTION, *PACKAGES)
    folders = []
    for origin, *paths in places:
        folder = Path(origin).parent if origin.endswith("__init__.py") else Path(paths[0] if paths else "")
        if is_package(folder):
            folders.append(folder)
    return folders


_QUESTION = """
import json
from importlib.util import find_spec
found = [s for s in map(find_spec, sys.argv[1:]) if s]
print(json.dumps([[s.origin or "", *(s.submodule_search_locations or ())] for s in found]))
"""
