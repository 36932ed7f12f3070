"""The wall-x benchmark's cases at small shapes on the CPU: they build, and ours agrees with the reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from benchmarks.wallx import cases, gemm, measure, moe, positions, rotary, run, targets
from benchmarks.wallx.case import Case, label, peer
from benchmarks.wallx.cases import Entry

CASES = {
    "permute": lambda: moe.permute_case(64, 32, 2),
    "map": lambda: moe.map_case(64, 32, 1),
    "map_two": lambda: moe.map_case(64, 32, 2),
    "unpermute": lambda: moe.unpermute_case(64, 32, 2),
    "unpermute_one": lambda: moe.unpermute_case(64, 32, 1),
    "unpermute_bwd": lambda: moe.bwd_case(64, 32, 2),
    "unpermute_bwd_one": lambda: moe.bwd_case(64, 32, 1),
    "rope": lambda: rotary.rope_case(1, 16, False),
    "rope_bwd": lambda: rotary.rope_case(2, 16, True),
    "gemm": lambda: gemm.gemm_case(3, 2, True),
}


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on a GPU."""

    def __torch_function__(
        self, function: Callable[..., Any], _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        asked = dict(kwargs or {})
        if asked.get("device") == "cuda":
            asked["device"] = "cpu"
        return function(*args, **asked)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (moe, rotary):
        monkeypatch.setattr(module, "compiled", lambda function: function)
        monkeypatch.setattr(module, "poison", lambda: None)
    with OnCpu():
        yield


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_case_builds_and_ours_agrees(make: Callable[[], Case]) -> None:
    case = make()
    assert "ours" in case.calls and len(case.calls) > 2
    assert 0 <= case.errors["ours"] < 3e-3
    assert all(error < 3e-3 for error in case.errors.values())


def test_with_one_expert_a_token_no_torch_peer_reads_what_ours_does_not() -> None:
    rows, row_map, prob = torch.randn(6, 4), torch.randperm(6).int(), torch.rand(6, 1)
    act, weight = moe.eager_bwd(rows, torch.full((6, 4), float("nan")), row_map, prob)
    assert torch.equal(act[row_map.long()], rows)
    assert not weight.any()


def test_the_position_operators_agree() -> None:
    assert [name for name, _ in positions.position_cases()] == [
        "rope_index",
        "rot_pos_emb",
        "get_window_index",
    ]


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.module"])
def test_a_peer_that_is_not_installed_takes_no_part(name: str) -> None:
    assert peer(name) is None


def test_host_times_are_taken_before_the_profiler_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once it has run each launch takes longer, and all times on the host would be too high."""
    order = []

    def timed(kind: str, many: bool) -> Callable[..., Any]:
        def measured(calls: Any, *_: Any, **__: Any) -> Any:
            order.append(kind)
            return [1.0] * len(calls) if many else 1.0

        return measured

    for kind in ("gpu_only", "back_to_back", "interleaved"):
        monkeypatch.setattr(measure, kind, timed(kind, True))
    for kind in ("do_bench", "graph_replay", "whole"):
        monkeypatch.setattr(measure, kind, timed(kind, False))
    monkeypatch.setattr(run, "machine", dict)
    monkeypatch.setattr(run, "ceilings", dict)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    makes = [CASES["permute"], CASES["rope"], CASES["gemm"]]
    entries = [Entry(make, small) for make, small in zip(makes, (True, False, True), strict=True)]
    monkeypatch.setattr(run, "every_case", lambda quick: entries)
    monkeypatch.setattr("sys.argv", ["run.py", "--out", str(tmp_path / "out.json")])
    assert run.main() == 0
    host = [at for at, kind in enumerate(order) if kind in ("back_to_back", "whole")]
    assert order.count("back_to_back") == 2 and order.count("gpu_only") == 3
    assert max(host) < order.index("gpu_only")
    found = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [("back_to_back" in case["times"]["ours"]) for case in found] == [True, False, True]
    assert [case["operator"] for case in found] == ["permute", "rope", "dual GEMM"]


def test_shapes_with_a_target_are_measured_and_the_small_ones_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows_of(name: str) -> Callable[..., tuple[str, str]]:
        return lambda tokens, hidden, top_k=1: (name, label(tokens, hidden, top_k))

    def rope(batch: int, length: int, backward: bool) -> tuple[str, str]:
        return "rope_bwd" if backward else "rope", f"B={batch} S={length}, views"

    named = {"permute_case": "permute", "map_case": "permute, map given", "unpermute_case": "unpermute"}
    for function, name in {**named, "bwd_case": "unpermute_bwd"}.items():
        monkeypatch.setattr(cases, function, rows_of(name))
    monkeypatch.setattr(cases, "rope_case", rope)
    products = lambda m0, m1, t: ("dual GEMM", f"rows {m0}+{m1} {'NT' if t else 'NN'}")  # noqa: E731
    monkeypatch.setattr(gemm, "gemm_case", products)
    measured = {entry.make(): entry.small for entry in cases.every_case(quick=False)}
    for target in targets.TARGETS:
        assert (target.operator, target.shape) in measured
        assert target.above is None or (target.above, target.shape) in measured
        if target.kind == "back_to_back":
            assert measured[target.operator, target.shape]
    assert len(measured) == len(cases.every_case(quick=False)) > len(cases.every_case(quick=True))
    assert not measured["unpermute", label(65536, 2048, 1)]
