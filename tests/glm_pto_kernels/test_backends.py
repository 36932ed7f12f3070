"""Backends: who is chosen, what raises, what is logged, and kernels of one's own."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends, hardware
from tests.glm_pto_kernels import stand_ins

NAMES = list(backends.OPERATORS)


def gate_call() -> torch.Tensor:
    return K.gate(torch.nn.Linear(8, 4, bias=False), torch.ones(2, 8))


def gate_refusal() -> str | None:
    return K.gate_refusal(torch.nn.Linear(8, 4, bias=False), torch.ones(2, 8))


@pytest.mark.parametrize("name", NAMES)
def test_auto_leaves_native_code_alone_here_and_says_why(name: str) -> None:
    choice = backends.decide(name, {})
    assert choice.backend == "native" and choice.native


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which everything that PyPTO needs can be found."""
    monkeypatch.setattr(hardware, "installed", lambda package: True)
    monkeypatch.setattr(hardware, "device_type", lambda: "A2")
    monkeypatch.setenv("ASCEND_HOME_PATH", "/usr/local/Ascend")


@pytest.mark.usefixtures("npu")
def test_auto_takes_pypto_where_it_can_run_and_only_off_the_cpu(environment: Callable[..., None]) -> None:
    environment()
    assert backends.CHOICES["gate"].backend == "pypto"
    assert "CPU" in (K.gate_refusal(torch.nn.Linear(5120, 160, bias=False), torch.ones(2, 5120)) or "")


@pytest.mark.parametrize(
    ("missing", "why"),
    [("torch_npu", "torch_npu is not"), ("pypto", "pypto is not")],
)
@pytest.mark.usefixtures("npu")
def test_auto_needs_the_npu_stack(monkeypatch: pytest.MonkeyPatch, missing: str, why: str) -> None:
    monkeypatch.setattr(hardware, "installed", lambda package: package != missing)
    assert why in (backends.decide("gate", {}).native or "")


@pytest.mark.usefixtures("npu")
def test_pyptos_simulation_is_never_taken_for_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH")
    assert "simulate" in (backends.decide("gate", {}).native or "")


@pytest.mark.usefixtures("npu")
@pytest.mark.parametrize(
    ("soc", "fits"), [("A2", True), ("A3", True), (None, True), ("A5", False), ("310P", False)]
)
def test_auto_refuses_other_chips(monkeypatch: pytest.MonkeyPatch, soc: str | None, fits: bool) -> None:
    monkeypatch.setattr(hardware, "device_type", lambda: soc)
    assert (backends.decide("gate", {}).native is None) is fits


@pytest.mark.parametrize(
    ("text", "soc"),
    [
        ('__device_type__ = "A2"\n', "A2"),
        ("__device_type__ = '_310P'\n", "310P"),
        ("__device_type__ = '_910B'\n", "A2"),
        ("__device_type__ = '_910_93'\n", "A3"),
        ("__device_type__ = '_910_95'\n", "A5"),
        ('__soc_version__ = "ASCEND910B1"\n', "A2"),
        ('__soc_version__ = "ascend910_9391"\n', "A3"),
        ('__soc_version__ = "ascend950"\n', "A5"),
        ("__device_type__ = guess()\n", None),
        ("", None),
    ],
)
def test_the_chip_is_read_from_vllm_ascends_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, soc: str | None
) -> None:
    folder = tmp_path / "vllm_ascend"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "_build_info.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert hardware.device_type() == soc


@pytest.mark.parametrize("folder", [False, True], ids=["a_module", "no_build_info"])
def test_a_vllm_ascend_that_does_not_say_its_chip_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
) -> None:
    if folder:
        (tmp_path / "vllm_ascend").mkdir()
    (tmp_path / ("vllm_ascend/__init__.py" if folder else "vllm_ascend.py")).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert hardware.device_type() is None


def test_a_package_is_installed_where_it_could_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))  # it has no spec
    monkeypatch.setitem(sys.modules, "blocked", None)
    names = ("this", "made_by_hand", "blocked", "no_such_package")
    assert [hardware.installed(name) for name in names] == [True, True, False, False]


@pytest.mark.parametrize("backend", ["pypto", "upstream"])
def test_an_explicit_choice_that_cannot_run_raises(environment: Callable[..., None], backend: str) -> None:
    environment(GLM_PTO_BACKEND=backend)
    layer = torch.nn.Linear(5120, 160, bias=False)
    assert K.gate_refusal(layer, torch.ones(2, 5120)) is None
    with pytest.raises(backends.BackendError, match=f"GLM_PTO_BACKEND={backend} cannot run here"):
        K.gate(layer, torch.ones(2, 5120))


