"""GLM_PTO_CHECK: a right kernel passes, a wrong one raises, for every operator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends, check
from tests.glm_pto_kernels import stand_ins


def calls(tokens: int = 3) -> dict[str, Callable[[], Any]]:
    """Each operator on a small layer."""
    sizes = stand_ins.SMALL
    hidden = torch.randn(tokens, sizes.hidden).bfloat16()
    layer, expert = stand_ins.DecoderLayer(sizes), stand_ins.SharedExpert(sizes)
    impl, step = stand_ins.AscendAttentionBackendImpl(sizes), stand_ins.metadata([5] * tokens)
    query = torch.randn(tokens, sizes.heads, sizes.head).bfloat16()
    gate = torch.nn.Linear(sizes.hidden, sizes.experts, bias=False)
    caches = impl.key_cache, impl.value_cache
    return {
        "gate": lambda: K.gate(gate, hidden),
        "select_experts": lambda: K.select_experts(torch.randn(tokens, 32), 4, True, 1, 1, torch.randn(32)),
        "paged_attention": lambda: K.paged_attention(
            query, *caches, step.block_tables, step.seq_lens, torch.empty_like(query)
        ),
        "attention_pre": lambda: K.attention_pre(hidden, None, layer, layer.self_attn, torch.arange(tokens)),
        "shared_expert": lambda: K.ffn_share_expert_quant(expert, hidden),
    }


@pytest.fixture
def checking(environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Check every first call of a kernel: the reference, or it changed by ``spoil``."""

    def use(name: str, spoil: Callable[[torch.Tensor], None] | None = None, mode: str = "1") -> None:
        monkeypatch.setattr(backends, "CHECK", mode)
        environment()
        reference = backends.OPERATORS[name].torch_kernel
        output = OUTPUTS[name]

        def kernel(*arguments: Any) -> None:
            reference(*arguments)
            if spoil is not None:
                spoil(arguments[output])

        K.register(name, kernel)

    return use


OUTPUTS = {"gate": 2, "select_experts": 6, "paged_attention": 5, "attention_pre": 16, "shared_expert": 5}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_right_kernel_passes_and_the_difference_is_logged(
    checking: Callable[..., None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    checking(name)
    with caplog.at_level(logging.INFO):
        calls()[name]()
    assert sum("largest difference of the custom backend" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_difference_within_the_tolerance_passes(checking: Callable[..., None], name: str) -> None:
    checking(name, lambda out: out.mul_(1 + (2**-7 if out.dtype is torch.bfloat16 else 4e-6)))
    calls()[name]()


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("a_tenth_too_much", lambda out: out.mul_(1.1)),
        ("an_unwritten_row", lambda out: out[-1].fill_(float("nan"))),
        ("last_row_from_the_first", lambda out: out[-1].copy_(out[0].clone())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_wrong_kernel_raises(
    checking: Callable[..., None], name: str, kind: str, spoil: Callable[[torch.Tensor], None]
) -> None:
    checking(name, spoil)
    with pytest.raises(check.CheckError, match=f"{name}: the custom backend differs"):
        calls()[name]()


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_kernel_that_writes_into_its_input_raises(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Results that fit the changed input are not enough: other layers read it too."""
    monkeypatch.setattr(backends, "CHECK", "1")
    environment()
    operator = backends.OPERATORS[name]

    def kernel(*arguments: Any) -> None:
        arguments[0].mul_(2)
        operator.torch_kernel(*arguments)

    K.register(name, kernel)
    with pytest.raises(check.CheckError, match=f"wrote into its input {operator.parameters[0]}"):
        calls()[name]()


def test_1_checks_each_set_of_shapes_once_and_all_every_call(checking: Callable[..., None]) -> None:
    wrong = False

    def spoil(out: torch.Tensor) -> None:
        if wrong:
            out.add_(1)

    checking("gate", spoil)
    three, four = calls(3)["gate"], calls(4)["gate"]
    three()
    wrong = True
    three()
    with pytest.raises(check.CheckError):
        four()
    wrong = False
    checking("gate", spoil, "all")
    three()
    wrong = True
    with pytest.raises(check.CheckError):
        three()


@pytest.mark.parametrize(("device", "compared"), [("meta", []), ("cpu", [1])])
def test_what_a_graph_captures_is_left_out(
    monkeypatch: pytest.MonkeyPatch, device: str, compared: list[int]
) -> None:
    """A comparison waits for the device, which a capture forbids; tensors on the CPU are in no graph."""
    npu = SimpleNamespace(is_current_stream_capturing=lambda: True)
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    ran: list[str] = []
    seen: list[int] = []
    call = check.checked(
        "gate",
        "custom",
        lambda out, size: ran.append("kernel"),
        lambda *_: (seen.append(1), (0.0, 1.0))[1],
        {},
        True,
    )
    call(torch.zeros(2, device=device), 3)
    assert (ran, seen) == (["kernel"], compared)


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "unwritten"])
@pytest.mark.parametrize("backend", ["torch", "custom", "pypto", "upstream"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_every_backend_is_checked(
    environment: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    nan_filled: None,
    name: str,
    backend: str,
    wrong: bool,
) -> None:
    """Whatever kernel a backend finds: one that computes passes, one that writes nothing raises."""
    monkeypatch.setattr(backends, "CHECK", "1")
    environment(GLM_PTO_BACKEND=backend)
    # The small layers are no size of a kernel; what is tried is the call, not the limits.
    monkeypatch.setitem(backends.CHOICES, name, backends.Choice(backend))
    kernel = (lambda *arguments: None) if wrong else backends.OPERATORS[name].torch_kernel
    monkeypatch.setattr(backends, "load", lambda name: kernel)
    if not wrong:
        calls()[name]()
        return
    with pytest.raises(check.CheckError, match=f"{name}: the {backend} backend differs"):
        calls()[name]()


@pytest.mark.parametrize(("word", "mode"), [("", ""), ("0", ""), ("1", "1"), ("ALL", "all")])
def test_the_setting(monkeypatch: pytest.MonkeyPatch, word: str, mode: str) -> None:
    monkeypatch.setenv("GLM_PTO_CHECK", word)
    assert check.mode() == mode
    monkeypatch.setenv("GLM_PTO_CHECK", "yes")
    with pytest.raises(ValueError, match="GLM_PTO_CHECK"):
        check.mode()
