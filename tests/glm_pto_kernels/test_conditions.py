"""The conditions as a whole: nothing is kept or changed, nothing raises, and a refusal says what they say."""

from __future__ import annotations

import dataclasses
import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends, choices, models, verdicts
from glm_pto_kernels.ops import attention_pre, gate, select_experts, shared_expert
from tests.glm_pto_kernels import stand_ins
from tests.glm_pto_kernels.stand_ins import SMALL, Sizes, glm_4_5, glm_4_5_air

PURE = ("gate", "attention_pre", "shared_expert", "select_experts")
FUNCTIONS = {name: name for name in choices.NAMES} | {"shared_expert": "ffn_share_expert_quant"}
OPS = {
    "gate": gate,
    "attention_pre": attention_pre,
    "shared_expert": shared_expert,
    "select_experts": select_experts,
}


def asked(name: str, sizes: Sizes) -> tuple[Any, ...]:
    """The arguments of a condition for a layer of these sizes."""
    hidden, positions = torch.zeros(2, sizes.hidden).bfloat16(), torch.arange(2)
    if name == "gate":
        return torch.nn.Linear(sizes.hidden, sizes.experts, bias=False), hidden
    if name == "attention_pre":
        layer = stand_ins.DecoderLayer(sizes)
        return layer, layer.self_attn, positions, hidden
    if name == "shared_expert":
        return stand_ins.SharedExpert(sizes), hidden
    if name == "paged_attention":
        impl = stand_ins.AscendAttentionBackendImpl(sizes)
        query = torch.zeros(2, sizes.heads, sizes.head).bfloat16()
        return impl, query, stand_ins.metadata([3, 4])
    logits = torch.zeros(2, sizes.experts)
    return logits, min(8, sizes.experts), True, 1, 1, torch.zeros(sizes.experts), "sigmoid"


def supported(name: str, arguments: tuple[Any, ...]) -> bool:
    return getattr(K, f"{FUNCTIONS[name]}_supported")(*arguments)


def refusal(name: str, arguments: tuple[Any, ...]) -> str | None:
    return getattr(K, f"{FUNCTIONS[name]}_refusal")(*arguments)


def state(value: Any) -> Any:
    """Everything that an argument holds, by identity."""
    if isinstance(value, torch.nn.Module):
        parts = [(name, id(part), sorted(vars(part))) for name, part in value.named_modules()]
        return parts, [(name, id(p), p._version) for name, p in value.named_parameters()]
    if isinstance(value, torch.Tensor):
        return value._version, sorted(vars(value))
    return value


