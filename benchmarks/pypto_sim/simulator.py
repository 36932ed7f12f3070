"""Run a PyPTO kernel on a plain CPU: its numbers by pypto's interpreter, its time by pypto's cost model.

``simulate(case, ...)`` takes a function that makes a :class:`Case`. Each simulation runs in a process of its
own, forked from one that has only imported torch and pypto: a failed compile leaves state behind, and a wrong
kernel may abort. No CANN and no NPU are needed. The time is a model's (Ascend 910B1, 1800 cycles a
microsecond), never a measurement on hardware.
"""

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GRAPH: tuple[str, ...] = ()  # interpret the tensor graph only: the quick look, blind to tiles
ALL_PASSES = ("all",)  # and every compiler pass, compared with the tensor graph


@dataclass(frozen=True)
class Case:
    """A kernel with its arguments; ``kernel`` is what ``pypto.frontend.jit`` returned."""

    kernel: Any
    tensors: tuple[Any, ...]
    written: tuple[int, ...]
    scalars: tuple[Any, ...] = ()
    nz: tuple[str, ...] = ()  # parameters that arrive in the fractal NZ layout


@dataclass(frozen=True)
class Task:
    """One task of the simulated run; times in microseconds from the first task's start."""

    core: str  # "AIC3" (cube) or "AIV17" (vector)
    graph: int
    start: float
    end: float


@dataclass(frozen=True)
class PassCheck:
    """One tensor of one pass compared with the tensor graph (or, there, with a placeholder)."""

    name: str
    tensor: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Result:
    """``outputs`` are in the order of ``Case.written``, and None when nothing was interpreted."""

    outputs: tuple[Any, ...] | None
    time_us: float
    utilisation: float  # percent of all cores' time
    tasks: tuple[Task, ...]
    passes: tuple[PassCheck, ...]

    def failed(self) -> list[PassCheck]:
        return [check for check in self.passes if not check.passed]


class SimulationError(RuntimeError):
    """The kernel did not compile, or its process died; the message ends with its last output."""


@dataclass(frozen=True)
class Request:
    case: Callable[..., Case]
    arguments: dict[str, Any]
    passes: Sequence[str] | None
    tolerance: tuple[float, float]
    timeout: float


def simulate(
    case: Callable[..., Case],
    *,
    passes: Sequence[str] | None = GRAPH,
    tolerance: tuple[float, float] = (1e-3, 1e-3),
    timeout: float = 900,
    **arguments: Any,
) -> Result:
    """Run ``case(**arguments)``, which must be importable by name.

    Args:
        passes: GRAPH, ALL_PASSES, names of passes, or None for the time alone.
        tolerance: relative and absolute, between a pass and the tensor graph.
        timeout: seconds until the simulation is given up.
    """
    request = Request(case, arguments, passes, tolerance, timeout)
    answer = _worker().ask(request)
    if isinstance(answer, str):
        raise SimulationError(answer)
    return answer


class _Worker:
    """The process that has imported torch and pypto, and forks for each request."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        # pypto simulates where it finds no CANN; with one it would look for a device.
        environment.pop("ASCEND_HOME_PATH", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pypto_sim.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )

    def ask(self, request: Request) -> Result | str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(request, self.process.stdin)
        self.process.stdin.flush()
        try:
            answer: Result | str = pickle.load(self.process.stdout)
        except EOFError:
            raise SimulationError(f"the simulator's process ended with {self.process.wait()}") from None
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


_workers: list[_Worker] = []


def _worker() -> _Worker:
    if not _workers or _workers[0].process.poll() is not None:
        _workers[:] = [_Worker()]
        atexit.register(_workers[0].close)
    return _workers[0]
