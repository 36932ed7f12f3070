"""``python benchmarks/wallx/run.py``: correctness, then every operator against its anchors, on one NVIDIA
GPU.

All anchors run in the same process on the same tensors. Peers (``moe_ops``, ``liger_kernel``,
``wallx_csrc``) take part where they can be imported. Times are microseconds; see measure.py for what each
kind means.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Idle compiler processes would disturb the host times.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.wallx import measure  # noqa: E402
from benchmarks.wallx.case import ULPS, Case, copy_of  # noqa: E402
from benchmarks.wallx.cases import Entry, every_case  # noqa: E402
from benchmarks.wallx.positions import position_cases  # noqa: E402
from benchmarks.wallx.targets import PROB_GRAD  # noqa: E402

# What ours may be wrong by: a bf16 result rounded once from an fp32 sum lies within this of the exact one
# (norms), and within half a unit of the last place; copies are exact.
COPIES = ("permute", "permute, map given", "permute, unknown map")
ROUNDED = 2e-3
LIMITS = {ULPS: 1.0, f"ours, {PROB_GRAD}": 1e-4}
PEERS = ("moe-ops", "liger-kernel")
GRAPHS = ("ours", "copy", "index_select", "two torch.mm")  # whose calls can be captured
LARGE = 2e11  # operations of a product that is timed in fewer rounds
Times = dict[str, dict[str, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("wallx.json"), help="where the numbers go, as JSON")
    parser.add_argument("--quick", action="store_true", help="leave out the largest shapes")
    parser.add_argument("--only", default="", help="only operators whose name contains this")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs an NVIDIA GPU", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"machine": machine(), "ceilings": ceilings(), "cases": []}
    entries = every_case(options.quick)
    # What is timed on the host comes first: once the profiler has run, every launch takes 2 to 3 us more.
    if options.only in "positions":
        results["positions"] = positions()
        write(results, options.out)
    hosts: dict[tuple[str, str], dict[str, float]] = {}
    for case in chosen((entry for entry in entries if entry.small), options.only):
        times = measure.back_to_back(list(case.calls.values()))
        hosts[case.operator, case.shape] = dict(zip(case.calls, times, strict=True))
        del case
    failed = False
    for case in chosen(entries, options.only):
        take = gemm_times if case.operator == "dual GEMM" else memory_times
        failed |= not report(case, take(case, hosts.get((case.operator, case.shape))), results)
        write(results, options.out)
        del case
    return int(failed)


def chosen(entries: Iterable[Entry], only: str) -> Iterator[Case]:
    """Make each case whose operator is asked for; its memory is free again once the caller lets go of it."""
    for entry in entries:
        if only in entry.operator:
            case = entry.make()
            yield case
            del case
            free()


def positions() -> dict[str, dict[str, float]]:
    found = {}
    for name, calls in position_cases():
        found[name] = {who: measure.whole(call) for who, call in calls.items()}
        print(name, "  ".join(f"{who} {us:.0f}" for who, us in found[name].items()), flush=True)
    return found


def write(results: dict[str, Any], path: Path) -> None:
    """One case to a line, and four digits: more are not the same in the next run."""
    parts = [f'"{name}": {json.dumps(short(part))}' for name, part in results.items() if name != "cases"]
    cases = ",\n".join(f" {json.dumps(short(case))}" for case in results["cases"])
    path.write_text("{" + ",\n".join([*parts, f'"cases": [\n{cases}\n]']) + "}\n")


def short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: short(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def commit() -> str:
    """What is checked out, if anything is."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def peers() -> dict[str, str]:
    """Versions of the installed ones that have one."""
    found = {}
    for name in PEERS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, Any]:
    import triton

    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": commit(),
        "peers": peers(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
    }


def ceilings() -> dict[str, float]:
    """What this card does at best: GB/s of a 2 + 2 GiB copy, TFLOP/s of an 8192^3 product."""
    size = 4 << 30
    matrix = torch.randn(8192, 8192, device="cuda").to(torch.bfloat16)
    copy = measure.do_bench(copy_of(size))
    product = measure.do_bench(lambda: torch.mm(matrix, matrix))
    found = {"copy_gb_s": size / copy / 1e3, "mm_tflop_s": 2 * 8192**3 / product / 1e6}
    print(json.dumps(found), flush=True)
    return found


def memory_times(case: Case, host: dict[str, float] | None) -> Times:
    times: Times = {name: {} for name in case.calls}
    for name, gpu in zip(times, measure.gpu_only(list(case.calls.values())), strict=True):
        times[name]["gpu_only"] = gpu
    for name, call in case.calls.items():
        times[name]["do_bench"] = measure.do_bench(call)
    if host is not None:
        for name, call in case.calls.items():
            times[name]["back_to_back"] = host[name]
            if name in GRAPHS:
                times[name]["graph"] = measure.graph_replay(call)
    return times


def gemm_times(case: Case, host: dict[str, float] | None) -> Times:
    calls = list(case.calls.values())
    times: Times = {name: {} for name in case.calls}
    rounds = 300 if case.bytes < LARGE else 60
    kinds = {
        "interleaved": measure.interleaved(calls, rounds),
        "interleaved_warm": measure.interleaved(calls, rounds, flush=False),
        "gpu_only": measure.gpu_only(calls),
        "do_bench": [measure.do_bench(call) for call in calls],
    }
    if host is not None:
        kinds["back_to_back"] = list(host.values())
        for name, call in case.calls.items():
            if name in GRAPHS:
                times[name]["graph"] = measure.graph_replay(call)
    for kind, values in kinds.items():
        for name, value in zip(times, values, strict=True):
            times[name][kind] = value
    return times


def is_right(case: Case) -> bool:
    """Whether what ours computed may be timed as the operator."""
    limits = {"ours": 0.0 if case.operator in COPIES else ROUNDED, **LIMITS}
    known = {what: case.errors[what] for what in limits if what == "ours" or what in case.errors}
    return all(error <= limits[what] for what, error in known.items())


def report(case: Case, times: Times, results: dict[str, Any]) -> bool:
    right = is_right(case)
    results["cases"].append(
        {
            "operator": case.operator,
            "shape": case.shape,
            "bytes_or_flops": case.bytes,
            "errors": case.errors,
            "correct": right,
            "times": times,
        }
    )
    print(f"{case.operator} {case.shape}  error {case.errors['ours']:.1e} {'' if right else 'WRONG'}")
    for name, kinds in times.items():
        print(
            f"    {name:32}" + "  ".join(f"{kind} {value:.1f}" for kind, value in kinds.items()), flush=True
        )
    return right


def free() -> None:
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
