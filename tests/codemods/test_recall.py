"""What the last apply wrote down is used only while everything it rests on is the same."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from glm_pto import Options, State, apply, revert, status
from glm_pto.codemods import plan, recall, state, survey, trees
from glm_pto.codemods.findings import Finding, TreeReport

MODULE = """\
class Glm4MoE:
    def forward(self, hidden_states):
        router_logits, _ = self.gate(hidden_states)
        return router_logits
"""
FILE = "model_executor/models/glm4_moe.py"


@pytest.fixture
def root(tmp_path, monkeypatch):
    path = tmp_path / "vllm" / FILE
    path.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    path.write_text(MODULE)
    layer = tmp_path / "glm_pto_kernels"
    layer.mkdir()
    (layer / "__init__.py").write_text("def gate_supported(): ...\n")
    monkeypatch.setattr(recall, "_key", lambda tree: "key")
    apply([tmp_path], Options(skip=("attention_pre", "shared_expert")))
    return tmp_path


def remember(root):
    """Rewrite the state as a complete survey would have left it."""
    (tree,) = trees.find([root])
    files, spots = survey.survey(tree, survey.choose(Options(sites=("gate",))))
    note = recall.note(files, survey.choose(Options(sites=("gate",))), survey.report(files, spots))
    record = state.load(root).record
    (root / ".glm-pto/state.json").write_bytes(
        state.encode(replace(record, survey=json.loads(json.dumps(note))))
    )
    return tree


def rewrite(root, **different):
    """Rewrite parts of the survey that the state keeps."""
    record = state.load(root).record
    changed = replace(record, survey={**record.survey, **different})
    (root / ".glm-pto/state.json").write_bytes(state.encode(changed))


@pytest.fixture
def no_look(monkeypatch):
    def look(*_):
        raise AssertionError("the text was looked at")

    monkeypatch.setattr(plan, "survey", look)


def test_only_a_complete_survey_is_written_down(root):
    assert recall.recall(trees.find([root])[0]) is None


def test_status_and_apply_answer_from_it(root, request):
    before = status([root], Options(sites=("gate",))).trees[0]
    remember(root)
    request.getfixturevalue("no_look")
    report = status([root]).trees[0]
    assert report.findings == before.findings
    assert report.digest == before.digest
    again = apply([root])
    assert not again.changed
    assert [f.action.value for f in again.trees[0].findings] == ["unchanged"]


def edit_file(root):
    path = root / "vllm" / FILE
    path.write_text(path.read_text() + "# mine\n")


def remove_file(root):
    (root / "vllm" / FILE).unlink()


def folder_in_its_place(root):
    remove_file(root)
    (root / "vllm" / FILE).mkdir()


def new_version(root):
    (root / "vllm" / "_version.py").write_text("__version__ = '0.33.0'\n")


def torn_state(root):
    path = root / ".glm-pto" / "state.json"
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    "change",
    [edit_file, remove_file, folder_in_its_place, torn_state],
    ids=lambda f: f.__name__,
)
def test_any_change_is_looked_at(root, change):
    tree = remember(root)
    assert recall.recall(tree) is not None
    change(root)
    assert recall.recall(tree) is None


@pytest.mark.parametrize(
    "damage",
    [{"rows": [{"state": "no such state"}]}, {"rows": [7]}, {"looked": {}}, {"looked": [7]}, {"notes": 7}],
    ids=["state", "row", "nothing_looked_at", "looked", "notes"],
)
def test_what_is_no_survey_is_not_believed(root, damage):
    tree = remember(root)
    rewrite(root, **damage)
    assert recall.recall(tree) is None


def test_a_file_that_was_not_there_is_looked_at(root):
    tree = remember(root)
    looked = state.load(root).record.survey["looked"]
    rewrite(root, looked={**looked, "vllm/new.py": None, "vllm/__init__.py/no_folder.py": None})
    assert recall.recall(tree) is not None
    (root / "vllm/new.py").touch()
    assert recall.recall(tree) is None


def test_what_was_done_to_the_tree_is_told_once_and_not_remembered(root):
    tree = replace(remember(root), notes=("done",))
    assert recall.recall(tree).report.notes.count("done") == 1
    files, spots = survey.survey(tree, survey.choose(Options(sites=("gate",))))
    noted = replace(survey.report(files, spots), notes=("done", "kept"))
    assert recall.note(files, (), noted)["notes"] == ["kept"]


@pytest.mark.parametrize(
    ("rows", "finished"),
    [
        ([(State.APPLIED, ""), (State.ABSENT, "no such computation")], True),
        ([(State.APPLIED, "apply renews it")], False),
        ([(State.APPLIED, ""), (State.APPLICABLE, "")], False),
        ([(State.REINSTALLED, "")], False),
    ],
    ids=["applied_or_absent", "stale", "applicable", "reinstalled"],
)
def test_an_apply_has_nothing_to_do_where_all_is_applied_or_absent(tmp_path, rows, finished):
    found = tuple(Finding("gate", "gate", "vllm", kind, message=message) for kind, message in rows)
    assert recall.Memory(TreeReport(tmp_path, {}, found, ""), ()).finished is finished


def test_another_version_or_tool_is_looked_at(root, monkeypatch):
    tree = remember(root)
    monkeypatch.setattr(recall, "_key", lambda tree: "another")
    assert recall.recall(tree) is None


@pytest.mark.parametrize("name", ["recall.py", "recipes/gate.py"])
def test_the_key_holds_the_tools_own_text(root, monkeypatch, tmp_path, name):
    monkeypatch.undo()
    (tree,) = trees.find([root])
    file = tmp_path / "tool" / name
    (tmp_path / "tool/recipes").mkdir(parents=True)
    file.write_text("x = 1\n")
    monkeypatch.setattr(recall, "__file__", str(tmp_path / "tool/recall.py"))
    first = recall._key(tree)
    os.utime(file, ns=(0, 0))
    second = recall._key(tree)
    file.write_text("x = 12\n")
    os.utime(file, ns=(0, 0))
    assert len({first, second, recall._key(tree)}) == 3


def test_the_key_holds_the_packages_beside(root, monkeypatch):
    monkeypatch.undo()
    (tree,) = trees.find([root / "vllm"])
    beside = root / "vllm_ascend/__init__.py"
    beside.parent.mkdir()
    beside.touch()
    (joined,) = trees.find([root / "vllm"])
    assert recall._key(joined) != recall._key(tree)


def test_the_key_holds_versions(root, monkeypatch):
    monkeypatch.undo()
    (tree,) = trees.find([root])
    first = recall._key(tree)
    assert first == recall._key(tree)
    new_version(root)
    (tree,) = trees.find([root])
    assert recall._key(tree) != first


def test_a_missing_layer_is_told_although_all_is_applied(root, monkeypatch):
    remember(root)
    (root / "glm_pto_kernels" / "__init__.py").write_text("")
    from glm_pto import Refusal

    with pytest.raises(Refusal, match="lacks"):
        apply([root], Options(sites=("gate",)))
    with pytest.raises(Refusal, match="lacks"):
        apply([root], Options(skip=("attention_pre", "shared_expert")))


def test_revert_leaves_nothing_to_recall(root):
    remember(root)
    revert([root])
    (tree,) = trees.find([root])
    assert recall.recall(tree) is None
    assert status([root], Options(sites=("gate",))).trees[0].findings[0].state is State.APPLICABLE


@pytest.mark.parametrize(
    ("name", "mode"), [(".glm-pto", 0o777), (".glm-pto", 0o775), (".glm-pto/state.json", 0o666)]
)
def test_a_state_that_others_can_write_is_not_believed(root, name, mode):
    tree = remember(root)
    assert recall.recall(tree) is not None
    (root / name).chmod(mode)
    assert recall.recall(tree) is None
    assert any("others could have written it" in note for note in status([root]).trees[0].notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_state_of_another_user_is_not_believed(root):
    tree = remember(root)
    os.chown(root / ".glm-pto", 54321, 54321)
    assert recall.recall(tree) is None
