"""Multimodal rotary embedding on Triton: one launch for q and k, whatever their strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import Kernel, Variant, power_of_2


@triton.jit
def plane_of(dim, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """The plane of cos and sin that a dim takes its angle from."""
    return (dim >= FIRST).to(tl.int32) + (dim >= FIRST + SECOND).to(tl.int32)


@triton.jit
def angles(
    table, batch, first, plane_stride, batch_stride, token_stride, mask,
    TOKENS: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, REPEATED: tl.constexpr, UNIT: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """cos or sin [tokens, 1, half] of both halves, each dim from its own plane."""
    base = table + (batch * batch_stride + first * token_stride) * UNIT
    plane_stride, token_stride = narrow(plane_stride, SHORT), narrow(token_stride, SHORT)
    dim = tl.arange(0, HALF_PAD)
    row = base + (tl.arange(0, TOKENS)[:, None] * token_stride) * UNIT + dim[None, :]
    low = row + (plane_of(dim, FIRST, SECOND) * plane_stride * UNIT)[None, :]
    # Repeated bands give both halves the plane of the lower one.
    high_dim = dim if REPEATED else dim + HALF
    high = row + (plane_of(high_dim, FIRST, SECOND) * plane_stride * UNIT + HALF)[None, :]
    return (
        tl.load(low, mask=mask, other=0).to(tl.float32)[:, None, :],
        tl.load(high, mask=mask, other=0).to(tl.float32)[:, None, :],
    )


@triton.jit
def narrow(stride, SHORT: tl.constexpr):
    """32-bit arithmetic inside a program's tile, where the host has seen that it suffices."""
    return stride.to(tl.int32) if SHORT else stride


