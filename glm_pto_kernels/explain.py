"""Why an operator is not taken: asked of a loaded model, layer by layer.

Conditions must not log, because they are traced; this is the place to ask them all. With vLLM:
``llm.apply_model(glm_pto_kernels.explain)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from glm_pto_kernels.ops.attention_pre import attention_pre_refusal
from glm_pto_kernels.ops.gate import gate_refusal
from glm_pto_kernels.ops.shared_expert import ffn_share_expert_quant_refusal


def explain(model: torch.nn.Module) -> list[tuple[str, str, str | None]]:
    """(layer, operator, reason) for every layer that has a gate, an attention or a shared expert.

    The reason is None where the operator is taken. select_experts and paged_attention depend on a step's own
    tensors; their first call is logged, and `glm_pto_kernels.calls` counts them.
    """
    return [(name, *answer) for name, module in model.named_modules() for answer in _asked(module)]


def _asked(module: torch.nn.Module) -> Iterator[tuple[str, str | None]]:
    parts = dict(module.named_children())  # not _modules, which a scripted module has in another form
    gate, expert, attention = parts.get("gate"), parts.get("shared_experts"), parts.get("self_attn")
    if gate is not None and "experts" in parts:
        yield "gate", gate_refusal(gate, _rows(gate, dim=1))
    if expert is not None:
        up = getattr(expert, "gate_up_proj", None)
        yield "shared_expert", ffn_share_expert_quant_refusal(expert, _rows(up, dim=0))
    if attention is not None and "input_layernorm" in parts:
        rows = _rows(parts["input_layernorm"], dim=0)
        positions = torch.zeros(1, dtype=torch.int64, device=rows.device)
        yield "attention_pre", attention_pre_refusal(module, attention, positions, rows)


def _rows(module: Any, dim: int) -> torch.Tensor:
    """One bf16 row of hidden states that fits a module's weight."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() <= dim:
        return torch.zeros(1, 0, dtype=torch.bfloat16)
    return torch.zeros(1, weight.shape[dim], dtype=torch.bfloat16, device=weight.device)
