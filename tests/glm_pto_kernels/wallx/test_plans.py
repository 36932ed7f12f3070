"""Plans: which later calls go straight to a launch, and the memory that they write into."""

from __future__ import annotations

import pytest
import torch

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import plans

X, IDS = torch.ones(6, 8), torch.arange(6)


@pytest.fixture(autouse=True)
def no_plans():
    plans.PLANS.clear()
    yield
    plans.PLANS.clear()


def test_a_call_with_equal_integers_and_such_tensors_has_the_plan():
    plans.keep(("permute", 6), (X, IDS), "plan")
    assert plans.planned(("permute", 6), torch.zeros(6, 8), IDS.clone()) == "plan"
    assert plans.planned(("permute", 7), X, IDS) is None


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(6, 9),
        torch.ones(5, 8),
        torch.ones(48),
        torch.ones(8, 6).t(),
        torch.ones(6, 16)[:, ::2],
        torch.ones(6, 8, dtype=torch.half),
        torch.ones(6, 8, device="meta"),
        torch.ones(6, 8, requires_grad=True),
        torch.nn.Parameter(torch.ones(6, 8)),
        torch.ones(6, 8).to_sparse(),
        torch.ones(6, 8).as_subclass(type("Subclass", (torch.Tensor,), {})),
        None,
        [[1.0] * 8] * 6,
    ],
    ids=lambda x: type(x).__name__ + str(list(getattr(x, "shape", ""))),
)
def test_a_call_that_differs_in_anything_has_none(other):
    plans.keep("op", (X, IDS), "plan")
    assert plans.planned("op", other, IDS) is None
    assert plans.planned("op", IDS, other) is None


def test_calls_under_inference_mode_are_others():
    """Their results must be inference tensors, and others must not be."""
    plans.keep("op", (X, IDS), "plan")
    with torch.inference_mode():
        assert plans.planned("op", X, IDS) is None


def test_a_parameter_has_a_plan_where_no_gradient_is_asked_for():
    weight = torch.nn.Parameter(torch.ones(6, 8))
    with torch.no_grad():
        assert plans.direct(weight)
        plans.keep("op", (weight,), "plan")
        assert plans.planned("op", weight) == "plan"
    assert plans.planned("op", weight) is None


def test_a_gradient_is_recorded_after_the_same_call_without(place):
    if place.name == "torch":
        pytest.skip("the reference makes no plans")
    x = torch.randn(6, 8, device=place.device, requires_grad=True)
    rows = torch.arange(6, dtype=torch.int32, device=place.device)
    for _ in range(2):
        with torch.no_grad():
            assert not wallx.unpermute(x, rows, None, 6, 1).requires_grad
        assert wallx.unpermute(x, rows, None, 6, 1).requires_grad


def test_the_last_few_plans_of_equal_integers_are_kept():
    layouts = [torch.ones(1, 48), torch.ones(2, 24), torch.ones(3, 16), torch.ones(4, 12), torch.ones(6, 8)]
    for x in layouts:
        plans.keep("op", (x,), x.shape)
    assert [plans.planned("op", x) for x in layouts] == [None, *(x.shape for x in layouts[1:])]


def test_a_tensor_given_twice_makes_no_plan():
    plans.keep("op", (X, X), "plan")
    assert plans.PLANS == {}


def test_rope_has_plans_in_place_and_not(place):
    if place.name == "torch":
        pytest.skip("the reference makes no plans")
    q, k = (torch.randn(1, 2, 3, 8, device=place.device) for _ in range(2))
    cos, sin = (torch.randn(3, 1, 3, 8, device=place.device) for _ in range(2))
    there = torch.empty_like(q), torch.empty_like(k)
    for outputs, count in (((q, k), 1), (there, 2), ((q, k), 2), (there, 2), ((q, there[1]), 2)):
        expected = wallx.apply_rope(q, k, cos, sin, [2, 3, 3])
        wallx.rope(q, k, cos, sin, *outputs, [2, 3, 3])
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
        assert len(plans.PLANS) == count


def test_plans_are_bounded(monkeypatch):
    monkeypatch.setattr(plans, "MOST_PLANS", 3)
    for number in range(4):
        plans.keep(number, (X,), number)
    assert [number for number, _ in plans.PLANS] == [3]


def test_no_plan_is_looked_up_while_compiling():
    plans.keep("op", (X,), "plan")

    def found(x):
        return x + (0 if plans.planned("op", x) is None else 1)

    assert torch.equal(torch.compile(found, backend="eager", fullgraph=True)(X), X)


@pytest.mark.parametrize("shape", [(3, 4), (5, 4), (7,), (0, 4), (3, 0), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("layout", ["dense", "transposed", "cut", "gradient"])
def test_new_rows_are_dense_whatever_they_are_modelled_on(place, shape, layout):
    if place.name == "torch":
        pytest.skip("the reference allocates as torch does")
    launch = pytest.importorskip("glm_pto_kernels.wallx.triton.launch")
    x = {
        "dense": torch.zeros(3, 4, dtype=torch.half, device=place.device),
        "transposed": torch.zeros(4, 3, dtype=torch.half, device=place.device).t(),
        "cut": torch.zeros(3, 9, dtype=torch.half, device=place.device)[:, 1:5],
        "gradient": torch.nn.Parameter(torch.zeros(3, 4, dtype=torch.half, device=place.device)),
    }[layout]
    for dtype in (None, torch.int32):
        out = launch.new_rows(x, *shape, dtype=dtype)()
        assert out.shape == shape
        assert out.stride() == torch.empty(shape).stride()
        assert out.dtype == dtype or (dtype is None and out.dtype == torch.half)
        assert out.device == x.device
        assert not out.requires_grad
