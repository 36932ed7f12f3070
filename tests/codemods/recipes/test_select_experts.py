"""The select_experts recipe: one operator call, with every value taken from that call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glm_pto.codemods.findings import State

MOE = "vllm_ascend/ops/moe/experts_selector.py"
FUSED = "vllm_ascend/ops/fused_moe/experts_selector.py"
ROUTER = "vllm_ascend/ops/fused_moe/router/fused_topk_router.py"

ARGUMENTS = (
    "hidden_states, router_logits, top_k, use_grouped_topk, renormalize, topk_group, num_expert_group, "
    "custom_routing_function, scoring_func, e_score_correction_bias, global_num_experts"
)
KEYWORDS = ", ".join(f"{name}={name}" for name in ARGUMENTS.split(", "))
NATIVE = f"topk_weights, topk_ids = _native_select_experts({KEYWORDS})"
SELECT = """\
def select_experts({arguments}):
    topk_weights, topk_ids = fused(router_logits)
    {test}
        {native}
    return topk_weights, topk_ids
"""

FUSION = """\
def _select_experts_with_fusion_ops(
        hidden_states, router_logits, top_k, use_grouped_topk, renormalize, e_score_correction_bias,
        topk_group, num_expert_group, scoring_func="softmax", routed_scaling_factor=1.0):
    norm_type = 0 if scoring_func == "softmax" else 1
    topk_weights, topk_ids, _ = {op}(
        router_logits, k=top_k, k_group=topk_group, group_count=num_expert_group,
        group_select_mode=1, renorm={renorm}, norm_type=norm_type,  # 1: sigmoid
        routed_scaling_factor={scale}, eps=float(1e-20), {bias})
    return topk_weights, topk_ids
"""
OLD = {
    "op": "torch_npu.npu_moe_gating_top_k",
    "renorm": "0",
    "scale": "1",
    "bias": "bias=e_score_correction_bias",
}
CUSTOM = {
    "op": "torch.ops._C_ascend.moe_gating_top_k",
    "renorm": "int(renormalize)",
    "scale": "routed_scaling_factor",
    "bias": "bias_opt=e_score_correction_bias, out_flag=False",
}
DEVICE = {**CUSTOM, "op": "DeviceOperator.moe_gating_top_k"}

OF_ROUTER = """\
class AscendFusedTopKRouter:
    def _compute_routing(self, hidden_states, router_logits, indices_type, *, input_ids=None):
        topk_group, num_expert_group, renorm, norm_type = self.settings()
        topk_weights, topk_ids, _ = DeviceOperator.moe_gating_top_k(
            router_logits,
            k=self.top_k,
            k_group=topk_group,
            group_count=num_expert_group,
            group_select_mode=1,
            renorm=renorm,
            norm_type=norm_type,
            out_flag=False,
            routed_scaling_factor=self.routed_scaling_factor,
            eps=1e-20,
            bias_opt=self.e_score_correction_bias,
        )

        return topk_weights, topk_ids
