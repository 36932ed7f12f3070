"""A hostile tree: links that are swapped, forged journals, names that steer a terminal, files without end."""

from __future__ import annotations

import os
import pty
import re
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from glm_pto.codemods import journal, seal, transaction
from glm_pto.codemods.findings import Refusal
from tests.codemods import faults, planted
from tests.codemods.planted import FILE, GATE, MODEL, plant, refused
from tests.codemods.test_transaction import NEW, OLD, change, commit, snapshot, tree

__all__ = ["tree"]  # the fixture of the neighbour

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of somebody else's")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the tree that holds the very same files."""
    folder = tmp_path / "outside"
    (folder / "models").mkdir(parents=True)
    for name in ("a.py", "models/b.py"):
        (folder / name).write_bytes(OLD)
    return folder


def swap(tree: Path, outside: Path, owner: int) -> None:
    """A stranger puts a link in the place of the package's folder."""
    (tree / "vllm").rename(tree / "was-vllm")
    (tree / "vllm").symlink_to(outside)
    os.chown(tree / "vllm", owner, owner, follow_symlinks=False)


@as_root
def test_a_strangers_link_out_of_the_tree_is_refused(tree: Path, outside: Path) -> None:
    swap(tree, outside, STRANGER)
    before = snapshot(outside)
    with pytest.raises(Refusal, match=r"link out of the tree .* made by another user"):
        commit(tree, change(tree / "vllm/a.py"))
    assert snapshot(outside) == before


@as_root
def test_a_folder_swapped_for_a_link_at_any_call_leads_nowhere(tree: Path, outside: Path) -> None:
    before = snapshot(outside)
    changes = [change(tree / name) for name in ("vllm/a.py", "vllm/models/b.py")]

    def swaps(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        swap(tree, outside, STRANGER)
        return call(*args, **kwargs)

    at = 0
    while True:
        at += 1
        faults.attempt(lambda: commit(tree, *changes), swaps, at)
        assert snapshot(outside) == before, f"written outside after a swap at call {at}"
        if not (tree / "was-vllm").exists():
            break
        (tree / "vllm").unlink()
        (tree / "was-vllm").rename(tree / "vllm")
        transaction.recover(tree, wait=2)
        for name in ("a.py", "models/b.py"):
            assert (tree / "vllm" / name).read_bytes() in (OLD, NEW)
            (tree / "vllm" / name).write_bytes(OLD)
    assert at > 100, "the calls are not being counted"


FORGED = {
    "parent": {"path": "../outside/a.py"},
    "absolute": {"path": "/etc/hostname"},
    "dots_inside": {"path": "vllm/../../outside/a.py"},
    "no_text": {"path": 7},
    "nul": {"path": "vllm/a\0.py"},
}


@pytest.mark.parametrize("done", [False, True], ids=["open", "done"])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_journal_reaches_nothing_outside(
    tree: Path, outside: Path, forged: dict[str, Any], done: bool
) -> None:
    entry = {"path": "", "before": seal.digest(b"evil"), "after": seal.digest(OLD), "loose": True, **forged}
    body = {"id": "0123456789abcdef", "pid": 1, "entries": [entry], "folders": []}
    hidden = tree / ".glm-pto"
    hidden.mkdir()
    (hidden / (journal.DONE if done else journal.OPEN)).write_bytes(seal.dump("journal", 1, body))
    (outside / ".glm-pto-0123456789abcdef-0.old").write_bytes(b"evil")
    before = snapshot(outside)
    with pytest.raises(Refusal):
        transaction.recover(tree, wait=2)
    assert snapshot(outside) == before


@pytest.mark.parametrize("change_id", ["../../../evil", "", "0123456789abcdeg", 5])
def test_a_forged_id_names_no_file(tree: Path, change_id: object) -> None:
    work = journal.Journal("0123456789abcdef", 1, (journal.Entry("vllm/a.py", "x", "y"),))
    body = {**asdict(work), "id": change_id}
    (tree / ".glm-pto").mkdir()
    (tree / ".glm-pto" / journal.OPEN).write_bytes(seal.dump("journal", 1, body))
    with pytest.raises(Refusal, match="journal that cannot be used"):
        transaction.recover(tree, wait=2)


def sealed(**different: object) -> bytes:
    """A journal with a right checksum and a wrong content."""
    entry = asdict(journal.Entry("vllm/a.py", "x", "y"))
    return seal.dump(
        "journal", 1, {**asdict(journal.Journal("0" * 16, 1, ())), "entries": [entry], **different}
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95",
        b"[" * 200_000,
        b"{}",
        b'{"kind": "journal"}',
        b"x" * (seal.LIMIT + 1),
        seal.dump("journal", 1, {}),
        sealed(entries=[7]),
        sealed(entries=[{"path": "vllm/a.py"}]),
        sealed(entries=[{"path": "vllm/a.py", "before": 7, "after": None}]),
        sealed(folders=[7]),
        sealed(pid="1"),
    ],
    ids=[
        "empty",
        "pickle",
        "deep",
        "no_kind",
        "no_body",
        "huge",
        "no_fields",
        "entry",
        "no_hashes",
        "hash",
        "folder",
        "pid",
    ],
)
def test_a_damaged_journal_is_explained(tree: Path, data: bytes) -> None:
    (tree / ".glm-pto").mkdir()
    (tree / ".glm-pto" / journal.OPEN).write_bytes(data)
    with pytest.raises(Refusal, match=r"journal that cannot be used, .*then remove this folder"):
        commit(tree, change(tree / "vllm/a.py"))
    assert (tree / "vllm/a.py").read_bytes() == OLD


