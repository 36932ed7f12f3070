"""The dual GEMM through tensor descriptors: persistent programs, each walking over tiles of both products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.backends import interpreting

ALIGNMENT = 16


@triton.jit
def tile_place(tile, high, wide, GROUP: tl.constexpr):
    group = tile // (GROUP * wide)
    size = tl.minimum(high - group * GROUP, GROUP)
    inside = tile % (GROUP * wide)
    return group * GROUP + inside % size, inside // size


@triton.jit
def walk(
    a, b, o, m, n, k, start,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """All tiles of one product that belong to this program."""
    high, wide = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for tile in tl.range(start, high * wide, tl.num_programs(0), flatten=FLATTEN):
        row, column = tile_place(tile, high, wide, GROUP)
        row, column = row * BLOCK_M, column * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for at in range(0, k, BLOCK_K):
            left = a.load([at, row]).T if TRANS_A else a.load([row, at])
            right = b.load([column, at]).T if TRANS_B else b.load([at, column])
            total = tl.dot(left, right, total)
        if PARTS == 1:
            o.store([row, column], total.to(o.dtype))
        else:
            # Halves need less shared memory for the store, which leaves room for one more stage.
            halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            first, second = tl.split(halves)
            o.store([row, column], first.to(o.dtype))
            o.store([row, column + BLOCK_N // 2], second.to(o.dtype))


@triton.jit(do_not_specialize=["m0", "n0", "k0", "m1", "n1", "k1"])
def dual_gemm_tma_kernel(
    a0, b0, o0, a1, b1, o1,
    m0: tl.int32, n0: tl.int32, k0: tl.int32, m1: tl.int32, n1: tl.int32, k1: tl.int32,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    pid = tl.program_id(0)
    tiles = tl.cdiv(m0, BLOCK_M) * tl.cdiv(n0, BLOCK_N)
    walk(a0, b0, o0, m0, n0, k0, pid, TRANS_A, TRANS_B, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, PARTS, FLATTEN)
    # The second product starts at the programs that the first leaves idle in its last round.
    start = (pid + programs - tiles % programs) % programs
    walk(a1, b1, o1, m1, n1, k1, start, TRANS_A, TRANS_B, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, PARTS, FLATTEN)


def fits_tma(products: Sequence[tuple[Tensor, Tensor, Tensor]]) -> bool:
    """Whether both products can be described to the copy engine, in one and the same layout."""
    a, _b, _ = products[0]
    if interpreting() or a.dtype not in (torch.bfloat16, torch.float16):
        return False
    if not hopper(a.device.index or 0):
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
def programs_of(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


CONFIG: dict[str, Any] = {
    "BLOCK_M": 128,
    "BLOCK_N": 256,
    "BLOCK_K": 64,
    "GROUP": 8,
    "PARTS": 2,
    "FLATTEN": True,
}
OPTIONS = {"num_warps": 8, "num_stages": 4}


def dual_gemm_tma(
    products: Sequence[tuple[Tensor, Tensor, Tensor]],
    config: dict[str, Any] | None = None,
    options: dict[str, int] | None = None,
) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    config = config or CONFIG
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    trans_a, trans_b = not row_major(products[0][0]), not row_major(products[0][1])
    descriptors: list[Any] = []
    numbers: list[int] = []
    for a, b, o in products:
        a, b = (a.t() if trans_a else a), (b.t() if trans_b else b)
        blocks = (
            (a, [block_k, block_m] if trans_a else [block_m, block_k]),
            (b, [block_n, block_k] if trans_b else [block_k, block_n]),
            (o, [block_m, block_n // config["PARTS"]]),
        )
        descriptors += [TensorDescriptor(t, list(t.shape), list(t.stride()), block) for t, block in blocks]
        numbers += (o.shape[0], o.shape[1], a.shape[0] if trans_a else a.shape[1])
    device = products[0][0].device
    with torch.cuda.device(device):
        dual_gemm_tma_kernel[(programs_of(device.index or 0),)](
            *descriptors, *numbers, trans_a, trans_b, **config, **(options or OPTIONS)
        )
