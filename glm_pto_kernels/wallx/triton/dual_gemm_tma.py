"""The dual GEMM through Hopper's tensor copy engine: persistent programs walk over tiles of both products.

A last row of tiles that is at most half full, and a small second product, are cut into tiles of half the
height: with few tiles in all, the number of rounds decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.backends import interpreting
from glm_pto_kernels.wallx.triton.tensor_map import Described, Launch, launch_described

ALIGNMENT = 16
Product = tuple[Tensor, Tensor, Tensor]


@triton.jit
def walk(
    a, b, o, first_row, high, n, k, start,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """This program's share of ``high`` tile rows of one product: GROUP rows at a time share columns in L2."""
    wide = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(start, high * wide, tl.num_programs(0), flatten=True):
        group = tile // (GROUP * wide)
        size = tl.minimum(high - group * GROUP, GROUP)
        inside = tile % (GROUP * wide)
        row = first_row + (group * GROUP + inside % size) * BLOCK_M
        column = (inside // size) * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for at in range(0, k, BLOCK_K):
            left = a.load([at, row]).T if TRANS_A else a.load([row, at])
            right = b.load([column, at]).T if TRANS_B else b.load([at, column])
            total = tl.dot(left, right, total)
        if PARTS == 1:
            o.store([row, column], total.to(o.dtype))
        else:
            # Stored in halves: less shared memory for the store, so one more stage of loads fits.
            halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            first, second = tl.split(halves)
            o.store([row, column], first.to(o.dtype))
            o.store([row, column + BLOCK_N // 2], second.to(o.dtype))


@triton.jit
def turn(start, tiles):
    """The first tile of this program in the next walk: programs that the last round left idle go first."""
    programs = tl.num_programs(0)
    return (start + programs - tiles % programs) % programs


@triton.jit(do_not_specialize=["high0", "n0", "k0", "tail", "tail_row", "high1", "n1", "k1"])
def dual_gemm_tma_kernel(
    a0, b0, o0, a_tail, o_tail, a1, b1, o1,
    high0: tl.int32, n0: tl.int32, k0: tl.int32, tail: tl.int32, tail_row: tl.int32,
    high1: tl.int32, n1: tl.int32, k1: tl.int32,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, BLOCK_M: tl.constexpr, TAIL_M: tl.constexpr,
    SECOND_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """``high``: tile rows; ``tail`` (0, 1): one more, of height TAIL_M, at ``tail_row`` of the first."""
    start = tl.program_id(0)
    walk(a0, b0, o0, 0, high0, n0, k0, start, TRANS_A, TRANS_B, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, PARTS)
    wide = tl.cdiv(n0, BLOCK_N)
    start = turn(start, high0 * wide)
    if TAIL_M:
        walk(
            a_tail, b0, o_tail, tail_row, tail, n0, k0, start,
            TRANS_A, TRANS_B, TAIL_M, BLOCK_N, BLOCK_K, GROUP, PARTS,
        )  # fmt: skip
        start = turn(start, tail * wide)
    walk(a1, b1, o1, 0, high1, n1, k1, start, TRANS_A, TRANS_B, SECOND_M, BLOCK_N, BLOCK_K, GROUP, PARTS)


@dataclass(frozen=True)
class Tiling:
    """Tile sizes, and how the persistent programs are laid out on a multiprocessor."""

    block_m: int
    block_n: int
    block_k: int
    group: int
    parts: int
    warps: int
    stages: int
    programs: int = 1  # per multiprocessor


# By the number of 128 x 128 tiles of the larger product, as an H200 preferred.
TILINGS = (
    (800, Tiling(64, 256, 64, 8, 2, 4, 5)),
    (2800, Tiling(128, 128, 64, 16, 2, 4, 5)),
    (1 << 62, Tiling(128, 128, 64, 4, 2, 4, 3, programs=2)),
)


def tiling_of(products: Sequence[Product]) -> Tiling:
    tiles = max(-(-o.shape[0] // 128) * -(-o.shape[1] // 128) for _, _, o in products)
    return next(tiling for most, tiling in TILINGS if tiles <= most)


def fits_tma(products: Sequence[Product]) -> bool:
    """Whether both products can be described to the copy engine, in one and the same layout."""
    a = products[0][0]
    if interpreting() or a.dtype not in (torch.bfloat16, torch.float16) or not hopper(a.get_device()):
        return False
    layouts = [(row_major(a), row_major(b)) for a, b, _ in products]
    return layouts[0] == layouts[1] and all(
        describable(a if row_major(a) else a.t())
        and describable(b if row_major(b) else b.t())
        and describable(o)
        for a, b, o in products
    )


def row_major(x: Tensor) -> bool:
    return x.stride(1) == 1


def describable(x: Tensor) -> bool:
    return (
        x.numel() > 0
        and x.stride(1) == 1
        and x.stride(0) * x.element_size() % ALIGNMENT == 0
        and x.stride(0) >= x.shape[1]
        and x.data_ptr() % ALIGNMENT == 0
    )


@cache
def hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


@cache
def multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def dual_gemm_tma(products: Sequence[Product], tiling: Tiling | None = None) -> Launch | None:
    """Both products in one launch."""
    tiling = tiling or tiling_of(products)
    (a0, b0, o0), (a1, b1, o1) = products
    trans_a, trans_b = not row_major(a0), not row_major(b0)
    m0, m1 = o0.shape[0], o1.shape[0]
    half = tiling.block_m // 2
    left_over = m0 % tiling.block_m
    # 64 rows are the least that fill a warp group.
    tail = half if half >= 64 and 0 < left_over <= half else 0
    second = half if half >= 64 and m1 <= half else tiling.block_m
    high = m0 // tiling.block_m if tail else -(-m0 // tiling.block_m)
    numbers = (
        high,
        o0.shape[1],
        a0.shape[1],
        1 if tail else 0,
        high * tiling.block_m,
        -(-m1 // second),
        o1.shape[1],
        a1.shape[1],
    )
    a_blocks = [
        [tiling.block_k, m] if trans_a else [m, tiling.block_k] for m in (tiling.block_m, tail, second)
    ]
    b_block = [tiling.block_n, tiling.block_k] if trans_b else [tiling.block_k, tiling.block_n]
    o_blocks = [[m, tiling.block_n // tiling.parts] for m in (tiling.block_m, tail, second)]
    left = [a.t() if trans_a else a for a in (a0, a1)]
    right = [b.t() if trans_b else b for b in (b0, b1)]
    described: tuple[Described, ...] = (
        (left[0], a_blocks[0]),
        (right[0], b_block),
        (o0, o_blocks[0]),
        # Without a tail its two descriptors are never read.
        (left[0], a_blocks[1 if tail else 0]),
        (o0, o_blocks[1 if tail else 0]),
        (left[1], a_blocks[2]),
        (right[1], b_block),
        (o1, o_blocks[2]),
    )
    constants = (
        trans_a, trans_b, tiling.block_m, tail, second, tiling.block_n, tiling.block_k, tiling.group,
        tiling.parts,
    )  # fmt: skip
    return launch_described(
        dual_gemm_tma_kernel,
        multiprocessors(o0.get_device()) * tiling.programs,
        described,
        numbers,
        constants,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
