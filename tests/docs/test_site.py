"""The documents build with mkdocs-material, strictly: no broken link, no page that is not found."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("GLM_PTO_CACHE", "~/.cache/glm-pto")).expanduser()
REQUIREMENT = "mkdocs-material==9.*"


@pytest.fixture(scope="module")
def mkdocs() -> Path:
    """The program, in a cached environment of its own."""
    home = CACHE / "envs" / f"docs-{sys.version_info.major}.{sys.version_info.minor}"
    program = home / "bin" / "mkdocs"
    if not (home / ".complete").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", REQUIREMENT], check=True)
        (home / ".complete").touch()
    return program


@pytest.mark.docs
def test_the_documents_build_strictly(mkdocs: Path, tmp_path: Path) -> None:
    config = ROOT / "docs" / "theme" / "mkdocs.yml"
    command = [mkdocs, "build", "--strict", "-f", config, "-d", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "operators" / "gate.html").is_file()
