"""attention_pre: against vllm-ascend's arithmetic spelled out, conditions, residual and positions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import notice
from glm_pto_kernels.ops import attention_pre as op
from glm_pto_kernels.own_steps import own_steps
from tests.glm_pto_kernels.stand_ins import SMALL, DecoderLayer, RMSNorm, Sizes, frozen, glm_4_5, glm_4_5_air

TOKENS = (1, 2, 31, 32, 33, 200)


def native(
    layer: DecoderLayer,
    positions: torch.Tensor,
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    stored: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """The layer's own steps as separate kernels, each leaving its result in ``stored``."""
    attention, qkv = layer.self_attn, layer.self_attn.qkv_proj

    def norm(module: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        wide = rows.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
        out = (wide * module.weight.float()).to(stored)
        return out if module.bias is None else (out.float() + module.bias.float()).to(stored)

    total = (hidden.float() if residual is None else hidden.float() + residual.float()).to(stored)
    normed = norm(layer.input_layernorm, total).float()
    scaled = normed * qkv.aclnn_input_scale_reciprocal.float() + qkv.aclnn_input_offset.float()
    quantised = torch.clamp(torch.round(scaled), -128, 127).double()
    product = quantised @ qkv.weight.double() + qkv.quant_bias
    out = (product.float() * qkv.deq_scale).to(stored)
    q, k, v = out.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
    q = norm(attention.q_norm, q.reshape(-1, attention.num_heads, attention.head_dim))
    k = norm(attention.k_norm, k.reshape(-1, attention.num_kv_heads, attention.head_dim))
    cos, sin = attention.rotary_emb.cos_sin_cache[positions].bfloat16().float().chunk(2, dim=-1)
    half = cos.shape[-1]
    turned = []
    for heads in (q.float(), k.float()):
        out_heads = heads.clone()
        for head in range(heads.shape[1]):
            a, b = heads[:, head, :half], heads[:, head, half : 2 * half]
            out_heads[:, head, :half] = a * cos - b * sin
            out_heads[:, head, half : 2 * half] = b * cos + a * sin
        turned.append(out_heads.flatten(1).bfloat16())
    return turned[0], turned[1], v.bfloat16(), total.bfloat16()


def inputs(sizes: Sizes, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(tokens, sizes.hidden).bfloat16()
    return torch.randint(0, 512, (tokens,)), hidden, torch.randn(tokens, sizes.hidden).bfloat16()


GRID = [
    *((SMALL, n) for n in TOKENS),
    *((glm_4_5(tp), 33) for tp in (8, 16)),
    *(pytest.param(glm_4_5(tp), n, marks=pytest.mark.thorough) for tp in (1, 2, 4, 8, 16) for n in TOKENS),
]


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize(("sizes", "tokens"), GRID, ids=str)
def test_agrees_with_native_arithmetic(sizes: Sizes, tokens: int, with_residual: bool) -> None:
    torch.manual_seed(tokens)
    layer = DecoderLayer(sizes)
    positions, hidden, residual = inputs(sizes, tokens)
    before = residual if with_residual else None
    assert K.attention_pre_refusal(layer, layer.self_attn, positions, hidden) is None
    got = K.attention_pre(hidden, before, layer, layer.self_attn, positions)
    for stored, worst, mean in ((torch.float32, 0.01, 1e-4), (torch.bfloat16, 0.06, 0.02)):
        theirs = native(layer, positions, hidden, before, stored)
        for name, ours, wanted in zip(("q", "k", "v", "residual"), got, theirs, strict=True):
            assert ours.shape == wanted.shape and ours.dtype == wanted.dtype
            error = (ours.float() - wanted.float()).abs()
            # bf16 between the steps moves one int8 value in ten by a step of 1/32; fp32 hardly any.
            assert error.max() <= worst * wanted.float().abs().max(), (name, stored)
            assert error.mean() <= mean * wanted.float().abs().mean(), (name, stored)
        assert torch.equal(got[3], theirs[3])


@pytest.mark.usefixtures("torch_backend")
def test_fault_4_first_layer_without_residual_returns_its_input() -> None:
    layer = DecoderLayer(SMALL)
    positions, hidden, _ = inputs(SMALL, 5)
    before = hidden.clone()
    *_, residual = K.attention_pre(hidden, None, layer, layer.self_attn, positions)
    assert torch.equal(residual, hidden) and residual.data_ptr() != hidden.data_ptr()
    assert torch.equal(hidden, before)


@pytest.mark.usefixtures("torch_backend")
def test_positions_turn_q_and_k_and_leave_v() -> None:
    layer = DecoderLayer(SMALL)
    _, hidden, residual = inputs(SMALL, 2)
    near, far = (
        K.attention_pre(hidden, residual, layer, layer.self_attn, torch.tensor(p)) for p in ([0, 0], [0, 9])
    )
    assert torch.equal(near[0][0], far[0][0]) and not torch.equal(near[0][1], far[0][1])
    assert torch.equal(near[2], far[2])
    rotary = SMALL.rotary
    heads_near, heads_far = near[0].view(2, 4, 64), far[0].view(2, 4, 64)
    assert torch.equal(heads_near[..., rotary:], heads_far[..., rotary:])


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 200])
def test_fault_16_any_number_of_tokens_is_taken(tokens: int) -> None:
    """Prefill and profiling steps reach the same traced graph, so there is no branch on the count."""
    layer = DecoderLayer(SMALL)
    positions, hidden, residual = inputs(SMALL, tokens)
    assert K.attention_pre_supported(layer, layer.self_attn, positions, hidden)
    q, k, v, total = K.attention_pre(hidden, residual, layer, layer.self_attn, positions)
    assert [len(t) for t in (q, k, v, total)] == [tokens] * 4


