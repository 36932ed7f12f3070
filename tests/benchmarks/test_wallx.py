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
from benchmarks.wallx.case import ULPS, Case, label, peer, ulps
from benchmarks.wallx.cases import Entry

CASES = {
    "permute": lambda: moe.permute_case(64, 32, 2),
    "map": lambda: moe.map_case(64, 32, 1),
    "map_two": lambda: moe.map_case(64, 32, 2),
    "map_unknown": lambda: moe.map_case(64, 32, 2, known=False),
    "unpermute": lambda: moe.unpermute_case(64, 32, 2),
    "unpermute_one": lambda: moe.unpermute_case(64, 32, 1),
    "unpermute_bwd": lambda: moe.bwd_case(64, 32, 2),
    "unpermute_bwd_one": lambda: moe.bwd_case(64, 32, 1),
    "rope": lambda: rotary.rope_case(1, 16, False),
    "rope_bwd": lambda: rotary.rope_case(2, 16, True),
    "rope_odd": lambda: rotary.rope_case(1, 16, False, 80),
    "gemm": lambda: gemm.gemm_case(True, 3, 2),
    "gemm_without_rows": lambda: gemm.gemm_case(False, 3, 0),
    "gemm_odd": lambda: gemm.gemm_case(False, 3, 2, 31, 101),
}
NAN = float("nan")


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
    assert run.is_right(case)
    assert (ULPS in case.errors) == (case.operator not in run.COPIES)
    assert all(error < 2e-3 for what, error in case.errors.items() if what != ULPS)


# An operator of ours, what goes wrong in it, and the case that has to tell.
FAULTS = {
    "permute": (moe.wallx, "permute", lambda found: (found[0] + 1, *found[1:])),
    "map": (moe.wallx, "permute_with_map", lambda found: found * NAN),
    "unpermute": (moe.wallx, "unpermute", lambda found: found * NAN),
    "unpermute_bwd": (moe.wallx, "unpermute_bwd", lambda found: (found[0], found[1] + 1e-3)),
    "unpermute_bwd_one": (moe.wallx, "unpermute_bwd", lambda found: (found[0], found[1] * NAN)),
    "rope": (rotary, "ours", lambda found: (found[0], found[1] * NAN)),
    "rope_bwd": (rotary, "ours", lambda found: (found[0] * (1 + 2**-6), found[1])),
}


@pytest.mark.parametrize("draws", [{0}, {1}, {0, 1}], ids=["first", "second", "both"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_result_in_either_draw_is_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, draws: set[int]
) -> None:
    owner, function, spoil = FAULTS[name]
    right, calls = getattr(owner, function), iter(range(100))

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = right(*args, **kwargs)
        return spoil(found) if next(calls) in draws else found

    monkeypatch.setattr(owner, function, wrong)
    assert not run.is_right(CASES[name]())


def test_a_product_that_was_not_written_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in the second of two results counts as in the first."""
    right = gemm.wallx.asym_dual_gmm_separated

    def one_only(a0: Any, a1: Any, b0: Any, b1: Any, o0: Any, o1: Any, **kwargs: Any) -> None:
        right(a0, a1, b0, b1, o0, torch.empty_like(o1), **kwargs)

    monkeypatch.setattr(gemm.wallx, "asym_dual_gmm_separated", one_only)
    case = gemm.gemm_case(True, 3, 2)
    assert case.errors["ours"] == case.errors[ULPS] == float("inf")
    assert not run.is_right(case)


def test_units_of_the_last_place() -> None:
    exact = torch.tensor([1.0, 1.0, 1.5, 3.0, -0.004, 100.0])
    step = torch.tensor([0.0, 2**-7, -(2**-7), 2**-6, 0.0, 0.5])
    assert ulps((exact + step).bfloat16(), exact) == pytest.approx(1.0, abs=2e-3)
    rounded = torch.randn(10000) * 3
    assert 0.45 < ulps(rounded.bfloat16(), rounded) <= 0.5
    assert 0.45 < ulps(rounded.half(), rounded) <= 0.5
    some = rounded.bfloat16()
    some[::100] *= 1 + 3 * 2**-7  # one element in a hundred: a norm does not see it
    assert ulps(some, rounded) > 1.5


def test_results_are_written_with_four_digits_and_a_case_to_a_line(tmp_path: Path) -> None:
    results = {"machine": {"gpu": "a"}, "cases": [{"us": 1.23456, "right": True}, {"us": 7, "of": [1]}]}
    run.write(results, tmp_path / "out.json")
    text = (tmp_path / "out.json").read_text()
    assert json.loads(text) == {**results, "cases": [{"us": 1.235, "right": True}, {"us": 7, "of": [1]}]}
    assert len(text.splitlines()) == 5


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
    names = ("permute", "rope", "dual GEMM")
    entries = [Entry(*entry) for entry in zip(names, makes, (True, False, True), strict=True)]
    monkeypatch.setattr(run, "every_case", lambda quick: entries)
    monkeypatch.setattr("sys.argv", ["run.py", "--out", str(tmp_path / "out.json")])
    assert run.main() == 0
    host = [at for at, kind in enumerate(order) if kind in ("back_to_back", "whole")]
    assert order.count("back_to_back") == 2 and order.count("gpu_only") == 3
    assert max(host) < order.index("gpu_only")
    found = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [("back_to_back" in case["times"]["ours"]) for case in found] == [True, False, True]
    assert [case["operator"] for case in found] == list(names)


def test_shapes_with_a_target_are_measured_and_the_small_ones_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows_of(name: str) -> Callable[..., tuple[str, str]]:
        return lambda tokens, hidden, top_k=1, known=True: (
            name if known else "permute, unknown map",
            label(tokens, hidden, top_k),
        )

    def rope(batch: int, length: int, backward: bool, size: int = 128) -> tuple[str, str]:
        head = "" if size == 128 else f" D={size}"
        return "rope_bwd" if backward else "rope", f"B={batch} S={length}{head}, views"

    named = {"permute_case": "permute", "map_case": "permute, map given", "unpermute_case": "unpermute"}
    for function, name in {**named, "bwd_case": "unpermute_bwd"}.items():
        monkeypatch.setattr(cases, function, rows_of(name))
    monkeypatch.setattr(cases, "rope_case", rope)
    monkeypatch.setattr(gemm, "gemm_case", lambda *sizes: ("dual GEMM", gemm.name(*sizes)))
    measured = {entry.make(): entry.small for entry in cases.every_case(quick=False)}
    assert all(entry.make()[0] == entry.operator for entry in cases.every_case(quick=False))
    for target in targets.TARGETS:
        assert (target.operator, target.shape) in measured
        assert target.above is None or (target.above, target.shape) in measured
        if target.kind == "back_to_back":
            assert measured[target.operator, target.shape]
    assert len(measured) == len(cases.every_case(quick=False)) > len(cases.every_case(quick=True))
    assert not measured["unpermute", label(65536, 2048, 1)]
