"""What is printed: JSON by the schema, one last line, colour on terminals only, no escape out of a tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest
from rich.style import Style

import glm_pto
from glm_pto.cli import COMMANDS, demo, proof, rehearsal, text
from glm_pto.codemods import verify
from glm_pto.codemods.findings import Action, Finding, State, TreeReport
from tests.cli.schema import faults

LAST = re.compile(r"^glm-pto [a-z]+: exit=\d( [a-z_]+=\S+)*$")
DOCUMENTS = {
    "status": ("status", "{tree}"),
    "edit": ("apply", "{tree}", "--dry-run", "--install-kernels"),
    "diff": ("diff", "{tree}"),
    "sites": ("sites",),
    "explain": ("explain", "gate", "{tree}"),
    "doctor": ("doctor", "{tree}"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_json_is_what_the_schema_says(run, tree: Path, name: str) -> None:
    answer = run(*(a.format(tree=tree) for a in DOCUMENTS[name]), "--json")
    assert (answer.returncode, answer.stderr, answer.stdout.count("\n")) == (0, "", 1)
    assert faults(name, json.loads(answer.stdout)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda row: row.update(state="gone"), "'gone' is none of"),
        (lambda row: row.pop("message"), "no 'message'"),
        (lambda row: row.update(line="3"), "'3' is no"),
        (lambda row: row.update(extra=1), "unknown 'extra'"),
    ],
)
def test_the_schema_refuses_other_documents(run, tree: Path, change, fault: str) -> None:
    document = json.loads(run("status", tree, "--json").stdout)
    change(document["trees"][0]["sites"][0])
    assert [f for f in faults("status", document) if fault in f]


@pytest.mark.parametrize(("arguments", "code"), [(("status", "nowhere"), 2), (("verify", "{tree}"), 2)])
def test_json_of_a_failure_says_why(run, tree: Path, arguments: tuple[str, ...], code: int) -> None:
    answer = run(*(a.format(tree=tree) for a in arguments), "--json")
    document = json.loads(answer.stdout)
    assert (answer.returncode, document["error"]["exit"], bool(document["error"]["problems"])) == (
        code,
        code,
        True,
    )
    assert faults(arguments[0], document) == []


@pytest.mark.parametrize("arguments", [("status",), ("apply", "--dry-run", "--install-kernels"), ("revert",)])
def test_the_last_line_is_for_machines_and_alone_when_quiet(
    run, tree: Path, arguments: tuple[str, ...]
) -> None:
    loud, quiet = run(*arguments, tree), run(*arguments, tree, "--quiet")
    assert LAST.match(loud.stdout.splitlines()[-1])
    assert quiet.stdout.splitlines() == loud.stdout.splitlines()[-1:]


def test_a_refusal_names_every_problem_and_ends_with_the_last_line(run, tree: Path) -> None:
    for name in ("attention/attention_v1.py", "ops/fused_moe/fused_moe.py"):
        file = tree / "vllm_ascend" / name
        file.write_text(
            file.read_text().replace("self._shared_experts(", "self.other(").replace("_paged_", "_odd_")
        )
    answer = run("apply", tree, "--install-kernels")
    assert answer.returncode == 3
    assert "paged_attention" in answer.stderr and "shared_expert" in answer.stderr
    assert answer.stdout.splitlines()[-1] == "glm-pto apply: exit=3 action=refused problems=2"


def test_status_check_asks_for_every_site(run, tree: Path) -> None:
    assert [run("status", tree).returncode, run("status", tree, "--check").returncode] == [0, 1]
    run("apply", tree, "--install-kernels", "--skip", "gate")
    assert "The check fails: applicable (gate)." in run("status", tree, "--check").stdout
    assert run("status", tree, "--check", "--skip", "gate").returncode == 0


def test_status_check_asks_for_the_layer(run, tree: Path, tmp_path: Path, monkeypatch) -> None:
    """Without it the edited modules cannot be imported, and vLLM does not start."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bare = tmp_path / "bare"
    venv.create(bare)  # it has no glm_pto_kernels
    python = ("--python", bare / "bin/python")
    run("apply", tree, *python, "--install-kernels")
    assert run("status", tree, *python, "--check").returncode == 0
    shutil.rmtree(tree / "glm_pto_kernels")
    answer = run("status", tree, *python, "--check")
    assert answer.returncode == 1
    assert "The check fails: " in answer.stdout and "no glm_pto_kernels would be found" in answer.stdout
    assert run("status", tree, *python).returncode == 0


