"""Hazard 10: killed, out of space or out of permission at any file-system call; every file is old or new.

The calls are those of this process (`faults`), so that every one of them can be tried within CI. The thorough
tier does the same to whole commands with strace.
"""

from __future__ import annotations

import errno
import os
import posix
import py_compile
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm_pto.cli import group
from glm_pto.codemods import transaction
from glm_pto.codemods.findings import FileChange, WriteFailure
from tests.codemods import faults, planted
from tests.codemods.planted import MODEL, plant
from tests.codemods.test_transaction import NEW, OLD, change, commit, snapshot

Snapshot = dict[str, tuple[int, bytes | str | None]]
FILES = ("vllm/a.py", "vllm/models/b.py")
MADE = "kernels/ops/gate.py"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: fsync costs nothing there, and every call is the same."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


def apply(root: Path) -> None:
    transaction.recover(root, wait=2)
    made = FileChange(root / MADE, None, OLD, "kernels")
    commit(root, *(change(root / name) for name in FILES), made)


def revert(root: Path) -> None:
    transaction.recover(root, wait=2)
    gone = FileChange(root / MADE, OLD, None, "kernels")
    commit(root, *(change(root / name, NEW, OLD) for name in FILES), gone)


def visible(names: Snapshot) -> Snapshot:
    """The files that are not our own; folders and our own may be left to the next command."""
    return {name: found for name, found in names.items() if ".glm-pto" not in name and stat.S_ISREG(found[0])}


class Bench:
    """A two-file tree with one compiled file, before a run and after it, to be set up again and again."""

    def __init__(self, place: Path, run: Callable[[Path], None]) -> None:
        self.root = place / "site-packages"
        self.seed = place / "seed"
        self.action = run
        for name in FILES:
            file = self.seed / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(OLD)
        hashed = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(self.seed / FILES[0]), invalidation_mode=hashed)
        if run is revert:
            apply(self.seed)
        self.reset()
        self.before = self.names()
        self.run()
        self.after = self.names()
        assert self.before != self.after

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.seed, self.root, symlinks=True)

    def run(self) -> None:
        self.action(self.root)

    def recover(self) -> None:
        transaction.recover(self.root, wait=2)

    def names(self) -> Snapshot:
        """Everything but the pid in the lock and the file name inside of compiled code."""
        found = snapshot(self.root)
        return {
            name: (mode, None if name.endswith(("/lock", ".pyc")) else content)
            for name, (mode, content) in found.items()
        }

    def check_each_file_whole(self) -> None:
        for name in FILES:
            assert (self.root / name).read_bytes() in (OLD, NEW), f"{name} is torn"

    def check_settled(self) -> None:
        self.check_each_file_whole()
        assert self.names() in (self.before, self.after), "mixed, or something is left over"


RUNS = pytest.mark.parametrize("run", [apply, revert], ids=["apply", "revert"])


@RUNS
def test_hazard_10_killed_at_any_call_where_hard_links_are_not_possible(
    place: Path, run: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "not supported here")

    monkeypatch.setattr(os, "link", link)
    test_hazard_10_killed_at_any_call(place, run, torn=True)


@RUNS
@pytest.mark.parametrize(
    "torn", [pytest.param(False, marks=pytest.mark.crash), True], ids=["before-writes", "torn-writes"]
)
def test_hazard_10_killed_at_any_call(place: Path, run: Callable[[Path], None], torn: bool) -> None:
    bench = Bench(place, run)
    at, status = 0, faults.KILLED
    while status == faults.KILLED:
        at += 1
        bench.reset()
        status = faults.killed(bench.run, at, torn=torn)
        bench.check_each_file_whole()
        bench.recover()
        bench.check_settled()
    assert status == faults.DONE
    assert bench.names() == bench.after
    assert at > 100, "the calls are not being counted"
    print(f"{run.__name__}: killed at {at - 1} calls")


