"""Requests that are odd but real: TREE in every shape, contradictory options, a layer that was edited."""

from __future__ import annotations

import compileall
import errno
import json
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import glm_pto
from glm_pto.codemods import disk, operations, reading, transaction, verify
from glm_pto.codemods.findings import FileChange

GATE = Path("vllm/model_executor/models/glm4_moe.py")


def texts(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_package_alone_is_not_remembered_as_the_whole_tree(run, tree: Path) -> None:
    assert "applied=2" in run("apply", tree / "vllm").stdout
    assert run("status", tree, "--check").returncode == 1
    assert "applied=3" in run("apply", tree).stdout
    assert "applied=5" in run("status", tree, "--check").stdout


def test_the_layer_stays_as_long_as_a_package_beside_is_guarded(run, tree: Path) -> None:
    before = texts(tree)
    run("apply", tree, "--install-kernels")
    told = run("revert", tree / "vllm").stdout
    assert "the copy of glm_pto_kernels stays: the guards of vllm_ascend import it" in told
    assert "vllm_ascend stands beside, but was not named: its sites are skipped" in told
    assert (tree / "glm_pto_kernels/__init__.py").is_file()
    assert "is taken out" in run("revert", tree / "vllm_ascend").stdout
    assert texts(tree) == before


def test_the_layer_stays_while_a_file_that_cannot_be_read_is_guarded(run, tree: Path) -> None:
    run("apply", tree, "--install-kernels", "--site", "gate", "--site", "shared_expert")
    with (tree / "vllm_ascend/ops/fused_moe/fused_moe.py").open("ab") as file:
        file.write(b"\0")
    assert run("revert", tree, "--site", "gate").returncode == 0
    assert (tree / "glm_pto_kernels/__init__.py").is_file()


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "state_lost"])
def test_guards_in_a_file_that_no_form_names_any_more_go_too(run, tree: Path, lost: bool) -> None:
    """As an older glm-pto may have left them, beside the ones of this version."""
    old = tree / "vllm/old_model.py"
    old.write_bytes((tree / GATE).read_bytes())
    before = texts(tree)
    run("apply", tree, "--install-kernels")
    change = FileChange(old, old.read_bytes(), (tree / GATE).read_bytes(), "vllm")
    transaction.commit(tree, [change], {"vllm": "0.12.0"}, "0.0.1")
    if lost:
        shutil.rmtree(tree / ".glm-pto")
    assert lost or "vllm/old_model.py" in run("verify", tree).stdout
    told = run("revert", tree).stdout
    assert "vllm/old_model.py: holds guards of another version of glm-pto, taken out too" in told
    assert texts(tree) == before


def test_one_tree_by_several_names_is_one(run, tree: Path, tmp_path: Path) -> None:
    before = texts(tree)
    (tmp_path / "link").symlink_to(tree)
    names = [tree, tmp_path / "link", tree / "vllm", tree / "vllm" / "..", tree / "vllm_ascend"]
    assert "trees=1 applied=5" in run("apply", *names).stdout
    assert "trees=1 reverted=5" in run("revert", *names).stdout
    assert texts(tree) == before


def test_a_tree_given_by_way_of_its_parent_is_edited(run, tree: Path, monkeypatch) -> None:
    monkeypatch.chdir(tree / "vllm")
    assert run("apply", "..").returncode == 0
    assert run("revert", f"../../{tree.name}/").returncode == 0


def test_an_empty_name_is_not_the_current_folder(run, tree: Path, monkeypatch) -> None:
    monkeypatch.chdir(tree)
    answer = run("apply", "")
    assert answer.returncode == 2
    assert "not set" in answer.stderr
    assert b"glm_pto" not in (tree / GATE).read_bytes()


