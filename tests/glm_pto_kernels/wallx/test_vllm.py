"""The operators over the shapes that vLLM tests its own kernels with, within the tolerances that it grants.

Sources, in vLLM's tests/kernels: moe/test_moe_permute_unpermute.py, moe/test_moe.py, moe/test_batched_moe.py,
moe/test_cutlass_grouped_gemm.py, core/test_mrope.py, core/test_pos_encoding.py, allclose_default.py. Numbers
are theirs. Large shapes run on a GPU, and on the torch reference in the thorough tier; Triton's interpreter
gets the smallest, of rotary embeddings fewer tokens still.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from glm_pto_kernels import wallx

GPU = pytest.mark.gpu
LARGE = (GPU, pytest.mark.thorough)


def skip_large(place, quick_on_cpu, fits_interpreter):
    if place.device == "cpu" and not quick_on_cpu and torch.cuda.is_available():
        pytest.skip("large for a CPU, and a GPU is there")
    if place.slow and not fits_interpreter:
        pytest.skip("too large for the interpreter")


def chosen(tokens, experts, top_k, device):
    """Weights and ids of the experts with the largest of random logits, not normalised again."""
    logits = torch.randn(tokens, experts, device=device).to(torch.bfloat16)
    return logits.float().softmax(1).topk(top_k)


def local_ids(ids, experts, ranks):
    """A rank in the middle has the experts of its part; the others' are -1."""
    share = experts // ranks
    mine = ids - ranks // 2 * share
    return torch.where((mine >= 0) & (mine < share), mine, -1)


