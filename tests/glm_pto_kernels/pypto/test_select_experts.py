"""The expert selection kernel against torch, in pypto's interpreter; its argument checks need no pypto."""

import pytest
import torch

from benchmarks.pypto_sim import cases, references
from benchmarks.pypto_sim.simulator import ALL_PASSES, simulate
from glm_pto_kernels.pypto import select_experts

GROUPS = {"num_expert_group": 8, "topk_group": 4}
EXTRAS = ("routed_scaling_factor", "masked_score")
# Sigmoid and the division by the sum, each rounded once more than in torch.
TOLERANCE = 1e-6


def run(passes=(), **sizes):
    result = simulate(cases.ours_select_experts, passes=passes, **sizes)
    assert not result.failed()
    extras = {name: sizes.pop(name) for name in EXTRAS if name in sizes}
    return result, cases.select_experts_inputs(**sizes), extras


def compare(passes=(), **sizes):
    result, inputs, extras = run(passes, **sizes)
    weights, ids = references.select_experts(**inputs, **extras)
    assert torch.equal(result.outputs[1], ids)
    torch.testing.assert_close(result.outputs[0], weights, rtol=TOLERANCE, atol=TOLERANCE)
    return result


@pytest.mark.pypto
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"tokens": 45}, id="three_block_sizes"),
        pytest.param(
            {"tokens": 13, "bias_dtype": torch.float32, "renormalize": False}, id="fp32_bias_no_sum"
        ),
        pytest.param({"tokens": 5, "experts": 128, "top_k": 6, **GROUPS}, id="groups"),
        pytest.param({"tokens": 8, "routed_scaling_factor": 2.5}, id="scaled"),
    ],
)
def test_matches_torch(sizes):
    compare(**sizes)


def without_scores(passes=()):
    result = compare(passes, tokens=13, scoreless=9)
    weights = result.outputs[0]
    assert torch.equal(weights[:9], torch.zeros(9, 8))
    torch.testing.assert_close(weights[9:].sum(-1), torch.ones(4))


@pytest.mark.pypto
def test_a_row_of_scores_of_0_has_weights_of_0():
    without_scores()


@pytest.mark.pypto_thorough
def test_a_row_of_scores_of_0_has_weights_of_0_after_every_pass():
    without_scores(ALL_PASSES)


@pytest.mark.pypto
def test_ties_give_distinct_experts_of_equal_score():
    result, _, _ = run(tokens=9, tied=True)
    weights, ids = result.outputs
    assert all(len(set(row)) == 8 and min(row) >= 0 and max(row) < 160 for row in ids.tolist())
    torch.testing.assert_close(weights, torch.full((9, 8), 0.125))


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("groups", [{}, GROUPS, {"num_expert_group": 4, "topk_group": 2}])
@pytest.mark.parametrize("experts", [128, 160, 256])
@pytest.mark.parametrize("tokens", [1, 45])
def test_every_pass_agrees(tokens, experts, groups):
    assert compare(ALL_PASSES, tokens=tokens, experts=experts, **groups).passes


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("bias_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("top_k", [1, 6, 8])
def test_every_option(top_k, renormalize, bias_dtype):
    compare(ALL_PASSES, tokens=21, top_k=top_k, renormalize=renormalize, bias_dtype=bias_dtype)


@pytest.mark.pypto_thorough
def test_a_masked_score_below_every_other():
    compare(ALL_PASSES, tokens=13, masked_score=-1e30, **GROUPS)


@pytest.mark.pypto_thorough
def test_a_prefill_of_thousands():
    compare(tokens=2049)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"experts": 150, "top_k": 8}, "multiple of 8"),
        ({"experts": 160, "top_k": 8, "num_expert_group": 7}, "groups of one size"),
        ({"experts": 160, "top_k": 8, "num_expert_group": 4, "topk_group": 5}, "topk_group"),
        ({"experts": 160, "top_k": 41, "num_expert_group": 4}, "top_k must be 1 to 40"),
        ({"experts": 160, "top_k": 8, "logits_dtype": torch.bfloat16}, "logits"),
        ({"experts": 160, "top_k": 8, "bias_dtype": torch.float16}, "bias"),
        ({"experts": 8192, "top_k": 8}, "UB holds"),
    ],
)
def test_refuses(sizes, word):
    assert word in select_experts.refusal(**sizes)


@pytest.mark.parametrize("experts", [128, 160, 256])
def test_takes_the_shapes_of_the_models(experts):
    assert select_experts.refusal(experts=experts, top_k=8) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (
            {"router_logits": torch.zeros(8, 160, dtype=torch.bfloat16)},
            "router_logits: expected torch.float32",
        ),
        ({"topk_ids": torch.zeros(8, 8, dtype=torch.int64)}, "topk_ids: expected torch.int32"),
        ({"topk_weights": torch.zeros(8, 7)}, "topk_weights: expected shape"),
        ({"e_score_correction_bias": torch.zeros(128)}, "e_score_correction_bias: expected shape"),
        ({"e_score_correction_bias": None}, "e_score_correction_bias: expected a tensor"),
        ({"top_k": 0}, "top_k must be"),
    ],
)
def test_names_the_argument_that_is_wrong(change, word):
    with pytest.raises((TypeError, ValueError), match=f"select_experts: {word}"):
        select_experts.select_experts(**{**cases.select_experts_inputs(8), **change})


def test_never_simulates_for_a_caller():
    inputs = cases.select_experts_inputs(8)
    with pytest.raises(RuntimeError, match="Ascend NPU only"):
        select_experts.select_experts(**inputs)
    assert inputs["topk_weights"].isnan().all()
