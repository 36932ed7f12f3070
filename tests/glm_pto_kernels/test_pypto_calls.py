"""Our PyPTO kernels take what the adaptations hand them: their checks run, the kernels do not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends
from tests.glm_pto_kernels import stand_ins
from tests.glm_pto_kernels.stand_ins import Sizes, glm_4_5


def calls(sizes: Sizes, tokens: int, residual: bool) -> dict[str, Callable[[], Any]]:
    hidden = torch.randn(tokens, sizes.hidden).bfloat16()
    gate = torch.nn.Linear(sizes.hidden, sizes.experts, bias=False)
    layer, expert = stand_ins.DecoderLayer(sizes, norm_bias=residual), stand_ins.SharedExpert(sizes)
    impl, step = stand_ins.AscendAttentionBackendImpl(sizes), stand_ins.metadata([5] * tokens)
    both = torch.stack((impl.key_cache, impl.value_cache), dim=1)
    query = torch.randn(tokens, sizes.heads, sizes.head).bfloat16()
    before = torch.randn_like(hidden) if residual else None
    bias = torch.randn(sizes.experts)
    return {
        "gate": lambda: K.gate(gate, hidden),
        "select_experts": lambda: K.select_experts(
            torch.randn(tokens, sizes.experts), 8, True, 1, 1, bias, routed_scaling_factor=2.5
        ),
        "paged_attention": lambda: K.paged_attention(
            query,
            both[:, 0],
            both[:, 1],
            step.block_tables,
            step.seq_lens,
            torch.empty_like(query),
            impl.scale,
        ),
        "attention_pre": lambda: K.attention_pre(
            hidden, before, layer, layer.self_attn, torch.arange(tokens)
        ),
        "shared_expert": lambda: K.ffn_share_expert_quant(expert, hidden),
    }


@pytest.mark.parametrize("residual", [True, False], ids=["residual_and_bias", "neither"])
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("name", list(backends.OPERATORS))
def test_the_adaptation_fits_the_kernel(
    environment: Callable[..., None], name: str, tokens: int, residual: bool
) -> None:
    module = importlib.import_module(f"glm_pto_kernels.pypto.{name}")
    operator = backends.OPERATORS[name]
    backends._fits(operator, getattr(module, operator.entry))
    launched = []
    environment()
    K.register(name, lambda *arguments: launched.append(module.launch(*arguments)))
    calls(glm_4_5(), tokens, residual)[name]()
    assert len(launched) == 1
