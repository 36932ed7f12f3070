"""permute, unpermute and their gradients. F1 ...: the failure cases of docs/wallx.md."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import plans, reference

# TransformerEngine's tolerances for the same operators: relative, with 1e-5 absolute.
RELATIVE = {torch.float32: 1e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
TYPES = list(RELATIVE)
# (T, K, H, experts, num_out_tokens)
SHAPES = [
    pytest.param((5, 2, 16, 3, 0), id="small"),
    pytest.param((9, 5, 24, 7, 0), id="top5"),
    pytest.param((33, 1, 40, 2, 0), id="top1"),
    pytest.param((17, 2, 24, 4, 21), id="drops"),
    pytest.param((9, 3, 8, 4, 40), id="more_rows_than_slots"),
    pytest.param((4096, 2, 64, 8, 2039), id="TE_top2_drops"),
    pytest.param((4096, 5, 64, 8, 0), id="TE_top5"),
    pytest.param((4096, 5, 64, 300, 0), id="300_experts"),
    pytest.param((300, 8, 1000, 64, 0), id="odd_hidden"),
]


def slots_by_loop(ids, tokens, top_k, rows):
    """The row map by the definition: Python's stable sort."""
    flat = ids.reshape(-1).tolist()
    row_map = [0] * (tokens * top_k)
    for row, slot in enumerate(sorted(range(len(flat)), key=lambda s: flat[s])):
        token, k = divmod(slot, top_k)
        row_map[k * tokens + token] = row if row < rows else -1
    return row_map


def made(place, tokens, top_k, hidden, experts, dtype=torch.float32, index=torch.int32, low=0):
    x = torch.randn(tokens, hidden, device=place.device).to(dtype)
    ids = torch.randint(low, experts, (tokens, top_k), dtype=index, device=place.device)
    return x, ids


def permute(x, ids, rows=0, workspace=(), **keywords):
    return wallx.permute(x, ids, rows, list(workspace), ids.numel(), **keywords)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_permute_is_a_stable_sort(place, shape, index):
    tokens, top_k, hidden, experts, rows = shape
    place.skip_slow(tokens * top_k * 8)
    x, ids = made(place, tokens, top_k, hidden, experts, index=index)
    permuted, row_map, _ = permute(x, ids, rows)
    count = rows or tokens * top_k
    assert permuted.shape == (count, hidden)
    assert row_map.dtype == torch.int32
    assert row_map.tolist() == slots_by_loop(ids, tokens, top_k, count)
    for k, targets in enumerate(row_map.view(top_k, tokens)):
        assert torch.equal(permuted[targets[targets >= 0].long()], x[targets >= 0]), k
    assert not permuted[tokens * top_k :].any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("weighted", [True, False])
