"""The signatures that the checkout's kernels must have, and how one is read."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

QUANT = (
    "hidden_states residual input_layernorm_weight input_layernorm_bias atten_qkv_input_scale_reciprocal "
    "atten_qkv_input_offset atten_qkv_weight atten_qkv_quant_bias atten_qkv_deq_scale atten_q_norm_weight "
    "atten_q_norm_bias atten_k_norm_weight atten_k_norm_bias cos sin query key value residual_res"
)


@dataclass(frozen=True)
class Entry:
    """Where an operator's kernel is looked for, the parameters it must have, and those it may have."""

    file: str
    function: str
    required: frozenset[str]
    optional: frozenset[str] = frozenset()


def _entry(file: str, function: str, required: str, optional: str = "") -> Entry:
    return Entry(file, function, frozenset(required.split()), frozenset(optional.split()))


ENTRIES = {
    "gate": _entry("glm_gate.py", "gate", "hidden_states gate_weight router_logits_out"),
    "select_experts": _entry(
        "glm_select_experts.py",
        "select_experts",
        "router_logits top_k renormalize topk_group num_expert_group e_score_correction_bias "
        "topk_weights topk_ids",
    ),
    "paged_attention": _entry(
        "glm_attention.py",
        "attention",
        "query key_cache value_cache block_tables actual_seqs attn_res",
        "softmax_scale tile_config",
    ),
    "attention_pre": _entry("glm_attention_pre_quant.py", "attention_pre_quant", QUANT, "eps"),
    "shared_expert": _entry(
        "glm_ffn_shared_expert_quant.py",
        "ffn_shared_expert_quant",
        "hidden_states w13 w13_scale w2 w2_scale ffn_res",
    ),
}


class CheckoutError(ValueError):
    """A checkout that cannot be used. The message has one line for each thing found."""


def parameters(path: Path, node: ast.FunctionDef, entry: Entry) -> tuple[str, ...]:
    """Those of the kernel that are known, in its order. Raises CheckoutError for others without a default."""
    given = node.args
    positional = [a.arg for a in (*given.posonlyargs, *given.args)]
    names = [*positional, *(a.arg for a in given.kwonlyargs)]
    with_default = set(positional[len(positional) - len(given.defaults) :])
    with_default |= {
        a.arg for a, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is not None
    }
    unknown = [n for n in names if n not in entry.required | entry.optional and n not in with_default]
    missing = sorted(entry.required - set(names))
    if unknown or missing or given.posonlyargs or given.vararg:
        raise CheckoutError(
            f"{path}:{node.lineno}: the signature {node.name}({ast.unparse(given)}) is not known: "
            f"not expected: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}"
        )
    return tuple(n for n in names if n in entry.required | entry.optional)