"""

Make = Callable[..., Any]


def select(native: str = NATIVE, test: str = "if topk_weights is None:", arguments: str = ARGUMENTS) -> str:
    return SELECT.format(native=native, test=test, arguments=arguments)


def fusion(values: dict[str, str], **other: str) -> str:
    return "import torch_npu\n\n\n" + FUSION.format(**{**values, **other})


@pytest.mark.parametrize(
    ("path", "form"),
    [
        pytest.param(MOE, "native-moe", id="moe"),
        pytest.param("vllm_ascend/ops/layers/experts_selector.py", "native-layers", id="layers"),
    ],
)
def test_guards_the_fallback(patient: Make, path: str, form: str) -> None:
    tree = patient({path: select()})
    assert tree.finding().form == form
    names = "router_logits, top_k, renormalize, topk_group, num_expert_group, e_score_correction_bias"
    assert tree.guarded() == (
        "import glm_pto_kernels  # glm-pto: import 1\n"
        + select(
            "if glm_pto_kernels.USE_PTO_SELECT_EXPERTS and use_grouped_topk"
            " and custom_routing_function is None"
            f" and glm_pto_kernels.select_experts_supported({names}, scoring_func=scoring_func):"
            "  # select_experts\n"
            f"            topk_weights, topk_ids = glm_pto_kernels.select_experts({names}, "
            "routed_scaling_factor=1.0)\n"
            "        else:\n"
            f"            {NATIVE}"
        )
    )


@pytest.mark.parametrize(
    ("values", "form", "scale"),
    [
        pytest.param(OLD, "gating-npu", "1", id="literal_scale"),
        pytest.param(CUSTOM, "gating-custom", "routed_scaling_factor", id="custom_operator"),
        pytest.param(DEVICE, "gating-device", "routed_scaling_factor", id="device_operator"),
        pytest.param({**DEVICE, "scale": "2.5"}, "gating-device", "2.5", id="another_literal"),
        pytest.param({**DEVICE, "scale": "a + b"}, "gating-device", "(a + b)", id="an_expression"),
    ],
)
def test_hands_on_the_scale_of_the_call(patient: Make, values: dict[str, str], form: str, scale: str) -> None:
    tree = patient({FUSED: "a, b = 1, 2\n" + fusion(values)})
    assert tree.finding().form == form
    names = "router_logits, top_k, renormalize, topk_group, num_expert_group, e_score_correction_bias"
    call = (
        f"topk_weights, topk_ids = glm_pto_kernels.select_experts({names}, routed_scaling_factor={scale})\n"
    )
    assert call in tree.guarded()


def test_takes_group_and_bias_from_the_call(patient: Make) -> None:
    text = (
        fusion(DEVICE)
        .replace("k_group=topk_group", "k_group=1")
        .replace("=e_score_correction_bias,", "=None,")
    )
    assert (
        "select_experts(router_logits, top_k, renormalize, 1, num_expert_group, None,"
        in patient({FUSED: text}).guarded()
    )


def test_guards_the_router(patient: Make) -> None:
    tree = patient({ROUTER: "import DeviceOperator\n" + OF_ROUTER})
    names = (
        "router_logits, self.top_k, self.renormalize, topk_group, num_expert_group, "
        "self.e_score_correction_bias"
    )
    assert (
        "        if glm_pto_kernels.USE_PTO_SELECT_EXPERTS and self.use_grouped_topk and "
        f"glm_pto_kernels.select_experts_supported({names}, scoring_func=self.scoring_func):"
        "  # select_experts\n"
        f"            topk_weights, topk_ids = glm_pto_kernels.select_experts({names}, "
        "routed_scaling_factor=self.routed_scaling_factor)\n"
        "        else:\n"
        "            topk_weights, topk_ids, _ = DeviceOperator.moe_gating_top_k(\n"
        "                router_logits,\n"
    ) in tree.guarded()


def test_keeps_crlf(patient: Make) -> None:
    tree = patient({FUSED: fusion(DEVICE).replace("\n", "\r\n")})
    assert tree.guarded().count("\r\n") == tree.guarded().count("\n")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(MOE, select(), id="native"),
        pytest.param(FUSED, fusion(OLD), id="operator"),
        pytest.param(ROUTER, "import DeviceOperator\n" + OF_ROUTER, id="router"),
    ],
)
def test_is_applied_once(patient: Make, path: str, text: str) -> None:
    tree = patient({path: text})
    tree.apply()
    assert tree.finding().state is State.APPLIED


def test_places_exactly_one_of_three_nested_hooks(patient: Make) -> None:
    tree = patient({FUSED: select(test="if not supported(hidden_states):") + fusion(DEVICE)})
    assert tree.guarded().count("glm_pto_kernels.select_experts(") == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(
            FUSED, select(test="if not supported(hidden_states):"), id="the_fallback_that_glm_never_takes"
        ),
        pytest.param(
            "vllm_ascend/_310p/fused_moe/experts_selector.py",
            select() + fusion(DEVICE),
            id="the_310p_selector",
        ),
        pytest.param(MOE, fusion(OLD), id="the_operator_for_256_experts"),
        pytest.param("vllm_ascend/torchair/ops/fused_moe.py", fusion(OLD), id="torchair"),
        pytest.param(
            "vllm_ascend/ops/fused_moe/router/router_factory.py", OF_ROUTER, id="the_router_class_elsewhere"
        ),
    ],
)
def test_never_edits(patient: Make, path: str, text: str) -> None:
    tree = patient({path: text})
    assert tree.finding().state in (State.ABSENT, State.MOVED)
    assert all(spot.match is None for spot in tree.spots())


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({**DEVICE, "op": "torch.ops._C_ascend.moe_gating_top_k_hash"}, id="the_hash_operator"),
        pytest.param({**OLD, "op": "torch_npu.npu_moe_gating_top_k_softmax"}, id="the_softmax_operator"),
        pytest.param({**DEVICE, "op": "self.gating"}, id="an_unknown_operator"),
        pytest.param({**DEVICE, "bias": DEVICE["bias"] + ", tid2eid=None"}, id="a_new_argument"),
        pytest.param({**OLD, "bias": "out_flag=True"}, id="no_bias"),
    ],
)
def test_refuses_another_call(patient: Make, values: dict[str, str]) -> None:
    assert patient({FUSED: fusion(values)}).finding().state is State.MOVED


@pytest.mark.parametrize(
    ("path", "text", "state"),
    [
        pytest.param(MOE, select(test="if topk_ids is None:"), State.MOVED, id="another_test_around"),
        pytest.param(
            MOE,
            select(NATIVE.replace("scoring_func=scoring_func", "scoring_func='softmax'")),
            State.MOVED,
            id="keyword",
        ),
        pytest.param(
            MOE,
            select(arguments=ARGUMENTS.replace("custom_routing_function", "custom")),
            State.MOVED,
            id="an_unbound_parameter",
        ),
        pytest.param(FUSED, fusion(DEVICE) + fusion(OLD), State.AMBIGUOUS, id="defined_twice"),
        pytest.param(
            FUSED,
            fusion(DEVICE)
            + select(
                "topk_weights, topk_ids = glm_pto_kernels.select_experts(router_logits, top_k, renormalize)"
            ),
            State.PASTED,
            id="the_guides_call",
        ),
        pytest.param(
            FUSED,
            fusion(DEVICE) + select(NATIVE, test="if glm_pto_kernels.USE_PTO_SELECT_EXEPERTS:"),
            State.PASTED,
            id="the_guides_spelling",
        ),
    ],
)
def test_refuses(patient: Make, path: str, text: str, state: State) -> None:
    found = patient({path: text}).finding()
    assert found.state is state
    assert found.message


@pytest.mark.parametrize(
    ("ascend", "words"),
    [
        pytest.param("0.10.1rc1", "unquantised", id="unquantised"),
        pytest.param("0.11.0", "torchair", id="torchair"),
        pytest.param("0.20.2rc1", "xlite", id="default"),
        pytest.param("", "captured", id="no_version"),
    ],
)
def test_is_reached(patient: Make, ascend: str, words: str) -> None:
    fact = patient({FUSED: fusion(OLD)}, **({"vllm_ascend": ascend} if ascend else {})).reached()
    assert fact.by_default is True and words in fact.when
