"""What shared_expert asks of a shared expert's MLP: its activation and the weights of its projections."""

from __future__ import annotations

from typing import Any

import torch

from glm_pto_kernels import backends
from glm_pto_kernels.layers import NONE, held

CHOICES = backends.CHOICES
BF16, INT8 = torch.bfloat16, torch.int8

ACTIVATIONS = ("SiluAndMul", "AscendSiluAndMul")


def unfit(layer: Any, hidden_states: torch.Tensor) -> str | None:
    """Why the operator cannot compute this layer's MLP, whatever the guard has asked, or None."""
    if getattr(hidden_states, "dtype", None) is not BF16 or hidden_states.dim() != 2:
        return "the hidden states are not a bf16 matrix"
    parts = getattr(layer, "_modules", NONE)
    if type(parts.get("act_fn")).__name__ not in ACTIVATIONS:
        return "the activation is not SiluAndMul"
    if parts.get("expert_gate") is not None:
        return "the shared expert has a gate of its own"
    up, down = parts.get("gate_up_proj"), parts.get("down_proj")
    of_up, of_down = getattr(up, "_parameters", NONE), getattr(down, "_parameters", NONE)
    w13, w2 = of_up.get("weight"), of_down.get("weight")
    if getattr(w13, "dtype", None) is not INT8 or getattr(w2, "dtype", None) is not INT8:
        return "the projections have no int8 weights of their own"
    s13, s2 = of_up.get("weight_scale"), of_down.get("weight_scale")
    if s13 is None or s2 is None or held(up, "deq_scale") is not None or held(down, "deq_scale") is not None:
        return "the weights are not dynamic W8A8"
    if s13.dtype is not BF16 or s2.dtype is not BF16:
        return "the weights' scales are not bf16"
    if of_up.get("bias") is not None or of_down.get("bias") is not None:
        return "the projections have a bias"
    if held(up, "custom_op") is not None or held(down, "custom_op") is not None:
        return "the projections communicate around their matmul (MLP tensor parallelism, flashcomm)"
    if w13.dim() != 2 or w2.dim() != 2 or not w13.is_contiguous() or not w2.is_contiguous():
        return "the weights are not contiguous matrices"
    (hidden, columns), (inner, outputs) = w13.shape, w2.shape
    if not hidden_states.shape[1] == hidden == outputs or columns != 2 * inner:
        return "the weights are not [hidden, 2 * intermediate] and [intermediate, hidden]"
    if s13.numel() != columns or s2.numel() != outputs:
        return "the weights do not have one scale a column"
    return CHOICES["shared_expert"].refusal((inner, hidden), hidden=hidden, intermediate=inner)
