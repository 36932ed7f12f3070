"""rope and its backward, on the transposed views that wall-x has."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.wallx.case import BF16, Call, Case, compiled, copy_of, peer, poison
from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import reference

SECTIONS = {128: [32, 48, 48], 80: [20, 30, 30]}  # of a head's size
Bands = list[int]
LIGER = "Liger (other bands, in place)"


def eager(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, bands: Bands, backward: bool
) -> tuple[Tensor, Tensor]:
    return reference.apply_rope(q, k, cos, sin, bands, False, backward)


def ours(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, bands: Bands, backward: bool
) -> tuple[Tensor, Tensor]:
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if backward:
        wallx.rope_bwd(q, k, q, k, cos, sin, q_out, k_out, bands)
    else:
        wallx.rope(q, k, cos, sin, q_out, k_out, bands)
    return q_out, k_out


def original(
    extension: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, bands: Bands, backward: bool
) -> tuple[Tensor, Tensor]:
    """wall-x's own, which takes dense tensors only."""
    dense = q.contiguous(), k.contiguous()
    outputs = torch.empty_like(dense[0]), torch.empty_like(dense[1])
    if backward:
        extension.rope_bwd(*dense, *dense, cos, sin, *outputs, bands)
    else:
        extension.rope(*dense, cos, sin, *outputs, bands)
    return outputs


def heads(batch: int, length: int, count: int, size: int) -> Tensor:
    """A transposed view, wall-x's real layout."""
    return torch.randn(batch, length, count, size, device="cuda").to(BF16).transpose(1, 2)


def rope_case(batch: int, length: int, backward: bool, size: int = 128) -> Case:
    q, k = heads(batch, length, 16, size), heads(batch, length, 2, size)
    angle = torch.rand(3, batch, length, size // 2, device="cuda").repeat(1, 1, 1, 2) * 6.28
    cos, sin = angle.cos().to(BF16), angle.sin().to(BF16)
    moved = batch * length * size * 2 * (2 * 18 + 2)
    inputs = (q, k, cos, sin, SECTIONS[size], backward)
    calls: dict[str, Call] = {
        "ours": partial(ours, *inputs),
        "copy": copy_of(moved),
        "eager": partial(eager, *inputs),
        "torch.compile": partial(compiled(eager), *inputs),
    }
    if size == 128 and (liger := peer("liger_kernel.ops.qwen2vl_mrope")):
        mine = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k)]
        turn = liger.qwen2vl_mrope_backward if backward else liger.qwen2vl_mrope_forward
        calls[LIGER] = lambda: turn(*mine, cos, sin, [16, 24, 24])
    if extension := peer("wallx_csrc"):
        calls["wallx_csrc"] = partial(original, extension, *inputs)
    name = "rope_bwd" if backward else "rope"
    heads_of = "" if size == 128 else f" D={size}"
    case = Case(name, f"B={batch} S={length}{heads_of}, views", moved, calls)
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        k.copy_(torch.randn_like(k))
        exact = reference.apply_rope(*(t.double() for t in (q, k, cos, sin)), SECTIONS[size], False, backward)
        poison()
        for who, call in calls.items():
            if who not in ("copy", LIGER):
                case.compare(who, call(), exact)
    return case
