"""permute with a map, and the gradient of unpermute, on Triton: token t's row goes to the K rows that the
map names.

Rows that the map does not name must be zeros. Which they are is found without filling the output first: a
short map is searched by every program; for a long one the scatter leaves each row's slot in uninitialised
memory, and a second launch believes an entry only where the map confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import (
    MAX_TILE,
    Kernel,
    Variant,
    dense_rows,
    is_complete,
    new_rows,
    power_of_2,
    rows_for,
)

SEARCHED = 4096  # slots of a map that every program searches itself
ZERO_ROWS = 64


@triton.jit(do_not_specialize=["tokens", "rows_out", "share"])
def scatter_kernel(
    x,
    row_map,
    prob,
    y,
    out,
    prob_grad,
    slots_of,
    tokens: tl.int32,
    rows_out: tl.int32,
    share: tl.int32,
    H: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    TOP_K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ZERO_PROB: tl.constexpr,
    CHECK: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    MAP_BLOCK: tl.constexpr,
):
    """SLOTS (token, k) pairs a program: out[map] = x * prob, and prob_grad = <x, y[map]>.

    CHECK: 0 every row is known to be named, 1 search the map for rows that are not, 2 remember slots.
    """
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    total = tokens * TOP_K
    live = slot < total
    token, k = slot // TOP_K, slot % TOP_K
    at = k * tokens + token
    target = tl.load(row_map + at, mask=live, other=-1)
    mapped = (target >= 0) & (target < rows_out)
    columns = tl.arange(0, BLOCK_H)
    source = x + token.to(tl.int64)[:, None] * X_STRIDE + columns[None, :]
    there = target.to(tl.int64)[:, None]
    if CHECK == 2:
        tl.store(slots_of + target, at, mask=mapped)
    if WEIGHTED:
        weight = tl.load(prob + slot, mask=live, other=0).to(tl.float32)
        product = tl.zeros([SLOTS], dtype=tl.float32)
    for h in tl.static_range(0, H, BLOCK_H):
        mask = mapped[:, None] & (h + columns < H)[None, :]
        tile = tl.load(source + h, mask=live[:, None] & (h + columns < H)[None, :], other=0)
        if WEIGHTED:
            forward = tl.load(y + there * Y_STRIDE + (h + columns)[None, :], mask=mask, other=0)
            wide = tile.to(tl.float32)
            product += tl.sum(wide * forward.to(tl.float32), axis=1)
            tile = (wide * weight[:, None]).to(tile.dtype)
        tl.store(out + there * H + (h + columns)[None, :], tile, mask=mask)
    if WEIGHTED:
        tl.store(prob_grad + slot, product, mask=live)
    elif ZERO_PROB:
        tl.store(prob_grad + slot, tl.zeros([SLOTS], dtype=tl.float32), mask=live)
    if CHECK == 1:
        end = tl.minimum(tl.program_id(0) * share + share, rows_out)
        for start in range(0, share, SLOTS):
            row = tl.program_id(0) * share + start + tl.arange(0, SLOTS)
            hits = tl.zeros([SLOTS, MAP_BLOCK], dtype=tl.int32)
            for first in range(0, total, MAP_BLOCK):
                place = first + tl.arange(0, MAP_BLOCK)
                named = tl.load(row_map + place, mask=place < total, other=-1)
                hits |= (named[None, :] == row[:, None]).to(tl.int32)
            lost = (tl.max(hits, axis=1) == 0) & (row < end)
            if tl.max(lost.to(tl.int32), axis=0):
                for begin in range(0, H, BLOCK_H):
                    space = out + row.to(tl.int64)[:, None] * H + (begin + columns)[None, :]
                    nothing = tl.zeros([SLOTS, BLOCK_H], dtype=out.dtype.element_ty)
                    tl.store(space, nothing, mask=lost[:, None] & (begin + columns < H)[None, :])


@triton.jit(do_not_specialize=["slots", "rows_out"])
def zero_kernel(
    row_map,
    slots_of,
    out,
    slots: tl.int32,
    rows_out: tl.int32,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Zero the rows whose remembered slot does not map to them; what was never written is any number."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows_out
    slot = tl.load(slots_of + row, mask=inside, other=0)
    named = tl.load(row_map + slot, mask=inside & (slot >= 0) & (slot < slots), other=-1)
    lost = inside & (named != row)
    if tl.max(lost.to(tl.int32), axis=0):
        for h in range(0, H, BLOCK_H):
            columns = h + tl.arange(0, BLOCK_H)
            place = out + row.to(tl.int64)[:, None] * H + columns[None, :]
            nothing = tl.zeros([ROWS, BLOCK_H], dtype=out.dtype.element_ty)
            tl.store(place, nothing, mask=lost[:, None] & (columns < H)[None, :])


SCATTER, ZERO = Kernel(scatter_kernel), Kernel(zero_kernel)


def permute_with_map(x: Tensor, row_id_map: Tensor, rows: int, top_k: int) -> Tensor:
    """See ``glm_pto_kernels.wallx.permute_with_map``."""
    x, row_id_map = dense_rows(x), row_id_map.contiguous()
    plan = permute_with_map_plan(x, row_id_map, rows, top_k)
    return x.new_zeros(rows, x.shape[1]) if plan is None else plan(x, row_id_map)


def permute_with_map_plan(
    x: Tensor, row_id_map: Tensor, rows: int, top_k: int
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """What runs calls like this one; None where something must be copied first or nothing is to be done."""
    if not (row_id_map.numel() and rows and x.shape[1] and row_id_map.is_contiguous()):
        return None
    if dense_rows(x) is not x:
        return None
    scatter = scatter_plan(x, row_id_map, None, x, rows, top_k, zero_prob=False)
    placed = new_rows(x, rows, x.shape[1])

    def run(x: Tensor, row_id_map: Tensor) -> Tensor:
        out = placed()
        # Unused pointers still need an address.
        scatter(x, row_id_map, row_id_map, x, out, row_id_map)
        return out

    return run


def unpermute_bwd(grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None) -> tuple[Tensor, Tensor]:
    """See ``glm_pto_kernels.wallx.unpermute_bwd``."""
    grad, y, row_id_map = dense_rows(grad), dense_rows(y), row_id_map.contiguous()
    prob = None if prob is None else prob.contiguous()
    plan = unpermute_bwd_plan(grad, y, row_id_map, prob)
    if plan is None:
        top_k = 1 if prob is None else prob.shape[1]
        return torch.zeros_like(y), y.new_zeros(grad.shape[0], top_k, dtype=torch.float32)
    return plan(grad, y, row_id_map, prob)


def unpermute_bwd_plan(
    grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]] | None:
    """What runs calls like this one; None where something must be copied first or nothing is to be done."""
    tokens, rows = grad.shape[0], y.shape[0]
    top_k = 1 if prob is None else prob.shape[1]
    if not (row_id_map.numel() and y.numel() and row_id_map.is_contiguous()):
        return None
    if dense_rows(grad) is not grad or dense_rows(y) is not y or not (prob is None or prob.is_contiguous()):
        return None
    weighted = prob is not None and top_k > 1
    scatter = scatter_plan(
        grad, row_id_map, prob if weighted else None, y if weighted else grad, rows, top_k,
        zero_prob=not weighted,
    )  # fmt: skip
    rows_of_grad, weights_of_grad = new_rows(y, *y.shape), new_rows(grad, tokens, top_k, dtype=torch.float32)

    def run(grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None) -> tuple[Tensor, Tensor]:
        act_grad, prob_grad = rows_of_grad(), weights_of_grad()
        if weighted and prob is not None:
            scatter(grad, row_id_map, prob, y, act_grad, prob_grad)
        else:
            scatter(grad, row_id_map, row_id_map, grad, act_grad, prob_grad)
        return act_grad, prob_grad

    return run


def scatter_plan(
    x: Tensor, row_map: Tensor, prob: Tensor | None, y: Tensor, rows_out: int, top_k: int, *, zero_prob: bool
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]:
    """The launch for tensors like these: ``(x, map, prob, y, out, prob_grad)``."""
    tokens, slots = x.shape[0], row_map.numel()
    unknown = 1 if slots <= SEARCHED else 2
    kind = None if prob is None else prob.dtype
    few = slots <= (1024 if kind is None else 4096)
    like, strides = (x.get_device(), x.dtype, x.shape[1]), (x.stride(0), y.stride(0))
    launches: dict[int, Callable[..., None]] = {}
    slots_by_row = new_rows(row_map, rows_out, dtype=torch.int32)

    def made(check: int) -> Callable[..., None]:
        key = (*like, *strides, top_k, kind, zero_prob, check, few)
        found = SCATTER.variants.get(key)
        launch = found or variant(key, like, strides, top_k, kind is not None, zero_prob, check, few)
        grid = launch.grid(slots)
        launches[check] = launch.bound(grid, (tokens, rows_out, -(-rows_out // grid)))
        return launches[check]

    def run(x: Tensor, row_map: Tensor, prob: Tensor, y: Tensor, out: Tensor, prob_grad: Tensor) -> None:
        check = 0 if is_complete(row_map, rows_out) else unknown
        launch = launches.get(check) or made(check)
        slots_of = slots_by_row() if check == 2 else row_map
        launch(x, row_map, prob, y, out, prob_grad, slots_of)
        if check == 2:
            zero_unmapped(row_map, slots_of, out)

    return run


def variant(
    key: Hashable,
    like: tuple[int, torch.dtype, int],
    strides: tuple[int, int],
    top_k: int,
    weighted: bool,
    zero_prob: bool,
    check: int,
    few: bool,
) -> Variant:
    """Shapes that an H200 preferred, for rows of so many elements of a type on a device."""
    device, dtype, hidden = like
    row_bytes = hidden * dtype.itemsize
    if weighted:
        tile, warps = (4096, 4) if few else (2 * max(row_bytes, 4096), 2 if row_bytes <= 4096 else 4)
    else:
        tile, warps = (8192, 2) if few else (4096, 4)
    slots = rows_for(tile, row_bytes)
    constants = {
        "H": hidden,
        "X_STRIDE": strides[0],
        "Y_STRIDE": strides[1],
        "TOP_K": top_k,
        "WEIGHTED": weighted,
        "ZERO_PROB": zero_prob,
        "CHECK": check,
        "SLOTS": slots,
        "BLOCK_H": min(power_of_2(hidden), MAX_TILE // slots),
        "MAP_BLOCK": 512,
    }
    return SCATTER.variant(key, device, constants, slots, num_warps=warps)


def zero_unmapped(row_map: Tensor, slots_of: Tensor, out: Tensor) -> None:
    rows_out, hidden = out.shape
    device = out.get_device()
    key = (device, out.dtype, hidden)
    launch = ZERO.variants.get(key)
    if launch is None:
        constants = {"H": hidden, "ROWS": ZERO_ROWS, "BLOCK_H": min(power_of_2(hidden), 64)}
        launch = ZERO.variant(key, device, constants, num_warps=2)
    launch(-(-rows_out // ZERO_ROWS), (row_map, slots_of, out), (row_map.numel(), rows_out))
