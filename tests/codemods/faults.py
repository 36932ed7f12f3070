"""Make the N-th file-system call of a run fail, fall short, or be the last one that the process makes.

The calls are counted in this process's ``os`` and ``fcntl``. Death comes in two kinds that leave the same
disk behind: `Killed` for the cheap one (from then on no call does anything, so whatever handlers run change
nothing) and a forked child that ends with ``os._exit`` for the real one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from glm_pto.codemods.findings import Refusal, WriteFailure

CALLS = {
    os: "open close read write pwrite ftruncate fsync rename replace link unlink mkdir rmdir stat lstat "
    "fstat listdir scandir access fchmod fchown utime readlink listxattr getxattr setxattr",
    fcntl: "flock",
}
DONE, REFUSED, FAILED, KILLED, WRONG = 0, 3, 4, 9, 70

Fault = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Killed(BaseException):
    """The process is dead; raised by every call from then on."""


class Counter:
    """How many calls were made."""

    def __init__(self) -> None:
        self.calls = 0


def dies(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Only descriptors are still closed, as the kernel does for the dead."""
    if call.__name__ == "close":
        return call(*args, **kwargs)
    raise Killed


def dies_in_write(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Half of what was to be written reaches the disk, then the process is dead."""
    if call.__name__ == "write":
        call(args[0], bytes(args[1])[: len(args[1]) // 2])
    return dies(call, args, kwargs)


def exits(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Death of a real process; only in a `child`."""
    os._exit(KILLED)


def exits_in_write(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if call.__name__ == "write":
        call(args[0], bytes(args[1])[: len(args[1]) // 2])
    os._exit(KILLED)


def short(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A write that takes one byte only, which is no error."""
    if call.__name__ == "write":
        return call(args[0], bytes(args[1])[:1])
    return call(*args, **kwargs)


def interrupts(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ctrl-C arrives after the call was made, before its result was stored; a blocked one waits."""
    result = call(*args, **kwargs)
    signal.raise_signal(signal.SIGINT)
    return result


def error(number: int) -> Fault:
    def fails(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if call.__name__ == "close":
            call(*args, **kwargs)  # Linux frees the descriptor also when close fails.
        raise OSError(number, os.strerror(number))

    return fails


ERRORS = {
    name: error(getattr(errno, name)) for name in ("ENOSPC", "EIO", "EACCES", "EINTR", "EROFS", "EDQUOT")
}


@contextmanager
def fault_at(at: int, fault: Fault | None = None, *, lasting: bool = False) -> Iterator[Counter]:
    """Count the calls; the ``at``-th (with ``lasting``, every later one too) goes to ``fault`` instead."""
    counter = Counter()
    real = {
        (module, name): getattr(module, name) for module, names in CALLS.items() for name in names.split()
    }

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            counter.calls += 1
            if fault is not None and (counter.calls == at or (lasting and counter.calls > at)):
                return fault(call, args, kwargs)
            return call(*args, **kwargs)

        wrapper.__name__ = call.__name__
        return wrapper

    for (module, name), call in real.items():
        setattr(module, name, counted(call))
    try:
        yield counter
    finally:
        for (module, name), call in real.items():
            setattr(module, name, call)


def attempt(run: Callable[[], object], fault: Fault, at: int, *, lasting: bool = False) -> int:
    """Exit status of ``run`` in this process with the fault at its ``at``-th call."""
    try:
        with fault_at(at, fault, lasting=lasting):
            run()
    except Refusal:
        return REFUSED
    except WriteFailure:
        return FAILED
    except (Killed, KeyboardInterrupt):
        return KILLED
    return DONE


def killed(run: Callable[[], object], at: int, *, torn: bool = False) -> int:
    """`attempt` with death at the ``at``-th call; KILLED until ``at`` is beyond the last one."""
    if not torn:
        return attempt(run, dies, at, lasting=True)
    first = [True]

    def fault(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if first:
            first.clear()
            return dies_in_write(call, args, kwargs)
        return dies(call, args, kwargs)

    return attempt(run, fault, at, lasting=True)


def count(run: Callable[[], object]) -> int:
    """How many calls a run makes when nothing goes wrong."""
    with fault_at(0) as counter:
        run()
    return counter.calls


def child(run: Callable[[], object], fault: Fault, at: int) -> int:
    """`attempt` in a forked child, for deaths that take the process with them."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    leave = os._exit
    try:
        status = attempt(run, fault, at)
    except BaseException:
        traceback.print_exc()
        status = WRONG
    leave(status)
    raise AssertionError("not reached")
