"""The on-chip buffers of an Ascend 910B core and whether a tile fits into them.

pypto answers a tile that is too large for L0 or UB with "Run pass failed", and takes one that is too large
for L1 without a word, only to run many times slower. So every tile is checked here first.
Sizes: pypto 0.2.0, ``lib/configs/A2A3.ini``, section AICoreSpec (Ascend 910B1).
"""

from dataclasses import dataclass

KIB = 1024
L0A = L0B = 64 * KIB
L0C = 128 * KIB
L1 = 512 * KIB
UB = 192 * KIB
BLOCK = 32  # bytes: the unit of every transfer
FRACTAL = 16  # rows and columns of one cube step
CUBE_CORES = 24
ACCUMULATOR = 4  # bytes: fp32 or int32 in L0C


@dataclass(frozen=True)
class CubeTile:
    """One tile of a product ``[m, k] x [k, n]``: K is cut for L0 and, for each operand, for L1."""

    m: int
    k_l0: int
    k_left: int
    k_right: int
    n: int
    item: int  # bytes of an input element

    def shapes(self) -> tuple[list[int], list[int], list[int]]:
        """The three arguments of ``pypto.set_cube_tile_shapes``."""
        return [self.m, self.m], [self.k_l0, self.k_left, self.k_right], [self.n, self.n]

    def l1_bytes(self) -> int:
        return (self.m * self.k_left + self.n * self.k_right) * self.item

    def refusal(self) -> str | None:
        """Why this tile cannot run, or None. Plain statements, so that torch.compile can trace it."""
        if not min(self.k_l0, self.k_left, self.k_right, self.n):
            return f"no tile of a product with M {self.m} and N {self.n} fits L0 and L1"
        if max(self.m, self.n) * self.k_l0 * self.item > L0A:
            return f"L0 holds {L0A} bytes an operand, tiles of {self.m} and {self.n} x {self.k_l0} need more"
        if self.m * self.n * ACCUMULATOR > L0C:
            return (
                f"L0C holds {L0C} bytes, a tile of {self.m} x {self.n} needs {self.m * self.n * ACCUMULATOR}"
            )
        if self.l1_bytes() > L1:
            return (
                f"L1 holds {L1} bytes, tiles of {self.m} x {self.k_left} and {self.n} x {self.k_right} "
                f"need {self.l1_bytes()}"
            )
        small, large = min(self.k_left, self.k_right), max(self.k_left, self.k_right)
        if small % self.k_l0 or large % small:
            return f"the K tiles {self.k_l0}, {small}, {large} do not divide one another"
        if self.k_l0 * self.item % BLOCK or self.n % FRACTAL:
            return f"a tile of K {self.k_l0} and N {self.n} is not made of whole {BLOCK}-byte blocks"
        return None


def vector_refusal(rows: int, columns: int, live: int, item: int = 4) -> str | None:
    """Why ``live`` arrays of one vector tile do not fit UB at a time, or None."""
    used = rows * columns * live * item
    if used > UB:
        return f"UB holds {UB} bytes, {live} arrays of {rows} x {columns} need {used}"
    if columns * item % BLOCK:
        return f"a row of {columns} elements is not made of whole {BLOCK}-byte blocks"
    return None


def divisor(number: int, limit: int, step: int = 1) -> int:
    """The largest divisor of ``number`` that is a multiple of ``step`` and at most ``limit``, or 0."""
    candidate = min(limit, number) // step * step
    while candidate > 0 and number % candidate:
        candidate -= step
    return max(candidate, 0)


def round_up(number: int, step: int) -> int:
    return -(-number // step) * step
