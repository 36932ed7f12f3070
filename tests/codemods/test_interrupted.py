"""What an interrupted run left is seen to once, and said, by every command: also by one that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm_pto import Refusal, WriteFailure, diff, revert
from glm_pto.cli import group, machine, rehearsal
from glm_pto.codemods import transaction, trees
from tests.cli.schema import faults as schema_faults
from tests.codemods import faults, planted
from tests.codemods.planted import FILE, GATE, MODEL, plant

SAID = "an interrupted run (process "
PASTED = MODEL.replace(GATE, "router_logits = glm_pto_kernels.gate(self.gate, hidden_states)")
COMMANDS = ["status", "apply", "revert", "diff", "verify", "verify --run", "doctor", "explain gate"]


@pytest.fixture(autouse=True)
def no_torch(monkeypatch) -> None:
    """What runs the operator layer in another process is not what is asked here, and takes seconds."""
    monkeypatch.setattr(machine, "choices", lambda *_: ())
    monkeypatch.setattr(
        rehearsal, "ask", lambda *given: [{"site": g["site"], "ran": False} for g in given[2]]
    )


def interrupt(
    root: Path,
    run: Callable[[Path], object] = planted.apply,
    undo: Callable[[Path], object] = planted.revert,
) -> None:
    """Leave the journal of a run that died as late as it could and be rolled back."""
    for at in range(faults.count(lambda: run(root)), 0, -5):
        undo(root)
        faults.killed(lambda: run(root), at)
        if (root / ".glm-pto/journal.json").exists():
            return
    pytest.fail("no death leaves a journal")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_looks_for_its_trees_once(tmp_path: Path, command: str, monkeypatch) -> None:
    plant(tmp_path)
    planted.apply(tmp_path)
    asked = []
    find = trees.find
    monkeypatch.setattr(trees, "find", lambda *given: asked.append(given) or find(*given))
    CliRunner().invoke(group, [*command.split(), str(tmp_path)])
    assert len(asked) == 1


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_a_command_that_is_refused_says_what_it_settled(tmp_path: Path, command: str) -> None:
    file = plant(tmp_path)
    interrupt(tmp_path)
    file.write_text(PASTED)
    done = CliRunner().invoke(group, [command, str(tmp_path)])
    assert done.exit_code == 3 and "pasted here by hand" in done.stderr
    assert done.stderr.count(SAID) == 1 and SAID not in done.stdout


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_a_refusals_document_says_what_was_settled(tmp_path: Path, command: str) -> None:
    file = plant(tmp_path)
    interrupt(tmp_path)
    file.write_text(PASTED)
    answer = json.loads(CliRunner().invoke(group, [command, "--json", str(tmp_path)]).stdout)
    assert answer["error"]["notes"][0].startswith(SAID)
    assert schema_faults("failure", answer) == []


def test_a_revert_that_is_refused_says_what_it_settled(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    edited = file.read_text().replace("glm_pto_kernels.gate(", "glm_pto_kernels.other(")
    interrupt(tmp_path, planted.revert, planted.apply)
    file.write_text(edited)
    with pytest.raises(Refusal, match="edited inside our lines") as refused:
        revert([tmp_path])
    assert refused.value.notes and refused.value.notes[0].startswith(SAID)


def test_a_run_that_fails_says_what_it_settled(tmp_path: Path, monkeypatch) -> None:
    plant(tmp_path)
    interrupt(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise WriteFailure("disk full; every file is as it was before")

    monkeypatch.setattr(transaction, "commit", full)
    done = CliRunner().invoke(group, ["apply", str(tmp_path)])
    assert done.exit_code == 4 and "disk full" in done.stderr
    assert done.stderr.count(SAID) == 1


def test_a_tree_that_cannot_be_settled_does_not_silence_the_one_before(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        plant(root)
        interrupt(root)
    (two / ".glm-pto/journal.json").write_bytes(b"{}")
    with pytest.raises(Refusal, match="journal that cannot be used") as refused:
        diff([one, two])
    assert refused.value.notes[0].startswith(SAID) and FILE in refused.value.notes[0]


@pytest.mark.parametrize("command", ["diff", "explain gate", "doctor", "status"])
def test_a_document_says_what_was_settled(tmp_path: Path, command: str) -> None:
    plant(tmp_path)
    interrupt(tmp_path)
    words = command.split()
    answer = CliRunner().invoke(group, [*words, "--json", str(tmp_path)])
    assert answer.stdout.count(SAID) == 1 and SAID not in answer.stderr
    assert schema_faults(words[0], json.loads(answer.stdout)) == []
