"""Writes a checkout of our own making, with the signatures that upstream's kernels have had."""

from __future__ import annotations

from pathlib import Path

QUANT = """
    hidden_states, residual, input_layernorm_weight, input_layernorm_bias, atten_qkv_input_scale_reciprocal,
    atten_qkv_input_offset, atten_qkv_weight, atten_qkv_quant_bias, atten_qkv_deq_scale, atten_q_norm_weight,
    atten_q_norm_bias, atten_k_norm_weight, atten_k_norm_bias, cos, sin, query, key, value, residual_res
"""
GATES = {
    "weight_first": "gate_weight, hidden_states, router_logits_out",
    "hidden_first": "hidden_states, gate_weight, router_logits_out",
}
SIX = "query, key_cache, value_cache, block_tables, actual_seqs, attn_res"
ATTENTIONS = {"six": SIX, "eight": f"{SIX}, softmax_scale, tile_config"}
TILES = """
from dataclasses import dataclass

@dataclass
class IfaTileShapeConfig:
    g_tile: int
    s2_tile: int
    c1_tile_shape: list
    v1_tile_shape: list
    c2_tile_shape: list
    v2_tile_shape: list
"""


def module(function: str, parameters: str, extra: str = "") -> str:
    return (
        f"from utils.get_format import get_format\n{extra}\nCALLS = []\n\n\n"
        f"def {function}({parameters}):\n    CALLS.append((get_format(), dict(locals())))\n"
    )


def write(root: Path, gate: str = "hidden_first", attention: str = "eight", package: bool = False) -> Path:
    """Write a checkout and return its kernel folder. ``package``: its ``utils`` has an ``__init__.py``."""
    folder = root / "models" / "glm_v4_5"
    (folder / "utils").mkdir(parents=True)
    if package:
        (folder / "utils" / "__init__.py").touch()
    files = {
        "utils/get_format.py": "def get_format():\n    return 'the checkout'\n",
        "glm_ffn_common_interface.py": "def swiglu(x):\n    return x\n",
        "glm_gate.py": module("gate", GATES[gate]),
        "glm_select_experts.py": module(
            "select_experts",
            "router_logits, top_k, renormalize, topk_group, num_expert_group, e_score_correction_bias, "
            "topk_weights, topk_ids",
        ),
        "glm_attention.py": module("attention", ATTENTIONS[attention], TILES),
        "glm_attention_pre_quant.py": module("attention_pre_quant", QUANT),
        "glm_ffn_shared_expert_quant.py": module(
            "ffn_shared_expert_quant",
            "hidden_states, w13, w13_scale, w2, w2_scale, ffn_res",
            "from glm_ffn_common_interface import swiglu",
        ),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