@pytest.mark.parametrize("tokens", [1, 33, pytest.param(1024, marks=LARGE), pytest.param(5000, marks=LARGE)])
@pytest.mark.parametrize("hidden", [2048, 7168])
@pytest.mark.parametrize("experts", [16, 64, 256])
def test_permute_and_unpermute(place, tokens, hidden, experts):
    """moe/test_moe_permute_unpermute.py: top 2, 6, 8 on 1, 4, 16 ranks; rows and map exact, sums to 2e-2."""
    skip_large(place, tokens <= 33, (tokens, hidden, experts) == (1, 2048, 64))
    if place.name == "torch" and tokens == 5000 and (hidden, experts) != (2048, 64):
        pytest.skip("takes gigabytes")
    for top_k, ranks in itertools.product((2, 6, 8), (1, 4, 16)):
        weights, ids = chosen(tokens, experts, top_k, place.device)
        ids = local_ids(ids, experts, ranks)
        x = torch.randn(tokens, hidden, device=place.device).to(torch.bfloat16)
        rows, row_map, _ = wallx.permute(x, ids, 0, [], ids.numel(), mask_negative=True)

        flat = ids.flatten()
        order = torch.where(flat < 0, experts, flat).argsort(stable=True)[: int((flat >= 0).sum())]
        assert torch.equal(rows[: len(order)], x[order // top_k])
        inverse = torch.full_like(flat, -1)
        inverse[order] = torch.arange(len(order), device=place.device)
        inverse = inverse.view(tokens, top_k)
        assert torch.equal(row_map.view(top_k, tokens).t().long(), inverse)

        y = 0.5 * rows + torch.randn_like(rows)
        mapped = torch.where((inverse >= 0)[:, :, None], y[inverse.clamp(min=0)], 0)
        expected = (mapped * weights[:, :, None]).sum(1).to(torch.bfloat16)
        found = wallx.unpermute(y, row_map, weights, tokens, top_k)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("top_k", [1, 6, 8])
def test_a_workspace_serves_smaller_batches(place, dtype, top_k):
    """moe/test_moe_permute_unpermute.py: 1, 33 and 128 tokens of 2048, 16 experts, one scratch memory."""
    workspace = []
    for tokens in (128, 1, 33):
        if place.slow and tokens > 1:
            continue
        x = torch.randn(tokens, 2048, device=place.device).to(dtype)
        for _ in range(2):
            ids = torch.randint(16, (tokens, top_k), device=place.device)
            rows, _, workspace = wallx.permute(x, ids, 0, workspace, 128 * top_k)
            assert torch.equal(rows, x[ids.flatten().argsort(stable=True) // top_k])


@GPU
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 33, 128])
@pytest.mark.parametrize("top_k", [1, 6, 8])
def test_a_captured_permute_sees_other_rows_and_ids(place, dtype, tokens, top_k):
    """moe/test_moe_permute_unpermute.py: two replays, with one added to the rows and the ids moved on."""
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    x = torch.randn(tokens, 2048, device="cuda").to(dtype)
    ids = torch.randint(16, (tokens, top_k), device="cuda")
    *_, workspace = wallx.permute(x, ids, 0, [], ids.numel())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, row_map, _ = wallx.permute(x, ids, 0, workspace, ids.numel())
    for _ in range(2):
        x.add_(1)
        ids.copy_(ids.roll(1, 0))
        graph.replay()
        expected = wallx.permute(x, ids, 0, [], ids.numel())
        assert torch.equal(rows, expected[0])
        assert torch.equal(row_map, expected[1])


def gated(x):
    gate, up = x.float().chunk(2, 1)
    return (functional.silu(gate) * up).to(x.dtype)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 128, 128),
        (1, 2048, 128),
        (33, 2048, 128),
        pytest.param(32768, 2048, 511, marks=LARGE),
        pytest.param(40000, 1024, 1024, marks=LARGE),
    ],
)
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_a_layer_of_two_experts(place, m, n, k, top_k, padded):
    """moe/test_moe.py: its sizes and scales with the two experts of the dual GEMM; 2e-2, nothing relative."""
    skip_large(place, m <= 33, m * n == 128)
    # The interpreter multiplies bf16 as integers.
    dtype = torch.float16 if place.slow else torch.bfloat16

    def weight(rows, columns):
        full = torch.randn(rows, columns + 128 * padded, device=place.device).to(dtype) / 10
        return full[:, :columns]

    a = torch.randn(m, k, device=place.device).to(dtype) / 10
    up, down = [weight(2 * n, k) for _ in range(2)], [weight(k, n) for _ in range(2)]
    prob, ids = chosen(m, 2, top_k, place.device)

    rows, row_map, _ = wallx.permute(a, ids, 0, [], ids.numel())
    split = [int((ids == 0).sum()), int((ids == 1).sum())]
    h = [gated(x) for x in wallx.asym_dual_gmm_separated(*rows.split(split), *up, trans_b=True)]
    y = torch.cat(wallx.asym_dual_gmm_separated(*h, *down, trans_b=True))
    if top_k == 1:
        y = (y * prob[row_map.argsort()]).to(dtype)  # one weight a token is not the operator's
    found = wallx.unpermute(y, row_map, prob, m, top_k)

    expected = torch.zeros(m, k, device=place.device)
    for expert in range(2):
        one = gated((a.float() @ up[expert].float().t()).to(dtype)).float() @ down[expert].float().t()
        expected += one * torch.where(ids == expert, prob, 0).sum(1, keepdim=True)
    torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.float16, 6e-2), (torch.bfloat16, 6e-2)], ids=str
)
@pytest.mark.parametrize("most", [32, *(pytest.param(m, marks=LARGE) for m in (64, 128, 192, 224, 256)), 512])
def test_two_experts_of_a_batched_product(place, dtype, tolerance, most):
    """moe/test_batched_moe.py: up to so many tokens an expert, K of 128 to 1024, N of 128 to 1024."""
    skip_large(place, True, most == 32 and dtype != torch.bfloat16)
    for k, n in itertools.product((128, 256, 1024), (128, 256, 512, 1024)):
        if place.slow and (k, n) != (128, 128):
            continue
        rows = torch.randint(0, most, (2,)).tolist()
        inputs = [torch.randn(m, k, device=place.device).to(dtype) / 10 for m in rows]
        weights = [torch.randn(n, k, device=place.device).to(dtype) for _ in rows]
        found = wallx.asym_dual_gmm_separated(*inputs, *weights, trans_b=True)
        for out, a, b in zip(found, inputs, weights, strict=True):
            exact = (a.double() @ b.double().t()).to(dtype)
            torch.testing.assert_close(out, exact, rtol=tolerance, atol=tolerance)


