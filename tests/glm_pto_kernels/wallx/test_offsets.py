"""F2: tensors of more than 2^31 elements, whose offsets do not fit 32 bits. All on a GPU, below 30 GB.

What lies at the beginning, in the middle and at the end is compared element by element with fp64; nothing
may be left unwritten.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from glm_pto_kernels import wallx
from tests.glm_pto_kernels.wallx import exact
from tests.glm_pto_kernels.wallx.ulps import assert_within, independent

pytestmark = pytest.mark.gpu
LIMIT = 2**31
HIDDEN = 4096
#: m, n, k: more than 2^31 elements of the output, of the input, of the weights.
PRODUCTS = {
    "output": (2**18 + 64, 2**13 + 8, 64),
    "input": (2**15 + 64, 64, 2**16 + 64),
    "weights": (64, 2**15 + 64, 2**16 + 64),
}


@pytest.fixture(autouse=True)
def on_gpu(place):
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    torch.cuda.empty_cache()


def normal(*shape):
    """bf16, without a temporary in fp32."""
    return torch.empty(*shape, dtype=torch.bfloat16, device="cuda").normal_()


def ends(length):
    """Positions at the beginning, in the middle and at the end."""
    return torch.tensor([0, 1, length // 2, length - 2, length - 1], device="cuda")


def test_F2_permute_and_back_with_one_expert_a_token(place):
    tokens = LIMIT // HIDDEN + 3
    x = normal(tokens, HIDDEN)
    ids = torch.randint(0, 4, (tokens, 1), dtype=torch.int32, device="cuda")
    permuted, row_map, _ = wallx.permute(x, ids, 0, [], tokens)
    last = row_map[-5:].long()
    assert torch.equal(permuted[last], x[-5:])
    assert torch.equal(wallx.unpermute(permuted, row_map, None, tokens, 1), x)
    assert torch.equal(wallx.unpermute_bwd(x, permuted, row_map, None)[0], permuted)


def test_F2_permute_and_back_with_two_experts_a_token(place):
    """Half as many tokens: what is permuted is too large, what it comes from is not."""
    tokens = LIMIT // HIDDEN // 2 + 3
    rows = 2 * tokens
    x = normal(tokens, HIDDEN)
    ids = torch.randint(0, 4, (tokens, 2), dtype=torch.int32, device="cuda")
    permuted, row_map, _ = wallx.permute(x, ids, 0, [], rows)
    assert permuted.numel() > LIMIT
    for targets in row_map.view(2, tokens):
        assert torch.equal(permuted[targets.long()], x)
    del x

    prob, grad = torch.rand(tokens, 2, device="cuda"), normal(tokens, HIDDEN)
    # Tokens at both ends, and those whose rows lie at the end.
    chosen = torch.cat((ends(tokens), (row_map.view(2, tokens) >= rows - 4).any(0).nonzero()[:, 0]))
    few = row_map.view(2, tokens)[:, chosen].flatten()
    found = wallx.unpermute(permuted, row_map, prob, tokens, 2)
    assert_within(found[chosen], *exact.unpermute(permuted, few, prob[chosen], len(chosen), 2), 2)
    del found

    act_grad, prob_grad = wallx.unpermute_bwd(grad, permuted, row_map, prob)
    assert not act_grad.isnan().any()
    placed = few.view(2, -1).long()
    for k in range(2):
        wanted = grad[chosen].double() * prob[chosen, k, None].double()
        assert_within(act_grad[placed[k]], wanted, wanted.abs(), 1)
    wanted, terms = exact.prob_grad(grad[chosen], permuted, few, 2)
    assert_within(prob_grad[chosen], wanted, terms, independent(HIDDEN))


def test_F2_rows_that_no_slot_names_are_zeros(place):
    """A map that is not known to name every row: a second launch zeroes those that it does not."""
    tokens = LIMIT // HIDDEN // 2 + 3
    rows = 2 * tokens + 64
    x = normal(tokens, HIDDEN)
    row_map = torch.randperm(2 * tokens, device="cuda").int() + 32
    used = torch.full((rows, HIDDEN), float("nan"), dtype=torch.bfloat16, device="cuda")
    del used  # memory that is taken again holds no zeros
    placed = wallx.permute_with_map(x, row_map, rows, 2)
    assert not placed[:32].any()
    assert not placed[-32:].any()
    for targets in row_map.view(2, tokens):
        assert torch.equal(placed[targets.long()], x)


@pytest.mark.parametrize("transposed", [False, True], ids=["dense", "view"])
@pytest.mark.parametrize("backward", [False, True], ids=["rope", "rope_bwd"])
@pytest.mark.parametrize("batch", [1, 3])
def test_F2_rope(place, transposed, backward, batch):
    heads, dim, sections = 32, 128, [32, 48, 48]
    length = LIMIT // (heads * dim * batch) + 3
    dense = (batch, length, heads, dim) if transposed else (batch, heads, length, dim)
    q = normal(*dense).transpose(1, 2) if transposed else normal(*dense)
    assert q.numel() > LIMIT
    k, (cos, sin) = normal(batch, 2, length, dim), normal(2, 3, batch, length, dim)
    outputs = [torch.empty_like(x).fill_(float("nan")) for x in (q, k)]
    if backward:
        wallx.rope_bwd(q, k, q, k, cos, sin, *outputs, sections)
    else:
        wallx.rope(q, k, cos, sin, *outputs, sections)
    at = ends(length)
    for out, x in zip(outputs, (q, k), strict=True):
        assert not out.isnan().any()
        wanted = exact.rope(x[:, :, at], cos[:, :, at], sin[:, :, at], sections, backward)
        assert_within(out[:, :, at], *wanted, 2)


@pytest.mark.parametrize("large", list(PRODUCTS))
@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
@pytest.mark.parametrize(
    ("trans_a", "trans_b"), list(itertools.product((False, True), (False, True))), ids=str
)
def test_F2_dual_gemm(place, large, odd, trans_a, trans_b):
    """Both products are large. Odd sizes go another way through memory than aligned ones."""
    m, n, k = (size + odd for size in PRODUCTS[large])
    assert max(m * n, m * k, n * k) > LIMIT
    inputs = [normal(*((k, m) if trans_a else (m, k))) for _ in range(2)]
    weights = [normal(*((n, k) if trans_b else (k, n))) for _ in range(2)]
    outputs = [torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    wallx.asym_dual_gmm_separated(*inputs, *weights, *outputs, trans_a, trans_b)
    for out, a, b in zip(outputs, inputs, weights, strict=True):
        assert not out.isnan().any()
        rows, columns = ends(m), ends(n)
        a, b = (a.t() if trans_a else a)[rows], (b.t() if trans_b else b)[:, columns]
        assert_within(out[rows][:, columns], *exact.product(a, b), independent(k))
