"""Make the N-th file-system call of a run fail, fall short or kill the process; run it in a forked child.

The calls are counted in this process's ``os`` and ``fcntl``, so a child costs a fork and no imports.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

CALLS = {
    os: "open close read write pwrite ftruncate fsync rename replace link unlink mkdir rmdir stat lstat "
    "fstat listdir scandir access fchmod fchown utime readlink listxattr getxattr setxattr",
    fcntl: "flock",
}
DONE, REFUSED, FAILED, KILLED, WRONG = 0, 3, 4, 9, 70

Fault = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def kill_before(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    os._exit(KILLED)


def kill_in_write(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Half of what was to be written reaches the disk, then the process dies."""
    if call.__name__ == "write":
        call(args[0], bytes(args[1])[: len(args[1]) // 2])
    os._exit(KILLED)


def short(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A write that takes one byte only, which is no error."""
    if call.__name__ == "write" and args[0] > 2:
        return call(args[0], bytes(args[1])[:1])
    return call(*args, **kwargs)


def error(number: int) -> Fault:
    def fail(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if call.__name__ == "close":
            call(*args, **kwargs)  # Linux frees the descriptor also when close fails.
        raise OSError(number, os.strerror(number))

    return fail


def interrupt(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ctrl-C arrives as the call is made."""
    raise KeyboardInterrupt


ERRORS = {
    name: error(getattr(errno, name)) for name in ("ENOSPC", "EIO", "EACCES", "EINTR", "EROFS", "EDQUOT")
}


def install(fault: Fault, at: int, *, lasting: bool = False) -> list[int]:
    """Patch ``os`` and ``fcntl`` of this process; returns the running count of calls, in one cell."""
    count = [0]

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == at or (lasting and count[0] > at):
                return fault(call, args, kwargs)
            return call(*args, **kwargs)

        return counted

    for module, names in CALLS.items():
        for name in names.split():
            setattr(module, name, wrapped(getattr(module, name)))
    return count


def child(
    run: Callable[[], object], fault: Fault | None = None, at: int = 0, *, lasting: bool = False
) -> int:
    """Exit status of ``run`` in a forked child with ``fault`` at its ``at``-th call (0: never)."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    leave = os._exit
    try:
        from glm_pto.codemods.findings import Refusal, WriteFailure

        if fault is not None:
            install(fault, at, lasting=lasting)
        try:
            run()
            status = DONE
        except Refusal:
            status = REFUSED
        except WriteFailure:
            status = FAILED
        except KeyboardInterrupt:
            status = KILLED
    except BaseException:
        traceback.print_exc()
        status = WRONG
    leave(status)
    raise AssertionError("not reached")


def count(run: Callable[[], object]) -> int:
    """How many calls a run without faults makes, in a child that gives the number by its last call."""
    reader, writer = os.pipe()

    def counting() -> None:
        write = os.write
        cell = install(error(0), -1)
        run()
        write(writer, str(cell[0]).encode())

    assert child(counting) == DONE
    os.close(writer)
    with os.fdopen(reader) as stream:
        return int(stream.read())
