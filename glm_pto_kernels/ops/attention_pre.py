"""attention_pre: everything of a GLM-4.5 decoder layer before attention, with static W8A8 weights.

Residual add, RMSNorm, quantised qkv projection, per-head q and k norm, rotary embedding. Replaces
``input_layernorm`` and the first half of ``self_attn`` in vLLM's ``Glm4MoeDecoderLayer.forward``; the
layer's own ``attn`` and ``o_proj`` follow. Drop when upstream fuses norm, projection and rotary embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from glm_pto_kernels import backends, int8, notice
from glm_pto_kernels.facts.attention_pre import operands, unfit
from glm_pto_kernels.layers import NONE, why
from glm_pto_kernels.own_steps import own_steps

CHOICES, FP32 = backends.CHOICES, torch.float32
# A normalised value at the edge of two int8 steps may fall either way, and a bf16 result may round so.
TOLERANCE = 2.0**-6


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """fp32 rows / sqrt(mean(rows^2) + eps) * weight + bias over the last dimension."""
    normed = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed if bias is None else normed + bias.float()


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, dim] by halves; only the first 2 * cos.shape[-1] dims turn."""
    half = cos.shape[-1]
    first, second, rest = heads.split((half, half, heads.shape[-1] - 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def reference(
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor | None,
    scale_reciprocal: torch.Tensor,
    offset: torch.Tensor,
    qkv_weight: torch.Tensor,
    quant_bias: torch.Tensor,
    deq_scale: torch.Tensor,
    q_norm_weight: torch.Tensor,
    q_norm_bias: torch.Tensor | None,
    k_norm_weight: torch.Tensor,
    k_norm_bias: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_size: int,
    kv_size: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [tokens, q_size], k and v [tokens, kv_size], residual [tokens, hidden], in the dtype of the input.

    hidden_states, residual [tokens, hidden]; qkv_weight int8 [hidden, q_size + 2 * kv_size]; quant_bias
    int32 and deq_scale one a column; scale_reciprocal and offset one an input column; head norms
    [head_dim]; cos and sin [tokens, 1, rotary / 2]. Everything between input and output is fp32, the int8
    product exact.
    """
    total = hidden_states.float() if residual is None else hidden_states.float() + residual.float()
    normed = rms_norm(total, norm_weight, norm_bias, eps)
    quantised = (normed * scale_reciprocal.float() + offset.float()).round().clamp(-128, 127)
    qkv = (int8.matmul(quantised, qkv_weight) + quant_bias).float() * deq_scale.float()
    q, k, v = qkv.split((q_size, kv_size, kv_size), dim=-1)
    head = q_norm_weight.shape[0]
    q = rms_norm(q.unflatten(-1, (-1, head)), q_norm_weight, q_norm_bias, eps)
    k = rms_norm(k.unflatten(-1, (-1, head)), k_norm_weight, k_norm_bias, eps)
    cos, sin = cos.float(), sin.float()
    dtype = hidden_states.dtype
    return (
        rotate(q, cos, sin).flatten(-2).to(dtype),
        rotate(k, cos, sin).flatten(-2).to(dtype),
        v.to(dtype),
        total.to(dtype),
    )


SCHEMA = (
    "(Tensor hidden_states, Tensor? residual, Tensor norm_weight, Tensor? norm_bias, "
    "Tensor scale_reciprocal, Tensor offset, Tensor qkv_weight, Tensor quant_bias, Tensor deq_scale, "
    "Tensor q_norm_weight, Tensor? q_norm_bias, Tensor k_norm_weight, Tensor? k_norm_bias, Tensor cos, "
    "Tensor sin, int q_size, int kv_size, float eps) -> (Tensor, Tensor, Tensor, Tensor)"
)


def attention_pre_supported(
    layer: Any, attention: Any, positions: torch.Tensor, hidden_states: torch.Tensor
) -> bool:
    """Whether `attention_pre` may stand in for this layer. Pure and traceable; static facts only.

    While Dynamo traces, every fact is asked. An eager step asks those that differ between models,
    configurations and steps; what follows from them in every release, `attention_pre` asks when it is taken.
    """
    if is_dynamo_compiling():
        return backends.TOLD() and attention_pre_refusal(layer, attention, positions, hidden_states) is None
    choice = CHOICES["attention_pre"]
    if choice.native is not None:
        return False
    try:
        known = attention.__dict__
        if known.get("use_qk_norm") is not True:
            return False
        data = known["_modules"]["qkv_proj"].__dict__
        # Only static W8A8 has it, and in fp32 only for bf16 models; its other data come with it.
        scale = data["_parameters"].get("deq_scale")
        if scale is None or scale.dtype is not FP32 or data.get("custom_op") is not None:
            return False
        if positions.ndim != 1:
            return False
        if choice.sizes is not None and (known["q_size"], known["kv_size"]) not in choice.sizes:
            return False
        return not (choice.off_cpu and hidden_states.is_cpu)
    except Exception:  # no layer of any release; `attention_pre_refusal` says what it raised
        return False


def attention_pre_refusal(
    layer: Any, attention: Any, positions: torch.Tensor, hidden_states: torch.Tensor
) -> str | None:
    """Why `attention_pre_supported` is false, or the layer is left to its own steps, or None."""
    return why(_reason, layer, attention, positions, hidden_states)


def _reason(layer: Any, attention: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> str | None:
    choice = CHOICES["attention_pre"]
    if choice.native is not None:
        return choice.native
    if getattr(attention, "__dict__", NONE).get("use_qk_norm") is not True:
        return "the attention has no q and k norm"
    if getattr(positions, "ndim", 0) != 1:
        return "the positions are not a vector (mrope)"
    if choice.off_cpu and getattr(hidden_states, "is_cpu", True):
        return "the hidden states are on the CPU"
    return unfit(layer, attention, hidden_states)


def attention_pre(
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    layer: Any,
    attention: Any,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [tokens, q_size], k and v [tokens, kv_size], residual [tokens, hidden], all bf16.

    Args:
        hidden_states: bf16 [tokens, hidden], any number of tokens.
        residual: the same shape, or None in the first layer and in MTP layers.
        layer: the decoder layer, with ``input_layernorm``. attention: its ``self_attn``.
        positions: int [tokens].

    A layer that the operator cannot compute, which no release builds, is left to its own steps: see
    `attention_pre_refusal`.

    Raises:
        BackendError: an explicitly chosen backend cannot run here.
    """
    reason = why(unfit, layer, attention, hidden_states)
    if reason is not None:
        notice.left_alone("attention_pre", reason)
        return own_steps(hidden_states, residual, layer, attention, positions)
    return _attention_pre(*operands(hidden_states, residual, layer, attention, positions))


def _outputs(hidden_states: torch.Tensor, q_size: int, kv_size: int) -> tuple[torch.Tensor, ...]:
    rows, hidden = hidden_states.shape
    return tuple(hidden_states.new_empty((rows, size)) for size in (q_size, kv_size, kv_size, hidden))


@torch.library.custom_op("glm_pto::attention_pre", mutates_args=(), schema=SCHEMA)
def _attention_pre(*arguments: Any) -> tuple[torch.Tensor, ...]:
    hidden_states, residual, *tensors, q_size, kv_size, eps = arguments
    outputs = _outputs(hidden_states, q_size, kv_size)
    if hidden_states.shape[0]:
        rows = hidden_states.contiguous()
        before = None if residual is None else residual.contiguous()
        backends.run("attention_pre", rows, before, *tensors, *outputs, eps)
    return outputs


@_attention_pre.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    return _outputs(arguments[0], *arguments[-3:-1])


def _expected(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    *inputs, query, key, _value, _residual, eps = arguments
    return reference(*inputs, query.shape[1], key.shape[1], eps)


def _torch(*arguments: Any) -> None:
    for out, expected in zip(arguments[-5:-1], _expected(arguments), strict=True):
        out.copy_(expected)


def _compare(*arguments: Any) -> tuple[float, float]:
    errors = [
        (out.float() - expected.float()).abs().max() / expected.float().abs().max().clamp_min(1e-6)
        for out, expected in zip(arguments[-5:-1], _expected(arguments), strict=True)
    ]
    return torch.stack(errors).max().item(), TOLERANCE  # a NaN stays one


backends.declare(
    backends.Operator(
        name="attention_pre",
        entry="attention_pre_quant",
        parameters=(
            "hidden_states",
            "residual",
            "input_layernorm_weight",
            "input_layernorm_bias",
            "atten_qkv_input_scale_reciprocal",
            "atten_qkv_input_offset",
            "atten_qkv_weight",
            "atten_qkv_quant_bias",
            "atten_qkv_deq_scale",
            "atten_q_norm_weight",
            "atten_q_norm_bias",
            "atten_k_norm_weight",
            "atten_k_norm_bias",
            "cos",
            "sin",
            "query",
            "key",
            "value",
            "residual_res",
            "eps",
        ),
        outputs=("query", "key", "value", "residual_res"),
        torch_kernel=_torch,
        compare=_compare,
    )
)