def test_a_folder_that_is_gone_or_nobodys_is_told_in_words(run, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for name in (".", "..", "~no-such-user/tree"):
        answer = run("status", name)
        assert (answer.returncode, "name a full path" in answer.stderr) == (2, True)


def test_asking_for_a_site_and_skipping_it_is_no_success(run, tree: Path) -> None:
    answer = run("apply", tree, "--site", "gate", "--skip", "gate")
    assert answer.returncode == 2
    assert "no site is left" in answer.stderr


def test_another_python_is_not_asked_for_the_current_folder(run, tree: Path, monkeypatch) -> None:
    monkeypatch.chdir(tree)
    assert run("status", "--python", sys.executable).returncode == run("status").returncode == 2


def test_a_program_that_is_no_python_is_told_in_a_line(run) -> None:
    answer = run("status", "--python", "/bin/ls")
    assert answer.returncode == 2
    assert "find_spec" not in answer.stderr


def test_the_copied_layer_is_told_of(run, tree: Path) -> None:
    run("apply", tree)
    answer = run("apply", tree, "--install-kernels")
    assert "copy of glm_pto_kernels beside the packages is made" in answer.stdout
    assert "Nothing to do" not in answer.stdout
    assert "Nothing to do" in run("apply", tree, "--install-kernels").stdout


def test_a_copied_layer_that_was_edited_is_never_overwritten(run, tree: Path) -> None:
    run("apply", tree, "--install-kernels")
    mine = tree / "glm_pto_kernels" / "switches.py"
    mine.write_text(mine.read_text() + "# mine\n")
    answer = run("apply", tree, "--install-kernels")
    assert (answer.returncode, "switches.py" in answer.stderr) == (3, True)
    assert run("revert", tree).returncode == 3
    forced = run("revert", tree, "--force")
    assert forced.returncode == 0
    assert "switches.py: edited since" in forced.stdout
    assert mine.read_text().endswith("# mine\n")


def test_files_of_an_older_copy_go_with_the_renewal(run, tree: Path) -> None:
    run("apply", tree, "--install-kernels")
    layer = tree / "glm_pto_kernels"
    (layer / "gone.py").write_text("old\n")
    receipt = layer / "_copied_by_glm_pto.json"
    named = {**json.loads(receipt.read_bytes()), "gone.py": sha256(b"old\n").hexdigest()}
    receipt.write_text(json.dumps(named))
    assert "is renewed" in run("apply", tree, "--install-kernels").stdout
    assert not (layer / "gone.py").exists()


def test_a_damaged_receipt_is_told_and_nothing_changes(run, tree: Path) -> None:
    run("apply", tree, "--install-kernels")
    (tree / "glm_pto_kernels" / "_copied_by_glm_pto.json").write_text("{")
    before = texts(tree)
    for command in (("apply", tree, "--install-kernels"), ("revert", tree)):
        answer = run(*command)
        assert (answer.returncode, "_copied_by_glm_pto.json" in answer.stderr) == (3, True)
    assert texts(tree) == before
    assert "reverted=5" in run("revert", tree, "--force").stdout


def test_the_layer_of_the_tools_own_environment_does_not_count_for_another(run, tree: Path) -> None:
    other = tree.rename(tree.parent / "site-packages")
    answer = run("apply", other)
    assert (answer.returncode, "no glm_pto_kernels would be found" in answer.stderr) == (3, True)
    assert run("apply", other, "--install-kernels").returncode == 0
    assert run("verify", other).returncode == 0


def test_a_module_in_place_of_the_layer_is_named_itself(run, tree: Path) -> None:
    (tree / "glm_pto_kernels.py").write_text("USE_PTO_GATE = True\n")
    answer = run("apply", tree)
    assert answer.returncode == 3
    assert f"{tree}/glm_pto_kernels.py: this glm_pto_kernels lacks" in answer.stderr


@pytest.fixture
def edited(run, tree: Path) -> Path:
    """A tree in which our condition of the gate was changed by hand."""
    run("apply", tree)
    text = (tree / GATE).read_text()
    (tree / GATE).write_text(text.replace("USE_PTO_GATE and", "USE_PTO_GATE or"))
    return tree


def test_an_edited_guard_is_shown_where_the_message_says(run, edited: Path) -> None:
    assert "diff --applied" in run("revert", edited).stderr
    assert "+        if glm_pto_kernels.USE_PTO_GATE or" in run("diff", edited, "--applied").stdout


def test_forcing_an_edited_guard_out_is_reported(run, edited: Path) -> None:
    answer = run("revert", edited, "--force", "--site", "gate")
    assert "1 site taken out in 1 file." in answer.stdout
    assert "reverted=1" in answer.stdout
    assert "original ones again" not in answer.stdout  # four guards still stand


def test_a_guard_that_force_cannot_take_out_is_no_success(run, tree: Path) -> None:
    run("apply", tree)
    text = (tree / GATE).read_text()
    head, _, tail = text.partition("        else:\n            router_logits")
    (tree / GATE).write_text(head + tail[tail.index("\n") + 1 :])
    before = texts(tree)
    assert run("revert", tree, "--force").returncode == 3
    assert texts(tree) == before


def test_a_broken_file_without_guards_does_not_keep_the_others_from_reverting(run, tree: Path) -> None:
    run("apply", tree, "--site", "paged_attention")
    (tree / GATE).write_text("def broken(:\n")
    assert "reverted=1" in run("revert", tree).stdout


def test_an_edited_guard_does_not_refute_its_neighbour(run, edited: Path) -> None:
    rows = {line.split()[0]: line for line in run("verify", edited).stdout.splitlines() if "proved" in line}
    assert "attention_pre" in rows
    assert "gate" not in rows


def test_a_release_without_any_site_is_not_called_applied(run, tree: Path) -> None:
    for path in tree.rglob("*.py"):
        path.write_text("")
    assert "no site that is asked for is in this tree" in run("apply", tree).stdout


@pytest.mark.parametrize("words", [("apply", "--site", "nope"), ("frob",), ("apply", "--frob"), ("explain",)])
def test_a_wrong_request_ends_with_the_last_line_too(run, words: tuple[str, ...]) -> None:
    answer = run(*words)
    assert answer.returncode == 2
    assert answer.stdout.endswith(": exit=2 action=usage problems=1\n")
    assert "-h`" in answer.stderr
    document = json.loads(run(*words, "--json").stdout)
    assert document["error"]["exit"] == 2


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("--frob",), "command"),
        (("frob",), "command"),
        (("--frob", "status"), "status"),
        (("status", "--frob"), "status"),
        (("kernels", "list", "--frob"), "kernels list"),
    ],
)
def test_the_last_line_names_the_command_as_far_as_there_is_one(run, words: tuple[str, ...], command: str):
    assert run(*words).stdout == f"glm-pto {command}: exit=2 action=usage problems=1\n"


