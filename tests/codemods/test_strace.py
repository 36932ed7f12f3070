"""Hazard 10 on whole commands and a real pair: strace kills, or fails, the process at every call that writes.

Between two calls that change the disk the disk is the same, so a death at each of them covers every moment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto.codemods import operations
from tests.codemods import planted

LightTree = Callable[[str | None, str | None], Path]
Names = dict[str, tuple[int, bytes | str | None]]
Call = tuple[str, int]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.trees,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

WRITING = (
    *("openat", "write", "pwrite64", "ftruncate", "fsync", "fchmod", "fchown", "utimensat", "flock"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
)
LINE = re.compile(r"^\d+ +(?P<call>\w+)\((?P<rest>.*)$")


class Trial:
    """A command on a copy of the pair, before and after, to be run again and again under strace."""

    def __init__(self, seed: Path, work: Path, command: str) -> None:
        self.seed, self.root, self.command = seed, work / "tree", command
        self.log = work / "calls"
        self.reset()
        self.before = self.names()
        self.calls = self.trace(command)
        self.after = self.names()
        assert self.before != self.after

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.seed, self.root, symlinks=True)

    def names(self) -> Names:
        return {name: found for name, found in planted.names(self.root).items() if not name.endswith("/lock")}

    def strace(self, command: str, *options: str) -> int:
        line = ["strace", "-f", "-qq", "-o", str(self.log), *options]
        run = [sys.executable, "-m", "glm_pto.cli", command, "--quiet", str(self.root)]
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        return subprocess.run([*line, *run], env=env, capture_output=True, check=False).returncode

    def trace(self, command: str) -> list[Call]:
        """The calls of a command that change the disk, each with its number among its kind."""
        assert self.strace(command, "-e", f"trace={','.join(WRITING)}") == 0
        counts: Counter[str] = Counter()
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            match = LINE.match(line)
            if match is None:
                continue
            call, rest = match["call"], match["rest"]
            counts[call] += 1
            reads = call == "openat" and "O_CREAT" not in rest
            speaks = call == "write" and rest.startswith(("1,", "2,"))
            if not reads and not speaks:
                found.append((call, counts[call]))
        return found

    def inject(self, command: str, call: Call, what: str) -> int:
        name, number = call
        return self.strace(command, "-e", f"trace={name}", "-e", f"inject={name}:{what}:when={number}")

    def settle(self) -> None:
        """The next command; afterwards everything is old or everything is new."""
        operations.status([self.root])
        assert self.names() in (self.before, self.after), "mixed, or something is left over"

    def check_whole(self) -> None:
        for name, (_, content) in self.before.items():
            if name.endswith(".py"):
                now = (self.root / name).read_bytes()
                assert now in (content, self.after[name][1]), f"{name} is torn"


@pytest.fixture(params=["apply", "revert"])
def trial(request: pytest.FixtureRequest, tmp_path: Path, light_tree: LightTree) -> Trial:
    seed = light_tree("0.12.0", "0.12.0rc1")
    if request.param == "revert":
        assert operations.apply([seed]).changed
    return Trial(seed, tmp_path, request.param)


def test_hazard_10_killed_at_every_call_of_a_command(trial: Trial) -> None:
    assert len(trial.calls) > 60
    for call in trial.calls:
        trial.reset()
        assert trial.inject(trial.command, call, "signal=KILL") == -9, f"not killed at {call}"
        trial.check_whole()
        trial.settle()
    print(f"{trial.command}: killed at {len(trial.calls)} calls, 0 mixed, 0 torn, 0 left over")


def test_hazard_10_killed_at_every_call_of_the_next_command(trial: Trial) -> None:
    """Deaths while the new files are written, renamed, and cleared up after, then deaths of the recovery."""
    renames = [call for call in trial.calls if call[0].startswith("rename")]
    unlinks = [call for call in trial.calls if call[0] == "unlinkat"]
    total = 0
    for first in (renames[0], renames[len(renames) // 2], renames[-1], unlinks[-3]):
        trial.reset()
        assert trial.inject(trial.command, first, "signal=KILL") == -9
        for call in trial.trace("status"):
            trial.reset()
            assert trial.inject(trial.command, first, "signal=KILL") == -9
            assert trial.inject("status", call, "signal=KILL") == -9
            trial.check_whole()
            trial.settle()
            total += 1
    assert total > 20
    print(f"{trial.command}: recovery killed at {total} calls, 0 mixed, 0 torn, 0 left over")


def test_hazard_10_an_error_at_every_call_of_a_command(trial: Trial) -> None:
    errors = ("ENOSPC", "EIO", "EACCES", "EINTR", "EDQUOT")
    codes: Counter[int] = Counter()
    for number, call in enumerate(trial.calls):
        trial.reset()
        code = trial.inject(trial.command, call, f"error={errors[number % len(errors)]}")
        codes[code] += 1
        assert code in (0, 3, 4), f"{errors[number % len(errors)]} at {call}"
        for name, (_, content) in (trial.after if code == 0 else trial.before).items():
            if name.endswith(".py"):
                assert (trial.root / name).read_bytes() == content, f"changed by an error at {call}"
        trial.settle()
    assert codes[4] > 20
    print(f"{trial.command}: errors at {len(trial.calls)} calls, exit codes {dict(codes)}, 0 bytes changed")
