"""rope and rope_bwd. Numbers (F9 ...) are those of the failure cases in docs/wallx.md."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import reference

# Computed in fp32 and rounded once: half a unit in the last place; the original, which rounds each product
# in the tensor's type, needs two. The interpreter cuts bf16 off instead of rounding: one unit.
ULP = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def by_definition(x, cos, sin, sections):
    """Dim by dim, with plain loops over the head."""
    dim = x.shape[-1]
    half = dim // 2
    out = torch.empty_like(x)
    for i in range(dim):
        band = (i >= sections[0]) + (i >= sections[0] + sections[1])
        partner = -x[..., i + half] if i < half else x[..., i - half]
        out[..., i] = x[..., i] * cos[band, :, None, :, i] + partner * sin[band, :, None, :, i]
    return out


def made(place, batch, q_heads, k_heads, length, dim, dtype=torch.float32, transposed=False):
    def heads(n):
        if transposed:
            return torch.randn(batch, length, n, dim, device=place.device).to(dtype).transpose(1, 2)
        return torch.randn(batch, n, length, dim, device=place.device).to(dtype)

    tables = (torch.randn(3, batch, length, dim, device=place.device).to(dtype) for _ in range(2))
    return heads(q_heads), heads(k_heads), *tables


def run(operator, q, k, cos, sin, sections):
    """The operator's results, on poisoned outputs."""
    outputs = torch.empty_like(q).fill_(float("nan")), torch.empty_like(k).fill_(float("nan"))
    if operator == "rope":
        wallx.rope(q, k, cos, sin, *outputs, sections)
    else:
        wallx.rope_bwd(q, k, q, k, cos, sin, *outputs, sections)
    return outputs


def close(actual, expected, dtype):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=ULP[dtype], atol=ULP[dtype] / 8)


@pytest.mark.parametrize("operator", ["rope", "rope_bwd"])
@pytest.mark.parametrize("dtype", list(ULP))
@pytest.mark.parametrize("transposed", [False, True], ids=["dense", "view"])
@pytest.mark.parametrize(
    ("dim", "sections"),
    [
        (128, [32, 48, 48]),
        (128, [128, 0, 0]),
        (72, [18, 26, 28]),
        (80, [20, 30, 30]),
        (96, [24, 36, 36]),
        (2, [0, 1, 1]),
    ],
    ids=str,
)
def test_F9_F12_bands_head_sizes_and_views(place, operator, dtype, transposed, dim, sections):
    q, k, cos, sin = made(place, 1 if dim == 96 else 2, 3, 1, 5, dim, dtype, transposed)
    exact = reference.apply_rope(
        *(t.double() for t in (q, k, cos, sin)), sections, False, operator == "rope_bwd"
    )
    for actual, expected in zip(run(operator, q, k, cos, sin, sections), exact, strict=True):
        close(actual, expected, dtype)


def test_F11_three_consecutive_bands(place):
    """Text gives all planes the same angles and hides wrong bands; images do not."""
    q, k, cos, sin = made(place, 2, 2, 1, 4, 16)
    sections = [4, 6, 6]
    for actual, x in zip(run("rope", q, k, cos, sin, sections), (q, k), strict=True):
        torch.testing.assert_close(actual, by_definition(x, cos, sin, sections))
    usual = wallx.apply_rope(q, k, cos, sin, [2, 3, 3], bands="repeated")[0]
    assert not torch.allclose(usual, by_definition(q, cos, sin, sections))
    same = cos[:1].expand(3, -1, -1, -1), sin[:1].expand(3, -1, -1, -1)
    torch.testing.assert_close(
        wallx.apply_rope(q, k, *same, [2, 3, 3], bands="repeated")[0],
        wallx.apply_rope(q, k, *same, sections)[0],
    )


