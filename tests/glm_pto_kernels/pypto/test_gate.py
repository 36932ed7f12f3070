"""The gate kernel against torch, in pypto's interpreter; its argument checks need no pypto."""

import pytest
import torch

from benchmarks.pypto_sim import cases, references
from benchmarks.pypto_sim.simulator import ALL_PASSES, simulate
from glm_pto_kernels.pypto import gate

GLM = {"hidden": 5120, "experts": 160}
AIR = {"hidden": 4096, "experts": 128}
# fp32 sums of 5120 products, in another order than torch's.
TOLERANCE = 2e-5


def compare(passes=(), **sizes):
    result = simulate(cases.ours_gate, passes=passes, **sizes)
    (expected,) = references.gate(**cases.gate_inputs(**sizes))
    torch.testing.assert_close(result.outputs[0], expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert not result.failed()
    return result


@pytest.mark.pypto
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"tokens": 13, **GLM}, id="one_partly_filled_small_block"),
        pytest.param({"tokens": 203, **GLM}, id="both_large_tiles_and_a_small_block"),
        pytest.param({"tokens": 32, **AIR}, id="air"),
    ],
)
def test_matches_torch(sizes):
    compare(**sizes)


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("model", [GLM, AIR], ids=["glm", "air"])
@pytest.mark.parametrize("tokens", [1, 13, 32, 33, 64, 203])
def test_every_pass_agrees(tokens, model):
    assert compare(ALL_PASSES, tokens=tokens, **model).passes


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("sizes", [{"hidden": 2048, "experts": 48}, {"hidden": 7168, "experts": 256}])
def test_other_models(sizes):
    compare(ALL_PASSES, tokens=40, **sizes)


@pytest.mark.pypto_thorough
def test_a_prefill_of_thousands():
    compare(tokens=2049, **GLM)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"hidden": 5000, "experts": 160}, "hidden"),
        ({"hidden": 5120, "experts": 100}, "experts"),
        ({"hidden": 5120, "experts": 160, "dtype": torch.bfloat16}, "bfloat16"),
    ],
)
def test_refuses(sizes, word):
    assert word in gate.refusal(**sizes)


@pytest.mark.parametrize("sizes", [GLM, AIR])
@pytest.mark.parametrize("rows", [16, 64, 128])
def test_tiles_fit_the_chip(rows, sizes):
    assert gate.tiles(rows, **sizes).refusal() is None


def test_takes_the_shapes_of_the_models():
    assert gate.refusal(**GLM) is None
    assert gate.refusal(**AIR) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (
            {"hidden_states": torch.zeros(8, 5120, dtype=torch.bfloat16)},
            "hidden_states: expected torch.float32",
        ),
        ({"hidden_states": torch.zeros(5120)}, r"hidden_states: expected \[tokens, hidden\]"),
        ({"hidden_states": torch.zeros(5120, 8).T}, "hidden_states: expected a contiguous"),
        ({"gate_weight": torch.zeros(160, 4096)}, "gate_weight: expected shape"),
        ({"router_logits_out": torch.zeros(8, 128)}, "router_logits_out: expected shape"),
        ({"router_logits_out": torch.zeros(8, 160, device="meta")}, "router_logits_out: expected device cpu"),
        ({"gate_weight": None}, "gate_weight: expected a tensor"),
    ],
)
def test_names_the_argument_that_is_wrong(change, word):
    with pytest.raises((TypeError, ValueError), match=f"gate: {word}"):
        gate.gate(**{**cases.gate_inputs(8), **change})


def test_never_simulates_for_a_caller():
    inputs = cases.gate_inputs(8)
    with pytest.raises(RuntimeError, match="Ascend NPU only"):
        gate.gate(**inputs)
    assert inputs["router_logits_out"].isnan().all()
