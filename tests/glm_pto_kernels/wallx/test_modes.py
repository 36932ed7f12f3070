"""Calls under torch's modes and transforms, and of views that negate: no plan, no shortcut.

Every call is made twice, the second time where the first would have left a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import plans

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Call:
    """An operator as a function of one tensor, and a tensor."""

    run: Function
    x: torch.Tensor


def calls(device: str) -> dict[str, Call]:
    torch.manual_seed(0)
    x, prob = torch.randn(6, 8, device=device), torch.rand(6, 2, device=device)
    experts = torch.randint(0, 3, (6, 2), device=device)
    y, rows, _ = wallx.permute(x, experts, 12, [], 12)
    q, k = torch.randn(1, 2, 3, 8, device=device), torch.randn(1, 1, 3, 8, device=device)
    cos, sin = torch.randn(3, 1, 3, 8, device=device), torch.randn(3, 1, 3, 8, device=device)

    def rope(q: torch.Tensor) -> torch.Tensor:
        out = torch.empty(q.shape, device=device)
        wallx.rope(q, k, cos, sin, out, torch.empty_like(k), [2, 3, 3])
        return out

    return {
        "permute": Call(lambda x: wallx.permute(x, experts, 12, [], 12)[0], x),
        "permute_with_map": Call(lambda x: wallx.permute_with_map(x, rows, 12, 2), x),
        "unpermute": Call(lambda y: wallx.unpermute(y, rows, prob, 6, 2), y),
        "prob": Call(lambda prob: wallx.unpermute(y, rows, prob, 6, 2), prob),
        "unpermute_bwd": Call(lambda grad: wallx.unpermute_bwd(grad, y, rows, prob)[0], x),
        "rope": Call(rope, q),
        "apply_rope": Call(lambda q: wallx.apply_rope(q, k, cos, sin, [2, 3, 3])[0], q),
        "dual_gemm": Call(lambda a: wallx.asym_dual_gmm_separated(a, y, x.t(), x.t())[0], x),
    }


OPERATORS = tuple(calls("cpu"))


@pytest.fixture
def call(request: pytest.FixtureRequest, place) -> Call:
    return calls(place.device)[request.param]


def every(*but: str) -> pytest.MarkDecorator:
    names = [name for name in OPERATORS if name not in but]
    return pytest.mark.parametrize("call", names, indirect=True)


def twice(run: Callable[[], torch.Tensor], expected: torch.Tensor) -> None:
    for _ in range(2):
        torch.testing.assert_close(run(), expected, rtol=1e-5, atol=1e-5)


@every()
def test_a_view_that_negates_is_read_as_it_is(call):
    expected = -call.run(call.x)
    twice(lambda: call.run(torch._neg_view(call.x)), expected)


@every()
def test_zeros_without_memory_are_zeros(call):
    zeros = torch._efficientzerotensor(call.x.shape, device=call.x.device)
    twice(lambda: call.run(zeros), torch.zeros_like(call.run(call.x)))


@every()
def test_a_tangent_is_refused_not_lost(call):
    call.run(call.x)
    for _ in range(2):
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivatives"):
            call.run(forward_ad.make_dual(call.x, torch.ones_like(call.x)))
        with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
            torch.func.jvp(call.run, (call.x,), (torch.ones_like(call.x),))
    with forward_ad.dual_level():
        call.run(call.x)


@every("rope")
def test_a_batch_is_mapped_over(call):
    batch = torch.stack([call.x, 2 * call.x])
    twice(lambda: torch.vmap(call.run)(batch), torch.stack([call.run(x) for x in batch]))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@every("rope")
def test_a_traced_function_computes_with_what_it_is_given(call, place):
    expected = call.run(call.x)
    twice(lambda: make_fx(call.run)(torch.zeros_like(call.x))(call.x), expected)
    if place.name != "torch":  # the reference itself loops over what a trace fixes
        twice(
            lambda: torch.jit.trace(call.run, torch.zeros_like(call.x), check_trace=False)(call.x), expected
        )


def test_an_output_that_negates_is_refused(place):
    q, cos = torch.randn(1, 1, 3, 8, device=place.device), torch.randn(3, 1, 3, 8, device=place.device)
    x = torch.randn(4, 4, device=place.device)
    with pytest.raises(ValueError, match="negates"):
        wallx.rope(q, q, cos, cos, torch._neg_view(q.clone()), q.clone(), [8, 0, 0])
    with pytest.raises(ValueError, match="negates"):
        wallx.asym_dual_gmm_separated(x, x, x, x, torch._neg_view(x.clone()))


def test_a_single_row_shares_nothing_whatever_its_stride():
    plans.refuse_output("rope", torch.zeros(4).as_strided((1, 4), (0, 1)))
    with pytest.raises(ValueError, match="share memory"):
        plans.refuse_output("rope", torch.zeros(4).as_strided((2, 4), (0, 1)))


def test_an_output_whose_elements_share_memory_is_refused(place):
    q, cos = torch.randn(1, 1, 3, 8, device=place.device), torch.randn(3, 1, 3, 8, device=place.device)
    x = torch.randn(4, 4, device=place.device)
    for _ in range(2):
        with pytest.raises(ValueError, match="share memory"):
            wallx.rope(q, q, cos, cos, q.clone(), q[:, :, :1].clone().expand_as(q), [8, 0, 0])
        with pytest.raises(ValueError, match="share memory"):
            wallx.asym_dual_gmm_separated(x, x, x, x, None, x[:1].clone().expand(4, 4))
