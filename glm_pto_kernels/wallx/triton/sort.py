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
FEW = 128  # a histogram of so many bins takes a fraction of the time: enough for 126 experts, none masked
# What a chunk wrote: its first FEW bins, which hold all of its slots; all bins; or it has a slot without one.
FEW_BINS, ALL_BINS, BIN_MISSING = (tl.constexpr(flag) for flag in range(3))


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
def slots_below(table, level, chunk, chunks, flag, total, CHUNK: tl.constexpr, FEW: tl.constexpr):
    """Slots of each chunk below bin ``level``: as counted, or all of them past what it wrote."""
    written = (level < FEW) | (flag != FEW_BINS)
    there = chunk < chunks
    counted = tl.load(table + level * chunks + chunk, mask=written & there, other=0)
    return tl.where(
        there, tl.where(written, counted, tl.maximum(tl.minimum(total - chunk * CHUNK, CHUNK), 0)), 0
    )


@triton.jit(do_not_specialize=["total", "chunks"])
def count_kernel(
    ids,
    table,
    total: tl.int32,
    chunks: tl.int32,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
    FEW: tl.constexpr,
    MASK_NEGATIVE: tl.constexpr,
):
    """table[b, c] = slots of chunk c below bin b, b = 0 .. BINS; table[BINS + 1, c]: what chunk c wrote.

    Side by side for all chunks, since whoever ranks a slot sums over them.
    """
    chunk = tl.program_id(0)
    place = tl.arange(0, CHUNK)
    inside = place < total - chunk * CHUNK  # the slot after the last may be past 2^31
    id = load_ids(ids, chunk * CHUNK + place, inside, MASK_NEGATIVE)
    missing = inside & ((id < -1) | (id > BINS - 3))
    if MASK_NEGATIVE:
        missing = missing & (id != largest(ids))
    bin = tl.where(inside & (missing == 0), bin_of(id, ids, BINS, MASK_NEGATIVE), 0).to(tl.int32)
    column = table + chunk
    flag = tl.where(tl.max(missing.to(tl.int32), axis=0) > 0, BIN_MISSING, FEW_BINS)
    # Places outside the list count in the last bin of the histogram, which is below no other that is read.
    if tl.max(bin, axis=0) < FEW - 1:
        few = tl.histogram(tl.where(inside, bin, FEW - 1), FEW)
        tl.store(column + tl.arange(0, FEW).to(tl.int64) * chunks, tl.cumsum(few, axis=0) - few)
    else:
        flag = tl.maximum(flag, ALL_BINS)
        many = tl.histogram(tl.where(inside, bin, BINS - 1), BINS)
        tl.store(column + tl.arange(0, BINS).to(tl.int64) * chunks, tl.cumsum(many, axis=0) - many)
        valid = tl.sum(inside.to(tl.int32), axis=0)
        tl.store(column + chunks.to(tl.int64) * BINS, valid)
    tl.store(column + chunks.to(tl.int64) * (BINS + 1), flag)


@triton.jit(do_not_specialize=["total", "chunks"])
def scan_kernel(
    table,
    starts,
    total: tl.int32,
    chunks: tl.int32,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
    FEW: tl.constexpr,
    BLOCK_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """starts[b, c] = rank of the first slot of bin b in chunk c; starts[BINS, 0] = a bin is missing."""
    bins = (tl.program_id(0) * BLOCK_BINS + tl.arange(0, BLOCK_BINS)).to(tl.int64)[:, None]
    flags = table + chunks.to(tl.int64) * (BINS + 1)
    before = tl.zeros([BLOCK_BINS], dtype=tl.int32)
    missing = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        flag = tl.load(flags + chunk, mask=chunk < chunks, other=FEW_BINS)
        below = slots_below(table, bins, chunk[None, :], chunks, flag[None, :], total, CHUNK, FEW)
        before += tl.sum(below, axis=1)
        missing = tl.maximum(missing, flag)
    for start in range(0, chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        flag = tl.load(flags + chunk, mask=chunk < chunks, other=FEW_BINS)
        below = slots_below(table, bins, chunk[None, :], chunks, flag[None, :], total, CHUNK, FEW)
        own = slots_below(table, bins + 1, chunk[None, :], chunks, flag[None, :], total, CHUNK, FEW) - below
        place = bins * chunks + chunk[None, :]
        tl.store(
            starts + place, before[:, None] + tl.cumsum(own, axis=1) - own, mask=(chunk < chunks)[None, :]
        )
        before += tl.sum(own, axis=1)
    if tl.program_id(0) == 0:
        tl.store(starts + chunks.to(tl.int64) * BINS, tl.max(missing, axis=0))
