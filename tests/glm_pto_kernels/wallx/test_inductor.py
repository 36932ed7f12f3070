"""Every operator inside a function that torch.compile turns into one graph for a GPU, against eager torch."""

from __future__ import annotations

import pytest
import torch

from glm_pto_kernels import wallx

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    torch.manual_seed(0)
    torch._dynamo.reset()


def rows(*shape):
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def permuted(x, ids, weights):
    """Through the experts and back: permute, a dual GEMM for each expert's half, unpermute."""
    tokens, top_k = ids.shape
    moved, row_map, _ = wallx.permute(x * 2, ids, 0, [], ids.numel())
    return wallx.unpermute(moved.relu(), row_map, weights.softmax(-1), tokens, top_k)


def placed(x, row_map):
    moved = wallx.permute_with_map(x * 2, row_map, row_map.numel())
    return wallx.unpermute(moved + 1, row_map, None, x.shape[0], 1)


def experts(a0, a1, b0, b1):
    out0, out1 = wallx.asym_dual_gmm_separated(a0 * 2, a1, b0, b1)
    return out0.relu(), out1 + 1


def turned(q, k, cos, sin):
    q_out, k_out = wallx.apply_rope(q * 2, k, cos, sin, [32, 48, 48])
    return q_out.relu(), k_out


def written(q, k, cos, sin):
    q, k = q * 2, k + 1
    wallx.rope(q, k, cos, sin, q, k, [32, 48, 48])
    return q.relu(), k


def both(function, inputs, *, gradients):
    """Results, and gradients of the floating inputs, eager and compiled."""
    found = []
    for run in (function, torch.compile(function, fullgraph=True)):
        leaves = [x.clone().requires_grad_(gradients and x.is_floating_point()) for x in inputs]
        results = run(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        grads = []
        if gradients:
            torch.manual_seed(1)
            ends = [(r.float() * torch.randn_like(r.float())).sum() for r in results]
            sum(ends).backward()
            grads = [x.grad for x in leaves if x.requires_grad]
        found.append([*results, *grads])
    return found


def close(found):
    eager, compiled = found
    for one, other in zip(eager, compiled, strict=True):
        if one is None:  # one expert a token: its weight is not used
            assert other is None
        else:
            torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("tokens", [300, 6000])
def test_permute_and_unpermute(tokens, top_k):
    ids = torch.rand(tokens, 8, device="cuda").topk(top_k).indices.to(torch.int32)
    weights = torch.rand(tokens, top_k, device="cuda")
    close(both(permuted, (rows(tokens, 256), ids, weights), gradients=True))


def test_permute_with_a_map():
    row_map = torch.randperm(500, device="cuda").to(torch.int32)
    close(both(placed, (rows(500, 256), row_map), gradients=True))


@pytest.mark.parametrize("m0", [40, 448], ids=["few_rows", "one_wave"])
def test_dual_gemm(m0):
    inputs = (rows(m0, 256), rows(32, 128), rows(256, 11008) / 16, rows(128, 2048) / 16)
    eager, compiled = both(experts, inputs, gradients=True)
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=0.02 * one.abs().max().item())


@pytest.mark.parametrize("function", [turned, written])
def test_rope(function):
    def heads(n):
        return rows(2, 70, n, 128).transpose(1, 2)

    inputs = (heads(16), heads(2), rows(3, 2, 70, 128), rows(3, 2, 70, 128))
    # Writing into given outputs has no gradient.
    close(both(function, inputs, gradients=function is turned))


def test_position_ids():
    ids = torch.full((2, 40), 7, device="cuda")
    ids[:, 3], ids[:, 4:28] = 100, 101
    grids = torch.tensor([[1, 8, 12]] * 2, device="cuda")

    def positions(ids, grids):
        return wallx.get_rope_index(ids, grids, None, None, torch.ones_like(ids), 2, 101, 102, 100, 2.0)

    eager, compiled = both(positions, (ids, grids), gradients=False)
    assert all(torch.equal(one, other) for one, other in zip(eager, compiled, strict=True))
