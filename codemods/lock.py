"""One writer at a time: a lock in the hidden folder that goes with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glm_pto.codemods import disk, trust
from glm_pto.codemods.findings import Refusal, WriteFailure
from glm_pto.codemods.target import CONTROL, LOCK, Spot, read_only

#: Seconds to wait for another run before saying that it is busy.
WAIT = 30.0
_PAUSE = 0.02
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
#: Names in the hidden folder that need no journal to be removed with it.
_OURS = (".gitignore", "state.json.new", "journal.json.new", LOCK)


@contextmanager
def hold(folders: disk.Folders, wait: float = WAIT) -> Iterator[int]:
    """Hold the tree's lock and yield the hidden folder's descriptor, made where it was missing.

    `Refusal` where another process holds it after ``wait`` seconds, or where the root cannot be written.
    A folder that holds no state at the end is removed again.
    """
    home = folders.root / CONTROL
    deadline = time.monotonic() + wait
    while True:
        control, handle = _open(folders)
        try:
            _wait(folders, control, handle, deadline)
            current = disk.find(control, LOCK)
            mine = os.fstat(handle)
            if current is not None and (current.st_dev, current.st_ino) == (mine.st_dev, mine.st_ino):
                break
        except BaseException:
            os.close(handle)
            raise
        # The owner removed the folder with its lock while we waited for it.
        os.close(handle)
        folders.forget(home)
    try:
        _sign(handle)
        yield control
    finally:
        # All is decided. What cannot be removed now is removed by the next command, and the lock goes with
        # its descriptor, which Linux frees also where close fails.
        try:
            with suppress(OSError):
                tidy(folders, control)
        finally:
            with suppress(OSError):
                os.close(handle)


def tidy(folders: disk.Folders, control: int) -> None:
    """Remove the hidden folder where it holds neither state nor journal. Under the lock."""
    if not disk.names(control) <= set(_OURS):
        return
    for name in _OURS:
        disk.discard(control, name)
    # Another run may have made its lock in the meantime: then the folder is its own.
    with suppress(OSError):
        os.rmdir(CONTROL, dir_fd=folders.open(folders.root))


def check_owner(folders: disk.Folders, control: int) -> None:
    """`Refusal` where somebody else could have written what the hidden folder says."""
    who = trust.stranger(os.fstat(control), os.fstat(folders.open(folders.root)))
    if who:
        raise Refusal(
            f"{folders.root / CONTROL}: {who}, so others could have written it; look at it, then move it "
            "away: the guards in the files are enough to revert"
        )


def owner(control: int) -> str:
    """Who holds the lock, as far as the lock file tells."""
    try:
        text = disk.read(control, LOCK, 200)[0].decode("ascii", "replace")
    except (OSError, disk.NotRegular):
        return "another process"
    pid, _, host = text.strip().partition(" ")
    if not pid.isdigit():
        return "another process"
    here = os.uname().nodename
    return f"process {pid}" + (f" on {host!a}" if host and host != here else "")


def _open(folders: disk.Folders) -> tuple[int, int]:
    """The hidden folder and a handle of its lock file; both may be going away with their owner."""
    home = folders.root / CONTROL
    while True:
        try:
            with suppress(FileExistsError):
                os.mkdir(CONTROL, 0o755, dir_fd=folders.open(folders.root))
            control = folders.open(home)
            check_owner(folders, control)
            return control, os.open(LOCK, _OPEN, 0o644, dir_fd=control)
        except FileNotFoundError:
            folders.forget(home)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                here = Spot(CONTROL, folders.root, CONTROL)
                why = read_only(folders.open(folders.root), here, None)
                raise Refusal(why or f"{home}: {error.strerror}; run as {_owner_of(home)}") from error
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Refusal(
                    f"{home}: must be a folder of its own, not a link or file; remove it"
                ) from error
            raise WriteFailure(f"{home}: {error.strerror}; nothing was changed") from error


def _owner_of(home: Path) -> str:
    try:
        return f"its owner (user {home.lstat().st_uid})"
    except OSError:
        return "its owner"


def _wait(folders: disk.Folders, control: int, handle: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Refusal(
                    f"{folders.root}: busy, {owner(control)} is changing this tree; try again when it is done"
                ) from None
            time.sleep(_PAUSE)


def _sign(handle: int) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()} {os.uname().nodename}\n".encode("ascii", "replace"), 0)
