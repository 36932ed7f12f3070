"""The journal: what a running transaction is about to do, written down before it does any of it.

``journal.json`` means: in progress, to be rolled back. Its rename to ``journal.done`` is the one moment at
which the new files become the valid ones; after that only leftovers remain to be cleared.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from glm_pto.codemods import disk, seal, trust

OPEN = "journal.json"
DONE = "journal.done"
_KIND = "journal"
_FORMAT = 1
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Entry:
    """One file of a transaction, by SHA-256 before and after (None: does not exist).

    ``loose`` files are bytecode: anybody may write them at any time, and the transaction has the last word.
    """

    path: str
    before: str | None
    after: str | None
    loose: bool = False


@dataclass(frozen=True)
class Journal:
    """A transaction: its id, the process that runs it, its files in order, the folders it makes."""

    id: str
    pid: int
    entries: tuple[Entry, ...]
    folders: tuple[str, ...] = ()

    def staged(self, index: int) -> tuple[str, str]:
        """Names beside the target of its new file and of its old one. Short, and never importable."""
        stem = f".glm-pto-{self.id}-{index}"
        return f"{stem}.new", f"{stem}.old"


def new_id() -> str:
    """An id that no other transaction has."""
    return os.urandom(8).hex()


def write(control: int, journal: Journal) -> None:
    """Write the journal durably; from here on the transaction is open."""
    disk.replace(control, OPEN, seal.dump(_KIND, _FORMAT, asdict(journal)))


def read(control: int) -> tuple[Journal, bool] | None:
    """The journal and whether it is done; None without one. Raises `seal.Unusable`."""
    for name, done in ((DONE, True), (OPEN, False)):
        if disk.find(control, name) is None:
            continue
        try:
            data, _, found = disk.read(control, name, seal.LIMIT)
        except disk.NotRegular as error:
            raise seal.Unusable("it is not a regular file") from error
        who = trust.stranger(found, os.fstat(control))
        if who:
            raise seal.Unusable(f"{name} {who}, so others could have written it")
        return _decode(seal.load(_KIND, _FORMAT, data)), done
    return None


def close(control: int) -> None:
    """The moment of commitment, durable."""
    os.rename(OPEN, DONE, src_dir_fd=control, dst_dir_fd=control)
    disk.sync_folder(control)


def reopen(control: int) -> None:
    """Undo `close`, where it happened, before a roll-back."""
    if disk.find(control, DONE) is not None:
        os.rename(DONE, OPEN, src_dir_fd=control, dst_dir_fd=control)


def remove(control: int) -> None:
    """Forget the transaction (also one whose journal was never complete): everything is settled."""
    for name in (DONE, OPEN, f"{OPEN}.new"):
        disk.discard(control, name)


def _decode(body: dict[str, Any]) -> Journal:
    """A checksum only says that the text is as written; what it says is checked here."""
    try:
        names = {field.name for field in fields(Entry)}
        entries = tuple(
            Entry(**{key: value for key, value in entry.items() if key in names}) for entry in body["entries"]
        )
        journal = Journal(body["id"], body["pid"], entries, tuple(body["folders"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise seal.Unusable("its content is not that of a journal") from error
    hashes = {type(value) for entry in entries for value in (entry.before, entry.after)}
    paths = [*(entry.path for entry in entries), *journal.folders]
    if (
        not hashes <= {str, type(None)}
        or not all(isinstance(path, str) for path in paths)
        or not isinstance(journal.id, str)
        or not _ID.fullmatch(journal.id)
        or not isinstance(journal.pid, int)
    ):
        raise seal.Unusable("its content is not that of a journal")
    return journal
