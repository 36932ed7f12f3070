"""Is every element of a result as near to the exact value as its type and sums in fp32 allow?

A relative tolerance hides elements that are off by several units in the last place, an absolute one hides
those that are small. Here an element may differ by so many units in the last place of its own type at the
exact value's magnitude; and, where fp32 sums may cancel, by what their roundings can amount to.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP32_ROUNDING = 2.0**-24  # the most by which one rounding to fp32 changes a value, relative to it


def spacing(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64, one unit in the last place of ``dtype`` at each value's magnitude (subnormal numbers too)."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.smallest_normal))
    return torch.exp2(exponent.double() - 1) * info.eps


def assert_within(
    result: Tensor, exact: Tensor, terms: Tensor | None = None, roundings: float = 0, ulps: float = 1
) -> None:
    """Raise AssertionError where an element is further from the exact value than that.

    Args:
        result: of a floating type with at most 24 bits.
        exact: fp64, the value worked out from the same inputs.
        terms: fp64, for each element the sum of its terms' absolute values.
        roundings: how many roundings to fp32 a term may go through before the result is made.
        ulps: units in the last place of ``result``'s type. 1 does for a value rounded once, even for one
            that is cut off, as Triton's interpreter does with bf16; half of it is what rounding takes.
    """
    assert result.shape == exact.shape, f"found {list(result.shape)}, expected {list(exact.shape)}"
    assert exact.dtype == torch.float64
    if result.numel() == 0:
        return
    allowed = spacing(exact, result.dtype) * ulps
    if terms is not None:
        allowed += terms * (roundings * FP32_ROUNDING)
    error = (result.double() - exact).abs()
    wrong = ~(error <= allowed)  # a NaN is never within
    if not wrong.any():
        return
    excess = torch.where(wrong, error / allowed, 0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    worst = int(excess.argmax())
    raise AssertionError(
        f"{int(wrong.sum())} of {wrong.numel()} elements are further from the exact value than {ulps} "
        f"units in the last place and {roundings} roundings to fp32; the worst, {worst} of the flattened "
        f"result, is {result.flatten()[worst].item()} where the exact value is "
        f"{exact.flatten()[worst].item()}: {excess.flatten()[worst].item():.3g} times what is allowed"
    )


def independent(length: int) -> float:
    """How many roundings a sum of so many terms may amount to.

    At most one a term. Roundings go up as often as down, so that they add up like the square root of their
    number; four times that is allowed, which a sum of products rounded to bf16 exceeds at any length.
    """
    return min(length, 4 * length**0.5)
