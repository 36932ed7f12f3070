"""The dual GEMM. Numbers (F5 ...) are those of the failure cases in docs/wallx.md."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import csrc

# One rounding to the result's type, and the order of an fp32 sum.
RELATIVE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LAYOUTS = list(itertools.product((False, True), (False, True)))
# m0, n0, k0, m1, n1, k1
SIZES = [
    pytest.param((5, 7, 9, 3, 4, 2), id="unlike"),
    pytest.param((70, 33, 40, 1, 9, 65), id="odd"),
    pytest.param((0, 8, 16, 5, 8, 16), id="first_empty"),
    pytest.param((5, 8, 16, 0, 8, 16), id="second_empty"),
    pytest.param((0, 8, 16, 0, 8, 16), id="both_empty"),
    pytest.param((5, 8, 0, 3, 4, 8), id="no_depth"),
    pytest.param((448, 1104, 256, 32, 208, 256), id="aligned"),
    pytest.param((1088, 2048, 320, 160, 512, 192), id="aligned_tall"),
    pytest.param((4160, 11008, 64, 72, 264, 128), id="aligned_many_tiles"),
]


def skip_what_cannot_run(place, dtype, size):
    if place.device == "cpu" and max(size) > 4000:
        pytest.skip("large for a CPU")
    if place.slow and (dtype == torch.bfloat16 or max(size) > 100):
        pytest.skip("the interpreter multiplies bf16 as integers, and is slow")


def made(place, size, trans_a, trans_b, dtype):
    m0, n0, k0, m1, n1, k1 = size

    def matrix(rows, columns, transposed):
        return torch.randn(*((columns, rows) if transposed else (rows, columns)), device=place.device).to(
            dtype
        )

    inputs = matrix(m0, k0, trans_a), matrix(m1, k1, trans_a)
    return *inputs, matrix(k0, n0, trans_b), matrix(k1, n1, trans_b)


def close(results, tensors, trans_a, trans_b):
    a0, a1, b0, b1 = (t.double() for t in tensors)
    for out, a, b in ((results[0], a0, b0), (results[1], a1, b1)):
        exact = (a.t() if trans_a else a) @ (b.t() if trans_b else b)
        rtol = RELATIVE[out.dtype]
        torch.testing.assert_close(out.double(), exact, rtol=rtol, atol=rtol * max(1, a.shape[0]) ** 0.5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", list(RELATIVE))
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS, ids=str)
def test_all_layouts(place, size, dtype, trans_a, trans_b):
    """F5: an empty expert is no error and depth 0 gives zeros. F7: sizes that are no multiple of 8."""
    skip_what_cannot_run(place, dtype, size)
    tensors = made(place, size, trans_a, trans_b, dtype)
    made_here = wallx.asym_dual_gmm_separated(*tensors, trans_a=trans_a, trans_b=trans_b)
    close(made_here, tensors, trans_a, trans_b)
    given = [torch.full_like(out, float("nan")) for out in made_here]
    assert csrc.asym_dual_gmm(*tensors, *given, trans_a, trans_b) is None
    close(given, tensors, trans_a, trans_b)


@pytest.mark.parametrize("rows", [1, 64, 65, 130, 448, 449, 1088, 2100])
@pytest.mark.parametrize("columns", [1, 200, 2048, 11008])
def test_the_cut_covers_the_first_product_once(place, rows, columns):
    if place.name == "torch":
        pytest.skip("the reference has no tiles")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.dual_gemm_tma")
    for _, tiling in kernels.TILINGS:
        plan = kernels.cut(rows, columns, 32, 2048, tiling, 132 * tiling.programs)
        covered = torch.zeros(-(-rows // 64), -(-columns // 64), dtype=torch.int8)

        def cover(row, high, column, wide, block_m, block_n, covered=covered):
            area = covered[row // 64 : row // 64 + high * block_m // 64]
            area[:, column // 64 : column // 64 + wide * block_n // 64] += 1

        cover(0, plan.high, 0, plan.wide, tiling.block_m, tiling.block_n)
        if plan.edge:
            cover(*plan.edge_place, *plan.edge_block)
        assert bool((covered == 1).all()), (tiling, plan)


def test_F7_any_strides_of_inputs_and_outputs(place):
    dtype = torch.float16 if place.slow else torch.bfloat16
    wide = torch.randn(40, 60, device=place.device).to(dtype)
    a0, a1 = wide[1:18, 1:14], wide[::3, ::5]
    b0, b1 = wide.t()[3:16, 5:27], wide[1:13, 2:9]
    outputs = [
        torch.full((60, 60), float("nan"), device=place.device).to(dtype)[1:18, 3:25],
        torch.full((7, 14), float("nan"), device=place.device).to(dtype).t(),
    ]
    wallx.asym_dual_gmm_separated(a0, a1, b0, b1, *outputs)
    close(outputs, (a0, a1, b0, b1), False, False)


def test_F8_accumulates_in_fp32(place):
    dtype = torch.float16 if place.slow else torch.bfloat16
    ones = torch.ones(2, 1001, device=place.device).to(dtype)
    out, _ = wallx.asym_dual_gmm_separated(ones, ones, ones, ones, trans_b=True)
    assert out.float()[0, 0].item() == torch.tensor(1001.0).to(dtype).float().item()


@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS, ids=str)
def test_gradients_of_first_and_second_order(trans_a, trans_b):
    class Cpu:
        device = "cpu"

    tensors = [t.requires_grad_() for t in made(Cpu, (3, 4, 5, 2, 3, 4), trans_a, trans_b, torch.double)]

    def product(*t):
        return wallx.asym_dual_gmm_separated(*t, trans_a=trans_a, trans_b=trans_b)

    assert gradcheck(product, tensors)
    assert gradgradcheck(product, tensors)


def test_F5_weight_gradient_of_an_expert_without_tokens_is_zero(place):
    a0, a1 = torch.zeros(0, 8, device=place.device), torch.randn(5, 8, device=place.device)
    weights = [torch.randn(8, 4, device=place.device, requires_grad=True) for _ in range(2)]
    outputs = wallx.asym_dual_gmm_separated(a0, a1, *weights)
    (outputs[0].sum() + outputs[1].sum()).backward()
    assert weights[0].grad.shape == (8, 4)
    assert not weights[0].grad.any()
    assert weights[1].grad.any()


def test_registered_operators_pass_torchs_checks():
    tensors = [
        torch.randn(3, 5, requires_grad=True),
        torch.randn(2, 4),
        torch.randn(6, 5),
        torch.randn(3, 4, requires_grad=True),
    ]
    ops = torch.ops.glm_pto_wallx
    torch.library.opcheck(ops.dual_gemm, (*tensors, False, True))
    plain = [t.detach() for t in tensors]
    torch.library.opcheck(ops.dual_gemm_out, (*plain, torch.empty(3, 6), torch.empty(2, 3), False, True))


def test_compiled_as_one_graph_with_gradients():
    weights = torch.randn(4, 6), torch.randn(4, 3)

    def loss(a0, a1):
        out0, out1 = wallx.asym_dual_gmm_separated(a0, a1, *weights)
        return out0.square().sum() + out1.square().sum()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(2)
        leaves = torch.randn(5, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
        function(*leaves).backward()
        results.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(results[0], results[1])


def test_refuses():
    a, b = torch.zeros(3, 4), torch.zeros(4, 5)
    with pytest.raises(ValueError, match=r"expert 1: input .* has k = 4, weight .* has k = 3"):
        wallx.asym_dual_gmm_separated(a, a, b, torch.zeros(3, 5))
    with pytest.raises(ValueError, match="expected matrices"):
        wallx.asym_dual_gmm_separated(a, a, b, torch.zeros(4))
    with pytest.raises(TypeError, match="one floating type"):
        wallx.asym_dual_gmm_separated(a, a, b, b.half())
    with pytest.raises(ValueError, match="an output must be"):
        wallx.asym_dual_gmm_separated(a, a, b, b, torch.zeros(3, 4))
    with pytest.raises(RuntimeError, match="leave both None"):
        wallx.asym_dual_gmm_separated(a.requires_grad_(), a, b, b, torch.zeros(3, 5))


@pytest.mark.gpu
def test_F13_side_stream_and_graph_capture(place):
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    tensors = made(place, (448, 1104, 256, 32, 208, 256), False, False, torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wallx.asym_dual_gmm_separated(*tensors)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = wallx.asym_dual_gmm_separated(*tensors)
    tensors[0].copy_(torch.randn_like(tensors[0]))
    graph.replay()
    close(outputs, tensors, False, False)
