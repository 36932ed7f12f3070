"""shared_expert: against vllm-ascend's arithmetic spelled out, conditions, dense layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels.ops import shared_expert as op
from tests.glm_pto_kernels.stand_ins import SMALL, RMSNorm, SharedExpert, Sizes, frozen, glm_4_5, glm_4_5_air

TOKENS = (1, 2, 31, 32, 33, 200)


def native(layer: SharedExpert, hidden: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """Dynamic quantisation, int8 product, dequantisation, SwiGLU, and again; ``stored`` is kept between."""

    def linear(rows: torch.Tensor, projection: torch.nn.Module) -> torch.Tensor:
        top = rows.float().abs().max(dim=-1, keepdim=True).values
        quantised = torch.round(rows.float() * (127.0 / top)).double()
        product = quantised @ projection.weight.double()
        return (product * (top / 127.0) * projection.weight_scale.double()).to(stored)

    return linear(layer.act_fn(linear(hidden, layer.gate_up_proj)), layer.down_proj).bfloat16()


MODELS = [*(glm_4_5(tp) for tp in (1, 2, 4, 8, 16)), *(glm_4_5_air(tp) for tp in (1, 2, 4, 8, 16))]
GRID = [
    *((SMALL, n) for n in TOKENS),
    *((sizes, 33) for sizes in (glm_4_5(8), glm_4_5(16), glm_4_5_air(8))),
    *(pytest.param(sizes, n, marks=pytest.mark.thorough) for sizes in MODELS for n in TOKENS),
]


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize(("sizes", "tokens"), GRID, ids=str)
def test_agrees_with_native_arithmetic(sizes: Sizes, tokens: int) -> None:
    torch.manual_seed(tokens)
    layer, hidden = SharedExpert(sizes), torch.randn(tokens, sizes.hidden).bfloat16()
    assert K.ffn_share_expert_quant_refusal(layer, hidden) is None
    got = K.ffn_share_expert_quant(layer, hidden)
    assert got.dtype == torch.bfloat16 and got.shape == hidden.shape
    # Values between two int8 steps fall either way (fp32), more of them after a bf16 rounding; in a batch of
    # one token a single such step moves every output, by up to one part in 127.
    for stored, worst, mean in (
        (torch.float32, 0.02, 8e-3 if tokens == 1 else 4e-3),
        (torch.bfloat16, 0.04, 0.02),
    ):
        wanted = native(layer, hidden, stored).float()
        error = (got.float() - wanted).abs()
        assert error.max() <= worst * wanted.abs().max(), stored
        assert error.mean() <= mean * wanted.abs().mean(), stored


@pytest.mark.usefixtures("torch_backend", "nan_filled")
def test_a_row_of_zeros_gives_zeros() -> None:
    hidden = torch.randn(3, SMALL.hidden).bfloat16()
    hidden[1] = 0
    assert torch.equal(
        K.ffn_share_expert_quant(SharedExpert(SMALL), hidden)[1], torch.zeros(SMALL.hidden).bfloat16()
    )


def test_follows_the_limits_of_the_pypto_kernel(environment: Callable[..., None]) -> None:
    environment(GLM_PTO_BACKEND="pypto")
    for sizes, word in ((glm_4_5_air(16), None), (glm_4_5(16), None), (SMALL, "hidden size")):
        layer, hidden = SharedExpert(sizes), torch.zeros(2, sizes.hidden).bfloat16()
        reason = K.ffn_share_expert_quant_refusal(layer, hidden)
        assert reason is None if word is None else word in (reason or "")
        assert K.ffn_share_expert_quant_supported(layer, hidden) is (word is None)


def wrap(layer: SharedExpert) -> None:
    outer = torch.nn.Module()
    outer.base_layer = layer.gate_up_proj
    layer.gate_up_proj = outer


CHANGES: dict[str, tuple[Callable[[SharedExpert], None], str]] = {
    "unquantised": (lambda m: setattr(m.down_proj, "weight", frozen(torch.zeros(48, 256))), "int8"),
    "static_w8a8": (lambda m: setattr(m.down_proj, "deq_scale", frozen(torch.zeros(256))), "dynamic"),
    "no_scale": (lambda m: delattr(m.gate_up_proj, "weight_scale"), "dynamic"),
    "fp32_scales": (lambda m: setattr(m.down_proj, "weight_scale", frozen(torch.zeros(256))), "bf16"),
    "bias": (lambda m: setattr(m.down_proj, "bias", frozen(torch.zeros(256))), "bias"),
    "fault_10_dense_layer_reduces": (lambda m: setattr(m.down_proj, "reduce_results", True), "reduces"),
    "reduce_results_unknown": (lambda m: delattr(m.down_proj, "reduce_results"), "reduces"),
    "other_activation": (lambda m: setattr(m, "act_fn", torch.nn.GELU()), "SiluAndMul"),
    "qwen3_next_expert_gate": (lambda m: setattr(m, "expert_gate", torch.nn.Linear(4, 1)), "gate of its own"),
    "lora": (wrap, "int8"),
    "mlp_tensor_parallel_up": (lambda m: setattr(m.gate_up_proj, "custom_op", object()), "communicate"),
    "mlp_tensor_parallel_down": (lambda m: setattr(m.down_proj, "custom_op", object()), "communicate"),
    "transposed": (
        lambda m: setattr(m.gate_up_proj, "weight", frozen(torch.zeros(96, 256, dtype=torch.int8).t())),
        "contiguous",
    ),
    "scales_of_other_size": (
        lambda m: setattr(m.gate_up_proj, "weight_scale", frozen(torch.zeros(95).bfloat16())),
        "one scale",
    ),
    "other_hidden": (
        lambda m: setattr(m.gate_up_proj, "weight", frozen(torch.zeros(128, 192, dtype=torch.int8))),
        "intermediate",
    ),
}


# What differs between models and configurations, so that every eager step asks it.
ASKED_IN_EACH_STEP = {
    "static_w8a8",
    "fault_10_dense_layer_reduces",
    "reduce_results_unknown",
    "mlp_tensor_parallel_down",
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who computed, call by call: "own steps" or "kernel"."""
    who: list[str] = []
    monkeypatch.setattr(op, "_shared_expert", lambda *_: who.append("kernel"))
    monkeypatch.setattr(SharedExpert, "forward", lambda *_: who.append("own steps"))
    return who


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("name", CHANGES)
def test_refuses(name: str, taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, the guard refuses; in an eager step it does, or the layer computes itself when it is taken."""
    change, why = CHANGES[name]
    layer, hidden = SharedExpert(SMALL), torch.zeros(2, SMALL.hidden).bfloat16()
    assert K.ffn_share_expert_quant_supported(layer, hidden)
    K.ffn_share_expert_quant(layer, hidden)
    change(layer)
    assert why in (K.ffn_share_expert_quant_refusal(layer, hidden) or "")
    assert K.ffn_share_expert_quant_supported(layer, hidden) is (name not in ASKED_IN_EACH_STEP)
    if name not in ASKED_IN_EACH_STEP:
        K.ffn_share_expert_quant(layer, hidden)
    assert taken == ["kernel"] + ["own steps"] * (name not in ASKED_IN_EACH_STEP)
    # From the layer's own forward it could not be left to itself: there the guard asks everything.
    assert K.ffn_share_expert_quant_supported(layer, hidden, whole_mlp=True) is False
    monkeypatch.setattr(op, "is_dynamo_compiling", lambda: True)
    assert K.ffn_share_expert_quant_supported(layer, hidden) is False


@pytest.mark.usefixtures("torch_backend")
def test_an_unquantised_layer_and_other_hidden_states_are_left_alone(taken: list[str]) -> None:
    layer, hidden = SharedExpert(SMALL), torch.zeros(2, SMALL.hidden).bfloat16()
    for other in (hidden.float(), hidden.half(), hidden.unsqueeze(0)):
        assert "bf16 matrix" in (K.ffn_share_expert_quant_refusal(layer, other) or "")
        K.ffn_share_expert_quant(layer, other)
    assert taken == ["own steps"] * 3
    for projection in (layer.gate_up_proj, layer.down_proj):
        del projection.weight_scale
    assert K.ffn_share_expert_quant_supported(layer, hidden) is False


@pytest.mark.usefixtures("torch_backend")
def test_a_layer_that_is_left_alone_computes_what_its_forward_does() -> None:
    layer, hidden = SharedExpert(SMALL), torch.randn(5, SMALL.hidden).bfloat16()
    layer.gate_up_proj.bias = frozen(torch.zeros(96))
    before = K.calls()["shared_expert"]
    assert torch.equal(K.ffn_share_expert_quant(layer, hidden), layer(hidden))
    assert K.calls()["shared_expert"] == before


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [(glm_4_5(8), True), (glm_4_5(4), False), (Sizes(hidden=7168, intermediate=256), False)],
    ids=str,
)
def test_limits_of_a_kernel_reach_the_guard(
    environment: Callable[..., None], sizes: Sizes, fits: bool
) -> None:
    environment(GLM_PTO_BACKEND="upstream")
    layer, hidden = SharedExpert(sizes), torch.zeros(2, sizes.hidden).bfloat16()
    assert (K.ffn_share_expert_quant_refusal(layer, hidden) is None) is fits
    assert K.ffn_share_expert_quant_supported(layer, hidden) is fits


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize(
    "unknown",
    [None, 3, object(), int, {}, torch.nn.Identity(), RMSNorm(8)],
    ids=["none", "number", "object", "type", "dict", "identity", "norm"],
)
def test_unknown_objects_are_no_exception(
    unknown: object, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "is_dynamo_compiling", lambda: traced)
    assert K.ffn_share_expert_quant_supported(unknown, torch.zeros(2, 256).bfloat16()) is False
    assert K.ffn_share_expert_quant_refusal(unknown, torch.zeros(2, 256).bfloat16()) is not None
    layer = SharedExpert(SMALL)
    assert not (traced and K.ffn_share_expert_quant_supported(layer, unknown))
    assert K.ffn_share_expert_quant_refusal(layer, unknown) is not None


@pytest.mark.usefixtures("torch_backend")
def test_the_whole_mlp_stays_native_beside_vllm_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = SharedExpert(SMALL), torch.zeros(2, SMALL.hidden).bfloat16()
    assert K.ffn_share_expert_quant_supported(layer, hidden, whole_mlp=True)
    monkeypatch.setattr(op, "_VLLM_ASCEND", True)
    assert K.ffn_share_expert_quant_supported(layer, hidden)
    assert "itself" in (K.ffn_share_expert_quant_refusal(layer, hidden, whole_mlp=True) or "")


@pytest.mark.usefixtures("torch_backend")
def test_opcheck() -> None:
    layer = SharedExpert(Sizes(hidden=64, intermediate=16))
    up, down = layer.gate_up_proj, layer.down_proj
    sample = (torch.randn(3, 64).bfloat16(), up.weight, up.weight_scale, down.weight, down.weight_scale)
    torch.library.opcheck(torch.ops.glm_pto.shared_expert.default, sample)
