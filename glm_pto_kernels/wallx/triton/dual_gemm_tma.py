"""The dual GEMM through Hopper's tensor copy engine: persistent programs walk over tiles of both products.

Tiles that would leave multiprocessors idle in the last round, and a small second product, are cut in two:
with few tiles in all, the number of rounds decides.
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
from glm_pto_kernels.wallx.cuda.dual_gemm_wave import Product
from glm_pto_kernels.wallx.relaunch import Launch
from glm_pto_kernels.wallx.triton.aligned import row_major
from glm_pto_kernels.wallx.triton.launch import hopper, large_shared_memory
from glm_pto_kernels.wallx.triton.tensor_map import Described, launch_described


@triton.jit
def walk(
    a, b, o, first_row, high, first_column, wide, k, start,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """This program's share of a rectangle of tiles; GROUP tile rows at a time share columns in L2.

    Returns where this program starts in the next rectangle: those idle in the last round go first.
    """
    programs = tl.num_programs(0)
    for tile in tl.range(start, high * wide, programs, flatten=True):
        group = tile // (GROUP * wide)
        size = tl.minimum(high - group * GROUP, GROUP)
        inside = tile % (GROUP * wide)
        row = first_row + (group * GROUP + inside % size) * BLOCK_M
        column = first_column + (inside // size) * BLOCK_N
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
    return (start + programs - high * wide % programs) % programs


NUMBERS = (
    "high0",
    "wide0",
    "k0",
    "edge_row",
    "edge_high",
    "edge_column",
    "edge_wide",
    "high1",
    "wide1",
    "k1",
)


@triton.jit(do_not_specialize=NUMBERS)
def dual_gemm_tma_kernel(
    a0, b0, o0, a_edge, b_edge, o_edge, a1, b1, o1,
    high0: tl.int32, wide0: tl.int32, k0: tl.int32,
    edge_row: tl.int32, edge_high: tl.int32, edge_column: tl.int32, edge_wide: tl.int32,
    high1: tl.int32, wide1: tl.int32, k1: tl.int32,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EDGE: tl.constexpr, EDGE_M: tl.constexpr, EDGE_N: tl.constexpr,
    SECOND_M: tl.constexpr, SECOND_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The first product's whole tiles, its edge in smaller tiles if it has one, the second product."""
    start = tl.program_id(0)
    start = walk(
        a0, b0, o0, 0, high0, 0, wide0, k0, start, TRANS_A, TRANS_B, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, PARTS
    )  # fmt: skip
    if EDGE:
        start = walk(
            a_edge, b_edge, o_edge, edge_row, edge_high, edge_column, edge_wide, k0, start,
            TRANS_A, TRANS_B, EDGE_M, EDGE_N, BLOCK_K, GROUP, PARTS,
        )  # fmt: skip
    walk(
        a1, b1, o1, 0, high1, 0, wide1, k1, start,
        TRANS_A, TRANS_B, SECOND_M, SECOND_N, BLOCK_K, GROUP, PARTS,
    )  # fmt: skip


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


SMALL = Tiling(64, 256, 64, 8, 2, 4, 5)
SINGLE = Tiling(128, 128, 64, 16, 2, 4, 5)
PAIRED = Tiling(128, 128, 64, 4, 2, 4, 3, programs=2)
TILINGS = (SMALL, SINGLE, PAIRED)
# Numbers of 128 x 128 tiles of the larger product where an H200 changed its preference.
FEW, SOME, MANY = 400, 800, 2800


