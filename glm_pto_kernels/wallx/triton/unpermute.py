"""unpermute on Triton: every token gathers its K rows, sums them in fp32, and rounds once. One launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import MAX_TILE, Kernel, dense_rows, power_of_2, rows_per_program


@triton.jit(do_not_specialize=["tokens", "rows_in"])
def gather_kernel(
    y,
    row_map,
    prob,
    out,
    tokens: tl.int32,
    rows_in: tl.int32,
    H: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    TOP_K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """ROWS tokens by BLOCK_H columns a program."""
    blocks = (H + BLOCK_H - 1) // BLOCK_H
    rows = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(0) % blocks) * BLOCK_H + tl.arange(0, BLOCK_H)
    live = rows < tokens
    inside = (columns < H)[None, :]
    if TOP_K == 1:
        row = tl.load(row_map + rows, mask=live, other=-1)
        mapped = (row >= 0) & (row < rows_in)
        source = y + row.to(tl.int64)[:, None] * Y_STRIDE + columns[None, :]
        total = tl.load(source, mask=mapped[:, None] & inside, other=0)
    else:
        total = tl.zeros([ROWS, BLOCK_H], dtype=tl.float32)
        for k in tl.static_range(TOP_K):
            row = tl.load(row_map + k * tokens + rows, mask=live, other=-1)
            mapped = (row >= 0) & (row < rows_in)
            source = y + row.to(tl.int64)[:, None] * Y_STRIDE + columns[None, :]
            # Masked out, not multiplied by zero: an unmapped row may hold NaN.
            values = tl.load(source, mask=mapped[:, None] & inside, other=0).to(tl.float32)
            if WEIGHTED:
                weight = tl.load(prob + rows * TOP_K + k, mask=mapped, other=0).to(tl.float32)
                values = values * weight[:, None]
            total += values
    target = out + rows.to(tl.int64)[:, None] * H + columns[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=live[:, None] & inside)


GATHER = Kernel(gather_kernel)


def unpermute(y: Tensor, row_id_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Tensor:
    """See ``glm_pto_kernels.wallx.unpermute``."""
    hidden, device = y.shape[1], y.device.index or 0
    out = torch.empty((tokens, hidden), dtype=y.dtype, device=y.device)
    if top_k == 0 or out.numel() == 0:
        return out.zero_()
    y, row_id_map = dense_rows(y), row_id_map.contiguous()
    weighted = prob is not None and top_k > 1
    weights = prob.contiguous() if prob is not None and weighted else row_id_map
    rows = rows_per_program(hidden * y.element_size(), tokens)
    block = min(power_of_2(hidden), MAX_TILE // rows)
    key = (device, y.dtype, hidden, y.stride(0), top_k, weights.dtype, rows)
    launch = GATHER.variants.get(key)
    if launch is None:
        constants = {
            "H": hidden,
            "Y_STRIDE": y.stride(0),
            "TOP_K": top_k,
            "WEIGHTED": weighted,
            "ROWS": rows,
            "BLOCK_H": block,
        }
        launch = GATHER.variant(key, device, constants, num_warps=4)
    grid = -(-tokens // rows) * -(-hidden // block)
    launch(grid, (y, row_id_map, weights, out), (tokens, y.shape[0]))
    return out
