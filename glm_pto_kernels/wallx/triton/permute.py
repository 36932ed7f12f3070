"""permute on Triton: rank the slots, then copy each one's row to its place. One to three launches."""

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
    mark_complete,
    new_rows,
    power_of_2,
    rows_for,
)
from glm_pto_kernels.wallx.triton.sort import (
    BIN_MISSING,
    BINS,
    FEW,
    MORE,
    bin_of,
    count_kernel,
    load_ids,
    rank_by_pairs,
    rank_in_chunk,
    scan_kernel,
    slots_below,
)

PAIRS = 2048  # up to so many slots every program ranks its own by comparing all pairs: one launch
CHUNK_SLOTS = (256, 1024)  # of lists that are not, and that are, longer than ...
LONG = 65536
WIDTH = 256  # up to so many chunks a program sums over them itself instead of a scan launch
BESIDE = ALIGNMENT // torch.int32.itemsize  # counts that a wide load takes
COUNT_WARPS = 8
WARP_BYTES = 8192  # of a row, that a warp has registers for


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
    BINS: tl.constexpr,
    FEW: tl.constexpr,
    BESIDE: tl.constexpr,
    MASK_NEGATIVE: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """SLOTS (token, k) pairs a program. RANK: 0 all pairs, 1 sum over the chunks' counts, 2 scanned counts.

    WIDTH: slots, or chunks, that it looks at side by side; with RANK 1 there are no more chunks than that.
    A token's K slots read its row anew, from the L2 cache: one after the other they would wait for each
    other's ranks.
    """
    first = tl.program_id(0) * SLOTS
    slot = first + tl.arange(0, SLOTS)
    total = tokens * TOP_K
    live = slot < total
    token, k = slot // TOP_K, slot % TOP_K
    columns = tl.arange(0, BLOCK_H)
    source = x + token.to(tl.int64)[:, None] * X_STRIDE + columns[None, :]
    if BLOCK_H >= H:
        # Read the rows before ranking: the ranks are worked out while the rows are under way.
        tile = tl.load(source, mask=live[:, None] & (columns < H)[None, :], other=0)
    mine = load_ids(ids, slot, live, MASK_NEGATIVE)
    if RANK == 0:
        rank = rank_by_pairs(ids, mine, slot, total, SLOTS, WIDTH, MASK_NEGATIVE)
    else:
        chunk = first // CHUNK
        others = tl.arange(0, WIDTH)
        if RANK == 1:
            chunks = chunks // BESIDE * BESIDE  # which it is: tells the compiler that loads can be wide
            there = others < chunks
            written = tl.load(table + BINS * chunks + others, mask=there, other=1)
            missing = tl.max(written, axis=0)
        else:
            missing = tl.load(table + chunks.to(tl.int64) * BINS)
        if missing == BIN_MISSING:
            rank = rank_by_pairs(ids, mine, slot, total, SLOTS, WIDTH, MASK_NEGATIVE)
        else:
            bin = tl.where(live, bin_of(mine, ids, BINS, MASK_NEGATIVE), 0).to(tl.int32)
            count = tl.zeros([SLOTS, WIDTH], dtype=tl.int32)
            if RANK == 1:
                # Earlier chunks hold every slot up to this bin, later ones those below it.
                earlier = (others < chunk)[None, :]
                if tl.max(bin, axis=0) < FEW - 1:
                    # Bins that every chunk wrote.
                    place = table + bin[:, None] * chunks + others[None, :]
                    below = tl.load(place, mask=there[None, :], other=0)
                    count += tl.where(earlier, tl.load(place + chunks, mask=there[None, :], other=0), below)
                else:
                    level = bin[:, None] + earlier.to(tl.int32)
                    count += slots_below(
                        table, level, others[None, :], chunks, written[None, :], total, CHUNK, BINS
                    )
            begin = chunk * CHUNK
            whole = total - begin >= (CHUNK + WIDTH - 1) // WIDTH * WIDTH
            length = first - begin + tl.minimum(SLOTS, total - first)
            rank = rank_in_chunk(ids, mine, slot, begin, length, whole, count, WIDTH, MASK_NEGATIVE)
            if RANK == 2:
                rank += tl.load(table + bin.to(tl.int64) * chunks + chunk)
    kept = live & (rank < num_out)
    dead = slot < 0
    if MASK_NEGATIVE:
        dead = tl.load(ids + slot, mask=live, other=0) < 0  # the largest id may be an expert's
    tl.store(row_map + k * tokens + token, tl.where(kept & (dead == 0), rank, -1), mask=live)
    # int64 first: K*T fits int32, a multiple of it times H need not.
    target = out + rank.to(tl.int64)[:, None] * H + columns[None, :]
    if BLOCK_H >= H:
        if MASK_NEGATIVE:
            tile = tl.where(dead[:, None], 0.0, tile).to(tile.dtype)
        tl.store(target, tile, mask=kept[:, None] & (columns < H)[None, :])
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
    rank, chunk, chunks = cut(slots)
    needed, room = integers(slots), most_integers(max(max_slots, slots))
    complete = rows <= slots and not mask_negative
    short = slots <= 1024
    key = (
        x.get_device(), x.dtype, x.shape[1], x.stride(0), indices.dtype, top_k, rank, chunk,
        mask_negative, short,
    )  # fmt: skip
    found = PERMUTE.variants.get(key)
    made = found or variant(key, x, top_k, rank, chunk, mask_negative, short)
    launch = made.bound(made.grid(slots), (tokens, rows, chunks))
    permuted, map_of_rows = new_rows(x, rows, x.shape[1]), new_rows(indices, slots, dtype=torch.int32)

    def run(x: Tensor, indices: Tensor, workspace: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        out, row_map = permuted(), map_of_rows()
        kept = list(workspace)
        table = indices
        if rank:
            table = workspace_table(kept, needed, room, indices)
            table = count(indices, table, chunks, chunk, rank, mask_negative)
        if complete:
            mark_complete(row_map, rows)
        launch(x, indices, out, row_map, table)
        if rows > slots:
            out[slots:].zero_()
        return out, row_map, kept

    return run


def variant(
    key: Hashable, x: Tensor, top_k: int, rank: int, chunk: int, masked: bool, short: bool
) -> Variant:
    """Shapes that an H200 preferred. All pairs: many rows a program. Counts: few warps, which exchange little
    to add up; with K = 1 there is more to copy for each sum.
    """
    hidden, row_bytes = x.shape[1], x.shape[1] * x.element_size()
    tile = (8192 if short else 16384) if rank == 0 else 4096
    rows = rows_for(tile, row_bytes)
    block = min(power_of_2(hidden), MAX_TILE // rows)
    if rank == 0:
        warps = 4 if short else 8
    else:
        wide = (row_bytes | x.stride(0) * x.element_size()) % ALIGNMENT == 0
        narrow = rows <= 4 and wide and block * x.element_size() <= WARP_BYTES
        warps = (2 if top_k == 1 else 1) if narrow else 4
    constants = {
        "H": hidden,
        "X_STRIDE": x.stride(0),
        "TOP_K": top_k,
        "RANK": rank,
        "CHUNK": chunk,
        "BINS": BINS,
        "FEW": FEW,
        "BESIDE": BESIDE,
        "MASK_NEGATIVE": masked,
        "SLOTS": rows,
        "BLOCK_H": block,
        "WIDTH": 512 if rank == 0 else WIDTH,
    }
    return PERMUTE.variant(key, x.get_device(), constants, rows, num_warps=warps)


def cut(slots: int) -> tuple[int, int, int]:
    """How so many slots are ranked (the kernel's RANK), slots of a chunk, chunks (of which the last three may
    be empty).
    """
    if slots <= PAIRS:
        return 0, MAX_ROWS, 1
    chunk = CHUNK_SLOTS[slots > LONG]
    chunks = -(-slots // chunk)
    padded = -(-chunks // BESIDE) * BESIDE
    return (1, chunk, padded) if padded <= WIDTH else (2, chunk, chunks)


def integers(slots: int) -> int:
    """Workspace of so many slots: nothing, a table of counts, or that and its scan."""
    rank, _, chunks = cut(slots)
    return rank * table_size(chunks)


def most_integers(slots: int) -> int:
    """Workspace of any number of slots up to this; the most need not have it: chunks grow, a scan begins."""
    return max(integers(min(slots, at)) for at in (slots, LONG, CHUNK_SLOTS[1] * WIDTH))


def workspace_table(kept: list[Tensor], needed: int, room: int, like: Tensor) -> Tensor:
    """So many integers: the caller's memory, or ``room`` of new memory that the caller gets to keep."""
    if not (kept and serves(kept[0], needed, like)):
        kept[:] = [torch.empty(room, dtype=torch.int32, device=like.device)]
    return kept[0]


def table_size(chunks: int) -> int:
    """Integers of the counts, and of their scan, which begins at an address that launches need no look at."""
    return -(-(BINS + 1) * chunks // BESIDE) * BESIDE


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
    slots, device = ids.numel(), ids.get_device()
    key = (device, ids.dtype, chunk, masked)
    launch = COUNT.variants.get(key)
    if launch is None:
        constants = {
            "CHUNK": chunk,
            "BINS": BINS,
            "FEW": FEW,
            "MORE": MORE,
            "MASK_NEGATIVE": masked,
        }
        launch = COUNT.variant(key, device, constants, num_warps=COUNT_WARPS)
    launch(chunks, (ids, table), (slots, chunks))
    if rank == 1:
        return table
    scan = SCAN.variants.get((device, chunk))
    if scan is None:
        constants = {"CHUNK": chunk, "BINS": BINS, "BLOCK_BINS": 16, "BLOCK": 256, "BLOCK_FLAGS": 1024}
        scan = SCAN.variant((device, chunk), device, constants, num_warps=8)
    starts = table.narrow(0, table_size(chunks), table_size(chunks))
    scan(BINS // 16, (table, starts), (slots, chunks))
    return starts
