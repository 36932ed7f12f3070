"""CPU bodies, written from their documentation, under torch_npu's own operator schemas.

A call that the schema does not allow is refused as on hardware. Every call is counted in `CALLS`. Where an
operator belongs to vllm-ascend's C++ extension, its schema is declared here as the extension declares it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import torch

CALLS: Counter[str] = Counter()
QUANTIZE: list[torch.library.Library] = []  # vllm-ascend's own wrapper of npu_quantize, once it is imported
LIBRARIES: list[torch.library.Library] = []  # a library that is collected takes its operators along

FUSED_ACTIVATION = (
    "npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None, Tensor? activation_scale=None, "
    "Tensor? bias=None, Tensor? quant_scale=None, Tensor? quant_offset=None, Tensor? group_index=None, "
    "bool activate_left=False, int quant_mode=0, int swiglu_mode=0, float clamp_limit=0., "
    "float glu_alpha=1., float glu_bias=0.) -> (Tensor, Tensor)"
)
GATING = (
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm, "
    "int norm_type, bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None) "
    "-> (Tensor y, Tensor expert_idx, Tensor out)"
)


def install() -> None:
    """Put the bodies under torch_npu's schemas, once a process. Without it they are plain functions."""
    import torch_npu

    with contextlib.suppress(RuntimeError, TypeError):
        torch_npu._npu_paged_attention()  # loads the library with the atb schemas, then refuses the call
    npu = torch.library.Library("npu", "IMPL", "CPU")
    atb = torch.library.Library("atb", "IMPL", "CPU")
    own = torch.library.Library("_C_ascend", "FRAGMENT")
    own.define(GATING)
    own.define(FUSED_ACTIVATION)
    own.impl("npu_dequant_swiglu_quant", dequant_swiglu_quant, "CPU")
    LIBRARIES.extend((npu, atb, own))
    atb.impl("_npu_paged_attention", paged_attention)
    atb.impl("_npu_reshape_and_cache", reshape_and_cache)
    npu.impl("npu_fused_infer_attention_score", fused_infer_attention_score)
    npu.impl("npu_scatter_pa_kv_cache", scatter_pa_kv_cache)
    npu.impl("npu_moe_gating_top_k", npu_moe_gating_top_k)
    npu.impl("npu_moe_gating_top_k_softmax", moe_gating_top_k_softmax)
    npu.impl("npu_dynamic_quant", dynamic_quant)
    npu.impl("npu_quant_matmul", quant_matmul)
    npu.impl("npu_dequant_swiglu_quant", dequant_swiglu_quant)
    npu.impl("npu_swiglu", swiglu)
    npu.impl("npu_quantize", quantize)
    npu.impl("npu_format_cast", lambda input, *a, **k: input.clone())
    own.impl("moe_gating_top_k", moe_gating_top_k, "CPU")


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of the last rows: query [t, heads, dim], keys and values [n, kv_heads, dim]."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    score = torch.einsum("qhd,khd->hqk", query.float(), keys.float()) * scale
    rows, length = query.shape[0], keys.shape[0]
    later = torch.ones(rows, length).triu(length - rows + 1).bool()
    weights = score.masked_fill(later, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values.float()).to(query.dtype)


def blocks(cache: torch.Tensor, table: torch.Tensor, length: int, heads: int, dim: int) -> torch.Tensor:
    return cache[table.long()].reshape(-1, heads, dim)[:length]  # heads and dim may be folded into one


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor | None = None,
) -> None:
    CALLS["paged_attention"] += 1
    for row, length in enumerate(context_lens.tolist()):
        table = block_table[row]
        keys, values = (
            blocks(c, table, length, num_kv_heads, query.shape[-1]) for c in (key_cache, value_cache)
        )
        out[row] = attend(query[row : row + 1], keys, values, scale_value)[0]


def fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    scale: float = 1.0,
    input_layout: str = "BSH",
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    CALLS["fused_infer_attention_score"] += 1
    assert input_layout == "TND", input_layout
    out, start, before = torch.empty_like(query), 0, 0
    for row, end in enumerate(int(e) for e in actual_seq_lengths):
        length = int(actual_seq_lengths_kv[row])
        if block_table is None:
            keys, values, before = key[before:length], value[before:length], length
        else:
            table = block_table[row]
            keys, values = (
                blocks(c, table, length, num_key_value_heads, query.shape[-1]) for c in (key, value)
            )
        out[start:end] = attend(query[start:end], keys, values, scale)
        start = end
    return out, query.new_empty(0)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    size = key_cache.shape[1]
    for row, slot in enumerate(slot_indices[: key.shape[0]].tolist()):  # caches may be strided views
        key_cache[slot // size, slot % size] = key[row]
        value_cache[slot // size, slot % size] = value[row]


def scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    **others: Any,
) -> None:
    reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


def moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """norm_type 0: softmax, 1: sigmoid, which also normalises the chosen weights."""
    CALLS["moe_gating_top_k"] += 1
    score = x.float().softmax(-1) if norm_type == 0 else x.float().sigmoid()
    choice = score if bias_opt is None else score + bias_opt.float()
    if group_count > 1:
        grouped = choice.unflatten(-1, (group_count, -1))
        best = grouped.topk(2, -1).values.sum(-1) if group_select_mode == 1 else grouped.amax(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(k_group, -1).indices, True)
        choice = grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
    ids = choice.topk(k, -1).indices
    weights = score.gather(1, ids)
    if renorm or norm_type == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    out = score if out_flag else x.new_empty(0)
    return (weights * routed_scaling_factor).to(x.dtype), ids.to(torch.int32), out


def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    tid2eid: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert input_ids is None and tid2eid is None
    return moe_gating_top_k(
        x,
        k,
        k_group,
        group_count,
        group_select_mode,
        renorm,
        norm_type,
        out_flag,
        routed_scaling_factor,
        eps,
        bias,
    )


def moe_gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    CALLS["moe_gating_top_k_softmax"] += 1
    weights, ids = x.float().softmax(-1).topk(k, -1)
    return weights.to(x.dtype), ids.to(torch.int32), ids.to(torch.int32)


def dynamic_quant(input: torch.Tensor, **others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 of each row and its scale, fp32 [tokens]."""
    CALLS["dynamic_quant"] += 1
    scale = input.float().abs().amax(-1, keepdim=True) / 127
    values = (input.float() / scale.clamp_min(1e-30)).round().clamp(-128, 127)
    return values.to(torch.int8), scale.squeeze(-1)


def quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: Any = None,
    **others: Any,
) -> torch.Tensor:
    """int8 times int8, exact, then the column's and the row's scale. ``output_dtype`` int32: no scale."""
    CALLS["quant_matmul"] += 1
    total = x1.double() @ x2.double()
    if bias is not None:
        total = total + bias.double()
    if output_dtype in (torch.int32, 3):
        return total.to(torch.int32)
    result = total.float() * scale.flatten().float()
    if pertoken_scale is not None:
        result = result * pertoken_scale.flatten().unsqueeze(-1)
    return result.to(torch.bfloat16)


def dequant_swiglu_quant(
    x: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    CALLS["dequant_swiglu_quant"] += 1
    assert quant_mode == 1, "dynamic only"
    wide = x.float()
    if weight_scale is not None:
        wide = wide * weight_scale.flatten().float()
    if activation_scale is not None:
        wide = wide * activation_scale.flatten().float().unsqueeze(-1)
    left, right = wide.chunk(2, -1)
    gate, up = (left, right) if activate_left else (right, left)
    values, scale = dynamic_quant(torch.nn.functional.silu(gate) * up)
    return values, scale


def swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    CALLS["swiglu"] += 1
    gate, up = input.chunk(2, dim)
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(input.dtype)


def quantize(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: Any,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """int8 steps of static quantisation; ``scales`` are reciprocals where ``div_mode`` is false."""
    CALLS["quantize"] += 1
    steps = input.float() / scales.float() if div_mode else input.float() * scales.float()
    offset = 0 if zero_points is None else zero_points.float()
    return (steps + offset).round().clamp(-128, 127).to(torch.int8)
