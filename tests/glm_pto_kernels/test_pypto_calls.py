"""Our PyPTO kernels take what the adaptations hand them: their checks run, the kernels do not."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends
from tests.glm_pto_kernels import stand_ins
from tests.glm_pto_kernels.stand_ins import Sizes, glm_4_5


def call(name: str, sizes: Sizes, tokens: int, residual: bool) -> None:
    """One operator's adaptation on a layer of its own."""
    hidden = torch.randn(tokens, sizes.hidden).bfloat16()
    if name == "gate":
        K.gate(torch.nn.Linear(sizes.hidden, sizes.experts, bias=False), hidden)
    elif name == "select_experts":
        logits, bias = torch.randn(tokens, sizes.experts), torch.randn(sizes.experts)
        K.select_experts(logits, 8, True, 1, 1, bias, routed_scaling_factor=2.5)
    elif name == "paged_attention":
        impl, step = stand_ins.AscendAttentionBackendImpl(sizes), stand_ins.metadata([5] * tokens)
        both = torch.stack((impl.key_cache, impl.value_cache), dim=1)
        query = torch.randn(tokens, sizes.heads, sizes.head).bfloat16()
        arguments = (query, both[:, 0], both[:, 1], step.block_tables, step.seq_lens, torch.empty_like(query))
        K.paged_attention(*arguments, impl.scale)
    elif name == "attention_pre":
        layer = stand_ins.DecoderLayer(sizes, norm_bias=residual)
        before = torch.randn_like(hidden) if residual else None
        K.attention_pre(hidden, before, layer, layer.self_attn, torch.arange(tokens))
    else:
        K.ffn_share_expert_quant(stand_ins.SharedExpert(sizes), hidden)


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
    call(name, glm_4_5(), tokens, residual)
    assert len(launched) == 1
