"""The system calls behind the transaction: every name is looked up in a folder that is held open.

A path is resolved once. After that a file is only reached as (folder descriptor, name) and never through a
link, so a folder that is swapped for a link in between cannot lead a write elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

#: Answers of a file system that does not keep an attribute, or does not let this user set it.
_NOT_KEPT = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENODATA, errno.EINVAL, errno.ENOSYS})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
#: Far above any source or compiled file that a transaction touches; bounds memory and time on hostile trees.
LIMIT = 64 << 20


@dataclass(frozen=True)
class Look:
    """What a file keeps besides its bytes. ``mtime_ns`` None means the time of writing."""

    mode: int = 0o644
    owner: tuple[int, int] | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()
    mtime_ns: int | None = None


class NotRegular(Exception):
    """The name is a link, folder, pipe or device, or larger than any file of ours; ``what`` tells which."""

    def __init__(self, name: str, what: str = "is not a regular file") -> None:
        super().__init__(name)
        self.what = what


class Folders:
    """The folders of one tree, each opened once without following links and held until the end.

    ``given`` is the root as the caller named it, ``root`` its real path.
    """

    def __init__(self, root: Path) -> None:
        self.given = Path(os.path.abspath(root))  # noqa: PTH100 - Path.resolve would follow links
        self.root = Path(os.path.realpath(root))
        self._held: dict[Path, int] = {}

    def __enter__(self) -> Folders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._held.values():
            # Nothing was written through it, so closing has nothing to tell.
            with suppress(OSError):
                os.close(descriptor)
        self._held.clear()

    def open(self, real: Path) -> int:
        """Descriptor of the folder at the real path ``real``; NotADirectoryError for a link on the way."""
        held = self._held.get(real)
        if held is not None:
            return held
        try:
            if real == self.root:
                descriptor = os.open(real, _FOLDER)
            elif real.is_relative_to(self.root):
                descriptor = os.open(real.name, _FOLDER, dir_fd=self.open(real.parent))
            else:
                descriptor = _walk(real)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotADirectoryError(errno.ENOTDIR, "is a link now", str(real)) from error
            raise
        self._held[real] = descriptor
        return descriptor

    def forget(self, real: Path) -> None:
        """Close the folder ``real``, which was removed or replaced."""
        descriptor = self._held.pop(real, None)
        if descriptor is not None:
            os.close(descriptor)

    def sync(self, reals: Iterable[Path]) -> None:
        """Make the names in these folders durable."""
        for real in dict.fromkeys(reals):
            sync_folder(self.open(real))


def _walk(real: Path) -> int:
    """Open a folder outside the root, component by component; a link on the way is an error."""
    descriptor = os.open(real.anchor, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for depth, name in enumerate(real.parts[1:], start=2):
        passing = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        flags = _FOLDER if depth == len(real.parts) else passing
        try:
            deeper = os.open(name, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = deeper
    return descriptor


def sync_folder(folder: int) -> None:
    """fsync a folder, where the file system knows that."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def names(folder: int) -> set[str]:
    """Everything in a folder."""
    return set(os.listdir(folder))


def find(folder: int, name: str) -> os.stat_result | None:
    """lstat of ``name``; None where there is no such name."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def read(folder: int, name: str, limit: int | None = None) -> tuple[bytes, Look, os.stat_result]:
    """Bytes, look and stat of the regular file ``name``; raises `NotRegular`, OSError.

    With ``limit`` only so many bytes are read; without it a file beyond `LIMIT` is none to be read.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotRegular(name) from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotRegular(name)
        if limit is None and found.st_size > LIMIT:
            raise NotRegular(name, f"is larger than any file that glm-pto touches ({LIMIT >> 20} MiB)")
        data = _read_all(descriptor, LIMIT if limit is None else limit)
        look = Look(stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid), _xattrs(descriptor))
    finally:
        os.close(descriptor)
    return data, look, found


def write_new(folder: int, name: str, data: bytes, look: Look) -> None:
    """Create ``name``, which must not exist, with these bytes and this look, durably (but for its name)."""
    descriptor = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            written = os.write(descriptor, rest)
            if written <= 0:
                raise OSError(errno.EIO, "nothing was written", name)
            rest = rest[written:]
        _dress(descriptor, look)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(folder: int, name: str, data: bytes, mode: int = 0o644) -> None:
    """Put ``data`` at ``name`` in one step, durably. For the tool's own files, under its lock."""
    new = f"{name}.new"
    discard(folder, new)
    write_new(folder, new, data, Look(mode))
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    sync_folder(folder)


def keep(folder: int, name: str, copy: str) -> None:
    """Give the file ``name`` a second name ``copy``: a hard link, or a copy where links are not possible."""
    try:
        os.link(name, copy, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NOT_KEPT | {errno.EMLINK, errno.EXDEV}:
            raise
        data, look, found = read(folder, name)
        write_new(folder, copy, data, Look(look.mode, look.owner, look.xattrs, found.st_mtime_ns))


def discard(folder: int, name: str) -> bool:
    """Remove ``name`` where it exists; True where it did."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def same(one: os.stat_result, other: os.stat_result | None) -> bool:
    """Is it the same file, not written to in between?"""
    return other is not None and (
        (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns)
        == (other.st_dev, other.st_ino, other.st_size, other.st_mtime_ns)
    )


def _read_all(descriptor: int, left: int) -> bytes:
    parts: list[bytes] = []
    while left > 0 and (part := os.read(descriptor, min(_CHUNK, left))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _xattrs(descriptor: int) -> tuple[tuple[str, bytes], ...]:
    try:
        return tuple((name, os.getxattr(descriptor, name)) for name in os.listxattr(descriptor))
    except OSError as error:
        if error.errno not in _NOT_KEPT:
            raise
        return ()


def _dress(descriptor: int, look: Look) -> None:
    """Owner first: changing it clears bits of the mode. What this user may not set is left as it is."""
    now = os.fstat(descriptor)
    with _where_permitted():
        if look.owner is not None and look.owner != (now.st_uid, now.st_gid):
            os.fchown(descriptor, *look.owner)
    for name, value in look.xattrs:
        with _where_permitted():
            os.setxattr(descriptor, name, value)
    os.fchmod(descriptor, look.mode)
    if look.mtime_ns is not None:
        os.utime(descriptor, ns=(look.mtime_ns, look.mtime_ns))


@contextmanager
def _where_permitted() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_KEPT:
            raise
