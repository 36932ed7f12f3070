"""What paged_attention asks of an attention implementation, of its queries and caches, and of a step."""

from __future__ import annotations

from typing import Any

import torch

from glm_pto_kernels import backends, notice
from glm_pto_kernels.layers import NONE

BF16, CHOICES = torch.bfloat16, backends.CHOICES
IMPLEMENTATION = "AscendAttentionBackendImpl"  # its 310P, FA3, C8 and context-parallel subclasses stay native
# Attributes of the implementation, over all releases, that must be missing, None or false (never asked for
# their truth: slopes and sinks are tensors on the device).
ABSENT = (
    "sliding_window",
    "alibi_slopes",
    "sinks",
    "logits_soft_cap",
    "enable_hamming_sparse",
    "pcp_enabled",
)


def unfit(impl: Any, query: torch.Tensor) -> str | None:
    """Why the operator cannot serve this implementation and such queries in any step, or None."""
    choice = CHOICES["paged_attention"]
    if choice.native is not None:
        return choice.native
    if type(impl).__name__ != IMPLEMENTATION:
        return "the attention implementation is a variant"
    known = getattr(impl, "__dict__", NONE)
    for name in ABSENT:
        if known.get(name) is not None and known[name] is not False:
            return "the attention has a window, alibi slopes, sinks, a cap, sparsity or context parallelism"
    if known.get("attn_type", "decoder") != "decoder":
        return "the attention is not a decoder's"
    if getattr(query, "dtype", None) is not BF16 or query.dim() != 3:
        return "the query is not bf16 [tokens, heads, dim]"
    if choice.off_cpu and query.is_cpu:
        return "the query is on the CPU"
    keys, values = known.get("key_cache"), known.get("value_cache")
    if getattr(keys, "dtype", None) is not BF16 or getattr(values, "dtype", None) is not BF16:
        return "there are no bf16 caches"
    return _unfit_shapes(choice, query, keys, values, known.get("num_kv_heads"))


def _unfit_shapes(
    choice: backends.Choice, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kv_heads: Any
) -> str | None:
    if keys.dim() != 4 or keys.shape != values.shape:
        return "the caches are not [blocks, block, kv_heads, dim]"
    if choice.caches == "dense" and not (keys.is_contiguous() and values.is_contiguous()):
        return "the caches are strided views"
    if choice.caches == "blocks" and not (_dense_in_blocks(keys) and _dense_in_blocks(values)):
        return "the caches are strided views whose blocks do not lie a whole number of blocks apart"
    _, block, heads_of_cache, dim = keys.shape
    _, heads, dim_of_query = query.shape
    if heads_of_cache != kv_heads or not kv_heads or dim != dim_of_query:
        return "the caches do not fit the query"
    if block != 128 or dim != 128 or not (heads == 12 * kv_heads or (kv_heads == 1 and heads in (3, 6))):
        return "the heads are not GLM-4.5's: 12 a kv head of 128, in blocks of 128 tokens"
    return choice.refusal(
        (heads, kv_heads, dim), heads=heads, kv_heads=kv_heads, head_dim=dim, block_size=block
    )


def _dense_in_blocks(cache: torch.Tensor) -> bool:
    """Whether every block is dense, and the blocks lie a whole number of blocks apart (vllm-ascend 0.30)."""
    _, block, heads, dim = cache.shape
    apart, *inside = cache.stride()
    return inside == [heads * dim, dim, 1] and apart > 0 and apart % (block * heads * dim) == 0


def unfit_step(query: torch.Tensor, attn_metadata: Any) -> str | None:
    """Why the operator cannot serve this step, or None."""
    step = getattr(attn_metadata, "__dict__", NONE)
    if step.get("causal") is False:
        return "the attention is not causal"
    if step.get("seq_lens") is None or step.get("block_tables") is None:
        return "the metadata has no seq_lens and block_tables"
    if not query.is_cpu and notice.capturing():
        return "a graph is being captured"
    return None
