"""The operator layer as the target would load it: found without importing, copied in, taken out again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from glm_pto.codemods import reading, seal
from glm_pto.codemods.findings import FileChange, Refusal
from glm_pto.codemods.recipe import KERNELS

#: Lists the files of a copy that `--install-kernels` made, with hashes: removable without any state.
RECEIPT = "_copied_by_glm_pto.json"


@dataclass(frozen=True)
class Layer:
    """The operator layer that the target would load: its folder (or one file), and what it lacks."""

    folder: Path
    missing: tuple[str, ...]


def find(root: Path, functions: Iterable[str] = (), python: Path | None = None) -> Layer | None:
    """The layer beside the packages, else where the Python that imports from ``root`` looks; None without."""
    path = _path_with(root) if python is None else _path_of(python)
    spec = PathFinder.find_spec(KERNELS, [str(root), *path])
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    init = Path(spec.origin or Path(places[0], "__init__.py"))
    folder = init.parent if init.name == "__init__.py" else init  # a module without a folder
    text = reading.load(init).decode(errors="replace") if init.is_file() else ""
    wanted = [f"{function}_supported" for function in functions]
    return Layer(folder, tuple(name for name in wanted if name not in text))


def _path_of(python: Path) -> list[str]:
    from glm_pto.codemods import interpreter

    return interpreter.search_path(python)


def _path_with(root: Path) -> list[str]:
    """The search path of the Python that imports from ``root``, as far as this Python knows.

    Not its own where the root is the site-packages of another environment: a tool in an environment of its
    own (pipx) would find its own layer, which the patched code does not.
    """
    other = root.name in ("site-packages", "dist-packages") and not any(
        Path(entry).resolve() == root.resolve() for entry in sys.path if entry
    )
    return [] if other else sys.path


def problem(root: Path, functions: Iterable[str], python: Path | None = None) -> str | None:
    """Why patched code at ``root`` could not call the layer, with what to do; None if it could."""
    layer = find(root, functions, python)
    advice = (
        f"install glm-pto for the Python that runs the packages (`{python or 'python'} -m pip install` with "
        "the folder or wheel that this one came from), or apply with --install-kernels to copy the layer "
        "beside them"
    )
    if python is None:
        advice += "; --python PATH asks that Python what it finds"
    if layer is None:
        return f"{root}: no {KERNELS} would be found by the patched code; {advice}"
    if layer.missing:
        return (
            f"{layer.folder}: this {KERNELS} lacks {', '.join(layer.missing)} (made by hand, or older), and "
            f"the patched code would load it; remove it and {advice}"
        )
    return None


def own_folder() -> Path | None:
    """The layer that came with this tool: beside it in an installation, one level up in a checkout."""
    places = (above / KERNELS for above in Path(__file__).resolve().parents[1:3])
    return next((place for place in places if (place / "__init__.py").is_file()), None)


def copy_in(root: Path) -> list[FileChange]:
    """Changes that put a copy of our layer beside the packages."""
    source = own_folder()
    if source is None:
        raise Refusal(f"{Path(__file__).parents[1]}: no {KERNELS} came with this glm-pto; install it again")
    files = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in sorted(source.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    digests = {name: seal.digest(data) for name, data in files.items()}
    files[RECEIPT] = json.dumps(digests, indent=1, sort_keys=True).encode() + b"\n"
    target = root / KERNELS
    if target.is_dir() and not (target / RECEIPT).is_file():
        raise Refusal(
            f"{target}: a {KERNELS} that this tool did not put there; move it away, "
            "then apply with --install-kernels again"
        )
    written = _receipt(target)
    changes, edited = [], []
    for name, data in {**dict.fromkeys(written), **files}.items():
        path = target / name
        before = reading.load(path) if path.is_file() else None
        if before is not None and name != RECEIPT and seal.digest(before) != written.get(name):
            edited.append(f"{path}: was edited since --install-kernels put it there; move it away")
        elif before != data:
            changes.append(FileChange(path, before, data, KERNELS))
    if edited:
        raise Refusal(*edited)
    return changes


def copied(root: Path) -> bool:
    """Is there a layer beside the packages that `copy_in` put there?"""
    return (root / KERNELS / RECEIPT).is_file()


def _receipt(target: Path) -> dict[str, str]:
    """What the copy in ``target`` was when it was made: hashes by file, inside that folder only."""
    receipt = target / RECEIPT
    try:
        found = json.loads(reading.load(receipt)) if receipt.is_file() else {}
        named = {str(name): str(digest) for name, digest in found.items()}
    except (ValueError, AttributeError, RecursionError):
        raise Refusal(f"{receipt}: is damaged; move {target} away and run the command again") from None
    inside = target.resolve()
    return {
        name: digest for name, digest in named.items() if (target / name).resolve().is_relative_to(inside)
    }


def take_out(root: Path) -> tuple[list[FileChange], list[str]]:
    """Changes that remove an unmodified copy of ours, and the files of it that were edited and so stay."""
    target = root / KERNELS
    receipt = target / RECEIPT
    if not copied(root):
        return [], []
    changes, kept = [], []
    try:
        written = _receipt(target)
    except Refusal:
        return [], [receipt.relative_to(root).as_posix()]
    for name, digest in written.items():
        path = target / name
        if not path.is_file():
            continue
        data = reading.load(path)
        if seal.digest(data) == digest:
            changes.append(FileChange(path, data, None, KERNELS))
        else:
            kept.append(path.relative_to(root).as_posix())
    if not kept:
        changes.append(FileChange(receipt, reading.load(receipt), None, KERNELS))
    return changes, kept
