"""paged_attention: against dense attention, padding, lengths, strided caches, foreign models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends
from glm_pto_kernels.ops import paged_attention as op
from tests.glm_pto_kernels.stand_ins import AscendAttentionBackendImpl, Sizes, glm_4_5, glm_4_5_air, metadata

TOKENS = (1, 2, 31, 32, 33, 200)
RAGGED = [1, 127, 128, 129, 500]


def native(impl: Any, query: torch.Tensor, step: Any, scale: float) -> torch.Tensor:
    """Each request alone: its tokens gathered one by one, then PyTorch's own attention in fp32."""
    rows = []
    for row, length in enumerate(step.seq_lens.tolist()):
        token = torch.arange(length)
        blocks = step.block_tables[row, token // 128].long()
        keys, values = (
            cache[blocks, token % 128].float().transpose(0, 1) for cache in (impl.key_cache, impl.value_cache)
        )
        q = query[row].float().unsqueeze(1)
        group = q.shape[0] // keys.shape[0]
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        rows.append(torch.nn.functional.scaled_dot_product_attention(q, keys, values, scale=scale).squeeze(1))
    return torch.stack(rows)


def run(impl: Any, query: torch.Tensor, step: Any, output: torch.Tensor, **more: Any) -> torch.Tensor:
    assert K.paged_attention_refusal(impl, query, step) is None
    more = {"scale": impl.scale, **more}
    caches = impl.key_cache, impl.value_cache
    return K.paged_attention(query, *caches, step.block_tables, step.seq_lens, output, **more)


def close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((got.float() - wanted).abs().max() <= 0.01 * wanted.abs().max())


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize(
    "sizes",
    [*(glm_4_5(tp) for tp in (1, 2, 4, 8, 16)), glm_4_5_air(4)],
    ids=str,
)
def test_equals_dense_attention(sizes: Sizes) -> None:
    torch.manual_seed(0)
    impl, step = AscendAttentionBackendImpl(sizes), metadata(RAGGED)
    query = torch.randn(len(RAGGED), sizes.heads, sizes.head).bfloat16()
    output = torch.empty_like(query)
    assert run(impl, query, step, output) is output
    assert close(output, native(impl, query, step, impl.scale))


GRID = [
    *((glm_4_5(), n) for n in (1, 2, 33)),
    *(pytest.param(glm_4_5(tp), n, marks=pytest.mark.thorough) for tp in (1, 2, 4, 8, 16) for n in TOKENS),
]


@pytest.mark.usefixtures("torch_backend", "nan_filled")
@pytest.mark.parametrize(("sizes", "tokens"), GRID, ids=str)
def test_any_number_of_requests(sizes: Sizes, tokens: int) -> None:
    impl, step = AscendAttentionBackendImpl(sizes), metadata([1 + 7 * n % 300 for n in range(tokens)])
    query = torch.randn(tokens, sizes.heads, sizes.head).bfloat16()
    assert close(run(impl, query, step, torch.empty_like(query)), native(impl, query, step, impl.scale))


@pytest.mark.usefixtures("torch_backend")
def test_fault_7_the_models_scale_is_used() -> None:
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([40, 200])
    query = torch.randn(2, 12, 128).bfloat16()
    got = run(impl, query, step, torch.empty_like(query), scale=0.3)
    assert close(got, native(impl, query, step, 0.3)) and not close(
        got, native(impl, query, step, impl.scale)
    )
    default = run(impl, query, step, torch.empty_like(query), scale=None)
    assert close(default, native(impl, query, step, 128**-0.5))


def test_fault_7_the_kernel_gets_the_scale(environment: Callable[..., None]) -> None:
    seen: list[tuple[Any, ...]] = []
    environment()
    K.register("paged_attention", lambda *arguments: seen.append(arguments))
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([3])
    query = torch.randn(1, 12, 128).bfloat16()
    run(impl, query, step, torch.empty_like(query), scale=0.25)
    assert seen[0][6] == 0.25 and len(seen[0]) == len(backends.OPERATORS["paged_attention"].parameters)


def test_fault_8_lengths_reach_the_kernel_as_int32_on_the_querys_device(
    environment: Callable[..., None],
) -> None:
    seen: list[torch.Tensor] = []
    environment()
    K.register("paged_attention", lambda *arguments: seen.extend(arguments[3:5]))
    query = torch.randn(2, 12, 128).bfloat16()
    tables, lengths = torch.zeros(2, 4, dtype=torch.int64), torch.tensor([3, 4])
    cache = torch.zeros(4, 128, 1, 128).bfloat16()
    K.paged_attention(query, cache, cache, tables, lengths, torch.empty_like(query))
    assert [t.dtype for t in seen] == [torch.int32] * 2 and {t.device for t in seen} == {query.device}


def test_cpu_lengths_are_copied_once_per_metadata_object(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = 0
    to = torch.Tensor.to

    def counted(self: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
        nonlocal copies
        copies += 1
        return to(self, *arguments, **more)

    device, step = torch.device("cpu"), metadata([5, 6])
    monkeypatch.setattr(torch.Tensor, "to", counted)
    with torch.inference_mode():
        first = [op.on_device(step.seq_lens, device, step) for _ in range(92)]
        assert copies == 1 and all(each is first[0] for each in first)
        # A draft step moves on in place, under the same metadata.
        step.seq_lens += 1
        assert op.on_device(step.seq_lens, device, step).tolist() == [6, 7] and copies == 2
        other = SimpleNamespace(seq_lens=step.seq_lens)
        op.on_device(other.seq_lens, device, other)
        assert copies == 3
        # Without metadata, or with one that takes no attribute, every call copies.
        op.on_device(step.seq_lens, device, None)
        op.on_device(step.seq_lens, device, object())
        assert copies == 5


def test_the_copy_is_not_the_callers_tensor() -> None:
    step = metadata([5, 6])
    copy = op.on_device(step.seq_lens, torch.device("cpu"), step)
    step.seq_lens[0] = 9
    assert copy.tolist() == [5, 6]


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize(
    ("rows", "lengths", "tables", "written"),
    [(8, 5, 5, 5), (8, 8, 8, 8), (5, 8, 8, 5), (8, 6, 5, 5)],
    ids=["padded_query", "all_padded", "padded_lengths", "dummy_request_without_table"],
)
def test_padding_rows_stay_as_they_are(rows: int, lengths: int, tables: int, written: int) -> None:
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([10 * (n + 1) for n in range(lengths)])
    step.block_tables = step.block_tables[:tables]
    query = torch.randn(rows, 12, 128).bfloat16()
    output = torch.full_like(query, float("nan"))
    run(impl, query, step, output)
    assert not output[:written].isnan().any() and output[written:].isnan().all()


@pytest.mark.usefixtures("torch_backend")
def test_a_padded_request_of_length_0_does_not_harm_its_neighbours() -> None:
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([7, 0, 300])
    query = torch.randn(3, 12, 128).bfloat16()
    output = run(impl, query, step, torch.full_like(query, float("nan")))
    assert not output.isnan().any() and not output[1].any()


@pytest.mark.usefixtures("torch_backend")
def test_output_may_be_flat_or_strided() -> None:
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([7, 130])
    query = torch.randn(2, 12, 128).bfloat16()
    wanted = run(impl, query, step, torch.empty_like(query))
    flat = torch.empty(2, 12 * 128).bfloat16()
    assert run(impl, query, step, flat) is flat and torch.equal(flat.view_as(wanted), wanted)
    wide = torch.zeros(2, 12, 256).bfloat16()
    run(impl, query, step, wide[..., :128])
    assert torch.equal(wide[..., :128], wanted) and not wide[..., 128:].any()
    spread = torch.randn(2, 24, 128).bfloat16()
    spread[:, ::2] = query
    assert torch.equal(run(impl, spread[:, ::2], step, torch.empty_like(query)), wanted)


def strided_caches(impl: Any) -> None:
    """One buffer a layer, keys and values interleaved by block, as vllm-ascend 0.30 lays them out."""
    both = torch.stack((impl.key_cache, impl.value_cache), dim=1)
    impl.key_cache, impl.value_cache = both[:, 0], both[:, 1]


def test_strided_caches_of_0_30_are_read_rightly_or_refused(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(GLM_PTO_BACKEND="torch")
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([7, 300])
    query = torch.randn(2, 12, 128).bfloat16()
    wanted = run(impl, query, step, torch.empty_like(query))
    strided_caches(impl)
    assert not impl.key_cache.is_contiguous()
    assert torch.equal(run(impl, query, step, torch.empty_like(query)), wanted)
    for caches, supported in (("dense", False), ("blocks", True), ("any", True)):
        monkeypatch.setitem(backends.CHOICES, "paged_attention", backends.Choice("pypto", caches=caches))
        assert K.paged_attention_supported(impl, query, step) is supported
    # Keys and values interleaved by token: no whole number of blocks apart.
    both = torch.stack((impl.key_cache, impl.value_cache), dim=2)
    impl.key_cache, impl.value_cache = both[:, :, 0], both[:, :, 1]
    monkeypatch.setitem(backends.CHOICES, "paged_attention", backends.Choice("pypto", caches="blocks"))
    assert K.paged_attention_supported(impl, query, step) is False
    assert "strided" in (K.paged_attention_refusal(impl, query, step) or "")


CHANGES: dict[str, tuple[str, Any, str]] = {
    "sliding_window": ("sliding_window", 4096, "window"),
    "alibi": ("alibi_slopes", [0.5], "alibi"),
    "sinks": ("sinks", [torch.zeros(1)], "sinks"),
    "soft_cap": ("logits_soft_cap", 30.0, "cap"),
    "hamming_sparse": ("enable_hamming_sparse", True, "spars"),
    "pcp": ("pcp_enabled", True, "parallel"),
    "encoder": ("attn_type", "encoder", "decoder"),
    "no_cache": ("key_cache", None, "caches"),
    "c8_int8_cache": ("key_cache", torch.zeros(12, 128, 1, 128, dtype=torch.int8), "bf16"),
    "hnd_layout": ("key_cache", torch.zeros(12, 1, 128, 128).bfloat16(), "blocks, block"),
    "other_kv_heads": ("num_kv_heads", 2, "fit the query"),
}


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("name", CHANGES)
def test_refuses(name: str) -> None:
    attribute, value, why = CHANGES[name]
    impl, query, step = (
        AscendAttentionBackendImpl(glm_4_5()),
        torch.zeros(2, 12, 128).bfloat16(),
        metadata([3, 4]),
    )
    if value is True:
        setattr(impl, attribute, False)
        assert K.paged_attention_supported(impl, query, step)
        impl = AscendAttentionBackendImpl(glm_4_5())
    setattr(impl, attribute, value)
    assert K.paged_attention_supported(impl, query, step) is False
    assert why in (K.paged_attention_refusal(impl, query, step) or "")


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(32, 8, 128), (64, 4, 128), (16, 1, 128), (12, 1, 64)]
)
def test_fault_15_other_models_with_grouped_queries_stay_native(heads: int, kv_heads: int, dim: int) -> None:
    impl = AscendAttentionBackendImpl(Sizes(heads=heads, kv_heads=kv_heads, head=dim))
    query = torch.zeros(2, heads, dim).bfloat16()
    assert "GLM-4.5" in (K.paged_attention_refusal(impl, query, metadata([3, 4])) or "")


@pytest.mark.usefixtures("torch_backend")
def test_refuses_variants_and_unknown_objects() -> None:
    query, step = torch.zeros(2, 12, 128).bfloat16(), metadata([3, 4])
    for name in ("AscendAttentionBackendImpl310", "AscendAttentionCPImpl", "AscendMLAImpl"):
        variant = type(name, (AscendAttentionBackendImpl,), {})(glm_4_5())
        assert "variant" in (K.paged_attention_refusal(variant, query, step) or "")
    impl = AscendAttentionBackendImpl(glm_4_5())
    for unknown in (None, object(), SimpleNamespace(causal=False), SimpleNamespace(seq_lens=None)):
        assert K.paged_attention_supported(impl, query, unknown) is False
    for other in (None, query.float(), query.flatten(1)):
        fresh = AscendAttentionBackendImpl(glm_4_5())
        assert K.paged_attention_supported(fresh, other, step) is False
        assert "not bf16 [tokens, heads, dim]" in (K.paged_attention_refusal(fresh, other, step) or "")
    for unknown in (None, 3, object(), int, {}):
        assert K.paged_attention_supported(unknown, query, step) is False


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
def test_slopes_and_sinks_are_not_read(name: str) -> None:
    """They are tensors on the device, so asking for their truth would raise, or wait for it."""
    impl, query, step = (
        AscendAttentionBackendImpl(glm_4_5()),
        torch.zeros(2, 12, 128).bfloat16(),
        metadata([3, 4]),
    )
    setattr(impl, name, torch.zeros(12, device="meta"))
    assert K.paged_attention_supported(impl, query, step) is False
    assert "sinks" in (K.paged_attention_refusal(impl, query, step) or "")


def test_capturing_is_asked_of_the_device(monkeypatch: pytest.MonkeyPatch, torch_backend: None) -> None:
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([3, 4])
    query = torch.zeros(2, 12, 128, device="meta").bfloat16()
    for capturing in (False, True):
        npu = SimpleNamespace(is_current_stream_capturing=lambda answer=capturing: answer)
        monkeypatch.setattr(torch, "npu", npu, raising=False)
        assert K.paged_attention_supported(impl, query, step) is not capturing
        refusal = K.paged_attention_refusal(impl, query, step)
        assert (refusal is not None and "captured" in refusal) is capturing


def test_capturing_is_read_from_vllms_forward_context(monkeypatch: pytest.MonkeyPatch) -> None:
    from glm_pto_kernels import notice

    assert notice.capturing() is False
    module = ModuleType("vllm.forward_context")
    monkeypatch.setitem(sys.modules, "vllm.forward_context", module)
    assert notice.capturing() is False
    module._forward_context = SimpleNamespace()  # type: ignore[attr-defined]
    assert notice.capturing() is False
    module._forward_context = SimpleNamespace(capturing=True)  # type: ignore[attr-defined]
    assert notice.capturing() is True
    monkeypatch.setattr(torch, "npu", SimpleNamespace(), raising=False)  # a torch_npu that cannot tell
    assert notice.capturing() is True


@pytest.mark.parametrize(("there", "capturing"), [(False, True), (True, False), (True, True)])
def test_capturing_is_asked_of_cuda_once_it_is_in_use(
    monkeypatch: pytest.MonkeyPatch, there: bool, capturing: bool
) -> None:
    from glm_pto_kernels import notice

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: there)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert notice.capturing() is (there and capturing)


@pytest.mark.parametrize(("length", "read"), [(0, False), (1, True)])
def test_compare_reads_every_row_that_has_a_token(length: int, read: bool) -> None:
    impl, step = AscendAttentionBackendImpl(glm_4_5()), metadata([3, length])
    query = torch.randn(2, 12, 128).bfloat16()
    inputs = (query, impl.key_cache, impl.value_cache, step.block_tables, step.seq_lens)
    output = op.reference(*inputs, 0.1)
    output[1] = 9.0
    difference, allowed = op._compare(*inputs, output, 0.1)
    assert (difference > allowed) is read


@pytest.mark.usefixtures("torch_backend")
def test_opcheck() -> None:
    cache = torch.randn(4, 16, 1, 32).bfloat16()
    query = torch.randn(2, 4, 32).bfloat16()
    tables, lengths = torch.zeros(2, 4, dtype=torch.int32), torch.tensor([3, 40], dtype=torch.int32)
    sample = (query, cache, cache.clone(), tables, lengths, torch.zeros_like(query), 0.2)
    torch.library.opcheck(torch.ops.glm_pto.paged_attention.default, sample)
