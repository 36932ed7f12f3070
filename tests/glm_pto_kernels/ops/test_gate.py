"""gate: adaptation against native, conditions, argument order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends
from glm_pto_kernels.ops.gate import reference
from tests.glm_pto_kernels.stand_ins import SMALL, Sizes, glm_4_5, glm_4_5_air

TOKENS = (1, 2, 31, 32, 33, 200)


def layer(sizes: Sizes = SMALL, dtype: torch.dtype = torch.float32) -> torch.nn.Linear:
    return torch.nn.Linear(sizes.hidden, sizes.experts, bias=False, dtype=dtype)


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("sizes", [glm_4_5(), glm_4_5_air()], ids=["glm_4_5", "air"])
def test_equals_the_native_call(sizes: Sizes, tokens: int) -> None:
    gate, hidden = layer(sizes), torch.randn(tokens, sizes.hidden).bfloat16()
    with torch.no_grad():
        assert K.gate_refusal(gate, hidden) is None
        got, native = K.gate(gate, hidden), gate(hidden.to(dtype=torch.float32))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, native, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("torch_backend")
def test_no_tokens_gives_no_rows() -> None:
    assert K.gate(layer(), torch.empty(0, SMALL.hidden).bfloat16()).shape == (0, SMALL.experts)


@pytest.mark.usefixtures("torch_backend", "nan_filled")
def test_takes_strided_rows_and_the_guides_fp32_input() -> None:
    gate = layer()
    wide = torch.randn(6, 2 * SMALL.hidden)
    hidden = wide[::2, ::2]
    assert not hidden.is_contiguous() and K.gate_supported(gate, hidden)
    torch.testing.assert_close(K.gate(gate, hidden), reference(hidden, gate.weight))


@pytest.mark.parametrize(
    ("gate", "hidden", "why"),
    [
        (layer(dtype=torch.bfloat16), torch.zeros(2, 256).bfloat16(), "fp32 weight"),
        (torch.nn.Linear(256, 32), torch.zeros(2, 256), "bias"),
        (layer(), torch.zeros(2, 3, 256), "matrix"),
        (layer(), torch.zeros(2, 256, dtype=torch.float16), "bf16 or fp32"),
        (layer(), torch.zeros(2, 128), "experts, hidden"),
        (layer(), None, "matrix"),
        (torch.nn.Identity(), torch.zeros(2, 256), "weight"),
        (object(), torch.zeros(2, 256), "weight"),
        (None, torch.zeros(2, 256), "weight"),
    ],
    ids=["bf16_weight", "bias", "rank_3", "fp16", "other_hidden", "none", "no_weight", "foreign", "no_layer"],
)
@pytest.mark.usefixtures("torch_backend")
def test_refuses(gate: object, hidden: torch.Tensor, why: str) -> None:
    assert K.gate_supported(gate, hidden) is False
    assert why in (K.gate_refusal(gate, hidden) or "")


@pytest.mark.usefixtures("torch_backend")
def test_refuses_a_lora_wrapper_and_a_transposed_weight() -> None:
    wrapped = torch.nn.Module()
    wrapped.base_layer = layer()
    assert not K.gate_supported(wrapped, torch.zeros(2, 256))
    turned = layer()
    turned.weight = torch.nn.Parameter(torch.randn(256, 32).t())
    assert "contiguous" in (K.gate_refusal(turned, torch.zeros(2, 256)) or "")


def test_fault_6_kernel_gets_hidden_states_first(environment: Callable[..., None]) -> None:
    seen = []
    environment()
    K.register(
        "gate",
        lambda hidden_states, gate_weight, router_logits_out: seen.append(
            (hidden_states.shape, gate_weight.shape, router_logits_out.shape)
        ),
    )
    gate = layer(Sizes(hidden=64, experts=8))
    assert K.gate_supported(gate, torch.zeros(3, 64))
    K.gate(gate, torch.zeros(3, 64))
    assert seen == [((3, 64), (8, 64), (3, 8))]


@pytest.mark.usefixtures("torch_backend")
def test_opcheck() -> None:
    sample = (torch.randn(4, 64).bfloat16(), torch.randn(8, 64))
    torch.library.opcheck(torch.ops.glm_pto.gate.default, sample)


def test_reference_takes_any_float() -> None:
    hidden, weight = torch.randn(3, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(reference(hidden, weight), torch.einsum("th,eh->te", hidden, weight))
    assert reference(hidden.half(), weight.half()).dtype == torch.float16


def test_limits_of_a_kernel_refuse(environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    environment(GLM_PTO_BACKEND="torch")
    limits = backends.Choice("pypto", sizes=lambda hidden, experts: f"{hidden} x {experts}")
    monkeypatch.setitem(backends.CHOICES, "gate", limits)
    assert K.gate_refusal(layer(), torch.zeros(2, 256)) == "256 x 32"