def test_a_site_that_the_release_has_not_is_absent_and_not_unchanged(run, tree: Path) -> None:
    shutil.rmtree(tree / "vllm")
    (tree / "vllm_ascend/ops/fused_moe/fused_moe.py").unlink()
    first = run("apply", tree).stdout
    assert "shared_expert    absent   -" in first and first.endswith("absent=1\n")
    assert run("apply", tree).stdout.endswith("action=unchanged trees=1 unchanged=2 absent=1\n")


@pytest.mark.parametrize(
    "command", [("explain", "attention_pre"), ("apply", "--require", "reached"), ("status",)]
)
def test_when_a_place_is_reached_is_not_said_as_the_reason_why_it_is_not(run, tree: Path, command) -> None:
    shutil.rmtree(tree / "vllm_ascend")
    answer = run(*command, tree)
    said = " ".join((answer.stdout + answer.stderr).split())
    assert "is reached with vllm-ascend beside vllm" in said
    assert "decode step does not run through it: with" not in said and "step here: with" not in said


def test_apply_refuses_what_is_not_reached_only_where_that_is_required(run, tree: Path) -> None:
    shutil.rmtree(tree / "vllm_ascend")
    refused = run("apply", tree, "--require", "reached")
    assert refused.returncode == 3 and refused.stdout.endswith("exit=3 action=refused problems=1\n")
    assert run("apply", tree).returncode == 0


def test_what_the_release_has_not_need_not_be_reached(run, tree: Path) -> None:
    shutil.rmtree(tree / "vllm")
    (tree / "vllm_ascend/ops/fused_moe/fused_moe.py").unlink()
    assert run("apply", tree, "--require", "reached").returncode == 0
    assert run("status", tree, "--require", "reached", "--check").returncode == 0


def test_where_the_files_do_not_tell_nothing_is_said_to_be_reached(run, tree: Path) -> None:
    for info in tree.glob("vllm_ascend-*"):
        shutil.rmtree(info)
    told = run("status", tree).stdout
    assert "paged_attention: * may be reached: the version of vllm-ascend is unknown" in told


def test_status_require_reached_fails_where_a_decode_step_does_not_pass(run, tree: Path) -> None:
    """Without vllm-ascend nothing runs vllm's own shared expert in W8A8; the gate is on every path."""
    assert run("status", tree, "--require", "reached").returncode == 0
    shutil.rmtree(tree / "vllm_ascend")
    failed = run("status", tree, "--require", "reached")
    assert failed.returncode == 1 and "The check fails: not reached (attention_pre" in failed.stdout
    assert run("status", tree, "--require", "reached", "--site", "gate").returncode == 0


@pytest.mark.parametrize("encoding", [{"LC_ALL": "C"}, {"PYTHONUTF8": "0", "LC_ALL": "POSIX"}])
def test_no_locale_breaks_it_on_odd_paths(process, tree: Path, encoding: dict[str, str]) -> None:
    odd = tree.rename(tree.parent / os.fsdecode("\u0431\udcff \u00fc".encode("utf-8", "surrogateescape")))
    for command in ("status", "diff"):
        answer = process(command, odd, **encoding)
        assert (answer.returncode, answer.stderr) == (0, "")


def test_a_reader_that_leaves_is_no_error(tree: Path) -> None:
    command = f"{sys.executable} -m glm_pto.cli diff {tree}; echo code $? >&2"
    for shell in (f"({command}) | head -n 1", f"({command}) >&-"):
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
        assert done.stderr == "code 0\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(("command", "code"), [("status", 4), ("apply --install-kernels", 0)])
def test_an_output_that_cannot_be_written_is_told(run, tree: Path, command: str, code: int) -> None:
    """apply has done its work by then, and 4 would say that it was taken back."""
    line = f"{sys.executable} -m glm_pto.cli {command} {tree} > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.returncode, "No space left on device" in done.stderr) == (code, True)
    assert "Traceback" not in done.stderr
    assert run("status", tree, "--check").returncode == (1 if code else 0)


