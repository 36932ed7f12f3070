"""select_experts: against a loop over tokens, scaling, ties, foreign models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels.ops import select_experts as op
from tests.glm_pto_kernels.stand_ins import Sizes, glm_4_5, glm_4_5_air

TOKENS = (1, 2, 31, 32, 33, 200)


def native(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, renormalize: bool
) -> tuple[list[Any], list[Any]]:
    """Token by token, in float64 and Python."""
    weights, ids = [], []
    for row in logits.double():
        score = 1 / (1 + torch.exp(-row))
        order = sorted(range(len(row)), key=lambda e: -(score[e] + bias[e]).item())[:top_k]
        chosen = [score[e].item() for e in order]
        weights.append([w / sum(chosen) if renormalize else w for w in chosen])
        ids.append(order)
    return weights, ids


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("sizes", [glm_4_5(), glm_4_5_air()], ids=["glm_4_5", "air"])
def test_equals_a_loop_over_tokens(sizes: Sizes, tokens: int) -> None:
    torch.manual_seed(tokens)
    logits, bias = torch.randn(tokens, sizes.experts), 0.3 * torch.randn(sizes.experts)
    assert K.select_experts_refusal(logits, 8, True, 1, 1, bias, scoring_func="sigmoid") is None
    weights, ids = K.select_experts(logits, 8, True, 1, 1, bias)
    wanted_weights, wanted_ids = native(logits, bias, 8, True)
    assert ids.tolist() == wanted_ids
    torch.testing.assert_close(weights, torch.tensor(wanted_weights), rtol=1e-5, atol=1e-6)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32


@pytest.mark.usefixtures("torch_backend")
def test_fault_12_scaling_is_applied_as_the_matched_call_says() -> None:
    logits, bias = torch.randn(5, 160), torch.zeros(160)
    plain, _ = K.select_experts(logits, 8, True, 1, 1, bias)
    scaled, _ = K.select_experts(logits, 8, True, 1, 1, bias, routed_scaling_factor=2.5)
    torch.testing.assert_close(scaled, 2.5 * plain)
    raw, _ = K.select_experts(logits, 8, False, 1, 1, bias)
    torch.testing.assert_close(plain, raw / raw.sum(-1, keepdim=True))


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_are_all_0_have_weights_of_0_and_every_other_weight_stays(dtype: torch.dtype) -> None:
    logits, bias = 8 * torch.randn(40, 160, dtype=dtype), torch.rand(160)
    logits[:3], logits[3, :159] = -1e4, -1e4
    logits[4] = -87.0  # some of the least sums that are normal numbers
    weights, ids = op.reference(logits, 8, True, 1, 1, bias, 2.5)
    assert torch.equal(weights[:3], torch.zeros(3, 8, dtype=dtype))
    assert torch.equal(ids[:3], bias.topk(8).indices.expand(3, 8).to(torch.int32))
    scores = logits.sigmoid().gather(-1, ids.long())
    assert torch.equal(weights[4:], (scores / scores.sum(-1, keepdim=True) * 2.5)[4:])
    if dtype == torch.float32:
        taken, _ = K.select_experts(logits, 8, True, 1, 1, bias, routed_scaling_factor=2.5)
        assert torch.equal(taken, weights)
        difference, allowed = op._compare(logits, 8, True, 1, 1, bias, weights / 2.5, ids)
        assert difference <= allowed


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scoring_func": "softmax"}, "sigmoid"),
        ({}, "sigmoid"),
        ({"scoring_func": "sigmoid", "renormalize": False}, "not renormalised"),
        ({"scoring_func": "sigmoid", "num_expert_group": 8, "topk_group": 4}, "groups"),
        ({"scoring_func": "sigmoid", "num_expert_group": None, "topk_group": None}, "groups"),
        ({"scoring_func": "sigmoid", "e_score_correction_bias": None}, "bias"),
        ({"scoring_func": "sigmoid", "e_score_correction_bias": torch.zeros(160, 1)}, "bias"),
        ({"scoring_func": "sigmoid", "router_logits": torch.zeros(4, 160).bfloat16()}, "fp32"),
        ({"scoring_func": "sigmoid", "router_logits": None}, "fp32"),
        ({"scoring_func": "sigmoid", "top_k": 161}, "number of experts"),
    ],
    ids=[
        "softmax",
        "scoring_not_said",
        "weights_as_they_are",
        "deepseek_groups",
        "no_groups",
        "no_bias",
        "bias_of_other_rank",
        "bf16_logits",
        "no_logits",
        "top_k_too_large",
    ],
)
@pytest.mark.usefixtures("torch_backend")
def test_fault_12_foreign_models_stay_native(changes: dict[str, Any], why: str) -> None:
    call: dict[str, Any] = {
        "router_logits": torch.zeros(4, 160),
        "top_k": 8,
        "renormalize": True,
        "topk_group": 1,
        "num_expert_group": 1,
        "e_score_correction_bias": torch.zeros(160),
        **changes,
    }
    assert K.select_experts_supported(**call) is False
    assert why in (K.select_experts_refusal(**call) or "")


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize(("top_k", "fits"), [(0, False), (1, True), (8, True), (9, False)])
def test_as_many_experts_as_there_are_can_be_chosen(top_k: int, fits: bool) -> None:
    call = (torch.zeros(2, 8), top_k, True, 1, 1, torch.zeros(8), "sigmoid")
    assert K.select_experts_supported(*call) is fits
    assert (K.select_experts_refusal(*call) is None) is fits


@pytest.mark.usefixtures("torch_backend")
def test_a_bias_of_other_size_raises_as_the_native_formula_does() -> None:
    logits, bias = torch.zeros(4, 160), torch.zeros(128)
    for call in (lambda: logits.sigmoid() + bias, lambda: K.select_experts(logits, 8, True, 1, 1, bias)):
        with pytest.raises((RuntimeError, ValueError), match=r"size of tensor|one bias for each"):
            call()


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fault_13_bias_of_any_dtype_chooses_the_same(dtype: torch.dtype) -> None:
    logits = torch.randn(33, 160)
    bias = (torch.randn(160) / 4).to(dtype)
    assert K.select_experts_supported(logits, 8, True, 1, 1, bias, scoring_func="sigmoid")
    weights, ids = K.select_experts(logits, 8, True, 1, 1, bias)
    wide_weights, wide_ids = K.select_experts(logits, 8, True, 1, 1, bias.float())
    assert torch.equal(ids, wide_ids) and torch.equal(weights, wide_weights)


def test_fault_13_an_fp32_bias_reaches_the_kernel_as_it_is(environment: Callable[..., None]) -> None:
    seen = []
    environment()
    K.register("select_experts", lambda *arguments: seen.append(arguments[5]))
    bias = torch.randn(160)
    K.select_experts(torch.randn(2, 160), 8, True, 1, 1, bias)
    assert torch.equal(seen[0], bias) and seen[0].dtype == torch.float32


def test_groups_of_the_reference_follow_the_formula() -> None:
    logits, bias = torch.randn(40, 16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    weights, ids = op.reference(logits, 4, True, 2, 4, bias)
    for row, chosen in zip(logits, ids, strict=True):
        choice = row.sigmoid() + bias
        groups = choice.view(4, 4).max(-1).values.topk(2).indices.tolist()
        allowed = [e for e in range(16) if e // 4 in groups]
        assert chosen.tolist() == sorted(allowed, key=lambda e: -choice[e].item())[:4]
    assert weights.dtype == torch.float64
    alone = op.reference(logits, 4, True, None, None, bias)
    for groups in ((None, 4), (2, None), (4, 4)):
        assert torch.equal(op.reference(logits, 4, True, *groups, bias)[1], alone[1])


@pytest.mark.usefixtures("torch_backend")
def test_no_tokens_and_strided_logits() -> None:
    bias = torch.zeros(160)
    weights, ids = K.select_experts(torch.zeros(0, 160), 8, True, 1, 1, bias)
    assert weights.shape == ids.shape == (0, 8)
    wide = torch.randn(8, 320)
    strided = wide[::2, ::2]
    for ours, dense in zip(
        K.select_experts(strided, 8, True, 1, 1, bias),
        K.select_experts(strided.contiguous(), 8, True, 1, 1, bias),
        strict=True,
    ):
        assert torch.equal(ours, dense)


@pytest.mark.usefixtures("torch_backend")
def test_opcheck() -> None:
    sample = (torch.randn(4, 32), 8, True, 1, 1, torch.randn(32), 2.5)
    torch.library.opcheck(torch.ops.glm_pto.select_experts.default, sample)


def test_compare_takes_ties_in_any_order_and_finds_wrong_ids() -> None:
    logits, bias = torch.zeros(3, 32), torch.zeros(32)
    weights, ids = torch.full((3, 4), 0.25), torch.tensor([[9, 3, 1, 0]] * 3, dtype=torch.int32)
    difference, allowed = op._compare(logits, 4, True, 1, 1, bias, weights, ids)
    assert difference <= allowed
    logits[:, 20] = 1.0
    difference, allowed = op._compare(logits, 4, True, 1, 1, bias, weights, ids)
    assert difference > allowed
    ids[0, 0] = 32
    assert op._compare(logits, 4, True, 1, 1, bias, weights, ids)[0] == float("inf")


@pytest.mark.parametrize("size", [1, 31, 33])
def test_a_bias_that_is_not_one_an_expert_is_refused_before_a_kernel_reads_it(torch_backend, size):
    with pytest.raises(ValueError, match="one bias for each of 32 experts"):
        K.select_experts(torch.zeros(2, 32), 8, True, 1, 1, torch.zeros(size))


def test_groups_that_equal_one_are_taken_as_the_condition_takes_them(torch_backend):
    logits, bias = torch.randn(2, 32), torch.zeros(32)
    assert K.select_experts_supported(logits, 8, True, 1.0, True, bias, "sigmoid")
    found = K.select_experts(logits, 8, True, 1.0, True, bias)
    assert all(
        torch.equal(a, b) for a, b in zip(found, K.select_experts(logits, 8, True, 1, 1, bias), strict=True)
    )
