"""Choice of the experts of each token: sigmoid, correction bias, top k, normalisation.

The site is the operator call, not the branch around it: whatever the release passes (`k`, groups, bias, and
the scaling factor, which is 2.5 in some releases and 1 in others) is taken from the call itself. Up to 0.11
GLM-4.5 takes the native fallback; from 0.12 on it takes the gating operator.

Source: https://github.com/vllm-project/vllm-ascend/blob/v0.13.0/vllm_ascend/ops/fused_moe/experts_selector.py
Drop when: the native gating operator is as fast for 160 experts and 8 of them a token.
"""

from __future__ import annotations

from glm_pto.codemods.findings import Reached
from glm_pto.codemods.recipe import Form, Place, Recipe
from glm_pto.codemods.trees import Tree

NATIVE = """\
topk_weights, topk_ids = _native_select_experts(
    hidden_states=hidden_states,
    router_logits=router_logits,
    top_k=top_k,
    use_grouped_topk=use_grouped_topk,
    renormalize=renormalize,
    topk_group=topk_group,
    num_expert_group=num_expert_group,
    custom_routing_function=custom_routing_function,
    scoring_func=scoring_func,
    e_score_correction_bias=e_score_correction_bias,
    global_num_experts=global_num_experts,
)
"""

OPERATOR = """\
topk_weights, topk_ids, _ = $op(
    router_logits, k=$k, k_group=$k_group, group_count=$groups, group_select_mode=1,
    renorm=$renorm, norm_type=norm_type, routed_scaling_factor=$scale, eps=$eps, {bias}
)
"""
BIAS = "bias=$bias"
BIAS_OPT = "bias_opt=$bias, out_flag=False"

SWITCH = "K.USE_PTO_SELECT_EXPERTS"
NAMES = "router_logits, top_k, renormalize, topk_group, num_expert_group, e_score_correction_bias"
HOLES = "router_logits, $k, renormalize, $k_group, $groups, $bias"
OF_SELF = "router_logits, $k, self.renormalize, $k_group, $groups, $bias"

SELECTOR = "ops/fused_moe/experts_selector.py"
FUSION_OPS = "_select_experts_with_fusion_ops"


def reached(tree: Tree) -> Reached:
    """Runs inside the opaque MoE operator in every MoE layer, eager or captured."""
    ascend = tree.version("vllm_ascend")
    if ascend is not None and ascend < (0, 11):
        return Reached(True, "with unquantised weights only: GLM-4.5 W8A8 loads from vllm-ascend 0.11.0 on")
    if ascend is not None and ascend < (0, 12):
        return Reached(True, "in eager steps and captured graphs; not with torchair graphs")
    return Reached(True, "in eager steps and captured graphs; not with the xlite graph mode or on 310P")


def native(file: str, name: str, releases: str) -> Form:
    """The fallback in torch operators, which GLM-4.5's 160 grouped experts take."""
    return Form(
        name=name,
        file=file,
        scope="select_experts",
        site=NATIVE,
        condition=(
            f"{SWITCH} and use_grouped_topk and custom_routing_function is None"
            f" and K.select_experts_supported({NAMES}, scoring_func=scoring_func)"
        ),
        branch=f"topk_weights, topk_ids = K.select_experts({NAMES}, routed_scaling_factor=1.0)",
        releases=releases,
        within=("topk_weights is None", "body"),
    )


def gating(name: str, op: str, bias: str, releases: str) -> Form:
    """The gating operator, called from a function that gets the routing as parameters."""
    return Form(
        name=name,
        file=SELECTOR,
        scope=FUSION_OPS,
        site=OPERATOR.format(bias=bias),
        where={"op": (op,)},
        condition=(
            f"{SWITCH} and use_grouped_topk"
            f" and K.select_experts_supported({HOLES}, scoring_func=scoring_func)"
        ),
        branch=f"topk_weights, topk_ids = K.select_experts({HOLES}, routed_scaling_factor=$scale)",
        releases=releases,
    )


RECIPE = Recipe(
    site="select_experts",
    function="select_experts",
    switch="USE_PTO_SELECT_EXPERTS",
    title="Top-k experts of each token with sigmoid scores and correction bias",
    why=(
        "Scoring, the biased choice, gathering the unbiased scores and normalising them are one operator. It "
        "takes GLM-4.5's routing only (sigmoid, one group); other models keep the native code."
    ),
    links=(
        "https://github.com/vllm-project/vllm-ascend/blob/v0.13.0/vllm_ascend/ops/fused_moe/experts_selector.py",
        "https://github.com/vllm-project/vllm-ascend/pull/2958",
        "https://gitcode.com/cann/pypto/tree/master/models/glm_v4_5",
    ),
    drop_when="the native gating operator is as fast for 160 experts and top 8",
    places=(
        Place(
            name="routing",
            package="vllm_ascend",
            reached=reached,
            landmarks=("moe_gating_top_k(", "e_score_correction_bias", "k_group="),
            forms=(
                native("ops/layers/experts_selector.py", "native-layers", "vllm-ascend 0.10.1rc1"),
                native("ops/moe/experts_selector.py", "native-moe", "vllm-ascend 0.10.2rc1-0.11.0"),
                gating(
                    "gating-npu",
                    "torch_npu.npu_moe_gating_top_k",
                    BIAS,
                    "vllm-ascend 0.12.0rc1, 0.13.0rc1",
                ),
                gating(
                    "gating-custom",
                    "torch.ops._C_ascend.moe_gating_top_k",
                    BIAS_OPT,
                    "vllm-ascend 0.13.0rc2-0.17.0rc1",
                ),
                gating(
                    "gating-device",
                    "DeviceOperator.moe_gating_top_k",
                    BIAS_OPT,
                    "vllm-ascend 0.18.0rc1-0.26.0rc1",
                ),
                Form(
                    name="gating-router",
                    file="ops/fused_moe/router/fused_topk_router.py",
                    scope="AscendFusedTopKRouter._compute_routing",
                    site=OPERATOR.format(bias=BIAS_OPT),
                    where={"op": ("DeviceOperator.moe_gating_top_k",)},
                    condition=(
                        f"{SWITCH} and self.use_grouped_topk"
                        f" and K.select_experts_supported({OF_SELF}, scoring_func=self.scoring_func)"
                    ),
                    branch=(
                        f"topk_weights, topk_ids = K.select_experts({OF_SELF}, routed_scaling_factor=$scale)"
                    ),
                    releases="vllm-ascend 0.27.1rc1-0.30.0rc2",
                ),
            ),
        ),
    ),
    misspelt=("USE_PTO_SELECT_EXEPERTS",),
)
