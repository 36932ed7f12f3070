"""permute with a map, and the gradient of unpermute, on Triton: token t's row goes to the K rows that the
map names.

Rows that the map does not name must be zeros. Which they are is found without filling the output first: a
short map is searched by every program; for a long one the scatter leaves each row's slot in uninitialised
memory, and a second launch believes an entry only where the map confirms it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import (
    MAX_TILE,
    Kernel,
    Variant,
    dense_rows,
    power_of_2,
    rows_per_program,
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
    SEARCH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    MAP_BLOCK: tl.constexpr,
):
    """ROWS tokens a program: out[map] = x * prob, and prob_grad = <x, y[map]>."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = rows < tokens
    columns = tl.arange(0, BLOCK_H)
    source = x + rows.to(tl.int64)[:, None] * X_STRIDE + columns[None, :]
    if BLOCK_H >= H:
        tile = tl.load(source, mask=live[:, None] & (columns < H)[None, :], other=0)
    for k in tl.static_range(TOP_K):
        target = tl.load(row_map + k * tokens + rows, mask=live, other=-1)
        mapped = (target >= 0) & (target < rows_out)
        if not SEARCH:
            tl.store(slots_of + target, k * tokens + rows, mask=mapped)
        there = target.to(tl.int64)[:, None]
        if WEIGHTED:
            weight = tl.load(prob + rows * TOP_K + k, mask=live, other=0).to(tl.float32)
            product = tl.zeros([ROWS], dtype=tl.float32)
        for h in tl.static_range(0, H, BLOCK_H):
            mask = mapped[:, None] & (h + columns < H)[None, :]
            if BLOCK_H < H:
                tile = tl.load(source + h, mask=mask, other=0)
            values = tile
            if WEIGHTED:
                forward = tl.load(y + there * Y_STRIDE + (h + columns)[None, :], mask=mask, other=0)
                wide = tile.to(tl.float32)
                product += tl.sum(wide * forward.to(tl.float32), axis=1)
                values = (wide * weight[:, None]).to(tile.dtype)
            tl.store(out + there * H + (h + columns)[None, :], values, mask=mask)
        if WEIGHTED:
            tl.store(prob_grad + rows * TOP_K + k, product, mask=live)
    if SEARCH:
        total = tokens * TOP_K
        own = tl.program_id(0) * share + tl.arange(0, ROWS)
        end = tl.minimum(tl.program_id(0) * share + share, rows_out)
        for start in range(0, share, ROWS):
            row = start + own
            hits = tl.zeros([ROWS, MAP_BLOCK], dtype=tl.int32)
            for first in range(0, total, MAP_BLOCK):
                at = first + tl.arange(0, MAP_BLOCK)
                named = tl.load(row_map + at, mask=at < total, other=-1)
                hits |= (named[None, :] == row[:, None]).to(tl.int32)
            lost = (tl.max(hits, axis=1) == 0) & (row < end)
            if tl.max(lost.to(tl.int32), axis=0):
                for begin in range(0, H, BLOCK_H):
                    place = out + row.to(tl.int64)[:, None] * H + (begin + columns)[None, :]
                    nothing = tl.zeros([ROWS, BLOCK_H], dtype=out.dtype.element_ty)
                    tl.store(place, nothing, mask=lost[:, None] & (begin + columns < H)[None, :])


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
    out = torch.empty((rows, x.shape[1]), dtype=x.dtype, device=x.device)
    scatter(dense_rows(x), row_id_map.contiguous(), None, None, out, None, top_k)
    return out


def unpermute_bwd(grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None) -> tuple[Tensor, Tensor]:
    """See ``glm_pto_kernels.wallx.unpermute_bwd``."""
    tokens = grad.shape[0]
    top_k = 1 if prob is None else prob.shape[1]
    act_grad = torch.empty((y.shape[0], grad.shape[1]), dtype=grad.dtype, device=grad.device)
    grad, row_id_map = dense_rows(grad), row_id_map.contiguous()
    if prob is None or top_k == 1:
        scatter(grad, row_id_map, None, None, act_grad, None, top_k)
        return act_grad, torch.zeros((tokens, top_k), dtype=torch.float32, device=grad.device)
    prob_grad = torch.empty((tokens, top_k), dtype=torch.float32, device=grad.device)
    scatter(grad, row_id_map, prob.contiguous(), dense_rows(y), act_grad, prob_grad, top_k)
    return act_grad, prob_grad


def scatter(
    x: Tensor,
    row_map: Tensor,
    prob: Tensor | None,
    y: Tensor | None,
    out: Tensor,
    prob_grad: Tensor | None,
    top_k: int,
) -> None:
    tokens, hidden = x.shape
    rows_out = out.shape[0]
    if row_map.numel() == 0 or out.numel() == 0:
        out.zero_()
        if prob_grad is not None:
            prob_grad.zero_()
        return
    search = row_map.numel() <= SEARCHED
    rows = rows_per_program(hidden * x.element_size(), tokens)
    grid = -(-tokens // rows)
    # Unused pointers still need an address.
    slots_of = row_map if search else torch.empty(rows_out, dtype=torch.int32, device=x.device)
    weights = (
        (row_map, x, row_map) if prob is None or y is None or prob_grad is None else (prob, y, prob_grad)
    )
    launch = variant(x, weights[1], top_k, prob, search, rows)
    tensors = (x, row_map, weights[0], weights[1], out, weights[2], slots_of)
    launch(grid, tensors, (tokens, rows_out, -(-rows_out // grid)))
    if not search:
        zero_unmapped(row_map, slots_of, out)


def variant(x: Tensor, y: Tensor, top_k: int, prob: Tensor | None, search: bool, rows: int) -> Variant:
    hidden, device = x.shape[1], x.device.index or 0
    kind = None if prob is None else prob.dtype
    key = (device, x.dtype, hidden, x.stride(0), y.stride(0), top_k, kind, search, rows)
    found = SCATTER.variants.get(key)
    if found is None:
        constants = {
            "H": hidden,
            "X_STRIDE": x.stride(0),
            "Y_STRIDE": y.stride(0),
            "TOP_K": top_k,
            "WEIGHTED": prob is not None,
            "SEARCH": search,
            "ROWS": rows,
            "BLOCK_H": min(power_of_2(hidden), MAX_TILE // rows),
            "MAP_BLOCK": 256,
        }
        found = SCATTER.variant(key, device, constants, num_warps=4)
    return found


def zero_unmapped(row_map: Tensor, slots_of: Tensor, out: Tensor) -> None:
    rows_out, hidden = out.shape
    device = out.device.index or 0
    key = (device, out.dtype, hidden)
    launch = ZERO.variants.get(key)
    if launch is None:
        constants = {"H": hidden, "ROWS": ZERO_ROWS, "BLOCK_H": min(power_of_2(hidden), 64)}
        launch = ZERO.variant(key, device, constants, num_warps=2)
    launch(-(-rows_out // ZERO_ROWS), (row_map, slots_of, out), (row_map.numel(), rows_out))