def test_an_interrupt_is_told_and_has_a_code_of_its_own(run, tree: Path, monkeypatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("glm_pto.codemods.operations.status", interrupt)
    answer = run("status", tree)
    assert (answer.returncode, answer.stdout) == (
        130,
        "glm-pto status: exit=130 action=interrupted problems=1\n",
    )
    assert "every file is as it was" in answer.stderr


def test_nothing_in_a_tree_can_steer_the_terminal(run, terminal, tree: Path) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\u202e"
    root = tree.rename(tree.parent / f"net{evil}")
    file = root / "vllm_ascend" / "ops" / "fused_moe" / "fused_moe.py"
    file.write_text(file.read_text().replace("# may run on a stream of its own", f"# {evil}"), newline="")
    for command in (("status",), ("explain", "shared_expert"), ("diff", "--no-pager"), ("diff", "--stat")):
        shown = terminal(*command, root)
        assert "\x1b[2J" not in shown and "\x1b]" not in shown and "\u202e" not in shown
    assert "\\x1b" in run("status", root).stdout


def test_colour_is_for_terminals_and_can_be_asked_for_or_not(run, terminal, tree: Path) -> None:
    assert "\x1b[" in terminal("status", tree)
    assert "\x1b[" not in terminal("status", tree, NO_COLOR="1")
    assert "\x1b[" not in terminal("status", tree, "--color", "never")
    assert "\x1b[" not in terminal("status", tree, TERM="dumb")
    assert "\x1b[" in terminal("diff", tree, "--no-pager")
    assert "\x1b[" not in terminal("diff", tree, "--no-pager", "--color", "never")
    assert "\x1b[" not in run("status", tree).stdout
    assert "\x1b[" in run("status", tree, "--color", "always").stdout


def test_side_view_shows_what_was_and_what_is_ours(terminal, tree: Path) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal("diff", tree, "--site", "gate", "--no-pager"))
    assert "self.gate(hidden_states.to(dtype=torch.float32))" in shown
    assert "gate_supported(self.gate" in re.sub(r"\s", "", shown)
    assert "@@" not in shown


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "--binary", "-s"]], ids=["git", "patch"])
def test_the_patch_applies_with_other_tools(run, tree: Path, tool: list[str]) -> None:
    """The file with CRLF endings included: what the tool makes is what apply would make."""
    if not shutil.which(tool[0]):
        pytest.skip(f"no {tool[0]} here")
    assert run("diff", tree, "--output", "p.patch").returncode == 0
    subprocess.run([*tool, *(["-i"] if tool[0] == "patch" else []), "../p.patch"], cwd=tree, check=True)
    again = run("diff", tree, "--pending")
    assert (again.returncode, again.stdout) == (0, "")
    selector = (tree / "vllm_ascend" / "ops" / "fused_moe" / "experts_selector.py").read_bytes()
    assert b"glm_pto_kernels.select_experts(" in selector and selector.count(b"\n") == selector.count(b"\r\n")
    assert run("diff", tree, "--exit-code", "--quiet").returncode == 1


def test_the_commands_that_are_recommended_name_the_same_tree(run, tree: Path) -> None:
    """Without the TREE they would speak of this environment's own packages."""
    odd = tree.rename(tree.parent / "glm net")
    assert "`glm-pto apply 'glm net'` does it" in run("status", odd.name).stdout
    by_python = run("status", odd.name, "--python", sys.executable).stdout
    assert f"`glm-pto apply 'glm net' --python {sys.executable}` does it" in by_python
    shown = run("apply", odd.name, "--install-kernels").stdout
    assert "`glm-pto diff --applied 'glm net'`" in shown and "`glm-pto revert 'glm net'`" in shown


def test_a_dry_run_says_what_would_be_and_not_what_is(run, tree: Path) -> None:
    planned = run("apply", tree, "--install-kernels", "--dry-run").stdout
    assert "would be" in planned.splitlines()[1] and "would be made" in planned and " is made" not in planned
    done = run("apply", tree, "--install-kernels").stdout
    assert "state" in done.splitlines()[1] and " is made" in done


