"""The shared-expert kernel against torch, in pypto's interpreter; its argument checks need no pypto."""

import pytest
import torch

from benchmarks.pypto_sim import cases, references
from benchmarks.pypto_sim.simulator import ALL_PASSES, simulate
from glm_pto_kernels.pypto import shared_expert

# One bf16 step. The second quantisation hides no difference here: both sides round at the same places.
STEP = 2.0**-7


def compare(passes=(), nz=False, **sizes):
    result = simulate(cases.ours_shared_expert, passes=passes, nz=nz, tolerance=(STEP, STEP), **sizes)
    (expected,) = references.shared_expert(**cases.shared_expert_inputs(**sizes))
    got, expected = result.outputs[0].float(), expected.float()
    torch.testing.assert_close(got, expected, rtol=STEP, atol=1e-6)
    assert not result.failed()
    return result, got


@pytest.mark.pypto
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"tokens": 13}, id="tp8_with_a_tail"),
        pytest.param({"tokens": 5, "hidden": 4096, "intermediate": 88}, id="air_tp16_in_partly_filled_tiles"),
    ],
)
def test_matches_torch(sizes):
    _, got = compare(**sizes)
    assert not got[-1].any(), "a row of zeros must stay zero"


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("tokens", [1, 32, 45])
@pytest.mark.parametrize("intermediate", [96, 192, 384, 768, 1536])
def test_every_pass_agrees(tokens, intermediate):
    assert compare(ALL_PASSES, tokens=tokens, intermediate=intermediate)[0].passes


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("tokens", [13])
@pytest.mark.parametrize("intermediate", [88, 176, 352, 704, 1408])
def test_every_pass_agrees_on_air(tokens, intermediate):
    compare(ALL_PASSES, tokens=tokens, hidden=4096, intermediate=intermediate)


@pytest.mark.pypto_thorough
def test_takes_weights_in_nz():
    compare(ALL_PASSES, tokens=8, nz=True)


@pytest.mark.pypto_thorough
def test_a_prefill_of_hundreds():
    compare(tokens=300)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"hidden": 5000, "intermediate": 192}, "hidden size"),
        ({"hidden": 5120, "intermediate": 100}, "intermediate size"),
        ({"hidden": 5120, "intermediate": 192, "dtype": torch.float16}, "float16"),
    ],
)
def test_refuses(sizes, word):
    assert word in shared_expert.refusal(**sizes)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_takes_the_shapes_of_the_models(tp):
    assert shared_expert.refusal(hidden=5120, intermediate=1536 // tp) is None
    assert shared_expert.refusal(hidden=4096, intermediate=1408 // tp) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden_states": torch.zeros(8, 5120)}, "hidden_states: expected torch.bfloat16"),
        ({"w13": torch.zeros(5120, 192, dtype=torch.int8)}, "w13: expected shape"),
        ({"w13": torch.zeros(384, 5120, dtype=torch.int8).T}, "w13: expected a contiguous"),
        ({"w2_scale": torch.zeros(5120)}, "w2_scale: expected torch.bfloat16"),
        ({"ffn_res": torch.zeros(8, 4096).bfloat16()}, "ffn_res: expected shape"),
    ],
)
def test_names_the_argument_that_is_wrong(change, word):
    with pytest.raises((TypeError, ValueError), match=f"ffn_shared_expert_quant: {word}"):
        shared_expert.ffn_shared_expert_quant(**{**cases.shared_expert_inputs(8), **change})


def test_never_simulates_for_a_caller():
    inputs = cases.shared_expert_inputs(8)
    with pytest.raises(RuntimeError, match="Ascend NPU only"):
        shared_expert.ffn_shared_expert_quant(**inputs)
    assert inputs["ffn_res"].isnan().all()
