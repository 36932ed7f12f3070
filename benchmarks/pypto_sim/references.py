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
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * routed_scaling_factor, ids.int()
