"""Read files that anybody may have put into a tree: regular ones, up to a size, without ever waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: Far above any file that is edited (the largest is under 200 kB); bounds memory and time on hostile input.
MAX_BYTES = 1024 * 1024

#: Errors of a name that leads to no source at all, or to more than any source is.
NO_SOURCE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EFBIG})


def load(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The file's bytes; OSError with the reason also for what is too large, a pipe, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > limit:
            what = f"{found.st_size:,} bytes is larger than any file this tool works with ({limit:,})"
            raise OSError(errno.EFBIG, what, str(path))
        try:
            return stream.read(limit + 1)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
