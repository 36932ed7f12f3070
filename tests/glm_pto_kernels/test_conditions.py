"""The conditions as a whole: nothing is kept or changed, nothing raises, and a refusal says what they say."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import logging
import pickle
import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends, choices, models, verdicts
from glm_pto_kernels.ops import attention_pre, gate, paged_attention, select_experts, shared_expert
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
    elsewhere = tuple(
        each.to("meta") if isinstance(each, (torch.Tensor, torch.nn.Module)) else each
        for each in asked(name, glm_4_5())
    )
    assert supported(name, elsewhere) is True and refusal(name, elsewhere) is None


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


# --- what stands in a layer's place need not be one -----------------------------------------------------


class Raises:
    """Nothing can be asked of it."""

    def __getattribute__(self, name: str) -> object:
        raise AttributeError(name)


@functools.cache
def scripted() -> torch.jit.ScriptModule:
    """A module whose ``_parameters`` and ``_modules`` are no dictionaries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and models still hold such modules
        return torch.jit.script(torch.nn.Linear(5120, 160, bias=False))  # type: ignore[no-any-return]


MISSING = object()
HOSTILE: dict[str, Callable[[Any], Any]] = {
    "missing": lambda old: MISSING,
    "none": lambda old: None,
    "number": lambda old: -3,
    "text": lambda old: "weight",
    "object": lambda old: object(),
    "class": lambda old: torch.nn.Linear,
    "list": lambda old: [1, 2],
    "no_dictionaries": lambda old: SimpleNamespace(_parameters=None, _modules=None, _buffers=None),
    "raises": lambda old: Raises(),
    "scripted": lambda old: scripted(),
    "tensor": lambda old: torch.zeros(3, 3, 3, dtype=torch.int16),  # its truth is asked with an error
    "dtype_only": lambda old: SimpleNamespace(dtype=getattr(old, "dtype", None)),
}


def places(*roots: str) -> dict[str, tuple[str, ...]]:
    """Ways into an argument: each is a dictionary of a module, or what one holds, or a plain attribute."""
    return {root: tuple(root.split()) for root in roots}


def within(module: str, *held: str) -> tuple[str, ...]:
    return (module, f"{module} _parameters", *(f"{module} _parameters {name}" for name in held))


# Every fact that a condition or a refusal of each operator asks: the argument, and the way into it.
QKV, ROTARY = "_modules qkv_proj", "_modules rotary_emb"
FACTS: dict[str, dict[int, dict[str, tuple[str, ...]]]] = {
    "gate": {0: places("", "_parameters", "_parameters weight"), 1: places("")},
    "select_experts": {place: places("") for place in range(7)},
    "paged_attention": {
        0: places("", "key_cache", "value_cache", "num_kv_heads"),
        1: places(""),
        2: places("", "seq_lens", "block_tables"),
    },
    "attention_pre": {
        0: places("", "_modules", *within("_modules input_layernorm", "weight")),
        1: places(
            *("", "use_qk_norm", "q_size", "kv_size", "head_dim", "_modules", f"{ROTARY} _buffers"),
            *within(QKV, "weight", "quant_bias", "deq_scale"),
            *(f"{QKV} aclnn_input_scale_reciprocal", f"{QKV} aclnn_input_offset"),
            *within("_modules q_norm", "weight"),
            *within("_modules k_norm", "weight"),
            *("_modules q_norm variance_epsilon", ROTARY, f"{ROTARY} _buffers cos_sin_cache"),
        ),
        2: places(""),
        3: places(""),
    },
    "shared_expert": {
        0: places(
            *("", "_modules", "_modules act_fn", "_modules down_proj reduce_results"),
            *within("_modules gate_up_proj", "weight", "weight_scale"),
            *within("_modules down_proj", "weight", "weight_scale"),
        ),
        1: places(""),
    },
}
# Facts of a layer that an eager step leaves to the operator, which leaves such a layer to itself.
LATE = ("attention_pre", "shared_expert")
# The metadata hold any lengths and tables: the native call would take the same.
FINE = {
    ("paged_attention", "seq_lens"): {*HOSTILE} - {"missing", "none"},
    ("paged_attention", "block_tables"): {*HOSTILE} - {"missing", "none"},
}


whole = functools.cache(lambda name: asked(name, glm_4_5()))


