"""The decode attention kernel against torch, in pypto's interpreter; its argument checks need no pypto."""

import pytest
import torch

from benchmarks.pypto_sim import cases, references
from benchmarks.pypto_sim.simulator import ALL_PASSES, simulate
from glm_pto_kernels.pypto import paged_attention

STEP = 2.0**-7  # of bf16
TOLERANCE = (
    2e-3  # relative, of the whole result: a chunk's own maximum moves the rounding of its probabilities
)
EXACT = 3e-3  # the same against fp64: a bf16 rounding of the probabilities and one of the result, 1.6e-3 each


def compare(passes=(), **sizes):
    # bf16 probabilities: a pass that sums them in another order may differ from the graph by a bf16 step.
    result = simulate(cases.ours_paged_attention, passes=passes, tolerance=(STEP, STEP), **sizes)
    inputs = cases.paged_attention_inputs(**sizes)
    (expected,) = references.paged_attention(**inputs)
    (exact,) = references.paged_attention(**inputs, exact=True)
    rows = [i for i, length in enumerate(sizes["lengths"]) if length]
    got, expected = result.outputs[0].view_as(expected).float()[rows], expected.float()[rows]
    torch.testing.assert_close(got, expected, rtol=STEP, atol=STEP / 2)
    assert (got - expected).norm() <= TOLERANCE * expected.norm()
    assert (got - exact[rows]).norm() <= EXACT * exact[rows].norm()
    assert not result.failed()
    return result


@pytest.mark.pypto
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"lengths": (1000, 1, 257, 1300)}, id="ragged_and_longer_than_a_chunk"),
        pytest.param(
            {
                "lengths": (40, 129) * 7,
                "heads": 4,
                "kv_heads": 2,
                "shared_buffer": True,
                "softmax_scale": 0.2,
            },
            id="two_kv_heads_in_a_shared_buffer_and_own_scale",
        ),
    ],
)
def test_matches_torch(sizes):
    compare(**sizes)


# Of 14 sequences 10 are cut in two and 4 are not; both ways see one chunk, several, full and partial blocks.
MIXED = (1, 128, 1024, 1023, 1025, 1000, 37, 1300, 3271, 700, 1024, 700, 1300, 1)


@pytest.mark.pypto_thorough
def test_every_pass_agrees():
    assert compare(ALL_PASSES, lengths=MIXED).passes


@pytest.mark.pypto_thorough
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 1), (24, 2), (48, 4), (96, 8), (24, 1)])
def test_every_pass_agrees_on_many_heads(heads, kv_heads):
    compare(ALL_PASSES, lengths=(300, 1200), heads=heads, kv_heads=kv_heads)


@pytest.mark.pypto_thorough
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("dim", [64, 128])
def test_other_head_and_block_sizes(dim, block):
    compare(ALL_PASSES, lengths=(300, 64, 1100), dim=dim, block=block, shared_buffer=True)


@pytest.mark.pypto_thorough
def test_a_row_of_length_zero_is_left_alone():
    result = compare(lengths=(0, 5))
    assert result.outputs[0].view(2, -1)[1].isfinite().all()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"heads": 10, "kv_heads": 4}, "evenly"),
        ({"heads": 96}, "at most 24"),
        ({"head_dim": 192}, "head size"),
        ({"block_size": 16}, "block size"),
        ({"dtype": torch.float16}, "float16"),
    ],
)
def test_refuses(change, word):
    sizes = {"heads": 12, "kv_heads": 1, "head_dim": 128, "block_size": 128}
    assert word in paged_attention.refusal(**{**sizes, **change})


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_takes_the_shapes_of_the_models(tp):
    sizes = {"heads": 96 // tp, "kv_heads": max(1, 8 // tp), "head_dim": 128, "block_size": 128}
    assert paged_attention.refusal(**sizes) is None


def test_a_shared_buffer_is_seen_as_twice_the_blocks():
    cache = cases.paged_attention_inputs((300, 500), shared_buffer=True)["value_cache"]
    assert paged_attention.block_step(cache) == 2
    dense = paged_attention.dense_blocks(cache, 2)
    assert dense.is_contiguous()
    assert dense.data_ptr() == cache.data_ptr()
    torch.testing.assert_close(dense[::2], cache, rtol=0, atol=0, equal_nan=True)


def shifted(cache):
    """Blocks that lie one and a half blocks apart."""
    blocks, *inner = cache.shape
    dense = cache[0].numel()
    return torch.zeros(dense * blocks * 2, dtype=cache.dtype).as_strided(
        (blocks, *inner), (dense * 3 // 2, *cache.stride()[1:])
    )


@pytest.mark.parametrize(
    "layout", [shifted, lambda cache: cache.transpose(1, 2).contiguous().transpose(1, 2)]
)
def test_refuses_other_cache_layouts(layout):
    inputs = cases.paged_attention_inputs((300, 500), heads=24, kv_heads=2)
    with pytest.raises(ValueError, match="attention: key_cache: its blocks must be dense"):
        paged_attention.attention(**{**inputs, "key_cache": layout(inputs["key_cache"])})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"query": torch.zeros(2, 12, 128)}, "query: expected torch.bfloat16"),
        ({"actual_seqs": torch.zeros(2, dtype=torch.int64)}, "actual_seqs: expected torch.int32"),
        ({"actual_seqs": torch.zeros(3, dtype=torch.int32)}, "actual_seqs: expected shape"),
        ({"block_tables": torch.zeros(3, 4, dtype=torch.int32)}, "block_tables: expected shape"),
        ({"attn_res": torch.zeros(2, 1536).bfloat16()}, "attn_res: expected shape"),
        ({"value_cache": torch.zeros(9, 128, 1, 128)}, "value_cache: expected shape"),
    ],
)
def test_names_the_argument_that_is_wrong(change, word):
    with pytest.raises((TypeError, ValueError), match=f"attention: {word}"):
        paged_attention.attention(**{**cases.paged_attention_inputs((100, 200)), **change})


def test_never_simulates_for_a_caller():
    inputs = cases.paged_attention_inputs((100, 200))
    with pytest.raises(RuntimeError, match="Ascend NPU only"):
        paged_attention.attention(**inputs)
    assert inputs["attn_res"].isnan().all()
