"""The wheel holds what the tree holds, and a fresh environment has everything that the two commands need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CARRIED = ("cli", "codemods", "glm_pto", "glm_pto_kernels", "pyproject.toml", "README.md", "LICENSE")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a clean copy of the tree."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "tree"
    copy.mkdir()
    for name in CARRIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copy(source, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, copy]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_what_the_tree_holds(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if ".dist-info/" not in n}
    homes = {"cli": "glm_pto/cli", "codemods": "glm_pto/codemods", "glm_pto_kernels": "glm_pto_kernels"}
    expected = {"glm_pto/__init__.py", "glm_pto/py.typed"}
    for folder, home in homes.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(f"{home}/{path.relative_to(ROOT / folder).as_posix()}")
    assert packed == expected


@pytest.mark.trees
def test_a_fresh_environment_runs_the_two_commands(wheel: Path, tmp_path: Path) -> None:
    """``pip install`` brings libcst, click and rich and nothing heavy; the demo needs no network."""
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", wheel]
    # Without a way to the checkout, in which `pip install .` has left what pip takes for an installation.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(pip, capture_output=True, text=True, cwd=tmp_path, env=own)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"no package index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C"}
    shown = subprocess.run(
        [home / "bin" / "glm-pto", "demo"], env=environment, capture_output=True, text=True
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[-1] == "glm-pto demo: exit=0 files=8 restored=true"
    check = "import glm_pto.codemods, sys; from glm_pto import apply; assert 'torch' not in sys.modules"
    subprocess.run([python, "-c", check], env=environment, check=True)
