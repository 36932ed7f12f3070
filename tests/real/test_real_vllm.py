"""A real vLLM 0.32.0 generates from a tiny GLM-4.5: untouched, patched and off, patched and on."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm_pto.codemods import operations

pytestmark = pytest.mark.real_vllm

# fp32 logits of the gate in another order of sums; the rest of the network is the same arithmetic.
TOLERANCE = 1e-2
RUNS = {"plain": ["plain"], "patched": ["off", "on", "planted"]}
COMPILED = {"plain": ["plain+compile"], "patched": ["on+compile"]}


def drive(found: Any, folder: Path, name: str, runs: list[str], tree: Path | None) -> None:
    env = found.variables(*([tree] if tree else []), npu=False) | {
        "GLM_PTO_BACKEND": "torch",
        "VLLM_CACHE_ROOT": str(folder / f"cache-{name}"),
    }
    driver = Path(__file__).with_name("drive_vllm.py")
    command = [found.python, driver, folder / f"{name}.json", folder / "model", *runs]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def prepare(found: Any, folder: Path, runs: dict[str, list[str]]) -> None:
    write = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import tiny_glm, pathlib; "
    write += f"tiny_glm.write(pathlib.Path({str(folder / 'model')!r}))"
    subprocess.run([found.python, "-c", write], env=found.variables(npu=False), check=True)
    where = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    installed = subprocess.run([found.python, "-c", where], capture_output=True, text=True, check=True)
    tree = folder / "tree"
    # Hard links, as some installers make them: the patched copy must not change the environment's files.
    shutil.copytree(installed.stdout.strip(), tree / "vllm", copy_function=link)
    operations.apply([tree], operations.Options(install_kernels=True))
    drive(found, folder, "plain", runs["plain"], None)
    drive(found, folder, "patched", runs["patched"], tree)


def link(source: str, destination: str) -> str:
    Path(destination).hardlink_to(source)
    return destination


def results(folder: Path) -> dict[str, Any]:
    plain, patched = (json.loads((folder / f"{n}.json").read_text()) for n in ("plain", "patched"))
    assert "site-packages" in plain["file"] and str(folder) in patched["file"]
    return {**plain, **patched}


def tokens(run: dict[str, Any]) -> list[list[int]]:
    return [answer["tokens"] for answer in run["answers"]]


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest |difference| of log probabilities of the tokens that both runs list."""
    worst, compared = 0.0, 0
    for left, right in zip(a["answers"], b["answers"], strict=True):
        for one, other in zip(left["logprobs"], right["logprobs"], strict=True):
            for token in one.keys() & other.keys():
                worst, compared = max(worst, abs(one[token] - other[token])), compared + 1
    assert compared > 300
    return worst


@pytest.fixture(scope="module")
def eager(environment: Callable[[str], Any], once: Any) -> dict[str, Any]:
    found = environment("vllm")
    return results(once("vllm-eager", lambda folder: prepare(found, folder, RUNS)))


@pytest.fixture(scope="module")
def compiled(environment: Callable[[str], Any], once: Any) -> dict[str, Any]:
    found = environment("vllm")
    return results(once("vllm-compiled", lambda folder: prepare(found, folder, COMPILED)))


def test_off_is_bit_for_bit_the_untouched_vllm(eager: dict[str, Any]) -> None:
    assert tokens(eager["off"]) == tokens(eager["plain"])
    assert difference(eager["off"], eager["plain"]) == 0.0
    assert not any(eager["off"]["calls"].values())


def test_on_runs_the_gate_and_agrees(eager: dict[str, Any]) -> None:
    calls = eager["on"]["calls"]
    # Two MoE layers in every step; an unquantised model satisfies the static facts of no other operator here.
    assert calls["gate"] >= 2 * 16 and calls["gate"] % 2 == 0
    assert {k for k, n in calls.items() if n} == {"gate"}
    assert tokens(eager["on"]) == tokens(eager["plain"])
    assert difference(eager["on"], eager["plain"]) <= TOLERANCE


def test_a_planted_fault_is_seen(eager: dict[str, Any]) -> None:
    """Two per cent on one expert's logit: the comparison above can fail."""
    assert eager["planted"]["calls"]["gate"] >= 2 * 16
    assert difference(eager["planted"], eager["plain"]) > TOLERANCE


@pytest.mark.thorough
def test_on_agrees_under_torch_compile(compiled: dict[str, Any]) -> None:
    on, plain = compiled["on+compile"], compiled["plain+compile"]
    assert on["calls"]["gate"] >= 2 * 16
    assert tokens(on) == tokens(plain)
    assert difference(on, plain) <= TOLERANCE
