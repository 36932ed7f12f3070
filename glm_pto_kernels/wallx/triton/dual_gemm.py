"""Two matrix products in one launch on Triton.

Matrices in bf16 and fp16 go through Hopper's tensor copy engine: in CUDA C++ where one round of tiles does
(``dual_gemm_wave``), else in Triton (``dual_gemm_tma``). On older GPUs, and in fp32, they go through pointers
(``dual_gemm_tiles``). Those whose rows are not dense, or do not begin and end at multiples of 16 bytes, are
copied first (``aligned``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.cuda.dual_gemm_wave import Product, Wave, capable, dual_gemm_wave, wave_of
from glm_pto_kernels.wallx.relaunch import Launch, again
from glm_pto_kernels.wallx.triton.aligned import aligned, copy_all, fits, is_filled, row_major
from glm_pto_kernels.wallx.triton.dual_gemm_tiles import dual_gemm_tiles
from glm_pto_kernels.wallx.triton.dual_gemm_tma import can_describe, dual_gemm_tma, multiprocessors

# A launch depends on nothing but what is in its key; training meets the same addresses again and again.
# Copied operands are padded, so their sizes do not tell those of the outputs.
LAUNCHES: dict[tuple[Any, ...], Launch] = {}
MOST = 4096


def dual_gemm(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, o0: Tensor, o1: Tensor, trans_a: bool, trans_b: bool
) -> None:
    """See ``glm_pto_kernels.wallx.asym_dual_gmm_separated``."""
    device = a0.get_device()
    key = (
        device, a0.dtype, trans_a, trans_b,
        a0.data_ptr(), a1.data_ptr(), b0.data_ptr(), b1.data_ptr(), o0.data_ptr(), o1.data_ptr(),
        a0.shape, a1.shape, b0.shape, b1.shape, o0.shape, o1.shape,
        a0.stride(), a1.stride(), b0.stride(), b1.stride(), o0.stride(), o1.stride(),
    )  # fmt: skip
    launch = LAUNCHES.get(key)
    if launch is not None and torch._C._cuda_getDevice() == device:
        return again(launch, device)
    products = [
        deep((a.t() if trans_a else a, b.t() if trans_b else b, o))
        for a, b, o in ((a0, b0, o0), (a1, b1, o1))
    ]
    products.sort(key=is_filled, reverse=True)
    if not is_filled(products[0]):
        return None
    if not fits(products):
        return dual_gemm_copied(products)
    if not can_describe(a0):
        return dual_gemm_tiles(products)
    wave = one_wave(products)
    launch = dual_gemm_tma(products) if wave is None else dual_gemm_wave(products, wave)
    if launch is not None and all(a.shape[1] for a, _, _ in products):
        if len(LAUNCHES) >= MOST:
            LAUNCHES.clear()
        LAUNCHES[key] = launch
    return None


def deep(product: Product) -> Product:
    """The product; one of depth 0 is zeros, which are written here and leave nothing to do."""
    a, b, o = product
    if o.numel() and a.shape[1] == 0:
        return a, b, o.zero_()[:0]
    return product


def dual_gemm_copied(products: Sequence[Product]) -> None:
    """Through copies that fit."""
    fitting, after = aligned(products)
    lefts, rights, results = zip(*fitting, strict=True)
    dual_gemm(*lefts, *rights, *results, trans_a=False, trans_b=False)
    copy_all(after, into_aligned=False)


def one_wave(products: Sequence[Product]) -> Wave | None:
    """How one round of large tiles does for both products, if it does and inputs are stored row by row."""
    (a0, _, o0), (_, _, o1) = products
    device = o0.get_device()
    if not (row_major(a0) and capable(device)):
        return None
    return wave_of(*o0.shape, *o1.shape, multiprocessors(device))
