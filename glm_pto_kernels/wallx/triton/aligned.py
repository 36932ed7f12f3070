"""Copies of matrices whose rows are not 16-byte aligned, so that loads are wide, or the tensor copy engine's.

A copy costs what it moves; without it a product reads element by element. Its rows are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.cuda.dual_gemm_wave import Product
from glm_pto_kernels.wallx.triton.launch import ALIGNMENT, Kernel, new_rows

Copy = tuple[Tensor, Tensor]  # from, to
MOST = 4  # copies in one launch: the operands of two products
TILE = {"ROWS": 4, "COLUMNS": 1024}


@triton.jit
def copy_tile(
    source, target, tile, high, wide, source_row, source_column, target_row, target_column,
    STEP: tl.constexpr, INTO: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """INTO: rows of the target, else of the source, are so many STEPs apart, which lets the compiler use wide
    stores, or loads; and they are filled up with zeros.
    """
    across = tl.cdiv(wide, COLUMNS)
    rows = (tile // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tile % across * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    inside = (rows < high) & (columns < wide)
    padded = (rows < high) & (columns < (wide + STEP - 1) // STEP * STEP)
    if INTO:
        source += rows * source_row + columns * source_column
        target += rows * (target_row * STEP) + columns
        tl.store(target, tl.load(source, mask=inside, other=0), mask=padded)
    else:
        source += rows * (source_row * STEP) + columns
        target += rows * target_row + columns * target_column
        tl.store(target, tl.load(source, mask=padded, other=0), mask=inside)


STRIDES = ("source_row", "source_column", "target_row", "target_column")
NUMBERS = tuple(f"{name}{i}" for i in range(MOST) for name in ("end", "high", "wide", *STRIDES))


@triton.jit(do_not_specialize=NUMBERS)
def copies_kernel(
    source0, target0, source1, target1, source2, target2, source3, target3,
    end0: tl.int32, high0: tl.int32, wide0: tl.int32, source_row0: tl.int64, source_column0: tl.int64,
    target_row0: tl.int64, target_column0: tl.int64,
    end1: tl.int32, high1: tl.int32, wide1: tl.int32, source_row1: tl.int64, source_column1: tl.int64,
    target_row1: tl.int64, target_column1: tl.int64,
    end2: tl.int32, high2: tl.int32, wide2: tl.int32, source_row2: tl.int64, source_column2: tl.int64,
    target_row2: tl.int64, target_column2: tl.int64,
    end3: tl.int32, high3: tl.int32, wide3: tl.int32, source_row3: tl.int64, source_column3: tl.int64,
    target_row3: tl.int64, target_column3: tl.int64,
    STEP: tl.constexpr, INTO: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile a program; end: how many tiles this matrix and those before it have."""
    tile = tl.program_id(0)
    if tile < end0:
        copy_tile(
            source0, target0, tile, high0, wide0, source_row0, source_column0, target_row0, target_column0,
            STEP, INTO, ROWS, COLUMNS,
        )  # fmt: skip
    elif tile < end1:
        copy_tile(
            source1, target1, tile - end0, high1, wide1, source_row1, source_column1, target_row1,
            target_column1, STEP, INTO, ROWS, COLUMNS,
        )  # fmt: skip
    elif tile < end2:
        copy_tile(
            source2, target2, tile - end1, high2, wide2, source_row2, source_column2, target_row2,
            target_column2, STEP, INTO, ROWS, COLUMNS,
        )  # fmt: skip
    else:
        copy_tile(
            source3, target3, tile - end2, high3, wide3, source_row3, source_column3, target_row3,
            target_column3, STEP, INTO, ROWS, COLUMNS,
        )  # fmt: skip


COPIES = Kernel(copies_kernel)


def row_major(x: Tensor) -> bool:
    return x.stride(1) == 1


def is_aligned(x: Tensor) -> bool:
    """Whether rows are dense and begin and end at multiples of 16 bytes.

    They have to end there, too: an H200's copy engine wrote past the end of rows of 9 and 10 elements.
    """
    step = step_of(x)
    return (
        x.numel() > 0
        and x.stride(1) == 1
        and x.stride(0) % step == 0
        and x.stride(0) >= x.shape[1]
        and x.data_ptr() % ALIGNMENT == 0
        and x.shape[1] % step == 0
    )


def is_filled(product: Product) -> bool:
    """Whether there is anything to write, and then to read."""
    return product[2].numel() > 0


def fits(products: Sequence[Product]) -> bool:
    """Whether all operands, but for empty products, are aligned by rows or by columns, in one layout."""
    filled = list(filter(is_filled, products))
    layouts = {(row_major(a), row_major(b)) for a, b, _ in filled}
    return len(layouts) == 1 and all(
        is_aligned(o) and all(is_aligned(x if row_major(x) else x.t()) for x in (a, b)) for a, b, o in filled
    )


def aligned(products: Sequence[Product]) -> tuple[list[Product], list[Copy]]:
    """Products that fit, with padded copies in place of what does not, the empty ones last; and what to copy
    into their outputs after.
    """
    lefts, rights, outputs = zip(*filter(is_filled, products), strict=True)
    before: list[Copy] = []
    results = [o if is_aligned(o) else empty_aligned(o) for o in outputs]
    left, right = (readable(operands, before) for operands in (lefts, rights))
    copy_all(before, into_aligned=True)
    found = list(zip(left, right, results, strict=True))
    found += [product for product in products if not is_filled(product)]
    return found, [(result, o) for o, result in zip(outputs, results, strict=True) if result is not o]


def readable(operands: Sequence[Tensor], copies: list[Copy]) -> list[Tensor]:
    """Those of both products, by columns where both lie so, else by rows. What is to be copied for it goes
    to ``copies``.
    """
    turned = all(not row_major(x) and x.stride(0) == 1 for x in operands)
    found = []
    for operand in operands:
        x = operand.t() if turned else operand
        if not is_aligned(x):
            copies.append((x, empty_aligned(x)))
            x = copies[-1][1]
        found.append(x.t() if turned else x)
    return found


def step_of(x: Tensor) -> int:
    """Elements in ALIGNMENT bytes."""
    return ALIGNMENT // x.element_size()


def empty_aligned(x: Tensor) -> Tensor:
    """Memory for rows as those of a matrix, filled up to multiples of 16 bytes."""
    (high, wide), step = x.shape, step_of(x)
    return new_rows(x, high, -(-wide // step) * step)()


def copy_all(copies: Sequence[Copy], into_aligned: bool) -> None:
    """Up to MOST matrices of one type in one launch, into or else from memory that ``empty_aligned`` made."""
    if not copies:
        return
    step = step_of(copies[0][0])
    tensors: list[Tensor] = []
    numbers: list[int] = []
    end = 0
    for source, target in copies:
        high, wide = (source if into_aligned else target).shape
        end += -(-high // TILE["ROWS"]) * -(-wide // TILE["COLUMNS"])
        strides = [*source.stride(), *target.stride()]
        strides[2 if into_aligned else 0] //= step
        tensors += (source, target)
        numbers += (end, high, wide, *strides)
    # No program reaches those that are missing.
    missing = MOST - len(copies)
    tensors += tensors[:2] * missing
    numbers += numbers[-len(NUMBERS) // MOST :] * missing
    key = (tensors[0].get_device(), tensors[0].dtype, into_aligned)
    launch = COPIES.variants.get(key)
    if launch is None:
        launch = COPIES.variant(key, key[0], {"STEP": step, "INTO": into_aligned, **TILE}, num_warps=4)
    launch(end, tensors, numbers)
