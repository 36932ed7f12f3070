"""Fixtures of the command line's tests: the carried tree, and runs of the real program."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto.cli import demo

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The miniature of the guide's own pair that the package carries."""
    root = tmp_path / "glm-net"
    root.mkdir()
    demo.write(root)
    return root


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run("status", tree, LC_ALL="C")``: the program in a process of its own, in the tests' folder."""

    def call(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("USE_PTO_", "GLM_PTO_", "NO_COLOR"))}
        return subprocess.run(
            [sys.executable, "-m", "glm_pto.cli", *map(str, arguments)],
            cwd=tmp_path,
            env={**kept, **environment},
            capture_output=True,
            text=True,
            errors="surrogateescape",
        )

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
