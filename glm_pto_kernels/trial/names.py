"""The values behind the names that guarded statements use, release by release."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from glm_pto_kernels.trial import native
from glm_pto_kernels.trial.layers import (
    BLOCKS,
    EXPERTS,
    HEAD,
    HEADS,
    HIDDEN,
    TOKENS,
    TOP,
    AscendAttentionBackendImpl,
    Attention,
    Norm,
    SharedExpert,
    frozen,
)

Names = dict[str, Any]


def names_for(site: str, original: str) -> Names:
    """Fresh values for the names that the statements use."""
    torch.manual_seed(len(site))
    rows = torch.randn(TOKENS, HIDDEN).bfloat16()
    npu = SimpleNamespace(
        _npu_paged_attention=native.paged,
        npu_moe_gating_top_k=native.gating,
        npu_dynamic_quant=native.dynamic_quant,
        npu_quant_matmul=native.quant_matmul,
    )
    common: Names = {"torch": native.Torch(), "torch_npu": npu, "hidden_states": rows,
                     "DeviceOperator": SimpleNamespace(moe_gating_top_k=native.gating)}  # fmt: skip
    return {**common, **SITES[site](original)}


def of_gate(original: str) -> Names:
    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = frozen(torch.randn(EXPERTS, HIDDEN))

        def forward(self, x: torch.Tensor) -> Any:
            logits = x.to(self.weight.dtype) @ self.weight.t()
            return (logits, None) if "router_logits, _" in original else logits

    return {"self": SimpleNamespace(gate=Gate())}


def of_attention_pre(original: str) -> Names:
    layer = torch.nn.Module()
    layer.input_layernorm, layer.self_attn = Norm(HIDDEN), Attention()
    return {
        "self": layer,
        "positions": torch.arange(TOKENS),
        "residual": torch.randn(TOKENS, HIDDEN).bfloat16(),
    }


def of_paged_attention(original: str) -> Names:
    lengths = torch.tensor([1, 127, 128, 129, 300], dtype=torch.int32)
    tables = torch.stack([torch.randperm(BLOCKS)[:3] for _ in range(TOKENS)]).to(torch.int32)
    state = SimpleNamespace(DecodeOnly="decode")
    query = torch.randn(TOKENS, HEADS, HEAD).bfloat16()
    metadata = SimpleNamespace(seq_lens=lengths, block_tables=tables, attn_state="decode")
    return {
        "self": AscendAttentionBackendImpl(),
        "query": query,
        "key": None,
        "value": None,
        "output": torch.zeros_like(query),
        "num_tokens": TOKENS,
        "attn_metadata": metadata,
        "AscendAttentionState": state,
        "using_paged_attention": lambda *_, **__: True,
    }


def of_select_experts(original: str) -> Names:
    routing: Names = {
        "router_logits": torch.randn(TOKENS, EXPERTS), "top_k": TOP, "use_grouped_topk": True,
        "renormalize": True, "topk_group": 1, "num_expert_group": 1,
        "e_score_correction_bias": torch.randn(EXPERTS) / 10,
        "scoring_func": "sigmoid", "routed_scaling_factor": 1.0, "global_num_experts": EXPERTS,
        "custom_routing_function": None, "norm_type": 1,
    }  # fmt: skip

    def select(router_logits: torch.Tensor, top_k: int, e_score_correction_bias: Any, **_: Any) -> Any:
        return native.gating(
            router_logits, k=top_k, bias=e_score_correction_bias, eps=1e-20, routed_scaling_factor=1
        )[:2]

    return {
        **routing, "renorm": 1, "_native_select_experts": select, "self": SimpleNamespace(**routing)
    }  # fmt: skip


class Anything:
    """Events, limits and milestones: every attribute is None, which stands for "not set" upstream."""

    def __getattr__(self, name: str) -> None:
        return None


KINDS = SimpleNamespace(W8A8="w8a8", W4A8="w4a8", W4A8MXFP="mx", W8A8MXFP="mx")
MODES = SimpleNamespace(TENSOR_PARALLEL="tp", SEQUENCE_PARALLEL_ONLY="sp")


def holder(expert: SharedExpert) -> SimpleNamespace:
    """What holds a shared expert, with the methods of every release."""
    return SimpleNamespace(
        _shared_experts=expert,
        layer=expert,
        lora_context=None,
        quant_type=KINDS.W8A8,
        multistream_overlap=False,
        situ_activation=None,
        swiglu_limit=None,
        swiglu_alpha=None,
        swiglu_beta=None,
        multistream_overlap_shared_expert=False,
        _shared_experts_part1=lambda x: expert.gate_up_proj(x)[0],
        _shared_experts_part2=lambda _, y: expert.down_proj(expert.act_fn(y))[0].bfloat16(),
        _run_shared_mlp=lambda x, *_: expert(x),
        _prepare_execution_input=lambda prepared, *_: (prepared.hidden_states, None),
        _prepare_gate_up_input=lambda x: x,
        enqueue_gate_up_after_router=lambda prepared, *_: prepared,
        _finish_shared_mlp=lambda prepared, *_: expert(prepared.hidden_states),
        _wait_for_milestone=lambda *_: None,
    )


def of_shared_expert(original: str) -> Names:
    """The layer that calls the shared expert (to 0.26), or the executor that holds it (from 0.27 on)."""
    expert = SharedExpert()
    rows = torch.randn(TOKENS, HIDDEN).bfloat16()
    if "self.gate_up_proj(x)" in original:  # Glm4MoeMLP itself, where there is no vllm-ascend
        return {"self": expert, "x": rows}
    return {
        "self": holder(expert),
        "hidden_states": rows,
        "prepared_input": SimpleNamespace(hidden_states=rows),
        "has_quantized_shared": True,
        "has_quantized_shared_without_lora": True,
        "shared_uses_situ": False,
        "has_lora": lambda _: False,
        "get_ascend_device_type": lambda: "A2",
        "AscendDeviceType": SimpleNamespace(A5="A5"),
        "QuantType": KINDS,
        "SharedExpertParallelMode": MODES,
        "mode": MODES.TENSOR_PARALLEL,
        "submitted_gate_up": None,
        "PreparedSharedExpertExecution": SimpleNamespace,
        "fused_moe_evts": Anything(),
        "milestones": Anything(),
        "down_projection_ready": None,
        "maybe_wait_event": lambda _: None,
        "npu_stream_switch": lambda *_, **__: nullcontext(),
        "shared_experts_calculation_stream": lambda: None,
    }


SITES: dict[str, Callable[[str], Names]] = {
    "gate": of_gate, "attention_pre": of_attention_pre, "paged_attention": of_paged_attention,
    "select_experts": of_select_experts, "shared_expert": of_shared_expert,
}  # fmt: skip