def test_a_field_that_a_later_version_adds_is_no_damage(tree: Path) -> None:
    (tree / ".glm-pto").mkdir()
    entry = {**asdict(journal.Entry("vllm/a.py", "x", "y")), "added": 1}
    (tree / ".glm-pto" / journal.OPEN).write_bytes(sealed(entries=[entry]))
    recovery = transaction.recover(tree, wait=2)
    assert recovery is not None and recovery.files == ("vllm/a.py",)


@pytest.mark.parametrize("name", [journal.OPEN, journal.DONE])
def test_a_linked_journal_is_explained(tree: Path, name: str) -> None:
    (tree / ".glm-pto").mkdir()
    (tree / ".glm-pto" / name).symlink_to("elsewhere")
    with pytest.raises(Refusal, match="journal that cannot be used, it is not a regular file"):
        transaction.recover(tree, wait=2)


@as_root
def test_a_hidden_folder_of_somebody_else_is_not_believed(tree: Path) -> None:
    hidden = tree / ".glm-pto"
    hidden.mkdir()
    os.chown(hidden, STRANGER, STRANGER)
    with pytest.raises(Refusal, match="others could have written it"):
        commit(tree, change(tree / "vllm/a.py"))


def test_a_hidden_folder_that_all_can_write_is_not_believed(tree: Path) -> None:
    hidden = tree / ".glm-pto"
    hidden.mkdir()
    hidden.chmod(0o777)
    with pytest.raises(Refusal, match="others could have written it"):
        commit(tree, change(tree / "vllm/a.py"))


def test_a_journal_that_all_can_write_is_not_believed(tree: Path) -> None:
    work = journal.Journal("0123456789abcdef", 1, (journal.Entry("vllm/a.py", None, seal.digest(OLD)),))
    (tree / ".glm-pto").mkdir()
    file = tree / ".glm-pto" / journal.OPEN
    file.write_bytes(seal.dump("journal", 1, asdict(work)))
    file.chmod(0o666)
    with pytest.raises(Refusal, match="others could have written it"):
        transaction.recover(tree, wait=2)
    assert (tree / "vllm/a.py").read_bytes() == OLD


