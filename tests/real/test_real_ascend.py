"""Real vllm-ascend modules on the CPU, patched: our operators are reached, rightly called, and agree.

torch_npu's own operator schemas refuse a call that the hardware would refuse; the bodies are ours
(`npu_on_cpu`). The numbers of the faults are those of the guide that people copied by hand.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glm_pto.cli import fetch
from glm_pto.codemods import operations

pytestmark = [pytest.mark.real_ascend, pytest.mark.trees]

THOROUGH = pytest.mark.thorough
# vllm-ascend: vllm, environment, what the release's build writes into _build_info.py
RELEASES = {
    "0.11.0": ("0.11.0", "ascend", '__soc_version__ = "ascend910b1"\n__sleep_mode_enabled__ = False\n'),
    "0.12.0rc1": ("0.12.0", "ascend", '__device_type__ = "_910B"\n'),
    "0.13.0": ("0.13.0", "ascend", '__device_type__ = "A2"\n'),
    "0.18.0": ("0.18.0", "ascend", '__device_type__ = "A2"\n'),
    "0.30.0rc2": ("0.30.0", "vllm", '__device_type__ = "A2"\n'),
}
QUICK = ("0.11.0", "0.13.0")
WITH_LOAD_CHECK = ("0.13.0",)
ROWS = (1, 33)


def drive(environment: Any, tree: Path, out: Path) -> None:
    env = {**environment.variables(tree), "GLM_PTO_BACKEND": "torch"}
    driver = Path(__file__).with_name("drive_ascend.py")
    done = subprocess.run([environment.python, driver, out], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(
    scope="module",
    params=[v if v in QUICK else pytest.param(v, marks=THOROUGH) for v in RELEASES],
)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reports(
    release: str, environment: Callable[[str], Any], once: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the original and the patched release did."""
    vllm, name, build_info = RELEASES[release]
    found = environment(name)
    try:
        fetch.release("vllm", vllm), fetch.release("vllm-ascend", release)
    except fetch.FetchError as error:
        pytest.skip(f"no released sources: {error}")

    def fill(folder: Path) -> None:
        tree = fetch.pair(release, vllm, folder / "tree")
        (tree / "vllm_ascend/_build_info.py").write_text(build_info)
        drive(found, tree, folder / "original.pt")
        operations.apply([tree], operations.Options(install_kernels=True))
        drive(found, tree, folder / "patched.pt")

    folder = once(f"ascend-{release}", fill)
    return tuple(torch.load(folder / f"{n}.pt", weights_only=False) for n in ("original", "patched"))  # type: ignore[return-value]


def only(report: dict[str, Any], scenario: str) -> dict[str, Any]:
    """The arguments of the one call of ours in a scenario."""
    calls = report[scenario]["calls"]
    assert len(calls) == 1, [name for name, _ in calls]
    return dict(calls[0][1])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=-1e9), b.nan_to_num(nan=-1e9))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    assert a.shape == b.shape and a.dtype == b.dtype
    assert torch.equal(a.isnan(), b.isnan())
    a, b = a.nan_to_num().float(), b.nan_to_num().float()
    assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


def dense(routing: tuple[torch.Tensor, torch.Tensor], experts: int) -> torch.Tensor:
    weights, ids = routing
    return torch.zeros(weights.shape[0], experts).scatter_(1, ids.long(), weights.float())


def test_switched_off_is_the_original_exactly(reports: Any) -> None:
    original, patched = reports
    assert len(original) > 10
    for name, before in original.items():
        after = patched[name]
        assert after["calls"] == [], name
        assert after["native"] == before["native"], name
        assert same(after["result"], before["result"]), name


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("case", "scale"), [("glm", 1.0), ("glm_scaled", 2.5)])
def test_fault_1_select_experts_is_reached_with_the_calls_own_values(
    reports: Any, release: str, rows: int, case: str, scale: float
) -> None:
    """From 0.12 on GLM-4.5 takes the gating operator; a guard on the native fallback is dead code."""
    original, patched = reports
    scenario = f"select_experts/{case}/{rows}"
    call = only(patched, f"{scenario}/on")
    assert patched[f"{scenario}/on"]["native"] == {}
    assert call["router_logits"].shape == (rows, 160)
    assert (call["top_k"], call["renormalize"]) in ((8, True), (8, 1))
    assert (call["topk_group"], call["num_expert_group"]) == (1, 1)
    assert call["e_score_correction_bias"].shape == (160,)
    # 0.10-0.12 do not scale here, whatever the model says: the call's own value decides.
    assert call["routed_scaling_factor"] == (1.0 if release in ("0.11.0", "0.12.0rc1") else scale)
    result, before = patched[f"{scenario}/on"]["result"], original[f"{scenario}/off"]["result"]
    assert [t.dtype for t in result] == [t.dtype for t in before] == [torch.float32, torch.int32]
    close(dense(result, 160), dense(before, 160), 1e-5)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("case", ["softmax_128", "groups_256"])
