"""paged_attention: decode attention of one query row a request over its blocks of the key and value cache.

Replaces ``torch_npu._npu_paged_attention`` or vllm-ascend's choice of it in ``AscendAttentionBackendImpl``.
Drop when upstream's decode attention is as fast for one kv head.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from glm_pto_kernels import backends

# Probabilities and values in bf16 with fp32 sums, relative to the largest output.
TOLERANCE = 2.0**-6
IMPLEMENTATION = "AscendAttentionBackendImpl"  # its 310P, FA3, C8 and context-parallel subclasses stay native
_COPY = "_glm_pto_lengths"


def reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """softmax(q k^T * scale) v, [batch, heads, dim] in the query's dtype; zeros for a length of 0.

    query [batch, heads, dim]; caches [blocks, block, kv_heads, dim], any strides; block_tables int
    [batch, blocks of the longest]; seq_lens int [batch] on any device. Entries past a length are never used.
    """
    out = torch.zeros_like(query)
    block = key_cache.shape[1]
    group = query.shape[1] // key_cache.shape[2]
    for row, length in enumerate(seq_lens.tolist()):
        if length <= 0:
            continue
        blocks = block_tables[row, : -(-length // block)].long()
        keys, values = (
            cache[blocks].flatten(0, 1)[:length].float().repeat_interleave(group, dim=1)
            for cache in (key_cache, value_cache)
        )
        weights = torch.einsum("hd,thd->ht", query[row].float(), keys).mul(scale).softmax(-1)
        out[row] = torch.einsum("ht,thd->hd", weights, values).to(query.dtype)
    return out


def capturing() -> bool:
    """Whether a graph is being captured: it would bake the lengths in, and replay updates native calls."""
    for name in ("npu", "cuda"):
        device = getattr(torch, name, None)
        probe = getattr(device, "is_current_stream_capturing", None)
        if probe is not None and device.is_initialized() and probe():
            return True
    context = getattr(sys.modules.get("vllm.forward_context"), "_forward_context", None)
    return getattr(context, "capturing", False) is True


def _reason(impl: Any, query: torch.Tensor, attn_metadata: Any) -> str | None:
    choice = backends.CHOICES["paged_attention"]
    if choice.native is not None:
        return choice.native
    if type(impl).__name__ != IMPLEMENTATION:
        return "the attention implementation is a variant"
    if not isinstance(query, torch.Tensor) or query.dim() != 3 or query.dtype is not torch.bfloat16:
        return "the query is not bf16 [tokens, heads, dim]"
    if choice.device is not None and query.device.type != choice.device:
        return "the query is not on an NPU"
    keys, values = getattr(impl, "key_cache", None), getattr(impl, "value_cache", None)
    if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor) or keys.dim() != 4:
        return "there is no key and value cache"
    if keys.dtype is not torch.bfloat16 or values.dtype is not torch.bfloat16:
        return "the caches are not bf16"
    kv_heads, dim = getattr(impl, "num_kv_heads", 0), query.shape[2]
    if keys.shape != values.shape or keys.shape[2] != kv_heads or keys.shape[3] != dim:
        return "the caches are not [blocks, block, kv_heads, dim]"
    if not kv_heads or query.shape[1] % kv_heads:
        return "the kv heads do not divide the heads"
    if choice.dense and not (keys.is_contiguous() and values.is_contiguous()):
        return "the caches are strided views"
    return _reason_of_features(impl, attn_metadata) or _reason_of_sizes(choice, query, keys)


def _reason_of_features(impl: Any, attn_metadata: Any) -> str | None:
    if getattr(impl, "sliding_window", None) is not None:
        return "the attention has a sliding window"
    if getattr(impl, "attn_type", "decoder") != "decoder":
        return "the attention is not a decoder's"
    if getattr(impl, "alibi_slopes", None) is not None or getattr(impl, "sinks", None) is not None:
        return "the attention has alibi slopes or sinks"
    if getattr(impl, "logits_soft_cap", None):
        return "the attention caps its logits"
    if getattr(impl, "enable_hamming_sparse", False) or getattr(impl, "pcp_enabled", False):
        return "the attention is sparse or context-parallel"
    if getattr(attn_metadata, "causal", True) is False:
        return "the attention is not causal"
    if not isinstance(getattr(attn_metadata, "seq_lens", None), torch.Tensor):
        return "the metadata has no seq_lens"
    if not isinstance(getattr(attn_metadata, "block_tables", None), torch.Tensor):
        return "the metadata has no block_tables"
    return "a graph is being captured" if capturing() else None


def _reason_of_sizes(choice: backends.Choice, query: torch.Tensor, keys: torch.Tensor) -> str | None:
    if choice.sizes is None:
        return None
    return choice.sizes(
        heads=query.shape[1], kv_heads=keys.shape[2], head_dim=query.shape[2], block_size=keys.shape[1]
    )


def paged_attention_supported(impl: Any, query: torch.Tensor, attn_metadata: Any) -> bool:
    """Whether `paged_attention` may stand in for this call. Pure; static facts and the capture state only.

    That the step is decode-only is the guard's own term, where the patched function serves other steps too.
    """
    return _reason(impl, query, attn_metadata) is None


def paged_attention_refusal(impl: Any, query: torch.Tensor, attn_metadata: Any) -> str | None:
    """Why `paged_attention_supported` is false, or None."""
    return _reason(impl, query, attn_metadata)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    actual_seqs_cpu: torch.Tensor,
    output: torch.Tensor,
    scale: float | None = None,
    attn_metadata: Any = None,
) -> torch.Tensor:
    """Write the attention of each request's row into ``output`` and return it.

    Args:
        query: bf16 [rows, heads, dim]. Rows past the requests are padding: theirs in ``output`` stay as
        they are. key_cache, value_cache: bf16 [blocks, block, kv_heads, dim].
        block_tables: int [>= batch, blocks]. actual_seqs_cpu: int [batch], tokens in the cache, on any
        device.
        output: like ``query``, or [rows, heads * dim].
        scale: softmax scale, 1 / sqrt(dim) if None.
        attn_metadata: the step's metadata; keeps the device copy of the lengths, so 92 layers copy them once.

    Raises:
        BackendError: an explicitly chosen backend cannot run here.
    """
    rows = min(actual_seqs_cpu.shape[0], query.shape[0], block_tables.shape[0], output.shape[0])
    lengths = on_device(actual_seqs_cpu, query.device, attn_metadata)
    _paged_attention(
        query[:rows],
        key_cache,
        value_cache,
        block_tables[:rows],
        lengths[:rows],
        output[:rows].view(rows, query.shape[1], query.shape[2]),
        query.shape[2] ** -0.5 if scale is None else scale,
    )
    return output


def on_device(seq_lens: torch.Tensor, device: torch.device, attn_metadata: Any) -> torch.Tensor:
    """int32 lengths on ``device``, copied once for each metadata object as long as their values stay."""
    if seq_lens.device.type != "cpu":
        return seq_lens.to(device, torch.int32)
    kept = getattr(attn_metadata, _COPY, None)
    # Draft steps change lengths in place under the same metadata: the values decide, they are in host memory.
    if kept is not None and kept[1].device == device and torch.equal(kept[0], seq_lens):
        return kept[1]  # type: ignore[no-any-return]
    copy = seq_lens.to(device, torch.int32, copy=True)
    if hasattr(attn_metadata, "__dict__"):
        attn_metadata.__dict__[_COPY] = (seq_lens.clone(), copy)
    return copy


@torch.library.custom_op("glm_pto::paged_attention", mutates_args=("output",))
def _paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    scale: float,
) -> None:
    if not query.shape[0]:
        return
    dense = (
        output if output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
    )
    tables = block_tables.to(torch.int32).contiguous()
    backends.run(
        "paged_attention", query.contiguous(), key_cache, value_cache, tables, seq_lens, dense, scale
    )
    if dense is not output:
        output.copy_(dense)


@_paged_attention.register_fake
def _(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    scale: float,
) -> None:
    return None


def _torch(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    scale: float,
) -> None:
    output.copy_(reference(query, key_cache, value_cache, block_tables, seq_lens, scale))


def _compare(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    scale: float,
) -> tuple[float, float]:
    expected = reference(query, key_cache, value_cache, block_tables, seq_lens, scale).float()
    return (output.float() - expected).abs().max().item(), TOLERANCE * expected.abs().max().item()


backends.declare(
    backends.Operator(
        name="paged_attention",
        entry="attention",
        parameters=(
            "query",
            "key_cache",
            "value_cache",
            "block_tables",
            "actual_seqs",
            "attn_res",
            "softmax_scale",
        ),
        torch_kernel=_torch,
        compare=_compare,
    )
)
