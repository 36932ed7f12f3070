"""Arguments of the wrong kind are named, whatever they are."""

from __future__ import annotations

import numpy
import pytest
import torch

from glm_pto_kernels import wallx


def routed(place, tokens=3, top_k=2):
    x = torch.randn(tokens, 4, device=place.device)
    ids = torch.arange(tokens * top_k, device=place.device).view(tokens, top_k)
    y, row_map, _ = wallx.permute(x, ids, 0, None, ids.numel())
    return x, y, row_map


@pytest.mark.parametrize("nothing", [None, [], (), torch.empty(0)], ids=["none", "list", "tuple", "tensor"])
def test_no_workspace(place, nothing):
    x, ids = torch.randn(3, 4, device=place.device), torch.tensor([[2], [0], [1]], device=place.device)
    permuted, row_map, _ = wallx.permute(x, ids, 0, nothing, 3)
    assert torch.equal(permuted, x[[1, 2, 0]]) and row_map.tolist() == [2, 0, 1]


@pytest.mark.parametrize("wrong", [3, "room", [3], [None], (torch.empty(1), 2), {}])
def test_a_workspace_that_is_no_tensors(place, wrong):
    x, ids = torch.randn(3, 4, device=place.device), torch.tensor([[2], [0], [1]], device=place.device)
    with pytest.raises(TypeError, match=r"^permute: workspace must be tensors or None, found"):
        wallx.permute(x, ids, 0, wrong, 3)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (6,), (3, 2, 1)])
def test_prob_of_another_rank(place, shape):
    x, y, row_map = routed(place)
    prob = torch.ones(shape, device=place.device)
    with pytest.raises(ValueError, match=r"^unpermute_bwd: prob must be \[T, K\] with T = 3, found \["):
        wallx.unpermute_bwd(x, y, row_map, prob)
    with pytest.raises(ValueError, match=r"^unpermute: prob must be \[T, K\] = \[3, 2\], found \["):
        wallx.unpermute(y, row_map, prob, 3, 2)


@pytest.mark.parametrize("shape", [(0,), (0, 0), (0, 2), (3, 0), (0, 1, 1)])
def test_an_empty_prob_is_none(place, shape):
    x, y, row_map = routed(place, top_k=1)
    empty = torch.empty(shape, device=place.device)
    assert torch.equal(wallx.unpermute(y, row_map, empty, 3, 1), x)
    found, exact = (wallx.unpermute_bwd(x, y, row_map, prob) for prob in (empty, None))
    assert all(map(torch.equal, found, exact))
    x, y, row_map = routed(place)
    assert torch.equal(wallx.unpermute(y, row_map, empty, 3, 2), wallx.unpermute(y, row_map, None, 3, 2))
    with pytest.raises(ValueError, match=r"row_id_map must be \[K\*T\] = \[1\*3\], found \[6\]"):
        wallx.unpermute_bwd(x, y, row_map, empty)


@pytest.mark.parametrize("shape", [(), (4,), (1, 3, 4)])
def test_rows_of_another_rank(place, shape):
    _, y, row_map = routed(place)
    x = torch.ones(shape, device=place.device)
    for call in (
        lambda: wallx.unpermute_bwd(x, y, row_map, torch.ones(3, 2, device=place.device)),
        lambda: wallx.unpermute_bwd(x, y, row_map, None),
        lambda: wallx.unpermute(x, row_map, None, 3, 2),
        lambda: wallx.permute_with_map(x, row_map, 0, 2),
    ):
        with pytest.raises(ValueError, match=r"expected rows \[N, H\], found"):
            call()


@pytest.mark.parametrize("sections", [8, None, 8.0, True, torch.tensor(8), [], [8], [4, 4]], ids=repr)
def test_sections_that_are_not_three(place, sections):
    x = torch.zeros(1, 1, 2, 8, device=place.device)
    tables = [torch.zeros(3, 1, 2, 8, device=place.device) for _ in range(2)]
    outputs = [torch.empty_like(x) for _ in range(2)]
    for name, call in {
        "rope": lambda: wallx.rope(x, x, *tables, *outputs, sections),
        "rope_bwd": lambda: wallx.rope_bwd(x, x, x, x, *tables, *outputs, sections),
        "apply_rope": lambda: wallx.apply_rope(x, x, *tables, sections),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: the sections are three band widths, .* found"):
            call()


@pytest.mark.parametrize("kind", [tuple, torch.tensor, numpy.array, iter])
def test_sections_of_any_kind(place, kind):
    x = torch.randn(1, 1, 2, 8, device=place.device)
    tables = [torch.randn(3, 1, 2, 8, device=place.device) for _ in range(2)]
    exact = wallx.apply_rope(x, x, *tables, [4, 2, 2])
    assert all(map(torch.equal, wallx.apply_rope(x, x, *tables, kind([4, 2, 2])), exact))
