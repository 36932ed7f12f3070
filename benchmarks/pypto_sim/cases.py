"""Inputs of each operator, the same for our kernels, for upstream's and for the tests.

Every ``*_inputs`` makes its tensors from a fixed seed; every ``ours_*`` is a case for the simulator.
"""

from collections.abc import Sequence
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
    scoreless: int = 0,
) -> dict[str, Any]:
    """``tied``: every score is the same. ``scoreless``: so many rows have only scores of 0."""
    random = seeded()
    logits = torch.randn(tokens, experts, generator=random)
    logits[:scoreless] = -200.0
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


def paged_attention_inputs(
    lengths: Sequence[int],
    heads: int = 12,
    kv_heads: int = 1,
    dim: int = 128,
    block: int = 128,
    shared_buffer: bool = False,
    softmax_scale: float | None = None,
) -> dict[str, Any]:
    """Blocks lie in random order, with one that nobody uses and that holds NaN; unused entries are -1."""
    random = seeded()
    counts = [-(-length // block) for length in lengths]
    total = sum(counts) + 1
    order = torch.randperm(total, generator=random).tolist()
    tables = torch.full((len(lengths), max(counts) + 2), -1, dtype=torch.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
    memory = torch.randn(2, total, block, kv_heads, dim, generator=random).bfloat16()
    memory[:, order.pop()] = torch.nan
    keys, values = memory
    if shared_buffer:
        keys, values = memory.transpose(0, 1).contiguous().unbind(1)
    query = torch.randn(len(lengths), heads, dim, generator=random).bfloat16()
    return {
        "query": query,
        "key_cache": keys,
        "value_cache": values,
        "block_tables": tables,
        "actual_seqs": torch.tensor(lengths, dtype=torch.int32),
        "attn_res": torch.full_like(query, torch.nan),
        "softmax_scale": softmax_scale,
    }


def ours_paged_attention(**sizes: Any) -> Case:
    from glm_pto_kernels.pypto import paged_attention

    return case(paged_attention.launch(**paged_attention_inputs(**sizes)))


def attention_pre_inputs(
    tokens: int,
    hidden: int = 5120,
    heads: int = 12,
    kv_heads: int = 1,
    head: int = 128,
    half: int = 32,
    head_norm: bool = True,
    biases: bool = True,
    first_layer: bool = False,
    loud: bool = False,
) -> dict[str, Any]:
    """``loud`` inputs saturate int8, and their bias needs more bits than fp32 has."""
    random = seeded()

    def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
        return (torch.randn(shape, generator=random) * scale + shift).bfloat16()

    def empty(width: int) -> torch.Tensor:
        return torch.full((tokens, width), torch.nan, dtype=torch.bfloat16)

    angle = torch.randn(tokens, 1, half, generator=random)
    return {
        "hidden_states": normal(tokens, hidden),
        "residual": None if first_layer else normal(tokens, hidden),
        "input_layernorm_weight": normal(hidden, scale=0.1, shift=1.0),
        "input_layernorm_bias": normal(hidden, scale=0.1) if biases else None,
        **qkv_projection(random, hidden, (heads + 2 * kv_heads) * head, loud),
        "atten_q_norm_weight": normal(head, scale=0.1, shift=1.0) if head_norm else None,
        "atten_q_norm_bias": normal(head, scale=0.1) if head_norm and biases else None,
        "atten_k_norm_weight": normal(head, scale=0.1, shift=1.0) if head_norm else None,
        "atten_k_norm_bias": normal(head, scale=0.1) if head_norm and biases else None,
        "cos": angle.cos().bfloat16(),
        "sin": angle.sin().bfloat16(),
        "query": empty(heads * head),
        "key": empty(kv_heads * head),
        "value": empty(kv_heads * head),
        "residual_res": empty(hidden),
        "eps": 1e-5,
    }


def qkv_projection(random: torch.Generator, hidden: int, total: int, loud: bool) -> dict[str, Any]:
    """Its static W8A8 data for ``total`` columns."""
    largest = 2**30 if loud else 999
    return {
        "atten_qkv_input_scale_reciprocal": torch.full((hidden,), 80.0 if loud else 20.0).bfloat16(),
        "atten_qkv_input_offset": torch.full((hidden,), 3.0).bfloat16(),
        "atten_qkv_weight": torch.randint(-127, 128, (hidden, total), dtype=torch.int8, generator=random),
        "atten_qkv_quant_bias": torch.randint(
            -largest, largest, (total,), dtype=torch.int32, generator=random
        ),
        "atten_qkv_deq_scale": torch.rand(total, generator=random) * 2e-5 + 1e-6,
    }


def ours_attention_pre(nz: bool = False, **sizes: Any) -> Case:
    from glm_pto_kernels.pypto import attention_pre

    inputs = attention_pre_inputs(**sizes)
    if nz:
        inputs["atten_qkv_weight"] = to_nz(inputs["atten_qkv_weight"])
    launch = attention_pre.launch(**inputs, head_dim=sizes.get("head"))
    return case(launch, nz=("weight",) if nz else ())


def shared_expert_inputs(tokens: int, hidden: int = 5120, intermediate: int = 192) -> dict[str, Any]:
    """The last of several rows is all zeros."""
    random = seeded()

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-127, 128, shape, dtype=torch.int8, generator=random)

    def scales(count: int) -> torch.Tensor:
        return (torch.rand(count, generator=random) * 2e-4 + 1e-5).bfloat16()

    x = torch.randn(tokens, hidden, generator=random).bfloat16()
    if tokens > 1:
        x[-1] = 0
    return {
        "hidden_states": x,
        "w13": integers(hidden, 2 * intermediate),
        "w13_scale": scales(2 * intermediate),
        "w2": integers(intermediate, hidden),
        "w2_scale": scales(hidden),
        "ffn_res": torch.full((tokens, hidden), torch.nan, dtype=torch.bfloat16),
    }


def ours_shared_expert(nz: bool = False, **sizes: Any) -> Case:
    from glm_pto_kernels.pypto import shared_expert

    inputs = shared_expert_inputs(**sizes)
    if nz:
        inputs.update(w13=to_nz(inputs["w13"]), w2=to_nz(inputs["w2"]))
    return case(shared_expert.launch(**inputs), nz=("w13", "w2") if nz else ())


def to_nz(matrix: torch.Tensor) -> torch.Tensor:
    """The bytes of the fractal NZ layout of ``[m, n]``, in a tensor of that shape: 16-row, 32-byte tiles."""
    m, n = matrix.shape
    width = 32 // matrix.element_size()
    return matrix.reshape(m, n // width, width).permute(1, 0, 2).reshape(m, n).contiguous()


def padded(tables: torch.Tensor, multiple: int) -> torch.Tensor:
    """Block tables with columns of -1 up to a multiple."""
    return torch.nn.functional.pad(tables, (0, -tables.shape[1] % multiple), value=-1)
