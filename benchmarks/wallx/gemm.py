"""Two products of different heights, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.wallx.case import BF16, Call, Case, peer, rows
from glm_pto_kernels import wallx

ROWS = ((448, 32), (2048, 64), (6144, 256), (16384, 1024))
# Odd rows, an expert without rows, and rows of input and weight that are not aligned.
ODD = ((447, 33, 2048, 11008), (448, 0, 2048, 11008), (448, 32, 2047, 11007), (6144, 256, 2047, 11007))


def name(trans_b: bool, first: int, second: int, deep: int = 2048, wide: int = 11008) -> str:
    other = "" if (deep, wide) == (2048, 11008) else f", k={deep} n={wide}"
    return f"rows {first}+{second} {'NT' if trans_b else 'NN'}{other}"


def gemm_case(trans_b: bool, first: int, second: int, deep: int = 2048, wide: int = 11008) -> Case:
    """2048 -> 11008, or ``deep`` -> ``wide``, and 2048 -> 2048."""
    shapes = ((first, deep, wide), (second, 2048, 2048))
    inputs = [rows(m, k) for m, k, _ in shapes]
    weights = [torch.randn(k, n, device="cuda").to(BF16) / 45 for _, k, n in shapes]
    if trans_b:
        weights = [w.t().contiguous() for w in weights]
    right = [w.t() if trans_b else w for w in weights]
    outputs = [torch.empty(m, n, dtype=BF16, device="cuda") for m, _, n in shapes]

    def two() -> list[Tensor]:
        for a, b, o in zip(inputs, right, outputs, strict=True):
            torch.mm(a, b, out=o)
        return outputs

    def ours() -> list[Tensor]:
        wallx.asym_dual_gmm_separated(*inputs, *weights, *outputs, trans_b=trans_b)
        return outputs

    calls: dict[str, Call] = {"ours": ours, "two torch.mm": two, "two torch.mm again": two}
    # What the extension does with other sizes is undefined.
    fits = all(size and size % 8 == 0 for sizes in shapes for size in sizes)
    if fits and (extension := peer("wallx_csrc")):
        calls["wallx_csrc"] = lambda: (
            extension.asym_dual_gmm(*inputs, *weights, *outputs, False, trans_b),
            outputs,
        )[1]
    flops = sum(2 * m * k * n for m, k, n in shapes)
    case = Case("dual GEMM", name(trans_b, first, second, deep, wide), flops, calls)
    for _ in range(2):
        for a in inputs:
            a.copy_(rows(*a.shape))
        exact = [a.float() @ b.float() for a, b in zip(inputs, right, strict=True)]
        for who, call in calls.items():
            for o in outputs:
                o.fill_(float("nan"))
            filled = [pair for pair in zip(call(), exact, strict=True) if pair[0].numel()]
            case.compare(who, *zip(*filled, strict=True))
    return case
