"""Copies of matrices whose rows are not aligned: see glm_pto_kernels/wallx/triton/aligned.py."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch

TYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture
def kernels(place):
    if place.name == "torch":
        pytest.skip("the reference copies nothing")
    return importlib.import_module("glm_pto_kernels.wallx.triton.aligned")


def matrices(place, dtype):
    """Of any strides, and of sizes around those of the kernel's tiles."""
    wide = torch.randn(40, 1100, device=place.device).to(dtype)
    return [wide[1:8, 1:1026], wide[::3, ::5][:, :9], wide.t()[:5, :6], wide[:1, 3:4]]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_copies_are_padded_with_zeros_and_come_back(place, kernels, nan_filled, dtype, count):
    sources = matrices(place, dtype)[-count:]
    copies = [(x, kernels.empty_aligned(x).fill_(float("nan"))) for x in sources]
    kernels.copy_all(copies, into_aligned=True)
    for x, copy in copies:
        assert copy.shape[1] % kernels.step_of(x) == 0
        assert torch.equal(copy[:, : x.shape[1]], x)
        assert not copy[:, x.shape[1] :].any()
    # Back into memory of any strides: what lies between stays as it was.
    wide = torch.full((count, 50, 1100), 7.0, device=place.device).to(dtype)
    targets = [wide[i, :, 1:].t()[: x.shape[1], : x.shape[0]].t() for i, x in enumerate(sources)]
    kernels.copy_all(
        [(copy, target) for (_, copy), target in zip(copies, targets, strict=True)], into_aligned=False
    )
    for i, (x, target) in enumerate(zip(sources, targets, strict=True)):
        assert torch.equal(target, x)
        target.fill_(7.0)
        assert bool((wide[i] == 7.0).all())


def test_what_fits_is_not_copied(place, kernels):
    def matrix(rows, columns):
        return torch.zeros(rows, columns, dtype=torch.bfloat16, device=place.device)

    product = matrix(5, 16), matrix(16, 24), matrix(5, 24)
    by_columns = matrix(16, 8).t(), matrix(24, 16).t(), matrix(8, 24)
    empty = matrix(0, 7), matrix(24, 7).t(), matrix(0, 24)
    for products in ([product, product], [by_columns, by_columns], [product, empty], [by_columns, empty]):
        assert kernels.fits(products)
    odd = matrix(5, 16)[:, :15], matrix(16, 24)[:15], matrix(5, 24)
    narrow = matrix(5, 16), matrix(16, 24)[:, :23], matrix(5, 24)[:, :23]
    assert not kernels.fits([odd, product])
    assert not kernels.fits([product, narrow])
    turned = matrix(5, 16), matrix(16, 24), matrix(24, 8).t()[:5]
    for products in ([product, by_columns], [product, turned], [turned, product]):
        assert not kernels.fits(products)
        found, after = kernels.aligned(products)
        assert kernels.fits(found)
        assert [target for _, target in after] == [o for _, _, o in products if o.stride(1) != 1]
        pairs = zip(itertools.chain(*products), itertools.chain(*found), strict=True)
        kept = [old is new for old, new in pairs]
        assert kept.count(False) == (2 if products[1] is by_columns else 1)
