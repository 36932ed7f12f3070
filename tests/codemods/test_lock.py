"""Hazard 11: two runs at once wait for each other or say busy, and a dead owner's lock is no obstacle."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glm_pto.codemods import disk, lock, transaction
from glm_pto.codemods.findings import Refusal
from tests.codemods import faults
from tests.codemods.test_crash import FILES, Bench, apply, place, revert
from tests.codemods.test_transaction import NEW, OLD, change, commit, tree

__all__ = ["place", "tree"]  # fixtures of the neighbours


@contextmanager
def holder(root: Path) -> Iterator[int]:
    """Another process that holds the lock until it is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        with disk.Folders(root) as folders, lock.hold(folders):
            os.write(writer, b"!")
            time.sleep(60)
        os._exit(0)
    try:
        assert os.read(reader, 1) == b"!"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_hazard_11_a_second_run_waits_and_then_names_the_owner(tree: Path) -> None:
    with holder(tree) as pid, pytest.raises(Refusal, match=rf"busy, process {pid} is changing this tree"):
        commit(tree, change(tree / "vllm/a.py"), wait=0.1)
    assert (tree / "vllm/a.py").read_bytes() == OLD


def test_hazard_11_a_dead_owners_lock_is_taken_over(tree: Path) -> None:
    with holder(tree):
        pass
    assert (tree / ".glm-pto/lock").exists(), "the dead process did not clear up"
    commit(tree, change(tree / "vllm/a.py"), wait=0)
    assert (tree / "vllm/a.py").read_bytes() == NEW


def test_hazard_11_what_a_dead_owner_left_goes_with_the_next_command(tree: Path) -> None:
    with holder(tree):
        pass
    assert transaction.recover(tree, wait=0) is None
    assert not (tree / ".glm-pto").exists()


HERE = os.uname().nodename
OWNERS = {
    "signed": (f"123 {HERE}\n", "process 123"),
    "elsewhere": ("123 node-7\n", "process 123 on 'node-7'"),
    "without_a_host": ("123", "process 123"),
    "not_signed_yet": ("", "another process"),
    "no_number": (f"x {HERE}\n", "another process"),
    "hostile": ("123 \x1b[2J\n", r"process 123 on '\x1b[2J'"),
}


@pytest.mark.parametrize(("text", "name"), OWNERS.values(), ids=OWNERS)
def test_the_owner_is_named_as_far_as_the_lock_tells(tree: Path, text: str, name: str) -> None:
    (tree / ".glm-pto").mkdir()
    (tree / ".glm-pto/lock").write_text(text)
    with disk.Folders(tree) as folders:
        assert lock.owner(folders.open(tree / ".glm-pto")) == name


def test_an_owner_whose_lock_is_gone_is_somebody(tree: Path) -> None:
    with disk.Folders(tree) as folders:
        assert lock.owner(folders.open(tree)) == "another process"


def test_hazard_11_many_processes_at_once(place: Path) -> None:
    compete(Bench(place, apply), processes=16, rounds=6, seed=1)


@pytest.mark.crash
def test_hazard_11_sixteen_processes_a_thousand_rounds(place: Path) -> None:
    compete(Bench(place, apply), processes=16, rounds=1000, seed=2)


def compete(bench: Bench, processes: int, rounds: int, seed: int) -> None:
    """In every round all processes start at once, some to apply, some to revert, one in four to be killed."""
    dice = random.Random(seed)
    bench.reset()
    counted = {"done": 0, "refused": 0, "killed": 0}
    for _ in range(rounds):
        deaths = [dice.randrange(1, 260) if dice.random() < 0.25 else 0 for _ in range(processes)]
        for status in together(bench, deaths):
            assert status in (faults.DONE, faults.REFUSED, faults.KILLED)
            word = {faults.DONE: "done", faults.REFUSED: "refused", faults.KILLED: "killed"}[status]
            counted[word] += 1
        bench.check_each_file_whole()
        bench.recover()
        bench.check_settled()
    assert counted["done"] >= rounds, counted
    print(f"{rounds} rounds of {processes} processes: {counted}")


def together(bench: Bench, deaths: list[int]) -> list[int]:
    reader, writer = os.pipe()
    children = []
    for death in deaths:
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end: all start together
            os._exit(compete_once(bench.root, death))
        children.append(pid)
    os.close(writer)
    os.close(reader)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def compete_once(root: Path, death: int) -> int:
    def run() -> None:
        transaction.recover(root, wait=60)
        applied = (root / FILES[0]).read_bytes() == NEW
        (revert if applied else apply)(root)

    try:
        with faults.fault_at(death, faults.exits):
            run()
    except Refusal:
        return faults.REFUSED
    except BaseException:
        return faults.WRONG
    return faults.DONE
