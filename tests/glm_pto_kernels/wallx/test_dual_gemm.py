"""The dual GEMM. Numbers (F5 ...) are those of the failure cases in docs/wallx.md."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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
    pytest.param((1088, 2048, 320, 0, 512, 192), id="aligned_second_empty"),
    pytest.param((0, 512, 64, 160, 2048, 320), id="aligned_first_empty"),
    pytest.param((448, 11008, 200, 32, 2048, 72), id="one_wave"),
    pytest.param((448, 11008, 200, 0, 2048, 72), id="one_wave_second_empty"),
    pytest.param((0, 2048, 72, 448, 11008, 200), id="one_wave_first_empty"),
    pytest.param((97, 2048, 64, 170, 10104, 328), id="one_wave_second_larger"),
    pytest.param((500, 10944, 8, 1, 8, 1000), id="one_wave_unlike"),
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


@pytest.mark.parametrize("size", [(448, 1104, 256, 32, 208, 0), (448, 1104, 0, 32, 208, 256)], ids=str)
def test_F5_depth_0_gives_zeros_every_time(place, size):
    """A launch that is kept for the same addresses does not write them."""
    place.skip_slow(max(size))
    tensors = made(place, size, False, False, torch.float32 if place.slow else torch.bfloat16)
    outputs = wallx.asym_dual_gmm_separated(*tensors)
    for _ in range(2):
        for out in outputs:
            out.fill_(float("nan"))
        wallx.asym_dual_gmm_separated(*tensors, *outputs)
        close(outputs, tensors, False, False)


@pytest.mark.parametrize("rows", [1, 64, 65, 130, 448, 449, 1088, 2100])
@pytest.mark.parametrize("columns", [1, 200, 2048, 11008])
def test_the_cut_covers_the_first_product_once(place, rows, columns):
    if place.name == "torch":
        pytest.skip("the reference has no tiles")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.dual_gemm_tma")
    for tiling in kernels.TILINGS:
        plan = kernels.cut(rows, columns, 32, 2048, tiling, 132 * tiling.programs)
        covered = torch.zeros(-(-rows // 64), -(-columns // 64), dtype=torch.int8)

        def cover(row, high, column, wide, block_m, block_n, covered=covered):
            area = covered[row // 64 : row // 64 + high * block_m // 64]
            area[:, column // 64 : column // 64 + wide * block_n // 64] += 1

        cover(0, plan.high, 0, plan.wide, tiling.block_m, tiling.block_n)
        if plan.edge:
            cover(*plan.edge_place, *plan.edge_block)
        assert bool((covered == 1).all()), (tiling, plan)


@pytest.mark.parametrize(
    ("sizes", "rows", "tiles"),
    [
        pytest.param((448, 11008, 32, 2048), 224, (116, 11), id="two_tiles_of_224_rows"),
        pytest.param((192, 11008, 32, 2048), 96, (116, 11), id="two_tiles_of_96_rows"),
        pytest.param((512, 11008, 256, 2048), 256, (116, 11), id="two_tiles_of_256_rows"),
        pytest.param((32, 2048, 448, 11008), 224, (11, 116), id="second_is_larger"),
        pytest.param((513, 11008, 32, 2048), None, None, id="not_in_one_round"),
        pytest.param((128, 11008, 32, 2048), None, None, id="too_few_rows"),
        pytest.param((448, 2048, 32, 2048), None, None, id="too_few_tiles"),
    ],
)
def test_one_wave_of_tiles_is_taken_where_it_fills_the_gpu(sizes, rows, tiles):
    kernels = importlib.import_module("glm_pto_kernels.wallx.cuda.dual_gemm_wave")
    wave = kernels.wave_of(*sizes, 132)
    assert (wave and wave.rows, wave and wave.tiles) == (rows, tiles)


def test_the_wave_kernel_is_written_for_its_rows_layout_and_type():
    kernels = importlib.import_module("glm_pto_kernels.wallx.cuda.dual_gemm_wave")
    text = kernels.source(96, trans_b=False, kind="f16")
    assert '#define ROWS 96\n#define TRANS_B 0\n#define KIND "f16"\n' in text
    assert "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16" in text
    assert '%47}, %48, %49, 1, 1, 1, 1, 0;"' in text
    assert text.count('"+f"(total[') == 48 + 1
    assert "1, 1, 1, 0, 0;" in kernels.source(96, trans_b=True, kind="bf16")


@pytest.mark.parametrize("version", [None, "11.8", "12.4"])
def test_no_compiler_is_no_error(monkeypatch, version):
    """torch for the CPU, or for a CUDA that does not know Hopper's instructions, or without its compiler."""
    driver = importlib.import_module("glm_pto_kernels.wallx.cuda.driver")
    monkeypatch.setattr(torch.version, "cuda", version)
    asked = []

    def load(name):
        asked.append(name)
        raise OSError(name)

    monkeypatch.setattr(driver.ctypes, "CDLL", load)
    assert driver.nvrtc.__wrapped__() is None
    assert asked == (["libnvrtc.so.12"] if version == "12.4" else [])


