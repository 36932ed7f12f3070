"""The shared_expert recipe: the caller in vllm-ascend, the MLP only where there is no vllm-ascend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glm_pto.codemods.findings import State

COMMON = "vllm_ascend/ops/common_fused_moe.py"
FUSED = "vllm_ascend/ops/fused_moe/fused_moe.py"
COPY = "vllm_ascend/ops/fused_moe/fused_moe_0_23_0.py"
EXECUTOR = "vllm_ascend/ops/fused_moe/shared_experts.py"
MODEL = "vllm/model_executor/models/glm4_moe.py"

CALL = """\
class AscendSharedFusedMoE:
    def forward_impl(self, hidden_states, router_logits):
        with side_stream(self.multistream_overlap_shared_expert):
            # beside the routed experts
            shared_out = self._shared_experts(hidden_states)
        return shared_out, self.routed(hidden_states, router_logits)
"""

PARTS = """\
class AscendSharedFusedMoE:
    def _forward_shared_experts(self, hidden_states, fused_moe_evts):
        def maybe_wait_event(event):
            pass
        with side_stream(self.multistream_overlap_shared_expert):
            current_stream().wait_event(fused_moe_evts.before_routed_experts)
            # first half
            maybe_wait_event(fused_moe_evts.before_dispatch)
            part1_out = self._shared_experts_part1(hidden_states)
            # second half
            maybe_wait_event(fused_moe_evts.before_combine)
            shared_out = self._shared_experts_part2(hidden_states, part1_out)
        return reduce(shared_out)
"""

CHOICE = """\
class {owner}:
    def {method}(self, hidden_states, fused_moe_evts):
        {name} = hasattr(self.layer, "weight_scale")
        if {name} and self.quant_type in (QuantType.W8A8, QuantType.W4A8):
            original_dtype = hidden_states.dtype
            wait(fused_moe_evts)
            quantized_x, pertoken_scale = torch_npu.npu_dynamic_quant(hidden_states)
            hidden_states = torch_npu.npu_quant_matmul(
                quantized_x, self.up.weight, self.up.weight_scale, pertoken_scale=None, bias=None,
                output_dtype=torch.int32)
            quantized_x, swiglu_out_scale = activate(hidden_states, pertoken_scale)
            shared_out = torch_npu.npu_quant_matmul(
                quantized_x, self.down.weight, self.down.weight_scale, pertoken_scale=swiglu_out_scale,
                bias=None, output_dtype=original_dtype)
        elif {name} and self.quant_type == QuantType.W4A8MXFP:
            shared_out = self.mxfp(hidden_states)
        else:
            shared_out = self.plain(hidden_states)
        return reduce(shared_out)
"""

RUN = """\
from x import has_lora


class AscendSharedExperts:
    def forward(self, prepared_input, milestones):
        hidden_states, metadata = self.prepare(prepared_input)
        shared_out = self._run_shared_mlp(hidden_states, milestones)
        return self.finish(shared_out, metadata)
"""

STAGED = """\
from x import SharedExpertParallelMode, has_lora


class AscendSharedExperts:
    def forward(self, prepared_input, milestones, submitted_gate_up=None):
        mode = self.parallel_mode()
        if submitted_gate_up is None:
            with npu_stream_switch(shared_experts_calculation_stream(), enabled=self.multistream_overlap):
                hidden_states, local_dp_metadata = self._prepare_execution_input(
                    prepared_input, milestones, mode)
                gate_up_input = self._prepare_gate_up_input(hidden_states)
            ready = PreparedSharedExpertExecution(hidden_states, gate_up_input, local_dp_metadata)
            submitted_gate_up = self.enqueue_gate_up_after_router(ready, milestones.router_output_ready)
        local_dp_metadata = submitted_gate_up.local_dp_metadata
        with npu_stream_switch(shared_experts_calculation_stream(), enabled=self.multistream_overlap):
            shared_out = self._finish_shared_mlp(submitted_gate_up, milestones)
            if self.multistream_overlap and mode is SharedExpertParallelMode.SEQUENCE_PARALLEL_ONLY:
                shared_out = self.scatter(shared_out)
        return self.gather(shared_out, local_dp_metadata)
"""

MLP = """\
class Glm4MoeMLP:
    def forward(self, x):
        gate_up, _ = self.gate_up_proj(x)
        x = self.act_fn(gate_up)
        x, _ = self.down_proj(x)
        return x
