"""attention_pre: against vllm-ascend's arithmetic spelled out, conditions, residual and positions."""

from __future__ import annotations

import pytest
import torch

import glm_pto_kernels as K
from tests.glm_pto_kernels.stand_ins import SMALL, DecoderLayer, Sizes, glm_4_5

TOKENS = (1, 2, 31, 32, 33, 200)


def native(
    layer: DecoderLayer,
    positions: torch.Tensor,
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    stored: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """The layer's own steps as separate kernels, each leaving its result in ``stored``."""
    attention, qkv = layer.self_attn, layer.self_attn.qkv_proj

    def norm(module: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        wide = rows.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
        out = (wide * module.weight.float()).to(stored)
        return out if module.bias is None else (out.float() + module.bias.float()).to(stored)

    total = (hidden.float() if residual is None else hidden.float() + residual.float()).to(stored)
    normed = norm(layer.input_layernorm, total).float()
    scaled = normed * qkv.aclnn_input_scale_reciprocal.float() + qkv.aclnn_input_offset.float()
    quantised = torch.clamp(torch.round(scaled), -128, 127).to(torch.int64)
    product = quantised @ qkv.weight.to(torch.int64) + qkv.quant_bias
    out = (product.float() * qkv.deq_scale).to(stored)
    q, k, v = out.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
    q = norm(attention.q_norm, q.reshape(-1, attention.num_heads, attention.head_dim))
    k = norm(attention.k_norm, k.reshape(-1, attention.num_kv_heads, attention.head_dim))
    cos, sin = attention.rotary_emb.cos_sin_cache[positions].bfloat16().float().chunk(2, dim=-1)
    half = cos.shape[-1]
    turned = []
    for heads in (q.float(), k.float()):
        out_heads = heads.clone()
        for head in range(heads.shape[1]):
            a, b = heads[:, head, :half], heads[:, head, half : 2 * half]
            out_heads[:, head, :half] = a * cos - b * sin
            out_heads[:, head, half : 2 * half] = b * cos + a * sin
        turned.append(out_heads.flatten(1).bfloat16())
    return turned[0], turned[1], v.bfloat16(), total.bfloat16()


def inputs(sizes: Sizes, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(tokens, sizes.hidden).bfloat16()
    return torch.randint(0, 512, (tokens,)), hidden, torch.randn(tokens, sizes.hidden).bfloat16()


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize(
    ("sizes", "tokens"), [*((SMALL, n) for n in TOKENS), *((glm_4_5(tp), 33) for tp in (4, 8, 16))], ids=str
)
def test_agrees_with_native_arithmetic(sizes: Sizes, tokens: int, with_residual: bool) -> None:
    torch.manual_seed(tokens)
    layer = DecoderLayer(sizes)
    positions, hidden, residual = inputs(sizes, tokens)
    before = residual if with_residual else None
    assert K.attention_pre_refusal(layer, layer.self_attn, positions, hidden) is None
    got = K.attention_pre(hidden, before, layer, layer.self_attn, positions)
    for stored, worst, mean in ((torch.float32, 0.01, 1e-4), (torch.bfloat16, 0.06, 0.02)):
        theirs = native(layer, positions, hidden, before, stored)
        for name, ours, wanted in zip(("q", "k", "v", "residual"), got, theirs, strict=True):
            assert ours.shape == wanted.shape and ours.dtype == wanted.dtype
            error = (ours.float() - wanted.float()).abs()
            # bf16 between the steps moves one int8 value in ten by a step of 1/32; fp32 hardly any.
            assert error.max() <= worst * wanted.float().abs().max(), (name, stored)
            assert error.mean() <= mean * wanted.float().abs().mean(), (name, stored)
        assert torch.equal(got[3], theirs[3])