def test_the_kernels_constants_are_those_of_its_source():
    kernels = importlib.import_module("glm_pto_kernels.wallx.cuda.dual_gemm_wave")
    text = kernels.source(224, trans_b=True, kind="bf16")
    groups = kernels.WIDE // 64
    assert f"GROUPS = {groups}, DEPTH = {kernels.DEPTH}, STAGES = {kernels.STAGES}," in text
    assert 128 * groups == kernels.THREADS
    # The output leaves through four buffers of 64 rows of weights.
    assert kernels.MOST_ROWS <= kernels.STAGES * 64


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(448, "SMALL"), (640, "PAIRED"), (768, "SMALL"), (1024, "PAIRED"), (2048, "SINGLE"), (2112, "PAIRED"),
     (6144, "PAIRED"), (16384, "PAIRED")],
)  # fmt: skip
def test_two_programs_a_multiprocessor_unless_that_costs_a_round(rows, expected):
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.dual_gemm_tma")
    shapes = [torch.empty(rows, 11008, device="meta"), torch.empty(64, 2048, device="meta")]
    chosen = kernels.tiling_of([(None, None, o) for o in shapes], 132)
    assert chosen is getattr(kernels, expected)


@pytest.mark.gpu
def test_one_wave_equals_the_other_kernel_and_repeats_to_the_bit(place):
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    kernels = importlib.import_module("glm_pto_kernels.wallx.cuda.dual_gemm_wave")
    if not kernels.capable(0):
        pytest.skip("needs a Hopper GPU and torch's run-time compiler")
    for trans_b, dtype in itertools.product((False, True), (torch.bfloat16, torch.float16)):
        a0, a1, b0, b1 = made(place, (448, 11008, 2048, 32, 2048, 2048), False, trans_b, dtype)
        b0, b1 = (b.t() if trans_b else b for b in (b0, b1))
        outputs = [
            [torch.full((448, 11008), float("nan"), dtype=dtype, device="cuda"),
             torch.full((32, 2048), float("nan"), dtype=dtype, device="cuda")]
            for _ in range(3)
        ]  # fmt: skip
        wave = kernels.wave_of(448, 11008, 32, 2048, 132)
        for o0, o1 in outputs[:2]:
            kernels.dual_gemm_wave([(a0, b0, o0), (a1, b1, o1)], wave)
        tma = importlib.import_module("glm_pto_kernels.wallx.triton.dual_gemm_tma")
        tma.dual_gemm_tma([(a0, b0, outputs[2][0]), (a1, b1, outputs[2][1])])
        for one, again, other in zip(*outputs, strict=True):
            assert torch.equal(one, again)
            torch.testing.assert_close(one, other, rtol=RELATIVE[dtype], atol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "size",
    [
        pytest.param((448, 11008, 256, 32, 2048, 256), id="one_wave"),
        pytest.param((1088, 2048, 320, 160, 512, 192), id="aligned"),
        pytest.param((300, 1001, 777, 65, 130, 513), id="odd"),
    ],
)
def test_a_thread_that_has_not_used_torch_can_launch(place, size):
    """As autograd's may be: the same kernel on the same memory as before, and on other memory."""
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    calls = [made(place, size, False, False, torch.bfloat16) for _ in range(2)]
    outputs = [wallx.asym_dual_gmm_separated(*calls[0])]
    outputs.append([torch.empty_like(out) for out in outputs[0]])
    for out in (*outputs[0], *outputs[1]):
        out.fill_(float("nan"))
    torch.cuda.synchronize()
    for tensors, made_here in zip(calls, outputs, strict=True):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(wallx.asym_dual_gmm_separated, *tensors, *made_here).result()
        torch.cuda.synchronize()
        close(made_here, tensors, False, False)


