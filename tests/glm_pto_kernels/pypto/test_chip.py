"""Tiles are refused with the buffer that is too small; the refusals can stand in code that is compiled."""

import pytest
import torch

from glm_pto_kernels.pypto import (
    attention_pre,
    chip,
    gate,
    paged_attention,
    select_experts,
    shared_expert,
)
from glm_pto_kernels.pypto.chip import CubeTile, divisor

GOOD = {"m": 16, "k_l0": 256, "k_left": 512, "k_right": 1024, "n": 64, "item": 2}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"k_l0": 512, "n": 128}, "L0 holds"),
        ({"m": 256, "k_l0": 16, "n": 256}, "L0C holds"),
        ({"k_right": 8192}, "L1 holds"),
        ({"k_left": 384}, "do not divide"),
        ({"k_left": 0}, "no tile"),
        ({"n": 40}, "whole 32-byte blocks"),
    ],
)
def test_names_what_does_not_fit(change, word):
    assert CubeTile(**GOOD).refusal() is None
    assert word in CubeTile(**{**GOOD, **change}).refusal()


def test_vector_tiles():
    assert chip.vector_refusal(8, 1024, 6) is None
    assert "UB holds" in chip.vector_refusal(8, 1024, 7)
    assert "32-byte" in chip.vector_refusal(8, 20, 1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((5120, 2600), 2560), ((5120, 700, 512), 512), ((99, 64, 32), 0)],
)
def test_divisor(arguments, expected):
    assert divisor(*arguments) == expected


@pytest.mark.parametrize(
    ("refusal", "sizes"),
    [
        (gate.refusal, {"hidden": 5120, "experts": 160}),
        (select_experts.refusal, {"experts": 160, "top_k": 8}),
        (paged_attention.refusal, {"heads": 12, "kv_heads": 1, "head_dim": 128, "block_size": 128}),
        (
            attention_pre.refusal,
            {"hidden": 5120, "q_size": 1536, "kv_size": 128, "head_dim": 128, "rotary_dim": 64},
        ),
        (shared_expert.refusal, {"hidden": 5120, "intermediate": 192}),
    ],
    ids=["gate", "select_experts", "paged_attention", "attention_pre", "shared_expert"],
)
def test_refusals_can_be_traced(refusal, sizes):
    def layer(x):
        return x + 1 if refusal(**sizes) is None else x

    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2)).sum() == 2
