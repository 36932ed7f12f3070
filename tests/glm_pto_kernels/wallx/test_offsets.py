"""F2: offsets that do not fit 32 bits.

Rows far apart show them anywhere: between them lies memory that nobody touches, so none is taken for it.
Tensors of more than 2^31 elements need a GPU and up to 30 GB. What lies at their beginning, in the middle and
at the end is compared element by element with fp64; nothing may be left unwritten.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from glm_pto_kernels import wallx
from tests.glm_pto_kernels.wallx import exact
from tests.glm_pto_kernels.wallx.ulps import assert_within, independent

LIMIT = 2**31
HIDDEN = 4096
#: m, n, k: more than 2^31 elements of the output, of the input, of the weights.
PRODUCTS = {
    "output": (2**18 + 64, 2**13 + 8, 64),
    "input": (2**15 + 64, 64, 2**16 + 64),
    "weights": (64, 2**15 + 64, 2**16 + 64),
}


#: Elements from a row to the next: fits 32 bits, four times it does not.
APART = 2**29 + 8


def far_apart(place, count, *shape, axis=0):
    """Tensors of one piece of memory, in fp16, with five places along ``axis`` that are far apart."""
    size = 1
    for length in shape:
        size *= length
    memory = torch.empty(4 * APART + count * size, dtype=torch.float16, device=place.device)
    sizes, strides = (*shape[:axis], 5, *shape[axis:]), list(torch.empty(shape, device="meta").stride())
    strides.insert(axis, APART)
    found = [memory.as_strided(sizes, strides, n * size) for n in range(count)]
    for tensor in found:
        tensor.copy_(torch.randn(sizes, device=place.device))
    return found


def test_F2_rows_far_apart_are_permuted(place, guarded):
    (x,) = far_apart(place, 1, 40)
    ids = torch.tensor([[1, 0], [0, 2], [2, 2], [1, 1], [0, 1]], device=place.device)
    permuted, row_map, _ = wallx.permute(x, ids, 0, [], 10)
    assert torch.equal(permuted, x[ids.flatten().argsort(stable=True) // 2])
    assert torch.equal(wallx.permute_with_map(x, row_map, 10, 2), permuted)


@pytest.mark.parametrize("top_k", [1, 2])
def test_F2_rows_far_apart_are_summed(place, guarded, top_k):
    y, grad = far_apart(place, 2, 40)
    row_map = torch.tensor([4, 3, 0, 1, -1][: 5 if top_k == 1 else 4], dtype=torch.int32, device=place.device)
    tokens = len(row_map) // top_k
    prob = torch.rand(tokens, top_k, device=place.device)
    found = wallx.unpermute(y, row_map, prob, tokens, top_k)
    assert_within(found, *exact.unpermute(y, row_map, prob, tokens, top_k), top_k)
    prob = torch.rand(5, 2, device=place.device)
    row_map = torch.tensor([4, 3, 0, 1, -1, 2, -1, -1, -1, -1], dtype=torch.int32, device=place.device)
    act_grad, prob_grad = wallx.unpermute_bwd(grad, y, row_map, prob)
    wanted = exact.act_grad(grad, 5, row_map, prob)
    assert_within(act_grad, wanted, wanted.abs(), 1)
    assert_within(prob_grad, *exact.prob_grad(grad, y, row_map, 2), independent(40))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "heads", "tokens"])
@pytest.mark.parametrize("backward", [False, True], ids=["rope", "rope_bwd"])
def test_F2_heads_far_apart_are_rotated(place, guarded, annotated, axis, backward):
    others = [1, 2, 2]
    others.pop(axis)
    q, q_out = far_apart(place, 2, *others, 16, axis=axis)
    batch, _, length, dim = q.shape
    k = torch.randn(batch, 1, length, dim, device=place.device).half()
    cos, sin = torch.randn(2, 3, batch, length, dim, device=place.device).half()
    outputs = q_out, torch.empty_like(k)
    if backward:
        wallx.rope_bwd(q, k, q, k, cos, sin, *outputs, [4, 6, 6])
    else:
        wallx.rope(q, k, cos, sin, *outputs, [4, 6, 6])
    for out, x in zip(outputs, (q, k), strict=True):
        assert_within(out, *exact.rope(x, cos, sin, [4, 6, 6], backward), 2)


def test_F2_matrices_with_rows_far_apart_are_multiplied(place, guarded, annotated):
    a, b, out = far_apart(place, 3, 24)
    wallx.asym_dual_gmm_separated(a, a[:0], b, b, out[:, :5], None, trans_b=True)
    assert_within(out[:, :5], *exact.product(a, b.t()), independent(24))
    outputs = wallx.asym_dual_gmm_separated(a, a, b, b, trans_a=True)
    for found in outputs:
        assert_within(found, *exact.product(a.t(), b), independent(5))


@pytest.fixture
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


@pytest.mark.gpu
def test_F2_permute_and_back_with_one_expert_a_token(on_gpu):
    tokens = LIMIT // HIDDEN + 3
    x = normal(tokens, HIDDEN)
    ids = torch.randint(0, 4, (tokens, 1), dtype=torch.int32, device="cuda")
    permuted, row_map, _ = wallx.permute(x, ids, 0, [], tokens)
    last = row_map[-5:].long()
    assert torch.equal(permuted[last], x[-5:])
    assert torch.equal(wallx.unpermute(permuted, row_map, None, tokens, 1), x)
    assert torch.equal(wallx.unpermute_bwd(x, permuted, row_map, None)[0], permuted)


@pytest.mark.gpu
def test_F2_permute_and_back_with_two_experts_a_token(on_gpu):
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


@pytest.mark.gpu
def test_F2_rows_that_no_slot_names_are_zeros(on_gpu):
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


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True], ids=["dense", "view"])
@pytest.mark.parametrize("backward", [False, True], ids=["rope", "rope_bwd"])
@pytest.mark.parametrize("batch", [1, 3])
def test_F2_rope(on_gpu, transposed, backward, batch):
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


@pytest.mark.gpu
@pytest.mark.parametrize("large", list(PRODUCTS))
@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
@pytest.mark.parametrize(
    ("trans_a", "trans_b"), list(itertools.product((False, True), (False, True))), ids=str
)
def test_F2_dual_gemm(on_gpu, large, odd, trans_a, trans_b):
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