@pytest.mark.parametrize("backend", ["torch", "pypto", "auto"])
@pytest.mark.parametrize("name", PURE)
def test_a_condition_keeps_changes_and_says_nothing(
    environment: Callable[..., None], name: str, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment(GLM_PTO_BACKEND=backend)
    arguments = asked(name, glm_4_5())
    before = [state(each) for each in arguments]
    with caplog.at_level(logging.DEBUG):
        answers = {supported(name, arguments) for _ in range(3)}
    assert len(answers) == 1 and caplog.records == []
    assert [state(each) for each in arguments] == before


SIZES = [
    SMALL,
    *(glm_4_5(ranks) for ranks in (1, 2, 4, 8, 16)),
    *(glm_4_5_air(ranks) for ranks in (1, 8, 16)),
    Sizes(hidden=7168, experts=256, heads=16, kv_heads=1, intermediate=256),
    Sizes(hidden=5120, experts=100, heads=10, kv_heads=2, intermediate=100),
]


@pytest.mark.parametrize("backend", ["torch", "pypto", "upstream", "auto", "custom"])
@pytest.mark.parametrize("name", backends.NAMES)
def test_a_refusal_says_what_the_condition_says(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str, backend: str
) -> None:
    """For every size and backend; traced always, and in eager steps up to what is asked when it is taken."""
    environment(GLM_PTO_BACKEND=backend)
    for sizes in SIZES:
        arguments = asked(name, sizes)
        reason = refusal(name, arguments)
        answer = supported(name, arguments)
        # GLM-4.5-Air has the heads of GLM-4.5, so its hidden size is looked at when the operator is taken.
        late = name == "attention_pre" and backend == "upstream" and sizes.hidden == 4096
        assert answer is (reason is None) or (late and answer and reason), (sizes, answer, reason)
        if name in OPS:
            monkeypatch.setattr(OPS[name], "is_dynamo_compiling", lambda: True)
            assert supported(name, arguments) is (reason is None)
            monkeypatch.setattr(OPS[name], "is_dynamo_compiling", lambda: False)


@pytest.mark.parametrize("name", backends.NAMES)
def test_auto_leaves_tensors_on_the_cpu_alone(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    environment(GLM_PTO_BACKEND="pypto")
    choice = dataclasses.replace(backends.CHOICES[name], off_cpu=True)
    monkeypatch.setitem(backends.CHOICES, name, choice)
    arguments = asked(name, glm_4_5())
    assert supported(name, arguments) is False and "on the CPU" in (refusal(name, arguments) or "")


@pytest.mark.parametrize("name", backends.NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_our_kernel_takes_glm_4_5_on_any_number_of_ranks(
    environment: Callable[..., None], name: str, ranks: int
) -> None:
    environment(GLM_PTO_BACKEND="pypto")
    assert refusal(name, asked(name, glm_4_5(ranks))) is None
    assert supported(name, asked(name, glm_4_5(ranks)))


@pytest.mark.parametrize("name", backends.NAMES)
def test_the_kernel_is_asked_once_for_each_size_and_never_by_a_condition(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    questions: list[dict[str, int]] = []
    monkeypatch.setattr(choices, "_limits", lambda backend, name: lambda **sizes: questions.append(sizes))
    environment(GLM_PTO_BACKEND="pypto")
    arguments = asked(name, glm_4_5())
    assert backends.CHOICES[name].sizes == {key for key, _ in models.asked(name)}
    questions.clear()
    if name in PURE:
        assert [supported(name, arguments) for _ in range(3)] == [True] * 3
        assert questions == []


# --- paged_attention keeps its verdict ------------------------------------------------------------------


@pytest.fixture
def paged(environment: Callable[..., None]) -> tuple[Any, torch.Tensor, Any]:
    environment(GLM_PTO_BACKEND="pypto")
    impl, query, step = asked("paged_attention", glm_4_5())
    assert K.paged_attention_supported(impl, query, step)
    return impl, query, step


def test_a_verdict_holds_as_long_as_what_it_rests_on(
    paged: tuple[Any, torch.Tensor, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    impl, query, step = paged
    keys = impl.key_cache
    impl.key_cache = keys.float()
    assert not K.paged_attention_supported(impl, query, step)
    impl.key_cache = keys
    assert K.paged_attention_supported(impl, query, step)
    choice = backends.Choice("native", native="because")
    monkeypatch.setitem(backends.CHOICES, "paged_attention", choice)
    assert not K.paged_attention_supported(impl, query, step)


def test_a_step_is_asked_each_time(paged: tuple[Any, torch.Tensor, Any]) -> None:
    impl, query, step = paged
    other = stand_ins.metadata([3, 4])
    other.causal = False
    for _ in range(2):
        assert K.paged_attention_supported(impl, query, step)
        assert not K.paged_attention_supported(impl, query, other)


def test_a_verdict_keeps_no_cache_alive(paged: tuple[Any, torch.Tensor, Any]) -> None:
    impl, query, step = paged
    old = weakref.ref(impl.key_cache)
    impl.key_cache = torch.zeros_like(impl.key_cache)
    gc.collect()
    assert old() is None and K.paged_attention_supported(impl, query, step)


@pytest.mark.parametrize(
    "owner", [None, 3, object(), int, (), {}], ids=["none", "number", "object", "type", "tuple", "dict"]
)
def test_an_owner_that_takes_no_attribute_is_left_alone(owner: object) -> None:
    assert verdicts.keep(owner, "_verdict", True, None, torch.zeros(1)) is True
    assert verdicts.keep(torch.nn.Identity(), "_verdict", False, None, 3) is False
