"""The wall-x benchmark's cases at small shapes on the CPU: they build, and ours agrees with the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from benchmarks.wallx import gemm, moe, positions, rotary
from benchmarks.wallx.case import Case, peer

CASES = {
    "permute": lambda: moe.permute_case(64, 32, 2),
    "map": lambda: moe.map_case(64, 32),
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
