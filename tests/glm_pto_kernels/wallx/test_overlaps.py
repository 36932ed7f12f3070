"""Outputs that share memory with what is read or written beside them, against lists of all elements."""

from __future__ import annotations

import random
import sys

import pytest
import torch

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx.overlaps import overlap

SECTIONS = [4, 2, 2]


def view(chance: random.Random) -> tuple[list[int], list[int], int]:
    rank = chance.randint(1, 4)
    strides = [chance.choice([0, 1, 2, 3, 5, 7, 8, 16, 20]) for _ in range(rank)]
    return [chance.choice([0, 1, 2, 2, 3, 3, 4, 4]) for _ in range(rank)], strides, chance.randint(0, 60)


def test_random_views_overlap_where_an_element_is_in_both():
    chance = random.Random(1)
    memory, places = torch.zeros(400), torch.arange(400)
    found = {True: 0, False: 0}
    for _ in range(2000):
        views = [view(chance), view(chance)]
        elements = [set(torch.as_strided(places, *one).flatten().tolist()) for one in views]
        shared = bool(elements[0] & elements[1])
        assert overlap(*(torch.as_strided(memory, *one) for one in views)) is shared, views
        found[shared] += 1
    assert min(found.values()) > 200


def test_a_part_of_an_element_is_enough():
    memory = torch.zeros(16, dtype=torch.uint8)
    wide = memory[:8].view(torch.float32)
    assert overlap(wide, memory[7:9]) and not overlap(wide, memory[8:])


def test_looking_stops_where_a_layout_has_too_many_ways():
    memory = torch.zeros(40_000)  # only even places here and odd ones there
    strange = torch.as_strided(memory, (40, 39, 38, 37), (2 * 97, 2 * 89, 2 * 83, 2 * 79))
    assert not overlap(strange, torch.as_strided(memory, (40, 39, 38), (2 * 73, 2 * 71, 2 * 67), 1))


def rotary(place):
    """q and k side by side in one product; all tensors have one shape."""
    both = torch.randn(3, 5, 6, 8, device=place.device)
    q, k = both[:, :, :3].transpose(1, 2), both[:, :, 3:].transpose(1, 2)
    cos, sin = (torch.randn(3, 3, 5, 8, device=place.device) for _ in range(2))
    return q, k, cos, sin


def between(x):
    """A view of ``x``'s shape that shares the elements of all heads but one."""
    return torch.as_strided(x, x.shape, x.stride(), x.storage_offset() + x.stride(1))


OUTPUTS = {
    "each_other": lambda q, k, cos, sin: (x := torch.empty_like(q), x),
    "views_of_each_other": lambda q, k, cos, sin: (x := torch.empty_like(q), x.view_as(x)),
    "q_to_k": lambda q, k, cos, sin: (k, torch.empty_like(k)),
    "exchanged": lambda q, k, cos, sin: (k, q),
    "k_to_q": lambda q, k, cos, sin: (torch.empty_like(q), q.view_as(q)),
    "to_cos": lambda q, k, cos, sin: (cos, torch.empty_like(k)),
    "to_sin": lambda q, k, cos, sin: (torch.empty_like(q), sin.view_as(sin)),
    "not_just_in_place": lambda q, k, cos, sin: (between(q), torch.empty_like(k)),
}


@pytest.mark.parametrize("outputs", OUTPUTS.values(), ids=OUTPUTS.keys())
@pytest.mark.parametrize("operator", ["rope", "rope_bwd"])
def test_rope_refuses_outputs_that_overlap(place, operator, outputs):
    q, k, cos, sin = rotary(place)
    shapes = (q, k) if operator == "rope_bwd" else ()
    with pytest.raises(ValueError, match=rf"^{operator}: \w+ shares memory with \w+, .* memory of its own"):
        getattr(wallx, operator)(q, k, *shapes, cos, sin, *outputs(q, k, cos, sin), SECTIONS)


def test_rope_refuses_one_tensor_for_q_and_k_in_place(place):
    q, _, cos, sin = rotary(place)
    with pytest.raises(ValueError, match="rope: q_out shares memory with k_out"):
        wallx.rope(q, q, cos, sin, q, q, SECTIONS)
    with pytest.raises(ValueError, match="rope: q_out shares memory with k,"):
        wallx.rope(q, q, cos, sin, q, torch.empty_like(q), SECTIONS)


IN_PLACE = {
    "both": lambda q, k: (q, k),
    "views": lambda q, k: (q.view_as(q), k.view_as(k)),
    "one": lambda q, k: (q, torch.empty_like(k)),
}


@pytest.mark.parametrize("outputs", IN_PLACE.values(), ids=IN_PLACE.keys())
def test_rope_writes_in_place_into_neighbours_of_one_product(place, outputs):
    q, k, cos, sin = rotary(place)
    exact = wallx.apply_rope(q.clone(), k.clone(), cos, sin, SECTIONS)
    given = outputs(q, k)
    wallx.rope(q, k, cos, sin, *given, SECTIONS)
    torch.testing.assert_close(given, exact)


def products(place):
    return [torch.randn(6, 6, device=place.device) for _ in range(4)]


GIVEN = {
    "each_other": lambda a0, a1, b0, b1: (x := torch.empty_like(a0), x),
    "views_of_each_other": lambda a0, a1, b0, b1: (x := torch.empty_like(a0), x.t()),
    "an_input": lambda a0, a1, b0, b1: (a0, torch.empty_like(a1)),
    "the_other_input": lambda a0, a1, b0, b1: (torch.empty_like(a0), a0.view_as(a0)),
    "a_weight": lambda a0, a1, b0, b1: (None, b1.t()),
}


@pytest.mark.parametrize("outputs", GIVEN.values(), ids=GIVEN.keys())
def test_the_dual_gemm_refuses_outputs_that_overlap(place, outputs, monkeypatch):
    monkeypatch.setattr(sys.modules["glm_pto_kernels.wallx.dual_gemm"], "APART", set())
    inputs = products(place)
    wallx.asym_dual_gmm_separated(*inputs)  # settles nothing: its outputs were made for it
    with pytest.raises(ValueError, match=r"^asym_dual_gmm: output_expert\d shares memory with \w+, which"):
        wallx.asym_dual_gmm_separated(*inputs, *outputs(*inputs))


def test_the_dual_gemm_always_sees_one_tensor_given_twice(place):
    inputs = products(place)
    apart = [torch.empty_like(inputs[0]) for _ in range(2)]
    wallx.asym_dual_gmm_separated(*inputs, *apart)
    for given in ((apart[0], apart[0]), (inputs[0], apart[1]), (apart[0], inputs[1])):
        with pytest.raises(ValueError, match="shares memory"):
            wallx.asym_dual_gmm_separated(*inputs, *given)


def test_the_dual_gemm_writes_into_neighbours(place):
    inputs = products(place)
    exact = [inputs[0] @ inputs[2], inputs[1] @ inputs[3]]
    rows, columns = torch.empty(12, 6, device=place.device), torch.empty(6, 12, device=place.device)
    for given in (rows.split(6), columns.split(6, dim=1), (columns[:, ::2], columns[:, 1::2])):
        wallx.asym_dual_gmm_separated(*inputs, *given)
        torch.testing.assert_close(list(given), exact)
