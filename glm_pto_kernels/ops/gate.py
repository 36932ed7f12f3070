"""gate: router logits of a MoE layer, ``hidden_states @ weight.T`` in fp32.

Replaces ``router_logits = self.gate(hidden_states.to(dtype=torch.float32))`` of vLLM's ``Glm4MoE.forward``.
Drop when upstream routes through a fused gate by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from glm_pto_kernels import backends
from glm_pto_kernels.layers import NONE, why

CHOICES, FP32 = backends.CHOICES, torch.float32
# fp32 sums of 5120 products in another order; relative to the largest logit.
TOLERANCE = 2e-5


def reference(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[tokens, hidden] x [experts, hidden] -> logits [tokens, experts] in the weight's dtype."""
    return hidden_states.to(weight.dtype) @ weight.t()


def gate_supported(layer: Any, hidden_states: torch.Tensor) -> bool:
    """Whether `gate` may stand in for this layer. Pure and traceable; static facts only."""
    if is_dynamo_compiling():
        return backends.TOLD() and gate_refusal(layer, hidden_states) is None
    choice = CHOICES["gate"]
    if choice.native is not None:
        return False
    try:
        weights = layer._parameters
        weight = weights.get("weight")
        if weight.dtype is not FP32 or hidden_states.ndim != 2 or weights.get("bias") is not None:
            return False
        shape = weight.shape
        if len(shape) != 2 if choice.sizes is None else shape not in choice.sizes:
            return False
        return not (choice.off_cpu and hidden_states.is_cpu)
    except Exception:  # no layer of any release; `gate_refusal` says what it raised
        return False


def gate_refusal(layer: Any, hidden_states: torch.Tensor) -> str | None:
    """Why `gate_supported` is false, or None."""
    return why(_reason, layer, hidden_states)


def _reason(layer: Any, hidden_states: torch.Tensor) -> str | None:
    choice = CHOICES["gate"]
    if choice.native is not None:
        return choice.native
    weights = getattr(layer, "_parameters", NONE)
    weight = weights.get("weight")
    if getattr(weight, "dtype", None) is not FP32:
        return "the gate has no fp32 weight of its own"
    if weights.get("bias") is not None:
        return "the gate has a bias"
    if getattr(hidden_states, "ndim", 0) != 2:
        return "the hidden states are not a matrix"
    if weight.dim() != 2:
        return "the gate's weight is not [experts, hidden]"
    experts, hidden = weight.shape
    if choice.off_cpu and hidden_states.is_cpu:
        return "the hidden states are on the CPU"
    return choice.refusal((experts, hidden), hidden=hidden, experts=experts)


def gate(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Router logits fp32 [tokens, experts].

    Args:
        layer: the gate, with ``weight`` fp32 [experts, hidden].
        hidden_states: [tokens, hidden], any number of tokens; cast to fp32, as the replaced statement does.

    Raises:
        BackendError: an explicitly chosen backend cannot run here.
    """
    return _gate(hidden_states, layer.weight)


@torch.library.custom_op("glm_pto::gate", mutates_args=())
def _gate(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    logits = hidden_states.new_empty((hidden_states.shape[0], weight.shape[0]), dtype=weight.dtype)
    if hidden_states.shape[0]:
        backends.run("gate", hidden_states.to(weight.dtype).contiguous(), weight.contiguous(), logits)
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
        outputs=("router_logits_out",),
        torch_kernel=_torch,
        compare=_compare,
    )
)
