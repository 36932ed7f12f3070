"""Fixtures of the command line's tests: the carried tree, and runs of the real program."""

from __future__ import annotations

import os
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