def test_unpermute_sums_in_fp32(place, shape, dtype, weighted):
    """F8: sums of bf16 rows are kept in fp32."""
    tokens, top_k, hidden, experts, rows = shape
    place.skip_slow(tokens * top_k * 8)
    _, ids = made(place, tokens, top_k, hidden, experts)
    _, row_map, _ = reference.permute(torch.zeros(tokens, 1, device=place.device), ids, rows, False)
    y = torch.randn(rows or tokens * top_k, hidden, device=place.device).to(dtype)
    prob = torch.rand(tokens, top_k, device=place.device) if weighted else None
    out = wallx.unpermute(y, row_map, prob, tokens, top_k)
    exact = reference.unpermute(y.double(), row_map, prob, tokens, top_k)
    torch.testing.assert_close(out.double(), exact, rtol=RELATIVE[dtype], atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_unpermute_bwd(place, shape, dtype):
    tokens, top_k, hidden, experts, rows = shape
    place.skip_slow(tokens * top_k * 8)
    grad, ids = made(place, tokens, top_k, hidden, experts, dtype)
    _, row_map, _ = reference.permute(torch.zeros(tokens, 1, device=place.device), ids, rows, False)
    y = torch.randn(rows or tokens * top_k, hidden, device=place.device).to(dtype)
    prob = torch.rand(tokens, top_k, device=place.device)
    act_grad, prob_grad = wallx.unpermute_bwd(grad, y, row_map, prob)
    exact = reference.unpermute_bwd(grad.double(), y.double(), row_map, prob.double())
    torch.testing.assert_close(act_grad.double(), exact[0], rtol=RELATIVE[dtype], atol=1e-5)
    assert prob_grad.dtype == torch.float32
    torch.testing.assert_close(prob_grad.double(), exact[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("low", [-1, -3])
def test_F1_negative_ids_sort_first_as_in_the_original(place, low):
    x, ids = made(place, 11, 2, 8, 3, low=low)
    _, row_map, _ = permute(x, ids)
    assert row_map.tolist() == slots_by_loop(ids, 11, 2, 22)


def test_F1_negative_ids_can_be_masked(place):
    x, ids = made(place, 11, 2, 8, 3, low=-1)
    x[:, :] = 1
    permuted, row_map, _ = permute(x, ids, mask_negative=True)
    kept = int((ids >= 0).sum())
    assert torch.equal(row_map.view(2, 11).t() >= 0, ids >= 0)
    assert sorted(row_map[row_map >= 0].tolist()) == list(range(kept))
    assert permuted[:kept].all()
    assert not permuted[kept:].any()


@pytest.mark.parametrize("rows", [1, 7, 22, 30, 0, -5])
def test_F3_any_number_of_output_rows(place, rows):
    x, ids = made(place, 11, 2, 8, 3)
    permuted, row_map, _ = permute(x, ids, rows)
    count = rows if rows > 0 else 22
    assert permuted.shape[0] == count
    assert int((row_map >= 0).sum()) == min(count, 22)
    assert not permuted[22:].any()
    again = wallx.permute_with_map(x, row_map, count, 2)
    assert torch.equal(again, permuted)


def test_F4_zero_tokens(place):
    x, ids = made(place, 0, 2, 8, 3)
    permuted, row_map, _ = permute(x, ids)
    assert permuted.shape == (0, 8)
    assert row_map.shape == (0,)
    prob = torch.ones(0, 2, device=place.device)
    assert wallx.unpermute(permuted, row_map, prob, 0, 2).shape == (0, 8)
    act, weight = wallx.unpermute_bwd(x, permuted, row_map, prob)
    assert act.shape == (0, 8)
    assert weight.shape == (0, 2)


@pytest.mark.parametrize("rows", [9, 22, 40])
def test_F6_nan_in_unmapped_rows_does_not_leak(place, rows):
    x, ids = made(place, 11, 2, 8, 3, low=-1)
    _, row_map, _ = permute(x, ids, rows, mask_negative=True)
    y = torch.full((rows, 8), float("nan"), device=place.device)
    y[row_map[row_map >= 0].long()] = 1.0
    prob = torch.rand(11, 2, device=place.device)
    for weights in (prob, None):
        assert not wallx.unpermute(y, row_map, weights, 11, 2).isnan().any()
    act_grad, prob_grad = wallx.unpermute_bwd(x, y, row_map, prob)
    assert not act_grad.isnan().any()
    assert not prob_grad.isnan().any()
    unmapped = torch.ones(rows, dtype=torch.bool, device=place.device)
    unmapped[row_map[row_map >= 0].long()] = False
    assert not act_grad[unmapped].any()
    assert not prob_grad[row_map.view(2, 11).t() < 0].any()


@pytest.mark.parametrize("hidden", [1, 7, 24])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_F7_odd_sizes_and_misaligned_strided_views(place, hidden, dtype):
    wide = torch.randn(12, 2 * hidden + 3, device=place.device).to(dtype)
    ids = torch.randint(0, 3, (3, 11), dtype=torch.int32, device=place.device).t()[:, ::2]
    for x in (wide[1:, 1 : 1 + hidden], wide[:11, 0 : 2 * hidden : 2]):
        permuted, row_map, _ = permute(x, ids)
        expected = reference.permute(x, ids, 0, False)
        assert torch.equal(row_map, expected[1])
        assert torch.equal(permuted, expected[0])
        back = wallx.unpermute(permuted, row_map, None, 11, 2)
        torch.testing.assert_close(back.float(), 2 * x.float(), rtol=2e-2, atol=1e-5)


def test_the_weight_of_a_slot_without_a_row_adds_nothing(place):
    y = torch.randn(5, 24, device=place.device)
    row_map = torch.tensor([0, 4, -1, -1, 2, 9], dtype=torch.int32, device=place.device)  # 9: there is none
    prob = torch.rand(3, 2, device=place.device)
    exact = torch.stack([y[0] * prob[0, 0], y[4] * prob[1, 0] + y[2] * prob[1, 1], torch.zeros_like(y[0])])
    prob[0, 1] = prob[2, 0] = prob[2, 1] = float("nan")
    if place.name == "torch":
        row_map[5] = -1  # the reference refuses rows that are not there
    torch.testing.assert_close(wallx.unpermute(y, row_map, prob, 3, 2), exact)


@pytest.mark.parametrize(
    ("tokens", "hidden", "top_k"),
    [
        (512, 2048, 1),
        (300, 2048, 2),
        (7, 1024, 4),
        (40, 72, 2),
        (9000, 2048, 1),
        (8200, 2056, 1),
        (8193, 4100, 1),
        (9000, 72, 1),
        (300, 4096, 8),
    ],
)
@pytest.mark.parametrize("skipped", [0, 1, 8])
def test_rows_fetched_ahead_change_nothing(place, tokens, hidden, top_k, skipped):
    """Memory that begins anywhere, in rows that a program's piece does not divide."""
    if place.device == "cpu":
        pytest.skip("the reference and the interpreter fetch nothing ahead")
    rows = tokens * top_k
    flat = torch.randn(skipped + rows * hidden, device=place.device).to(torch.bfloat16)
    y = flat[skipped:].view(rows, hidden)
    row_map = torch.randperm(rows, device=place.device).int()
    row_map[1::7] = -1
    prob = torch.rand(tokens, top_k, device=place.device)
    found = wallx.unpermute(y, row_map, prob, tokens, top_k)
    torch.testing.assert_close(found, reference.unpermute(y, row_map, prob, tokens, top_k))
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.unpermute")
    constants = [made.constants for made in kernels.GATHER.variants.values() if made.constants["H"] == hidden]
    fetching = kernels.fetches_ahead(y)
    assert any(found["AHEAD"] for found in constants) == fetching
    if tokens > 8192:
        whole_rows = hidden > 1024 and hidden % 8 == 0
        assert any(found["LATER"] for found in constants) == (fetching and whole_rows)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("masked", [False, True])
def test_the_largest_id_is_an_expert_like_others(place, index, masked):
    """Masked slots sort as the largest number, which is no reason to take that expert for masked."""
    ids = torch.tensor([[0], [torch.iinfo(index).max], [1], [-1]], dtype=index, device=place.device)
    x = torch.randn(4, 8, device=place.device)
    permuted, row_map, _ = permute(x, ids, mask_negative=masked)
    expected = reference.permute(x, ids, 0, masked)
    assert torch.equal(row_map, expected[1])
    assert torch.equal(permuted, expected[0])


def test_top1_ignores_prob_as_in_the_original(place):
    x, ids = made(place, 9, 1, 8, 2)
    permuted, row_map, _ = permute(x, ids)
    prob = torch.rand(9, 1, device=place.device)
    assert torch.equal(wallx.unpermute(permuted, row_map, prob, 9, 1), x)
    for weights in (prob, None):
        act_grad, prob_grad = wallx.unpermute_bwd(x, permuted, row_map, weights)
        assert torch.equal(act_grad, permuted)
        assert prob_grad.shape == (9, 1)
        assert not prob_grad.any()


def test_empty_prob_is_a_plain_sum(place):
    x, ids = made(place, 9, 2, 8, 2)
    permuted, row_map, _ = permute(x, ids)
    torch.testing.assert_close(wallx.unpermute(permuted, row_map, torch.tensor([]), 9, 2), 2 * x)


@pytest.mark.parametrize("layout", ["expanded", "strided", "matrix", "scalar"])
def test_workspace_that_is_not_dense_is_replaced_never_overrun(place, layout, monkeypatch):
    kernels = shrink_sort(place, monkeypatch, 2)
    memory = torch.full((8 * (kernels.BINS + 1),), 7, dtype=torch.int32, device=place.device)
    room = {
        "expanded": memory[:1].expand(10**6),
        "strided": memory[::2],
        "matrix": memory[None],
        "scalar": memory[0],
    }[layout]
    x, ids = torch.randn(6, 8, device=place.device), torch.arange(12, device=place.device).view(6, 2) % 5
    permuted, row_map, workspace = wallx.permute(x, ids, 0, room if layout == "scalar" else [room], 12)
    assert torch.equal(memory, torch.full_like(memory, 7))
    assert workspace[0].is_contiguous()
    expected = reference.permute(x, ids, 0, False)
    assert torch.equal(permuted, expected[0])
    assert torch.equal(row_map, expected[1])


def test_more_rows_than_the_map_can_name_are_refused(place):
    x, ids = torch.ones(2, 1, device=place.device), torch.zeros(2, 1, dtype=torch.int32, device=place.device)
    with pytest.raises(ValueError, match="do not fit the int32 row map"):
        wallx.permute(x, ids, 2**31, [], 2)
    with pytest.raises(ValueError, match="do not fit the int32 row map"):
        wallx.permute_with_map(x, ids[:, 0], 2**31)


def test_gradients_of_two_devices_are_refused(place):
    x = torch.ones(2, 1, device=place.device)
    with pytest.raises(ValueError, match="input_fwd on meta"):
        wallx.unpermute_bwd(x, x.to("meta"), torch.arange(2, dtype=torch.int32, device=place.device), None)


def test_workspace_is_replaced_when_too_small(place, monkeypatch):
    kernels = shrink_sort(place, monkeypatch, 8)
    x, ids = made(place, 20, 2, 8, 3)
    expected = reference.permute(x, ids, 0, False)[1]
    small = torch.full((kernels.integers(40),), 7, dtype=torch.int32, device=place.device)[1:]
    for given in ([], torch.tensor([]), [small], [small.long()]):
        _, row_map, workspace = wallx.permute(x, ids, 0, given, 40)
        assert torch.equal(row_map, expected)
        assert workspace[0].numel() == kernels.integers(40)
    assert (small == 7).all()


def test_workspace_serves_every_size_up_to_the_one_it_was_made_for(place, monkeypatch, guarded):
    """The need jumps where chunks grow (above 64 slots) and where a scan begins (above 512)."""
    kernels = shrink_sort(place, monkeypatch, 8)
    monkeypatch.setattr(kernels, "CHUNK_SLOTS", (16, 64))
    monkeypatch.setattr(kernels, "LONG", 64)
    for most in (64, 100, 512, 530):
        sizes = [size for size in (9, 64, 65, 512, 530) if size <= most]
        workspace = []
        for size in sizes:
            x, ids = made(place, size, 1, 8, 5)
            permuted, _, kept = wallx.permute(x, ids, 0, workspace, most)
            assert torch.equal(permuted, reference.permute(x, ids, 0, False)[0])
            assert not workspace or kept[0] is workspace[0]
            workspace = kept
        assert workspace[0].numel() == max(map(kernels.integers, range(most + 1)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("width", "experts", "index"),
    [
        (8, 5, torch.int32),
        (2, 5, torch.int64),
        (8, 14, torch.int32),
        (2, 14, torch.int64),
        (8, 40, torch.int64),
        (2, 40, torch.int32),
        (8, 3000, torch.int32),
        (2, 3000, torch.int64),
    ],
    ids=str,
)
def test_long_lists_by_chunks(place, monkeypatch, guarded, masked, width, experts, index):
    """The kernels of long lists, at a size for the interpreter; 3000 experts do not fit the table."""
    kernels = shrink_sort(place, monkeypatch, width)
    x, ids = made(place, 21, 3, 8, experts, index=index, low=-1)
    permuted, row_map, _ = permute(x, ids, 50, used_before(place), mask_negative=masked)
    expected = reference.permute(x, ids, 50, masked)
    assert torch.equal(row_map, expected[1])
    assert torch.equal(permuted, expected[0])
    ranks = [launched.constants["RANK"] for launched in kernels.PERMUTE.variants.values()]
    assert ranks == [1 if width == 8 else 2]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("large", [6, 7, 13, 14, 40, 60])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_chunk_of_many_experts_among_chunks_of_few(place, monkeypatch, guarded, masked, width, large, at):
    """Chunks of few experts write few counts: a slot of a large expert comes after all of their slots."""
    shrink_sort(place, monkeypatch, width)
    x, ids = made(place, 37, 1, 8, 4, low=0 if masked else -1)  # chunks of 16, 16 and 5 slots
    ids[16 * at + 2], ids[16 * at + 4] = large, large - 1
    if masked:
        ids[16 * at + 1] = -1
    permuted, row_map, _ = permute(x, ids, 0, used_before(place), mask_negative=masked)
    expected = reference.permute(x, ids, 0, masked)
    assert torch.equal(row_map, expected[1])
    assert torch.equal(permuted, expected[0])


def used_before(place):
    """A workspace that holds any numbers."""
    return [torch.randint(-(2**31), 2**31 - 1, (2048,), dtype=torch.int32, device=place.device)]


def shrink_sort(place, monkeypatch, width):
    """The kernels of long lists at sizes for the interpreter: up to ``width`` chunks without a scan."""
    if place.name == "torch":
        pytest.skip("the reference has one way of sorting and needs no workspace")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.permute")
    # Neither launches nor plans of other sizes may be taken for theirs, nor theirs later.
    for kernel in ("COUNT", "SCAN", "PERMUTE"):
        monkeypatch.setattr(getattr(kernels, kernel), "variants", {})
    monkeypatch.setattr(plans, "PLANS", {})
    sizes = {"PAIRS": 4, "CHUNK_SLOTS": (16, 16), "WIDTH": width, "FEW": 8, "MORE": 16, "BINS": 64}
    for name, value in sizes.items():
        monkeypatch.setattr(kernels, name, value)
    return kernels


def test_gradients_of_first_and_second_order():
    ids = torch.tensor([[1, 0], [0, 2], [-1, 1], [2, 2], [0, 1]])
    x = torch.randn(5, 3, dtype=torch.double, requires_grad=True)
    for rows in (0, 7, 12):
        for masked in (False, True):
            assert gradcheck(lambda x: permute(x, ids, rows, mask_negative=masked)[0], (x,))  # noqa: B023
        _, row_map, _ = permute(x.detach(), ids, rows, mask_negative=True)
        count = rows or 10
        assert gradcheck(lambda x: wallx.permute_with_map(x, row_map, count, 2), (x,))  # noqa: B023
        y = torch.randn(count, 3, dtype=torch.double, requires_grad=True)
        prob = torch.rand(5, 2, dtype=torch.double, requires_grad=True)

        def combine(y, prob):
            return wallx.unpermute(y, row_map, prob, 5, 2)  # noqa: B023

        assert gradcheck(combine, (y, prob))
        assert gradgradcheck(combine, (y, prob))
        assert gradcheck(lambda y: wallx.unpermute(y, row_map, None, 5, 2), (y,))  # noqa: B023
        grad = torch.randn(5, 3, dtype=torch.double, requires_grad=True)
        assert gradcheck(lambda g, y, p: wallx.unpermute_bwd(g, y, row_map, p), (grad, y, prob))  # noqa: B023
    _, row_map, _ = permute(x.detach(), ids[:, :1], 4, mask_negative=True)
    y = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    for weight in (None, prob[:, :1]):  # with one expert a token the weights are not used
        assert gradcheck(lambda g: wallx.unpermute_bwd(g, y, row_map, weight)[0], (grad,))  # noqa: B023
        assert gradgradcheck(lambda y: wallx.unpermute(y, row_map, weight, 5, 1), (y,))  # noqa: B023


def test_registered_operators_pass_torchs_checks():
    x = torch.randn(5, 4, requires_grad=True)
    ids = torch.randint(0, 3, (5, 2))
    ops = torch.ops.glm_pto_wallx
    torch.library.opcheck(ops.permute, (x, ids, 7, True))
    _, row_map = ops.permute(x.detach(), ids, 7, True)
    y = torch.randn(7, 4, requires_grad=True)
    prob = torch.rand(5, 2, requires_grad=True)
    torch.library.opcheck(ops.permute_with_map, (x, row_map, 7, 2))
    torch.library.opcheck(ops.unpermute, (y, row_map, prob, 5, 2))
    torch.library.opcheck(ops.unpermute_bwd, (x, y, row_map, prob))


def test_compiled_as_one_graph_with_gradients():
    ids = torch.randint(0, 3, (6, 2))

    def layer(x, prob):
        permuted, row_map, _ = wallx.permute(x, ids, 0, [], 12)
        return wallx.unpermute(permuted * 2, row_map, prob, 6, 2).square().sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for run in (layer, compiled):
        torch.manual_seed(1)
        x = torch.randn(6, 4, requires_grad=True)
        prob = torch.rand(6, 2, requires_grad=True)
        run(x, prob).backward()
        results.append((x.grad, prob.grad))
    torch.testing.assert_close(results[0], results[1])


class Layer(torch.nn.Module):
    """All operators of this file with numbers that depend on the number of tokens."""

    def forward(self, x, ids, prob):
        tokens, top_k = ids.shape
        permuted, row_map, _ = wallx.permute(x, ids, tokens * top_k - 1, [], ids.numel())
        again = wallx.permute_with_map(x, row_map, tokens * top_k, top_k)
        out = wallx.unpermute(permuted, row_map, prob, tokens, top_k)
        return out + wallx.unpermute(again, row_map, None, tokens, top_k)


def layer_inputs(tokens, top_k=2):
    x, prob = torch.randn(tokens, 4, requires_grad=True), torch.rand(tokens, top_k, requires_grad=True)
    return x, torch.randint(0, 3, (tokens, top_k)), prob


def test_compiled_once_for_any_number_of_tokens():
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(Layer(), fullgraph=True, dynamic=True, backend=graphs)
    for tokens, top_k in ((5, 2), (9, 2), (6, 3)):
        inputs = layer_inputs(tokens, top_k)
        grads = [torch.autograd.grad(run(*inputs).square().sum(), inputs[::2]) for run in (Layer(), compiled)]
        torch.testing.assert_close(*grads)
    assert graphs.frame_count == 1


@pytest.mark.parametrize("strict", [False, True])
def test_exported_for_any_number_of_tokens(strict):
    tokens = torch.export.Dim("tokens", min=2, max=64)
    exported = torch.export.export(
        Layer(), layer_inputs(6), dynamic_shapes=({0: tokens}, {0: tokens}, {0: tokens}), strict=strict
    )
    inputs = layer_inputs(9)
    torch.testing.assert_close(exported.module()(*inputs), Layer()(*inputs))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"input": torch.zeros(4, 8, 1)}, ValueError, "expected input"),
        ({"input": torch.zeros(5, 8)}, ValueError, "expected input"),
        ({"input": torch.zeros(4, 8, dtype=torch.int32)}, TypeError, "floating"),
        ({"indices": torch.zeros(4, 2)}, TypeError, "int32 or int64"),
        ({"indices": torch.zeros(4, 2, dtype=torch.int16)}, TypeError, "int32 or int64"),
        ({"max_expanded_token_num": 7}, ValueError, "max_expanded_token_num is 7"),
        ({"num_out_tokens": 1.5}, TypeError, "num_out_tokens must be an integer"),
        ({"max_expanded_token_num": 8.5}, TypeError, "max_expanded_token_num must be an integer"),
    ],
    ids=[
        *("rank", "tokens", "integers", "float_ids", "int16_ids", "max_expanded"),
        *("half_a_row", "half_a_slot"),
    ],
)
def test_permute_refuses(change, error, says):
    arguments = {
        "input": torch.zeros(4, 8),
        "indices": torch.zeros(4, 2, dtype=torch.int32),
        "num_out_tokens": 0,
        "workspace": [],
        "max_expanded_token_num": 8,
    }
    with pytest.raises(error, match=says):
        wallx.permute(**(arguments | change))


