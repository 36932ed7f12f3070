"""The transaction: what it writes, keeps and refuses when nothing goes wrong in the middle."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glm_pto.codemods import disk, state, steps, transaction
from glm_pto.codemods.findings import FileChange, Refusal
from tests.codemods import faults

OLD = b"x = 1\r\n"
NEW = b"if ready:  # glm-pto: gate 1 0123abcd\r\n    x = 2\r\nelse:\r\n    x = 1\r\n"


def snapshot(root: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Every name under ``root`` with its mode and content; the hidden folder counts like any other."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content: bytes | str | None = None
        if stat.S_ISREG(info.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(info.st_mode):
            content = str(path.readlink())
        found[path.relative_to(root).as_posix()] = (info.st_mode, content)
    return found


def change(path: Path, before: bytes | None = OLD, after: bytes | None = NEW) -> FileChange:
    return FileChange(path, before, after, "vllm")


def commit(root: Path, *changes: FileChange, wait: float = 2) -> tuple[str, ...]:
    return transaction.commit(root, changes, {"vllm": "0.12.0"}, "0.1.0", wait=wait)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "site-packages"
    for name in ("vllm/a.py", "vllm/models/b.py"):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(OLD)
    (root / "vllm/a.py").chmod(0o640)
    return root


def test_apply_and_revert_give_back_every_byte_mode_and_name(tree: Path) -> None:
    before = snapshot(tree)
    a, b = tree / "vllm/a.py", tree / "vllm/models/b.py"
    commit(tree, change(a), change(b))
    assert a.read_bytes() == b.read_bytes() == NEW
    assert stat.S_IMODE(a.stat().st_mode) == 0o640
    record = state.load(tree).record
    assert record is not None and set(record.files) == {"vllm/a.py", "vllm/models/b.py"}
    assert record.files["vllm/a.py"].mode == 0o640
    assert record.files["vllm/a.py"].sites == ("gate",)
    assert (tree / ".glm-pto/.gitignore").read_text() == "*\n"
    for ours in (tree / ".glm-pto").iterdir():
        assert not ours.stat().st_mode & 0o133, "nobody but the owner writes our files, and nobody runs them"
    commit(tree, change(a, NEW, OLD), change(b, NEW, OLD))
    assert snapshot(tree) == before


def test_creates_and_removes_files_with_their_folders(tree: Path) -> None:
    before = snapshot(tree)
    made = [FileChange(tree / p, None, OLD, "kernels") for p in ("k/__init__.py", "k/ops/deep/gate.py")]
    commit(tree, *made)
    record = state.load(tree).record
    assert record is not None
    assert [path for path, file in record.files.items() if file.made] == [
        "k/__init__.py",
        "k/ops/deep/gate.py",
    ]
    commit(tree, *(FileChange(c.path, OLD, None, "kernels") for c in made))
    assert snapshot(tree) == before


def test_refuses_a_file_that_changed_since_it_was_read(tree: Path) -> None:
    (tree / "vllm/models/b.py").write_bytes(OLD + b"# mine\n")
    before = snapshot(tree)
    with pytest.raises(Refusal, match=r"b\.py: changed since it was read"):
        commit(tree, change(tree / "vllm/a.py"), change(tree / "vllm/models/b.py"))
    assert snapshot(tree) == before


@pytest.mark.parametrize("path", ["../outside.py", "vllm/../../outside.py", "/etc/hostname"])
def test_refuses_a_path_outside_the_tree(tree: Path, path: str) -> None:
    with pytest.raises(Refusal, match="outside the tree"):
        commit(tree, change(Path(path)))


def test_refuses_to_create_over_an_existing_file(tree: Path) -> None:
    with pytest.raises(Refusal, match="exists already"):
        commit(tree, change(tree / "vllm/a.py", None, NEW))
    assert (tree / "vllm/a.py").read_bytes() == OLD


def test_refuses_a_file_that_is_named_twice(tree: Path) -> None:
    file = tree / "vllm/a.py"
    with pytest.raises(Refusal, match=r"a\.py: named twice in one change"):
        commit(tree, change(file), change(file, OLD, OLD + b"# again\n"))
    assert file.read_bytes() == OLD


@pytest.mark.parametrize("where", ["cache/archive-v0/a1", "pkgs/vllm-0.12.0"], ids=["uv", "conda"])
def test_refuses_a_tree_inside_of_a_package_cache(tmp_path: Path, where: str) -> None:
    file = tmp_path / where / "vllm/a.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(OLD)
    for tag in ("cache/CACHEDIR.TAG", "pkgs/urls.txt"):
        (tmp_path / tag).parent.mkdir(exist_ok=True)
        (tmp_path / tag).touch()
    with pytest.raises(Refusal, match="lies in the package cache"):
        commit(tmp_path / where, change(file))
    assert file.read_bytes() == OLD


def test_a_link_that_stays_in_the_cache_the_tree_lies_in_is_followed(tmp_path: Path) -> None:
    """A build folder under ~/.cache: tree and target are both somebody's own work there."""
    (tmp_path / "CACHEDIR.TAG").touch()
    real = tmp_path / "sources/a.py"
    real.parent.mkdir()
    real.write_bytes(OLD)
    link = tmp_path / "tree/vllm/a.py"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    commit(tmp_path / "tree", change(link))
    assert link.is_symlink() and real.read_bytes() == NEW


