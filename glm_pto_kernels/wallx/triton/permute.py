"""permute on Triton: rank the slots, then copy each token's row to its K places. One to three launches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import (
    ALIGNMENT,
    MAX_ROWS,
    MAX_TILE,
    Kernel,
    Variant,
    dense_rows,
    floor_power_of_2,
    mark_complete,
    new_rows,
    power_of_2,
    rows_for,
)
from glm_pto_kernels.wallx.triton.sort import (
    BINS,
    FEW,
    bin_of,
    count_kernel,
    load_ids,
    rank_by_pairs,
    rank_in_chunk,
    scan_kernel,
)

PAIRS = 4096  # up to so many slots every program ranks its own by comparing all pairs: one launch
CHUNK_SLOTS = (256, 1024)  # of lists that are not, and that are, longer than ...
LONG = 65536
CHUNKS_IN_ROW = 256  # up to so many chunks a program sums over them itself instead of a scan launch
COUNT_WARPS = 8


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
                flags = table + spread * (BINS + 2) + BINS + 1
                missing = tl.max(tl.load(flags, mask=spread < chunks, other=0), axis=0)
            else:
                missing = tl.load(table + BINS)
            if missing:
                rank = rank_by_pairs(ids, mine, slot, total, ROWS, PAIR_BLOCK, MASK_NEGATIVE)
            else:
                bin = tl.where(live, bin_of(mine, ids, BINS, MASK_NEGATIVE), 0).to(tl.int32)
                if RANK == 1:
                    # Earlier chunks hold every slot up to this bin, later ones those below it.
                    level = bin[:, None] + (spread < chunk).to(tl.int32)[None, :]
                    place = table + spread[None, :] * (BINS + 2) + level
                    counts = tl.load(place, mask=(spread < chunks)[None, :], other=0)
                    start = tl.sum(counts, axis=1)
                else:
                    start = tl.load(table + chunk * (BINS + 2) + bin)
                # Not past 2^31: first_row is below tokens, the row after the last may not be.
                end = first_row * TOP_K + tl.minimum(ROWS * TOP_K, total - first_row * TOP_K)
                begin = chunk * CHUNK * TOP_K
                rank = start + rank_in_chunk(ids, mine, slot, begin, end, ROWS, PAIR_BLOCK, MASK_NEGATIVE)
        kept = live & (rank < num_out)
        dead = rows < 0
        if MASK_NEGATIVE:
            dead = tl.load(ids + slot, mask=live, other=0) < 0  # the largest id may be an expert's
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


Plan = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Tensor, list[Tensor]]]
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
    slots = indices.numel()
    if slots == 0:
        rows = max(num_out_tokens, 0)
        empty = indices.new_empty(0, dtype=torch.int32)
        return x.new_zeros(rows, x.shape[1]), empty, list(workspace)
    x, indices = dense_rows(x), indices.contiguous()
    plan = permute_plan(x, indices, num_out_tokens, mask_negative, workspace, max_slots)
    assert plan is not None
    return plan(x, indices, workspace)


def permute_plan(
    x: Tensor,
    indices: Tensor,
    num_out_tokens: int,
    mask_negative: bool,
    workspace: Sequence[Tensor],
    max_slots: int,
) -> Plan | None:
    """What runs calls like this one; None where something must be copied first or nothing is to be done."""
    tokens, top_k = indices.shape
    slots = tokens * top_k
    if slots == 0 or dense_rows(x) is not x or not indices.is_contiguous():
        return None
    rows = num_out_tokens if num_out_tokens > 0 else slots
    rank, chunk, chunks = 0, MAX_ROWS, 1
    if slots > PAIRS:
        chunk = max(MAX_ROWS, floor_power_of_2(CHUNK_SLOTS[slots > LONG] // top_k))
        chunks = -(-tokens // chunk)
        rank = 1 if chunks <= CHUNKS_IN_ROW else 2
    growth = max(max_slots, slots) // slots
    complete = rows <= slots and not mask_negative
    spread = power_of_2(chunks) if rank == 1 else 1
    few = tokens <= 1024
    key = (
        x.get_device(), x.dtype, x.shape[1], x.stride(0), indices.dtype, top_k, rank, chunk, spread,
        mask_negative, few,
    )  # fmt: skip
    found = PERMUTE.variants.get(key)
    made = found or variant(key, x, top_k, rank, chunk, spread, mask_negative, few)
    launch = made.bound(made.grid(tokens), (tokens, rows, chunks))
    permuted, map_of_rows = new_rows(x, rows, x.shape[1]), new_rows(indices, slots, dtype=torch.int32)

    def run(x: Tensor, indices: Tensor, workspace: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        out, row_map = permuted(), map_of_rows()
        kept = list(workspace)
        table = indices
        if rank:
            table = workspace_table(kept, chunks, growth, indices)
            table = count(indices, table, chunks, chunk, rank, mask_negative)
        if complete:
            mark_complete(row_map, rows)
        launch(x, indices, out, row_map, table)
        if rows > slots:
            out[slots:].zero_()
        return out, row_map, kept

    return run


def variant(
    key: Hashable, x: Tensor, top_k: int, rank: int, chunk: int, spread: int, masked: bool, few: bool
) -> Variant:
    """Shapes that an H200 preferred: ranking by pairs pays for more rows a program, copying does not."""
    hidden = x.shape[1]
    tile, warps = ((8192, 4) if few else (16384, 8)) if rank == 0 else (4096, 4)
    rows = rows_for(tile, hidden * x.element_size())
    constants = {
        "H": hidden,
        "X_STRIDE": x.stride(0),
        "TOP_K": top_k,
        "RANK": rank,
        "CHUNK": chunk,
        "CHUNK_PAD": spread,
        "BINS": BINS,
        "MASK_NEGATIVE": masked,
        "ROWS": rows,
        "BLOCK_H": min(power_of_2(hidden), MAX_TILE // rows),
        "PAIR_BLOCK": 512 if rank == 0 else 256,
    }
    return PERMUTE.variant(key, x.get_device(), constants, rows, num_warps=warps)


def workspace_table(kept: list[Tensor], chunks: int, growth: int, like: Tensor) -> Tensor:
    """Room for the counts and their scan: the caller's, or new room that the caller gets to keep."""
    needed = 2 * table_size(chunks)
    if not (kept and serves(kept[0], needed, like)):
        kept[:] = [torch.empty(needed * growth, dtype=torch.int32, device=like.device)]
    return kept[0]


