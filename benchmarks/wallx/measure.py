"""How times are taken on a GPU: four numbers that mean different things, and a round-robin for GEMMs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], Any]
FLUSH_BYTES = 256 << 20
CALLS = 16


class Flush:
    """Writes more than the L2 cache holds, so that calls find it cold; host time hides behind it."""

    def __init__(self) -> None:
        self.memory = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def __call__(self) -> None:
        self.memory.zero_()


def do_bench(call: Call) -> float:
    """Median us of one call between two events, L2 flushed before it (4 us is its floor)."""
    import triton.testing

    return 1e3 * triton.testing.do_bench(call, warmup=10, rep=40, return_mode="median")


def gpu_only(calls: Sequence[Call], repeats: int = CALLS) -> list[float]:
    """us of each call's kernels and copies added up, gaps left out, L2 flushed before each call: the median.

    One profiler session for all calls: the flush's own kernel separates them in the trace.
    """
    flush = Flush()
    for call in calls:
        call()
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for call in calls:
            for _ in range(repeats):
                flush()
                call()
        flush()
        torch.cuda.synchronize()
    events = sorted(
        (e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA),
        key=lambda e: e.time_range.start,
    )
    sums: list[float] = []
    for event in events:
        took = event.time_range.end - event.time_range.start
        # A fill of 256 MB takes above 50 us and no other fill here comes near.
        if ("Fill" in event.name or "Memset" in event.name) and took > 40:
            sums.append(0.0)
        elif sums:
            sums[-1] += took
    assert len(sums) == len(calls) * repeats + 1, (len(sums), len(calls) * repeats + 1)
    return [statistics.median(sums[i * repeats : (i + 1) * repeats]) for i in range(len(calls))]


def graph_replay(call: Call, inner: int = 20) -> float:
    """us per call inside one CUDA graph of ``inner`` calls, L2 warm: launch gaps without the host."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            call()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / inner)
    return statistics.median(times)


def back_to_back(calls: Sequence[Call], inner: int = 100, rounds: int = 32) -> list[float]:
    """us of wall time a call in loops without synchronisation: the host's cost where the GPU is faster.

    The least of all rounds. Calls take turns, and rounds take turns on the CPUs: what shares a CPU with this
    process can double all times there.
    """
    allowed = sorted(os.sched_getaffinity(0))
    times: list[list[float]] = [[] for _ in calls]
    try:
        for turn in range(rounds):
            os.sched_setaffinity(0, {allowed[turn % len(allowed)]})
            for call, taken in zip(calls, times, strict=True):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(inner):
                    call()
                torch.cuda.synchronize()
                taken.append(1e6 * (time.perf_counter() - begin) / inner)
    finally:
        os.sched_setaffinity(0, allowed)
    return [min(taken) for taken in times]


def whole(call: Call, repeats: int = 30) -> float:
    """Median us of wall time from an idle GPU to the call's end: for calls that read results on the host."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(times)


def interleaved(calls: Sequence[Call], rounds: int, flush: bool = True) -> list[float]:
    """Median us of each call, in turn under steady load: isolated times move with heat.

    Each round begins with another call, since clocks swing with what ran just before.
    """
    cold = Flush()
    hot = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(100):
        torch.mm(hot, hot)
    marks: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in calls]
    for turn in range(rounds):
        for i in range(len(calls)):
            at = (turn + i) % len(calls)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if flush:
                cold()
            begin.record()
            calls[at]()
            end.record()
            marks[at].append((begin, end))
    torch.cuda.synchronize()
    return [1e3 * statistics.median(b.elapsed_time(e) for b, e in times) for times in marks]