def test_a_kept_launch_writes_outputs_of_its_own_sizes_only(place, monkeypatch):
    """Copied operands are padded: with the same ones, outputs at one address may be of other sizes."""
    if place.name == "torch":
        pytest.skip("the reference keeps no launches")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.dual_gemm")
    if place.device == "cpu":
        pretend_to_describe(monkeypatch, kernels)
    monkeypatch.setattr(kernels, "LAUNCHES", {})
    left, right = (torch.randn(16, 16, device=place.device).to(torch.bfloat16) for _ in range(2))
    wide = [torch.empty_like(left) for _ in range(2)]
    for columns in (9, 10, 16, 9):
        for _ in range(3):
            for out in wide:
                out.fill_(7.0)
            outputs = [out[:, :columns] for out in wide]
            kernels.dual_gemm(left, left, right, right, *outputs, trans_a=False, trans_b=False)
            narrow = right[:, :columns]
            close(outputs, (left, left, narrow, narrow), False, False)
            assert all(bool((out[:, columns:] == 7.0).all()) for out in wide)
    assert bool(kernels.LAUNCHES) == kernels.can_describe(left)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("size", [(5, 7, 9, 3, 4, 2), (17, 24, 8, 2, 9, 16), (0, 8, 16, 5, 11, 3)], ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS, ids=str)
def test_F7_what_the_copy_engine_gets_of_any_sizes(place, monkeypatch, dense, size, trans_a, trans_b):
    """Rows that begin and end at multiples of 16 bytes are taken as they are; others are copied."""
    if place.name != "interpret":
        pytest.skip("pretends to be a GPU")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.dual_gemm")
    pretend_to_describe(monkeypatch, kernels)
    monkeypatch.setattr(kernels, "LAUNCHES", {})

    def placed(x):
        memory = torch.full((x.shape[0], 32), float("nan")).to(x.dtype)
        return memory[:, : x.shape[1]].copy_(x)

    tensors = made(place, size, trans_a, trans_b, torch.float16)
    m0, n0, _, m1, n1, _ = size
    outputs = [torch.full(shape, float("nan"), dtype=torch.float16) for shape in ((m0, n0), (m1, n1))]
    if not dense:
        tensors, outputs = [placed(x) for x in tensors], [placed(o) for o in outputs]
    for _ in range(2):
        wallx.asym_dual_gmm_separated(*tensors, *outputs, trans_a, trans_b)
        close(outputs, tensors, trans_a, trans_b)


def pretend_to_describe(monkeypatch, kernels):
    """As on a GPU with a copy engine."""

    def boxed(x, high, wide):
        return torch.nn.functional.pad(x, (0, wide - x.shape[1], 0, high - x.shape[0]))

    def multiplied(products):
        assert kernels.fits(products)

        def launch():
            for a, b, o in filter(kernels.is_filled, products):
                (high, wide), depth = o.shape, a.shape[1]
                o.copy_(boxed(a, high, depth) @ boxed(b, depth, wide))

        launch()
        return launch

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    for name, value in {
        "can_describe": lambda like: True,
        "one_wave": lambda products: None,
        "dual_gemm_tma": multiplied,
        "again": lambda launch, device: launch(),
    }.items():
        monkeypatch.setattr(kernels, name, value)


