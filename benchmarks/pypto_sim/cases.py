"""Inputs of each operator, the same for our kernels, for upstream's and for the tests.

Every ``*_inputs`` makes its tensors from a fixed seed; every ``ours_*`` is a case for the simulator.
"""

from typing import Any

import torch

from benchmarks.pypto_sim.simulator import Case
from glm_pto_kernels.pypto.launch import Launch


def case(launch: Launch, nz: tuple[str, ...] = ()) -> Case:
    return Case(launch.build(), launch.tensors, launch.written, launch.scalars, nz)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gate_inputs(tokens: int, hidden: int = 5120, experts: int = 160) -> dict[str, Any]:
    random = seeded()
    return {
        "hidden_states": torch.randn(tokens, hidden, generator=random),
        "gate_weight": torch.randn(experts, hidden, generator=random) / hidden**0.5,
        "router_logits_out": torch.full((tokens, experts), torch.nan),
    }


def ours_gate(**sizes: int) -> Case:
    from glm_pto_kernels.pypto import gate

    return case(gate.launch(**gate_inputs(**sizes)))


def select_experts_inputs(
    tokens: int,
    experts: int = 160,
    top_k: int = 8,
    renormalize: bool = True,
    topk_group: int = 1,
    num_expert_group: int = 1,
    bias_dtype: torch.dtype = torch.bfloat16,
    tied: bool = False,
) -> dict[str, Any]:
    random = seeded()
    logits = torch.randn(tokens, experts, generator=random)
    bias = torch.rand(experts, generator=random)
    if tied:
        logits, bias = torch.zeros_like(logits), torch.zeros_like(bias)
    return {
        "router_logits": logits,
        "top_k": top_k,
        "renormalize": renormalize,
        "topk_group": topk_group,
        "num_expert_group": num_expert_group,
        "e_score_correction_bias": bias.to(bias_dtype),
        "topk_weights": torch.full((tokens, top_k), torch.nan),
        "topk_ids": torch.full((tokens, top_k), -1, dtype=torch.int32),
    }


def ours_select_experts(routed_scaling_factor: float = 1.0, masked_score: float = 0.0, **sizes: Any) -> Case:
    from glm_pto_kernels.pypto import select_experts

    extras = {"routed_scaling_factor": routed_scaling_factor, "masked_score": masked_score}
    return case(select_experts.launch(**select_experts_inputs(**sizes), **extras))
