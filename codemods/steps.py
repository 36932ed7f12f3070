"""The steps of a transaction: every file is looked at, and every objection raised, before the first write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glm_pto.codemods import bytecode, disk, journal, seal, state, target
from glm_pto.codemods.findings import Changed, FileChange, Refusal


@dataclass(frozen=True)
class Step:
    """One journal entry with all that is needed to carry it out."""

    spot: target.Spot
    entry: journal.Entry
    after: bytes | None
    look: disk.Look
    change: FileChange | None = None

    def disturbed(self, folder: int) -> bool:
        """Did somebody write the file since it was looked at?

        Told by its bytes, since overlays change inodes; the name must still lead to the file that was read.
        """
        if self.change is None:
            return False
        before, name = self.change.before, self.spot.name
        try:
            data, _, seen = disk.read(folder, name, len(before or b"") + 1)
            return data != before or not disk.same(seen, disk.find(folder, name))
        except FileNotFoundError:
            return before is not None
        except disk.NotRegular:
            return True


def prepare(folders: disk.Folders, changes: Sequence[FileChange]) -> tuple[list[Step], list[str]]:
    """Look at every file before the first write; all that stands in the way is told at once."""
    cache = target.cache_of(folders.root)
    if cache is not None:
        raise Refusal(
            f"{folders.root}: lies in the package cache {cache}, which environments are made from; name the "
            "environment instead"
        )
    moment = time.time_ns()
    steps: list[Step] = []
    compiled: list[bytecode.Compiled] = []
    lost: list[str] = []
    problems: list[str] = []
    kind: type[Refusal] = Changed
    for change in changes:
        if change.before == change.after:
            continue
        try:
            step = _look(folders, change, moment)
            stale = bytecode.stale(folders, step.spot, change.after, moment)
        except Refusal as refusal:
            problems.extend(refusal.problems)
            kind = kind if isinstance(refusal, Changed) else Refusal
            continue
        steps.append(step)
        compiled += stale
        lost += [c.spot.real.name for c in stale if c.after is None and change.after is not None]
    places = [step.spot.real for step in steps]
    twice = [f"{real}: named twice in one change" for real in {p for p in places if places.count(p) > 1}]
    if twice:
        raise Refusal(*problems, *twice)
    if problems:
        raise kind(*problems)
    held = {step.spot.real: step.look.mode for step in steps if step.entry.before is not None}
    notes = [*target.open_to_all(folders, held), *_foreign_bytecode(lost)]
    return [*steps, *(_compiled(item) for item in compiled)], notes


def _look(folders: disk.Folders, change: FileChange, moment: int) -> Step:
    """One change as a step; `Refusal` where the file is not as the plan read it, or not ours to write."""
    spot = target.locate(folders, change.path)
    if change.before is None:
        _check_free(folders, spot)
        look = disk.Look(mtime_ns=moment)
    else:
        try:
            folder = folders.open(spot.parent)
            data, look, found = disk.read(folder, spot.name, len(change.before) + 1)
        except FileNotFoundError:
            raise Changed(f"{spot.real}: is gone since it was read; run the command again") from None
        except (NotADirectoryError, disk.NotRegular):
            raise Changed(f"{spot.real}: is not a regular file any more; run the command again") from None
        if data != change.before:
            raise Changed(f"{spot.real}: changed since it was read; run the command again")
        problem = target.read_only(folder, spot, found)
        if problem:
            raise Refusal(problem)
        look = disk.Look(look.mode, look.owner, look.xattrs, moment)
    return Step(spot, _entry(spot, change.before, change.after), change.after, look, change)


def _check_free(folders: disk.Folders, spot: target.Spot) -> None:
    """A file to create must not exist, and the folder that takes it must be writable."""
    place = _existing(spot.parent)
    try:
        folder = folders.open(place)
    except NotADirectoryError:
        raise Refusal(
            f"{place}: is not a folder, so {spot.path} cannot be made there; move it away"
        ) from None
    problem = target.read_only(folder, spot, None)
    if problem:
        raise Refusal(problem)
    if place == spot.parent and disk.find(folder, spot.name) is not None:
        raise Refusal(f"{spot.real}: exists already and is not ours; move it away or rename it")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    for place in (folder, *folder.parents):
        try:
            place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return place
    raise FileNotFoundError(str(folder))


def _compiled(item: bytecode.Compiled) -> Step:
    entry = _entry(item.spot, item.before, item.after, loose=True)
    return Step(item.spot, entry, item.after, item.look)


def _foreign_bytecode(lost: list[str]) -> list[str]:
    return [f"compiled files removed and not made again: {', '.join(lost)}"] if lost else []


def remember(folders: disk.Folders, record: state.Record) -> list[Step]:
    """At most two steps: the record (or its absence) and a .gitignore in the hidden folder."""
    home = folders.root / target.CONTROL
    control = folders.open(home)
    wanted = {state.NAME: state.encode(record), ".gitignore": b"*\n"} if record.files else {}
    steps = []
    for name in (".gitignore", state.NAME):
        spot = target.Spot(f"{target.CONTROL}/{name}", home, name)
        after = wanted.get(name)
        try:
            before = disk.read(control, name)[0] if disk.find(control, name) else None
        except disk.NotRegular as error:
            raise Refusal(f"{spot.real}: {error.what}; remove it") from None
        if after != before:
            steps.append(Step(spot, _entry(spot, before, after), after, disk.Look()))
    return steps


def _entry(
    spot: target.Spot, before: bytes | None, after: bytes | None, loose: bool = False
) -> journal.Entry:
    hashes = [None if data is None else seal.digest(data) for data in (before, after)]
    return journal.Entry(spot.path, hashes[0], hashes[1], loose)
