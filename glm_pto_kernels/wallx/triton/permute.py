"""permute on Triton: rank the slots, then copy each token's row to its K places. One to three launches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import (
    MAX_TILE,
    Kernel,
    Variant,
    dense_rows,
    floor_power_of_2,
    power_of_2,
    rows_per_program,
)
from glm_pto_kernels.wallx.triton.sort import (
    BINS,
    bin_of,
    count_kernel,
    largest,
    load_ids,
    rank_by_pairs,
    rank_in_chunk,
    scan_kernel,
)

PAIRS = 4096  # up to so many slots every program ranks its own by comparing all pairs: one launch
CHUNK_SLOTS = 1024
CHUNKS_IN_ROW = 128  # up to so many chunks a program sums over them itself instead of a scan launch


@triton.jit(do_not_specialize=["tokens", "num_out", "chunks"])
def permute_kernel(
    x,
    ids,
    out,
    row_map,
    table,
    tokens: tl.int32,
    num_out: tl.int32,
    chunks: tl.int32,
    H: tl.constexpr,
    X_STRIDE: tl.constexpr,
    TOP_K: tl.constexpr,
    RANK: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNK_PAD: tl.constexpr,
    BINS: tl.constexpr,
    MASK_NEGATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PAIR_BLOCK: tl.constexpr,
):
    """ROWS tokens a program. RANK: 0 all pairs, 1 sum over the chunks' counts, 2 scanned counts."""
    first_row = tl.program_id(0) * ROWS
    rows = first_row + tl.arange(0, ROWS)
    live = rows < tokens
    total = tokens * TOP_K
    columns = tl.arange(0, BLOCK_H)
    source = x + rows.to(tl.int64)[:, None] * X_STRIDE + columns[None, :]
    if BLOCK_H >= H:
        # Read the rows before ranking: the ranks are worked out while the rows are under way.
        tile = tl.load(source, mask=live[:, None] & (columns < H)[None, :], other=0)
    for k in range(TOP_K):
        slot = rows * TOP_K + k
        mine = load_ids(ids, slot, live, MASK_NEGATIVE)
        if RANK == 0:
            rank = rank_by_pairs(ids, mine, slot, total, ROWS, PAIR_BLOCK, MASK_NEGATIVE)
        else:
            chunk = first_row // CHUNK
            if RANK == 1:
                spread = tl.arange(0, CHUNK_PAD)
                flags = table + (BINS + 1) * chunks + spread
                missing = tl.max(tl.load(flags, mask=spread < chunks, other=0), axis=0)
            else:
                missing = tl.load(table + BINS * chunks)
            if missing:
                rank = rank_by_pairs(ids, mine, slot, total, ROWS, PAIR_BLOCK, MASK_NEGATIVE)
            else:
                bin = tl.where(live, bin_of(mine, ids, BINS, MASK_NEGATIVE), 0).to(tl.int32)
                if RANK == 1:
                    # Earlier chunks hold every slot up to this bin, later ones those below it.
                    level = bin[:, None] + (spread < chunk).to(tl.int32)[None, :]
                    counts = tl.load(
                        table + level * chunks + spread[None, :], mask=(spread < chunks)[None, :], other=0
                    )
                    start = tl.sum(counts, axis=1)
                else:
                    start = tl.load(table + bin * chunks + chunk)
                end = tl.minimum((first_row + ROWS) * TOP_K, total)
                begin = chunk * CHUNK * TOP_K
                rank = start + rank_in_chunk(ids, mine, slot, begin, end, ROWS, PAIR_BLOCK, MASK_NEGATIVE)
        kept = live & (rank < num_out)
        dead = rows < 0
        if MASK_NEGATIVE:
            dead = mine == largest(ids)
        # int64 first: K*T fits int32, a multiple of it times H need not.
        tl.store(row_map + k * tokens + rows, tl.where(kept & (dead == 0), rank, -1), mask=live)
        target = out + rank.to(tl.int64)[:, None] * H + columns[None, :]
        if BLOCK_H >= H:
            values = tile
            if MASK_NEGATIVE:
                values = tl.where(dead[:, None], 0.0, tile).to(tile.dtype)
            tl.store(target, values, mask=kept[:, None] & (columns < H)[None, :])
        else:
            for h in range(0, H, BLOCK_H):
                inside = (h + columns < H)[None, :]
                values = tl.load(source + h, mask=(live & (dead == 0))[:, None] & inside, other=0)
                tl.store(target + h, values, mask=kept[:, None] & inside)


