"""shared_expert: the shared expert's SwiGLU MLP with dynamic W8A8 weights, this rank's partial sum.

Replaces what vllm-ascend computes from ``self._shared_experts(hidden_states)``; the reduction after it stays
native. Drop when upstream computes the shared expert in one kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from glm_pto_kernels import backends, hardware, int8, notice
from glm_pto_kernels.facts.shared_expert import unfit
from glm_pto_kernels.layers import NONE, why

CHOICES = backends.CHOICES
# One int8 step of the second quantisation plus one bf16 rounding, relative to the largest output.
TOLERANCE = 2.0**-6
_VLLM_ASCEND = hardware.installed("vllm_ascend")


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 of each row: values [tokens, n] (as fp32 integers) and scales [tokens, 1]."""
    scale = rows.abs().amax(-1, keepdim=True) / 127.0
    values = (rows / scale.clamp_min(torch.finfo(rows.dtype).tiny)).round().clamp(-128, 127)
    return values, scale


def reference(
    hidden_states: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
) -> torch.Tensor:
    """down(silu(gate) * up), [tokens, hidden] in the dtype of ``hidden_states``.

    w13 int8 [hidden, 2 * intermediate] (gate, then up), w2 int8 [intermediate, hidden], scales one a column.
    Every int8 product is exact; both activations are quantised by token.
    """
    gate, up = _linear(hidden_states.float(), w13, w13_scale).chunk(2, dim=-1)
    return _linear(torch.nn.functional.silu(gate) * up, w2, w2_scale).to(hidden_states.dtype)


def _linear(rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    values, row_scale = quantise(rows)
    return int8.matmul(values, weight).float() * row_scale * scale.flatten().float()


def ffn_share_expert_quant_supported(
    layer: Any, hidden_states: torch.Tensor, *, whole_mlp: bool = False
) -> bool:
    """Whether `ffn_share_expert_quant` may stand in for this layer. Pure and traceable; static facts only.

    While Dynamo traces, and for a ``whole_mlp``, every fact is asked. An eager step asks those that differ
    between models and configurations; what follows from them in every release, `ffn_share_expert_quant` asks
    when it is taken.
    """
    if is_dynamo_compiling() or whole_mlp:
        return (
            backends.TOLD()
            and ffn_share_expert_quant_refusal(layer, hidden_states, whole_mlp=whole_mlp) is None
        )
    choice = CHOICES["shared_expert"]
    if choice.native is not None:
        return False
    try:
        data = layer._modules["down_proj"].__dict__
        tensors = data["_parameters"]
        # Both quantisations have a scale of the weight, static W8A8 another one as well.
        if "weight_scale" not in tensors or "deq_scale" in tensors:
            return False
        if data.get("reduce_results") is not False or data.get("custom_op") is not None:
            return False
        if choice.sizes is not None and tensors["weight"].shape not in choice.sizes:
            return False
        return not (choice.off_cpu and hidden_states.is_cpu)
    except Exception:  # no layer of any release; `ffn_share_expert_quant_refusal` says what it raised
        return False


def ffn_share_expert_quant_refusal(
    layer: Any, hidden_states: torch.Tensor, *, whole_mlp: bool = False
) -> str | None:
    """Why `ffn_share_expert_quant_supported` is false, or the layer is left to its own steps, or None.

    ``whole_mlp``: asked from ``Glm4MoeMLP.forward``, which must not differ from vllm-ascend's split path.
    """
    return why(_reason, layer, hidden_states, whole_mlp)


def _reason(layer: Any, hidden_states: torch.Tensor, whole_mlp: bool) -> str | None:
    choice = CHOICES["shared_expert"]
    if choice.native is not None:
        return choice.native
    if whole_mlp and _VLLM_ASCEND:
        return "vllm-ascend is installed and computes the shared expert itself"
    down = getattr(layer, "_modules", NONE).get("down_proj")
    if getattr(down, "__dict__", NONE).get("reduce_results") is not False:
        return "the down projection reduces its result over the ranks"
    if choice.off_cpu and getattr(hidden_states, "is_cpu", True):
        return "the hidden states are on the CPU"
    return unfit(layer, hidden_states)


def ffn_share_expert_quant(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """The shared expert's output bf16 [tokens, hidden], not yet summed over the ranks.

    Args:
        layer: ``gate_up_proj`` and ``down_proj`` with ``weight`` int8 [in, out] and ``weight_scale`` [out].
        hidden_states: bf16 [tokens, hidden], any number of tokens.

    A layer that the operator cannot compute, which no release builds, computes itself: see
    `ffn_share_expert_quant_refusal`.

    Raises:
        BackendError: an explicitly chosen backend cannot run here.
    """
    reason = why(unfit, layer, hidden_states)
    if reason is not None:
        notice.left_alone("shared_expert", reason)
        return layer(hidden_states)  # type: ignore[no-any-return]
    up, down = layer.gate_up_proj, layer.down_proj
    return _shared_expert(hidden_states, up.weight, up.weight_scale, down.weight, down.weight_scale)


@torch.library.custom_op("glm_pto::shared_expert", mutates_args=())
def _shared_expert(
    hidden_states: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
) -> torch.Tensor:
    result = hidden_states.new_empty(hidden_states.shape)
    if hidden_states.shape[0]:
        rows, s13, s2 = hidden_states.contiguous(), w13_scale.flatten(), w2_scale.flatten()
        backends.run("shared_expert", rows, w13, s13, w2, s2, result)
    return result


@_shared_expert.register_fake
def _(
    hidden_states: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
) -> torch.Tensor:
    return hidden_states.new_empty(hidden_states.shape)


def _torch(*arguments: Any) -> None:
    *inputs, result = arguments
    result.copy_(reference(*inputs))


def _compare(*arguments: Any) -> tuple[float, float]:
    *inputs, result = arguments
    expected = reference(*inputs).float()
    return (result.float() - expected).abs().max().item(), TOLERANCE * expected.abs().max().item()


backends.declare(
    backends.Operator(
        name="shared_expert",
        entry="ffn_shared_expert_quant",
        parameters=("hidden_states", "w13", "w13_scale", "w2", "w2_scale", "ffn_res"),
        outputs=("ffn_res",),
        torch_kernel=_torch,
        compare=_compare,
    )
)
