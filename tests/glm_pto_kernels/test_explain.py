"""``explain``: every layer that has a site is asked, and says why it stays native."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import glm_pto_kernels as K
from tests.glm_pto_kernels.stand_ins import SMALL, DecoderLayer, SharedExpert


def model() -> torch.nn.Module:
    """Two decoder layers: a dense one with unquantised attention, and one with experts."""
    layers = torch.nn.ModuleList(DecoderLayer(SMALL) for _ in range(2))
    del layers[0].self_attn.qkv_proj.deq_scale
    moe = torch.nn.Module()
    moe.gate = torch.nn.Linear(SMALL.hidden, SMALL.experts, bias=False)
    moe.experts, moe.shared_experts = torch.nn.Identity(), SharedExpert(SMALL)
    layers[0].mlp, layers[1].mlp = SharedExpert(SMALL), moe
    whole = torch.nn.Module()
    whole.layers = layers
    return whole


@pytest.mark.usefixtures("torch_backend")
def test_each_layer_answers() -> None:
    answers = {(layer, operator): reason for layer, operator, reason in K.explain(model())}
    assert sorted(answers) == [
        ("layers.0", "attention_pre"),
        ("layers.1", "attention_pre"),
        ("layers.1.mlp", "gate"),
        ("layers.1.mlp", "shared_expert"),
    ]
    assert "static W8A8" in (answers.pop(("layers.0", "attention_pre")) or "")
    assert set(answers.values()) == {None}


def test_a_process_that_stays_native_says_so_everywhere(environment: Callable[..., None]) -> None:
    environment(GLM_PTO_DISABLE="all")
    assert {reason for _, _, reason in K.explain(model())} == {"switched off by GLM_PTO_DISABLE"}


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    "kind",
    [torch.nn.Identity, lambda: torch.nn.LayerNorm(8), lambda: torch.jit.script(torch.nn.Linear(8, 8))],
)
def test_other_models_are_no_error(kind: Callable[[], torch.nn.Module]) -> None:
    assert K.explain(torch.nn.TransformerEncoderLayer(8, 2, 8)) == []
    odd = torch.nn.Module()
    odd.gate, odd.experts, odd.shared_experts = kind(), kind(), kind()
    odd.self_attn, odd.input_layernorm = kind(), kind()
    assert [reason is None for _, _, reason in K.explain(odd)] == [False] * 3
