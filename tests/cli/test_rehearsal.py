"""`verify --run`: guards on stand-in layers agree with their originals, and wrong guards do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glm_pto import Options, apply
from glm_pto.cli import demo, rehearsal
from glm_pto.codemods import kernels, trees, verify
from tests.cli.schema import faults

#: What would be a mistake in a recipe: the operator is called, and with a wrong value.
MISTAKES = {
    "gate": ("hidden_states)\nelse", "-hidden_states)\nelse"),
    "attention_pre": ("self.self_attn, positions)\n    attn", "self.self_attn, positions + 1)\n    attn"),
    "paged_attention": ("scale=self.scale", "scale=2 * self.scale"),
    "select_experts": ("routed_scaling_factor=1)", "routed_scaling_factor=2)"),
    "shared_expert": ("_experts, hidden_states)\nelse", "_experts, 2 * hidden_states)\nelse"),
}


@pytest.fixture
def applied(tree: Path) -> Path:
    apply([tree], Options(install_kernels=True))
    return tree


def test_every_guard_agrees_with_its_original(run, applied: Path) -> None:
    answer = run("verify", applied, "--run", "--json")
    document = json.loads(answer.stdout)
    assert (answer.returncode, faults("verify", document)) == (0, [])
    assert sorted(t["site"] for t in document["trials"]) == sorted(MISTAKES)
    assert all(t["ran"] and t["off"] == 0 and t["calls"] == 1 for t in document["trials"])


def test_the_columns_of_the_runs_are_told_and_its_rows_are_in_the_order_of_status(run, applied: Path) -> None:
    shown = run("verify", applied, "--run", "--verbose").stdout.partition("Run on the CPU")[2].splitlines()
    rows, told = shown[2:7], shown[7:11]
    assert [row.split()[0] for row in rows] == sorted(MISTAKES)
    assert [line.split(":")[0].strip() for line in told] == ["off", "on", "allowed", "calls"]


def test_a_wrong_guard_is_seen(applied: Path) -> None:
    (found,) = trees.find([applied])
    questions = [standing.question() for standing in verify.guards(found)]
    for question in questions:
        right, wrong = MISTAKES[question["site"]]
        assert right in question["guard"]
        question["guard"] = question["guard"].replace(right, wrong)
    layer = kernels.find(applied)
    assert layer is not None
    answers = rehearsal.ask(None, layer.folder.parent, questions)
    trials = [rehearsal.Trial(applied, file="", line=1, **row) for row in answers]
    assert len(trials) == 5
    assert all(t.ran and t.calls == 1 and t.off == 0 and not t.good for t in trials)


def test_no_torch_is_a_refusal_in_words(run, applied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (applied.parent / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')\n")
    monkeypatch.setenv("PYTHONPATH", str(applied.parent), prepend=":")
    answer = run("verify", applied, "--run")
    assert answer.returncode == 3
    assert "--run needs torch" in answer.stderr and "No module named torch" in answer.stderr


OTHER_PAIRS = {
    "0.10.1": "0.10.1rc1", "0.10.2": "0.10.2rc1", "0.14.1": "0.14.0rc1", "0.16.0": "0.16.0rc1",
    "0.17.0": "0.17.0rc1", "0.18.0": "0.18.0", "0.19.1": "0.19.1rc1", "0.20.2": "0.20.2rc1",
    "0.21.0": "0.21.0rc1", "0.22.1": "0.22.1rc1", "0.23.0": "0.23.0", "0.24.0": "0.24.0rc1",
    "0.25.1": "0.25.1rc1", "0.26.0": "0.26.0rc1", "0.27.1": "0.27.1rc1", "0.28.0": "0.28.0rc1",
    "0.29.0": "0.29.0rc1", "0.30.0": "0.30.0rc2",
}  # fmt: skip


@pytest.mark.all_releases
@pytest.mark.parametrize(("vllm", "ascend"), OTHER_PAIRS.items(), ids=str)
def test_every_pair_agrees(tree_factory, vllm: str, ascend: str) -> None:
    """No guard of any release calls its operator with a wrong value, and none is left out."""
    root = tree_factory(vllm=vllm, ascend=ascend)
    done = apply([root], Options(install_kernels=True))
    standing = [f for tree in done.trees for f in tree.findings if f.state == "applied"]
    trials = rehearsal.rehearse(trees.find([root]), None)
    assert len(trials) == len(standing) >= 4
    assert [t for t in trials if not t.ran or not t.good] == []


@pytest.mark.trees
@pytest.mark.parametrize(("vllm", "ascend"), [*demo.PAIRS.items(), ("0.12.0", None)], ids=str)
def test_released_pairs_agree(tree_factory, vllm: str, ascend: str | None) -> None:
    root = tree_factory(vllm=vllm, ascend=ascend)
    apply([root], Options(install_kernels=True))
    trials = rehearsal.rehearse(trees.find([root]), None)
    assert len(trials) == (5 if ascend else 3)
    assert [t for t in trials if not t.ran or not t.good] == []
