"""Two products of different heights, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.wallx.case import BF16, Call, Case, peer, rows
from glm_pto_kernels import wallx

ROWS = ((448, 32), (2048, 64), (6144, 256), (16384, 1024))


def gemm_case(first: int, second: int, trans_b: bool) -> Case:
    """2048 -> 11008 and 2048 -> 2048."""
    shapes = ((first, 11008), (second, 2048))
    inputs = [rows(m, 2048) for m, _ in shapes]
    weights = [torch.randn(2048, n, device="cuda").to(BF16) / 45 for _, n in shapes]
    if trans_b:
        weights = [w.t().contiguous() for w in weights]
    right = [w.t() if trans_b else w for w in weights]
    outputs = [torch.empty(m, n, dtype=BF16, device="cuda") for m, n in shapes]

    def two() -> list[Tensor]:
        for a, b, o in zip(inputs, right, outputs, strict=True):
            torch.mm(a, b, out=o)
        return outputs

    def ours() -> list[Tensor]:
        wallx.asym_dual_gmm_separated(*inputs, *weights, *outputs, trans_b=trans_b)
        return outputs

    calls: dict[str, Call] = {"ours": ours, "two torch.mm": two, "two torch.mm again": two}
    if extension := peer("wallx_csrc"):
        calls["wallx_csrc"] = lambda: (
            extension.asym_dual_gmm(*inputs, *weights, *outputs, False, trans_b),
            outputs,
        )[1]
    flops = sum(2 * m * 2048 * n for m, n in shapes)
    case = Case("dual GEMM", f"rows {first}+{second} {'NT' if trans_b else 'NN'}", flops, calls)
    for _ in range(2):
        for a in inputs:
            a.copy_(rows(*a.shape))
        exact = [a.float() @ b.float() for a, b in zip(inputs, right, strict=True)]
        for who, call in calls.items():
            for o in outputs:
                o.fill_(float("nan"))
            case.compare(who, call(), exact)
    return case
