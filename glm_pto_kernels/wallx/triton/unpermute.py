"""unpermute on Triton: every token gathers its K rows, sums them in fp32, and rounds once. One launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.triton.launch import (
    ALIGNMENT,
    Kernel,
    Variant,
    dense_rows,
    hopper,
    power_of_2,
    rows_for,
)

# One thread asks for a piece of memory to come into the L2 cache; nobody waits for it.
FETCH_AHEAD = tl.constexpr("""{
    .reg .pred first;
    .reg .u32 thread;
    .reg .b64 from;
    mov.u32 thread, %tid.x;
    setp.eq.u32 first, thread, 0;
    and.b64 from, $1, -16;
    @first cp.async.bulk.prefetch.L2.global [from], $2;
    mov.u32 $0, 0;
}""")
# About what an H200 reads until the first map entries have come; half where it turns to all pages meanwhile.
AHEAD_BYTES, AHEAD_BESIDE_PAGES = 2 << 20, 1 << 20
PAGE_BYTES = 2 << 20  # of GPU memory
LATER = 768  # programs: a third of those that an H200 runs at once


@triton.jit
def fetch(address, size):
    tl.inline_asm_elementwise(
        FETCH_AHEAD, "=r,l,r", [address.to(tl.int64), size], dtype=tl.int32, is_pure=False, pack=1
    )


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
    STORE: tl.constexpr,
    EVICT: tl.constexpr,
    AHEAD: tl.constexpr,
    PIECE: tl.constexpr,
    PIECE_BYTES: tl.constexpr,
    LATER: tl.constexpr,
    PAGE: tl.constexpr,
):
    """ROWS tokens by BLOCK_H columns a program. STORE, EVICT: how caches treat what is written, read.

    The first AHEAD programs each fetch PIECE elements of y, in the order of memory, while they wait for the
    map: which rows are whose is not known yet, but all will be read. PAGE: for the first access to a page
    takes long, programs also fetch 16 bytes of every so many elements. LATER: a program fetches, too, what
    the program so many places on is going to read; they have one row each.
    """
    program = tl.program_id(0)
    length = rows_in.to(tl.int64) * H
    if PAGE > 0:
        page = program.to(tl.int64) * PAGE
        if page + PIECE <= length:
            fetch(y + page, 16)
    if AHEAD > 0:
        piece = program.to(tl.int64) * PIECE
        if (program < AHEAD) & (piece + PIECE <= length):
            fetch(y + piece, PIECE_BYTES)
    blocks = (H + BLOCK_H - 1) // BLOCK_H
    rows = (program // blocks) * ROWS + tl.arange(0, ROWS)
    columns = (program % blocks) * BLOCK_H + tl.arange(0, BLOCK_H)
    live = rows < tokens
    inside = (columns < H)[None, :]
    if LATER > 0:
        later = program + LATER
        row = tl.load(row_map + later // blocks, mask=later // blocks < tokens, other=-1)
        first = (later % blocks) * BLOCK_H
        if (row >= 0) & (row < rows_in):
            size = tl.minimum(H - first, BLOCK_H) * (PIECE_BYTES // PIECE)
            fetch(y + row.to(tl.int64) * Y_STRIDE + first, size)
    if TOP_K == 1:
        row = tl.load(row_map + rows, mask=live, other=-1)
        mapped = (row >= 0) & (row < rows_in)
        source = y + row.to(tl.int64)[:, None] * Y_STRIDE + columns[None, :]
        total = tl.load(source, mask=mapped[:, None] & inside, other=0, eviction_policy=EVICT)
    else:
        total = tl.zeros([ROWS, BLOCK_H], dtype=tl.float32)
        for k in tl.static_range(TOP_K):
            row = tl.load(row_map + k * tokens + rows, mask=live, other=-1)
            mapped = (row >= 0) & (row < rows_in)
            source = y + row.to(tl.int64)[:, None] * Y_STRIDE + columns[None, :]
            # Masked out, not multiplied by zero: an unmapped row may hold NaN.
            values = tl.load(source, mask=mapped[:, None] & inside, other=0, eviction_policy=EVICT)
            values = values.to(tl.float32)
            if WEIGHTED:
                # Not masked by the map: the weight need not wait for it.
                weight = tl.load(prob + rows * TOP_K + k, mask=live, other=0).to(tl.float32)
                weight = tl.where(mapped, weight, 0.0)
                values = values * weight[:, None]
            total += values
    target = out + rows.to(tl.int64)[:, None] * H + columns[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=live[:, None] & inside, cache_modifier=STORE)


GATHER = Kernel(gather_kernel)
Plan = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def unpermute(y: Tensor, row_id_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Tensor:
    """See ``glm_pto_kernels.wallx.unpermute``."""
    if top_k == 0 or tokens == 0 or y.shape[1] == 0:
        return y.new_zeros(tokens, y.shape[1])
    y, row_id_map = dense_rows(y), row_id_map.contiguous()
    prob = None if prob is None or top_k == 1 else prob.contiguous()
    plan = unpermute_plan(y, row_id_map, prob, tokens, top_k)
    assert plan is not None
    return plan(y, row_id_map, prob)


def unpermute_plan(
    y: Tensor, row_id_map: Tensor, prob: Tensor | None, tokens: int, top_k: int
) -> Plan | None:
    """What runs calls like this one; None where something must be copied first or nothing is to be done."""
    hidden = y.shape[1]
    if (
        not (tokens and hidden and top_k and row_id_map.is_contiguous())
        or dense_rows(y) is not y
        or not (prob is None or prob.is_contiguous())
    ):
        return None
    size = 0 if tokens <= 4096 or top_k > 1 else 1 if tokens <= 8192 else 2
    kind = None if prob is None else prob.dtype
    key = (y.get_device(), y.dtype, hidden, y.stride(0), top_k, kind, size)
    made = GATHER.variants.get(key) or variant(key, y, top_k, prob is not None, size)
    return made.producing(made.grid(tokens), (tokens, y.shape[0]), y, (tokens, hidden))


def variant(key: Hashable, y: Tensor, top_k: int, weighted: bool, size: int) -> Variant:
    """Shapes that an H200 preferred: several rows of a program overlap, until there are programs enough."""
    hidden, row_bytes = y.shape[1], y.shape[1] * y.element_size()
    fetching, pages, evict, store = fetches_ahead(y), False, "", ""
    if top_k == 1:
        tile, warps = ((16384, 4), (16384, 2), (4096, 4))[size]
        columns = 4096 // y.element_size() if size == 2 else 8192
        evict = "" if size == 2 else "evict_first"
    elif fetching or top_k <= 4:
        tile, warps, columns = 4096 if top_k <= 4 else 2048, 2, 1024
        pages, evict = True, "" if fetching else "evict_first"
    else:
        tile, warps, columns, store = 2048, 4, 1024, ".cs"
    block = min(power_of_2(hidden), columns)
    rows = rows_for(tile, min(row_bytes, block * y.element_size()))
    piece = rows * block * top_k  # as much as a program reads
    piece_bytes = piece * y.element_size()
    ahead = fetching and piece_bytes % ALIGNMENT == 0
    later = ahead and top_k == 1 and size == 2 and rows == 1 and row_bytes % ALIGNMENT == 0
    constants = {
        "H": hidden,
        "Y_STRIDE": y.stride(0),
        "TOP_K": top_k,
        "WEIGHTED": weighted,
        "ROWS": rows,
        "BLOCK_H": block,
        "STORE": store,
        "EVICT": evict,
        "AHEAD": (AHEAD_BESIDE_PAGES if pages else AHEAD_BYTES) // piece_bytes if ahead else 0,
        "PIECE": piece,
        "PIECE_BYTES": piece_bytes,
        "LATER": LATER if later else 0,
        "PAGE": PAGE_BYTES // y.element_size() if ahead and pages else 0,
    }
    return GATHER.variant(key, y.get_device(), constants, rows, -(-hidden // block), num_warps=warps)


def fetches_ahead(y: Tensor) -> bool:
    """Whether the GPU can fetch memory ahead in one piece, and dense rows make a piece worth it."""
    compiled = isinstance(gather_kernel, triton.JITFunction) and y.is_cuda
    dense = y.stride(0) == y.shape[1]
    return compiled and dense and hopper(y.get_device())
