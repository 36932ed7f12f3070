"""The least time that the modelled chip's rates allow: bytes from global memory, and products on the cubes.

Rates: pypto 0.2.0, ``lib/configs/A2A3.ini`` (Ascend 910B1): 24 cubes at ``cube_freq`` 1850 MHz; each core
reads ``ddr_read_rate`` 32 bytes a cycle; one cube step is 16 x 16 x 16 of bf16 and 16 x 32 x 16 of int8
(DtypeMKN), taken as one a cycle. For fp32 that file gives no rate; a quarter of bf16's is assumed. Every
operand is counted once, which no schedule reaches when several cores need it, and starting tasks is not
counted at all.
"""

from dataclasses import dataclass

CORES = 24
HERTZ = 1.85e9
BYTES_PER_SECOND = CORES * HERTZ * 32
PRODUCTS_PER_SECOND = {
    "bf16": CORES * HERTZ * 16 * 16 * 16,
    "int8": CORES * HERTZ * 16 * 32 * 16,
    "fp32": CORES * HERTZ * 16 * 16 * 16 / 4,
}


@dataclass(frozen=True)
class Work:
    """Bytes that must cross global memory once, and multiply-adds in one dtype."""

    moved: float
    products: float
    dtype: str

    def least_us(self) -> float:
        memory = self.moved / BYTES_PER_SECOND
        compute = self.products / PRODUCTS_PER_SECOND[self.dtype]
        return max(memory, compute) * 1e6


def gate(tokens: int, hidden: int = 5120, experts: int = 160) -> Work:
    moved = 4 * (tokens * hidden + experts * hidden + tokens * experts)
    return Work(moved, tokens * hidden * experts, "fp32")


def select_experts(tokens: int, experts: int = 160, top_k: int = 8) -> Work:
    return Work(tokens * (4 * experts + 8 * top_k) + 2 * experts, 0, "fp32")


def paged_attention(tokens: int, length: int = 1024, heads: int = 12, kv_heads: int = 1) -> Work:
    """``tokens`` sequences of ``length`` cached tokens each."""
    moved = 2 * 128 * tokens * (2 * length * kv_heads + 2 * heads)
    return Work(moved, 2 * tokens * heads * length * 128, "bf16")


def attention_pre(tokens: int, hidden: int = 5120, heads: int = 12, kv_heads: int = 1) -> Work:
    total = 128 * (heads + 2 * kv_heads)
    moved = 2 * tokens * (3 * hidden + total) + hidden * total + 8 * hidden + 8 * total
    return Work(moved, tokens * hidden * total, "int8")


def shared_expert(tokens: int, hidden: int = 5120, intermediate: int = 192) -> Work:
    moved = 4 * tokens * hidden + 3 * hidden * intermediate + 2 * hidden + 4 * intermediate
    return Work(moved, 3 * tokens * hidden * intermediate, "int8")
