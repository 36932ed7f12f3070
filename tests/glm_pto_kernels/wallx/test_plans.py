"""Plans: which later calls go straight to a launch, and the memory that they write into."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import plans, reference

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


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_repeated_call_may_find_its_rows_at_an_odd_address(place, top_k):
    """Plans look at shapes and types; where memory begins is for the launch to see."""
    rows = torch.randn(6 * top_k * 8 + 8, device=place.device).to(torch.bfloat16)
    row_map = torch.randperm(6 * top_k, device=place.device).int()
    prob = None if top_k == 1 else torch.rand(6 * top_k + 1, device=place.device)
    for begin in (0, 0, 1, 0, 8, 3):
        y = rows[begin : begin + 6 * top_k * 8].view(-1, 8)
        weights = None if prob is None else prob[begin % 2 :][:12].view(6, 2)
        expected = reference.unpermute(y, row_map, weights, 6, top_k)
        torch.testing.assert_close(wallx.unpermute(y, row_map, weights, 6, top_k), expected)


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
    assert list(plans.PLANS) == [3]


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


def test_a_launcher_is_found_with_all_that_it_needs(monkeypatch):
    """Another thread may call as soon as there is a launcher."""
    launch = pytest.importorskip("glm_pto_kernels.wallx.triton.launch")

    class Watched(launch.Variant):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if getattr(self, "launcher", None) is not None:
                assert self.fixed == ("stream", "function")

    class Function(launch.triton.JITFunction):
        def __init__(self):
            pass

        def __getitem__(self, grid):
            return lambda *arguments, **options: "compiled"

    class OnGpu:
        is_cuda = True

        def data_ptr(self):
            return 0

    monkeypatch.setattr(launch, "DIRECT", True)
    monkeypatch.setattr(launch, "direct_launch", lambda compiled: ("launcher", ("stream", "function")))
    variant = Watched(Function(), {}, -1, 1, 1, {})
    variant.dispatch(1, [OnGpu()], ())
    assert variant.launcher == "launcher"


def test_a_plan_that_was_made_while_the_backend_changed_is_not_kept(place, monkeypatch):
    """Another thread may call ``use`` at any time; here the operator does."""
    if place.name == "torch":
        pytest.skip("the reference makes no plans")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton")
    kernel = kernels.permute

    def interrupted(*arguments):
        wallx.use("torch")
        return kernel(*arguments)

    monkeypatch.setattr(kernels, "permute", interrupted)
    wallx.use("triton")
    x, ids = torch.ones(6, 8, device=place.device), torch.arange(6, device=place.device)[:, None]
    wallx.permute(x, ids, 6, [], 6)
    assert plans.PLANS == {}


@pytest.mark.parametrize(
    "six", [np.int64(6), np.int8(6), torch.tensor(6)], ids=lambda six: type(six).__name__
)
def test_other_integers_count_as_ints_do(place, six):
    x, rows = torch.randn(6, 8, device=place.device), torch.arange(6, device=place.device, dtype=torch.int32)
    ids, one = rows.flip(0)[:, None], six // 6
    for _ in range(2):
        permuted, row_map, _ = wallx.permute(x, ids, six, [], six)
        assert torch.equal(permuted, x.flip(0))
        assert torch.equal(wallx.permute_with_map(x, row_map, six, one), x.flip(0))
        assert torch.equal(wallx.unpermute(permuted, row_map, None, six, one), x)


def test_a_tensor_that_counts_is_read_at_every_call(place):
    x, ids = torch.randn(6, 8, device=place.device), torch.arange(6, device=place.device)[:, None] - 1
    rows, mask = torch.tensor(6), torch.tensor(True)
    assert wallx.permute(x, ids, rows, [], 6, mask_negative=mask)[1].tolist() == [-1, 0, 1, 2, 3, 4]
    rows.fill_(4)
    mask.fill_(False)
    assert wallx.permute(x, ids, rows, [], 6, mask_negative=mask)[1].tolist() == [0, 1, 2, 3, -1, -1]


def test_what_is_no_integer_is_refused_after_a_plan_too(place):
    x, rows = torch.randn(6, 8, device=place.device), torch.arange(6, device=place.device, dtype=torch.int32)
    calls = (
        lambda six, one: wallx.permute(x, rows[:, None], six, [], six),
        lambda six, one: wallx.permute_with_map(x, rows, six, one),
        lambda six, one: wallx.unpermute(x, rows, None, six, one),
    )
    for call in calls:
        call(6, 1)
        for six, one in ((6.0, 1.0), ("6", "1"), (None, None)):
            with pytest.raises(TypeError, match="must be an integer, found"):
                call(six, one)
