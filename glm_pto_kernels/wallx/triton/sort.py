"""Rank of each (token, expert) slot in the stable order by expert: no atomics, no host, any number of
experts.

A short list is ranked by comparing every pair. A long one is cut into chunks: one launch counts, per chunk,
the slots below each expert; the rank is then a sum over chunks plus a comparison inside the slot's own
chunk. Counting needs ids in [-1, BINS - 3]; whether they are is decided on the device, and otherwise all
pairs are compared.
"""

from __future__ import annotations

import triton
import triton.language as tl

BINS = 1024  # the number of experts does not reach the host, so the table has room for every likely one
FEW = 128  # a histogram of so many bins is enough for most models, and takes a fraction of the time


@triton.jit
def largest(ids):
    return 2147483647 if ids.dtype.element_ty == tl.int32 else 9223372036854775807


@triton.jit
def load_ids(ids, at, mask, MASK_NEGATIVE: tl.constexpr):
    """Expert ids; masked-out places, and negative ids where they are masked, are the largest number."""
    id = tl.load(ids + at, mask=mask, other=largest(ids))
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
    ids, mine, slot, first, end, ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK_NEGATIVE: tl.constexpr
):
    """Earlier slots of the same expert in [first, end), which holds every ``slot``."""
    count = tl.zeros([ROWS, BLOCK], dtype=tl.int32)
    for start in range(first, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        other = load_ids(ids, at, at < end, MASK_NEGATIVE)[None, :]
        count += ((other == mine[:, None]) & (at[None, :] < slot[:, None])).to(tl.int32)
    return tl.sum(count, axis=1)


@triton.jit
def bin_of(id, ids, BINS: tl.constexpr, MASK_NEGATIVE: tl.constexpr):
    """Bin of an id: 0 for -1, then the experts in order, the last for masked ones."""
    bin = id + 1
    if MASK_NEGATIVE:
        bin = tl.where(id == largest(ids), BINS - 1, bin)
    return bin


@triton.jit(do_not_specialize=["tokens"])
def count_kernel(
    ids,
    table,
    tokens: tl.int32,
    TOP_K: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    FEW: tl.constexpr,
    MASK_NEGATIVE: tl.constexpr,
):
    """table[c, b] = slots of chunk c below bin b, b = 0 .. BINS; table[c, BINS + 1]: a bin is missing."""
    chunk = tl.program_id(0)
    first = chunk * CHUNK * TOP_K
    at = first + tl.arange(0, BLOCK)
    inside = at < tl.minimum(first + CHUNK * TOP_K, tokens * TOP_K)
    id = load_ids(ids, at, inside, MASK_NEGATIVE)
    missing = inside & ((id < -1) | (id > BINS - 3))
    if MASK_NEGATIVE:
        missing = missing & (id != largest(ids))
    bin = tl.where(inside & (missing == 0), bin_of(id, ids, BINS, MASK_NEGATIVE), 0).to(tl.int32)
    valid = tl.sum(inside.to(tl.int32), axis=0)
    row = table + chunk * (BINS + 2)
    # Places outside the list count in the last bin of the histogram, which is below no other that is read.
    if tl.max(bin, axis=0) < FEW - 1:
        few = tl.histogram(tl.where(inside, bin, FEW - 1), FEW)
        tl.store(row + tl.arange(0, FEW), tl.cumsum(few, axis=0) - few)
        rest = tl.arange(0, BINS)
        tl.store(row + rest, tl.zeros([BINS], dtype=tl.int32) + valid, mask=rest >= FEW)
    else:
        many = tl.histogram(tl.where(inside, bin, BINS - 1), BINS)
        tl.store(row + tl.arange(0, BINS), tl.cumsum(many, axis=0) - many)
    tl.store(row + BINS, valid)
    tl.store(row + BINS + 1, tl.max(missing.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["chunks"])
def scan_kernel(
    table, starts, chunks: tl.int32, BINS: tl.constexpr, BLOCK_BINS: tl.constexpr, BLOCK: tl.constexpr
):
    """starts[c, b] = rank of the first slot of bin b in chunk c; starts[0, BINS] = a bin is missing."""
    bins = tl.program_id(0) * BLOCK_BINS + tl.arange(0, BLOCK_BINS)
    before = tl.zeros([BLOCK_BINS], dtype=tl.int32)
    missing = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        row = table + chunk[:, None] * (BINS + 2)
        before += tl.sum(tl.load(row + bins[None, :], mask=(chunk < chunks)[:, None], other=0), axis=0)
        missing |= tl.load(table + chunk * (BINS + 2) + BINS + 1, mask=chunk < chunks, other=0)
    for start in range(0, chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        place = chunk[:, None] * (BINS + 2) + bins[None, :]
        mask = (chunk < chunks)[:, None]
        below = tl.load(table + place, mask=mask, other=0)
        own = tl.load(table + place + 1, mask=mask, other=0) - below
        tl.store(starts + place, before[None, :] + tl.cumsum(own, axis=0) - own, mask=mask)
        before += tl.sum(own, axis=0)
    if tl.program_id(0) == 0:
        tl.store(starts + BINS, tl.max(missing, axis=0))