@GPU
@pytest.mark.parametrize("rows", [8192, 4096, 1024])
@pytest.mark.parametrize(("k", "n"), [(7168, 4096), (2048, 7168)])
def test_two_groups_of_a_grouped_product(place, rows, k, n):
    """moe/test_cutlass_grouped_gemm.py, in fp16 throughout: 0.7 to 1.3 of so many rows; 1e-3 and 0.5."""
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    counts = [int(rows * share) for share in torch.empty(2).uniform_(0.7, 1.3).tolist()]
    inputs = [torch.randn(m, k, device="cuda").half() for m in counts]
    weights = [torch.randn(n, k, device="cuda").half() for _ in counts]
    found = wallx.asym_dual_gmm_separated(*inputs, *weights, trans_b=True)
    for out, a, b in zip(found, inputs, weights, strict=True):
        exact = (a.double() @ b.double().t()).half()
        torch.testing.assert_close(out, exact, rtol=1e-3, atol=0.5)


def angles(positions, dim, theta, dtype):
    """cos and sin [*positions, dim]: both halves of a head turn by the same angles."""
    steps = torch.arange(0, dim, 2, device=positions.device) / dim
    angle = positions.float()[..., None] * theta**-steps
    angle = torch.cat((angle, angle), -1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated(x, cos, sin):
    """fp32, with one plane of angles: cos and sin [B, S, D]."""
    low, high = x.float().chunk(2, -1)
    return x.float() * cos[:, None].float() + torch.cat((-high, low), -1) * sin[:, None].float()


@pytest.mark.parametrize("tokens", [11, pytest.param(8192, marks=LARGE)])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("q_heads", "k_heads"), [(32, 2), (28, 4), (64, 8), (32, 8), (32, 4)])
def test_mrope(place, tokens, ranks, q_heads, k_heads):
    """core/test_mrope.py: the heads of its models, bf16, flat rows of heads; 1.6e-2 and 1e-2.

    Sections are Qwen2-VL's for all of them; interleaved sections and partial heads are not these operators'.
    """
    skip_large(place, tokens == 11, (q_heads, ranks) == (28, 2))
    tokens = 3 if place.slow else tokens
    heads = q_heads // ranks, max(1, k_heads // ranks)
    q, k = (
        torch.randn(tokens, n * 128, device=place.device).to(torch.bfloat16).view(1, tokens, n, 128)
        for n in heads
    )
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    positions = torch.randint(0, 32768 // 4, (3, 1, tokens), device=place.device)
    cos, sin = angles(positions, 128, 1e6, torch.bfloat16)
    for bands, sections in (("repeated", [16, 24, 24]), ("consecutive", [32, 48, 48])):
        widths = sections * (2 if bands == "repeated" else 1)
        plane = (torch.arange(len(widths)) % 3).repeat_interleave(torch.tensor(widths)).to(place.device)
        dims = torch.arange(128, device=place.device)
        tables = [t[plane, :, :, dims].permute(1, 2, 0) for t in (cos, sin)]
        found = wallx.apply_rope(q, k, cos, sin, sections, bands=bands)
        for out, x in zip(found, (q, k), strict=True):
            expected = rotated(x, *tables).to(torch.bfloat16)
            torch.testing.assert_close(out, expected, rtol=1.6e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.bfloat16, 1.6e-2, 1e-3), (torch.float32, 1.3e-6, 1e-5)], ids=str
)
@pytest.mark.parametrize("length", [11, pytest.param(8192, marks=LARGE)])
@pytest.mark.parametrize("head", [64, 80, 120, 256])
def test_rotary_embedding(place, dtype, rtol, atol, length, head):
    """core/test_pos_encoding.py, halves turned: batches of 5, 17 heads, dense and cut from padded rows.

    The whole head is turned, or its first 32 dims; the tolerances are those of allclose_default.py.
    """
    skip_large(place, length == 11, head == 64)
    batch, length, heads = (1, 2, 17) if place.slow else (5, length, 17)
    positions = torch.randint(0, 8192, (batch, length), device=place.device)
    for padding, dim in itertools.product((0, 64), (head, 32)):
        q, k = (
            torch.randn(batch, length, heads, head + padding, device=place.device).to(dtype) for _ in range(2)
        )
        q, k = (x[..., :dim].transpose(1, 2) for x in (q, k))
        cos, sin = angles(positions, dim, 10000, dtype)
        expected = [rotated(x, cos, sin).to(dtype) for x in (q, k)]
        planes = cos.expand(3, -1, -1, -1), sin.expand(3, -1, -1, -1)
        wallx.rope(q, k, *planes, q, k, [dim // 4, dim // 4, dim // 2])
        torch.testing.assert_close([q, k], expected, rtol=rtol, atol=atol)
