"""Another Python is asked in a process of its own; whatever it answers, the user gets a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm_pto.cli import group
from glm_pto.codemods import interpreter

COMMANDS = ["status", "apply", "revert", "diff", "verify", "doctor", "explain gate"]


def program(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("true", r"\(it answered ''\)"),
        ("echo hello", r"\(it answered 'hello'\)"),
        ("exit 7", r"\(it ended with 7\)"),
        ("echo first >&2; echo 'no module' >&2; exit 1", r"\(no module\)"),
        ("printf '\\377\\n'", r"\(it answered '.'\)"),
        ("exec sleep 60", r"\(no answer within 0\.5 seconds\)"),
    ],
    ids=["nothing", "no_json", "status", "says_why", "no_text", "hangs"],
)
def test_what_is_no_python_is_named_with_what_it_said(tmp_path: Path, text: str, why: str) -> None:
    path = program(tmp_path, text)
    with pytest.raises(interpreter.NoAnswer, match=rf"^--python {path}: is not a Python .*{why}"):
        interpreter.ask(path, "print(1)", timeout=0.5)


def test_what_is_printed_before_the_answer_is_not_looked_at(tmp_path: Path) -> None:
    noisy = program(tmp_path, f'echo welcome; exec {sys.executable} "$@"')
    assert interpreter.ask(noisy, "print(sys.argv[1:])\nprint('[1]')", "a") == [1]
    assert interpreter.search_path(noisy) == interpreter.search_path(Path(sys.executable))


def test_the_current_folder_is_not_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "" not in interpreter.search_path(Path(sys.executable))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_what_is_no_python(tmp_path: Path, command: str) -> None:
    path = program(tmp_path, "true")
    done = CliRunner().invoke(group, [*command.split(), "--python", str(path)])
    assert done.exit_code == 2
    assert f"--python {path}: is not a Python that can be asked" in done.stderr