@pytest.mark.usefixtures("torch_backend")
def test_no_tokens_gives_no_rows() -> None:
    layer = DecoderLayer(SMALL)
    positions, hidden, _ = inputs(SMALL, 0)
    assert [len(t) for t in K.attention_pre(hidden, None, layer, layer.self_attn, positions)] == [0] * 4


def wrap(layer: DecoderLayer) -> None:
    outer = torch.nn.Module()
    outer.base_layer = layer.self_attn.qkv_proj
    layer.self_attn.qkv_proj = outer


def put(path: str, value: Any) -> Callable[[DecoderLayer], None]:
    """Set an attribute of the layer, or delete it for ``...``."""

    def change(layer: DecoderLayer) -> None:
        *parents, name = path.split(".")
        target: Any = layer
        for parent in parents:
            target = getattr(target, parent)
        if value is ...:
            delattr(target, name)
        else:
            setattr(target, name, value)

    return change


QKV = "self_attn.qkv_proj."
CHANGES: dict[str, tuple[Callable[[DecoderLayer], None], str]] = {
    "unquantised": (put(QKV + "weight", frozen(torch.zeros(256, 384).bfloat16())), "int8"),
    "dynamic_w8a8": (put(QKV + "deq_scale", ...), "static"),
    "no_offset": (put(QKV + "aclnn_input_offset", ...), "static"),
    "no_scale": (put(QKV + "aclnn_input_scale_reciprocal", ...), "static"),
    "no_quant_bias": (put(QKV + "quant_bias", ...), "static"),
    "int64_deq_scale_of_fp16": (put(QKV + "deq_scale", frozen(torch.zeros(384).long())), "fp32 deq_scale"),
    "fp32_norm": (put("input_layernorm.weight", frozen(torch.ones(256))), "bf16"),
    "fault_17_flashcomm": (put(QKV + "custom_op", object()), "flashcomm"),
    "lora": (wrap, "int8"),
    "air_has_no_qk_norm": (put("self_attn.use_qk_norm", False), "norm"),
    "no_q_norm": (put("self_attn.q_norm", ...), "norms"),
    "other_head_norm": (put("self_attn.k_norm", RMSNorm(32)), "norms"),
    "no_input_norm": (put("input_layernorm", ...), "norms"),
    "other_epsilon": (put("self_attn.q_norm.variance_epsilon", 1e-6), "epsilon"),
    "no_head_size": (put("self_attn.head_dim", None), "no q_size, kv_size and head_dim"),
    "heads_of_one": (put("self_attn.head_dim", 1), "no q_size, kv_size and head_dim"),
    "no_rotary": (put("self_attn.rotary_emb", ...), "rotary"),
    "rotary_cache_of_other_rank": (
        put("self_attn.rotary_emb.cos_sin_cache", torch.zeros(512, 2, 16)),
        "has no cos_sin_cache",
    ),
    "interleaved_rotary": (put("self_attn.rotary_emb.is_neox_style", False), "halves"),
    "unknown_sizes": (put("self_attn.kv_size", None), "kv_size"),
    "other_sizes": (put("self_attn.kv_size", 128), "q_size"),
    "transposed": (put(QKV + "weight", frozen(torch.zeros(384, 256, dtype=torch.int8).t())), "contiguous"),
}


