"""Multimodal rotary embedding on Triton: one launch for q and k, whatever their strides."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import gcd
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import Kernel, Variant, power_of_2

# Shapes that an H200 preferred: lanes and heads that lie side by side in a program, and its warps. Whatever
# the heads' size, a program has one token or few, and a thread works out its angles for more heads than one.
LANES, HEADS, WARPS = 8, 8, 2
MOST_GROUPS, MOST_WARPS = 4, 8  # with more heads more lie side by side
PIECE = 8  # elements of a lane, at most


@triton.jit
def plane_of(dim, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """The plane of cos and sin that a dim takes its angle from."""
    return (dim >= FIRST).to(tl.int32) + (dim >= FIRST + SECOND).to(tl.int32)


@triton.jit
def narrow(stride, SHORT: tl.constexpr):
    """32-bit arithmetic inside a program's tile, where the host has seen that it suffices."""
    return stride.to(tl.int32) if SHORT else stride


@triton.jit
def lane_of(LANES: tl.constexpr, HALF: tl.constexpr, PIECE: tl.constexpr):
    """Token and first dim [lanes, 1, 1, 1] of a lane's piece of a half."""
    pieces: tl.constexpr = HALF // PIECE
    lane = tl.arange(0, LANES)[:, None, None, None]
    return lane // pieces, lane % pieces * PIECE


@triton.jit
def rows_of(
    x, batch, first, token, start, batch_stride, head_stride, token_stride, HEADS: tl.constexpr,
    GROUPS: tl.constexpr, PIECE: tl.constexpr, UNIT: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """Addresses [lanes, heads, groups, piece] in the lower halves; heads lie side by side, groups do not."""
    base = x + (batch * batch_stride + first * token_stride) * UNIT
    head = head_of(HEADS, GROUPS)
    place = (token * narrow(token_stride, SHORT) + head * narrow(head_stride, SHORT)) * UNIT
    return base + (place + start + tl.arange(0, PIECE)[None, None, None, :])


@triton.jit
def head_of(HEADS: tl.constexpr, GROUPS: tl.constexpr):
    group = tl.arange(0, GROUPS)[None, None, :, None]
    return group * HEADS + tl.arange(0, HEADS)[None, :, None, None]


@triton.jit
def angles(
    table, batch, first, token, start, mask, plane_stride, batch_stride, token_stride,
    LANES: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    REPEATED: tl.constexpr, PIECE: tl.constexpr, UNIT: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """cos or sin [lanes, heads, 1, piece] of both halves: each dim from its own plane, all heads alike."""
    base = table + (batch * batch_stride + first * token_stride) * UNIT
    place = token * narrow(token_stride, SHORT) * UNIT + start + tl.arange(0, PIECE)[None, None, None, :]
    place = tl.broadcast_to(place, LANES, HEADS, 1, PIECE)
    step = narrow(plane_stride, SHORT) * UNIT
    # Repeated bands give both halves the planes of the lower one.
    begin: tl.constexpr = 0 if REPEATED else HALF
    return (
        in_planes(base, place, start, mask, step, 0, HALF, FIRST, SECOND, PIECE),
        in_planes(base, place + HALF, start, mask, step, begin, HALF, FIRST, SECOND, PIECE),
    )


@triton.jit
def in_planes(
    base, place, start, mask, plane_stride, BEGIN: tl.constexpr, HALF: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Pieces of a half that has the planes of dims BEGIN and following. Each lies in one plane, or is read
    from all planes that its half has a part in: loads of single elements would take longer.
    """
    if FIRST % PIECE == 0 and SECOND % PIECE == 0:
        plane = plane_of(start + BEGIN, FIRST, SECOND)
        found = tl.load(base + (place + plane * plane_stride), mask=mask, other=0)
    else:
        has_first: tl.constexpr = BEGIN < FIRST
        has_second: tl.constexpr = (BEGIN < FIRST + SECOND) and (BEGIN + HALF > FIRST)
        has_third: tl.constexpr = BEGIN + HALF > FIRST + SECOND
        plane = plane_of(start + BEGIN + tl.arange(0, PIECE)[None, None, None, :], FIRST, SECOND)
        found = tl.load(base + place, mask=mask, other=0) if has_first else 0.0
        if has_second:
            values = tl.load(base + (place + plane_stride), mask=mask, other=0)
            found = tl.where(plane == 0, found, values) if has_first else values
        if has_third:
            values = tl.load(base + (place + 2 * plane_stride), mask=mask, other=0)
            found = tl.where(plane == 2, values, found) if has_first or has_second else values
    return found.to(tl.float32)


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
    HALF: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    REPEATED: tl.constexpr,
    BACKWARD: tl.constexpr,
    UNIT: tl.constexpr,
    SHORT: tl.constexpr,
    PIECE: tl.constexpr,
    LANES: tl.constexpr,
    TOKENS: tl.constexpr,
    Q_BESIDE: tl.constexpr,
    Q_GROUPS: tl.constexpr,
    K_BESIDE: tl.constexpr,
    K_GROUPS: tl.constexpr,
):
    """TOKENS tokens a program, all heads of q and k. A lane has a piece of a token's half, the same one of
    each group's heads: it works its angles out once for all groups.

    Strides count UNIT elements, which tells the compiler how far rows are aligned.
    """
    blocks = tl.cdiv(tokens, TOKENS)
    batch = tl.program_id(0) // blocks
    first = (tl.program_id(0) % blocks) * TOKENS
    token, start = lane_of(LANES, HALF, PIECE)
    live = (token < TOKENS) & (first + token < tokens)
    q_mask = live & (head_of(Q_BESIDE, Q_GROUPS) < Q_HEADS)
    k_mask = live & (head_of(K_BESIDE, K_GROUPS) < K_HEADS)
    # Everything is read before anything is written: in place stays right, and the reads overlap.
    q_at = rows_of(
        q, batch, first, token, start, q_batch, q_head, q_token, Q_BESIDE, Q_GROUPS, PIECE, UNIT, SHORT
    )
    k_at = rows_of(
        k, batch, first, token, start, k_batch, k_head, k_token, K_BESIDE, K_GROUPS, PIECE, UNIT, SHORT
    )
    q_low, q_high = tl.load(q_at, mask=q_mask, other=0), tl.load(q_at + HALF, mask=q_mask, other=0)
    k_low, k_high = tl.load(k_at, mask=k_mask, other=0), tl.load(k_at + HALF, mask=k_mask, other=0)
    q_cos_low, q_cos_high = angles(
        cos, batch, first, token, start, live, cos_plane, cos_batch, cos_token,
        LANES, Q_BESIDE, HALF, FIRST, SECOND, REPEATED, PIECE, UNIT, SHORT,
    )  # fmt: skip
    q_sin_low, q_sin_high = angles(
        sin, batch, first, token, start, live, sin_plane, sin_batch, sin_token,
        LANES, Q_BESIDE, HALF, FIRST, SECOND, REPEATED, PIECE, UNIT, SHORT,
    )  # fmt: skip
    # Read anew, as threads have other pieces of k where it has fewer heads.
    k_cos_low, k_cos_high = angles(
        cos, batch, first, token, start, live, cos_plane, cos_batch, cos_token,
        LANES, K_BESIDE, HALF, FIRST, SECOND, REPEATED, PIECE, UNIT, SHORT,
    )  # fmt: skip
    k_sin_low, k_sin_high = angles(
        sin, batch, first, token, start, live, sin_plane, sin_batch, sin_token,
        LANES, K_BESIDE, HALF, FIRST, SECOND, REPEATED, PIECE, UNIT, SHORT,
    )  # fmt: skip
    kind = q_out.dtype.element_ty
    q_low, q_high = turned(q_low, q_high, q_cos_low, q_cos_high, q_sin_low, q_sin_high, BACKWARD)
    to = rows_of(
        q_out, batch, first, token, start, q_out_batch, q_out_head, q_out_token,
        Q_BESIDE, Q_GROUPS, PIECE, UNIT, SHORT,
    )  # fmt: skip
    tl.store(to, q_low.to(kind), mask=q_mask)
    tl.store(to + HALF, q_high.to(kind), mask=q_mask)
    k_low, k_high = turned(k_low, k_high, k_cos_low, k_cos_high, k_sin_low, k_sin_high, BACKWARD)
    to = rows_of(
        k_out, batch, first, token, start, k_out_batch, k_out_head, k_out_token,
        K_BESIDE, K_GROUPS, PIECE, UNIT, SHORT,
    )  # fmt: skip
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
    if q.shape[0] * q.shape[2] * q.shape[3] == 0:
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
    if batch * length * dim == 0 or any(x.stride(3) != 1 for x in tensors):
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
    unit = 1 if any(stride % PIECE for stride in strides) else PIECE
    # The largest offset inside a tile: a few tokens, all heads, three planes.
    short = max(map(abs, strides)) * max(q_heads, k_heads, LANES) < 2**30
    key = (device, dtype, q_heads, k_heads, dim, first, second, repeated, backward, unit, short)
    launch = ROPE.variants.get(key)
    if launch is None:
        constants = {
            "Q_HEADS": q_heads,
            "K_HEADS": k_heads,
            "HALF": dim // 2,
            "FIRST": first,
            "SECOND": second,
            "REPEATED": repeated,
            "BACKWARD": backward,
            "UNIT": unit,
            "SHORT": short,
        }
        launch = variant(key, device, constants)
    blocks = -(-length // launch.rows)
    return launch, batch * blocks, (length, *(stride // unit for stride in strides))


def variant(key: Hashable, device: int, constants: dict[str, Any]) -> Variant:
    """Pieces as large as halves allow, as many tokens as their pieces leave lanes for."""
    half = constants["HALF"]
    piece = gcd(half, PIECE)
    lanes = max(LANES, power_of_2(half // piece))
    tokens = lanes // (half // piece)
    (q_beside, q_groups), (k_beside, k_groups) = (grouped(constants[n]) for n in ("Q_HEADS", "K_HEADS"))
    shape = {
        "PIECE": piece,
        "LANES": lanes,
        "TOKENS": tokens,
        "Q_BESIDE": q_beside,
        "Q_GROUPS": q_groups,
        "K_BESIDE": k_beside,
        "K_GROUPS": k_groups,
    }
    warps = min(WARPS * max(q_beside, k_beside, HEADS) // HEADS, MOST_WARPS)
    return ROPE.variant(key, device, {**constants, **shape}, tokens, num_warps=warps)


def grouped(heads: int) -> tuple[int, int]:
    """Heads side by side, and groups of them."""
    padded = power_of_2(heads)
    beside = min(padded, max(HEADS, padded // MOST_GROUPS))
    return beside, padded // beside


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
