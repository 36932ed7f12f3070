"""Hazard 10 on whole commands and a real pair: strace kills, or fails, the process at every call.

Between two calls that change the disk the disk is the same, so a death at each of those covers every moment.
Errors are tried at the calls that read the tree, too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from glm_pto.codemods import operations
from tests.codemods import planted

LightTree = Callable[[str | None, str | None], Path]
Names = dict[str, tuple[int, bytes | str | None]]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.trees,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

WRITING = (
    *("openat", "write", "pwrite64", "ftruncate", "fsync", "fchmod", "fchown", "utimensat", "flock"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
)
READING = ("read", "getdents64")
#: Counted only where they are about the tree: elsewhere (modules, /proc) their number is not always the same.
OF_TREE = frozenset({"openat", *READING})
#: Errors, and whether a call that reads is failed with them too.
ERRORS = {"ENOSPC": False, "EIO": True, "EACCES": True, "EINTR": False}
LINE = re.compile(r"^\d+ +(?P<call>\w+)\((?P<rest>.*)$")


@dataclass(frozen=True)
class Call:
    """The ``number``-th call of its kind in a run."""

    name: str
    number: int
    writes: bool


def writes(line: re.Match[str]) -> bool:
    """May the call change the disk?"""
    reads = line["call"] in READING or (line["call"] == "openat" and "O_CREAT" not in line["rest"])
    return not reads and not speaks(line)


def speaks(line: re.Match[str]) -> bool:
    """Is it about standard output?"""
    return line["call"] == "write" and line["rest"].startswith(("1,", "2,"))


class Trial:
    """A command on a copy of the pair, before and after, to be run again and again under strace."""

    def __init__(self, seed: Path, work: Path, command: str) -> None:
        self.seed, self.root, self.command = seed, work / "tree", command
        self.log, self.bytecode = work / "calls", work / "bytecode"
        self.reset()
        self.before = self.names()
        places = [self.root, self.root / ".glm-pto", *self.root.rglob("*")]
        self.of_tree = [option for place in dict.fromkeys(places) for option in ("-P", str(place))]
        self.run([], command, keep_bytecode=True)
        self.after = self.names()
        assert self.before != self.after
        self.calls = [call for call in self.trace(command, self.reset) if call.writes]

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.seed, self.root, symlinks=True)

    def names(self) -> Names:
        return {name: found for name, found in planted.names(self.root).items() if not name.endswith("/lock")}

    def run(self, tracer: list[str], command: str, *, keep_bytecode: bool = False) -> int:
        """Exit status of a command. Its modules are compiled once, into a folder outside of the tree."""
        line = [*tracer, sys.executable, "-m", "glm_pto.cli", command, "--quiet", str(self.root)]
        env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPYCACHEPREFIX": str(self.bytecode)}
        env["PYTHONDONTWRITEBYTECODE"] = "" if keep_bytecode else "1"
        # A job in a shell's background ignores Ctrl-C, and what it starts does so too.
        heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.run(line, env=env, capture_output=True, preexec_fn=heeds, check=False).returncode

    def strace(self, command: str, kinds: Sequence[str], *options: str) -> int:
        where = self.of_tree if OF_TREE.issuperset(kinds) else []
        tracer = ["strace", "-f", "-qq", "-o", str(self.log), *where, "-e", f"trace={','.join(kinds)}"]
        return self.run([*tracer, *options], command)

    def lines(self) -> list[re.Match[str]]:
        """The calls that were made in the last run, as strace writes them down."""
        return list(filter(None, map(LINE.match, self.log.read_text(errors="replace").splitlines())))

    def trace(self, command: str, begin: Callable[[], object]) -> list[Call]:
        """The calls of a command, each with its number among its kind."""
        found = []
        for of_tree in (False, True):
            begin()
            kinds = [kind for kind in (*WRITING, *READING) if (kind in OF_TREE) is of_tree]
            assert self.strace(command, kinds) == 0
            counts: Counter[str] = Counter()
            for line in self.lines():
                counts[line["call"]] += 1
                if not speaks(line):
                    found.append(Call(line["call"], counts[line["call"]], writes(line)))
        return found

    def inject(self, command: str, call: Call, what: str) -> int:
        return self.strace(command, [call.name], "-e", f"inject={call.name}:{what}:when={call.number}")

    def kill(self, command: str, call: Call) -> None:
        """Make this call the last one that a command makes."""
        assert self.inject(command, call, "signal=KILL") == -9, f"{command} was not killed at {call}"
        assert writes(self.lines()[-1]), f"{command} was killed at another call than {call}"

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
        trial.kill(trial.command, call)
        trial.check_whole()
        trial.settle()
    print(f"{trial.command}: killed at {len(trial.calls)} calls, 0 mixed, 0 torn, 0 left over")


def test_hazard_10_killed_at_every_call_of_the_next_command(trial: Trial) -> None:
    """Deaths while the new files are written, renamed, and cleared up after, then deaths of the recovery."""
    renames = [call for call in trial.calls if call.name.startswith("rename")]
    unlinks = [call for call in trial.calls if call.name == "unlinkat"]
    total = 0
    for first in (renames[0], renames[len(renames) // 2], renames[-1], unlinks[-3]):

        def dead(first: Call = first) -> None:
            trial.reset()
            trial.kill(trial.command, first)

        dead()
        trial.run([], "status", keep_bytecode=True)
        for call in [call for call in trial.trace("status", dead) if call.writes]:
            dead()
            trial.kill("status", call)
            trial.check_whole()
            trial.settle()
            total += 1
    assert total > 20
    print(f"{trial.command}: recovery killed at {total} calls, 0 mixed, 0 torn, 0 left over")


def test_ctrl_c_at_every_call_of_a_command(trial: Trial) -> None:
    codes: Counter[int] = Counter()
    for call in trial.calls:
        trial.reset()
        code = trial.inject(trial.command, call, "signal=INT")
        codes[code] += 1
        wanted = {0: trial.after, 130: trial.before}[code]
        for name, (_, content) in wanted.items():
            if name.endswith(".py"):
                assert (trial.root / name).read_bytes() == content, f"exit code {code} after Ctrl-C at {call}"
        trial.settle()
    assert codes[130] > 20
    print(
        f"{trial.command}: Ctrl-C at {len(trial.calls)} calls, exit codes {dict(codes)}, 0 mixed, 0 left over"
    )


@pytest.mark.parametrize("error", ERRORS.keys())
def test_hazard_10_an_error_at_every_call_of_a_command(trial: Trial, error: str) -> None:
    """At those that read the tree, too. A command that still says 0 has done all of its work."""
    calls = trial.trace(trial.command, trial.reset) if ERRORS[error] else trial.calls
    codes: Counter[int] = Counter()
    for call in calls:
        trial.reset()
        code = trial.inject(trial.command, call, f"error={error}")
        codes[code] += 1
        assert sum("(INJECTED)" in line["rest"] for line in trial.lines()) == 1, f"no {error} at {call}"
        assert code in (0, 3, 4), f"{error} at {call}"
        for name, (_, content) in (trial.after if code == 0 else trial.before).items():
            if name.endswith(".py"):
                assert (trial.root / name).read_bytes() == content, f"changed by {error} at {call}"
        trial.settle()
    assert codes[0 if error == "EINTR" else 4] > 20  # Python itself repeats many calls that were interrupted
    print(f"{trial.command}: {error} at {len(calls)} calls, exit codes {dict(codes)}, 0 bytes changed")