@pytest.mark.parametrize("name", [".glm-pto", ".glm-pto/lock"])
def test_a_linked_hidden_folder_or_lock_is_refused(tree: Path, outside: Path, name: str) -> None:
    path = tree / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside if name == ".glm-pto" else outside / "a.py")
    before = snapshot(outside)
    with pytest.raises(Refusal, match="not a link"):
        commit(tree, change(tree / "vllm/a.py"))
    assert snapshot(outside) == before


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tree: Path) -> None:
    (tree / "vllm/a.py").unlink()
    os.mkfifo(tree / "vllm/a.py")
    with pytest.raises(Refusal, match="not a regular file"):
        commit(tree, change(tree / "vllm/a.py"))


def test_a_pipe_in_the_place_of_the_model_does_not_hang(tmp_path: Path) -> None:
    plant(tmp_path).unlink()
    os.mkfifo(tmp_path / FILE)
    done = run("status", tmp_path)
    assert done.returncode == 0, done.stderr
    assert stat.S_ISFIFO((tmp_path / FILE).lstat().st_mode)


@pytest.mark.parametrize("name", [".", "vllm", "vllm/models", "vllm/models/b.py"])
def test_trees_that_all_can_write_are_warned_about(tree: Path, name: str) -> None:
    (tree / name).chmod(0o777)
    notes = commit(tree, change(tree / "vllm/models/b.py"))
    told = [note for note in notes if "writable by every user" in note]
    assert len(told) == 1 and told[0].startswith(f"{tree / name} is")


def test_nothing_that_is_read_is_ever_run() -> None:
    """State, journal, metadata and sources are data: no module of the patcher can execute or unpickle any."""
    forbidden = re.compile(
        r"\b(?:eval|exec|__import__|system|popen|import_module)\(|pickle|marshal\.load|shell=True"
    )
    for file in Path(transaction.__file__).parent.rglob("*.py"):
        code = "\n".join(line.partition("#")[0] for line in file.read_text().splitlines())
        assert forbidden.findall(code) in ([], ["import_module("] if file.name == "__init__.py" else []), file


# what people see

STEER = "\x1b]0;owned\x07\x1b[2J\x9b31m\x0d\x08"


def run(*arguments: str | Path, limit: int | None = None) -> subprocess.CompletedProcess[bytes]:
    def bounded() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, "-m", "glm_pto.cli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL, preexec_fn=bounded
    )


