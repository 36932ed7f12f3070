"""The shared expert of each MoE layer: dynamic W8A8 gate-up projection, SiLU and multiply, down projection.

vllm-ascend computes it in its MoE layer, beside the routed experts, in a shape that changed eight times.
The guard stands there, at the caller, and never in ``Glm4MoeMLP.forward``: that method also serves the dense
layers, whose output is reduced over the ranks, and vllm-ascend compares it with its own split computation
when weights are loaded. Only a tree without vllm-ascend has its guard in the method. What the operator
returns is the rank's partial sum, as in the native code; what reduces or gathers it comes after the site.

Source: https://github.com/vllm-project/vllm-ascend/blob/v0.13.0/vllm_ascend/ops/fused_moe/fused_moe.py
Drop when: vllm-ascend's own fused shared expert covers dynamic W8A8 without intermediate results in memory.
"""

from __future__ import annotations

from glm_pto.codemods.findings import Reached
from glm_pto.codemods.recipe import Form, Place, Recipe
from glm_pto.codemods.trees import Package, Tree

FUSED_MOE = "ops/fused_moe/fused_moe.py"
COPY = "ops/fused_moe/fused_moe_0_23_0.py"
EXECUTOR = "ops/fused_moe/shared_experts.py"

SWITCH = "K.USE_PTO_SHARE_EXPERTS"
# On a stream of its own the native code orders its parts by events; the operator would not wait for them.
OF_LAYER = (
    f"{SWITCH} and not self.multistream_overlap_shared_expert"
    " and K.ffn_share_expert_quant_supported(self._shared_experts, hidden_states)"
)
LAYER = "shared_out = K.ffn_share_expert_quant(self._shared_experts, hidden_states)"

CALL = "shared_out = self._shared_experts(hidden_states)"

PARTS = """\
maybe_wait_event(fused_moe_evts.before_dispatch)
part1_out = self._shared_experts_part1(hidden_states)
maybe_wait_event(fused_moe_evts.before_combine)
shared_out = self._shared_experts_part2(hidden_states, part1_out)
"""

BY_QUANTISATION = """\
if {quantised} and self.quant_type in (QuantType.W8A8, QuantType.W4A8):
    ...
    shared_out = torch_npu.npu_quant_matmul(...)
else:
    ...
"""

OF_EXECUTOR = (
    f"{SWITCH} and not self.multistream_overlap and {{lora}}"
    " and K.ffn_share_expert_quant_supported(self.layer, {input})"
)
NO_W8A8 = (
    "earlier ones cannot load GLM-4.5 W8A8 (their quantisation config has no `experts` for glm4_moe), other "
    "weights stay native, and the model itself computes the shared expert"
)
NO_LORA = "not has_lora(self.lora_context)"
PLAIN = "mode is SharedExpertParallelMode.TENSOR_PARALLEL"

STAGED = """\
if submitted_gate_up is None:
    ...
    submitted_gate_up = self.enqueue_gate_up_after_router(...)
local_dp_metadata = submitted_gate_up.local_dp_metadata
with npu_stream_switch(shared_experts_calculation_stream(), enabled=self.multistream_overlap):
    shared_out = self._finish_shared_mlp(submitted_gate_up, milestones)
    ...
"""

MLP = """\
gate_up, _ = self.gate_up_proj(x)
x = self.act_fn(gate_up)
x, _ = self.down_proj(x)
"""


def reached(tree: Tree) -> Reached:
    """The MoE layer of vllm-ascend runs in every MoE layer of every step."""
    copy = _has_copy(tree.find("vllm_ascend"))
    if copy and _vllm_is_0_23_0(tree):
        return Reached(False, f"with any vllm but 0.23.0, or VLLM_VERSION saying so: 0.23.0 runs {COPY}")
    return _default(tree)


def reached_copy(tree: Tree) -> Reached:
    """vllm-ascend 0.23 picks one of two MoE layers at import, by the version of vllm."""
    if not _vllm_is_0_23_0(tree):
        return Reached(False, "with vllm 0.23.0, or VLLM_VERSION=0.23.0 in the environment")
    return _default(tree)


def reached_mlp(tree: Tree) -> Reached:
    """Without vllm-ascend there are no weights that the operator takes."""
    return Reached(False, "with vllm-ascend beside vllm, which moves the site into its own MoE layer")


def _default(tree: Tree) -> Reached:
    ascend = tree.version("vllm_ascend")
    if ascend is not None and ascend < (0, 11):
        return Reached(False, "from vllm-ascend 0.11.0 on: " + NO_W8A8)
    off = ["multistream_overlap_shared_expert", "enable_shared_expert_dp", "the xlite graph mode"]
    if ascend is None or (0, 13) <= ascend < (0, 24):
        off.insert(1, "multistream_overlap_gate")
    return Reached(True, f"with dynamic W8A8 weights on tensor parallel size 8; not with {', '.join(off)}")


def _has_copy(ascend: Package | None) -> bool:
    return ascend is not None and (ascend.path / COPY).is_file()


def _vllm_is_0_23_0(tree: Tree) -> bool:
    vllm = tree.find("vllm")
    return vllm is not None and vllm.version == "0.23.0"


