"""paged_attention: decode attention of one query row a request over its blocks of the key and value cache.

Replaces ``torch_npu._npu_paged_attention`` or vllm-ascend's choice of it in ``AscendAttentionBackendImpl``.
Drop when upstream's decode attention is as fast for one kv head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from glm_pto_kernels import backends, notice
from glm_pto_kernels.facts.paged_attention import unfit, unfit_step
from glm_pto_kernels.layers import why
from glm_pto_kernels.verdicts import keep

BF16, CHOICES = torch.bfloat16, backends.CHOICES
# Probabilities and values in bf16 with fp32 sums, relative to the largest output.
TOLERANCE = 2.0**-6
_KEPT = "_glm_pto_paged_attention"
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


def paged_attention_supported(impl: Any, query: torch.Tensor, attn_metadata: Any) -> bool:
    """Whether `paged_attention` may stand in for this call: static facts, and that no graph is captured.

    That the step is decode-only is the guard's own term, where the patched function serves other steps too.
    The facts of the layer are asked once for its caches; see `glm_pto_kernels.verdicts`.
    """
    if is_dynamo_compiling():
        return backends.TOLD() and paged_attention_refusal(impl, query, attn_metadata) is None
    choice = CHOICES["paged_attention"]
    try:
        if query.dtype is not BF16 or query.ndim != 3:
            return False
        known = impl.__dict__
        keys = known["key_cache"]
        kept = known.get(_KEPT)
        if kept is not None and kept.choice is choice and kept() is keys:
            verdict = kept.verdict
        else:
            verdict = keep(impl, _KEPT, why(unfit, impl, query) is None, choice, keys)
        step = attn_metadata.__dict__
        if not verdict or step["seq_lens"] is None or step["block_tables"] is None:
            return False
        on_cpu = query.is_cpu
    except Exception:  # no call of any release; `paged_attention_refusal` says what it raised
        return False
    return step.get("causal") is not False and (on_cpu or not notice.capturing())


def paged_attention_refusal(impl: Any, query: torch.Tensor, attn_metadata: Any) -> str | None:
    """Why `paged_attention_supported` is false, or None."""
    return why(unfit, impl, query) or why(unfit_step, query, attn_metadata)


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
def _(*_arguments: Any) -> None:
    return None


def _torch(*arguments: Any) -> None:
    *inputs, output, scale = arguments
    output.copy_(reference(*inputs, scale))


def _largest(values: torch.Tensor) -> float:
    return values.abs().max().item() if values.numel() else 0.0


def _compare(*arguments: Any) -> tuple[float, float]:
    *inputs, seq_lens, output, scale = arguments
    expected = reference(*inputs, seq_lens, scale).float()
    written = output.float()[seq_lens > 0]  # a kernel may leave the row of an empty request as it is
    return _largest(written - expected[seq_lens > 0]), TOLERANCE * _largest(expected)


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
        outputs=("attn_res",),
        torch_kernel=_torch,
        compare=_compare,
    )
)