@RUNS
def test_hazard_10_the_disk_has_everything_before_the_next_step_rests_on_it(
    place: Path, run: Callable[[Path], None]
) -> None:
    """A power cut keeps what was flushed: the journal, then the new files, then their names, then the end."""
    bench = Bench(place, run)
    bench.reset()
    steps: list[tuple[str, str]] = []

    def noted(call: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        where = args[0] if call.__name__ == "fsync" else kwargs.get("src_dir_fd", kwargs.get("dir_fd"))
        if call.__name__ in ("fsync", "rename", "link", "unlink") and where is not None:
            folder = posix.readlink(f"/proc/self/fd/{where}")
            steps.append((call.__name__, folder if call.__name__ == "fsync" else f"{folder}/{args[0]}"))
        return call(*args, **kwargs)

    assert faults.attempt(bench.run, noted, 1, lasting=True) == faults.DONE
    control = f"{bench.root}/.glm-pto"
    renames = [i for i, (name, path) in enumerate(steps) if name == "rename" and control not in path]
    opened = steps.index(("rename", f"{control}/journal.json.new"))
    closed = steps.index(("rename", f"{control}/journal.json"))
    assert ("fsync", control) in steps[opened:] and ("fsync", str(bench.root)) in steps[opened : renames[0]]
    assert len(renames) >= 3 and opened < renames[0] < renames[-1] < closed
    for at in renames:
        path = steps[at][1]
        new = ".glm-pto-" in path and path.endswith(".new")
        assert not new or ("fsync", path) in steps[opened:at], f"{path} was renamed before it was flushed"
        assert ("fsync", str(Path(path).parent)) in steps[renames[-1] : closed]
    last = [path for name, path in steps[opened:closed] if name == "rename"][-1]
    assert Path(last).parent == Path(control), "the state is written last"
    assert ("fsync", control) in steps[closed : closed + 2], "the end is not durable before files are removed"


@RUNS
def test_hazard_10_a_process_that_really_dies(place: Path, run: Callable[[Path], None]) -> None:
    """Every 16th call, in a forked child that exits there; the thorough tier takes every call."""
    check_deaths(Bench(place, run), 16)


@pytest.mark.crash
@RUNS
def test_hazard_10_a_process_that_really_dies_at_any_call(place: Path, run: Callable[[Path], None]) -> None:
    check_deaths(Bench(place, run), 1)


def check_deaths(bench: Bench, stride: int) -> None:
    bench.reset()
    for at in range(1, faults.count(bench.run) + 1, stride):
        for fault in (faults.exits, faults.exits_in_write):
            bench.reset()
            assert faults.child(bench.run, fault, at) == faults.KILLED
            bench.check_each_file_whole()
            bench.recover()
            bench.check_settled()


@RUNS
def test_hazard_10_killed_during_recovery(place: Path, run: Callable[[Path], None]) -> None:
    """Deaths spread over the run, each followed by a death at every call of the recovery."""
    bench = Bench(place, run)
    bench.reset()
    total = faults.count(bench.run)
    check_recovery(bench, range(total // 4, total, total // 4))


@pytest.mark.crash
@RUNS
def test_hazard_10_killed_at_any_call_of_any_recovery(place: Path, run: Callable[[Path], None]) -> None:
    bench = Bench(place, run)
    bench.reset()
    check_recovery(bench, range(1, faults.count(bench.run) + 1))


def check_recovery(bench: Bench, deaths: range) -> None:
    total = 0
    for at in deaths:
        again, status = 0, faults.KILLED
        while status == faults.KILLED:
            again += 1
            bench.reset()
            if faults.killed(bench.run, at) == faults.DONE:
                break  # only descriptors are closed after this
            status = faults.killed(bench.recover, again)
            bench.check_each_file_whole()
            bench.recover()
            bench.check_settled()
            total += 1
    print(f"{bench.action.__name__}: recovery killed at {total} calls, after {len(deaths)} deaths")


@RUNS
def test_ctrl_c_at_any_call_rolls_back_or_comes_too_late(place: Path, run: Callable[[Path], None]) -> None:
    bench = Bench(place, run)
    bench.reset()
    for at in range(1, faults.count(bench.run) + 1):
        bench.reset()
        status = faults.attempt(bench.run, faults.interrupts, at)
        wanted = bench.after if status == faults.DONE else bench.before
        assert visible(bench.names()) == visible(wanted), f"Ctrl-C at call {at}"
        bench.recover()
        assert bench.names() == wanted, f"Ctrl-C at call {at}: something is left over"


@RUNS
def test_hazard_10_short_writes_are_written_on(place: Path, run: Callable[[Path], None]) -> None:
    bench = Bench(place, run)
    bench.reset()
    assert faults.attempt(bench.run, faults.short, 1, lasting=True) == faults.DONE
    assert bench.names() == bench.after


@RUNS
def test_hazard_10_an_error_at_any_call(place: Path, run: Callable[[Path], None]) -> None:
    """Each call fails once, the errors taking turns; the thorough tier makes every call fail with each."""
    bench = Bench(place, run)
    bench.reset()
    names = sorted(faults.ERRORS)
    for at in range(1, faults.count(bench.run) + 1):
        check_error(bench, names[at % len(names)], at)


@pytest.mark.crash
@RUNS
@pytest.mark.parametrize("name", sorted(faults.ERRORS))
def test_hazard_10_every_error_at_any_call(place: Path, run: Callable[[Path], None], name: str) -> None:
    bench = Bench(place, run)
    bench.reset()
    for at in range(1, faults.count(bench.run) + 1):
        check_error(bench, name, at)


def check_error(bench: Bench, name: str, at: int) -> None:
    bench.reset()
    status = faults.attempt(bench.run, faults.ERRORS[name], at)
    assert status in (faults.DONE, faults.REFUSED, faults.FAILED), f"{name} at call {at}"
    wanted = bench.after if status == faults.DONE else bench.before
    assert visible(bench.names()) == visible(wanted), f"{name} at call {at}"
    bench.recover()
    assert bench.names() == wanted, f"{name} at call {at}: something is left over"


@RUNS
def test_hazard_10_a_disk_that_stays_broken(place: Path, run: Callable[[Path], None]) -> None:
    """From some call on nothing works, not even the roll-back: files are whole, the next run settles."""
    bench = Bench(place, run)
    bench.reset()
    told: list[str] = []

    def tells() -> None:
        try:
            bench.run()
        except WriteFailure as failure:
            told.append(str(failure))
            raise

    for at in range(1, faults.count(bench.run) + 1):
        bench.reset()
        status = faults.attempt(tells, faults.ERRORS["EIO"], at, lasting=True)
        bench.check_each_file_whole()
        if status == faults.FAILED and "every file is as it was before" in told[-1]:
            assert visible(bench.names()) == visible(bench.before), f"said at call {at}: {told[-1]}"
        bench.recover()
        bench.check_settled()
    assert any("undoing it failed too, so the next command does that" in text for text in told)


@pytest.mark.parametrize(
    "command", ["status", "apply", "revert", "diff", "verify", "doctor", "explain gate", "apply --dry-run"]
)
def test_hazard_10_every_command_settles_what_a_death_left_and_says_so(tmp_path: Path, command: str) -> None:
    file = plant(tmp_path)
    calls = faults.count(lambda: planted.apply(tmp_path))
    planted.revert(tmp_path)
    faults.killed(lambda: planted.apply(tmp_path), calls * 2 // 3)
    assert (tmp_path / ".glm-pto/journal.json").exists()
    done = CliRunner().invoke(group, [*command.split(), str(tmp_path)])
    assert "an interrupted run" in done.output and "was rolled back" in done.output
    assert done.exit_code == (2 if command == "verify" else 0), done.output
    assert file.read_text() == MODEL or command == "apply"
    assert not [name for name in planted.names(tmp_path) if "journal" in name or ".glm-pto-" in name]


@RUNS
def test_a_file_edited_after_the_death_keeps_the_edit(place: Path, run: Callable[[Path], None]) -> None:
    """Whatever the journal says, a text that neither run nor journal knows is the user's."""
    bench = Bench(place, run)
    bench.reset()
    told = 0
    for at in range(1, faults.count(bench.run) + 1, 3):
        bench.reset()
        faults.killed(bench.run, at)
        file = bench.root / FILES[0]
        mine = file.read_bytes() + b"# mine\n"
        file.write_bytes(mine)
        recovery = transaction.recover(bench.root, wait=2)
        assert file.read_bytes() == mine
        assert (bench.root / FILES[1]).read_bytes() in (OLD, NEW)
        assert recovery is None or recovery.files == (*FILES, MADE), "bytecode and our own are not named"
        assert not [name for name in bench.names() if ".glm-pto-" in name], "something is left over"
        told += bool(recovery and any("written by somebody else" in note for note in recovery.notes))
    assert told > 10


@RUNS
def test_an_editor_that_writes_during_the_run_is_not_overwritten(
    place: Path, run: Callable[[Path], None]
) -> None:
    """The run is refused, or the editor has the last word; only the rename itself cannot look any more."""
    bench = Bench(place, run)
    bench.reset()
    lost = []
    for at in range(1, faults.count(bench.run) + 1):
        bench.reset()
        file = bench.root / FILES[0]

        def edits(call: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            new = file.with_name("editor")  # noqa: B023 - called within this turn of the loop
            new.write_bytes(b"# mine\n")
            new.rename(file)  # noqa: B023
            return call(*args, **kwargs)

        faults.attempt(bench.run, edits, at)
        bench.recover()
        if file.read_bytes() != b"# mine\n":
            lost.append(at)
    assert len(lost) <= 1, f"lost at calls {lost}: more than the rename itself"