def test_backward_is_the_transpose_of_forward(place):
    """<rope(x), g> == <x, rope_bwd(g)>, with halves in different bands."""
    q, k, cos, sin = made(place, 1, 2, 1, 3, 12)
    sections = [4, 5, 3]
    grads = torch.randn_like(q), torch.randn_like(k)
    forward = run("rope", q, k, cos, sin, sections)
    backward = run("rope_bwd", *grads, cos, sin, sections)
    for x, g, out, dx in zip((q, k), grads, forward, backward, strict=True):
        torch.testing.assert_close((out * g).sum(), (x * dx).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True], ids=["dense", "view"])
def test_F10_in_place(place, transposed):
    q, k, cos, sin = made(place, 2, 3, 1, 5, 16, transposed=transposed)
    expected = run("rope", q, k, cos, sin, [4, 6, 6])
    wallx.rope(q, k, cos, sin, q, k, [4, 6, 6])
    torch.testing.assert_close((q, k), expected)


def test_F10_in_place_is_refused_where_autograd_records():
    q, k, _cos, _sin = (torch.randn(3, 1, 2, 4) for _ in range(4))
    q, k = q.requires_grad_(), k.requires_grad_()
    tables = torch.randn(3, 3, 2, 4), torch.randn(3, 3, 2, 4)
    with pytest.raises(RuntimeError, match="use apply_rope"):
        wallx.rope(q, k, *tables, torch.empty_like(q), torch.empty_like(k), [4, 0, 0])


def test_F10_a_write_into_what_autograd_has_saved_is_noticed(place):
    """The second call may have a plan, which writes past torch's own operators."""
    q, k, cos, sin = made(place, 1, 2, 1, 3, 8)
    for _ in range(2):
        saved = q.clone().requires_grad_() * 1
        loss = saved.square().sum()
        with torch.no_grad():
            wallx.rope(saved, k, cos, sin, saved, k.clone(), [2, 3, 3])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_F9_any_strides(place):
    """Sliced heads of one projection, broadcast tables, a dim that is not dense, unlike outputs."""
    packed = torch.randn(2, 5, 6, 16, device=place.device)
    q, k = packed[:, :, :3].transpose(1, 2), packed[:, :, 4:5].transpose(1, 2)
    cos = torch.randn(3, 1, 5, 16, device=place.device).expand(3, 2, 5, 16)
    sin = torch.randn(3, 2, 16, 5, device=place.device).transpose(2, 3)
    outputs = (
        torch.empty(2, 3, 5, 16, device=place.device),
        torch.empty(2, 1, 16, 5, device=place.device).transpose(2, 3),
    )
    wallx.rope(q, k, cos, sin, *outputs, [4, 6, 6])
    torch.testing.assert_close(outputs, reference.apply_rope(q, k, cos, sin, [4, 6, 6]))


def test_F7_misaligned_heads(place):
    packed = torch.randn(2, 5, 4 * 18 + 1, device=place.device).to(torch.bfloat16)
    q = packed[..., 1:55].unflatten(-1, (3, 18)).transpose(1, 2)
    k = packed[..., 55:].unflatten(-1, (1, 18)).transpose(1, 2)
    cos, sin = (torch.randn(3, 2, 5, 18, device=place.device).to(torch.bfloat16) for _ in range(2))
    for actual, expected in zip(
        run("rope", q, k, cos, sin, [4, 6, 8]), reference.apply_rope(q, k, cos, sin, [4, 6, 8]), strict=True
    ):
        close(actual, expected, torch.bfloat16)


