"""The demo: the carried tree stays as it is made, the real pairs go the same way, a failure is told."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from glm_pto.cli import demo, fetch


def test_the_carried_tree_compiles_and_has_a_crlf_file(tree: Path) -> None:
    files = sorted(tree.rglob("*.py"))
    for file in files:
        ast.parse(file.read_bytes())
    endings = {f.name: f.read_bytes().count(b"\r\n") for f in files if f.read_bytes().count(b"\r\n")}
    assert list(endings) == [demo.CRLF]


def test_the_tree_is_kept_where_asked(run, tmp_path: Path) -> None:
    answer = run("demo", "--keep", "play")
    assert answer.returncode == 0 and "The tree is left in" in answer.stdout
    assert (tmp_path / "play" / demo.TREE / "vllm" / "__init__.py").is_file()


def test_a_folder_that_is_there_is_not_overwritten(run, tmp_path: Path) -> None:
    (tmp_path / "play" / demo.TREE).mkdir(parents=True)
    answer = run("demo", "--keep", "play")
    assert answer.returncode == 2 and "exists" in answer.stderr


def test_a_release_that_cannot_be_had_is_a_failure_in_words(run, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise fetch.FetchError("vllm 0.12.0: no index here; set one up for pip")

    monkeypatch.setattr(fetch, "pair", refuse)
    answer = run("demo", "--release", "0.12.0")
    assert (answer.returncode, answer.stderr) == (
        4,
        "glm-pto demo: vllm 0.12.0: no index here; set one up for pip\n",
    )


@pytest.mark.trees
@pytest.mark.parametrize("release", sorted(demo.PAIRS))
def test_the_whole_job_on_a_released_pair(run, process, released, release: str) -> None:
    """All five sites, 25 proofs, every file of both packages back to the byte."""
    for name, version in (("vllm", release), ("vllm-ascend", demo.PAIRS[release])):
        released(name, version)
    shown = process("demo", "--release", release)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert "glm-pto apply: exit=0 action=applied trees=1 applied=5" in lines
    assert "glm-pto verify: exit=0 proved=25" in lines
    assert "glm-pto revert: exit=0 action=reverted trees=1 reverted=5" in lines
    assert lines[-1].endswith(" restored=true")


def test_a_step_that_fails_ends_the_demo_with_its_code_and_the_last_line(run, monkeypatch) -> None:
    monkeypatch.setattr(demo, "STEPS", (("Ask for what is not there.", ("status", "--site", "none")),))
    answer = run("demo")
    assert answer.returncode == 2
    assert answer.stdout.endswith("glm-pto status exited 2\nglm-pto demo: exit=2 failed=status\n")
