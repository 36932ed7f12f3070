"""Multimodal rotary embedding on Triton: one launch for q and k, whatever their strides."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import Kernel, power_of_2


@triton.jit
def plane_of(dim, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """The plane of cos and sin that a dim takes its angle from."""
    return (dim >= FIRST).to(tl.int64) + (dim >= FIRST + SECOND).to(tl.int64)


@triton.jit
def turn(
    x,
    out,
    x_batch,
    x_head,
    x_token,
    out_batch,
    out_head,
    out_token,
    batch,
    token,
    live,
    cos_low,
    cos_high,
    sin_low,
    sin_high,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BACKWARD: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Rotate all heads of some tokens of one tensor; both halves are read before either is written."""
    head = tl.arange(0, HEADS_PAD)[None, :, None]
    dim = tl.arange(0, HALF_PAD)[None, None, :]
    token = token[:, None, None]
    mask = live[:, None, None] & (head < HEADS) & (dim < HALF)
    source = x + (batch * x_batch + token * x_token + head * x_head) * UNIT + dim
    low = tl.load(source, mask=mask, other=0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0).to(tl.float32)
    if BACKWARD:
        # sin belongs to the dim that the gradient comes from.
        new_low = low * cos_low + high * sin_high
        new_high = high * cos_high - low * sin_low
    else:
        new_low = low * cos_low - high * sin_low
        new_high = high * cos_high + low * sin_high
    target = out + (batch * out_batch + token * out_token + head * out_head) * UNIT + dim
    kind = out.dtype.element_ty
    tl.store(target, new_low.to(kind), mask=mask)
    tl.store(target + HALF, new_high.to(kind), mask=mask)


@triton.jit
def angles(
    table, at, dim, mask, plane_stride, shift: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr
):
    """cos or sin [tokens, 1, half] of the dims ``dim + shift``, each from its own plane."""
    plane = plane_of(dim, FIRST, SECOND)
    return tl.load(table + at + plane * plane_stride + shift, mask=mask, other=0).to(tl.float32)[:, None, :]


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
    TOKENS: tl.constexpr,
):
    """TOKENS tokens a program, all heads of q and k: the angles are read once for all of them.

    Strides count UNIT elements, which tells the compiler how far rows are aligned.
    """
    blocks = tl.cdiv(tokens, TOKENS)
    batch = tl.program_id(0) // blocks
    token = (tl.program_id(0) % blocks) * TOKENS + tl.arange(0, TOKENS)
    live = token < tokens
    low = tl.arange(0, HALF_PAD)
    # Repeated bands give both halves the plane of the lower one.
    high = low if REPEATED else low + HALF
    mask = live[:, None] & (low < HALF)[None, :]
    cos_at = (batch * cos_batch + token[:, None] * cos_token) * UNIT + low[None, :]
    sin_at = (batch * sin_batch + token[:, None] * sin_token) * UNIT + low[None, :]
    cos_low = angles(cos, cos_at, low, mask, cos_plane * UNIT, 0, FIRST, SECOND)
    cos_high = angles(cos, cos_at, high, mask, cos_plane * UNIT, HALF, FIRST, SECOND)
    sin_low = angles(sin, sin_at, low, mask, sin_plane * UNIT, 0, FIRST, SECOND)
    sin_high = angles(sin, sin_at, high, mask, sin_plane * UNIT, HALF, FIRST, SECOND)
    turn(
        q, q_out, q_batch, q_head, q_token, q_out_batch, q_out_head, q_out_token, batch, token, live,
        cos_low, cos_high, sin_low, sin_high, Q_HEADS, Q_PAD, HALF, HALF_PAD, BACKWARD, UNIT,
    )  # fmt: skip
    turn(
        k, k_out, k_batch, k_head, k_token, k_out_batch, k_out_head, k_out_token, batch, token, live,
        cos_low, cos_high, sin_low, sin_high, K_HEADS, K_PAD, HALF, HALF_PAD, BACKWARD, UNIT,
    )  # fmt: skip


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
    batch, q_heads, length, dim = q.shape
    if batch * length == 0:
        return None
    if any(t.stride(3) != 1 for t in (q, k, cos, sin, q_out, k_out)):
        return strided(q, k, cos, sin, q_out, k_out, sections, repeated, backward)
    k_heads = k.shape[1]
    strides = (
        *q.stride()[:3],
        *k.stride()[:3],
        *q_out.stride()[:3],
        *k_out.stride()[:3],
        *cos.stride()[:3],
        *sin.stride()[:3],
    )
    low = 0
    for stride in strides:
        low |= stride
    unit = 1 if low % 8 else 8
    device = q.device.index or 0
    key = (device, q.dtype, q_heads, k_heads, dim, *sections, repeated, backward, unit)
    launch = ROPE.variants.get(key)
    if launch is None:
        constants = {
            "Q_HEADS": q_heads,
            "K_HEADS": k_heads,
            "Q_PAD": power_of_2(q_heads),
            "K_PAD": power_of_2(k_heads),
            "HALF": dim // 2,
            "HALF_PAD": power_of_2(dim // 2),
            "FIRST": sections[0],
            "SECOND": sections[1],
            "REPEATED": repeated,
            "BACKWARD": backward,
            "UNIT": unit,
            "TOKENS": 1,
        }
        launch = ROPE.variant(key, device, constants, num_warps=4)
    numbers = (length, *(stride // unit for stride in strides))
    grid = batch * -(-length // launch.constants["TOKENS"])
    launch(grid, (q, k, cos, sin, q_out, k_out), numbers)
    return None


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
    dense = [t if t.stride(3) == 1 else t.contiguous() for t in (q, k, cos, sin)]
    rope(*dense, *results, sections, repeated, backward)
    for out, result in zip((q_out, k_out), results, strict=True):
        if result is not out:
            out.copy_(result)