@triton.jit
def rows_of(
    x, batch, first, batch_stride, head_stride, token_stride,
    TOKENS: tl.constexpr, HEADS_PAD: tl.constexpr, HALF_PAD: tl.constexpr, UNIT: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """Addresses [tokens, heads, half] of the lower halves."""
    base = x + (batch * batch_stride + first * token_stride) * UNIT
    head_stride, token_stride = narrow(head_stride, SHORT), narrow(token_stride, SHORT)
    token = tl.arange(0, TOKENS)[:, None, None]
    head = tl.arange(0, HEADS_PAD)[None, :, None]
    return base + ((token * token_stride + head * head_stride) * UNIT + tl.arange(0, HALF_PAD)[None, None, :])


@triton.jit
def turned(low, high, cos_low, cos_high, sin_low, sin_high, BACKWARD: tl.constexpr):
    low, high = low.to(tl.float32), high.to(tl.float32)
    if BACKWARD:
        # sin belongs to the dim that the gradient comes from.
        return low * cos_low + high * sin_high, high * cos_high - low * sin_low
    return low * cos_low - high * sin_low, high * cos_high + low * sin_high


NUMBERS = (
    "tokens",
    "q_batch",
    "q_head",
    "q_token",
    "k_batch",
    "k_head",
    "k_token",
    "q_out_batch",
    "q_out_head",
    "q_out_token",
    "k_out_batch",
    "k_out_head",
    "k_out_token",
    "cos_plane",
    "cos_batch",
    "cos_token",
    "sin_plane",
    "sin_batch",
    "sin_token",
)


@triton.jit(do_not_specialize=NUMBERS)
def rope_kernel(
    q,
    k,
    cos,
    sin,
    q_out,
    k_out,
    tokens: tl.int64,
    q_batch: tl.int64,
    q_head: tl.int64,
    q_token: tl.int64,
    k_batch: tl.int64,
    k_head: tl.int64,
    k_token: tl.int64,
    q_out_batch: tl.int64,
    q_out_head: tl.int64,
    q_out_token: tl.int64,
    k_out_batch: tl.int64,
    k_out_head: tl.int64,
    k_out_token: tl.int64,
    cos_plane: tl.int64,
    cos_batch: tl.int64,
    cos_token: tl.int64,
    sin_plane: tl.int64,
    sin_batch: tl.int64,
    sin_token: tl.int64,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    Q_PAD: tl.constexpr,
    K_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    REPEATED: tl.constexpr,
    BACKWARD: tl.constexpr,
    UNIT: tl.constexpr,
    SHORT: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """TOKENS tokens a program, all heads of q and k: the angles are read once for all of them.

    Strides count UNIT elements, which tells the compiler how far rows are aligned.
    """
    blocks = tl.cdiv(tokens, TOKENS)
    batch = tl.program_id(0) // blocks
    first = (tl.program_id(0) % blocks) * TOKENS
    live = (first + tl.arange(0, TOKENS) < tokens)[:, None]
    inside = (tl.arange(0, HALF_PAD) < HALF)[None, :]
    mask = live & inside
    q_mask = mask[:, None, :] & (tl.arange(0, Q_PAD) < Q_HEADS)[None, :, None]
    k_mask = mask[:, None, :] & (tl.arange(0, K_PAD) < K_HEADS)[None, :, None]
    # Everything is read before anything is written: in place stays right, and the reads overlap.
    q_at = rows_of(q, batch, first, q_batch, q_head, q_token, TOKENS, Q_PAD, HALF_PAD, UNIT, SHORT)
    k_at = rows_of(k, batch, first, k_batch, k_head, k_token, TOKENS, K_PAD, HALF_PAD, UNIT, SHORT)
    q_low, q_high = tl.load(q_at, mask=q_mask, other=0), tl.load(q_at + HALF, mask=q_mask, other=0)
    k_low, k_high = tl.load(k_at, mask=k_mask, other=0), tl.load(k_at + HALF, mask=k_mask, other=0)
    cos_low, cos_high = angles(
        cos, batch, first, cos_plane, cos_batch, cos_token, mask,
        TOKENS, HALF, HALF_PAD, FIRST, SECOND, REPEATED, UNIT, SHORT,
    )  # fmt: skip
    sin_low, sin_high = angles(
        sin, batch, first, sin_plane, sin_batch, sin_token, mask,
        TOKENS, HALF, HALF_PAD, FIRST, SECOND, REPEATED, UNIT, SHORT,
    )  # fmt: skip
    kind = q_out.dtype.element_ty
    q_low, q_high = turned(q_low, q_high, cos_low, cos_high, sin_low, sin_high, BACKWARD)
    to = rows_of(
        q_out, batch, first, q_out_batch, q_out_head, q_out_token, TOKENS, Q_PAD, HALF_PAD, UNIT, SHORT
    )
    tl.store(to, q_low.to(kind), mask=q_mask)
    tl.store(to + HALF, q_high.to(kind), mask=q_mask)
    k_low, k_high = turned(k_low, k_high, cos_low, cos_high, sin_low, sin_high, BACKWARD)
    to = rows_of(
        k_out, batch, first, k_out_batch, k_out_head, k_out_token, TOKENS, K_PAD, HALF_PAD, UNIT, SHORT
    )
    tl.store(to, k_low.to(kind), mask=k_mask)
    tl.store(to + HALF, k_high.to(kind), mask=k_mask)


ROPE = Kernel(rope_kernel)


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    repeated: bool,
    backward: bool,
) -> None:
    """See ``glm_pto_kernels.wallx.rope``. Heads whose elements are not side by side are copied first."""
    if q.shape[0] * q.shape[2] == 0:
        return
    plan = rope_plan(q, k, cos, sin, q_out, k_out, sections, repeated, backward)
    if plan is None:
        strided(q, k, cos, sin, q_out, k_out, sections, repeated, backward)
    else:
        plan(q, k, cos, sin, q_out, k_out)


def rope_plan(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    repeated: bool,
    backward: bool,
) -> Plan | None:
    """What runs calls like this one; None where heads must be copied first or nothing is to be done."""
    batch, q_heads, length, dim = q.shape
    tensors = (q, k, cos, sin, q_out, k_out)
    if batch * length == 0 or any(x.stride(3) != 1 for x in tensors):
        return None
    layouts = (q.stride(), k.stride(), q_out.stride(), k_out.stride(), cos.stride(), sin.stride())
    shape = (
        q.get_device(), q.dtype, batch, length, q_heads, k.shape[1], dim, *sections, repeated, backward
    )  # fmt: skip
    launch, grid, numbers = planned(shape, layouts)
    return launch.bound(grid, numbers)


Plan = Callable[..., None]


def planned(
    shape: tuple[Any, ...], layouts: tuple[tuple[int, ...], ...]
) -> tuple[Variant, int, tuple[int, ...]]:
    """The variant, grid and integers of calls with these shapes and strides."""
    device, dtype, batch, length, q_heads, k_heads, dim, first, second, _, repeated, backward = shape
    strides = [stride for layout in layouts for stride in layout[:3]]
    unit = 1 if any(stride % 8 for stride in strides) else 8
    # The largest offset inside a tile: a few tokens, all heads, three planes.
    short = max(map(abs, strides)) * max(q_heads, k_heads, 8) < 2**30
    key = (device, dtype, q_heads, k_heads, dim, first, second, repeated, backward, unit, short)
    launch = ROPE.variants.get(key)
    if launch is None:
        constants = {
            "Q_HEADS": q_heads,
            "K_HEADS": k_heads,
            "Q_PAD": power_of_2(q_heads),
            "K_PAD": power_of_2(k_heads),
            "HALF": dim // 2,
            "HALF_PAD": power_of_2(dim // 2),
            "FIRST": first,
            "SECOND": second,
            "REPEATED": repeated,
            "BACKWARD": backward,
            "UNIT": unit,
            "SHORT": short,
            "TOKENS": 1,
        }
        launch = ROPE.variant(key, device, constants, num_warps=4)
    return launch, batch * length, (length, *(stride // unit for stride in strides))


def strided(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    repeated: bool,
    backward: bool,
) -> None:
    """The rare layouts: dense copies in, results copied back."""
    results = [out if out.stride(3) == 1 else out.new_empty(out.shape) for out in (q_out, k_out)]
    # A tensor without elements counts as contiguous whatever its strides are.
    dense = [
        t if t.stride(3) == 1 else t.contiguous() if t.numel() else t.new_empty(t.shape)
        for t in (q, k, cos, sin)
    ]
    rope(*dense, *results, sections, repeated, backward)
    for out, result in zip((q_out, k_out), results, strict=True):
        if result is not out:
            out.copy_(result)