COUNT, SCAN, PERMUTE = Kernel(count_kernel), Kernel(scan_kernel), Kernel(permute_kernel)


def permute(
    x: Tensor,
    indices: Tensor,
    num_out_tokens: int,
    mask_negative: bool,
    workspace: Sequence[Tensor] = (),
    max_slots: int = 0,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """See ``glm_pto_kernels.wallx.permute``; here the workspace is the count table of long lists."""
    tokens, top_k = indices.shape
    slots = tokens * top_k
    rows = num_out_tokens if num_out_tokens > 0 else slots
    kept = list(workspace)
    if slots == 0:
        return x.new_zeros(rows, x.shape[1]), indices.new_empty(0, dtype=torch.int32), kept
    out = torch.empty((rows, x.shape[1]), dtype=x.dtype, device=x.device)
    row_map = torch.empty(slots, dtype=torch.int32, device=x.device)
    x, indices = dense_rows(x), indices.contiguous()
    per_program = rows_per_program(x.shape[1] * x.element_size(), tokens)
    chunk = max(per_program, floor_power_of_2(CHUNK_SLOTS // top_k))
    chunks = -(-tokens // chunk)
    rank = 0 if slots <= PAIRS else 1 if chunks <= CHUNKS_IN_ROW else 2
    table = indices
    if rank:
        table = workspace_table(kept, chunks, max(max_slots, slots) // slots, indices)
        table = count(indices, table, chunks, chunk, rank, mask_negative)
    launch = variant(x, indices, top_k, rank, chunk, chunks, mask_negative, per_program)
    launch(-(-tokens // per_program), (x, indices, out, row_map, table), (tokens, rows, chunks))
    if rows > slots:
        out[slots:].zero_()
    return out, row_map, kept


def variant(
    x: Tensor, indices: Tensor, top_k: int, rank: int, chunk: int, chunks: int, masked: bool, rows: int
) -> Variant:
    hidden, stride, device = x.shape[1], x.stride(0), x.device.index or 0
    spread = power_of_2(chunks) if rank == 1 else 1
    key = (device, x.dtype, hidden, stride, indices.dtype, top_k, rank, chunk, spread, masked, rows)
    found = PERMUTE.variants.get(key)
    if found is None:
        constants = {
            "H": hidden,
            "X_STRIDE": stride,
            "TOP_K": top_k,
            "RANK": rank,
            "CHUNK": chunk,
            "CHUNK_PAD": spread,
            "BINS": BINS,
            "MASK_NEGATIVE": masked,
            "ROWS": rows,
            "BLOCK_H": min(power_of_2(hidden), MAX_TILE // rows),
            "PAIR_BLOCK": 256,
        }
        found = PERMUTE.variant(key, device, constants, num_warps=4)
    return found


def workspace_table(kept: list[Tensor], chunks: int, growth: int, like: Tensor) -> Tensor:
    """Room for the counts and their scan: the caller's, or new room that the caller gets to keep."""
    needed = (2 * BINS + 3) * chunks
    if not (
        kept and kept[0].dtype == torch.int32 and kept[0].device == like.device and kept[0].numel() >= needed
    ):
        kept[:] = [torch.empty(needed * growth, dtype=torch.int32, device=like.device)]
    return kept[0]


def count(ids: Tensor, table: Tensor, chunks: int, chunk: int, rank: int, masked: bool) -> Tensor:
    """Fill the table; where the chunks are many, scan it too, and return what the ranks are read from."""
    tokens, top_k = ids.shape
    device = ids.device.index or 0
    key = (device, ids.dtype, top_k, chunk, masked)
    launch = COUNT.variants.get(key)
    if launch is None:
        block = power_of_2(chunk * top_k)
        constants = {"TOP_K": top_k, "CHUNK": chunk, "BLOCK": block, "BINS": BINS, "MASK_NEGATIVE": masked}
        launch = COUNT.variant(key, device, constants, num_warps=4)
    launch(chunks, (ids, table), (tokens, chunks))
    if rank == 1:
        return table
    scan = SCAN.variants.get(device)
    if scan is None:
        scan = SCAN.variant(device, device, {"BLOCK": 1024, "BINS": BINS}, num_warps=4)
    starts = table[(BINS + 2) * chunks :]
    scan(BINS + 1, (table, starts), (chunks,))
    return starts
