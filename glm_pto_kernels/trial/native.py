"""The native NPU operators that the guarded statements replace, in torch, after their documentation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def paged(**a: Any) -> None:
    """``torch_npu._npu_paged_attention``."""
    for row, length in enumerate(a["context_lens"].tolist()):
        keys, values = (
            cache[a["block_table"][row].long()].flatten(0, 2)[:length].float()
            for cache in (a["key_cache"], a["value_cache"])
        )
        weights = (a["query"][row].float() @ keys.t() * a["scale_value"]).softmax(-1)
        a["out"][row] = (weights @ values).to(a["out"].dtype)


def gating(logits: torch.Tensor, **a: Any) -> tuple[torch.Tensor, ...]:
    """``npu_moe_gating_top_k`` with sigmoid scores and one group."""
    scores = torch.sigmoid(logits.float())
    bias = a.get("bias", a.get("bias_opt"))
    ids = torch.topk(scores + bias.float(), a["k"], dim=-1).indices
    weights = scores.gather(-1, ids)
    weights = weights / (weights.sum(-1, keepdim=True) + a["eps"]) * a["routed_scaling_factor"]
    return weights, ids.to(torch.int32), scores


class Torch:
    """torch, with the operators that vllm-ascend's extension would register."""

    @property
    def ops(self) -> SimpleNamespace:
        own = SimpleNamespace(moe_gating_top_k=gating, npu_dequant_swiglu_quant=dequant_swiglu_quant)
        return SimpleNamespace(_C_ascend=own)

    @property
    def npu(self) -> SimpleNamespace:
        stream = SimpleNamespace(wait_event=lambda _: None, wait_stream=lambda _: None)
        return SimpleNamespace(current_stream=lambda: stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def dynamic_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_dynamic_quant``: int8 rows and one scale a row."""
    scale = x.float().abs().amax(-1) / 127
    return torch.round(x.float() / scale[:, None]).to(torch.int8), scale


def quant_matmul(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, **a: Any) -> torch.Tensor:
    """``npu_quant_matmul``: whole numbers, or dequantised by row and column."""
    whole = x.double() @ weight.double()
    if a["output_dtype"] is torch.int32:
        return whole.to(torch.int32)
    return (whole.float() * a["pertoken_scale"][:, None] * weight_scale.float()).to(a["output_dtype"])


def dequant_swiglu_quant(
    x: torch.Tensor, weight_scale: torch.Tensor, activation_scale: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_dequant_swiglu_quant`` with the activated half on the left."""
    gate, up = (x.float() * activation_scale[:, None] * weight_scale.float()).chunk(2, dim=-1)
    return dynamic_quant(torch.nn.functional.silu(gate) * up)