def tiling_of(products: Sequence[Product], processors: int) -> Tiling:
    """Two programs a multiprocessor overlap one's end with the other's work, unless that costs a round."""
    tiles = max(tiles_of(SINGLE, [product]) for product in products)
    if tiles > MANY:
        return PAIRED
    other = SMALL if tiles <= SOME else SINGLE
    if tiles <= FEW:
        return other
    rounds = -(-tiles_of(other, products) // processors)
    paired = -(-tiles_of(PAIRED, products) // (2 * processors))
    return PAIRED if 2 * paired <= rounds else other


def tiles_of(tiling: Tiling, products: Sequence[Product]) -> int:
    return sum(-(-o.shape[0] // tiling.block_m) * -(-o.shape[1] // tiling.block_n) for _, _, o in products)


def can_describe(like: Tensor) -> bool:
    """Whether the copy engine is there for matrices of this type and device, and room for its tiles."""
    if interpreting() or like.dtype not in (torch.bfloat16, torch.float16):
        return False
    device = like.get_device()
    return hopper(device) and large_shared_memory(device)


@cache
def multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True)
class Cut:
    """How the products are cut: whole tiles, an edge in halves of tiles, the second product."""

    high: int
    wide: int
    edge: bool
    edge_place: tuple[int, int, int, int]  # row, tile rows, column, tile columns
    edge_block: tuple[int, int]
    second_block: tuple[int, int]


def cut(m0: int, n0: int, m1: int, n1: int, tiling: Tiling, programs: int) -> Cut:
    block_m, block_n = tiling.block_m, tiling.block_n
    high, wide = -(-m0 // block_m), -(-n0 // block_n)
    half = block_m // 2
    # 64 rows are the least that fill a warp group.
    if half >= 64:
        second = (half if m1 <= half else block_m, block_n)
        if 0 < m0 % block_m <= half:
            place = ((high - 1) * block_m, 1, 0, wide)
            return Cut(high - 1, wide, True, place, (half, block_n), second)
        return Cut(high, wide, False, (0, 0, 0, 0), (block_m, block_n), second)
    # Few tiles: those beyond full rounds are halved, if one more round then holds them and the other product.
    kept = high * wide // programs * programs // high
    slim = block_n // 2
    pieces = 2 * high * (wide - kept) + -(-m1 // block_m) * -(-n1 // slim)
    if 0 < kept < wide and pieces <= programs:
        place = (0, high, kept * block_n, 2 * (wide - kept))
        return Cut(high, kept, True, place, (block_m, slim), (block_m, slim))
    return Cut(high, wide, False, (0, 0, 0, 0), (block_m, block_n), (block_m, block_n))


def dual_gemm_tma(products: Sequence[Product], tiling: Tiling | None = None) -> Launch | None:
    """Both products in one launch. The second may be empty, the first not."""
    (a0, b0, o0), (a1, _, o1) = products
    processors = multiprocessors(o0.get_device())
    tiling = tiling or tiling_of(products, processors)
    trans_a, trans_b = not row_major(a0), not row_major(b0)
    programs = processors * tiling.programs
    (m0, n0), (m1, n1) = o0.shape, o1.shape
    plan = cut(m0, n0, m1, n1, tiling, programs)
    whole = (tiling.block_m, tiling.block_n)

    def described_product(a: Tensor, b: Tensor, o: Tensor, block: tuple[int, int]) -> tuple[Described, ...]:
        m, n = block
        k = tiling.block_k
        return (
            (a.t(), [k, m]) if trans_a else (a, [m, k]),
            (b.t(), [n, k]) if trans_b else (b, [k, n]),
            (o, [m, n // tiling.parts]),
        )

    described = (
        *described_product(a0, b0, o0, whole),
        # Without an edge these are never read; nor is anything of an empty product, which has no tiles.
        *described_product(a0, b0, o0, plan.edge_block),
        *described_product(*products[bool(o1.numel())], plan.second_block),
    )
    second_m, second_n = plan.second_block
    numbers = (
        *(plan.high, plan.wide, a0.shape[1]),
        *plan.edge_place,
        *(-(-m1 // second_m), -(-n1 // second_n), a1.shape[1]),
    )
    blocks = (*whole, plan.edge, *plan.edge_block, *plan.second_block)
    constants = (trans_a, trans_b, *blocks, tiling.block_k, tiling.group, tiling.parts)
    return launch_described(
        dual_gemm_tma_kernel,
        programs,
        described,
        numbers,
        constants,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
