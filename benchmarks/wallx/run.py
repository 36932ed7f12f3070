"""``python benchmarks/wallx/run.py``: correctness, then every operator against its anchors, on one NVIDIA
GPU.

All anchors run in the same process on the same tensors. Peers (``moe_ops``, ``liger_kernel``,
``wallx_csrc``) take part where they can be imported. Times are microseconds; see measure.py for what each
kind means.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Idle compiler processes would disturb the host times.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.wallx import cases, gemm, measure  # noqa: E402
from benchmarks.wallx.case import Case, copy_of  # noqa: E402
from benchmarks.wallx.positions import position_cases  # noqa: E402

# A bf16 result rounded once from an fp32 sum lies within this of the exact one (norms); copies are exact.
LIMIT = {"permute": 0.0, "permute, map given": 0.0, "dual GEMM": 3e-3}
ROUNDED = 2.5e-3


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
    failed = False
    for make in cases.memory_cases(options.quick):
        case = make()
        if options.only in case.operator:
            failed |= not report(case, memory_times(case), results)
            options.out.write_text(json.dumps(results, indent=1))
        del case
        free()
    for first, second in gemm.ROWS[: 2 if options.quick else None]:
        for trans_b in (False, True):
            if options.only in "dual GEMM":
                case = gemm.gemm_case(first, second, trans_b)
                failed |= not report(case, gemm_times(case, first), results)
                options.out.write_text(json.dumps(results, indent=1))
                del case
                free()
    if options.only in "positions":
        results["positions"] = positions()
        options.out.write_text(json.dumps(results, indent=1))
    return int(failed)


def positions() -> dict[str, dict[str, float]]:
    found = {}
    for name, calls in position_cases():
        found[name] = {who: measure.whole(call) for who, call in calls.items()}
        print(name, "  ".join(f"{who} {us:.0f}" for who, us in found[name].items()), flush=True)
    return found


def machine() -> dict[str, str]:
    import triton

    return {
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


def memory_times(case: Case) -> dict[str, dict[str, float]]:
    names = list(case.calls)
    times: dict[str, dict[str, float]] = {name: {} for name in names}
    for name, gpu in zip(names, measure.gpu_only(list(case.calls.values())), strict=True):
        times[name]["gpu_only"] = gpu
    for name in names:
        times[name]["do_bench"] = measure.do_bench(case.calls[name])
    if case.small:
        for name, host in zip(names, measure.back_to_back(list(case.calls.values())), strict=True):
            times[name]["back_to_back"] = host
        for name in ("ours", "copy", "index_select"):
            if name in case.calls:
                times[name]["graph"] = measure.graph_replay(case.calls[name])
    return times


def gemm_times(case: Case, rows: int) -> dict[str, dict[str, float]]:
    names = list(case.calls)
    calls = list(case.calls.values())
    times: dict[str, dict[str, float]] = {name: {} for name in names}
    rounds = 300 if rows <= 2048 else 60
    kinds = {
        "interleaved": measure.interleaved(calls, rounds),
        "interleaved_warm": measure.interleaved(calls, rounds, flush=False),
        "gpu_only": measure.gpu_only(calls),
        "do_bench": [measure.do_bench(call) for call in calls],
    }
    if rows <= 448:
        kinds["back_to_back"] = measure.back_to_back(calls)
    for kind, values in kinds.items():
        for name, value in zip(names, values, strict=True):
            times[name][kind] = value
    return times


def report(case: Case, times: dict[str, dict[str, float]], results: dict[str, Any]) -> bool:
    limit = LIMIT.get(case.operator, ROUNDED)
    right = case.errors.get("ours", 0.0) <= limit
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
    print(
        f"{case.operator} {case.shape}  error {case.errors.get('ours', 0.0):.1e} {'' if right else 'WRONG'}"
    )
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
