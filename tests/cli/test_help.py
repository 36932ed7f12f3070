"""Help of every command: complete, its examples run, and asking for it loads nothing that is not needed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from glm_pto.cli import COMMANDS, EXAMPLES, group
from tests.glm_pto_kernels import upstream_tree


def examples(name: str) -> list[list[str]]:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    lines = re.findall(r"^  glm-pto (.+?)(?:  +\S.*)?$", command.epilog or "", re.M)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_examples_and_says_what_each_option_does(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None and command.help
    assert isinstance(command, click.Group) or examples(name)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name}: {parameter.name} has no help"


def all_examples() -> list[tuple[str, ...]]:
    top = [tuple(shlex.split(line)) for line in re.findall(r"^  glm-pto (.+?)  ", EXAMPLES, re.M)]
    return list(dict.fromkeys([*top, *(tuple(line) for name in COMMANDS for line in examples(name))]))


@pytest.mark.parametrize("line", all_examples(), ids=" ".join)
def test_example_runs(run, tree: Path, tmp_path: Path, monkeypatch, line: tuple[str, ...]) -> None:
    """In a folder that holds ./glm-net, in an environment whose packages are that tree's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # kernels writes there
    arguments = [sys.executable if a == "/opt/venv/bin/python" else a for a in line]
    if "~/src/pypto" in arguments:
        arguments[-1] = str(upstream_tree.write(tmp_path / "pypto"))
    if line[0] in ("revert", "verify") or "--applied" in line:
        assert run("apply", tree, "--install-kernels").returncode == 0
    if "--release" in arguments:
        pytest.skip("needs the index; the tests of real trees run it")
    monkeypatch.syspath_prepend(tree)
    answer = run(*arguments, PYTHONPATH=f"{tree}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    asked_for_a_difference = {"--exit-code", "--check"} & set(line)
    assert answer.returncode in ((0, 1) if asked_for_a_difference else (0,)), answer.stderr
    assert answer.stderr == ""


@pytest.mark.parametrize("name", list(COMMANDS))
def test_short_and_long_help_agree(run, name: str) -> None:
    assert run(name, "-h").stdout == run(name, "--help").stdout != ""


def test_help_loads_neither_the_engine_nor_rich() -> None:
    check = (
        "import sys; from glm_pto.cli import group; group.main(['--help'], standalone_mode=False); "
        "heavy = ('rich', 'libcst', 'glm_pto.codemods', 'pathlib', 'json', 'dataclasses'); "
        "loaded = [m for m in sys.modules if m.startswith(heavy)]; assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_a_misspelt_command_is_answered_with_the_nearest(run) -> None:
    answer = run("aply")
    assert (answer.returncode, "Did you mean 'apply'?" in answer.stderr) == (2, True)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("page-attention", "'paged_attention'"),
        ("attn", "'attention_pre' or 'paged_attention'"),
        ("attention", "'attention_pre' or 'paged_attention'"),
        ("share_experts", "'shared_expert'"),
        ("experts", "'select_experts'"),
        ("router-gate", "'gate'"),
    ],
)
def test_a_misspelt_site_is_answered_with_what_was_meant(run, tree: Path, word: str, meant: str) -> None:
    answer = run("status", tree, "--site", word)
    assert (answer.returncode, f"Did you mean {meant}?" in answer.stderr) == (2, True), answer.stderr


def test_a_site_like_none_is_answered_with_all(run, tree: Path) -> None:
    assert "Choose from: attention_pre, gate," in run("status", tree, "--site", "fa").stderr