"""

Make = Callable[..., Any]


def choice(
    owner: str = "AscendFusedMoE", method: str = "_forward_shared_experts", name: str = "has_quantized_shared"
) -> str:
    return "from x import has_lora\n\n\n" + CHOICE.format(owner=owner, method=method, name=name)


def executor() -> str:
    return choice("AscendSharedExperts", "forward", "has_quantized_shared_without_lora")


CONDITION = (
    "if glm_pto_kernels.USE_PTO_SHARE_EXPERTS and not self.multistream_overlap_shared_expert and {only}"
    "glm_pto_kernels.ffn_share_expert_quant_supported(self._shared_experts, hidden_states):"
    "  # shared_expert\n"
)
GUARD = CONDITION.format(only="")
UNLIMITED = CONDITION.format(only="not fused_moe_evts.swiglu_limit and ")
BRANCH = "shared_out = glm_pto_kernels.ffn_share_expert_quant(self._shared_experts, hidden_states)\n"


@pytest.mark.parametrize(
    ("path", "form"),
    [pytest.param(COMMON, "call-common", id="common"), pytest.param(FUSED, "call", id="fused")],
)
def test_guards_the_call(patient: Make, path: str, form: str) -> None:
    tree = patient({path: CALL})
    assert tree.finding().form == form
    statement = "            shared_out = self._shared_experts(hidden_states)\n"
    guarded = f"            {GUARD}                {BRANCH}            else:\n    {statement}"
    assert tree.guarded().endswith(CALL.replace(statement, guarded))


def test_guards_both_parts_at_once(patient: Make) -> None:
    head, waits, rest = PARTS.partition("            maybe_wait_event(fused_moe_evts.before_dispatch)\n")
    parts, returns, tail = rest.partition("        return")
    deeper = "".join(f"    {line}\n" for line in (waits + parts).splitlines())
    guarded = (
        head + f"            {GUARD}                {BRANCH}            else:\n" + deeper + returns + tail
    )
    assert patient({FUSED: PARTS}).guarded().endswith(guarded)


@pytest.mark.parametrize(
    ("path", "owner", "form"),
    [
        pytest.param(FUSED, "AscendFusedMoE", "by-quantisation", id="layer"),
        pytest.param(FUSED, "AscendMoERunner", "by-quantisation-runner", id="runner"),
        pytest.param(COPY, "AscendFusedMoE", "by-quantisation-copy", id="copy_for_one_vllm"),
    ],
)
def test_guards_the_choice_with_all_its_arms(patient: Make, path: str, owner: str, form: str) -> None:
    tree = patient({path: choice(owner)})
    assert [f.form for f in tree.findings().values() if f.form] == [form]
    edited = tree.guarded()
    guarded = f"        {UNLIMITED}            {BRANCH}        else:\n"
    assert f"{guarded}            if has_quantized_shared and" in edited
    assert "            elif has_quantized_shared and" in edited


@pytest.mark.parametrize(
    ("text", "form"),
    [pytest.param(executor(), "executor", id="choice"), pytest.param(RUN, "executor-call", id="call")],
)
def test_guards_the_executor(patient: Make, text: str, form: str) -> None:
    tree = patient({EXECUTOR: text})
    assert tree.finding().form == form
    assert (
        "        if glm_pto_kernels.USE_PTO_SHARE_EXPERTS and not self.multistream_overlap and "
        "not self.swiglu_limit and not has_lora(self.lora_context) and "
        "glm_pto_kernels.ffn_share_expert_quant_supported(self.layer, hidden_states):  # shared_expert\n"
        "            shared_out = glm_pto_kernels.ffn_share_expert_quant(self.layer, hidden_states)\n"
    ) in tree.guarded()


def test_guards_the_staged_executor_in_its_plain_mode(patient: Make) -> None:
    tree = patient({EXECUTOR: STAGED})
    assert tree.finding().form == "executor-staged"
    edited = tree.guarded()
    assert (
        " and not self.swiglu_limit and submitted_gate_up is None and "
        "mode is SharedExpertParallelMode.TENSOR_PARALLEL and not has_lora(self.lora_context) and "
        "glm_pto_kernels.ffn_share_expert_quant_supported(self.layer, prepared_input.hidden_states):"
        "  # shared_expert\n"
        "            local_dp_metadata = None\n"
        "            shared_out = glm_pto_kernels.ffn_share_expert_quant("
        "self.layer, prepared_input.hidden_states)\n"
        "        else:\n"
        "            if submitted_gate_up is None:\n"
    ) in edited
    assert edited.endswith("        return self.gather(shared_out, local_dp_metadata)\n")


def test_guards_the_mlp_of_vllm_alone(patient: Make) -> None:
    tree = patient({MODEL: MLP})
    assert tree.findings()["mlp"].form == "mlp"
    assert (
        "        if glm_pto_kernels.USE_PTO_SHARE_EXPERTS and "
        "glm_pto_kernels.ffn_share_expert_quant_supported(self, x, whole_mlp=True):  # shared_expert\n"
        "            x = glm_pto_kernels.ffn_share_expert_quant(self, x)\n"
        "        else:\n"
        "            gate_up, _ = self.gate_up_proj(x)\n"
        "            x = self.act_fn(gate_up)\n"
        "            x, _ = self.down_proj(x)\n"
        "        return x\n"
    ) in tree.guarded()


def test_leaves_the_mlp_beside_vllm_ascend_alone(patient: Make) -> None:
    tree = patient({MODEL: MLP, FUSED: CALL})
    assert [f.file for f in tree.findings().values()] == [FUSED]


def test_an_mlp_guard_from_before_vllm_ascend_came_is_found(patient: Make) -> None:
    tree = patient({MODEL: MLP})
    tree.apply()
    patient({FUSED: CALL})
    foreign = {s.place.name: s.foreign for s in tree.spots()}
    assert foreign == {"moe-layer": False, "mlp": True}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(FUSED, PARTS, id="parts"),
        pytest.param(FUSED, choice(), id="choice"),
        pytest.param(EXECUTOR, RUN, id="run"),
        pytest.param(EXECUTOR, STAGED, id="staged"),
        pytest.param(MODEL, MLP, id="mlp"),
    ],
)
def test_is_applied_once(patient: Make, path: str, text: str) -> None:
    tree = patient({path: text})
    tree.apply()
    assert [f.state for f in tree.findings().values()] == [State.APPLIED]


def test_both_copies_of_the_layer_are_places(patient: Make) -> None:
    tree = patient({FUSED: choice("AscendMoERunner"), COPY: choice()})
    assert {p: f.file for p, f in tree.findings().items()} == {
        "moe-layer": FUSED,
        "moe-layer-for-vllm-0.23.0": COPY,
    }


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(COMMON, CALL.replace("forward_impl", "forward"), id="a_class_that_glm_does_not_use"),
        pytest.param(COMMON, CALL.replace("AscendShared", "AscendSharedQuant"), id="another_layer"),
        pytest.param("vllm_ascend/_310p/fused_moe/fused_moe.py", choice(), id="the_310p_layer"),
        pytest.param("vllm_ascend/ops/other.py", CALL, id="another_file"),
        pytest.param(MODEL.replace("glm4_moe", "glm4_moe_lite"), MLP, id="the_lite_model"),
        pytest.param(MODEL, MLP.replace("Glm4MoeMLP", "Glm4MoeLiteMLP"), id="the_lite_mlp"),
    ],
)
def test_leaves_alone(patient: Make, path: str, text: str) -> None:
    tree = patient({path: text})
    assert all(spot.match is None for spot in tree.spots())


def test_the_parts_in_the_else_arm_of_the_choice_are_no_second_site(patient: Make) -> None:
    parts = PARTS.partition("            # first half\n")[2].partition("        return")[0]
    text = choice().replace("            shared_out = self.plain(hidden_states)\n", parts)
    tree = patient({FUSED: text})
    assert tree.finding().form == "by-quantisation"
    assert tree.guarded().count("glm_pto_kernels.ffn_share_expert_quant(") == 1


@pytest.mark.parametrize(
    ("path", "text", "state"),
    [
        pytest.param(FUSED, CALL.replace("(hidden_states)\n", "(x)\n"), State.MOVED, id="another_input"),
        pytest.param(FUSED, PARTS.replace("before_combine", "before_gmm2"), State.MOVED, id="another_event"),
        pytest.param(
            FUSED,
            PARTS.replace("            # second half\n", "            x = 1\n"),
            State.MOVED,
            id="a_new_step",
        ),
        pytest.param(
            FUSED,
            choice().replace("QuantType.W8A8, QuantType.W4A8", "QuantType.W8A8,"),
            State.MOVED,
            id="types",
        ),
        pytest.param(
            FUSED,
            choice().replace("shared_out = torch_npu.", "shared_out = torch_npu.x."),
            State.MOVED,
            id="another_operator",
        ),
        pytest.param(
            FUSED,
            choice().replace(
                "        elif", "            shared_out = shared_out * self.factor\n        elif"
            ),
            State.MOVED,
            id="a_step_after_the_last_product",
        ),
        pytest.param(
            EXECUTOR,
            STAGED.replace(
                "            if self.multi",
                "            shared_out = 2 * shared_out\n            if self.multi",
            ),
            State.MOVED,
            id="a_step_after_the_staged_expert",
        ),
        pytest.param(EXECUTOR, RUN.replace("import has_lora", "import x"), State.MOVED, id="no_lora_test"),
        pytest.param(
            EXECUTOR,
            STAGED.replace("self.enqueue_gate_up_after_router", "self.enqueue"),
            State.MOVED,
            id="another_stage",
        ),
        pytest.param(FUSED, CALL + CALL, State.AMBIGUOUS, id="defined_twice"),
        pytest.param(FUSED, CALL + choice(), State.AMBIGUOUS, id="two_forms"),
        pytest.param(
            MODEL,
            MLP.replace(
                "        gate_up, _",
                "        if glm_pto_kernels.USE_PTO_SHARE_EXEPERTS and self.is_down_proj_quant:\n"
                "            return glm_pto_kernels.ffn_share_expert_quant(self, x)\n"
                "        gate_up, _",
            ),
            State.PASTED,
            id="the_guides_snippet",
        ),
    ],
)
def test_refuses(patient: Make, path: str, text: str, state: State) -> None:
    (found,) = patient({path: text}).findings().values()
    assert found.state is state
    assert found.message


def test_a_snippet_in_the_mlp_is_found_beside_vllm_ascend_too(patient: Make) -> None:
    snippet = MLP.replace(
        "        gate_up, _", "        glm_pto_kernels.ffn_share_expert_quant(self, x)\n        gate_up, _"
    )
    found = patient({MODEL: snippet, FUSED: CALL}).findings()
    assert found["mlp"].state is State.PASTED and found["moe-layer"].state is State.APPLICABLE


@pytest.mark.parametrize(
    ("place", "vllm", "ascend", "default", "words"),
    [
        pytest.param(
            "moe-layer", "0.12.0", "0.12.0rc1", True, "multistream_overlap_shared_expert", id="default"
        ),
        pytest.param("moe-layer", "0.18.0", "0.18.0", True, "multistream_overlap_gate", id="gate_overlap"),
        pytest.param("moe-layer", "0.23.0", "0.23.0", False, "any vllm but 0.23.0", id="dormant"),
        pytest.param("moe-layer", "0.24.0", "0.23.0", True, "dynamic W8A8", id="woken"),
        pytest.param("moe-layer-for-vllm-0.23.0", "0.23.0", "0.23.0", True, "W8A8", id="copy"),
        pytest.param(
            "moe-layer-for-vllm-0.23.0", "0.24.0", "0.23.0", False, "VLLM_VERSION", id="copy_dormant"
        ),
        pytest.param("mlp", "0.33.0", "", False, "with vllm-ascend", id="vllm_alone"),
    ],
)
def test_reached(patient: Make, place: str, vllm: str, ascend: str, default: bool, words: str) -> None:
    files = {MODEL: MLP} | ({FUSED: choice("AscendMoERunner")} if ascend else {})
    files |= {COPY: choice()} if ascend == "0.23.0" else {}
    tree = patient(files, vllm=vllm, **({"vllm_ascend": ascend} if ascend else {}))
    assert tree.reached(place).by_default is default
    assert words in tree.reached(place).when


@pytest.mark.parametrize("owner", ["AscendFusedMoE", "AscendMoERunner"])
def test_an_applied_form_keeps_its_name(patient: Make, owner: str) -> None:
    tree = patient({FUSED: choice(owner)})
    before = tree.finding().form
    tree.apply()
    assert tree.finding().form == before
