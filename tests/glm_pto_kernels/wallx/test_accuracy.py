"""Every element of every result, against fp64 on the same inputs.

Values that are rounded once lie within one unit in the last place: half of one where they are rounded, one
where Triton's interpreter cuts bf16 off. What fp32 sums may lose besides is worked out from their terms.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from glm_pto_kernels import wallx
from tests.glm_pto_kernels.wallx import exact
from tests.glm_pto_kernels.wallx.ulps import assert_within, independent

TYPES = [torch.bfloat16, torch.float16, torch.float32]
#: Tokens and hidden size.
ROWS = {"torch": [(130, 1000)], "interpret": [(7, 40)], "triton": [(4096, 4096), (513, 1000)]}
#: m0, n0, k0, m1, n1, k1: n differs between the experts.
PRODUCTS = {
    "torch": [(70, 33, 40, 5, 9, 65), (64, 130, 512, 8, 48, 256)],
    "interpret": [(70, 33, 40, 5, 9, 65)],
    "triton": [
        (448, 11008, 2048, 32, 2048, 2048),
        (6144, 11008, 2048, 256, 2048, 2048),
        (300, 1001, 777, 65, 130, 513),
    ],
}
#: Batch, heads of q, heads of k, tokens.
HEADS = {"torch": (2, 4, 2, 33), "interpret": (1, 2, 1, 3), "triton": (8, 16, 2, 768)}


def routed(place, tokens, hidden, top_k, drops, dtype):
    """Rows, the map that says whose they are, and rows that it does not name full of NaN."""
    slots = tokens * top_k
    ids = torch.randint(0, 5, (tokens, top_k), dtype=torch.int32, device=place.device)
    rows = slots - slots // 3 if drops else slots + 2
    _, row_map, _ = wallx.permute(torch.zeros(tokens, 8, device=place.device), ids, rows, [], slots)
    y = torch.randn(rows, hidden, device=place.device).to(dtype)
    y[slots:] = float("nan")
    return y, row_map


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("top_k", [1, 2, 8])
@pytest.mark.parametrize("drops", [False, True], ids=["complete", "drops"])
@pytest.mark.parametrize("weights", [None, torch.float32, torch.bfloat16], ids=str)
def test_unpermute(place, dtype, top_k, drops, weights):
    """A term is rounded as a product, and where it or a later one is added: K times at most."""
    for tokens, hidden in ROWS[place.name]:
        y, row_map = routed(place, tokens, hidden, top_k, drops, dtype)
        prob = None if weights is None else torch.rand(tokens, top_k, device=place.device).to(weights)
        found = wallx.unpermute(y, row_map, prob, tokens, top_k)
        wanted, terms = exact.unpermute(y, row_map, prob, tokens, top_k)
        if top_k == 1:
            assert torch.equal(found.double(), wanted)
        else:
            assert_within(found, wanted, terms, top_k)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("top_k", [2, 8])
@pytest.mark.parametrize("drops", [False, True], ids=["complete", "drops"])
@pytest.mark.parametrize("scale", [1, 1e-3])
def test_unpermute_bwd(place, dtype, top_k, drops, scale):
    """Products of 16-bit values are exact in fp32; their sum for a weight is as long as a row."""
    for tokens, hidden in ROWS[place.name]:
        y, row_map = routed(place, tokens, hidden, top_k, drops, dtype)
        grad = (torch.randn(tokens, hidden, device=place.device) * scale).to(dtype)
        prob = torch.rand(tokens, top_k, device=place.device)
        act_grad, prob_grad = wallx.unpermute_bwd(grad, y, row_map, prob)
        wanted = exact.act_grad(grad, y.shape[0], row_map, prob)
        assert_within(act_grad, wanted, wanted.abs(), 1)
        wanted, terms = exact.prob_grad(grad, y, row_map, top_k)
        assert (prob_grad - wanted).abs().max() <= 1e-4
        assert_within(prob_grad, wanted, terms, independent(hidden))


def matrices(place, size, trans_a, trans_b, dtype):
    """Inputs and weights, then views of them as they are multiplied."""
    m0, n0, k0, m1, n1, k1 = size
    shapes = ((m0, k0), (m1, k1), (k0, n0), (k1, n1))
    turned = (trans_a, trans_a, trans_b, trans_b)
    tensors = [
        torch.randn(shape[::-1] if turn else shape, device=place.device).to(dtype)
        for shape, turn in zip(shapes, turned, strict=True)
    ]
    return tensors, [t.t() if turn else t for t, turn in zip(tensors, turned, strict=True)]


def skip_bf16_products(place, dtype):
    if place.slow and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bf16 as integers")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("trans_a", "trans_b"), list(itertools.product((False, True), (False, True))), ids=str
)
def test_dual_gemm(place, dtype, trans_a, trans_b):
    """fp32 results, too: rounding to tf32 on the way would show."""
    skip_bf16_products(place, dtype)
    for size in PRODUCTS[place.name]:
        tensors, (a0, a1, b0, b1) = matrices(place, size, trans_a, trans_b, dtype)
        found = wallx.asym_dual_gmm_separated(*tensors, trans_a=trans_a, trans_b=trans_b)
        for out, a, b in zip(found, (a0, a1), (b0, b1), strict=True):
            assert_within(out, *exact.product(a, b), independent(a.shape[1]))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_of_the_dual_gemm(place, dtype):
    skip_bf16_products(place, dtype)
    size = PRODUCTS[place.name][0]
    tensors, views = matrices(place, size, False, True, dtype)
    a0, a1, b0, b1 = (view.detach() for view in views)
    for tensor in tensors:
        tensor.requires_grad_()
    outputs = wallx.asym_dual_gmm_separated(*tensors, trans_b=True)
    grads = [torch.randn(out.shape, device=place.device).to(dtype) for out in outputs]
    torch.autograd.backward(outputs, grads)
    g0, g1 = grads
    factors = ((g0, b0.t()), (g1, b1.t()), (g0.t(), a0), (g1.t(), a1))
    for tensor, (left, right) in zip(tensors, factors, strict=True):
        assert_within(tensor.grad, *exact.product(left, right), independent(left.shape[1]))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("backward", [False, True], ids=["rope", "rope_bwd"])
@pytest.mark.parametrize(("dim", "sections"), [(128, [32, 48, 48]), (72, [18, 26, 28])], ids=str)
def test_rope(place, dtype, backward, dim, sections):
    """Two products and their sum, from transposed views."""
    batch, q_heads, k_heads, length = HEADS[place.name]
    q, k = (
        torch.randn(batch, length, heads, dim, device=place.device).to(dtype).transpose(1, 2)
        for heads in (q_heads, k_heads)
    )
    cos, sin = (torch.randn(3, batch, length, dim, device=place.device).to(dtype) for _ in range(2))
    outputs = [torch.full_like(x, float("nan")) for x in (q, k)]
    if backward:
        wallx.rope_bwd(q, k, q, k, cos, sin, *outputs, sections)
    else:
        wallx.rope(q, k, cos, sin, *outputs, sections)
    for out, x in zip(outputs, (q, k), strict=True):
        assert_within(out, *exact.rope(x, cos, sin, sections, backward), 2)