@pytest.mark.usefixtures("npu")
def test_a_broken_pypto_is_broken_not_absent(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pypto.py").write_text("import libascendcl_of_another_version\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pypto", raising=False)
    environment(GLM_PTO_BACKEND="pypto")
    with pytest.raises(backends.BackendError, match=r"pypto is installed but broken.*another_version"):
        K.gate(torch.nn.Linear(5120, 160, bias=False), torch.ones(2, 5120))


def test_backends_by_operator() -> None:
    environment = {"GLM_PTO_BACKEND": "torch, gate=upstream,ffn_share_expert_quant=auto"}
    chosen = {name: backends.decide(name, environment).backend for name in NAMES}
    assert chosen == {**dict.fromkeys(NAMES, "torch"), "gate": "upstream", "shared_expert": "native"}


@pytest.mark.parametrize("words", ["gate", "gate,shared_expert", "ffn_share_expert_quant", "all"])
def test_disabled_operators_stay_native(words: str) -> None:
    environment = {"GLM_PTO_BACKEND": "torch", "GLM_PTO_DISABLE": words}
    off = {name for name in NAMES if backends.decide(name, environment).native}
    wanted = {w.replace("ffn_share_expert_quant", "shared_expert") for w in words.split(",")}
    assert off == (set(NAMES) if words == "all" else wanted)


@pytest.mark.parametrize(
    "environment",
    [
        {"GLM_PTO_BACKEND": "cuda"},
        {"GLM_PTO_BACKEND": "torch,gates=torch"},
        {"GLM_PTO_BACKEND": "gate=fast"},
        {"GLM_PTO_DISABLE": "gates"},
        {"GLM_PTO_KERNEL_GATES": "package:function"},
        {"GLM_PTO_KERNEL_gate": "package:function"},
    ],
    ids=str,
)
def test_words_that_are_not_known_raise(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="GLM_PTO_"):
        backends.decide("gate", environment)


@pytest.mark.usefixtures("torch_backend")
def test_one_line_per_operator(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        before = K.calls()["gate"]
        for _ in range(3):
            gate_call()
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1 and "gate: taken by the torch backend" in lines[0]
    assert K.calls()["gate"] == before + 3


def test_one_line_also_where_the_first_calls_come_from_several_threads(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment(GLM_PTO_BACKEND="torch")
    ready, load = threading.Barrier(8), backends.load

    def slow(name: str) -> Callable[..., Any]:
        time.sleep(0.05)  # long enough for the others to arrive
        return load(name)

    monkeypatch.setattr(backends, "load", slow)
    threads = [threading.Thread(target=lambda: (ready.wait(), gate_call())) for _ in range(8)]
    with caplog.at_level(logging.INFO, logger="glm_pto_kernels"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([r for r in caplog.records if "gate: taken by" in r.getMessage()]) == 1


def test_the_log_lines_show_where_vllm_shows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from glm_pto_kernels import notice

    assert notice.logger().name == "glm_pto_kernels"
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    assert notice.logger().name == "vllm.glm_pto_kernels"


def zeros(hidden_states: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()


def test_register_takes_the_operator_even_where_nothing_else_runs(environment: Callable[..., None]) -> None:
    environment()
    assert gate_refusal()
    K.register("gate", zeros)
    assert gate_refusal() is None and not gate_call().any()
    K.register("gate", lambda h, w, out: out.fill_(1))
    assert gate_call().eq(1).all()


@pytest.mark.parametrize("separator", [":", "."])
def test_a_dotted_name_in_the_environment(environment: Callable[..., None], separator: str) -> None:
    environment(GLM_PTO_KERNEL_GATE=f" {__name__}{separator}zeros ")
    sys.modules[__name__].zeros = zeros  # type: ignore[attr-defined]
    assert backends.CHOICES["gate"].backend == "custom" and gate_refusal() is None
    assert not gate_call().any()


@pytest.mark.parametrize("named", ["torch", "pypto", "custom,gate=upstream"])
def test_a_kernel_of_ones_own_beside_another_named_backend_is_refused(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    with pytest.raises(ValueError, match="gate=custom to take yours"):
        backends.decide("gate", {"GLM_PTO_BACKEND": named, "GLM_PTO_KERNEL_GATE": "package:function"})
    environment()
    before = backends.CHOICES["gate"]
    monkeypatch.setenv("GLM_PTO_BACKEND", named)
    with pytest.raises(ValueError, match="gate=custom to take yours"):
        K.register("gate", zeros)
    assert backends.CHOICES["gate"] is before
    monkeypatch.setenv("GLM_PTO_BACKEND", f"{named},gate=custom")
    K.register("gate", zeros)
    assert not gate_call().any()


@pytest.mark.parametrize("name", ["no_such_package:kernel", "math:no_such_function"])
def test_a_dotted_name_that_leads_nowhere_raises(environment: Callable[..., None], name: str) -> None:
    environment(GLM_PTO_KERNEL_GATE=name)
    with pytest.raises(backends.BackendError, match="GLM_PTO_KERNEL_GATE"):
        gate_call()


@pytest.mark.parametrize(
    ("operator", "function", "error", "why"),
    [
        ("gates", zeros, ValueError, "there is .*gate"),
        ("gate", lambda a, b: None, TypeError, "does not fit gate"),
        ("gate", "zeros", TypeError, "'zeros', which cannot be called"),
        ("select_experts", zeros, TypeError, "does not fit select_experts"),
    ],
    ids=["unknown_operator", "two_parameters", "a_name", "other_operator"],
)
def test_register_refuses(
    environment: Callable[..., None], operator: str, function: Any, error: type[Exception], why: str
) -> None:
    environment()
    with pytest.raises(error, match=why):
        K.register(operator, function)
    assert not backends.CUSTOM


async def later(hidden_states: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()


def one_by_one(hidden_states: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Any:
    yield out.zero_()


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    "function",
    [lambda h, w, out: h @ w.t(), lambda h, w, out: (None, h @ w.t()), later, one_by_one],
    ids=["returns", "returns_several", "coroutine", "generator"],
)
def test_a_kernel_that_returns_its_results_is_refused(
    environment: Callable[..., None], function: Any
) -> None:
    environment()
    K.register("gate", function)
    with pytest.raises(TypeError, match="the kernel for gate returned"):
        gate_call()


@pytest.mark.parametrize(
    "returns", [lambda out: out, lambda out: out.view(-1), lambda out: (out,), lambda out: object()]
)
def test_a_kernel_may_return_its_output_or_a_launch(
    environment: Callable[..., None], returns: Callable[..., Any]
) -> None:
    environment()
    K.register("gate", lambda h, w, out: returns(out.fill_(1)))
    assert gate_call().eq(1).all()


def test_custom_without_a_function_stays_native_and_says_so(environment: Callable[..., None]) -> None:
    environment(GLM_PTO_BACKEND="custom")
    assert "no function is registered" in (gate_refusal() or "")


def test_foreign_layers_stay_native_under_a_custom_kernel(environment: Callable[..., None]) -> None:
    environment()
    K.register("shared_expert", lambda *arguments: None)
    layer = stand_ins.SharedExpert(stand_ins.SMALL)
    hidden = torch.zeros(2, 256).bfloat16()
    assert K.ffn_share_expert_quant_supported(layer, hidden)
    layer.down_proj.reduce_results = True
    assert not K.ffn_share_expert_quant_supported(layer, hidden)


def test_a_registered_function_is_taken_before_one_that_the_environment_names(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLM_PTO_KERNEL_GATE", "no_such_package:kernel")
    environment(GLM_PTO_KERNEL_GATE="no_such_package:kernel")
    K.register("gate", zeros)
    assert not gate_call().any()


@pytest.mark.usefixtures("npu")
@pytest.mark.parametrize(
    ("backend", "caches"), [("upstream", "dense"), ("pypto", "blocks"), ("auto", "blocks")]
)
def test_what_a_backends_attention_asks_of_the_caches(backend: str, caches: str) -> None:
    assert backends.decide("paged_attention", {"GLM_PTO_BACKEND": backend}).caches == caches


@pytest.mark.parametrize(
    "words", ["gate=torch,pypto", "pypto,gate=torch", " pypto , gate = torch ", "gate=pypto,pypto,gate=torch"]
)
def test_an_exception_holds_wherever_it_stands(words: str) -> None:
    assert backends.decide("gate", {"GLM_PTO_BACKEND": words}).backend == "torch"


@pytest.mark.parametrize("words", ["torch,pypto", "auto,torch", "gate=torch,custom,pypto"])
def test_backends_that_contradict_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match="leave one"):
        backends.decide("gate", {"GLM_PTO_BACKEND": words})


def test_a_blank_backend_is_none() -> None:
    assert backends.decide("gate", {"GLM_PTO_BACKEND": " "}) == backends.decide("gate", {})


@pytest.mark.parametrize("dotted", ["function", ":", "package:", ":function", "package..function"])
def test_a_name_that_cannot_be_a_function_is_refused_at_import(dotted: str) -> None:
    with pytest.raises(ValueError, match=r"expected package\.module:function"):
        backends.decide("gate", {"GLM_PTO_KERNEL_GATE": dotted})
