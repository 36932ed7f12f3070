"""Reference of the dual GEMM: two independent matrix products with fp32 accumulation."""

from __future__ import annotations

import torch
from torch import Tensor


def dual_gemm(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, o0: Tensor, o1: Tensor, trans_a: bool, trans_b: bool
) -> None:
    """Write ``op(a_i) @ op(b_i)`` into ``o_i``."""
    for a, b, out in ((a0, b0, o0), (a1, b1, o1)):
        out.copy_(product(a.t() if trans_a else a, b.t() if trans_b else b))


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` with at least fp32 accumulation, rounded once. K = 0 gives zeros."""
    if a.device.type == "cpu" and a.dtype in (torch.bfloat16, torch.float16):
        # CPU kernels may accumulate chunks in the tensor's own type; cuBLAS does not.
        return (a.float() @ b.float()).to(a.dtype)
    return a @ b
