"""The dual GEMM without the tensor copy engine: fp32, and GPUs before Hopper. One output tile a program."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.backends import interpreting
from glm_pto_kernels.wallx.cuda.dual_gemm_wave import Product
from glm_pto_kernels.wallx.triton.aligned import row_major, step_of
from glm_pto_kernels.wallx.triton.launch import Kernel, large_shared_memory


@triton.jit
def place(tile, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of a tile: GROUP tile rows at a time, so that their columns are shared in L2."""
    high, wide = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    group = tile // (GROUP * wide)
    size = tl.minimum(high - group * GROUP, GROUP)
    inside = tile % (GROUP * wide)
    return group * GROUP + inside % size, inside // size


@triton.jit
def one_tile(
    a, b, o, tile, high, wide, high_a, deep_a, deep_b, wide_b, a_steps, b_steps, o_steps,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, STEP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """``a``, ``b`` and ``o`` are stored in rows of a multiple of STEP elements, ``*_steps`` times STEP apart.

    Padded with zeros to that each has its own size: beyond it, zeros are read.
    """
    wide = wide // STEP * STEP  # which it is: tells the compiler that loads and stores can be wide
    if TRANS_A:
        high_a = high_a // STEP * STEP
    else:
        deep_a = deep_a // STEP * STEP
    if TRANS_B:
        deep_b = deep_b // STEP * STEP
    else:
        wide_b = wide_b // STEP * STEP
    row, column = place(tile, high, wide, BLOCK_M, BLOCK_N, GROUP)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_row, b_row = a_steps * STEP, b_steps * STEP
    if TRANS_A:
        left_at, left_step = a + depth.to(tl.int64)[None, :] * a_row + rows[:, None], a_row * BLOCK_K
    else:
        left_at, left_step = a + rows.to(tl.int64)[:, None] * a_row + depth[None, :], BLOCK_K
    if TRANS_B:
        right_at, right_step = b + columns.to(tl.int64)[None, :] * b_row + depth[:, None], BLOCK_K
    else:
        right_at, right_step = b + depth.to(tl.int64)[:, None] * b_row + columns[None, :], b_row * BLOCK_K
    left_live, right_live = (rows < high_a)[:, None], (columns < wide_b)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, tl.maximum(deep_a, deep_b), BLOCK_K):
        left = tl.load(left_at, mask=left_live & (start + depth < deep_a)[None, :], other=0)
        right = tl.load(right_at, mask=(start + depth < deep_b)[:, None] & right_live, other=0)
        # fp32 stays fp32: torch's own default, too, is not to round to tf32.
        total = tl.dot(left, right, total, input_precision="ieee")
        left_at += left_step
        right_at += right_step
    target = o + rows.to(tl.int64)[:, None] * (o_steps * STEP) + columns[None, :]
    tl.store(target, total.to(o.dtype.element_ty), mask=(rows < high)[:, None] & (columns < wide)[None, :])


SIZES = ("high", "wide", "high_a", "deep_a", "deep_b", "wide_b", "a_steps", "b_steps", "o_steps")


@triton.jit(do_not_specialize=tuple(f"{size}{i}" for i in (0, 1) for size in SIZES))
def dual_gemm_tiles_kernel(
    a0, b0, o0, a1, b1, o1,
    high0: tl.int32, wide0: tl.int32, high_a0: tl.int32, deep_a0: tl.int32, deep_b0: tl.int32,
    wide_b0: tl.int32, a_steps0: tl.int64, b_steps0: tl.int64, o_steps0: tl.int64,
    high1: tl.int32, wide1: tl.int32, high_a1: tl.int32, deep_a1: tl.int32, deep_b1: tl.int32,
    wide_b1: tl.int32, a_steps1: tl.int64, b_steps1: tl.int64, o_steps1: tl.int64,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, STEP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The tiles of the second product follow those of the first."""
    tile = tl.program_id(0)
    first = tl.cdiv(high0, BLOCK_M) * tl.cdiv(wide0, BLOCK_N)
    if tile < first:
        one_tile(
            a0, b0, o0, tile, high0, wide0, high_a0, deep_a0, deep_b0, wide_b0, a_steps0, b_steps0, o_steps0,
            TRANS_A, TRANS_B, STEP, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
        )  # fmt: skip
    else:
        one_tile(
            a1, b1, o1, tile - first, high1, wide1, high_a1, deep_a1, deep_b1, wide_b1, a_steps1, b_steps1,
            o_steps1, TRANS_A, TRANS_B, STEP, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
        )  # fmt: skip


TILES = Kernel(dual_gemm_tiles_kernel)
Shape = tuple[tuple[int, int, int], int]  # rows, columns and depth of a tile; warps
# What an H200 preferred. In fp32, whose products take no matrix units, weights by columns want larger tiles.
HALF: Shape = (128, 128, 64), 8
HALF_IN_99_KIB: Shape = (128, 128, 32), 8
FULL: dict[bool, Shape] = {False: ((64, 128, 16), 8), True: ((128, 128, 16), 8)}
GROUP, STAGES = 8, 3


def shape_of(kind: torch.dtype, trans_b: bool, device: int) -> Shape:
    if kind == torch.float32:
        return FULL[trans_b]
    return HALF if interpreting() or large_shared_memory(device) else HALF_IN_99_KIB


def dual_gemm_tiles(products: Sequence[Product]) -> None:
    """Both products in one launch. They fit (``aligned.fits``); the second may be empty, the first not."""
    (a0, b0, _), _ = products
    step, device = step_of(a0), a0.get_device()
    trans_a, trans_b = not row_major(a0), not row_major(b0)
    (block_m, block_n, block_k), warps = shape_of(a0.dtype, trans_b, device)
    tensors: list[Tensor] = []
    numbers: list[int] = []
    tiles = 0
    for a, b, o in products:
        high, wide = o.shape
        rows = a.t() if trans_a else a, b.t() if trans_b else b, o
        tensors += (a, b, o)
        numbers += (high, wide, *a.shape, *b.shape, *(x.stride(0) // step for x in rows))
        tiles += -(-high // block_m) * -(-wide // block_n)
    key = (device, a0.dtype, trans_a, trans_b)
    launch = TILES.variants.get(key)
    if launch is None:
        constants = {
            "TRANS_A": trans_a,
            "TRANS_B": trans_b,
            "STEP": step,
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "GROUP": GROUP,
        }
        launch = TILES.variant(key, device, constants, num_warps=warps, num_stages=STAGES)
    launch(tiles, tensors, numbers)
