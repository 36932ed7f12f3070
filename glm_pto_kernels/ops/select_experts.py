"""select_experts: the top-k experts of each token and their weights, sigmoid scoring with a correction bias.

Replaces the gating call of vllm-ascend's expert selection for GLM-4.5 (one expert group). Drop when
upstream's ``moe_gating_top_k`` is as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from glm_pto_kernels import backends
from glm_pto_kernels.facts.select_experts import unfit
from glm_pto_kernels.layers import why

CHOICES, FP32 = backends.CHOICES, torch.float32
# exp and the division differ in their last bits between devices; weights lie in 0 .. scaling factor.
TOLERANCE = 1e-5


def reference(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int | None = None,
    num_expert_group: int | None = None,
    e_score_correction_bias: torch.Tensor | None = None,
    routed_scaling_factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (fp32 or wider) and int32 ids, both [tokens, top_k], by falling score.

    score = sigmoid(logits); the bias counts for choosing only; with groups, only experts of the
    ``topk_group`` groups with the largest best score can be chosen. Where every chosen score is 0 (fp32
    logits below -88.7), so are the weights.
    """
    wide = torch.promote_types(router_logits.dtype, torch.float32)
    score = router_logits.to(wide).sigmoid()
    choice = score if e_score_correction_bias is None else score + e_score_correction_bias.to(wide)
    if num_expert_group is not None and topk_group is not None and num_expert_group > topk_group:
        groups = choice.unflatten(-1, (num_expert_group, -1))
        best = groups.amax(-1).topk(topk_group, dim=-1).indices
        outside = torch.ones(groups.shape[:-1], dtype=torch.bool, device=groups.device).scatter(
            -1, best, False
        )
        choice = groups.masked_fill(outside.unsqueeze(-1), float("-inf")).flatten(-2)
    ids = choice.topk(top_k, dim=-1).indices
    weights = score.gather(-1, ids)
    if renormalize:
        weights = _shares(weights)
    return weights * routed_scaling_factor, ids.to(torch.int32)


def _shares(weights: torch.Tensor) -> torch.Tensor:
    """The weights over their sum; 0 for a sum of 0, as by the gating operator of vllm-ascend 0.12 and later.

    That operator adds 1e-20 to the sum. A bound changes no weight whose sum is a normal number.
    """
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def select_experts_supported(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int | None = None,
    num_expert_group: int | None = None,
    e_score_correction_bias: torch.Tensor | None = None,
    scoring_func: str = "softmax",
) -> bool:
    """Whether `select_experts` computes what this model means. Pure and traceable; static facts only."""
    bias = e_score_correction_bias
    if is_dynamo_compiling():
        values = (router_logits, top_k, renormalize, topk_group, num_expert_group, bias, scoring_func)
        return backends.TOLD() and select_experts_refusal(*values) is None
    choice = CHOICES["select_experts"]
    if choice.native is not None or renormalize is not True or bias is None:
        return False
    try:
        if scoring_func != "sigmoid" or topk_group != 1 or num_expert_group != 1:
            return False
        rows = router_logits.shape
        if router_logits.dtype is not FP32 or len(rows) != 2 or not 0 < top_k <= rows[1] or bias.ndim != 1:
            return False
        if choice.sizes is not None and (rows[1], top_k) not in choice.sizes:
            return False
        return not (choice.off_cpu and router_logits.is_cpu)
    except Exception:  # no call of any release; `select_experts_refusal` says what it raised
        return False


def select_experts_refusal(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int | None = None,
    num_expert_group: int | None = None,
    e_score_correction_bias: torch.Tensor | None = None,
    scoring_func: str = "softmax",
) -> str | None:
    """Why `select_experts_supported` is false, or None."""
    groups = (topk_group, num_expert_group)
    return why(unfit, router_logits, top_k, renormalize, groups, e_score_correction_bias, scoring_func)


def select_experts(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int | None = None,
    num_expert_group: int | None = None,
    e_score_correction_bias: torch.Tensor | None = None,
    *,
    routed_scaling_factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights fp32 and ids int32, both [tokens, top_k].

    Args:
        router_logits: fp32 [tokens, experts], any number of tokens.
        top_k: experts a token. renormalize: divide the weights by their sum.
        topk_group, num_expert_group: 1 in GLM-4.5.
        e_score_correction_bias: [experts], any float dtype; counts for choosing, not in the weights.
        routed_scaling_factor: multiplies the weights; pass what the replaced call was given.

    Raises:
        BackendError: an explicitly chosen backend cannot run here.
        ValueError: there is not one bias for each expert.
    """
    return _select_experts(
        router_logits,
        top_k,
        renormalize,
        1 if topk_group is None else int(topk_group),
        1 if num_expert_group is None else int(num_expert_group),
        e_score_correction_bias,
        routed_scaling_factor,
    )


def _outputs(router_logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (router_logits.shape[0], top_k)
    weights = router_logits.new_empty(shape, dtype=torch.float32)
    return weights, router_logits.new_empty(shape, dtype=torch.int32)


@torch.library.custom_op("glm_pto::select_experts", mutates_args=())
def _select_experts(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int,
    num_expert_group: int,
    bias: torch.Tensor | None,
    routed_scaling_factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, ids = _outputs(router_logits, top_k)
    if bias is None:
        bias = router_logits.new_zeros(router_logits.shape[1])
    elif bias.shape != router_logits.shape[1:]:  # no kernel may read past it, and no release's code takes it
        raise ValueError(
            f"select_experts: expected one bias for each of {router_logits.shape[1]} experts, "
            f"found {list(bias.shape)}"
        )
    if router_logits.shape[0]:
        logits = router_logits.contiguous()
        backends.run(
            "select_experts",
            logits,
            top_k,
            renormalize,
            topk_group,
            num_expert_group,
            bias.contiguous(),
            weights,
            ids,
        )
    return (weights if routed_scaling_factor == 1.0 else weights.mul_(routed_scaling_factor)), ids


@_select_experts.register_fake
def _(router_logits: torch.Tensor, top_k: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _outputs(router_logits, top_k)


def _torch(*arguments: Any) -> None:
    *inputs, topk_weights, topk_ids = arguments
    weights, ids = reference(*inputs)
    topk_weights.copy_(weights)
    topk_ids.copy_(ids)


def _compare(*arguments: Any) -> tuple[float, float]:
    *inputs, topk_weights, topk_ids = arguments
    router_logits, _, renormalize, _, _, bias = inputs
    # Two experts with equal scores may stand in either order, so the chosen scores are compared, not the ids.
    _, expected = reference(*inputs)
    score = router_logits.sigmoid()
    choice = score + bias.to(score.dtype)
    ids = topk_ids.long()
    if bool(((ids < 0) | (ids >= score.shape[1])).any()) or bool(
        (ids.sort(-1).values.diff(dim=-1) == 0).any()
    ):
        return float("inf"), TOLERANCE
    chosen = (
        choice.gather(-1, ids).sort(-1).values - choice.gather(-1, expected.long()).sort(-1).values
    ).abs()
    weights = score.gather(-1, ids)
    if renormalize:
        weights = _shares(weights)
    return torch.maximum(chosen.max(), (topk_weights - weights).abs().max()).item(), TOLERANCE


backends.declare(
    backends.Operator(
        name="select_experts",
        entry="select_experts",
        parameters=(
            "router_logits",
            "top_k",
            "renormalize",
            "topk_group",
            "num_expert_group",
            "e_score_correction_bias",
            "topk_weights",
            "topk_ids",
        ),
        outputs=("topk_weights", "topk_ids"),
        torch_kernel=_torch,
        compare=_compare,
    )
)
