"""Reading a checkout: where its kernels are, what they are called with, and what has changed in it since."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from .revision import revision
from .signatures import ENTRIES, CheckoutError, Entry, parameters

LARGEST = 1 << 20  # bytes of a kernel's file; the real ones have some 20 KiB
PLACES = (".", "models/glm_v4_5", "examples/models/glm_v4_5", "glm_v4_5")


@dataclass(frozen=True)
class Kernel:
    """One kernel of a checkout: its file, function, parameters in their order, and the file's digest."""

    file: str
    function: str
    parameters: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class Checkout:
    """A checkout that was read: its kernel folder, the commit if it is a git work tree, and its kernels.

    ``companions``: digests of the other files that the kernels can import, by their names in the folder.
    """

    folder: str
    revision: str | None
    kernels: dict[str, Kernel]
    companions: dict[str, str]


def inspect(folder: str | Path) -> Checkout:
    """Read the kernels of a checkout.

    Args:
        folder: the checkout's root, or its ``models/glm_v4_5``.

    Raises:
        CheckoutError: no such folder, or kernels that are missing or have signatures not known here.
    """
    root = expanded(folder)
    found = next((root / place for place in PLACES if (root / place / "glm_gate.py").is_file()), None)
    if found is None:
        looked = ", ".join(str(root / place) for place in PLACES)
        raise CheckoutError(f"{root}: there is no glm_gate.py in {looked}; give the checkout's folder")
    kernels, problems = {}, []
    for operator, entry in ENTRIES.items():
        try:
            kernels[operator] = _read(found / entry.file, entry)
        except CheckoutError as error:
            problems.append(str(error))
    if problems:
        raise CheckoutError("\n".join(problems))
    return Checkout(str(found.resolve()), revision(found.resolve()), kernels, _companions(found))


def _companions(folder: Path) -> dict[str, str]:
    kernels = {entry.file for entry in ENTRIES.values()}
    files = sorted({*folder.glob("*.py"), *folder.glob("utils/**/*.py")})
    names = [path.relative_to(folder).as_posix() for path in files if path.is_file()]
    return {name: _digest(folder / name) for name in names if name not in kernels}


def _digest(path: Path) -> str:
    """Of a file, or of its size and beginning where it is too large for source."""
    with path.open("rb") as file:
        data = file.read(LARGEST)
    return hashlib.sha256(data + (b"%d" % path.stat().st_size)).hexdigest()


def expanded(folder: str | Path) -> Path:
    """``folder`` without its ``~``. Raises CheckoutError where there is no such home folder."""
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # no such user, or a user without a home
        raise CheckoutError(f"{folder}: {error} Give the folder without ~") from None


def _read(path: Path, entry: Entry) -> Kernel:
    if not path.is_file():
        raise CheckoutError(f"{path}: expected this file with a function {entry.function}, found none")
    if path.stat().st_size > LARGEST:
        raise CheckoutError(f"{path}: larger than {LARGEST} bytes, which is no kernel")
    data = path.read_bytes()
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise CheckoutError(f"{path}: not Python that this interpreter can read: {error!r}") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry.function:
            digest = hashlib.sha256(data).hexdigest()
            return Kernel(entry.file, entry.function, parameters(path, node, entry), digest)
    raise CheckoutError(f"{path}: expected a function {entry.function}, found none")


def changed(checkout: Checkout) -> list[str]:
    """What differs between a recorded checkout and the disk, one line each."""
    lines = []
    for operator, kernel in checkout.kernels.items():
        path = Path(checkout.folder) / kernel.file
        if not path.is_file():
            lines.append(f"{operator}: {path} is gone")
        elif path.stat().st_size > LARGEST or hashlib.sha256(path.read_bytes()).hexdigest() != kernel.sha256:
            lines.append(f"{operator}: {path} has changed since it was imported")
    present = _companions(Path(checkout.folder)) if checkout.companions else {}
    for name in sorted({*checkout.companions, *present}):
        if checkout.companions.get(name) != present.get(name):
            path = Path(checkout.folder) / name
            lines.append(f"{path}, which the kernels can import, has changed since they were imported")
    return lines