@pytest.mark.parametrize("command", ["apply", "revert", "diff", "status", "verify"])
def test_the_python_that_is_named_is_the_one_that_is_asked(
    run, tree: Path, monkeypatch, command: str
) -> None:
    run("apply", tree)
    owner, function = (verify, "verify") if command == "verify" else (glm_pto, command)
    asked: list[Path] = []
    plain = getattr(owner, function)

    def called(*arguments: Any, python: Path | None = None, **rest: Any) -> Any:
        asked.append(python)
        return plain(*arguments, python=python, **rest)

    monkeypatch.setattr(owner, function, called)
    assert run(command, tree, "--python", sys.executable).returncode == 0
    assert asked == [Path(sys.executable)]


def test_ctrl_c_is_no_difference(run, tree: Path, monkeypatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(glm_pto, "status", interrupt)
    answer = run("status", tree, "--check")
    assert (answer.returncode, answer.stdout) == (
        130,
        "glm-pto status: exit=130 action=interrupted problems=1\n",
    )


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_two_runs_at_once_both_end_well(run, tree: Path, monkeypatch, command: str) -> None:
    if command == "revert":
        run("apply", tree)
    plain = operations._run

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(operations, "_run", plain)
        getattr(glm_pto, command)([tree])  # another run gets in between our look and our turn
        return plain(*arguments)

    monkeypatch.setattr(operations, "_run", late)
    answer = run(command, tree)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "action=unchanged" in answer.stdout


def test_a_file_that_may_not_be_read_may_hold_a_guard(run, tree: Path, monkeypatch) -> None:
    run("apply", tree)
    plain = reading.load

    def load(path: Path, *bound: int) -> bytes:
        if path.name == GATE.name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path, *bound)

    monkeypatch.setattr(reading, "load", load)
    answer = run("revert", tree)
    assert answer.returncode == 3
    assert answer.stderr.count("cannot be read") == 1


