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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_takes_strided_rows_of_any_dtype_as_the_replaced_cast_does(dtype: torch.dtype) -> None:
    gate = layer()
    wide = torch.randn(6, 2 * SMALL.hidden).to(dtype)
    hidden = wide[::2, ::2]
    assert not hidden.is_contiguous() and K.gate_supported(gate, hidden)
    torch.testing.assert_close(K.gate(gate, hidden), gate(hidden.to(dtype=torch.float32)))


@pytest.mark.usefixtures("torch_backend", "nan_filled")
def test_a_transposed_weight_reaches_the_kernel_dense(environment: Callable[..., None]) -> None:
    turned, hidden = layer(), torch.randn(3, SMALL.hidden)
    turned.weight = torch.nn.Parameter(torch.randn(SMALL.hidden, SMALL.experts).t())
    assert K.gate_supported(turned, hidden)
    torch.testing.assert_close(K.gate(turned, hidden), turned(hidden))
    seen = []
    environment()
    K.register("gate", lambda hidden_states, weight, out: seen.append(weight))
    K.gate(turned, hidden)
    assert seen[0].is_contiguous() and torch.equal(seen[0], turned.weight)


@pytest.mark.usefixtures("torch_backend")
def test_sizes_that_do_not_fit_raise_as_the_native_call_does() -> None:
    gate, hidden = layer(), torch.zeros(2, 128)
    for call in (lambda: gate(hidden), lambda: K.gate(gate, hidden)):
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            call()


@pytest.mark.parametrize(
    ("gate", "hidden", "why"),
    [
        (layer(dtype=torch.bfloat16), torch.zeros(2, 256).bfloat16(), "fp32 weight"),
        (torch.nn.Linear(256, 32), torch.zeros(2, 256), "bias"),
        (layer(), torch.zeros(2, 3, 256), "matrix"),
        (layer(), None, "matrix"),
        (torch.nn.Identity(), torch.zeros(2, 256), "weight"),
        (object(), torch.zeros(2, 256), "weight"),
        (None, torch.zeros(2, 256), "weight"),
    ],
    ids=["bf16_weight", "bias", "rank_3", "none", "no_weight", "foreign", "no_layer"],
)
@pytest.mark.usefixtures("torch_backend")
def test_refuses(gate: object, hidden: torch.Tensor, why: str) -> None:
    assert K.gate_supported(gate, hidden) is False
    assert why in (K.gate_refusal(gate, hidden) or "")


@pytest.mark.usefixtures("torch_backend")
def test_refuses_a_lora_wrapper_and_a_vector_for_a_weight() -> None:
    wrapped = torch.nn.Module()
    wrapped.base_layer = layer()
    assert not K.gate_supported(wrapped, torch.zeros(2, 256))
    flat = layer()
    flat.weight = torch.nn.Parameter(torch.randn(256))
    assert not K.gate_supported(flat, torch.zeros(2, 256))
    assert "experts, hidden" in (K.gate_refusal(flat, torch.zeros(2, 256)) or "")


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
    """Sizes that the kernel refuses have its reason; those that no GLM has are not asked about."""

    def limits(hidden: int, experts: int) -> str | None:
        return f"{hidden} x {experts}" if experts == 32 else None

    environment()
    choice = backends.Choice("pypto", sizes=frozenset({(160, 5120)}), limits=limits)
    monkeypatch.setitem(backends.CHOICES, "gate", choice)
    for sizes, why in ((SMALL, "256 x 32"), (Sizes(hidden=256, experts=64), "neither GLM-4.5's")):
        gate, hidden = layer(sizes), torch.zeros(2, 256)
        assert K.gate_supported(gate, hidden) is False and why in (K.gate_refusal(gate, hidden) or "")
    gate, hidden = layer(glm_4_5()), torch.zeros(2, 5120)
    assert K.gate_supported(gate, hidden) and K.gate_refusal(gate, hidden) is None
