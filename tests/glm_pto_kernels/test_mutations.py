"""Layers and calls with one thing wrong: a condition is True or False, and True only where the operator runs.

Each attribute of a stand-in, one after the other, is missing, of another type, dtype or size. Wherever the
native steps still compute something, the operator has to as well: by itself, or by leaving the layer to them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm_pto_kernels import own_steps
from glm_pto_kernels.ops import attention_pre, gate, paged_attention, select_experts, shared_expert
from tests.glm_pto_kernels.stand_ins import SMALL, frozen, glm_4_5
from tests.glm_pto_kernels.test_conditions import asked, refusal, supported

NAMES = (
    "gate",
    "shared_expert",
    "select_experts",
    pytest.param("attention_pre", marks=pytest.mark.thorough),
    pytest.param("paged_attention", marks=pytest.mark.thorough),
)
LATE = ("attention_pre", "shared_expert")  # some facts are asked when the operator is taken
MISSING = object()


class Evil:
    """Answers nothing without an error."""

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __bool__(self) -> bool:
        raise RuntimeError("asked for its truth")


def others(value: Any) -> Iterator[Any]:
    """What may stand in a value's place."""
    yield from (None, "x", 0, 1, -1, 1.5, True, False, [], 10**30, float("nan"), Evil(), SimpleNamespace())
    yield from (torch.tensor(1), torch.zeros(3), torch.nn.Linear(2, 2))
    if type(value) is int:
        yield from (value + 1, float(value))
    if not isinstance(value, torch.Tensor):
        return
    yield from (
        value.half(),
        value.float(),
        value.double(),
        value.bfloat16(),
        value.int(),
        value.to(torch.int8),
    )
    yield from (value[None], value[..., None], value.flatten()[0])
    if value.dim():
        yield from (
            value[:-1],
            value[:0],
            value[..., :-1],
            torch.cat([value, value]),
            value[:1].expand(value.shape),
        )
        yield torch.stack([value, value], -1)[..., 0]
    if value.dim() > 1:
        yield from (value.transpose(-1, -2), value.flatten(), value.mT.contiguous().mT)


def places(owner: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every attribute of an object and of the modules below it: dictionary, name, ..."""
    if isinstance(owner, torch.nn.Module):
        for kind in ("_parameters", "_buffers", "_modules"):
            yield from ((*path, kind, name) for name in vars(owner)[kind])
        for name, part in owner._modules.items():
            yield from places(part, (*path, "_modules", name))
    if not isinstance(owner, torch.Tensor):
        for name in vars(owner) if hasattr(owner, "__dict__") else ():
            if not name.startswith("_") and name != "training":
                yield (*path, "__dict__", name)


def dictionary(owner: Any, path: tuple[str, ...]) -> dict[str, Any]:
    for kind, name in zip(path[:-2:2], path[1:-2:2], strict=True):
        owner = getattr(owner, kind)[name]
    found: dict[str, Any] = getattr(owner, path[-2])
    return found


def mutants(name: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The arguments of a condition with one thing changed, and its name."""
    good = asked(name, glm_4_5() if name == "paged_attention" else SMALL)
    for place, argument in enumerate(good):
        if name == "attention_pre" and place == 1:
            continue  # the layer's own part
        for other in others(argument):
            if name == "paged_attention":  # a verdict is for the layer's own queries
                vars(good[0]).pop(paged_attention._KEPT, None)
            yield f"argument {place}: {other!r:.60}", (*good[:place], other, *good[place + 1 :])
        for path in places(argument):
            for other in (MISSING, *others(dictionary(argument, path)[path[-1]])):
                mutant = list(copy.deepcopy(good) if place == 0 else (*good[:place], copy.copy(argument)))
                mutant += good[len(mutant) :]
                data = dictionary(mutant[place], path)
                if other is MISSING:
                    del data[path[-1]]
                else:
                    parameter = path[-2] == "_parameters" and isinstance(other, torch.Tensor)
                    data[path[-1]] = frozen(other) if parameter else other
                if name == "attention_pre":
                    mutant[1] = mutant[0]._modules.get("self_attn")
                yield f"{'.'.join(path[1::2])}: {other!r:.60}", tuple(mutant)


def native(name: str, a: tuple[Any, ...]) -> Any:
    """The replaced statement's arithmetic."""
    if name == "gate":
        return a[0](a[1].to(torch.float32))
    if name == "shared_expert":
        return a[0](a[1])
    if name == "attention_pre":
        # A stand-in turns by any positions; a real one looks one row a token up in its cache.
        assert a[1].rotary_emb.cos_sin_cache.index_select(0, a[2]).shape[0] == a[3].shape[0]
        return own_steps.own_steps(a[3], None, a[0], a[1], a[2])
    if name == "paged_attention":
        caches = a[0].key_cache, a[0].value_cache
        return paged_attention.reference(a[1], *caches, a[2].block_tables, a[2].seq_lens, a[0].scale)
    score = a[0].sigmoid()
    weights = score.gather(-1, (score + a[5]).topk(a[1], dim=-1).indices)
    return weights / weights.sum(-1, keepdim=True)


def operator(name: str, a: tuple[Any, ...]) -> Any:
    if name == "gate":
        return gate.gate(*a)
    if name == "shared_expert":
        return shared_expert.ffn_share_expert_quant(*a)
    if name == "attention_pre":
        return attention_pre.attention_pre(a[3], None, a[0], a[1], a[2])
    if name == "paged_attention":
        caches, step, out = (a[0].key_cache, a[0].value_cache), a[2], torch.zeros_like(a[1])
        return paged_attention.paged_attention(
            a[1], *caches, step.block_tables, step.seq_lens, out, a[0].scale, step
        )
    return select_experts.select_experts(*a[:6])[0]


def outcome(run: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return run(name, arguments)
    except Exception as error:
        return error


def fault(name: str, arguments: tuple[Any, ...]) -> str | None:
    answer, reason = supported(name, arguments), refusal(name, arguments)
    if type(answer) is not bool or not isinstance(reason, str | None):
        return f"answers {answer!r} and {reason!r}"
    if answer is not (reason is None) and not (answer and name in LATE):
        return f"answers {answer}, and the refusal is {reason}"
    if not answer:
        return None
    expected = outcome(native, name, arguments)
    if isinstance(expected, Exception):
        return None
    found = outcome(operator, name, arguments)
    if isinstance(found, Exception):
        return f"raises {found!r:.200} where native code does not"
    same = name in LATE or torch.allclose(found.float(), expected.float(), 1e-2, 1e-2, equal_nan=True)
    return None if same else "differs from native code"


@pytest.mark.parametrize("name", NAMES)
def test_a_condition_is_true_only_where_the_operator_runs(torch_backend: None, name: str) -> None:
    torch.manual_seed(0)
    faults = {label: reason for label, mutant in mutants(name) if (reason := fault(name, mutant))}
    assert faults == {}