def on_terminal(*arguments: str | Path) -> bytes:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PAGER": "cat", "TERM": "xterm"}
    command = [sys.executable, "-m", "glm_pto.cli", *map(str, arguments)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed: Linux says EIO
            break
        if not part:
            break
        seen += part
    os.close(ours)
    process.wait(timeout=60)
    return seen


def steered(output: bytes) -> bool:
    """Does the output hold a sequence of ours, beyond the colours of the tool itself?"""
    return any(bad in output for bad in (b"\x1b]0;", b"\x07", b"\x1b[2J", b"\x9b", b"\x08"))


@pytest.mark.parametrize("command", ["apply", "status", "diff", "verify", "revert", "explain gate"])
def test_a_hostile_folder_name_cannot_steer_the_terminal(tmp_path: Path, command: str) -> None:
    root = tmp_path / f"x{STEER}y"
    plant(root)
    arguments = command.split()
    assert not steered(on_terminal(*arguments, root))


@pytest.mark.parametrize(
    "text",
    [
        MODEL.replace(GATE, f"router_logits = self.gate(hidden_states, '{STEER[:4]}')  # {STEER[:-2]}"),
        f"# {STEER[:-2]}\n" + MODEL,
        MODEL.replace(GATE, f"router_logits = K.gate(hidden_states)  # {STEER[:-2]}"),
    ],
    ids=["nearest_candidate", "comment", "pasted"],
)
def test_hostile_content_cannot_steer_the_terminal(tmp_path: Path, text: str) -> None:
    plant(tmp_path, text)
    for command in ("apply", "diff"):
        assert not steered(on_terminal(command, tmp_path)), command


def test_a_hostile_edit_inside_our_lines_cannot_steer_the_terminal(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    ours = "glm_pto_kernels.gate(self.gate, hidden_states)"
    assert ours in file.read_text()
    file.write_text(file.read_text().replace(ours, f"glm_pto_kernels.gate('{STEER[:-2]}')"))
    for command in ("status", "diff", "revert"):
        assert not steered(on_terminal(command, tmp_path)), command


def test_a_hostile_version_cannot_steer_the_terminal(tmp_path: Path) -> None:
    plant(tmp_path)
    metadata = tmp_path / "vllm-0.12.0.dist-info/METADATA"
    metadata.write_text(f"Name: vllm\nVersion: 0.12.0{STEER[:-2]}\n")
    for command in ("status", "apply"):
        assert not steered(on_terminal(command, tmp_path)), command


# how much it costs


def test_a_file_without_end_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    file = plant(tmp_path)
    with file.open("r+b") as grown:
        grown.truncate(64 << 30)  # sparse
    done = run("apply", tmp_path, limit=2 << 30)
    assert done.returncode == 3, done.stderr
    assert b"glm4_moe.py" in done.stdout + done.stderr


def test_many_huge_files_elsewhere_in_the_package_cost_nothing(tmp_path: Path) -> None:
    plant(tmp_path, MODEL.replace("Glm4MoE", "Elsewhere"))
    for number in range(3):
        with (tmp_path / f"vllm/huge{number}.py").open("wb") as grown:
            grown.truncate(64 << 30)
    done = run("apply", tmp_path, limit=2 << 30)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.returncode in (0, 3)


def test_a_state_without_end_is_not_read(tmp_path: Path) -> None:
    plant(tmp_path)
    planted.apply(tmp_path)
    with (tmp_path / ".glm-pto/state.json").open("r+b") as grown:
        grown.truncate(64 << 30)
    done = run("status", tmp_path, limit=2 << 30)
    assert done.returncode == 0, done.stderr
    assert b"larger than" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "command", "code", "word"),
    [
        ("vllm/model_executor/models/__pycache__/glm4_moe.cpython-39.pyc", "apply", 3, b"is larger than"),
        ("vllm/_version.py", "apply", 0, b""),
        ("vllm-0.12.0.dist-info/METADATA", "apply", 0, b""),
        ("vllm-0.12.0.dist-info/RECORD", "status", 0, b""),
        ("glm_pto_kernels/__init__.py", "apply", 4, b"larger than"),
        (".glm-pto/state.json", "revert", 3, b"is larger than"),
    ],
)
def test_no_file_of_a_tree_is_read_without_end(
    tmp_path: Path, name: str, command: str, code: int, word: bytes
) -> None:
    plant(tmp_path)
    if command != "apply":
        planted.apply(tmp_path)
    if name.endswith("RECORD"):
        (tmp_path / FILE).write_text(MODEL)  # only then is it asked what was installed
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as grown:
        grown.truncate(64 << 30)
    done = run(command, tmp_path, limit=2 << 30)
    assert done.returncode == code, done.stderr.decode()
    assert word in done.stderr and (not word or file.name.encode() in done.stderr)
    assert b"Traceback" not in done.stderr


def test_a_file_that_grew_without_end_after_the_death_is_left_as_it_is(tmp_path: Path) -> None:
    file = plant(tmp_path)
    calls = faults.count(lambda: planted.apply(tmp_path))
    planted.revert(tmp_path)
    faults.killed(lambda: planted.apply(tmp_path), calls * 2 // 3)
    assert (tmp_path / ".glm-pto" / journal.OPEN).exists()
    with file.open("ab") as grown:
        grown.truncate(64 << 30)
    done = run("status", tmp_path, limit=2 << 30)
    assert done.returncode == 0, done.stderr.decode()
    assert not list(tmp_path.rglob(".glm-pto-*"))


def test_nothing_hostile_is_refused_without_a_name(tmp_path: Path) -> None:
    plant(tmp_path, b"\0")
    refused(tmp_path, "glm4_moe.py")
