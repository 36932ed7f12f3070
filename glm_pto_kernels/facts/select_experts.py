"""What select_experts asks of a routing call: its scoring, its groups, its logits and its bias."""

from __future__ import annotations

import torch

from glm_pto_kernels import backends

CHOICES, FP32 = backends.CHOICES, torch.float32


def unfit(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    groups: tuple[int | None, int | None],
    bias: torch.Tensor | None,
    scoring_func: str,
) -> str | None:
    """Why the operator does not compute what this call means, or None."""
    choice = CHOICES["select_experts"]
    if choice.native is not None:
        return choice.native
    if scoring_func != "sigmoid":
        return "the scoring function is not sigmoid"
    if renormalize is not True:  # some releases' operator divides by the sum whatever the model says
        return "the weights are not renormalised"
    if groups[0] != 1 or groups[1] != 1:
        return "the experts are in more groups than one"
    if bias is None or getattr(bias, "ndim", 0) != 1:
        return "there is no score correction bias"
    if getattr(router_logits, "dtype", None) is not FP32 or router_logits.ndim != 2:
        return "the router logits are not an fp32 matrix"
    if choice.off_cpu and router_logits.is_cpu:
        return "the router logits are on the CPU"
    experts = router_logits.shape[1]
    if not 0 < top_k <= experts:
        return "top_k does not fit the number of experts"
    return choice.refusal((experts, top_k), experts=experts, top_k=top_k)
