"""A server that runs from the tree is seen and warned about; anything else is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glm_pto.codemods import running
from tests.codemods.test_transaction import change, commit, tree

__all__ = ["tree"]  # the fixture of the neighbour

HOLD = """
import mmap, sys
with open(sys.argv[1], "rb") as library:
    mapped = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True)
input()
"""


@contextmanager
def process(mapped: Path, title: str) -> Iterator[int]:
    mapped.write_bytes(b"\x7fELF" * 1024)
    command = [sys.executable, "-c", HOLD, str(mapped), title]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def test_a_server_that_runs_from_the_tree_is_warned_about(tree: Path) -> None:
    with process(tree / "vllm/_C.abi3.so", "VLLM::EngineCore") as pid:
        assert running.servers(tree) == (pid,)
        notes = commit(tree, change(tree / "vllm/a.py"))
    assert any(f"process {pid}" in note and "restarted" in note for note in notes)


@pytest.mark.parametrize("title", ["jupyter", "vllm"], ids=["not_a_server", "another_tree"])
def test_other_processes_are_not_warned_about(tree: Path, tmp_path: Path, title: str) -> None:
    elsewhere = tmp_path / "lib.so" if title == "vllm" else tree / "lib.so"
    with process(elsewhere, title):
        assert running.warning(tree) == ()