def test_unpermute_refuses():
    y, row_map = torch.zeros(8, 4), torch.zeros(8, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"expected rows \[N, H\], found \[8, 4, 1\]"):
        wallx.unpermute(y[..., None], row_map, None, 4, 2)
    for numbers in ((4.5, 2), (4, 2.5)):
        with pytest.raises(TypeError, match="must be an integer"):
            wallx.unpermute(y, row_map, None, *numbers)
    with pytest.raises(ValueError, match=r"row_id_map must be \[K\*T\]"):
        wallx.unpermute(y, row_map, None, 3, 2)
    with pytest.raises(TypeError, match="row_id_map must be int32"):
        wallx.unpermute(y, row_map.long(), None, 4, 2)
    with pytest.raises(ValueError, match=r"prob must be \[T, K\]"):
        wallx.unpermute(y, row_map, torch.ones(2, 4), 4, 2)
    with pytest.raises(TypeError, match="prob must be floating"):
        wallx.unpermute(y, row_map, torch.ones(4, 2, dtype=torch.int32), 4, 2)
    with pytest.raises(ValueError, match="T and K must not be negative, found T = -4, K = -2"):
        wallx.unpermute(y, row_map, None, -4, -2)
    with pytest.raises(ValueError, match="must not be negative"):
        wallx.permute_with_map(y[:0], row_map[:0], 0, -1)
    for call in (
        lambda y: wallx.unpermute(y, row_map, None, 4, 2),
        lambda y: wallx.permute_with_map(y, row_map, 8),
        lambda y: wallx.unpermute_bwd(y, y, row_map, None),
    ):
        for kind in (torch.int32, torch.complex64):
            with pytest.raises(TypeError, match="rows must be floating"):
                call(y.to(kind))
    with pytest.raises(ValueError, match="input_fwd must be"):
        wallx.unpermute_bwd(torch.zeros(4, 4), torch.zeros(8, 5), row_map, torch.ones(4, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [100, 6144])
def test_F13_side_stream_and_graph_capture(place, tokens):
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    x, ids = made(place, tokens, 2, 64, 4, torch.bfloat16)
    prob = torch.rand(tokens, 2, device="cuda")

    def step():
        permuted, row_map, _ = permute(x, ids)
        out = wallx.unpermute(permuted, row_map, prob, tokens, 2)
        return out, *wallx.unpermute_bwd(out, permuted, row_map, prob)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        ids.copy_(torch.randint_like(ids, 0, 4))
        graph.replay()
        torch.testing.assert_close(captured, step(), rtol=0, atol=0)


@pytest.mark.parametrize(("made_in", "used_in"), [(0, 0), (7, 7), (0, 7), (7, 0), (7, 8), (None, None)])
def test_a_map_is_known_in_the_capture_that_made_it_only(place, monkeypatch, nan_filled, made_in, used_in):
    if place.name == "torch":
        pytest.skip("the reference looks at every map")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.launch")
    x, ids = torch.randn(4, 8, device=place.device), torch.arange(4, device=place.device)[:, None]
    monkeypatch.setattr(kernels, "capture", lambda like: made_in)
    _, row_map, _ = wallx.permute(x, ids, 4, [], 4)
    monkeypatch.setattr(kernels, "capture", lambda like: used_in)
    assert kernels.is_complete(row_map, 4) == (made_in == used_in and made_in is not None)
    assert torch.equal(wallx.permute_with_map(x, row_map, 4), x)


def test_a_map_on_another_device_than_the_current_one_is_not_known(place, monkeypatch):
    """Which capture that device's stream is in is not asked."""
    if place.name == "torch":
        pytest.skip("the reference looks at every map")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.launch")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for device, known in ((0, 0), (1, None)):
        row_map = SimpleNamespace(is_cuda=True, get_device=lambda device=device: device)
        assert kernels.capture(row_map) == known


@pytest.mark.gpu
def test_the_captures_of_graphs_are_told_apart(place):
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.launch")
    x, ids = made(place, 300, 1, 64, 4, torch.bfloat16)
    _, outside, _ = permute(x, ids)
    wallx.permute_with_map(x, outside, 300)
    numbers, graphs = [], [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
    for graph in graphs:
        with torch.cuda.graph(graph):
            numbers.append(kernels.capture(x))
            _, inside, _ = permute(x, ids)
            placed = wallx.permute_with_map(x, inside, 300)
            assert kernels.is_complete(inside, 300)
            assert not kernels.is_complete(outside, 300)
        assert not kernels.is_complete(inside, 300)
        graph.replay()
        assert torch.equal(placed, permute(x, ids)[0])
    assert kernels.capture(x) == 0
    assert len(set(numbers)) == 2
    assert all(numbers)


def test_a_map_that_was_given_other_memory_is_looked_at_again(place, nan_filled):
    x, ids = torch.randn(4, 8, device=place.device), torch.arange(4, device=place.device)[:, None]
    _, row_map, _ = wallx.permute(x, ids, 4, [], 4)
    row_map.data = torch.tensor([-1, 1, 2, 3], dtype=torch.int32, device=place.device)
    placed = wallx.permute_with_map(x, row_map, 4)
    assert not placed[0].any()
    assert torch.equal(placed[1:], x[1:])
