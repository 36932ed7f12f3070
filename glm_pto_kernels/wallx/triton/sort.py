"""Rank of each (token, expert) slot in the stable order by expert: no atomics, no host, any number of
experts.

A short list is ranked by comparing every pair. A long one is cut into chunks: one launch counts, per chunk,
the slots below each expert; the rank is then a sum over chunks plus a comparison inside the slot's own
chunk. Where chunks are many, a launch between the two sums over them once for all. Counting needs ids in
[-1, BINS - 3]; whether they are is decided on the device, and otherwise all pairs are compared.
"""

from __future__ import annotations

import triton
import triton.language as tl

BINS = 1024  # the number of experts does not reach the host, so the table has room for every likely one
FEW, MORE = 128, 256  # histograms of so many take a fraction of the time: enough for 126, and 254 experts
# What a chunk says of itself is how many bins it wrote, or that it has a slot without one.
BIN_MISSING = tl.constexpr(BINS + 1)


@triton.jit
def largest(ids):
    return 2147483647 if ids.dtype.element_ty == tl.int32 else 9223372036854775807


@triton.jit
def load_ids(ids, at, mask, MASK_NEGATIVE: tl.constexpr):
    """Expert ids; masked-out places, and negative ids where they are masked, are the largest number."""
    id = tl.load(ids + at) if mask is None else tl.load(ids + at, mask=mask, other=largest(ids))
    if MASK_NEGATIVE:
        id = tl.where(id < 0, largest(ids), id)
    return id


@triton.jit
def rank_by_pairs(
    ids, mine, slot, total, ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK_NEGATIVE: tl.constexpr
):
    """Slots that come before ``slot`` [ROWS] of expert ``mine``: smaller expert, or same and earlier."""
    count = tl.zeros([ROWS, BLOCK], dtype=tl.int32)
    for start in range(0, total, BLOCK):
        at = start + tl.arange(0, BLOCK)
        other = load_ids(ids, at, at < total, MASK_NEGATIVE)[None, :]
        before = (other < mine[:, None]) | ((other == mine[:, None]) & (at[None, :] < slot[:, None]))
        count += before.to(tl.int32)
    return tl.sum(count, axis=1)


@triton.jit
def rank_in_chunk(
    ids, mine, slot, first, length, whole, count, BLOCK: tl.constexpr, MASK_NEGATIVE: tl.constexpr
):
    """Earlier slots of the same expert among ``length`` from ``first`` on, and what ``count`` holds.

    Added up in one go: a sum over a program's threads takes longer than what it adds. ``whole``: the last
    block can be read to its end. Loads without a mask are wider. Places are told from ``first``, for the
    slot after the last may be past 2^31.
    """
    slot -= first
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        if whole:
            other = load_ids(ids + first, place, None, MASK_NEGATIVE)
        else:
            other = load_ids(ids + first, place, place < length, MASK_NEGATIVE)
        count += ((other[None, :] == mine[:, None]) & (place[None, :] < slot[:, None])).to(tl.int32)
    return tl.sum(count, axis=1)


@triton.jit
def bin_of(id, ids, BINS: tl.constexpr, MASK_NEGATIVE: tl.constexpr):
    """Bin of an id: 0 for -1, then the experts in order, the last for masked ones."""
    bin = id + 1
    if MASK_NEGATIVE:
        bin = tl.where(id == largest(ids), BINS - 1, bin)
    return bin


@triton.jit
def slots_below(table, level, chunk, chunks, written, total, CHUNK: tl.constexpr, BINS: tl.constexpr):
    """Slots of each chunk below bin ``level``. The last bin that a chunk wrote holds what is masked, so all
    others are below it; below BINS are those, too.
    """
    there = chunk < chunks
    place = tl.minimum(level, written - 1) * chunks + chunk
    counted = tl.load(table + place, mask=there & (level < BINS), other=0)
    every = tl.maximum(tl.minimum(total - chunk * CHUNK, CHUNK), 0)
    return tl.where(there, tl.where(level < BINS, counted, every), 0)


