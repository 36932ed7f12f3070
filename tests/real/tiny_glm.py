"""A GLM-4.5 small enough for a CPU: a configuration and random weights that give peaked, varied logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}
CONFIG: dict[str, Any] = SIZES | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": [1],
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "n_group": 1,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 0,
    "pad_token_id": 0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": True,
}


def weights() -> dict[str, torch.Tensor]:
    """A checkpoint's tensors by name, the same in every call."""
    source = torch.Generator().manual_seed(0)
    hidden, head, vocab = SIZES["hidden_size"], SIZES["head_dim"], SIZES["vocab_size"]
    heads, kv_heads = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=source) * gain / columns**0.5).to(torch.bfloat16)

    def scale(size: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(size, generator=source)).to(torch.bfloat16)

    def mlp(prefix: str, size: int) -> None:
        found[f"{prefix}.gate_proj.weight"] = matrix(size, hidden)
        found[f"{prefix}.up_proj.weight"] = matrix(size, hidden)
        found[f"{prefix}.down_proj.weight"] = matrix(hidden, size)

    found = {
        "model.embed_tokens.weight": matrix(vocab, hidden, hidden**0.5),
        "model.norm.weight": scale(hidden),
        "lm_head.weight": matrix(vocab, hidden, 3.0),
    }
    for index in range(SIZES["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            found[f"{layer}.self_attn.{name}_proj.weight"] = matrix(count * head, hidden)
            found[f"{layer}.self_attn.{name}_proj.bias"] = matrix(1, count * head)[0]
        found[f"{layer}.self_attn.o_proj.weight"] = matrix(hidden, heads * head)
        for name, size in (("self_attn.q_norm", head), ("self_attn.k_norm", head)):
            found[f"{layer}.{name}.weight"] = scale(size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{name}.weight"] = scale(hidden)
        if index < SIZES["first_k_dense_replace"]:
            mlp(f"{layer}.mlp", SIZES["intermediate_size"])
            continue
        found[f"{layer}.mlp.gate.weight"] = matrix(SIZES["n_routed_experts"], hidden, 2.0)
        bias = 0.1 * torch.randn(SIZES["n_routed_experts"], generator=source)
        found[f"{layer}.mlp.gate.e_score_correction_bias"] = bias
        for expert in range(SIZES["n_routed_experts"]):
            mlp(f"{layer}.mlp.experts.{expert}", SIZES["moe_intermediate_size"])
        mlp(f"{layer}.mlp.shared_experts", SIZES["moe_intermediate_size"])
    return found


def write(folder: Path) -> None:
    """Write the model as a folder that vLLM loads."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    tensors = {name: tensor.contiguous() for name, tensor in weights().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
