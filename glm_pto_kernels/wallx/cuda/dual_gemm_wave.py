"""The dual GEMM where one round of large tiles does for both products, in CUDA C++: dual_gemm_wave.cu.

Triton's tiles are powers of two, so 448 rows leave an eighth of the products unused, or a second round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from glm_pto_kernels.wallx.cuda.driver import Function, TensorMap, compiled, nvrtc
from glm_pto_kernels.wallx.relaunch import Launch, again

Product = tuple[Tensor, Tensor, Tensor]
KIND = {torch.bfloat16: "bf16", torch.float16: "f16"}
WIDE, DEPTH, STAGES, THREADS = 192, 64, 4, 384  # as in dual_gemm_wave.cu
ROW_STEP = 32  # rows of a tile: each number is a kernel of its own
LEAST_ROWS, MOST_ROWS = 96, 256  # with fewer rows loads set the pace, and other tilings load less
FULL = 0.75  # of the multiprocessors, or others are faster
W_ROWS = 64  # rows of a box of weights
EXTRA_BYTES = 1024 + 2 * 8 * STAGES  # to align what lies in shared memory, and barriers


@dataclass(frozen=True)
class Wave:
    """Of both products: rows of a tile, tiles one below the other, all tiles."""

    rows: tuple[int, int]
    high: tuple[int, int]
    tiles: tuple[int, int]


def wave_of(m0: int, n0: int, m1: int, n1: int, programs: int) -> Wave | None:
    """The smallest tiles that fit one round of ``programs``, or None where other tilings are faster."""
    most = max(m0, m1)
    for parts in range(-(-most // LEAST_ROWS), 0, -1):
        rows = even_rows(most, parts)
        high = (-(-m0 // rows), -(-m1 // rows))
        tiles = (high[0] * -(-n0 // WIDE), high[1] * -(-n1 // WIDE))
        if rows < LEAST_ROWS or sum(tiles) > programs:
            continue
        if rows > MOST_ROWS or sum(tiles) < FULL * programs:
            return None
        return Wave((even_rows(m0, high[0]), even_rows(m1, high[1])), high, tiles)
    return None


def even_rows(m: int, parts: int) -> int:
    """Rows of a tile where so many tiles share ``m`` rows evenly."""
    return -(-m // (parts * ROW_STEP)) * ROW_STEP


@cache
def capable(device: int) -> bool:
    """Whether the kernel can be compiled here and runs there: Hopper's instructions are Hopper's alone."""
    return torch.cuda.get_device_capability(device) == (9, 0) and nvrtc() is not None


def source(rows: tuple[int, int], trans_b: bool, kind: str) -> str:
    """The kernel's text with its constants, and with the multiplications, whose operands the rows number."""
    constants = {"ROWS0": rows[0], "ROWS1": rows[1], "TRANS_B": int(trans_b), "KIND": f'"{kind}"'}
    head = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    before, declared, kernel = Path(__file__).with_suffix(".cu").read_text().partition(MULTIPLY)
    defined = "".join(multiplication(r, trans_b, kind) for r in sorted(set(rows)))
    return head + before + declared + defined + kernel


MULTIPLY = "template <int ROWS> __device__ void multiply(float *total, u64 w, u64 x);\n"


def multiplication(rows: int, trans_b: bool, kind: str) -> str:
    count = rows // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(total[{i}])' for i in range(count))
    return (
        f"template <> __device__ inline void multiply<{rows}>(float *total, u64 w, u64 x) {{\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.{kind}.{kind} '
        f'{{{registers}}}, %{count}, %{count + 1}, 1, 1, 1, {int(not trans_b)}, 0;"\n'
        f'        : {operands} : "l"(w), "l"(x));\n}}\n'
    )


@cache
def function(device: int, rows: tuple[int, int], trans_b: bool, kind: str) -> Function:
    binary = compiled(source(rows, trans_b, kind), "sm_90a")
    shared = STAGES * (WIDE + max(rows)) * DEPTH * 2 + EXTRA_BYTES
    return Function(binary, "dual_gemm_wave", device, THREADS, shared)


def dual_gemm_wave(products: Sequence[Product], wave: Wave) -> Launch:
    """Both products in one launch; returns what ``again`` needs to launch the same again."""
    (a0, b0, o0), (a1, _, _) = products
    trans_b = b0.stride(1) != 1
    device = o0.get_device()
    with torch.cuda.device(device):
        maps = []
        for (a, b, o), rows in zip(products, wave.rows, strict=True):
            maps += [TensorMap(a, rows), TensorMap(b.t() if trans_b else b, W_ROWS), TensorMap(o, rows)]
        steps = [-(-a.shape[1] // DEPTH) for a in (a0, a1)]
        numbers = (wave.tiles[0], wave.high[0], steps[0], wave.high[1], steps[1])
        launcher = function(device, wave.rows, trans_b, KIND[a0.dtype]).bound(maps, numbers)
        launch = (launcher, (), sum(wave.tiles))
        again(launch, device)
    return launch
