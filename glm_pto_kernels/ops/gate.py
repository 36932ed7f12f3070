"""gate: router logits of a MoE layer, ``hidden_states @ weight.T`` in fp32.

Replaces ``router_logits = self.gate(hidden_states.to(dtype=torch.float32))`` of vLLM's ``Glm4MoE.forward``.
Drop when upstream routes through a fused gate by itself.
"""

from __future__ import annotations

from typing import Any

import torch

from glm_pto_kernels import backends
from glm_pto_kernels.layers import has_child, parameter

# fp32 sums of 5120 products in another order; relative to the largest logit.
TOLERANCE = 2e-5


def reference(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[tokens, hidden] x [experts, hidden] -> logits [tokens, experts] in the weight's dtype."""
    return hidden_states.to(weight.dtype) @ weight.t()


def _reason(layer: Any, hidden_states: torch.Tensor) -> str | None:
    choice = backends.CHOICES["gate"]
    if choice.native is not None:
        return choice.native
    if not isinstance(hidden_states, torch.Tensor) or hidden_states.dim() != 2:
        return "the hidden states are not a matrix"
    if choice.device is not None and hidden_states.device.type != choice.device:
        return "the hidden states are not on an NPU"
    weight = parameter(layer, "weight")
    if not isinstance(weight, torch.Tensor) or weight.dtype is not torch.float32:
        return "the gate's weight is not fp32"
    hidden = hidden_states.shape[1]
    if weight.dim() != 2 or weight.shape[1] != hidden:
        return "the gate's weight is not [experts, hidden]"
    if hidden_states.dtype is not torch.bfloat16 and hidden_states.dtype is not torch.float32:
        return "the hidden states are neither bf16 nor fp32"
    if not weight.is_contiguous():
        return "the gate's weight is not contiguous"
    if has_child(layer, "base_layer"):
        return "the gate is wrapped for LoRA"
    if parameter(layer, "bias") is not None:
        return "the gate has a bias"
    if weight.device != hidden_states.device:
        return "the gate's weight is on another device"
    return None if choice.sizes is None else choice.sizes(hidden=hidden, experts=weight.shape[0])


def gate_supported(layer: Any, hidden_states: torch.Tensor) -> bool:
    """Whether `gate` may stand in for this layer. Pure and traceable; static facts only."""
    return _reason(layer, hidden_states) is None


def gate_refusal(layer: Any, hidden_states: torch.Tensor) -> str | None:
    """Why `gate_supported` is false, or None."""
    return _reason(layer, hidden_states)


def gate(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Router logits fp32 [tokens, experts].

    Args:
        layer: the gate, with ``weight`` fp32 [experts, hidden].
        hidden_states: bf16 or fp32 [tokens, hidden], any number of tokens.

    Raises:
        BackendError: an explicitly chosen backend cannot run here.
    """
    return _gate(hidden_states, layer.weight)


@torch.library.custom_op("glm_pto::gate", mutates_args=())
def _gate(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    logits = hidden_states.new_empty((hidden_states.shape[0], weight.shape[0]), dtype=weight.dtype)
    if hidden_states.shape[0]:
        backends.run("gate", hidden_states.to(weight.dtype).contiguous(), weight, logits)
    return logits


@_gate.register_fake
def _(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden_states.new_empty((hidden_states.shape[0], weight.shape[0]), dtype=weight.dtype)


def _torch(hidden_states: torch.Tensor, weight: torch.Tensor, logits: torch.Tensor) -> None:
    logits.copy_(reference(hidden_states, weight))


def _compare(hidden_states: torch.Tensor, weight: torch.Tensor, logits: torch.Tensor) -> tuple[float, float]:
    expected = reference(hidden_states, weight)
    return (logits - expected).abs().max().item(), TOLERANCE * max(1.0, expected.abs().max().item())


backends.declare(
    backends.Operator(
        name="gate",
        entry="gate",
        parameters=("hidden_states", "gate_weight", "router_logits_out"),
        torch_kernel=_torch,
        compare=_compare,
    )
)
