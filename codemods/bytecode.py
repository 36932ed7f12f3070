"""The compiled files of a source file that is about to change.

Python runs a .pyc in place of its source as long as the .pyc fits the source's time and size, or, with
``unchecked-hash``, for ever. So every .pyc of a changed file goes, whatever interpreter made it. One that the
running interpreter can make again is made again in the same invalidation mode, because nobody else will in
an image whose folders are read-only for its server.
"""

from __future__ import annotations

import errno
import importlib.util
import marshal
import sys
import warnings
from dataclasses import dataclass

from glm_pto.codemods import disk
from glm_pto.codemods.findings import Refusal
from glm_pto.codemods.target import Spot

FOLDER = "__pycache__"
_HEADER = 16
_HASHED, _CHECKED = 0b01, 0b10


@dataclass(frozen=True)
class Compiled:
    """A .pyc to replace (``after`` bytes) or to remove (None)."""

    spot: Spot
    look: disk.Look
    before: bytes
    after: bytes | None


def stale(folders: disk.Folders, spot: Spot, after: bytes | None, mtime_ns: int) -> list[Compiled]:
    """Every .pyc of the source at ``spot``, which will hold ``after`` with this modification time."""
    stem, dot, ending = spot.name.rpartition(".")
    if not dot or ending != "py":
        return []
    found = []
    for place in _places(folders, spot, stem):
        try:
            data, look, _ = disk.read(folders.open(place.parent), place.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # no such file then, either
                raise
            continue
        except disk.NotRegular as odd:
            raise Refusal(f"{place.real}: {odd.what}; remove it, Python would run it") from None
        level = _level(place, stem)
        new = None
        if after is not None and level is not None:
            new = recompile(data[:_HEADER], after, str(spot.real), level, mtime_ns)
        found.append(Compiled(place, look, data, new))
    return found


def recompile(header: bytes, source: bytes, filename: str, level: int, mtime_ns: int) -> bytes | None:
    """A .pyc of ``source`` in the invalidation mode of ``header``; None where this interpreter cannot."""
    flags = int.from_bytes(header[4:8], "little")
    if len(header) < _HEADER or header[:4] != importlib.util.MAGIC_NUMBER or flags & ~(_HASHED | _CHECKED):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, filename, "exec", dont_inherit=True, optimize=level)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if flags & _HASHED:
        key = importlib.util.source_hash(source)
    else:
        seconds, size = mtime_ns // 1_000_000_000, len(source)
        key = b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in (seconds, size))
    return header[:8] + key + marshal.dumps(code)


def _places(folders: disk.Folders, spot: Spot, stem: str) -> list[Spot]:
    """Where Python keeps, or once kept, the compiled form of the file."""
    inside = f"{spot.path.rpartition('/')[0]}/{FOLDER}".lstrip("/")
    here = spot.path[: -len(spot.name)]
    places = [Spot(f"{here}{stem}.pyc", spot.parent, f"{stem}.pyc")]
    try:
        names = disk.names(folders.open(spot.parent / FOLDER))
    except FileNotFoundError:
        names = set()
    except NotADirectoryError:
        raise Refusal(
            f"{spot.parent / FOLDER}: is a link or a file, not a folder; the compiled files of {spot.name} "
            "cannot be renewed safely; remove it"
        ) from None
    for name in sorted(names):
        if name.startswith(f"{stem}.") and name.endswith(".pyc"):
            places.append(Spot(f"{inside}/{name}", spot.parent / FOLDER, name))
    return places


def _level(place: Spot, stem: str) -> int | None:
    """Optimisation level of a .pyc of the running interpreter, None for anybody else's."""
    if place.parent.name != FOLDER:
        return 0
    tag, _, opt = place.name[len(stem) + 1 : -len(".pyc")].partition(".opt-")
    if tag != sys.implementation.cache_tag or opt not in ("", "1", "2"):
        return None
    return int(opt or 0)
