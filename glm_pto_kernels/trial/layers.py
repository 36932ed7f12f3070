"""Stand-in layers with the attributes that vLLM's and vLLM-Ascend's have after loading, in small sizes."""

from __future__ import annotations

from typing import Any

import torch

from glm_pto_kernels.trial import native

HIDDEN, EXPERTS, TOP, HEADS, HEAD, ROTARY, INNER, TOKENS = 256, 32, 8, 12, 128, 64, 48, 5
BLOCK, BLOCKS = 128, 6


def frozen(data: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad=False)


class Norm(torch.nn.Module):
    """RMS norm in fp32, with the residual variant and the bias of a W8A8 checkpoint."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = frozen(1 + 0.1 * torch.randn(size).bfloat16())
        self.bias = frozen(0.1 * torch.randn(size).bfloat16())
        self.variance_epsilon = 1e-5

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x.float() if residual is None else (x.float() + residual.float())
        wide = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        out = wide * self.weight.float() + self.bias.float()
        return out if residual is None else (out, total.to(x.dtype))


class Projection(torch.nn.Module):
    """An int8 projection, ``weight`` [in, out] as it lies after loading."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = frozen(torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8))
        self.register_parameter("bias", None)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Dynamic W8A8: one scale a row."""
        step = x.float().abs().amax(-1, keepdim=True) / 127
        whole = torch.round(x.float() / step).double() @ self.weight.double()
        return whole.float() * step * self.weight_scale.float(), None


class Rotary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        angle = torch.outer(torch.arange(64), 1e4 ** -(torch.arange(0, ROTARY, 2) / ROTARY))
        self.register_buffer("cos_sin_cache", torch.cat((angle.cos(), angle.sin()), dim=-1))
        self.is_neox_style = True

    def turn(self, positions: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos_sin_cache[positions].bfloat16().float().chunk(2, dim=-1)
        a, b, rest = heads.split([ROTARY // 2, ROTARY // 2, HEAD - ROTARY], dim=-1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


class Attention(torch.nn.Module):
    """``Glm4MoeAttention`` with a static W8A8 projection; its ``attn`` mixes q, k and v without a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.q_size, self.kv_size, self.head_dim = HEADS * HEAD, HEAD, HEAD
        self.num_heads, self.num_kv_heads, self.use_qk_norm = HEADS, 1, True
        outputs = self.q_size + 2 * self.kv_size
        qkv = Projection(HIDDEN, outputs)
        qkv.aclnn_input_scale_reciprocal = torch.full((HIDDEN,), 32.0).bfloat16()
        qkv.aclnn_input_offset = torch.full((HIDDEN,), 3.0).bfloat16()
        qkv.quant_bias = frozen(torch.randint(-5000, 5000, (outputs,), dtype=torch.int32))
        qkv.deq_scale = frozen((0.5 + torch.rand(outputs)) * 2e-5)
        self.qkv_proj, self.q_norm, self.k_norm, self.rotary_emb = qkv, Norm(HEAD), Norm(HEAD), Rotary()
        self.out = torch.randn(self.q_size, HIDDEN) / self.q_size**0.5

    def attn(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q.float() + 0.5 * k.float().repeat(1, HEADS) - v.float().repeat(1, HEADS)

    def o_proj(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (x @ self.out).bfloat16(), None

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj
        scaled = (
            hidden_states.float() * qkv.aclnn_input_scale_reciprocal.float() + qkv.aclnn_input_offset.float()
        )
        whole = torch.clamp(torch.round(scaled), -128, 127).double() @ qkv.weight.double() + qkv.quant_bias
        q, k, v = (whole.float() * qkv.deq_scale).split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = self.rotary_emb.turn(positions, self.q_norm(q.reshape(TOKENS, HEADS, HEAD)))
        k = self.rotary_emb.turn(positions, self.k_norm(k.reshape(TOKENS, 1, HEAD)))
        return self.o_proj(self.attn(q.flatten(1).bfloat16(), k.flatten(1).bfloat16(), v.bfloat16()))[0]


class SiluAndMul(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


class SharedExpert(torch.nn.Module):
    """``Glm4MoeMLP`` with dynamic W8A8 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = Projection(HIDDEN, 2 * INNER), Projection(INNER, HIDDEN)
        self.down_proj.reduce_results = False
        for projection in (self.gate_up_proj, self.down_proj):
            outputs = projection.weight.shape[1]
            projection.weight_scale = frozen(((0.5 + torch.rand(outputs)) * 1e-3).bfloat16())
            projection.weight_scale_fp32 = projection.weight_scale.float()
        self.act_fn = SiluAndMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0].bfloat16()


class AscendAttentionBackendImpl:
    """What the attention implementation of vllm-ascend holds when it decodes."""

    def __init__(self) -> None:
        self.key_cache, self.value_cache = (torch.randn(BLOCKS, BLOCK, 1, HEAD).bfloat16() for _ in range(2))
        self.num_heads, self.num_kv_heads, self.head_size, self.scale = HEADS, 1, HEAD, HEAD**-0.5
        self.sliding_window = self.alibi_slopes = None
        self.attn_type, self.vllm_config = "decoder", None

    def forward_paged_attention(self, query: Any, attn_metadata: Any, output: Any) -> torch.Tensor:
        native.paged(
            query=query,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            scale_value=self.scale,
            block_table=attn_metadata.block_tables,
            context_lens=attn_metadata.seq_lens,
            out=output,
        )
        return output
