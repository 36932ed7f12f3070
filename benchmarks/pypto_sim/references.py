"""The operators in plain torch, rounding where the kernels promise to; for the inputs of ``cases``."""

from typing import Any

import torch


def gate(hidden_states: torch.Tensor, gate_weight: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
    """In double precision, so that the difference is the kernel's alone."""
    return ((hidden_states.double() @ gate_weight.double().T).float(),)


def select_experts(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int,
    num_expert_group: int,
    e_score_correction_bias: torch.Tensor,
    routed_scaling_factor: float = 1.0,
    masked_score: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, ...]:
    probability = router_logits.sigmoid()
    score = probability + e_score_correction_bias.float()
    groups = score.view(len(score), num_expert_group, -1)
    kept = groups.amax(-1).topk(topk_group, -1).indices
    flags = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter(1, kept, True)
    score = groups.masked_fill(~flags.unsqueeze(-1), masked_score).flatten(1)
    ids = score.topk(top_k, -1).indices
    weights = probability.gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return weights * routed_scaling_factor, ids.int()


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    actual_seqs: torch.Tensor,
    softmax_scale: float | None = None,
    exact: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, ...]:
    """fp32 but for the probabilities and the result, in bf16 as in the kernel. Rows of length 0 are NaN.

    The kernel divides by the sum of the probabilities before they become bf16 where it has the whole sequence
    at once (1, 2, 4 ... blocks up to 1024 tokens), and divides the result by it otherwise. ``exact``: fp64
    and nothing rounded.
    """
    block, group = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    scale = query.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    wide = torch.float64 if exact else torch.float32
    narrow = wide if exact else torch.bfloat16
    out = torch.full_like(query, torch.nan, dtype=narrow)
    for row, length in enumerate(actual_seqs.tolist()):
        if length:
            blocks = block_tables[row, : -(-length // block)].long()
            k, v = (
                cache[blocks].flatten(0, 1)[:length].to(wide).repeat_interleave(group, 1)
                for cache in (key_cache, value_cache)
            )
            s = torch.einsum("hd,thd->ht", query[row].to(wide), k) * scale
            p = (s - s.amax(-1, keepdim=True)).exp()
            total = p.sum(-1, keepdim=True)
            if len(blocks) in (1, 2, 4, 8, 16) and len(blocks) * block <= 1024:
                p, total = p / total, torch.ones_like(total)
            o = torch.einsum("ht,thd->hd", p.to(narrow).to(wide), v)
            out[row] = (o / total).to(narrow)
    return (out,)


def _norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """RMSNorm over the last dimension in fp32, rounded to bf16; nothing without a weight."""
    if weight is None:
        return x
    x = x.float()
    mean = (x * x * (1.0 / x.shape[-1])).sum(-1, keepdim=True)
    x = x / (mean + eps).sqrt() * weight.float()
    return (x if bias is None else x + bias.float()).bfloat16()


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, dim] by halves in fp32, rounded to bf16 and flattened."""
    half = cos.shape[-1]
    low, high, rest = x.float().split([half, half, x.shape[-1] - 2 * half], -1)
    c, s = cos.float(), sin.float()
    return torch.cat((low * c - high * s, high * c + low * s, rest), -1).bfloat16().flatten(1)


def attention_pre(
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    input_layernorm_weight: torch.Tensor,
    input_layernorm_bias: torch.Tensor | None,
    atten_qkv_input_scale_reciprocal: torch.Tensor,
    atten_qkv_input_offset: torch.Tensor,
    atten_qkv_weight: torch.Tensor,
    atten_qkv_quant_bias: torch.Tensor,
    atten_qkv_deq_scale: torch.Tensor,
    atten_q_norm_weight: torch.Tensor | None,
    atten_q_norm_bias: torch.Tensor | None,
    atten_k_norm_weight: torch.Tensor | None,
    atten_k_norm_bias: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    eps: float = 1e-5,
    head_dim: int = 128,
    **_: Any,
) -> tuple[torch.Tensor, ...]:
    """bf16 after each norm and after the projection, as the native chain of operators rounds."""
    total = hidden_states.float() if residual is None else hidden_states.float() + residual.float()
    y = _norm(total, input_layernorm_weight, input_layernorm_bias, eps).float()
    y = y * atten_qkv_input_scale_reciprocal.float() + atten_qkv_input_offset.float()
    acc = y.round().clamp(-128, 127).double() @ atten_qkv_weight.double() + atten_qkv_quant_bias.double()
    qkv = (acc.float() * atten_qkv_deq_scale).bfloat16()
    head = head_dim if atten_q_norm_weight is None else atten_q_norm_weight.shape[0]
    q, k, v = qkv.split([query.shape[1], key.shape[1], key.shape[1]], -1)
    q = _norm(q.unflatten(-1, (-1, head)), atten_q_norm_weight, atten_q_norm_bias, eps)
    k = _norm(k.unflatten(-1, (-1, head)), atten_k_norm_weight, atten_k_norm_bias, eps)
    return _rope(q, cos, sin), _rope(k, cos, sin), v, total.bfloat16()


def shared_expert(
    hidden_states: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, ...]:
    """fp32 between the int8 products, bf16 at the end; SwiGLU as the kernel writes it, not ``silu``.

    The first product is multiplied by the product of its two scales, as in the kernel: the second
    quantisation turns a difference in the last bit into a whole int8 step now and then.
    """

    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row_scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) * (1.0 / 127.0)
        return (x / row_scale).round().double(), row_scale

    x, row_scale = quantise(hidden_states.float())
    gate, lin = ((x @ w13.double()).float() * (w13_scale.float() * row_scale)).chunk(2, -1)
    x, row_scale = quantise(gate / ((-gate).exp() + 1.0) * lin)
    return (((x @ w2.double()).float() * row_scale * w2_scale.float()).bfloat16(),)
