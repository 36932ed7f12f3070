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

from glm_pto_kernels.wallx.cuda.driver import PROMOTE_NONE, Function, TensorMap, bind, compiled, nvrtc
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
    """Rows of a tile; of both products tiles one below the other, and all tiles."""

    rows: int
    high: tuple[int, int]
    tiles: tuple[int, int]


def wave_of(m0: int, n0: int, m1: int, n1: int, programs: int) -> Wave | None:
    """The smallest tiles that fit one round of ``programs``, or None where other tilings are faster."""
    most = max(m0, m1)
    for parts in range(-(-most // LEAST_ROWS), 0, -1):
        rows = -(-most // (parts * ROW_STEP)) * ROW_STEP
        high = (-(-m0 // rows), -(-m1 // rows))
        tiles = (high[0] * -(-n0 // WIDE), high[1] * -(-n1 // WIDE))
        if rows < LEAST_ROWS or sum(tiles) > programs:
            continue
        return Wave(rows, high, tiles) if rows <= MOST_ROWS and sum(tiles) >= FULL * programs else None
    return None


@cache
def capable(device: int) -> bool:
    """Whether the kernel can be compiled here and runs there: Hopper's instructions are Hopper's alone."""
    return torch.cuda.get_device_capability(device) == (9, 0) and nvrtc() is not None


def source(rows: int, trans_b: bool, kind: str) -> str:
    """The kernel's text with its constants, and with the multiplication, whose operands ROWS numbers."""
    count = rows // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(total[{i}])' for i in range(count))
    multiply = (
        "__device__ inline void multiply(float *total, u64 w, u64 x) {\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.{kind}.{kind} '
        f'{{{registers}}}, %{count}, %{count + 1}, 1, 1, 1, {int(not trans_b)}, 0;"\n'
        f'        : {operands} : "l"(w), "l"(x));\n}}\n'
    )
    constants = {"ROWS": rows, "TRANS_B": int(trans_b), "KIND": f'"{kind}"'}
    head = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return head + Path(__file__).with_suffix(".cu").read_text() + multiply


@cache
def function(device: int, rows: int, trans_b: bool, kind: str) -> Function:
    binary = compiled(source(rows, trans_b, kind), "sm_90a")
    shared = STAGES * (WIDE + rows) * DEPTH * 2 + EXTRA_BYTES
    return Function(binary, "dual_gemm_wave", device, THREADS, shared)


def dual_gemm_wave(products: Sequence[Product], wave: Wave) -> Launch:
    """Both products in one launch; returns what ``again`` needs to launch the same again."""
    (a0, b0, o0), (a1, _, _) = products
    trans_b = b0.stride(1) != 1
    device = o0.get_device()
    with torch.cuda.device(device):
        bind(device)
        maps = []
        # An empty second product has no tiles and is not read: it is described as the first.
        for a, b, o in (products[0], products[bool(wave.tiles[1])]):
            weights = b.t() if trans_b else b
            weights_map = TensorMap(weights, W_ROWS, PROMOTE_NONE)
            maps += [TensorMap(a, wave.rows), weights_map, TensorMap(o, wave.rows // 2)]
        steps = [-(-a.shape[1] // DEPTH) for a in (a0, a1)]
        numbers = (wave.tiles[0], wave.high[0], steps[0], wave.high[1], steps[1])
        launcher = function(device, wave.rows, trans_b, KIND[a0.dtype]).bound(maps, numbers)
        launch = (launcher, (), sum(wave.tiles))
        again(launch, device)
    return launch
