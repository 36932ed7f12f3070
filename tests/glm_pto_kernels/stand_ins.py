"""Stand-in layers with the attributes of vLLM's and vllm-ascend's after loading W8A8 weights."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model on one rank."""

    hidden: int = 5120
    experts: int = 160
    heads: int = 12
    kv_heads: int = 1
    head: int = 128
    rotary: int = 64
    intermediate: int = 192

    @property
    def q_size(self) -> int:
        return self.heads * self.head

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head


def glm_4_5(tp: int = 8) -> Sizes:
    """GLM-4.5: 96 heads, 8 kv heads (replicated beyond 8 ranks), shared expert 1536."""
    return Sizes(heads=96 // tp, kv_heads=max(1, 8 // tp), intermediate=1536 // tp)


def glm_4_5_air(tp: int = 8) -> Sizes:
    """GLM-4.5-Air: hidden 4096, 128 experts, shared expert 1408."""
    return Sizes(hidden=4096, experts=128, heads=96 // tp, kv_heads=max(1, 8 // tp), intermediate=1408 // tp)


SMALL = Sizes(hidden=256, experts=32, heads=4, kv_heads=1, head=64, rotary=32, intermediate=48)


class SiluAndMul(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


class RMSNorm(torch.nn.Module):
    def __init__(self, size: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = frozen(1 + 0.1 * torch.randn(size).bfloat16())
        self.bias = frozen(0.1 * torch.randn(size).bfloat16()) if bias else None
        self.variance_epsilon = 1e-5

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x if residual is None else x + residual
        normed = torch.nn.functional.rms_norm(total.float(), x.shape[-1:], self.weight.float())
        return normed.to(x.dtype) if residual is None else (normed.to(x.dtype), total)


class Linear(torch.nn.Module):
    """A quantised projection; ``weight`` int8 [in, out] as vllm-ascend lays it out after loading."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = frozen(torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8))
        self.register_parameter("bias", None)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (x.float() @ self.weight.float()).to(x.dtype) / 1024, None


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, rotary: int, positions: int = 512) -> None:
        super().__init__()
        angle = torch.outer(torch.arange(positions), 1e4 ** -(torch.arange(0, rotary, 2) / rotary))
        self.register_buffer("cos_sin_cache", torch.cat((angle.cos(), angle.sin()), dim=-1))
        self.is_neox_style = True

    def forward(
        self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        turn = positions.unsqueeze(-1).to(q.dtype)  # any function of all three will do for a stand-in
        return q + turn, k - turn


class Attention(torch.nn.Module):
    """``Glm4MoeAttention`` with static W8A8 in its qkv projection."""

    def __init__(self, sizes: Sizes, norm_bias: bool = True) -> None:
        super().__init__()
        self.q_size, self.kv_size, self.head_dim = sizes.q_size, sizes.kv_size, sizes.head
        self.num_heads, self.num_kv_heads, self.use_qk_norm = sizes.heads, sizes.kv_heads, True
        outputs = sizes.q_size + 2 * sizes.kv_size
        qkv = Linear(sizes.hidden, outputs)
        # The input scale spreads a normalised row over the int8 range, as calibration would.
        # Results of arithmetic on parameters: vllm-ascend leaves both as plain tensors.
        qkv.aclnn_input_scale_reciprocal = torch.full((sizes.hidden,), 32.0).bfloat16()
        qkv.aclnn_input_offset = torch.full((sizes.hidden,), 3.0).bfloat16()
        qkv.quant_bias = frozen(torch.randint(-5000, 5000, (outputs,), dtype=torch.int32))
        qkv.deq_scale = frozen((0.5 + torch.rand(outputs)) * 2e-5)
        self.qkv_proj = qkv
        self.q_norm, self.k_norm = RMSNorm(sizes.head, norm_bias), RMSNorm(sizes.head, norm_bias)
        self.rotary_emb = RotaryEmbedding(sizes.rotary)


class DecoderLayer(torch.nn.Module):
    def __init__(self, sizes: Sizes, norm_bias: bool = True) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden, norm_bias)
        self.self_attn = Attention(sizes, norm_bias)


class SharedExpert(torch.nn.Module):
    """``Glm4MoeMLP`` with dynamic W8A8 weights."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_up_proj = Linear(sizes.hidden, 2 * sizes.intermediate)
        self.down_proj = Linear(sizes.intermediate, sizes.hidden)
        self.down_proj.reduce_results = False
        for projection in (self.gate_up_proj, self.down_proj):
            outputs = projection.weight.shape[1]
            projection.weight_scale = frozen(((0.5 + torch.rand(outputs)) * 1e-3).bfloat16())
        self.act_fn = SiluAndMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]


class AscendAttentionBackendImpl:
    """What vllm-ascend's attention implementation holds when it decodes."""

    def __init__(self, sizes: Sizes, blocks: int = 12, block: int = 128) -> None:
        shape = (blocks, block, sizes.kv_heads, sizes.head)
        self.key_cache, self.value_cache = torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()
        self.num_heads, self.num_kv_heads, self.head_size = sizes.heads, sizes.kv_heads, sizes.head
        self.scale = sizes.head**-0.5
        self.sliding_window = self.alibi_slopes = None
        self.attn_type = "decoder"


def metadata(lengths: list[int], blocks: int = 12, block: int = 128) -> SimpleNamespace:
    """Decode metadata: CPU lengths, and tables whose unused entries are rubbish."""
    width = max(1, max(-(-n // block) for n in lengths))
    tables = torch.full((len(lengths), width), 10**6, dtype=torch.int32)
    for row, length in enumerate(lengths):
        used = -(-length // block)
        tables[row, :used] = torch.randperm(blocks)[:used].to(torch.int32)
    return SimpleNamespace(seq_lens=torch.tensor(lengths, dtype=torch.int32), block_tables=tables)


def frozen(data: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad=False)
