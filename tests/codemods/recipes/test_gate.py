"""The gate recipe: which statement gets the guard, and which look-alikes do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glm_pto.codemods.findings import State

FILE = "vllm/model_executor/models/glm4_moe.py"

BEFORE = """\
import torch


class Glm4MoE(torch.nn.Module):
    def forward(self, hidden_states):
        rows, width = hidden_states.shape
        hidden_states = hidden_states.view(-1, width)
        # which experts
        {statement}
        return self.experts(hidden_states, router_logits).view(rows, width)
"""
FP32 = "router_logits = self.gate(hidden_states.to(dtype=torch.float32))"
PAIR = "router_logits, _ = self.gate(hidden_states)"

AFTER = """\
import torch
import glm_pto_kernels  # glm-pto: import 1


class Glm4MoE(torch.nn.Module):
    def forward(self, hidden_states):
        rows, width = hidden_states.shape
        hidden_states = hidden_states.view(-1, width)
        # which experts
        if glm_pto_kernels.USE_PTO_GATE and glm_pto_kernels.gate_supported(self.gate, hidden_states):  # gate
            router_logits = glm_pto_kernels.gate(self.gate, hidden_states)
        else:
            {statement}
        return self.experts(hidden_states, router_logits).view(rows, width)
"""

Make = Callable[..., Any]


@pytest.mark.parametrize("statement", [pytest.param(FP32, id="cast"), pytest.param(PAIR, id="pair")])
def test_guards_the_gate(patient: Make, statement: str) -> None:
    tree = patient({FILE: BEFORE.format(statement=statement)})
    assert tree.guarded() == AFTER.format(statement=statement)


def test_keeps_a_call_over_several_lines(patient: Make) -> None:
    lines = (
        "router_logits = self.gate(  # a\n            hidden_states\n            .to(dtype=torch.float32))"
    )
    text = patient({FILE: BEFORE.format(statement=lines)}).guarded()
    deeper = lines.replace("\n    ", "\n        ")
    assert f"        else:\n            {deeper}\n" in text


def test_is_applied_once(patient: Make) -> None:
    tree = patient({FILE: BEFORE.format(statement=FP32)})
    tree.apply()
    assert tree.finding().state is State.APPLIED
    assert tree.finding().form == "cast-to-fp32"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(BEFORE.replace("Glm4MoE(", "Glm4MoEStub("), "another class", id="a_prefix_of_the_name"),
        pytest.param(BEFORE.replace("Glm4MoE(", "AfmoeMoE("), "another model", id="the_statement_elsewhere"),
        pytest.param(BEFORE.replace("def forward", "def prefill"), "another method", id="another_method"),
        pytest.param(
            BEFORE.replace(
                "class Glm4MoE(torch.nn.Module):", "class Outer:\n  class Glm4MoE(torch.nn.Module):"
            ),
            "a nested class",
            id="a_nested_class",
        ),
        pytest.param("x = 1\n", "no such class", id="an_empty_module"),
    ],
)
def test_leaves_alone(patient: Make, text: str, reason: str) -> None:
    assert patient({FILE: text.format(statement=FP32)}).finding().state is State.ABSENT, reason


def test_leaves_vllm_ascend_alone(patient: Make) -> None:
    assert patient({"vllm_ascend/x.py": BEFORE.format(statement=FP32)}).findings() == {}


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        pytest.param("router_logits = self.gate(hidden_states.float())", State.MOVED, id="another_cast"),
        pytest.param("router_logits = self.gate(hidden_states)", State.MOVED, id="no_cast_no_pair"),
        pytest.param("logits = self.gate(hidden_states.to(dtype=torch.float32))", State.MOVED, id="renamed"),
        pytest.param(
            "router_logits = self.router(hidden_states.to(dtype=torch.float32))",
            State.MOVED,
            id="another_layer",
        ),
        pytest.param(f"{FP32}\n        {FP32}", State.AMBIGUOUS, id="twice"),
        pytest.param(f"{FP32}\n        {PAIR}", State.AMBIGUOUS, id="both_forms"),
        pytest.param(
            "router_logits = glm_pto_kernels.gate(self.gate, hidden_states.to(dtype=torch.float32))",
            State.PASTED,
            id="the_guides_snippet",
        ),
        pytest.param(
            f"if glm_pto_kernels.USE_PTO_GATE:\n            pass\n        else:\n            {FP32}",
            State.PASTED,
            id="a_switch_of_ones_own",
        ),
    ],
)
def test_refuses(patient: Make, statement: str, state: State) -> None:
    found = patient({FILE: BEFORE.format(statement=statement)}).finding()
    assert found.state is state
    assert found.file == FILE and found.message


def test_moved_names_the_nearest_statement(patient: Make) -> None:
    found = patient(
        {FILE: BEFORE.format(statement="router_logits = self.gate(hidden_states.float())")}
    ).finding()
    assert "self.gate(hidden_states.float())" in found.message and "--skip gate" in found.message


def test_a_renamed_parameter_is_not_guarded_blindly(patient: Make) -> None:
    text = (
        BEFORE.format(statement=PAIR).replace("hidden_states", "x").replace("gate(x)", "gate(hidden_states)")
    )
    assert patient({FILE: text}).finding().state is State.MOVED


@pytest.mark.parametrize(
    ("ascend", "words"),
    [
        pytest.param("0.10.2rc1", "unquantised", id="before_w8a8_loads"),
        pytest.param("0.12.0rc1", "xlite", id="default"),
    ],
)
def test_is_reached(patient: Make, ascend: str, words: str) -> None:
    tree = patient(
        {FILE: BEFORE.format(statement=FP32), "vllm_ascend/a.py": ""}, vllm="0.12.0", vllm_ascend=ascend
    )
    fact = tree.reached()
    assert fact.by_default is True and words in fact.when