def table_size(chunks: int) -> int:
    """Integers of the counts, and of their scan, which begins at an address that launches need no look at."""
    beside = ALIGNMENT // torch.int32.itemsize
    return -(-(BINS + 2) * chunks // beside) * beside


def serves(room: Tensor, needed: int, like: Tensor) -> bool:
    """Whether memory is ours to write: enough of it, side by side, on the device."""
    return (
        room.dtype == torch.int32
        and room.dim() == 1
        and room.numel() >= needed
        and room.is_contiguous()
        and room.device == like.device
    )


def count(ids: Tensor, table: Tensor, chunks: int, chunk: int, rank: int, masked: bool) -> Tensor:
    """Fill the table; where the chunks are many, scan it too, and return what the ranks are read from."""
    tokens, top_k = ids.shape
    device = ids.get_device()
    key = (device, ids.dtype, top_k, chunk, masked)
    launch = COUNT.variants.get(key)
    if launch is None:
        constants = {
            "TOP_K": top_k,
            "CHUNK": chunk,
            "BLOCK": power_of_2(chunk * top_k),
            "BINS": BINS,
            "FEW": FEW,
            "MASK_NEGATIVE": masked,
        }
        launch = COUNT.variant(key, device, constants, num_warps=COUNT_WARPS)
    launch(chunks, (ids, table), (tokens,))
    if rank == 1:
        return table
    scan = SCAN.variants.get(device)
    if scan is None:
        scan = SCAN.variant(device, device, {"BINS": BINS, "BLOCK_BINS": 16, "BLOCK": 64}, num_warps=4)
    starts = table.narrow(0, table_size(chunks), table_size(chunks))
    scan(BINS // 16, (table, starts), (chunks,))
    return starts