def test_what_holds_for_several_sites_of_a_file_is_said_once(run, tree: Path) -> None:
    run("apply", tree, "--install-kernels")
    for folder in tree.glob("[!.]*"):
        shutil.rmtree(folder)
    demo.write(tree)  # what a reinstall does
    told = [line for line in run("status", tree).stdout.splitlines() if "since the last apply" in line]
    assert len(told) == 4 and told[0].startswith(
        "  attention_pre, gate: vllm/model_executor/models/glm4_moe.py"
    )
    assert "Not guarded before" not in run("status", tree).stdout


def test_what_was_left_out_before_an_upgrade_is_named_after_it(run, tree: Path) -> None:
    skips = ("--skip", "gate", "--skip", "paged_attention")
    run("apply", tree, "--install-kernels", *skips)
    assert "Not guarded before" not in run("status", tree).stdout
    for folder in tree.glob("[!.]*"):
        shutil.rmtree(folder)
    demo.write(tree)  # what a reinstall does
    told = run("status", tree).stdout
    named = (
        "Not guarded before the upgrade: gate, paged_attention; `--skip gate --skip paged_attention` leaves"
    )
    assert named in told
    assert "Not guarded before" not in run("status", tree, *skips).stdout


def test_what_verify_cannot_decide_is_said_once_and_of_which_trees(run, tree: Path) -> None:
    nothing = run("verify", tree)
    assert (nothing.returncode, nothing.stderr.startswith(f"glm-pto verify: {tree}: there is no guard")) == (
        2,
        True,
    )
    run("apply", tree, "--install-kernels")
    shutil.rmtree(tree / ".glm-pto")
    told = [line for line in run("verify", tree).stdout.splitlines() if "not recorded" in line]
    sites = "attention_pre, gate, paged_attention, select_experts, shared_expert"
    assert told == [f"  {sites}: bytes: the bytes from before the first apply are not recorded"]


def test_verify_says_what_to_do_without_a_layer_or_with_an_edited_guard(run, tree: Path, monkeypatch) -> None:
    run("apply", tree, "--install-kernels")
    model = tree / "vllm/model_executor/models/glm4_moe.py"
    model.write_text(model.read_text().replace("gate(self.gate, hidden_states)\n", "gate(self.gate, None)\n"))
    assert f"`glm-pto explain SITE {tree}` tells more" in run("verify", tree).stdout
    assert f"See `glm-pto diff --applied {tree}`, then" in run("revert", tree).stderr
    run("revert", tree, "--force")
    run("apply", tree, "--install-kernels")
    monkeypatch.setattr(verify.kernels, "find", lambda *_, **__: None)
    assert "install glm-pto where it runs, or apply with --install-kernels" in run("verify", tree).stdout


def test_the_document_of_verify_says_what_is_refuted(run, tree: Path) -> None:
    run("apply", tree, "--site", "gate")
    sound = json.loads(run("verify", tree, "--json").stdout)
    assert (sound["proved"], {c["site"] for c in sound["checks"]}, sound["trials"]) == (True, {"gate"}, [])
    model = tree / "vllm/model_executor/models/glm4_moe.py"
    model.write_text(model.read_text().replace("gate(self.gate, hidden_states)\n", "gate(self.gate, None)\n"))
    answer = run("verify", tree, "--json")
    told = json.loads(answer.stdout)
    refuted = [c for c in told["checks"] if c["ok"] is False]
    assert answer.returncode == 3 and not told["proved"] and refuted
    assert {(c["root"], c["file"]) for c in refuted} == {(str(tree), str(model.relative_to(tree)))}


def test_what_must_be_restarted_is_what_was_changed(run, tree: Path, tmp_path: Path) -> None:
    assert "restart vLLM to load it" in run("apply", tree, "--install-kernels").stdout
    backend = tmp_path / "wall-x/wall_x/fusions/backend.py"
    backend.parent.mkdir(parents=True)
    for folder in (backend.parent, backend.parent.parent):
        (folder / "__init__.py").touch()
    backend.write_text("import wallx_csrc as backend\n")
    assert "restart wall-x to load it" in run("apply", tmp_path / "wall-x", "--install-kernels").stdout
    assert "wall-x runs through it" in run("explain", "wallx_backend", tmp_path / "wall-x").stdout