@pytest.mark.parametrize("heads", [(20, 9), (1, 40), (64, 16)], ids=str)
@pytest.mark.parametrize(("dim", "length"), [(2, 9), (16, 11), (72, 2)])
def test_many_heads_and_many_tokens_in_a_program(place, heads, dim, length):
    q, k, cos, sin = made(place, 2, *heads, length, dim, transposed=True)
    sections = [dim // 4, dim // 8, dim - dim // 4 - dim // 8]
    expected = reference.apply_rope(q, k, cos, sin, sections)
    for actual, wanted in zip(run("rope", q, k, cos, sin, sections), expected, strict=True):
        close(actual, wanted, torch.float32)


@pytest.mark.parametrize(
    "shape", [(0, 2, 1, 3, 8), (2, 2, 1, 0, 8), (2, 0, 1, 3, 8), (2, 2, 1, 3, 0)], ids=str
)
def test_empty(place, shape):
    *sizes, dim = shape
    tensors = made(place, *sizes, dim)
    outputs = run("rope", *tensors, [dim, 0, 0])
    assert outputs[0].shape == tensors[0].shape
    assert not outputs[1].isnan().any()


def test_gradients_of_first_and_second_order():
    def leaf(*shape):
        return torch.randn(*shape, dtype=torch.double, requires_grad=True)

    q, k, cos, sin = leaf(2, 2, 3, 6), leaf(2, 1, 3, 6), leaf(3, 2, 3, 6), leaf(3, 2, 3, 6)
    assert gradcheck(lambda *t: wallx.apply_rope(*t, [1, 3, 2]), (q, k, cos, sin))
    assert gradcheck(lambda *t: wallx.apply_rope(*t, [1, 0, 2], bands="repeated"), (q, k, cos, sin))
    tables = cos.detach(), sin.detach()
    assert gradgradcheck(lambda q, k: wallx.apply_rope(q, k, *tables, [1, 3, 2]), (q, k))


def test_registered_operators_pass_torchs_checks():
    q, k = torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 1, 5, 8)
    cos, sin = torch.randn(3, 2, 5, 8), torch.randn(3, 2, 5, 8)
    ops = torch.ops.glm_pto_wallx
    torch.library.opcheck(ops.rope, (q, k, cos, sin, [2, 3, 3], False, False))
    q = q.detach()
    torch.library.opcheck(
        ops.rope_out, (q, k, cos, sin, torch.empty_like(q), torch.empty_like(k), [2, 3, 3], True)
    )


def test_compiled_as_one_graph():
    q, k, cos, sin = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8), *torch.randn(2, 3, 2, 5, 8)

    def outputs(q, k):
        q_out, k_out = torch.empty_like(q), torch.empty_like(k)
        wallx.rope(q, k, cos, sin, q_out, k_out, [2, 3, 3])
        return q_out, k_out

    def in_place(q, k):
        q, k = q.clone(), k.clone()
        wallx.rope(q, k, cos, sin, q, k, [2, 3, 3])
        return q, k

    for function in (outputs, in_place):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(q, k), function(q, k))

    def loss(q, k):
        q_out, k_out = wallx.apply_rope(q, k, cos, sin, [2, 3, 3])
        return q_out.square().sum() + k_out.square().sum()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = q.clone().requires_grad_(), k.clone().requires_grad_()
        function(*leaves).backward()
        results.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"q": torch.zeros(2, 3, 8)}, ValueError, "expected q"),
        ({"k": torch.zeros(2, 1, 5)}, ValueError, "expected q"),
        ({"k": torch.zeros(2, 1, 4, 8)}, ValueError, "differ in more than their heads"),
        ({"cos": torch.zeros(2, 2, 5, 8)}, ValueError, "cos and sin must be"),
        ({"sections": [8, 0]}, ValueError, "three band widths"),
        ({"sections": True}, ValueError, "three band widths"),
        ({"sections": [2, 3, 4]}, ValueError, "sum to 8"),
        ({"sections": [9, -1, 0]}, ValueError, "sum to 8"),
        ({"sin": torch.zeros(3, 2, 5, 8, dtype=torch.half)}, TypeError, "one floating type"),
        ({"q_out": torch.zeros(2, 3, 5, 9)}, ValueError, "an output must be"),
    ],
    ids=["rank", "rank_of_k", "length", "planes", "two_bands", "bool", "sum", "negative", "types", "output"],
)
def test_refuses(change, error, says):
    arguments = {
        "q": torch.zeros(2, 3, 5, 8),
        "k": torch.zeros(2, 1, 5, 8),
        "cos": torch.zeros(3, 2, 5, 8),
        "sin": torch.zeros(3, 2, 5, 8),
        "q_out": torch.zeros(2, 3, 5, 8),
        "k_out": torch.zeros(2, 1, 5, 8),
        "sections": [2, 3, 3],
    }
    arguments |= change
    with pytest.raises(error, match=says):
        wallx.rope(*arguments.values())


