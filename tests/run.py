#!/usr/bin/env python3
"""Run the project's checks in an environment of their own: ``python3 tests/run.py [TIER] [PYTEST ARGS...]``.

Needs nothing but a Python 3.10-3.13 with ``venv``. The environment is made once in the cache folder
(``GLM_PTO_CACHE``, else ``~/.cache/glm-pto``) and is named after what it holds, so a change of the
requirements makes a new one. Nothing is installed from the checkout: it is put on ``PYTHONPATH``.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("GLM_PTO_CACHE", "~/.cache/glm-pto")).expanduser()

# torch is pinned: pypto's calculator library and the recorded figures belong to one torch.
REQUIREMENTS = (
    "torch==2.13.0",
    "numpy",
    "libcst==1.9.0",
    "click>=8.1",
    "rich>=13",
    "pytest>=8",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "mypy==2.4.1",
    "ruff>=0.8",
    "build>=1.2",
    "setuptools>=77",
    "wheel",
    "pip==25.3",
    "uv",
    "pypto==0.2.0",
    "triton==3.6.0",
)

# What each tier selects. "ci" is the default: everything that has a representative part, nothing thorough.
QUICK = "not (thorough or all_releases or crash or pypto_thorough or gpu or docs)"
TIERS: dict[str, list[str]] = {
    "quick": ["-m", f"{QUICK} and not (real_vllm or real_ascend or pypto or interpret)"],
    "ci": ["-m", QUICK],
    "releases": ["-m", "all_releases"],
    "crash": ["-m", "crash"],
    "thorough": ["-m", "thorough"],
    "real-vllm": ["-m", "real_vllm"],
    "real-ascend": ["-m", "real_ascend"],
    "pypto": ["-m", "pypto or pypto_thorough"],
    "gpu": ["-m", "gpu"],
    "docs": ["-m", "docs"],
}
# Tiers that make environments of their own; the others, and a part of `ci`, use them where they are there.
ENVIRONMENTS = {"ci": ("ascend", "vllm"), "real-ascend": ("ascend", "vllm"), "real-vllm": ("vllm",)}
LINTED = ("quick", "ci")


def environment() -> Path:
    """Make or find the cached environment and return its Python."""
    key = hashlib.sha256("\n".join((sys.version, *REQUIREMENTS)).encode()).hexdigest()[:12]
    home = CACHE / "envs" / f"test-{key}"
    python = home / "bin" / "python"
    done = home / ".complete"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"test-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            say(f"making the test environment {home}")
            venv.create(home, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
            done.touch()
    return python


def say(text: str) -> None:
    print(f"tests/run.py: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tier", nargs="?", default="ci", choices=sorted(TIERS))
    options, rest = parser.parse_known_args()
    python = environment()
    if options.tier in ENVIRONMENTS and not (options.tier == "ci" and (rest or sys.platform != "linux")):
        subprocess.run(
            [sys.executable, ROOT / "tests" / "environments.py", *ENVIRONMENTS[options.tier]], check=True
        )
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GLM_PTO_CACHE": str(CACHE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    status = 0
    if options.tier in LINTED and not rest:
        for command in (
            ["ruff", "check", "."],
            ["ruff", "format", "--check", "."],
            ["mypy", "--strict", "-p", "glm_pto"],
        ):
            say(" ".join(command))
            status |= subprocess.run([python, "-m", *command], cwd=ROOT, env=env).returncode
    workers = [] if any(a.startswith(("-n", "-p")) for a in rest) else ["-n", "2"]
    command = [str(python), "-m", "pytest", *TIERS[options.tier], *workers, *rest]
    say(" ".join(command[1:]))
    tests = subprocess.run(command, cwd=ROOT, env=env).returncode
    if status and not tests:
        say("the tests passed, the linters above did not")
    return tests or status


if __name__ == "__main__":
    sys.exit(main())