def test_a_diff_without_a_difference_says_so_beside_the_empty_patch(run, tree: Path) -> None:
    answer = run("diff", tree, "--applied")
    assert (answer.returncode, answer.stdout) == (0, "") and "no difference to show" in answer.stderr
    assert run("diff", tree, "--applied", "--quiet").stderr == ""


def test_a_diff_of_what_is_applied_is_not_taken_for_pending(run, tree: Path) -> None:
    assert run("diff", tree).stderr == ""
    run("apply", tree)
    for options in ((), ("--stat",)):
        assert "nothing is pending; this is what is applied" in run("diff", tree, *options).stderr
    assert run("diff", tree, "--applied").stderr == ""
    assert run("diff", tree, "--quiet").stderr == ""
    (shown,) = json.loads(run("diff", tree, "--json").stdout)["trees"]
    assert shown["which"] == "applied"
    run("revert", tree)
    (shown,) = json.loads(run("diff", tree, "--json").stdout)["trees"]
    assert shown["which"] == "pending"


def test_a_diff_of_several_trees_says_which_file_is_whose(run, terminal, tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tree, other)
    lines = run("diff", tree, other, "--stat").stdout.splitlines()
    assert (lines[0], lines[5]) == (str(tree), str(other)) and lines[10].startswith(" 8 files")
    shown = terminal("diff", tree, other, "--no-pager", "--color", "never").splitlines()
    assert str(tree) in shown and str(other) in shown
    assert str(tree) not in run("diff", tree, "--stat").stdout
    one = run("diff", tree, "--site", "paged_attention", "--stat").stdout.splitlines()
    assert len(one) == 2 and one[1].startswith(" 1 file, ")


def test_what_diff_did_before_is_said_beside_the_patch_and_not_in_a_document(
    run, tree: Path, monkeypatch
) -> None:
    plain = glm_pto.diff
    monkeypatch.setattr(glm_pto, "diff", lambda *a, **k: replace(plain(*a, **k), notes=("rolled back",)))
    assert run("diff", tree).stderr == "glm-pto diff: rolled back\n"
    assert run("diff", tree, "--json").stderr == ""


def place(site: str, state: State, **told) -> Finding:
    return Finding(site, "Class.method", "vllm", state, **told)


@pytest.mark.parametrize(
    ("found", "reached", "where"),
    [
        (
            place("gate", State.APPLIED, file="a.py", line=3, reached=True, reached_when="with it"),
            "yes",
            "a.py:3",
        ),
        (place("gate", State.APPLIED, file="a.py", reached=False, reached_when="with it"), "no*", "a.py"),
        (place("gate", State.APPLIED, file="a.py", reached=False), "no", "a.py"),
        (place("gate", State.MOVED, reached_when="with it"), "?*", "vllm"),
        (place("gate", State.ABSENT, reached=True, reached_when="with it"), "-", "vllm"),
    ],
    ids=["reached", "in_other_settings", "never", "unknown", "absent"],
)
def test_a_star_refers_to_a_remark(found: Finding, reached: str, where: str) -> None:
    assert text.row(found) == ("gate", found.state.value, reached, where)


def test_a_check_asks_what_it_was_asked_for(tmp_path: Path) -> None:
    applied = TreeReport(tmp_path, {}, (place("gate", State.APPLIED, reached=False),))
    open_ = TreeReport(tmp_path, {}, (place("gate", State.APPLICABLE, reached=True),))
    both = (applied, open_)
    asked = [text.shortfall(both, *which) for which in ((True, False), (False, True), (False, False))]
    assert asked == ["The check fails: applicable (gate).", "The check fails: not reached (gate).", ""]


def test_a_site_that_was_guarded_elsewhere_was_not_left_out(tmp_path: Path) -> None:
    rows = [place("gate", State.REINSTALLED), place("gate", State.APPLICABLE)]
    assert text.left_out([TreeReport(tmp_path, {}, tuple(rows))]) == ""
    rows.append(place("shared_expert", State.APPLICABLE))
    assert "upgrade: shared_expert; `--skip shared_expert`" in text.left_out(
        [TreeReport(tmp_path, {}, tuple(rows))]
    )


