"""What glm-pto remembers of a tree: per file the hashes before and after, mode, sites, package and version.

It makes `status` fast and lets it explain; it is never trusted over the text. Losing it loses nothing, since
the guards in the files are enough to revert.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glm_pto.codemods import disk, reading, seal, trust
from glm_pto.codemods.findings import FileChange
from glm_pto.codemods.target import CONTROL, LOCK

NAME = "state.json"
_KIND = "state"
_FORMAT = 1
_AT_REST = frozenset({NAME, LOCK, ".gitignore"})
#: The marker of a guard (`glm_pto.codemods.guard.MARKER`), in bytes of any codec that keeps ASCII.
_MARKER = re.compile(rb"  # glm-pto: ([a-z_]+) \d+ [0-9a-f]{8}[ \t]*[\r\n]")


@dataclass(frozen=True)
class FileRecord:
    """A file as the last transaction left it, by SHA-256.

    ``before`` is the file without our lines; None where that is not known, or where the file was ``made`` by
    glm-pto. ``sites`` are the guards that stand in it.
    """

    before: str | None
    after: str
    mode: int
    package: str
    version: str | None
    sites: tuple[str, ...] = ()
    made: bool = False


@dataclass(frozen=True)
class Record:
    """Everything remembered of one tree; files by their path from the root, with ``/``."""

    tool: str
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    #: The rows of the last complete survey and what they rest on (`glm_pto.codemods.recall`).
    survey: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StateRead:
    """The record, or why there is none that can be used (``problem`` empty: there is simply none)."""

    record: Record | None
    problem: str = ""


def at_rest(names: Set[str]) -> bool:
    """Are these the names in a hidden folder when no run is under way and none was interrupted?"""
    return NAME in names and names <= _AT_REST


def load(root: Path) -> StateRead:
    """Read the state of the tree at ``root``; never raises for what the file holds."""
    path = Path(root) / CONTROL / NAME
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return StateRead(None)
    except OSError as error:
        return StateRead(
            None, f"{path.parent}: cannot be opened ({error.strerror}); judging by the text alone"
        )
    try:
        data, _, found = disk.read(folder, NAME, seal.LIMIT)
        home = os.fstat(folder)
        problem = _forged(path.parent, home, Path(root).stat()) or _forged(path, found, home)
        return StateRead(None, problem) if problem else StateRead(decode(data))
    except FileNotFoundError:
        return StateRead(None)
    except (OSError, disk.NotRegular, seal.Unusable) as error:
        why = "it is not a regular file" if isinstance(error, disk.NotRegular) else error
        return StateRead(None, f"{path}: not usable, {why}; judging by the text alone")
    finally:
        os.close(folder)


def _forged(path: Path, found: os.stat_result, above: os.stat_result) -> str:
    who = trust.stranger(found, above)
    if not who:
        return ""
    return (
        f"{path}: {who}, so others could have written it; judging by the text alone. Look at it, then move "
        "it away: the guards in the files are enough"
    )


def merge(
    previous: Record | None,
    changes: Iterable[tuple[str, int, FileChange]],
    versions: Mapping[str, str | None],
    tool: str,
    survey: Mapping[str, Any] | None = None,
) -> Record:
    """The record after ``changes`` (path from the root, mode, change): the files that hold something of ours.

    ``versions`` gives the version of each package. Guards are read from the new text. The hash before the
    first apply outlives later changes as long as nobody else wrote the file in between.
    """
    files = dict(previous.files) if previous is not None else {}
    for path, mode, change in changes:
        old = files.pop(path, None)
        made = change.before is None or (old is not None and old.made)
        sites = standing(change.after or b"")
        if change.after is None or not (made or sites):
            continue
        version = versions.get(change.package)
        before = None if made else _original(old, change.before or b"")
        after = seal.digest(change.after)
        files[path] = FileRecord(before, after, mode, change.package, version, sites, made)
    return Record(tool, dict(sorted(files.items())), survey or {})


def prune(root: Path, record: Record | None) -> Record | None:
    """The record without files that hold nothing of ours any more: reinstalled, reverted by hand, or gone."""
    if record is None:
        return None
    kept = {path: file for path, file in record.files.items() if _holds(root / path, file.made)}
    return Record(record.tool, kept, record.survey)


def standing(text: bytes) -> tuple[str, ...]:
    """The sites whose guards stand in a file, edited ones too; a marker inside of a string is none."""
    marked = tuple(dict.fromkeys(name.decode("ascii") for name in _MARKER.findall(text)))
    if not marked:
        return ()
    from glm_pto.codemods import guard, source  # the parser, which most calls do not need

    try:
        return tuple(dict.fromkeys(found.site for found in guard.find(source.read("", text))))
    except source.Unreadable:
        return marked


def _holds(path: Path, made: bool) -> bool:
    try:
        return path.is_file() and (made or bool(standing(reading.load(path))))
    except OSError:
        return True


def _original(old: FileRecord | None, before: bytes) -> str | None:
    digest = seal.digest(before)
    if old is not None and old.after == digest:
        return old.before
    return None if standing(before) else digest


def encode(record: Record) -> bytes:
    """The record as the bytes of the state file."""
    return seal.dump(_KIND, _FORMAT, asdict(record))


def decode(data: bytes) -> Record:
    """The record in the bytes of a state file; raises `seal.Unusable`."""
    body = seal.load(_KIND, _FORMAT, data)
    try:
        files = {path: _file(entry) for path, entry in body["files"].items()}
        tool = body["tool"]
    except (KeyError, TypeError, AttributeError) as error:
        raise seal.Unusable("its content is not that of a state") from error
    if not isinstance(tool, str):
        raise seal.Unusable("its content is not that of a state")
    survey = body.get("survey", {})
    return Record(tool, files, survey if isinstance(survey, dict) else {})


def _file(entry: dict[str, Any]) -> FileRecord:
    record = FileRecord(
        entry["before"],
        entry["after"],
        entry["mode"],
        entry["package"],
        entry["version"],
        tuple(str(site) for site in entry["sites"]),
        bool(entry["made"]),
    )
    texts = (record.after, record.package, record.before or "", record.version or "")
    if not all(isinstance(text, str) for text in texts) or not isinstance(record.mode, int):
        raise TypeError("a field of the wrong type")
    return record