@pytest.mark.parametrize("wrong", ["q", "k"])
def test_gradients_of_other_shapes_than_q_and_k_are_refused(wrong):
    q, k = torch.zeros(2, 3, 5, 8), torch.zeros(2, 1, 5, 8)
    given = {"q": q, "k": k, wrong: torch.zeros(2, 2, 5, 8)}
    table = torch.zeros(3, 2, 5, 8)
    with pytest.raises(ValueError, match="do not have the shapes of q, k"):
        wallx.rope_bwd(q, k, given["q"], given["k"], table, table, q.clone(), k.clone(), [2, 3, 3])


def test_refuses_odd_heads():
    q, table = torch.zeros(1, 1, 2, 5), torch.zeros(3, 1, 2, 5)
    with pytest.raises(ValueError, match="must be even"):
        wallx.apply_rope(q, q, table, table, [5, 0, 0])


@pytest.mark.gpu
def test_F13_side_stream_and_graph_capture(place):
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    q, k, cos, sin = made(place, 2, 16, 2, 70, 128, torch.bfloat16, transposed=True)
    outputs = torch.empty_like(q), torch.empty_like(k)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wallx.rope(q, k, cos, sin, *outputs, [32, 48, 48])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wallx.rope(q, k, cos, sin, *outputs, [32, 48, 48])
    q.copy_(torch.randn_like(q))
    graph.replay()
    expected = reference.apply_rope(q, k, cos, sin, [32, 48, 48])
    for actual, exact in zip(outputs, expected, strict=True):
        close(actual, exact, torch.bfloat16)


@pytest.mark.parametrize("shape", [(1, 0, 3, 8), (0, 2, 3, 8), (1, 2, 0, 8)], ids=str)
def test_a_strided_tensor_without_elements(place, shape):
    """It counts as contiguous, so a dense copy of it is itself."""
    q = torch.randn(*shape[:3], 16, device=place.device)[..., ::2]
    k = torch.randn(shape[0], 1, *shape[2:], device=place.device)
    cos = torch.randn(3, shape[0], *shape[2:], device=place.device)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    wallx.rope(q, k, cos, cos, q_out, k_out, [2, 3, 3])
    expected = reference.apply_rope(q, k, cos, cos, [2, 3, 3])
    torch.testing.assert_close((q_out, k_out), expected)


@pytest.mark.parametrize("width", [2.0, "2", None])
def test_a_section_that_is_no_integer_is_refused_after_a_plan_too(place, width):
    q, k, cos, sin = made(place, 1, 2, 1, 3, 8)
    outputs = torch.empty_like(q), torch.empty_like(k)
    for _ in range(2):
        wallx.rope(q, k, cos, sin, *outputs, [2, 3, 3])
        with pytest.raises(TypeError, match="a section must be an integer"):
            wallx.rope(q, k, cos, sin, *outputs, [width, 3, 3])


@pytest.mark.parametrize("width", [2.0, "2", None])
def test_a_section_that_is_no_integer_is_refused(place, width):
    q, cos = torch.randn(1, 1, 3, 8, device=place.device), torch.randn(3, 1, 3, 8, device=place.device)
    with pytest.raises(TypeError, match="a section must be an integer"):
        wallx.apply_rope(q, q, cos, cos, [width, 3, 3])
