"""What the element-wise comparison lets pass, and what it does not."""

from __future__ import annotations

import pytest
import torch

from tests.glm_pto_kernels.wallx.ulps import assert_within, independent, spacing


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (torch.bfloat16, 1.0, 2**-7),
        (torch.bfloat16, -1.99, 2**-7),
        (torch.bfloat16, 0.999, 2**-8),
        (torch.bfloat16, 0.0, 2**-133),
        (torch.float16, 2048.0, 2.0),
        (torch.float16, 1e-5, 2**-24),
        (torch.float32, 3.0, 2**-22),
    ],
)
def test_a_unit_is_the_distance_to_the_next_number(dtype, value, expected):
    assert spacing(torch.tensor([value], dtype=torch.float64), dtype).item() == expected
    number = torch.tensor(abs(value)).to(dtype)
    after = torch.nextafter(number, torch.tensor(torch.inf).to(dtype))
    if number.item() == abs(value):
        assert (after.double() - number.double()).item() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values_rounded_once_are_half_a_unit_away_at_most(dtype):
    torch.manual_seed(0)
    exact = (torch.randn(10000) * torch.logspace(-6, 4, 10000)).double()  # fp16 is made by way of fp32
    assert_within(exact.to(dtype), exact, ulps=0.5 if dtype != torch.float32 else 0)
    with pytest.raises(AssertionError, match=r"further from the exact value than 0\.45"):
        assert_within((exact * (1 + 2**-12)).to(dtype), exact * (1 + 2**-12), ulps=0.45)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_element_in_a_hundred_that_is_3_units_off_fails(dtype):
    exact = torch.randn(10000, dtype=torch.float64)
    result = exact.to(dtype)
    result[::100] = (exact[::100] + 3 * spacing(exact, dtype)[::100]).to(dtype)
    for ulps in (1, 2):
        with pytest.raises(AssertionError, match=r"^100 of 10000 elements"):
            assert_within(result, exact, ulps=ulps)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0])
def test_one_wrong_element_fails(wrong):
    exact = torch.randn(1000, dtype=torch.float64)
    result = exact.to(torch.bfloat16)
    result[7] = wrong
    with pytest.raises(AssertionError, match=f"the worst, 7 of the flattened result, is {wrong}"):
        assert_within(result, exact, exact.abs(), 8)


def test_another_shape_fails():
    with pytest.raises(AssertionError, match=r"found \[3, 1\], expected \[3\]"):
        assert_within(torch.zeros(3, 1), torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("length", [2, 8, 64, 2048])
def test_products_rounded_before_the_sum_fail(length):
    """bf16 values with fp32 weights for a few terms, bf16 products beyond."""
    torch.manual_seed(0)
    left, right = (torch.randn(4000, length).to(torch.bfloat16) for _ in range(2))
    weights = torch.rand(4000, length) if length <= 8 else right.float()
    products = left.double() * weights.double()
    exact, terms, roundings = products.sum(1), products.abs().sum(1), independent(length)
    kept = (left.float() * weights).sum(1)
    assert_within(kept.to(torch.bfloat16), exact, terms, roundings)
    rounded = (left.float() * weights).to(torch.bfloat16).float().sum(1)
    with pytest.raises(AssertionError, match="elements are further"):
        assert_within(rounded.to(torch.bfloat16), exact, terms, roundings)


@pytest.mark.parametrize("length", [8, 64, 2048])
def test_sums_kept_in_bf16_fail(length):
    torch.manual_seed(0)
    values = torch.randn(1000, length).to(torch.bfloat16)
    exact, terms = values.double().sum(1), values.double().abs().sum(1)
    total = torch.zeros(1000, dtype=torch.bfloat16)
    for column in values.t():
        total += column
    with pytest.raises(AssertionError, match="elements are further"):
        assert_within(total, exact, terms, independent(length))


def test_cancellation_is_allowed_for_by_its_terms_only():
    """1000 and -1000 may lose what fp32 loses of them; the same sum of small terms may not."""
    exact = torch.tensor([2.0**-20], dtype=torch.float64)
    result = torch.tensor([0.0], dtype=torch.bfloat16)
    assert_within(result, exact, torch.tensor([2000.0], dtype=torch.float64), 2)
    with pytest.raises(AssertionError):
        assert_within(result, exact, torch.tensor([2.0], dtype=torch.float64), 2)


def test_of_few_terms_each_may_be_rounded():
    assert [independent(length) for length in (1, 8, 16, 64, 4096)] == [1, 8, 16, 32, 256]
