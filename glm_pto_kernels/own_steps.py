"""The steps before attention by a decoder layer's own modules: what `attention_pre` leaves a layer to.

Source: ``Glm4MoeDecoderLayer.forward`` and ``Glm4MoeAttention.forward`` of vLLM's glm4_moe.py, 0.10 to 0.33.
"""

from __future__ import annotations

from typing import Any

import torch


def own_steps(
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    layer: Any,
    attention: Any,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `attention_pre` gives, by the layer's own modules in the order of vLLM's forward methods."""
    if residual is None:
        residual = hidden_states
        hidden_states = layer.input_layernorm(hidden_states)
    else:
        hidden_states, residual = layer.input_layernorm(hidden_states, residual)
    qkv = attention.qkv_proj(hidden_states)[0]
    q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
    if attention.use_qk_norm:
        head = attention.head_dim
        q = attention.q_norm(q.reshape(-1, attention.num_heads, head)).reshape(q.shape)
        k = attention.k_norm(k.reshape(-1, attention.num_kv_heads, head)).reshape(k.shape)
    q, k = attention.rotary_emb(positions, q, k)
    return q, k, v, residual
