"""A verdict that is kept on a layer holds as long as what it rests on, and never under torch.compile."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends, verdicts
from tests.glm_pto_kernels import stand_ins
from tests.glm_pto_kernels.stand_ins import SMALL, frozen


@pytest.fixture
def limits_asked(monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]) -> list[str]:
    """Every operator under a kernel without limits; lists when its limits are asked."""
    asked: list[str] = []
    environment()
    for name in backends.OPERATORS:
        choice = backends.Choice("pypto", sizes=lambda name=name, **_: asked.append(name))
        monkeypatch.setitem(backends.CHOICES, name, choice)
    return asked


def conditions() -> dict[str, tuple[Callable[[], bool], Any]]:
    """Each operator's condition on one layer, and the object that it is asked about."""
    hidden, positions = torch.zeros(2, SMALL.hidden).bfloat16(), torch.arange(2)
    gate = torch.nn.Linear(SMALL.hidden, SMALL.experts, bias=False)
    layer, expert = stand_ins.DecoderLayer(SMALL), stand_ins.SharedExpert(SMALL)
    attention, impl = layer.self_attn, stand_ins.AscendAttentionBackendImpl(stand_ins.glm_4_5())
    step, query = stand_ins.metadata([3, 4]), torch.zeros(2, 12, 128).bfloat16()
    logits, bias = torch.zeros(2, 32), torch.zeros(32)
    return {
        "gate": (lambda: K.gate_supported(gate, hidden), gate),
        "attention_pre": (
            lambda: K.attention_pre_supported(layer, attention, positions, hidden),
            attention,
        ),
        "shared_expert": (lambda: K.ffn_share_expert_quant_supported(expert, hidden), expert),
        "paged_attention": (lambda: K.paged_attention_supported(impl, query, step), impl),
        "select_experts": (
            lambda: K.select_experts_supported(logits, 4, True, 1, 1, bias, scoring_func="sigmoid"),
            bias,
        ),
    }


@pytest.mark.parametrize("name", list(backends.OPERATORS))
def test_a_second_step_asks_nothing_again(limits_asked: list[str], name: str) -> None:
    condition, owner = conditions()[name]
    assert [condition() for _ in range(5)] == [True] * 5
    assert limits_asked == [name]
    if isinstance(owner, torch.nn.Module):
        twin = copy.deepcopy(owner)
        assert twin.state_dict().keys() == owner.state_dict().keys()


@pytest.mark.parametrize("name", list(backends.OPERATORS))
def test_another_backend_is_asked_again(
    limits_asked: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    condition, _ = conditions()[name]
    assert condition()
    monkeypatch.setitem(backends.CHOICES, name, backends.Choice("native", native="because"))
    assert not condition()


def test_replaced_tensors_and_wrapped_layers_are_asked_again(limits_asked: list[str]) -> None:
    gates = conditions()
    condition, gate = gates["gate"]
    assert condition()
    gate.weight = torch.nn.Parameter(gate.weight.bfloat16())
    assert not condition()

    condition, attention = gates["attention_pre"]
    assert condition()
    wrapper = torch.nn.Module()
    wrapper.base_layer, attention.qkv_proj = attention.qkv_proj, torch.nn.Identity()
    attention.qkv_proj = wrapper
    assert not condition()

    condition, expert = gates["shared_expert"]
    assert condition()
    expert.down_proj.weight = frozen(torch.zeros(48, 256))
    assert not condition()

    condition, impl = gates["paged_attention"]
    assert condition()
    impl.value_cache = impl.value_cache.float()
    assert not condition()


def test_another_question_gets_another_answer(limits_asked: list[str]) -> None:
    layer = stand_ins.DecoderLayer(SMALL)
    attention, positions = layer.self_attn, torch.arange(2)
    hidden = torch.zeros(2, SMALL.hidden).bfloat16()
    for _ in range(2):
        assert K.attention_pre_supported(layer, attention, positions, hidden)
        assert not K.attention_pre_supported(layer, attention, positions.expand(3, 2), hidden)
        assert not K.attention_pre_supported(layer, attention, positions, hidden.float())
    logits, bias = torch.zeros(2, 32), torch.zeros(32)
    for _ in range(2):
        assert K.select_experts_supported(logits, 4, True, 1, 1, bias, scoring_func="sigmoid")
        assert not K.select_experts_supported(logits, 4, True, 1, 1, bias, scoring_func="softmax")
        assert not K.select_experts_supported(logits, 33, True, 1, 1, bias, scoring_func="sigmoid")
        assert not K.select_experts_supported(logits.half(), 4, True, 1, 1, bias, scoring_func="sigmoid")
    impl, query = (
        stand_ins.AscendAttentionBackendImpl(stand_ins.glm_4_5()),
        torch.zeros(2, 12, 128).bfloat16(),
    )
    step, other = stand_ins.metadata([3, 4]), stand_ins.metadata([3, 4])
    other.causal = False
    for _ in range(2):
        assert K.paged_attention_supported(impl, query, step)
        assert not K.paged_attention_supported(impl, query, other)


def test_a_verdict_keeps_no_weight_alive(limits_asked: list[str]) -> None:
    condition, gate = conditions()["gate"]
    assert condition()
    old = weakref.ref(gate.weight)
    gate.weight = torch.nn.Parameter(torch.zeros(32, 256))
    gc.collect()
    assert old() is None and condition()


def test_nothing_is_kept_while_tracing(limits_asked: list[str]) -> None:
    layer = stand_ins.DecoderLayer(SMALL)
    before = set(vars(layer.self_attn))

    def traced(positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + int(K.attention_pre_supported(layer, layer.self_attn, positions, hidden))

    torch._dynamo.reset()
    with torch.inference_mode():
        result = torch.compile(traced, fullgraph=True, backend="eager")(
            torch.arange(2), torch.zeros(2, SMALL.hidden).bfloat16()
        )
    assert result.eq(1).all() and set(vars(layer.self_attn)) == before


@pytest.mark.parametrize(
    "owner", [None, 3, object(), int, (), {}], ids=["none", "number", "object", "type", "tuple", "dict"]
)
def test_an_owner_that_takes_no_attribute_is_left_alone(owner: object) -> None:
    assert verdicts.keep(owner, "_verdict", True, None, (), None) is True
    assert verdicts.keep(torch.nn.Identity(), "_verdict", False, None, (3,), None) is False