def by_quantisation(name: str, file: str, owner: str, releases: str) -> Form:
    """The choice of a computation by the quantisation, all arms at once."""
    return Form(
        name=name,
        file=file,
        scope=f"{owner}._forward_shared_experts",
        site=BY_QUANTISATION.format(quantised="has_quantized_shared"),
        condition=OF_LAYER,
        branch=LAYER,
        releases=releases,
    )


def call(name: str, file: str, releases: str) -> Form:
    """One call of the whole shared expert."""
    return Form(
        name=name,
        file=file,
        scope="AscendSharedFusedMoE.forward_impl",
        site=CALL,
        condition=OF_LAYER,
        branch=LAYER,
        releases=releases,
    )


FORMS = (
    call("call-common", "ops/common_fused_moe.py", "vllm-ascend 0.11.0rc0-0.11.0"),
    call("call", FUSED_MOE, "vllm-ascend 0.12.0rc1, 0.13.0rc1"),
    Form(
        name="two-parts",
        file=FUSED_MOE,
        scope="AscendSharedFusedMoE._forward_shared_experts",
        site=PARTS,
        condition=OF_LAYER,
        branch=LAYER,
        releases="vllm-ascend 0.13.0rc2-0.19.1rc1",
    ),
    by_quantisation("by-quantisation", FUSED_MOE, "AscendFusedMoE", "vllm-ascend 0.20.2rc1-0.22.1rc1"),
    by_quantisation(
        "by-quantisation-runner",
        FUSED_MOE,
        "AscendMoERunner",
        "vllm-ascend 0.24.0rc1-0.26.0rc1; 0.23.0rc1-0.23.0.post1 with another vllm than 0.23.0",
    ),
    Form(
        name="executor",
        file=EXECUTOR,
        scope="AscendSharedExperts.forward",
        site=BY_QUANTISATION.format(quantised="has_quantized_shared_without_lora"),
        condition=OF_EXECUTOR.format(lora=NO_LORA, input="hidden_states"),
        branch="shared_out = K.ffn_share_expert_quant(self.layer, hidden_states)",
        releases="vllm-ascend 0.27.1rc1",
    ),
    Form(
        name="executor-call",
        file=EXECUTOR,
        scope="AscendSharedExperts.forward",
        site="shared_out = self._run_shared_mlp(hidden_states, milestones)",
        condition=OF_EXECUTOR.format(lora=NO_LORA, input="hidden_states"),
        branch="shared_out = K.ffn_share_expert_quant(self.layer, hidden_states)",
        releases="vllm-ascend 0.28.0rc1, 0.29.0rc1",
    ),
    # In the plain mode nothing is gathered before, and what follows the site asks for the other modes only.
    Form(
        name="executor-staged",
        file=EXECUTOR,
        scope="AscendSharedExperts.forward",
        site=STAGED,
        condition=OF_EXECUTOR.format(
            lora=f"submitted_gate_up is None and {PLAIN} and {NO_LORA}",
            input="prepared_input.hidden_states",
        ),
        branch=(
            "local_dp_metadata = None\n"
            "shared_out = K.ffn_share_expert_quant(self.layer, prepared_input.hidden_states)"
        ),
        releases="vllm-ascend 0.30.0rc1, 0.30.0rc2",
    ),
)

RECIPE = Recipe(
    site="shared_expert",
    function="ffn_share_expert_quant",
    switch="USE_PTO_SHARE_EXPERTS",
    title="Shared expert in dynamic W8A8, whole",
    why=(
        "The native path is four operators with their results in memory: quantise, matrix product, "
        "dequantise with SiLU, multiply and quantise, matrix product. The fused one keeps a tile of rows on "
        "the chip from end to end."
    ),
    links=(
        "https://github.com/vllm-project/vllm-ascend/blob/v0.13.0/vllm_ascend/ops/fused_moe/fused_moe.py",
        "https://github.com/vllm-project/vllm-ascend/issues/11409",
        "https://gitcode.com/cann/pypto/tree/master/models/glm_v4_5",
    ),
    drop_when="vllm-ascend fuses the whole shared expert for dynamic W8A8",
    places=(
        Place(
            name="moe-layer",
            package="vllm_ascend",
            reached=reached,
            landmarks=("multistream_overlap", "shared_out = "),
            forms=FORMS,
        ),
        Place(
            name="moe-layer-for-vllm-0.23.0",
            package="vllm_ascend",
            reached=reached_copy,
            optional=True,
            forms=(
                by_quantisation(
                    "by-quantisation-copy", COPY, "AscendFusedMoE", "vllm-ascend 0.23.0rc1-0.23.0.post1"
                ),
            ),
        ),
        Place(
            name="mlp",
            package="vllm",
            unless_package="vllm_ascend",
            reached=reached_mlp,
            landmarks=("Glm4MoeMLP(", "reduce_results=False"),
            forms=(
                Form(
                    name="mlp",
                    file="model_executor/models/glm4_moe.py",
                    scope="Glm4MoeMLP.forward",
                    site=MLP,
                    condition=f"{SWITCH} and K.ffn_share_expert_quant_supported(self, x, whole_mlp=True)",
                    branch="x = K.ffn_share_expert_quant(self, x)",
                    releases="vllm 0.10.0-0.33.0 without vllm-ascend",
                ),
            ),
        ),
    ),
    pasted=("ffn_share_expert_quant", "USE_PTO_SHARE_EXPERTS", "USE_PTO_SHARE_EXEPERTS"),
)
