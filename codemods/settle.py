"""The way out of a transaction, from what is on the disk alone: clear up after it, or undo it.

Both can be cut short anywhere and started again. They look at each file instead of remembering what was done,
so the process that failed and the process that finds a dead one's journal run the same code.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from glm_pto.codemods import disk, journal, seal
from glm_pto.codemods.findings import Refusal
from glm_pto.codemods.target import CONTROL, Spot, locate

#: A folder that is not empty, not there, in use or no folder is not ours to remove.
_NOT_OURS = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY, errno.ENOTDIR})


@dataclass(frozen=True)
class Recovery:
    """What became of an interrupted run: ``finished``, or else rolled back to where it began."""

    finished: bool
    files: tuple[str, ...]
    pid: int
    notes: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """One sentence for the report."""
        done = "finished" if self.finished else "rolled back"
        return f"an interrupted run (process {self.pid}) was {done}: {', '.join(self.files) or 'no files'}"


def settle(folders: disk.Folders, control: int) -> Recovery | None:
    """Finish or roll back what the journal tells of; None without one. Under the lock."""
    try:
        found = journal.read(control)
    except seal.Unusable as error:
        raise Refusal(
            f"{folders.root / CONTROL}: an interrupted run left a journal that cannot be used, {error}; "
            "look for files named .glm-pto-* beside the packages, then remove this folder"
        ) from error
    if found is None:
        journal.remove(control)
        return None
    work, done = found
    files = tuple(entry.path for entry in work.entries if not entry.loose and not _own(entry.path))
    if done:
        clear(folders, control, work)
        return Recovery(True, files, work.pid)
    return Recovery(False, files, work.pid, roll_back(folders, control, work))


def roll_back(folders: disk.Folders, control: int, work: journal.Journal) -> tuple[str, ...]:
    """Put every file back as it was before; notes tell of files that somebody else wrote since."""
    journal.reopen(control)
    notes: list[str] = []
    touched: list[Path] = []
    for index, entry in reversed(list(enumerate(work.entries))):
        spot = _spot(folders, entry)
        if spot is None:
            continue
        new, old = work.staged(index)
        folder = folders.open(spot.parent)
        note = _restore(folder, spot, entry, old)
        if note:
            notes.append(note)
        disk.discard(folder, new)
        touched.append(spot.parent)
    folders.sync(touched)
    _remove_folders(folders, reversed(work.folders))
    journal.remove(control)
    disk.sync_folder(control)
    return tuple(notes)


def clear(folders: disk.Folders, control: int, work: journal.Journal) -> None:
    """Remove what a committed transaction left: old files, and folders that hold nothing any more."""
    emptied: list[str] = []
    for index, entry in enumerate(work.entries):
        if entry.after is None and not _own(entry.path):
            emptied.extend(str(parent) for parent in Path(entry.path).parents if parent.name)
        spot = _spot(folders, entry)
        if spot is None:
            continue
        for name in work.staged(index):
            disk.discard(folders.open(spot.parent), name)
    _remove_folders(folders, sorted(set(emptied), key=len, reverse=True))
    journal.remove(control)


def _restore(folder: int, spot: Spot, entry: journal.Entry, old: str) -> str | None:
    """Undo one entry; a note where the file is neither the old nor the new one and stays as it is."""
    now = disk.find(folder, spot.name)
    kept = disk.find(folder, old)
    if entry.before is None:
        if now is None:
            return None
        if not entry.loose and _hash(folder, spot.name) != entry.after:
            return _foreign(spot)
        disk.discard(folder, spot.name)
        return None
    if kept is None:
        return None
    here = None if now is None else _hash(folder, spot.name)
    if here == entry.before:
        # Not replaced yet: the other name is the same file, or a copy that may not be complete.
        disk.discard(folder, old)
        return None
    if entry.loose and _hash(folder, old) != entry.before:
        disk.discard(folder, old)
        if here == entry.after:
            disk.discard(folder, spot.name)
        return None
    if now is not None and not entry.loose and here != entry.after:
        disk.discard(folder, old)
        return _foreign(spot)
    os.rename(old, spot.name, src_dir_fd=folder, dst_dir_fd=folder)
    return None


def _hash(folder: int, name: str) -> str | None:
    try:
        return seal.digest(disk.read(folder, name)[0])
    except disk.NotRegular:
        return None


def _spot(folders: disk.Folders, entry: journal.Entry) -> Spot | None:
    """Where the entry's file is; None where its folder does not exist (any more)."""
    spot = locate(folders, entry.path)
    try:
        folders.open(spot.parent)
    except FileNotFoundError:
        return None
    return spot


def _remove_folders(folders: disk.Folders, paths: Iterable[str]) -> None:
    for path in paths:
        spot = locate(folders, path)
        folders.forget(spot.parent / spot.name)
        try:
            os.rmdir(spot.name, dir_fd=folders.open(spot.parent))
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise


def _own(path: str) -> bool:
    return path.startswith(f"{CONTROL}/")


def _foreign(spot: Spot) -> str:
    return f"{spot.real}: was written by somebody else since the interruption and is left as it is"
