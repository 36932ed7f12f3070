"""Two matrix products in one launch on Triton.

bf16 and fp16 matrices whose rows are dense and 16-byte aligned go through Hopper's tensor copy engine: in
CUDA C++ where one round of tiles does (``dual_gemm_wave``), else in Triton (``dual_gemm_tma``). Everything
else (fp32, odd sizes, any strides) goes through pointers, here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.cuda.dual_gemm_wave import Wave, capable, dual_gemm_wave, wave_of
from glm_pto_kernels.wallx.relaunch import Launch, again
from glm_pto_kernels.wallx.triton.dual_gemm_tma import (
    Product,
    dual_gemm_tma,
    fits_tma,
    multiprocessors,
    row_major,
)
from glm_pto_kernels.wallx.triton.launch import Kernel

SHAPE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}


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
    a, b, o, tile, m, n, k, a_m, a_k, b_k, b_n, o_m, o_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row, column = place(tile, m, n, BLOCK_M, BLOCK_N, 8)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    depth = tl.arange(0, BLOCK_K).to(tl.int64)
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + depth
        left = tl.load(
            a + rows[:, None] * a_m + at[None, :] * a_k, mask=(rows < m)[:, None] & (at < k)[None, :], other=0
        )
        right = tl.load(
            b + at[:, None] * b_k + columns[None, :] * b_n,
            mask=(at < k)[:, None] & (columns < n)[None, :],
            other=0,
        )
        # fp32 stays fp32: torch's own default, too, is not to round to tf32.
        total = tl.dot(left, right, total, input_precision="ieee")
    target = o + rows[:, None] * o_m + columns[None, :] * o_n
    tl.store(target, total.to(o.dtype.element_ty), mask=(rows < m)[:, None] & (columns < n)[None, :])


NUMBERS = tuple(
    f"{name}{i}" for i in (0, 1) for name in ("m", "n", "k", "a_m", "a_k", "b_k", "b_n", "o_m", "o_n")
)


@triton.jit(do_not_specialize=NUMBERS)
def dual_gemm_kernel(
    a0, b0, o0, a1, b1, o1,
    m0: tl.int32, n0: tl.int32, k0: tl.int32, a_m0: tl.int64, a_k0: tl.int64, b_k0: tl.int64, b_n0: tl.int64,
    o_m0: tl.int64, o_n0: tl.int64,
    m1: tl.int32, n1: tl.int32, k1: tl.int32, a_m1: tl.int64, a_k1: tl.int64, b_k1: tl.int64, b_n1: tl.int64,
    o_m1: tl.int64, o_n1: tl.int64,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One output tile a program; the tiles of the second product follow those of the first."""
    tile = tl.program_id(0)
    first = tl.cdiv(m0, BLOCK_M) * tl.cdiv(n0, BLOCK_N)
    if tile < first:
        one_tile(
            a0, b0, o0, tile, m0, n0, k0, a_m0, a_k0, b_k0, b_n0, o_m0, o_n0, BLOCK_M, BLOCK_N, BLOCK_K
        )  # fmt: skip
    else:
        one_tile(
            a1, b1, o1, tile - first, m1, n1, k1, a_m1, a_k1, b_k1, b_n1, o_m1, o_n1, BLOCK_M, BLOCK_N,
            BLOCK_K
        )  # fmt: skip


DUAL = Kernel(dual_gemm_kernel)


def dual_gemm(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, o0: Tensor, o1: Tensor, trans_a: bool, trans_b: bool
) -> None:
    """See ``glm_pto_kernels.wallx.asym_dual_gmm_separated``."""
    device = a0.get_device()
    key = (
        device, a0.dtype, trans_a, trans_b,
        a0.data_ptr(), a1.data_ptr(), b0.data_ptr(), b1.data_ptr(), o0.data_ptr(), o1.data_ptr(),
        a0.shape, a1.shape, b0.shape, b1.shape,
        a0.stride(), a1.stride(), b0.stride(), b1.stride(), o0.stride(), o1.stride(),
    )  # fmt: skip
    launch = LAUNCHES.get(key)
    if launch is not None and torch._C._cuda_getDevice() == device:
        return again(launch, device)
    products = [
        (a.t() if trans_a else a, b.t() if trans_b else b, o) for a, b, o in ((a0, b0, o0), (a1, b1, o1))
    ]
    if not fits_tma(products):
        return dual_gemm_pointers(products)
    wave = one_wave(products)
    launch = dual_gemm_tma(products) if wave is None else dual_gemm_wave(products, wave)
    if launch is not None:
        if len(LAUNCHES) >= MOST:
            LAUNCHES.clear()
        LAUNCHES[key] = launch
    return None


def one_wave(products: Sequence[Product]) -> Wave | None:
    """How one round of large tiles does for both products, if it does and inputs are stored row by row."""
    (a0, _, o0), (_, _, o1) = products
    device = o0.get_device()
    if not (row_major(a0) and capable(device)):
        return None
    return wave_of(*o0.shape, *o1.shape, multiprocessors(device))


# A launch depends on nothing but what is in its key; training meets the same addresses again and again.
LAUNCHES: dict[tuple[Any, ...], Launch] = {}
MOST = 4096


def dual_gemm_pointers(products: Sequence[Product]) -> None:
    tensors: list[Tensor] = []
    numbers: list[int] = []
    tiles = 0
    for a, b, o in products:
        m, n = o.shape
        tensors += (a, b, o)
        numbers += (m, n, a.shape[1], *a.stride(), *b.stride(), *o.stride())
        tiles += -(-m // SHAPE["BLOCK_M"]) * -(-n // SHAPE["BLOCK_N"])
    if tiles == 0:
        return
    device = tensors[0].get_device()
    key = (device, tensors[0].dtype)
    launch = DUAL.variants.get(key)
    if launch is None:
        launch = DUAL.variant(key, device, SHAPE, num_warps=4, num_stages=3)
    launch(tiles, tensors, numbers)