@pytest.mark.parametrize(
    ("happens", "disturbed"),
    [
        (lambda file: None, False),
        (lambda file: file.write_bytes(OLD[::-1]), True),
        (lambda file: file.write_bytes(OLD + b"# mine\n"), True),
        (lambda file: file.unlink(), True),
        (lambda file: (file.unlink(), file.symlink_to("c.py")), True),
        (lambda file: (file.unlink(), file.mkdir()), True),
    ],
    ids=["nothing", "same_length", "longer", "gone", "link", "folder"],
)
def test_a_file_is_looked_at_again_before_it_is_replaced(
    tree: Path, happens: Callable[[Path], object], disturbed: bool
) -> None:
    file = tree / "vllm/a.py"
    with disk.Folders(tree) as folders:
        (step,), _ = steps.prepare(folders, [change(file)])
        happens(file)
        assert step.disturbed(folders.open(step.spot.parent)) is disturbed


@pytest.mark.parametrize("appears", [False, True])
def test_a_file_to_be_made_is_looked_for_again(tree: Path, appears: bool) -> None:
    file = tree / "vllm/c.py"
    with disk.Folders(tree) as folders:
        (step,), _ = steps.prepare(folders, [change(file, None)])
        if appears:
            file.touch()
        assert step.disturbed(folders.open(step.spot.parent)) is appears


def test_writes_nothing_when_nothing_changes(tree: Path) -> None:
    before = snapshot(tree)
    assert commit(tree, change(tree / "vllm/a.py", OLD, OLD)) == ()
    assert snapshot(tree) == before
    assert transaction.recover(tree) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_and_the_extended_attributes_stay(tree: Path) -> None:
    file = tree / "vllm/a.py"
    os.chown(file, 4321, 1234)
    file.chmod(0o4750)
    try:
        os.setxattr(file, "user.origin", b"wheel")
    except OSError:
        pytest.skip("no extended attributes on this file system")
    commit(tree, change(file))
    info = file.stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (4321, 1234, 0o4750)
    assert os.getxattr(file, "user.origin") == b"wheel"


def test_a_user_who_may_not_give_files_away_still_gets_the_edit(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fchown(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", fchown)
    commit(tree, change(tree / "vllm/a.py"))
    assert (tree / "vllm/a.py").read_bytes() == NEW


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Path]:
    """A tree of root's in a folder that every user can reach."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "vllm/a.py"
        file.parent.mkdir()
        file.write_bytes(OLD)
        yield Path(folder)


def as_another_user(run: Callable[[], object]) -> int:
    """How a run ends for a user who is not root (65534 is nobody on most systems)."""

    def child() -> object:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        return run()

    return faults.child(child, faults.dies, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("sticky", [False, True], ids=["of_root", "sticky"])
def test_a_file_that_this_user_may_not_replace_is_refused_before_the_first_write(
    others: Path, sticky: bool
) -> None:
    file = others / "vllm/a.py"
    if sticky:
        os.chown(others, 65534, 65534)
        file.parent.chmod(0o1777)
        file.chmod(0o666)
    before = snapshot(others)
    if sticky:
        words = (f"{file}: the file belongs to user 0", "sticky folder (mode 1777)", "run as that user")
    else:
        words = (f"{others}: the folder is read-only for this user (owner 0, mode 0755); run as its owner",)

    def run() -> None:
        try:
            commit(others, change(file))
        except Refusal as refusal:
            assert all(word in str(refusal) for word in words), refusal
            raise

    assert as_another_user(run) == faults.REFUSED
    assert snapshot(others) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_sticky_folder_does_not_bind_root(others: Path) -> None:
    file = others / "vllm/a.py"
    os.chown(file, 1234, 1234)
    os.chown(file.parent, 4321, 4321)
    file.parent.chmod(0o1777)
    commit(others, change(file))
    assert file.read_bytes() == NEW


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_all_share_lets_all_replace_its_files(others: Path) -> None:
    file = others / "vllm/a.py"
    for path, mode in ((others, 0o777), (file.parent, 0o777), (file, 0o666)):
        path.chmod(mode)
    assert as_another_user(lambda: commit(others, change(file))) == faults.DONE
    assert file.read_bytes() == NEW


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_interrupted_run_of_root_is_left_to_root(others: Path) -> None:
    file = others / "vllm/a.py"
    calls = faults.count(lambda: commit(others, change(file)))
    commit(others, change(file, NEW, OLD))
    faults.killed(lambda: commit(others, change(file)), calls * 2 // 3)
    before = snapshot(others)
    assert as_another_user(lambda: transaction.recover(others, wait=2)) == faults.REFUSED
    assert snapshot(others) == before
    assert transaction.recover(others, wait=2) is not None
    assert file.read_bytes() == OLD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("applied", [False, True], ids=["untouched", "applied"])
def test_a_tree_at_rest_needs_no_permission_to_be_looked_at(others: Path, applied: bool) -> None:
    """Taking the lock would refuse `status` to everybody but the owner of the environment."""
    if applied:
        commit(others, change(others / "vllm/a.py"))
    assert as_another_user(lambda: transaction.recover(others, wait=0)) == faults.DONE


def test_a_name_as_long_as_names_can_be(tree: Path) -> None:
    file = tree / "vllm" / ("x" * 252 + ".py")
    file.write_bytes(OLD)
    commit(tree, change(file))
    assert file.read_bytes() == NEW
