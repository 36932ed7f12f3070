"""Everything of a GLM-4.5 decoder layer from the first norm to the rotary embedding.

``Glm4MoeDecoderLayer.forward`` adds the residual, normalises, and calls ``self_attn``, which projects to q, k
and v, normalises q and k and rotates them. The fused operator does all of that in one launch. The guard
stands in the decoder layer, where hidden states and residual are both at hand, so no method changes its
signature: our branch calls the attention's own ``attn`` and ``o_proj`` behind the operator.

Source: https://github.com/vllm-project/vllm/blob/v0.12.0/vllm/model_executor/models/glm4_moe.py
Drop when: vllm-ascend fuses norm, quantised projection and rotary embedding for `Glm4MoeAttention`.
"""

from __future__ import annotations

from glm_pto.codemods.findings import Reached
from glm_pto.codemods.recipe import Form, Place, Recipe
from glm_pto.codemods.trees import Tree

SITE = """\
if residual is None:
    residual = hidden_states
    hidden_states = self.input_layernorm(hidden_states)
else:
    hidden_states, residual = self.input_layernorm(hidden_states, residual)
hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
"""

BRANCH = """\
q, k, v, residual = K.attention_pre(hidden_states, residual, self, self.self_attn, positions)
attn_output = self.self_attn.attn(q, k, v)
hidden_states, _ = self.self_attn.o_proj(attn_output)
"""

# What our branch leaves out: it is only right while the attention does this and nothing else.
ATTENTION = """\
qkv, _ = self.qkv_proj(hidden_states)
q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
if self.use_qk_norm:
    q = self.q_norm(q.reshape(-1, self.num_heads, self.head_dim)).reshape(q.shape)
    k = self.k_norm(k.reshape(-1, self.num_kv_heads, self.head_dim)).reshape(k.shape)
q, k = self.rotary_emb(positions, q, k)
attn_output = self.attn(q, k, v)
output, _ = self.o_proj(attn_output)
return output
"""


def reached(tree: Tree) -> Reached:
    """Runs in every layer, but the operator needs the static W8A8 projections of vllm-ascend."""
    ascend = tree.version("vllm_ascend")
    if tree.find("vllm_ascend") is None:
        return Reached(False, "with vllm-ascend beside vllm: only its static W8A8 projections can be fused")
    if ascend is None:
        return Reached(None, "the version of vllm-ascend is unknown; from 0.11.0 on GLM-4.5 W8A8 takes it")
    if ascend < (0, 11):
        return Reached(False, "from vllm-ascend 0.11.0 on: earlier ones cannot load GLM-4.5 W8A8")
    off = "flashcomm1 or flashcomm2, sequence parallelism, LoRA or the xlite graph mode"
    if ascend < (0, 27):
        off += ", or enable_shared_expert_dp, which switches sequence parallelism on"
    return Reached(True, f"with W8A8 weights; not with {off}")


RECIPE = Recipe(
    site="attention_pre",
    function="attention_pre",
    switch="USE_PTO_FA_PRE",
    title="Add, norm, W8A8 projection, q and k norm and rotary embedding in one operator",
    why=(
        "At decode sizes these small operators are bound by launches and by reading their own intermediate "
        "results. Fused, the hidden states are read once, and q, k, v and the residual are written once."
    ),
    links=(
        "https://github.com/vllm-project/vllm/blob/v0.12.0/vllm/model_executor/models/glm4_moe.py",
        "https://gitcode.com/cann/pypto/tree/master/models/glm_v4_5",
    ),
    drop_when="vllm-ascend fuses norm, quantised projection and rotary embedding for GLM-4.5 itself",
    places=(
        Place(
            name="decoder-layer",
            package="vllm",
            reached=reached,
            landmarks=("Glm4MoeAttention(", "Glm4MoE("),
            forms=(
                Form(
                    name="norm-then-attention",
                    file="model_executor/models/glm4_moe.py",
                    scope="Glm4MoeDecoderLayer.forward",
                    site=SITE,
                    condition=(
                        "K.USE_PTO_FA_PRE"
                        " and K.attention_pre_supported(self, self.self_attn, positions, hidden_states)"
                    ),
                    branch=BRANCH,
                    releases="vllm 0.10.0-0.33.0",
                    requires=(("Glm4MoeAttention.forward", ATTENTION),),
                ),
            ),
        ),
    ),
)