@triton.jit
def count_bins(column, bin, counts, chunks, N: tl.constexpr):
    """Slots below each of N bins. Those that do not count go to the last one, which is below none."""
    found = tl.histogram(tl.where(counts, bin, N - 1), N)
    tl.store(column + tl.arange(0, N).to(tl.int64) * chunks, tl.cumsum(found, axis=0) - found)


@triton.jit(do_not_specialize=["total", "chunks"])
def count_kernel(
    ids,
    table,
    total: tl.int32,
    chunks: tl.int32,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
    FEW: tl.constexpr,
    MORE: tl.constexpr,
    MASK_NEGATIVE: tl.constexpr,
):
    """table[b, c] = slots of chunk c below bin b, for the bins that it wrote; table[BINS, c]: how many.

    Side by side for all chunks, since whoever ranks a slot sums over them.
    """
    chunk = tl.program_id(0)
    place = tl.arange(0, CHUNK)
    counts = place < total - chunk * CHUNK  # the slot after the last may be past 2^31
    id = load_ids(ids, chunk * CHUNK + place, counts, MASK_NEGATIVE)
    if MASK_NEGATIVE:
        counts = counts & (id != largest(ids))
    missing = counts & ((id < -1) | (id > BINS - 3))
    bin = tl.where(counts & (missing == 0), id + 1, 0).to(tl.int32)
    column, most = table + chunk, tl.max(bin, axis=0)
    written = BINS
    if most < FEW - 1:
        count_bins(column, bin, counts, chunks, FEW)
        written = FEW
    elif most < MORE - 1:
        count_bins(column, bin, counts, chunks, MORE)
        written = MORE
    else:
        count_bins(column, bin, counts, chunks, BINS)
    written = tl.where(tl.max(missing.to(tl.int32), axis=0) > 0, BIN_MISSING, written)
    tl.store(column + chunks.to(tl.int64) * BINS, written)


@triton.jit(do_not_specialize=["total", "chunks"])
def scan_kernel(
    table,
    starts,
    total: tl.int32,
    chunks: tl.int32,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_FLAGS: tl.constexpr,
):
    """starts[b, c] = rank of the first slot of bin b in chunk c; starts[BINS, 0]: the most of table[BINS].

    Bins that no chunk wrote are left out, but for the last ones, which are those of masked slots.
    """
    block = tl.program_id(0)
    bins = (block * BLOCK_BINS + tl.arange(0, BLOCK_BINS)).to(tl.int64)[:, None]
    flags = table + chunks.to(tl.int64) * BINS
    most = tl.zeros([BLOCK_FLAGS], dtype=tl.int32)
    for start in range(0, chunks, BLOCK_FLAGS):
        chunk = start + tl.arange(0, BLOCK_FLAGS)
        most = tl.maximum(most, tl.load(flags + chunk, mask=chunk < chunks, other=1))
    written_by_any = tl.max(most, axis=0)
    if block == 0:
        tl.store(starts + chunks.to(tl.int64) * BINS, written_by_any)
    if (block * BLOCK_BINS < written_by_any) | (block == tl.num_programs(0) - 1):
        before = tl.zeros([BLOCK_BINS], dtype=tl.int32)
        for start in range(0, chunks, BLOCK):
            chunk = start + tl.arange(0, BLOCK)
            written = tl.load(flags + chunk, mask=chunk < chunks, other=1)
            below = slots_below(table, bins, chunk[None, :], chunks, written[None, :], total, CHUNK, BINS)
            before += tl.sum(below, axis=1)
        for start in range(0, chunks, BLOCK):
            chunk = start + tl.arange(0, BLOCK)
            written = tl.load(flags + chunk, mask=chunk < chunks, other=1)
            below = slots_below(table, bins, chunk[None, :], chunks, written[None, :], total, CHUNK, BINS)
            upto = slots_below(table, bins + 1, chunk[None, :], chunks, written[None, :], total, CHUNK, BINS)
            own = upto - below
            starts_here = before[:, None] + tl.cumsum(own, axis=1) - own
            tl.store(starts + bins * chunks + chunk[None, :], starts_here, mask=(chunk < chunks)[None, :])
            before += tl.sum(own, axis=1)
