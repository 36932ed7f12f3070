"""Read files that anybody may have put into a tree: regular ones, up to a size, without ever waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: Far above any file that is edited (the largest is under 200 kB); bounds memory and time on hostile input.
MAX_BYTES = 4 * 1024 * 1024


def load(path: Path) -> bytes:
    """The file's bytes; OSError with the reason also for what is too large, a pipe, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > MAX_BYTES:
            raise OSError(
                errno.EFBIG,
                f"{found.st_size:,} bytes is larger than any file this tool edits ({MAX_BYTES:,})",
                str(path),
            )
        return stream.read(MAX_BYTES + 1)
