"""Two trees in one command, as where vllm and vllm-ascend are checkouts of their own: all or nothing, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from glm_pto.codemods import operations, transaction
from glm_pto.codemods.findings import FileChange, Options, Refusal, WriteFailure
from tests.codemods import planted
from tests.codemods.planted import FILE, MARK, MODEL, plant

GATE = Options(sites=("gate",))


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "one", tmp_path / "two"]
    for root in found:
        plant(root)
    return found


def test_both_trees_are_guarded_and_reverted(roots: list[Path]) -> None:
    before = [planted.names(root) for root in roots]
    assert operations.apply(roots, GATE).changed
    assert all(MARK in (root / FILE).read_bytes() for root in roots)
    operations.revert(roots)
    assert [planted.names(root) for root in roots] == before


def test_a_refusal_in_the_second_tree_puts_the_first_back(roots: list[Path]) -> None:
    (roots[1] / FILE).chmod(0o444)
    before = [planted.names(root) for root in roots]
    with pytest.raises(Refusal, match="read-only"):
        operations.apply(roots, GATE)
    assert [planted.names(root) for root in roots] == before


@pytest.mark.parametrize("failure", [WriteFailure("disk full"), KeyboardInterrupt()], ids=["disk", "ctrl_c"])
def test_a_failure_in_the_second_tree_puts_the_first_back(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    before = [planted.names(root) for root in roots]
    commit = transaction.commit

    def failing(root: Path, changes: Sequence[FileChange], *rest: object, **more: object) -> object:
        if root == roots[1]:
            raise failure
        return commit(root, changes, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(transaction, "commit", failing)
    with pytest.raises(type(failure)):
        operations.apply(roots, GATE)
    assert [planted.names(root) for root in roots] == before


def test_a_user_who_edits_between_is_not_overwritten(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first tree is done, then somebody edits it, then the second fails: the edit stays."""
    commit = transaction.commit

    def failing(root: Path, changes: Sequence[FileChange], *rest: object, **more: object) -> object:
        if root == roots[1]:
            (roots[0] / FILE).write_bytes((roots[0] / FILE).read_bytes() + b"# mine\n")
            raise WriteFailure("disk full")
        return commit(root, changes, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(transaction, "commit", failing)
    with pytest.raises(WriteFailure, match=r"disk full; .*one could not be put back and stays as it is"):
        operations.apply(roots, GATE)
    monkeypatch.undo()
    assert (roots[0] / FILE).read_bytes().endswith(b"# mine\n")
    operations.revert([roots[0]])
    assert (roots[0] / FILE).read_text() == MODEL + "# mine\n"


def test_a_package_that_both_link_to_is_worked_on_once(tmp_path: Path) -> None:
    """The trees have a package of their own, too, so neither is the other under another name."""
    real, roots = tmp_path / "real", [tmp_path / "one", tmp_path / "two"]
    plant(real)
    for root in roots:
        (root / "vllm_ascend").mkdir(parents=True)
        (root / "vllm_ascend/__init__.py").touch()
        (root / "vllm").symlink_to(real / "vllm")
    before = [planted.names(root) for root in (real, *roots)]
    result = operations.apply(roots, GATE)
    assert (real / FILE).read_bytes().count(MARK) == 1
    assert [[f.package for f in tree.findings] for tree in result.trees] == [["vllm"], []]
    assert any("two/vllm: the same folder as" in note for note in result.trees[1].notes)
    assert operations.revert(roots).changed
    assert [planted.names(root) for root in (real, *roots)] == before


def test_a_file_that_both_link_to_is_refused_with_both_names(roots: list[Path], tmp_path: Path) -> None:
    real = (roots[0] / FILE).rename(tmp_path / "shared.py")
    for root in roots:
        (root / FILE).unlink(missing_ok=True)
        (root / FILE).symlink_to(real)
    with pytest.raises(Refusal, match=r"shared\.py: .*/one/.* and .*/two/.* are links to this one file"):
        operations.apply(roots, GATE)
    assert operations.apply(roots[:1], GATE).changed
    assert operations.revert(roots[1:]).changed
    assert real.read_text() == MODEL