def test_a_hidden_folder_of_another_user_does_not_stop_status(run, tree: Path, monkeypatch) -> None:
    run("apply", tree)
    plain = disk.Folders.open

    def opened(self: disk.Folders, real: Path) -> int:
        if real.name == ".glm-pto":
            raise PermissionError(errno.EACCES, "Permission denied", str(real))
        return plain(self, real)

    monkeypatch.setattr(disk.Folders, "open", opened)
    assert run("status", tree, "--check").returncode == 0


EDITED_ELSE = {
    "another value": (
        "            routed_scaling_factor=1,",
        "            routed_scaling_factor=2,",
        "apply renews it",
    ),
    "another call": ("_ = torch_npu.npu_moe_gating_top_k(", "_ = my_choice(", "fits no known form"),
}


@pytest.mark.parametrize(("old", "new", "words"), EDITED_ELSE.values(), ids=EDITED_ELSE.keys())
def test_an_else_branch_that_was_edited_is_told_and_fails_the_check(
    run, tree: Path, old: str, new: str, words: str
) -> None:
    run("apply", tree)
    path = tree / "vllm_ascend/ops/fused_moe/experts_selector.py"
    text = path.read_bytes().decode()
    assert text.count(old) == 1
    path.write_bytes(text.replace(old, new).encode())
    answer = run("status", tree, "--check")
    assert (answer.returncode, words in answer.stdout) == (1, True)


def test_apply_renews_a_guard_whose_else_branch_was_edited(run, tree: Path) -> None:
    path = tree / "vllm_ascend/ops/fused_moe/experts_selector.py"
    old, new = b"routed_scaling_factor=1,", b"routed_scaling_factor=2,"
    original = path.read_bytes()
    run("apply", tree)
    applied = path.read_bytes()
    assert (original.count(old), applied.count(old)) == (1, 1)
    path.write_bytes(applied.replace(old, new))
    answer = run("apply", tree)
    assert (answer.returncode, "renewed" in answer.stdout) == (0, True)
    assert run("status", tree, "--check").returncode == 0
    renewed = path.read_bytes()
    assert renewed != applied and renewed.count(new) == 1
    run("apply", tree)
    assert path.read_bytes() == renewed
    run("revert", tree)
    assert path.read_bytes() == original.replace(old, new)


def test_of_several_trees_every_problem_names_its_own(run, tree: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tree, tmp_path / "other"))
    for root in (tree, other):
        text = (root / GATE).read_text()
        (root / GATE).write_text(text.replace("self.gate(hidden_states.to(", "self.other(hidden_states.to("))
    told = run("apply", tree, other).stderr
    assert all(f"glm-pto apply: {root}: {GATE}: " in told for root in (tree, other))


def test_a_second_definition_of_the_reviewed_class_is_not_reviewed(run, tree: Path) -> None:
    again = "\n\nclass Glm4MoeAttention(Glm4MoeAttention):\n    def forward(self, x):\n        return x\n"
    (tree / GATE).write_text((tree / GATE).read_text() + again)
    answer = run("apply", tree)
    assert (answer.returncode, "is not the reviewed text any more" in answer.stderr) == (3, True)


def test_compiled_files_of_a_removed_layer_are_not_missed(run, tree: Path) -> None:
    run("apply", tree, "--install-kernels")
    compileall.compile_dir(tree / "glm_pto_kernels", quiet=2)
    answer = run("revert", tree)
    assert "not made again" not in answer.stdout
    assert not (tree / "glm_pto_kernels").exists()


def test_every_public_name_is_there() -> None:
    assert all(getattr(glm_pto, name) is not None for name in glm_pto.__all__)


def test_one_path_instead_of_a_list_is_one_tree(tree: Path) -> None:
    assert [t.root for t in glm_pto.status(str(tree)).trees] == [tree]
    assert [t.root for t in glm_pto.status(tree).trees] == [tree]  # type: ignore[arg-type]


def test_an_unknown_kind_of_difference_is_no_empty_answer(tree: Path) -> None:
    with pytest.raises(glm_pto.UsageError, match="choose from"):
        glm_pto.diff([tree], which="aplied")  # type: ignore[arg-type]