def replaced(
    patch: pytest.MonkeyPatch, name: str, argument: int, way: tuple[str, ...], kind: str
) -> tuple[Any, ...]:
    """The arguments with something hostile at the end of the way."""
    arguments: list[Any] = [*whole(name)]
    if not way:
        new = HOSTILE[kind](arguments[argument])
        arguments[argument] = None if new is MISSING else new
        return tuple(arguments)
    entries = vars(arguments[argument])
    for step in way[:-1]:
        found = entries[step]
        entries = found if isinstance(found, dict) else vars(found)
    new = HOSTILE[kind](entries[way[-1]])
    if new is MISSING:
        patch.delitem(entries, way[-1])
    else:
        patch.setitem(entries, way[-1], new)
    return tuple(arguments)


@pytest.mark.parametrize("backend", ["torch", "pypto"])
@pytest.mark.parametrize(
    ("name", "argument", "way"),
    [
        pytest.param(name, argument, way, id=f"{name}-{argument}-{path.replace(' ', '.') or 'itself'}")
        for name, arguments in FACTS.items()
        for argument, ways in arguments.items()
        for path, way in ways.items()
    ],
)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # of a tensor in a dictionary's place
def test_a_condition_is_false_and_never_raises_on_what_is_no_layer(
    environment: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    argument: int,
    way: tuple[str, ...],
    backend: str,
) -> None:
    environment(GLM_PTO_BACKEND=backend)
    for kind in {*HOSTILE} - FINE.get((name, " ".join(way)), set()):
        with monkeypatch.context() as patch:
            arguments = replaced(patch, name, argument, way, kind)
            answer, reason = supported(name, arguments), refusal(name, arguments)
            getattr(whole(name)[0], "__dict__", {}).pop(paged_attention._KEPT, None)  # of what was hostile
        assert isinstance(reason, str), kind
        assert answer is False or (answer is True and name in LATE), kind
    assert supported(name, whole(name)) and refusal(name, whole(name)) is None


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


def test_nothing_is_kept_while_dynamo_traces(
    paged: tuple[Any, torch.Tensor, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    impl, query, step = paged
    del vars(impl)[paged_attention._KEPT]
    told: list[bool] = []
    monkeypatch.setattr(backends, "TOLD", lambda: told.append(True) or True)
    monkeypatch.setattr(paged_attention, "is_dynamo_compiling", lambda: True)
    assert K.paged_attention_supported(impl, query, step)
    assert told == [True] and paged_attention._KEPT not in vars(impl)


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


def test_an_implementation_with_a_verdict_is_copied_and_pickled_without_it(
    paged: tuple[Any, torch.Tensor, Any],
) -> None:
    impl, query, step = paged
    for copied in (pickle.loads(pickle.dumps(impl)), copy.deepcopy(impl)):
        assert vars(copied)[paged_attention._KEPT] is None and vars(impl)[paged_attention._KEPT] is not None
        assert torch.equal(copied.key_cache, impl.key_cache)
        assert K.paged_attention_supported(copied, query, step)
        copied.value_cache = copied.key_cache = impl.key_cache.float()
        assert not K.paged_attention_supported(copied, query, step)
    assert K.paged_attention_supported(copy.copy(impl), query, step)


@pytest.mark.parametrize(
    "query",
    [torch.zeros(2, 12, 128), torch.zeros(2, 1536).bfloat16(), None, [[1.0]], Raises()],
    ids=["dtype", "rank", "none", "list", "raises"],
)
def test_every_steps_query_is_looked_at_and_leaves_the_verdict(
    paged: tuple[Any, torch.Tensor, Any], query: Any
) -> None:
    impl, good, step = paged
    for again in (True, False):
        assert K.paged_attention_supported(impl, query, step) is False
        assert K.paged_attention_supported(impl, good, step)
        if again:
            del vars(impl)[paged_attention._KEPT]


@pytest.mark.parametrize(
    "owner", [None, 3, object(), int, (), {}], ids=["none", "number", "object", "type", "tuple", "dict"]
)
def test_an_owner_that_takes_no_attribute_is_left_alone(owner: object) -> None:
    assert verdicts.keep(owner, "_verdict", True, None, torch.zeros(1)) is True
    assert verdicts.keep(torch.nn.Identity(), "_verdict", False, None, 3) is False