def test_fault_12_other_models_keep_their_routing(reports: Any, case: str, rows: int) -> None:
    original, patched = reports
    on, before = (r[f"select_experts/{case}/{rows}/{s}"] for r, s in ((patched, "on"), (original, "off")))
    assert on["calls"] == [] and on["native"] == before["native"]
    assert same(on["result"], before["result"])


@pytest.mark.parametrize("arm", ["paged", "fused"])
def test_decode_attention_is_reached_in_both_arms(reports: Any, arm: str) -> None:
    original, patched = reports
    scenario = f"paged_attention/glm/{arm}"
    call = only(patched, f"{scenario}/on")
    assert patched[f"{scenario}/on"]["native"] == {}
    assert call["query"].shape == (5, 12, 128)
    assert call["key_cache"].shape == call["value_cache"].shape == (8, 128, 1, 128)
    assert not torch.equal(call["key_cache"], call["value_cache"])
    assert call["block_tables"].tolist() == [[3, 0], [1, 5], [2, 7]]
    assert call["scale"] == 128**-0.5
    result, before = patched[f"{scenario}/on"]["result"], original[f"{scenario}/off"]["result"]
    assert not before[:3].isnan().any() and before[3:].isnan().all()  # padding rows stay as they were
    close(result, before, 2.0**-7)


def test_fault_8_lengths_are_on_the_cpu_and_copied_once(reports: Any) -> None:
    _, patched = reports
    call = only(patched, "paged_attention/glm/fused/on")
    assert call["actual_seqs_cpu"].tolist() == [5, 200, 129]
    assert call["actual_seqs_cpu"].device.type == "cpu"
    assert patched["paged_attention/two_layers/on"]["result"] == "one copy"


@pytest.mark.parametrize("arm", ["paged", "fused"])
def test_fault_15_other_head_counts_stay_native(reports: Any, arm: str) -> None:
    """A model with 32 heads, 8 kv heads of 128 would enter wherever only the head size is asked for."""
    original, patched = reports
    assert patched["sizes"]["pypto", 12, 1] is None
    assert "12 a kv head" in patched["sizes"]["pypto", 32, 8]
    scenario = f"paged_attention/foreign/{arm}"
    on, before = patched[f"{scenario}/on"], original[f"{scenario}/off"]
    assert on["calls"] == [] and on["native"] == before["native"]
    assert same(on["result"], before["result"])


def test_strided_caches_agree(reports: Any) -> None:
    """vllm-ascend 0.30 hands out key and value as views of one buffer."""
    original, patched = reports
    on, before = patched["paged_attention/strided/on"], original["paged_attention/strided/off"]
    close(on["result"], before["result"], 2.0**-7)
    assert len(on["calls"]) == 1
    assert patched["sizes"]["pypto", "strided"] is None


@pytest.mark.parametrize(("which", "rows"), [("first", 2), ("later", 2), ("later", 33)])
def test_attention_pre_takes_the_releases_own_quantised_layer(reports: Any, which: str, rows: int) -> None:
    """Faults 2, 3 and 4: positions are handed over, what comes back fits, and a residual of None is taken."""
    original, patched = reports
    scenario = f"attention_pre/{which}/{rows}"
    call = only(patched, f"{scenario}/on")
    assert (call["layer"], call["attention"]) == ("Glm4MoeDecoderLayer", "Glm4MoeAttention")
    assert call["positions"].tolist() == list(range(rows))
    assert (call["residual"] is None) is (which == "first")
    assert patched[f"{scenario}/on"]["native"] == {}
    assert original[f"{scenario}/off"]["native"] == {"quantize": 1, "quant_matmul": 1}
    pairs = zip(patched[f"{scenario}/on"]["result"], original[f"{scenario}/off"]["result"], strict=True)
    for ours, native in pairs:  # hidden states, residual, q, k, v
        close(ours, native, 2.0**-5)


@pytest.mark.parametrize("rows", ROWS)
def test_fault_11_shared_expert_is_reached(reports: Any, rows: int) -> None:
    """The guide edits Glm4MoeMLP.forward, which vllm-ascend does not call on this path from 0.13.0rc2 on."""
    original, patched = reports
    call = only(patched, f"shared_expert/{rows}/on")
    assert call["layer"] == "Glm4MoeMLP" and call["hidden_states"].shape == (rows, 5120)
    assert patched[f"shared_expert/{rows}/on"]["native"] == {}
    assert original[f"shared_expert/{rows}/off"]["native"]["quant_matmul"] == 2
    result, before = (
        patched[f"shared_expert/{rows}/on"]["result"],
        original[f"shared_expert/{rows}/off"]["result"],
    )
    close(result, before, 2.0**-6)


def test_fault_11_the_load_time_check_passes(reports: Any, release: str) -> None:
    """It compares the whole method with the split path; both stay native. The guide's edit fails it."""
    original, patched = reports
    expected = "passed" if release in WITH_LOAD_CHECK else original["load_check/off"]["result"]
    on = patched["load_check/on"]
    assert (original["load_check/off"]["result"], on["result"]) == (expected, expected)
    assert on["calls"] == []
    if release in WITH_LOAD_CHECK:
        assert patched["load_check/guide"]["result"] == "refused"