@pytest.mark.parametrize(
    ("capability", "described"), [((8, 0), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)], ids=str
)
def test_the_copy_engine_is_used_where_its_tiles_have_room(place, monkeypatch, capability, described):
    if place.name == "torch":
        pytest.skip("the reference has no tiles")
    kernels = importlib.import_module("glm_pto_kernels.wallx.triton.dual_gemm_tma")
    launch = importlib.import_module("glm_pto_kernels.wallx.triton.launch")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(kernels, "interpreting", lambda: False)
    for name in ("hopper", "large_shared_memory"):
        monkeypatch.setattr(kernels, name, getattr(launch, name).__wrapped__)
    assert kernels.can_describe(torch.empty(1, dtype=torch.bfloat16)) == described


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
    every = torch.autograd.grad([o.sum() for o in product(*tensors)], tensors)
    for n, wanted in enumerate(every):  # one alone asks for a gradient
        alone = [t.detach().requires_grad_(n == m) for m, t in enumerate(tensors)]
        torch.testing.assert_close(torch.autograd.grad(product(*alone)[n % 2].sum(), alone[n])[0], wanted)


def test_given_outputs_are_written_in_a_graph_too():
    tensors = torch.randn(3, 4), torch.randn(2, 5), torch.randn(4, 6), torch.randn(5, 7)

    def written(*given):
        wallx.asym_dual_gmm_separated(*given)
        return given[4:]

    compiled = torch.compile(written, fullgraph=True, backend="aot_eager")
    outputs = torch.full((3, 6), float("nan")), torch.full((2, 7), float("nan"))
    for one, a, b in zip(compiled(*tensors, *outputs), tensors[:2], tensors[2:], strict=True):
        torch.testing.assert_close(one, a @ b)


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


def test_a_write_into_what_autograd_has_saved_is_noticed(place):
    x = torch.randn(4, 4, device=place.device)
    saved = x.clone().requires_grad_() * 1
    loss = saved.square().sum()
    with torch.no_grad():
        wallx.asym_dual_gmm_separated(x, x, x, x, None, saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param((448, 11007, 2047, 32, 2045, 2043), id="odd"),
        pytest.param((448, 11007, 256, 32, 2048, 256), id="one_output"),
        pytest.param((1089, 2048, 321, 160, 512, 192), id="one_depth"),
        pytest.param((0, 11007, 33, 130, 77, 35), id="first_empty"),
    ],
)
def test_F7_rows_that_are_not_aligned_are_copied(place, size, dtype, trans_a, trans_b):
    """In a graph, too: what the copies are kept in belongs to it, and a replay copies anew."""
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    tensors = made(place, size, trans_a, trans_b, dtype)
    outputs = wallx.asym_dual_gmm_separated(*tensors, trans_a=trans_a, trans_b=trans_b)
    close(outputs, tensors, trans_a, trans_b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wallx.asym_dual_gmm_separated(*tensors, *outputs, trans_a, trans_b)
    for tensor in tensors:
        tensor.copy_(torch.randn_like(tensor))
    for output in outputs:
        output.fill_(float("nan"))
    graph.replay()
    close(outputs, tensors, trans_a, trans_b)


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


@pytest.mark.gpu
def test_F13_the_first_call_of_all_may_be_captured(place):
    """It compiles and loads the kernel while the capture is under way."""
    if place.device != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    code = """
import torch
from glm_pto_kernels import wallx
kinds = {"device": "cuda", "dtype": torch.bfloat16}
a, b, w, v = (torch.randn(*s, **kinds) for s in ((448, 2048), (32, 2048), (2048, 11008), (2048, 2048)))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outputs = wallx.asym_dual_gmm_separated(a, b, w, v)
graph.replay()
for out, exact in zip(outputs, (a.double() @ w.double(), b.double() @ v.double())):
    assert ((out - exact).norm() / exact.norm()).item() < 3e-3
print("right")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr
