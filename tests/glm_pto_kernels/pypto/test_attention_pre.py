"""The kernel before attention against torch, in pypto's interpreter; its argument checks need no pypto."""

import pytest
import torch

from benchmarks.pypto_sim import cases, references
from benchmarks.pypto_sim.simulator import ALL_PASSES, simulate
from glm_pto_kernels.pypto import attention_pre

AIR = {"hidden": 4096, "head_norm": False, "half": 32}


def compare(passes=(), nz=False, **sizes):
    result = simulate(cases.ours_attention_pre, passes=passes, nz=nz, **sizes)
    inputs = cases.attention_pre_inputs(**sizes)
    expected = references.attention_pre(**inputs, head_dim=sizes.get("head", 128))
    for name, got, want in zip(("query", "key", "value", "residual"), result.outputs, expected, strict=True):
        assert torch.equal(got, want), name
    assert not result.failed()
    return result


@pytest.mark.pypto
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"tokens": 13, "loud": True, "heads": 3}, id="tail_and_saturation"),
        pytest.param({"tokens": 5, "heads": 1, "biases": False, "first_layer": True}, id="first_layer"),
        pytest.param({"tokens": 9, "heads": 2, **AIR}, id="air_without_head_norm"),
    ],
)
def test_is_exact(sizes):
    compare(**sizes)


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("tokens", [1, 32, 45])
@pytest.mark.parametrize("sizes", [{}, {"heads": 6}, AIR], ids=["tp8", "tp16", "air"])
def test_every_pass_agrees(tokens, sizes):
    assert compare(ALL_PASSES, tokens=tokens, **sizes).passes


@pytest.mark.pypto_thorough
@pytest.mark.parametrize(("heads", "kv_heads"), [(24, 2), (48, 4), (96, 8)])
def test_every_pass_agrees_on_many_heads(heads, kv_heads):
    compare(ALL_PASSES, tokens=11, heads=heads, kv_heads=kv_heads)


@pytest.mark.pypto_thorough
@pytest.mark.parametrize(
    "sizes",
    [
        {"nz": True},
        {"half": 64},
        {"half": 16, "head": 64},
        {"loud": True},
        {"biases": False},
        {"first_layer": True},
        {"hidden": 6144},
    ],
    ids=str,
)
def test_every_option(sizes):
    compare(ALL_PASSES, tokens=13, heads=6, **sizes)


@pytest.mark.pypto_thorough
def test_a_prefill_of_hundreds():
    compare(tokens=300)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden": 5000}, "hidden size"),
        ({"q_size": 1500}, "whole heads"),
        ({"head_dim": 96}, "head size"),
        ({"rotary_dim": 48}, "rotary size"),
        ({"dtype": torch.float16}, "float16"),
        ({"hidden": 7680, "head_dim": 64}, "UB holds"),
    ],
)
def test_refuses(change, word):
    sizes = {"hidden": 5120, "q_size": 1536, "kv_size": 128, "head_dim": 128, "rotary_dim": 64}
    assert word in attention_pre.refusal(**{**sizes, **change})


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("hidden", [4096, 5120])
def test_takes_the_shapes_of_the_models(hidden, tp):
    sizes = {"q_size": 12288 // tp, "kv_size": 128 * max(1, 8 // tp)}
    assert attention_pre.refusal(hidden=hidden, head_dim=128, rotary_dim=64, **sizes) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"residual": torch.zeros(4, 5120).bfloat16()}, "residual: expected shape"),
        (
            {"atten_qkv_weight": torch.zeros(1792, 5120, dtype=torch.int8).T},
            "atten_qkv_weight: expected a",
        ),
        (
            {"atten_qkv_deq_scale": torch.zeros(1792).bfloat16()},
            "atten_qkv_deq_scale: expected torch",
        ),
        ({"atten_q_norm_weight": None}, "either both q and k"),
        ({"cos": torch.zeros(8, 32).bfloat16()}, r"cos: expected \[tokens, 1, rotary"),
        ({"query": torch.zeros(8, 1500).bfloat16()}, "q and kv sizes"),
        ({"input_layernorm_weight": torch.zeros(5120)}, "input_layernorm_weight: expected torch.bfloat16"),
    ],
)
def test_names_the_argument_that_is_wrong(change, word):
    with pytest.raises((TypeError, ValueError), match=f"attention_pre_quant: {word}"):
        attention_pre.attention_pre_quant(**{**cases.attention_pre_inputs(8), **change})


def test_never_simulates_for_a_caller():
    inputs = cases.attention_pre_inputs(8)
    with pytest.raises(RuntimeError, match="Ascend NPU only"):
        attention_pre.attention_pre_quant(**inputs)
    assert inputs["query"].isnan().all()
