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

    ops = SimpleNamespace(_C_ascend=SimpleNamespace(moe_gating_top_k=gating))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