# What differs between models, configurations and steps, so that every eager step asks it.
ASKED_IN_EACH_STEP = {
    "dynamic_w8a8",
    "int64_deq_scale_of_fp16",
    "fault_17_flashcomm",
    "lora",
    "air_has_no_qk_norm",
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who computed, call by call: "own steps" or "kernel"."""
    who: list[str] = []
    outputs = (None,) * 4
    monkeypatch.setattr(op, "own_steps", lambda *_: (who.append("own steps"), outputs)[1])
    monkeypatch.setattr(op, "_attention_pre", lambda *_: (who.append("kernel"), outputs)[1])
    return who


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("name", CHANGES)
def test_refuses(name: str, taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, the guard refuses; in an eager step it does, or the layer is left to its own steps."""
    change, why = CHANGES[name]
    layer = DecoderLayer(SMALL)
    positions, hidden, _ = inputs(SMALL, 2)
    call = (layer, layer.self_attn, positions, hidden)
    assert K.attention_pre_refusal(*call) is None and K.attention_pre_supported(*call)
    K.attention_pre(hidden, None, layer, layer.self_attn, positions)
    change(layer)
    assert why in (K.attention_pre_refusal(*call) or "")
    assert K.attention_pre_supported(*call) is (name not in ASKED_IN_EACH_STEP)
    if name not in ASKED_IN_EACH_STEP:
        K.attention_pre(hidden, None, layer, layer.self_attn, positions)
    assert taken == ["kernel"] + ["own steps"] * (name not in ASKED_IN_EACH_STEP)
    monkeypatch.setattr(op, "is_dynamo_compiling", lambda: True)
    assert K.attention_pre_supported(*call) is False


@pytest.mark.usefixtures("torch_backend")
def test_a_bias_that_was_not_loaded_counts_after_a_residual_only() -> None:
    layer = DecoderLayer(SMALL)
    positions, hidden, _ = inputs(SMALL, 2)
    for norm in (layer.self_attn.k_norm, layer.input_layernorm):
        norm.bias, norm.bias_loaded = frozen(torch.zeros(3).bfloat16()), False
        reason = K.attention_pre_refusal(layer, layer.self_attn, positions, hidden)
        assert reason == (None if norm is layer.self_attn.k_norm else "the norms' biases do not fit")


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("rows", [5, 0])
@pytest.mark.parametrize("first", [True, False], ids=["residual_none", "residual"])
def test_a_layer_that_is_left_alone_computes_what_its_forward_methods_do(first: bool, rows: int) -> None:
    layer = DecoderLayer(SMALL)
    attention = layer.self_attn
    attention.rotary_emb.is_neox_style = False
    positions, hidden, residual = inputs(SMALL, rows)
    before, calls = None if first else residual, K.calls()["attention_pre"]
    got = K.attention_pre(hidden, before, layer, attention, positions)
    assert K.calls()["attention_pre"] == calls
    normed, total = layer.input_layernorm(hidden, torch.zeros_like(hidden) if first else residual)
    q, k, v = attention.qkv_proj(normed)[0].split([256, 64, 64], dim=-1)
    q = attention.q_norm(q.view(rows, 4, 64)).view(rows, 256)
    k = attention.k_norm(k.view(rows, 1, 64)).view(rows, 64)
    for ours, wanted in zip(got, (*attention.rotary_emb(positions, q, k), v, total), strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.usefixtures("torch_backend")
def test_a_layer_that_is_left_alone_is_said_once_and_never_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notice, "LEFT_ALONE", set())
    layer = DecoderLayer(SMALL)
    layer.self_attn.rotary_emb.is_neox_style = False
    positions, hidden, _ = inputs(SMALL, 3)
    step = torch.compile(
        lambda: K.attention_pre(hidden, None, layer, layer.self_attn, positions),
        fullgraph=True,
        backend="eager",
    )
    with caplog.at_level(logging.INFO, logger="glm_pto_kernels"), torch.inference_mode():
        step()
        assert not [r for r in caplog.records if r.name == "glm_pto_kernels"]
        for _ in range(3):
            K.attention_pre(hidden, None, layer, layer.self_attn, positions)
    (line,) = [r.getMessage() for r in caplog.records if r.name == "glm_pto_kernels"]
    assert "attention_pre: a layer is left to its own modules" in line and "halves" in line


@pytest.mark.usefixtures("torch_backend")
def test_fault_16_4_5v_positions_and_other_dtypes_are_refused(taken: list[str]) -> None:
    layer = DecoderLayer(SMALL)
    positions, hidden, _ = inputs(SMALL, 2)
    attention = layer.self_attn
    assert K.attention_pre_supported(layer, attention, positions.expand(3, 2), hidden) is False
    assert "mrope" in (K.attention_pre_refusal(layer, attention, positions.expand(3, 2), hidden) or "")
    for other, why in (
        (hidden.half(), "bf16 matrix"),
        (hidden.unsqueeze(0), "bf16 matrix"),
        (hidden[:, 1:], "qkv weight is not [hidden"),
    ):
        assert why in (K.attention_pre_refusal(layer, attention, positions, other) or "")
        K.attention_pre(other, None, layer, attention, positions)
    assert taken == ["own steps"] * 3
    assert K.attention_pre_supported(layer, attention, None, hidden) is False


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize(
    "unknown",
    [None, 3, object(), int, {}, torch.nn.Identity(), SimpleNamespace(use_qk_norm=True)],
    ids=["none", "number", "object", "type", "dict", "module", "namespace"],
)
def test_unknown_objects_are_no_exception(
    unknown: Any, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "is_dynamo_compiling", lambda: traced)
    layer = DecoderLayer(SMALL)
    positions, hidden, _ = inputs(SMALL, 2)
    for call in (
        (layer, unknown, positions, hidden),
        (layer, layer.self_attn, unknown, hidden),
        (unknown, layer.self_attn, positions, hidden),
        (layer, layer.self_attn, positions, unknown),
    ):
        supported, reason = K.attention_pre_supported(*call), K.attention_pre_refusal(*call)
        assert reason is not None and not (traced and supported)
    assert K.attention_pre_supported(layer, unknown, positions, hidden) is False


@pytest.mark.usefixtures("torch_backend")
def test_fault_17_sequence_parallel_graph_pass_is_refused(
    monkeypatch: pytest.MonkeyPatch, taken: list[str]
) -> None:
    """The pass is part of compilation: vllm-ascend has it off where the model runs eagerly."""
    positions, hidden, _ = inputs(SMALL, 2)
    module = ModuleType("vllm_ascend.ascend_config")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(op, "is_dynamo_compiling", lambda: True)
    for config, supported in (
        (None, True),
        (SimpleNamespace(), True),
        (SimpleNamespace(enable_sp_by_pass=False), True),
        (SimpleNamespace(enable_sp_by_pass=True), False),
    ):
        module._ASCEND_CONFIG = config  # type: ignore[attr-defined]
        layer = DecoderLayer(SMALL)
        assert K.attention_pre_supported(layer, layer.self_attn, positions, hidden) is supported
        K.attention_pre(hidden, None, layer, layer.self_attn, positions)
    assert taken == ["kernel"] * 3 + ["own steps"]


@pytest.mark.parametrize(
    ("sizes", "fits"), [(glm_4_5(8), True), (glm_4_5(4), False), (glm_4_5_air(8), False)], ids=str
)
def test_fault_16_limits_of_a_kernel_reach_the_guard(
    environment: Callable[..., None], sizes: Sizes, fits: bool, taken: list[str]
) -> None:
    environment(GLM_PTO_BACKEND="upstream")
    layer = DecoderLayer(sizes)
    positions, hidden, _ = inputs(sizes, 2)
    call = (layer, layer.self_attn, positions, hidden)
    assert (K.attention_pre_refusal(*call) is None) is fits
    if sizes.hidden == 5120:
        assert K.attention_pre_supported(*call) is fits
    else:  # Air has the heads of GLM-4.5, and no q and k norm, which is asked in each step
        K.attention_pre(hidden, None, *call[:3])
        assert taken == ["own steps"]
        layer.self_attn.use_qk_norm = False
        assert K.attention_pre_supported(*call) is False


def test_fault_16_limits_of_a_kernel_refuse_other_models(environment: Callable[..., None]) -> None:
    from glm_pto_kernels import upstream

    limits = upstream.SIZES["attention_pre"]
    for sizes, fits in ((glm_4_5(8), True), (glm_4_5(4), False), (glm_4_5_air(8), False)):
        known = {
            "hidden": sizes.hidden,
            "q_size": sizes.q_size,
            "kv_size": sizes.kv_size,
            "head_dim": sizes.head,
            "rotary_dim": sizes.rotary,
        }
        assert (limits(**known) is None) is fits


@pytest.mark.usefixtures("torch_backend")
def test_norm_biases_follow_vllm_ascend() -> None:
    """After a residual add any bias counts; without one only a bias that the checkpoint had."""
    layer = DecoderLayer(SMALL)
    positions, hidden, residual = inputs(SMALL, 4)
    attention = layer.self_attn
    with_bias = K.attention_pre(hidden, residual, layer, attention, positions)
    attention.q_norm.bias_loaded = False
    without = K.attention_pre(hidden, residual, layer, attention, positions)
    attention.q_norm.bias = None
    absent = K.attention_pre(hidden, residual, layer, attention, positions)
    assert not torch.equal(with_bias[0], without[0]) and torch.equal(without[0], absent[0])
    assert torch.equal(with_bias[1], without[1])
    layer.input_layernorm.bias_loaded = False
    assert torch.equal(K.attention_pre(hidden, residual, layer, attention, positions)[1], absent[1])
    first = K.attention_pre(hidden, None, layer, attention, positions)
    layer.input_layernorm.bias = None
    assert torch.equal(K.attention_pre(hidden, None, layer, attention, positions)[1], first[1])
    del attention.k_norm.bias
    assert K.attention_pre_supported(layer, attention, positions, hidden)
    K.attention_pre(hidden, None, layer, attention, positions)


@pytest.mark.usefixtures("torch_backend")
def test_opcheck() -> None:
    sizes = Sizes(hidden=64, heads=2, kv_heads=1, head=16, rotary=8)
    layer = DecoderLayer(sizes)
    attention, qkv, norm = layer.self_attn, layer.self_attn.qkv_proj, layer.input_layernorm
    _, hidden, residual = inputs(sizes, 3)
    cos, sin = torch.randn(3, 1, 4).bfloat16(), torch.randn(3, 1, 4).bfloat16()
    for before, bias in ((residual, norm.bias), (None, None)):
        torch.library.opcheck(
            torch.ops.glm_pto.attention_pre.default,
            (
                hidden,
                before,
                norm.weight,
                bias,
                qkv.aclnn_input_scale_reciprocal,
                qkv.aclnn_input_offset,
                qkv.weight,
                qkv.quant_bias,
                qkv.deq_scale,
                attention.q_norm.weight,
                None if bias is None else attention.q_norm.bias,
                attention.k_norm.weight,
                None,
                cos,
                sin,
                32,
                16,
                1e-5,
            ),
        )


@pytest.mark.parametrize(
    ("part", "attribute", "change"),
    [
        ("input_layernorm", "bias", lambda bias: bias[:-1]),
        ("input_layernorm", "bias", lambda bias: bias.int()),
        ("self_attn.qkv_proj", "quant_bias", lambda values: values[:, None]),
        ("self_attn.rotary_emb", "cos_sin_cache", lambda cache: cache[:, :-1]),
    ],
)
def test_a_layer_whose_data_do_not_fit_is_left_to_its_own_modules(torch_backend, part, attribute, change):
    layer = DecoderLayer(SMALL)
    hidden, positions = torch.randn(2, SMALL.hidden).bfloat16(), torch.arange(2)
    owner = layer.get_submodule(part)
    value = change(getattr(owner, attribute))
    setattr(owner, attribute, frozen(value) if attribute in owner._parameters else value)
    assert "fit" in K.attention_pre_refusal(layer, layer.self_attn, positions, hidden)
    own = own_steps(hidden, None, layer, layer.self_attn, positions)
    found = K.attention_pre(hidden, None, layer, layer.self_attn, positions)
    assert all(torch.equal(a, b) for a, b in zip(found, own, strict=True))
