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
    " and {only}K.ffn_share_expert_quant_supported(self._shared_experts, hidden_states)"
)
# What limits the routed experts' activation limits the shared expert's in these statements; its own module
# knows nothing of it.
UNLIMITED = "not {of}.swiglu_limit and "
LAYER = "shared_out = K.ffn_share_expert_quant(self._shared_experts, hidden_states)"

CALL = "shared_out = self._shared_experts(hidden_states)"

PARTS = """\
maybe_wait_event(fused_moe_evts.before_dispatch)
part1_out = self._shared_experts_part1(hidden_states)
maybe_wait_event(fused_moe_evts.before_combine)
shared_out = self._shared_experts_part2(hidden_states, part1_out)
"""

# How the parts wait for each other and which activation they have differs; what begins with quantising the
# input and ends with the second matrix product is the shared expert, and nothing more.
BY_QUANTISATION = """\
if {quantised} and self.quant_type in (QuantType.W8A8, QuantType.W4A8):
    ...
    quantized_x, $_ = torch_npu.npu_dynamic_quant(hidden_states)
    ...
    shared_out = torch_npu.npu_quant_matmul(quantized_x, ..., bias=None, output_dtype=original_dtype)
else:
    ...
"""

NO_W8A8 = (
    "earlier ones cannot load GLM-4.5 W8A8 (their quantisation config has no `experts` for glm4_moe), other "
    "weights stay native, and the model itself computes the shared expert"
)
STAGED = """\
if submitted_gate_up is None:
    with npu_stream_switch(shared_experts_calculation_stream(), enabled=self.multistream_overlap):
        hidden_states, local_dp_metadata = self._prepare_execution_input(prepared_input, milestones, mode)
        gate_up_input = self._prepare_gate_up_input(hidden_states)
    $prepared = PreparedSharedExpertExecution(...)
    submitted_gate_up = self.enqueue_gate_up_after_router($prepared, milestones.router_output_ready)
local_dp_metadata = submitted_gate_up.local_dp_metadata
with npu_stream_switch(shared_experts_calculation_stream(), enabled=self.multistream_overlap):
    shared_out = self._finish_shared_mlp(submitted_gate_up, milestones)
    if self.multistream_overlap and mode is SharedExpertParallelMode.SEQUENCE_PARALLEL_ONLY:
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
    off = "multistream_overlap_shared_expert"
    if ascend is None or (0, 13) <= ascend < (0, 24):
        off += ", multistream_overlap_gate"
    if ascend is None or ascend >= (0, 30):
        off += ", enable_shared_expert_dp, sequence parallelism"
    return Reached(True, f"with dynamic W8A8 weights; not with {off} or the xlite graph mode")


def _has_copy(ascend: Package | None) -> bool:
    return ascend is not None and (ascend.path / COPY).is_file()


def _vllm_is_0_23_0(tree: Tree) -> bool:
    vllm = tree.find("vllm")
    return vllm is not None and vllm.version == "0.23.0"


def of_layer(name: str, file: str, scope: str, site: str, releases: str, *, only: str = "") -> Form:
    """Where the MoE layer itself holds the shared expert; ``only`` adds to the condition."""
    return Form(name, file, scope, site, OF_LAYER.format(only=only), LAYER, releases)


def of_executor(name: str, site: str, rows: str, releases: str, *, only: str = "", first: str = "") -> Form:
    """Where an executor beside the MoE layer does; ``only`` and ``first`` add to condition and branch."""
    condition = (
        f"{SWITCH} and not self.multistream_overlap and {UNLIMITED.format(of='self')}"
        f"{only}not has_lora(self.lora_context)"
        f" and K.ffn_share_expert_quant_supported(self.layer, {rows})"
    )
    branch = f"{first}shared_out = K.ffn_share_expert_quant(self.layer, {rows})"
    return Form(name, EXECUTOR, "AscendSharedExperts.forward", site, condition, branch, releases)


IN_LAYER = "_forward_shared_experts"
IN_STEP = UNLIMITED.format(of="fused_moe_evts")
OF_LAYER_QUANT = BY_QUANTISATION.format(quantised="has_quantized_shared")
OF_EXECUTOR_QUANT = BY_QUANTISATION.format(quantised="has_quantized_shared_without_lora")
FORMS = (
    of_layer(
        "call-common",
        "ops/common_fused_moe.py",
        "AscendSharedFusedMoE.forward_impl",
        CALL,
        "vllm-ascend 0.11.0rc0-0.11.0",
    ),
    of_layer(
        "call", FUSED_MOE, "AscendSharedFusedMoE.forward_impl", CALL, "vllm-ascend 0.12.0rc1, 0.13.0rc1"
    ),
    of_layer(
        "two-parts", FUSED_MOE, f"AscendSharedFusedMoE.{IN_LAYER}", PARTS, "vllm-ascend 0.13.0rc2-0.19.1rc1"
    ),
    of_layer(
        "by-quantisation",
        FUSED_MOE,
        f"AscendFusedMoE.{IN_LAYER}",
        OF_LAYER_QUANT,
        "vllm-ascend 0.20.2rc1-0.22.1rc1",
        only=IN_STEP,
    ),
    of_layer(
        "by-quantisation-runner",
        FUSED_MOE,
        f"AscendMoERunner.{IN_LAYER}",
        OF_LAYER_QUANT,
        "vllm-ascend 0.24.0rc1-0.26.0rc1; 0.23.0rc1-0.23.0.post1 with another vllm than 0.23.0",
        only=IN_STEP,
    ),
    of_executor("executor", OF_EXECUTOR_QUANT, "hidden_states", "vllm-ascend 0.27.1rc1"),
    of_executor(
        "executor-call",
        "shared_out = self._run_shared_mlp(hidden_states, milestones)",
        "hidden_states",
        "vllm-ascend 0.28.0rc1, 0.29.0rc1",
    ),
    # In the plain mode nothing is gathered before, and what follows the site asks for the other modes only.
    of_executor(
        "executor-staged",
        STAGED,
        "prepared_input.hidden_states",
        "vllm-ascend 0.30.0rc1, 0.30.0rc2",
        only="submitted_gate_up is None and mode is SharedExpertParallelMode.TENSOR_PARALLEL and ",
        first="local_dp_metadata = None\n",
    ),
)
OF_COPY = of_layer(
    "by-quantisation-copy",
    COPY,
    f"AscendFusedMoE.{IN_LAYER}",
    OF_LAYER_QUANT,
    "vllm-ascend 0.23.0rc1-0.23.0.post1",
    only=IN_STEP,
)

RECIPE = Recipe(
    site="shared_expert",
    function="ffn_share_expert_quant",
    switch="USE_PTO_SHARE_EXPERTS",
    title="Shared expert in dynamic W8A8, whole",
    why=(
        "The native path is four operators with their results in memory: quantise; matrix product; "
        "dequantise, SiLU, multiply, quantise; matrix product. The fused one keeps a tile of rows on "
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
            forms=(OF_COPY,),
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
    misspelt=("USE_PTO_SHARE_EXEPERTS",),
)