def checks(*found: tuple[str, bool | None, str]) -> list[verify.Check]:
    return [verify.Check(Path(), "gate", "a.py", 3, name, ok, detail) for name, ok, detail in found]


def test_verify_says_how_much_was_proved_and_what_was_not() -> None:
    fine = checks(("bytes", True, "told"), ("names", True, ""))
    assert proof.summary(fine).startswith("1 guard, 2 checks, none refuted: ")
    assert proof.summary(fine).endswith("leaves the original program.")
    open_ = [*fine, *checks(("layer", None, "why")), replace(fine[0], line=9)]
    assert proof.summary(open_).startswith("2 guards, 4 checks, none")
    assert proof.summary(open_).endswith(" 1 could not be decided here, see above.")
    assert "1 refuted; `glm-pto explain SITE ./t`" in proof.summary(checks(("bytes", False, "")), " ./t")
    assert proof.remarks(open_, verbose=False) == ["gate: layer: why"]
    assert proof.remarks(open_, verbose=True) == ["gate: bytes: told", "gate: layer: why"]
    assert proof.table(open_)[1] == [
        ("gate", "proved", "ok", "ok", "?", "a.py:3"),
        ("gate", "proved", "ok", "-", "-", "a.py:9"),
    ]


def test_a_trial_has_its_numbers_or_why_it_was_not_run() -> None:
    ran = rehearsal.Trial(Path(), "gate", "a.py", 3, True, calls=1, on=0.25, allowed=0.5)
    wrong = [replace(ran, off=0.1), replace(ran, on=0.6), replace(ran, calls=2), replace(ran, calls=0)]
    assert ran.good and not any(one.good for one in wrong)
    rows = proof.trials(
        [replace(ran, ran=False, detail="no layer", line=9), replace(ran, line=5, on=0.6), ran]
    )[1]
    assert rows == [
        ("gate", "agrees", "0", "0.25", "0.5", "1", "a.py:3"),
        ("gate", "differs", "0", "0.6", "0.5", "1", "a.py:5"),
        ("gate", "not run", "-", "-", "-", "-", "no layer"),
    ]


def test_every_colour_is_one() -> None:
    assert all(Style.parse(colour) for colour in text.COLORS.values())
    states = {state.value for state in State} | {action.value for action in Action}
    assert states <= {*text.COLORS}


def test_a_table_fits_a_narrow_terminal_where_its_last_column_is_words(terminal, run) -> None:
    shown = terminal("sites", "--color", "never", COLUMNS="80").replace("\r", "").splitlines()
    assert max(map(len, shown)) <= 80
    assert shown[1].startswith("  attention_pre  ") and shown[2].startswith(" " * 60)
    assert sorted(" ".join(shown).split()) == sorted(run("sites").stdout.split())
    assert len(run("sites").stdout.splitlines()) < len(shown)


def test_quiet_and_verbose_are_offered_where_they_change_the_output(run, tree: Path) -> None:
    def said(*words: str | Path) -> str:
        run("apply", tree)
        return run(*words).stdout

    for name in COMMANDS:
        offered = run(name, "-h").stdout
        words = [name, *(["gate"] if name == "explain" else []), *([] if name == "sites" else [tree])]
        for flag in (flag for flag in ("--quiet", "--verbose") if flag in offered):
            assert said(*words, flag) != said(*words), f"{name} {flag}"


def test_verify_says_what_its_columns_prove_where_more_is_asked_for(run, tree: Path) -> None:
    run("apply", tree)
    told = [line.strip() for line in run("verify", tree, "--verbose").stdout.splitlines()]
    for name, words in verify.CHECKS.items():
        assert f"{name}: {words}" in told
    assert "without the guard" not in run("verify", tree).stdout


def test_verify_counts_guards_and_checks_in_the_order_of_status(run, tree: Path) -> None:
    run("apply", tree, "--install-kernels")
    lines = run("verify", tree).stdout.splitlines()
    sites = [line.split()[0] for line in lines if " proved " in line]
    assert sites == sorted(sites) and len(sites) == 5
    assert lines[-2].startswith("5 guards, 25 checks, none refuted")
