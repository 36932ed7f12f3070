"""What attention_pre asks of a decoder layer and takes from it: its modules' facts and their tensors."""

from __future__ import annotations

import sys
from typing import Any

import torch

from glm_pto_kernels import backends
from glm_pto_kernels.layers import NONE, held, norm_bias

CHOICES = backends.CHOICES
BF16, INT8 = torch.bfloat16, torch.int8

# The dtype of each, and the side of the weight [hidden, columns] that it has one value for.
STATIC_W8A8 = {
    "aclnn_input_scale_reciprocal": (BF16, 0),
    "aclnn_input_offset": (BF16, 0),
    "quant_bias": (torch.int32, 1),
    "deq_scale": (torch.float32, 1),
}


def sequence_parallel() -> bool:
    """Whether vllm-ascend's graph pass for sequence parallelism is on: it would not match a fused layer."""
    config = getattr(sys.modules.get("vllm_ascend.ascend_config"), "_ASCEND_CONFIG", None)
    return getattr(config, "enable_sp_by_pass", False) is True


def unfit(layer: Any, attention: Any, hidden_states: torch.Tensor) -> str | None:
    """Why the operator cannot compute the steps of this layer, whatever the guard has asked, or None."""
    if getattr(hidden_states, "dtype", None) is not BF16 or hidden_states.dim() != 2:
        return "the hidden states are not a bf16 matrix"
    if sequence_parallel():
        return "a graph pass splits the residual over the ranks (enable_sp)"
    parts = getattr(attention, "_modules", NONE)
    reason = _unfit_projection(parts.get("qkv_proj"))
    if reason is not None:
        return reason
    weight, known = parts["qkv_proj"]._parameters["weight"], getattr(attention, "__dict__", NONE)
    q_size, kv_size, head = known.get("q_size"), known.get("kv_size"), known.get("head_dim")
    if type(q_size) is not int or type(kv_size) is not int or type(head) is not int or head < 2:
        return "the attention has no q_size, kv_size and head_dim"
    hidden, columns = weight.shape
    if hidden_states.shape[1] != hidden or columns != q_size + 2 * kv_size:
        return "the qkv weight is not [hidden, q_size + 2 * kv_size]"
    if q_size % head or kv_size % head:
        return "q_size and kv_size are not whole heads of head_dim"
    norms = (
        getattr(layer, "_modules", NONE).get("input_layernorm"),
        parts.get("q_norm"),
        parts.get("k_norm"),
    )
    reason = _unfit_norms(norms, (hidden, head, head))
    if reason is not None:
        return reason
    rotary = parts.get("rotary_emb")
    cache = held(rotary, "cos_sin_cache")
    turns_by_halves = getattr(rotary, "__dict__", NONE).get("is_neox_style", True) is True
    if cache is None or cache.dim() != 2 or not turns_by_halves:
        return "the rotary embedding has no cos_sin_cache, or does not turn by halves"
    if cache.shape[1] % 2 or cache.shape[1] > head:
        return "the cos_sin_cache does not fit the heads"
    sizes = {"hidden": hidden, "q_size": q_size, "kv_size": kv_size, "head_dim": head}
    sizes["rotary_dim"] = cache.shape[1]
    return CHOICES["attention_pre"].refusal(tuple(sizes.values()), **sizes)


def _unfit_projection(qkv: Any) -> str | None:
    data = getattr(qkv, "_parameters", NONE)
    weight = data.get("weight")
    if getattr(weight, "dtype", None) is not INT8:
        return "the qkv projection has no int8 weight of its own"
    if weight.dim() != 2 or not weight.is_contiguous():
        return "the qkv weight is not a contiguous matrix"
    sides = weight.shape
    for name, (dtype, side) in STATIC_W8A8.items():
        values = held(qkv, name)
        if getattr(values, "dtype", None) is not dtype:
            return "the qkv projection is not static W8A8 with bf16 scales and fp32 deq_scale"
        if values.numel() != sides[side] or values.shape[-1] != sides[side]:
            return "the qkv projection's scales do not fit its weight"
    if data.get("deq_scale") is None:
        return "the qkv projection's deq_scale is no parameter"
    if held(qkv, "custom_op") is not None:
        return "the qkv projection gathers around its matmul (flashcomm)"
    return None


def _unfit_norms(norms: tuple[Any, ...], sizes: tuple[int, ...]) -> str | None:
    eps = held(norms[0], "variance_epsilon")
    for number, (norm, size) in enumerate(zip(norms, sizes, strict=True)):
        scale = getattr(norm, "_parameters", NONE).get("weight")
        if scale is None:
            return "the layer has not the three norms"
        if scale.shape != (size,):
            return "the norms do not fit"
        if scale.dtype is not BF16:
            return "the norms are not bf16"
        bias = norm_bias(norm, number == 0)
        if bias is not None and (bias.shape != (size,) or not bias.is_floating_point()):
            return "the norms' biases do not fit"
        if eps is None or held(norm, "variance_epsilon") != eps:
            return "the norms have no common epsilon"
    return None


def operands(
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    layer: Any,
    attention: Any,
    positions: torch.Tensor,
) -> tuple[Any, ...]:
    """The arguments of the operator's `reference`, in its order."""
    norm, qkv, q_norm, k_norm = layer.input_layernorm, attention.qkv_proj, attention.q_norm, attention.k_norm
    # Only the rows are cast: vllm-ascend 0.11 casts the cache in the rotary call that is replaced here.
    rows = attention.rotary_emb.cos_sin_cache.index_select(0, positions).to(hidden_states.dtype)
    cos, sin = rows.unsqueeze(1).chunk(2, dim=-1)
    return (
        hidden_states,
        residual,
        norm.weight,
        norm_bias(norm, residual is not None),
        qkv.aclnn_input_scale_reciprocal,
        qkv.aclnn_input_offset,
        qkv.weight,
        qkv.quant_bias,
        qkv.deq_scale,
        q_norm.weight,
        norm_bias(q_norm, False),
        k_norm.weight,
        norm_bias(k_norm, False),
        cos.contiguous(),
        sin.contiguous(),
        attention.q_size,
        attention.kv_size,
        norm.variance_epsilon,
    )
