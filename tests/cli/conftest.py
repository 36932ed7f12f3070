"""Fixtures of the command line's tests: the carried tree, and runs of the real program."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm_pto.cli import demo, group


@dataclass(frozen=True)
class Answer:
    """How a run of the program ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The miniature of the guide's own pair that the package carries."""
    root = tmp_path / "glm-net"
    root.mkdir()
    demo.write(root)
    return root


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """``run("status", tree, USE_PTO_GATE="0")``: the program, in this process, in the tests' folder."""
    for name in [n for n in os.environ if n.startswith(("USE_PTO_", "GLM_PTO_", "NO_COLOR"))]:
        if name != "GLM_PTO_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path, **environment: str) -> Answer:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        done = CliRunner().invoke(group, [str(a) for a in arguments], prog_name="glm-pto")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Answer(done.exit_code, done.stdout, done.stderr)

    return call


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Answer]:
    """The same in a process of its own, for what belongs to a process: locale, pipes, exit status."""

    def call(*arguments: str | Path, **environment: str) -> Answer:
        command = [sys.executable, "-m", "glm_pto.cli", *map(str, arguments)]
        env = {**os.environ, **environment}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, errors="surrogateescape"
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def terminal(tmp_path: Path) -> Callable[..., str]:
    """``terminal("status", tree, NO_COLOR="1")``: what the program prints on a terminal of 160 columns."""

    def call(*arguments: str | Path, **environment: str) -> str:
        pid, descriptor = pty.fork()
        if pid == 0:
            os.chdir(tmp_path)
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("NO_COLOR", "PAGER", "LESS"))}
            settings = {**kept, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "500", **environment}
            os.execve(sys.executable, [sys.executable, "-m", "glm_pto.cli", *map(str, arguments)], settings)
        shown = b""
        while True:
            try:
                part = os.read(descriptor, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.waitpid(pid, 0)
        os.close(descriptor)
        return shown.decode()

    return call
