"""Whom a tree is believed: one rule for the hidden folder, what stands in it, and links out of the tree."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from glm_pto.codemods import disk, journal, lock, seal, state, transaction, trust
from glm_pto.codemods.findings import Refusal
from tests.codemods.test_transaction import NEW, OLD, change, commit, snapshot, tree

__all__ = ["tree"]  # the fixture of the neighbour

FOLDER, FILE = stat.S_IFDIR, stat.S_IFREG
ME, ALICE, BOB = os.geteuid(), 54321, 54322
TEAM, OTHER = 2001, 2002
as_root = pytest.mark.skipif(ME != 0, reason="only root can give files away")


def entry(kind: int, mode: int, owner: int = ALICE, group: int = TEAM) -> os.stat_result:
    return os.stat_result((kind | mode, 0, 0, 1, owner, group, 0, 0, 0, 0))


SITE_PACKAGES = entry(FOLDER, 0o755, owner=0, group=0)
PRIVATE = entry(FOLDER, 0o755)
SHARED = entry(FOLDER, 0o2775)
STICKY = entry(FOLDER, 0o1777, owner=0, group=0)
OPEN = entry(FOLDER, 0o777)

BELIEVED = {
    "root_in_roots_tree": (entry(FOLDER, 0o755, owner=0, group=0), SITE_PACKAGES),
    "root_in_a_users_tree": (entry(FOLDER, 0o755, owner=0), PRIVATE),
    "tree_owner": (entry(FOLDER, 0o755), PRIVATE),
    "this_user_in_a_tree_of_root": (entry(FOLDER, 0o755, owner=ME), SITE_PACKAGES),
    "this_user_in_a_sticky_folder": (entry(FOLDER, 0o755, owner=ME), STICKY),
    "umask_002_with_a_group_of_ones_own": (entry(FOLDER, 0o775), entry(FOLDER, 0o775)),
    "group_that_shares_the_tree": (entry(FOLDER, 0o2775), SHARED),
    "image_for_any_user_number": (
        entry(FOLDER, 0o775, owner=0, group=0),
        entry(FOLDER, 0o775, owner=0, group=0),
    ),
    "everybodys_tree": (entry(FOLDER, 0o777), OPEN),
    "group_of_another_number_in_everybodys_tree": (entry(FOLDER, 0o775, group=OTHER), OPEN),
    "file_of_any_of_those_who_share_the_folder": (entry(FILE, 0o664, owner=BOB), SHARED),
    "file_of_the_folders_owner": (entry(FILE, 0o644), PRIVATE),
}
DOUBTED = {
    "folder_of_a_stranger": (entry(FOLDER, 0o755, owner=BOB), PRIVATE, f"belongs to user {BOB} (mode 0755)"),
    "folder_of_a_stranger_in_roots_tree": (
        entry(FOLDER, 0o700, owner=BOB),
        SITE_PACKAGES,
        f"belongs to user {BOB}",
    ),
    "folder_of_a_stranger_in_tmp": (entry(FOLDER, 0o755, owner=BOB), STICKY, f"belongs to user {BOB}"),
    "folder_of_one_of_those_who_share": (entry(FOLDER, 0o755, owner=BOB), SHARED, f"belongs to user {BOB}"),
    "open_to_all": (entry(FOLDER, 0o777), PRIVATE, "can be written by every user (mode 0777)"),
    "open_to_all_in_a_shared_tree": (entry(FOLDER, 0o777), SHARED, "can be written by every user"),
    "open_to_all_in_tmp": (entry(FOLDER, 0o777, owner=ME), STICKY, "can be written by every user"),
    "open_to_a_group": (entry(FOLDER, 0o775), PRIVATE, "can be written by group 2001 (mode 0775)"),
    "open_to_another_group": (entry(FOLDER, 0o775, group=OTHER), SHARED, "can be written by group 2002"),
    "open_to_the_group_of_a_sticky_folder": (
        entry(FOLDER, 0o775),
        entry(FOLDER, 0o3775),
        "can be written by group 2001",
    ),
    "file_of_a_stranger": (entry(FILE, 0o644, owner=BOB), PRIVATE, f"belongs to user {BOB}"),
    "file_open_to_all": (entry(FILE, 0o666), PRIVATE, "can be written by every user"),
    "file_open_to_all_in_a_shared_folder": (entry(FILE, 0o666), SHARED, "can be written by every user"),
    "file_open_to_a_group": (entry(FILE, 0o664), PRIVATE, "can be written by group 2001"),
}


@pytest.mark.parametrize(("found", "above"), BELIEVED.values(), ids=BELIEVED)
def test_what_only_those_could_write_who_own_the_tree_is_believed(
    found: os.stat_result, above: os.stat_result
) -> None:
    assert trust.stranger(found, above) == ""


@pytest.mark.parametrize(("found", "above", "words"), DOUBTED.values(), ids=DOUBTED)
def test_what_others_could_have_written_is_not(
    found: os.stat_result, above: os.stat_result, words: str
) -> None:
    assert trust.stranger(found, above).startswith(words)


LINKS = {
    "of_root": (0, BOB, ALICE, True),
    "of_this_user": (ME, BOB, ALICE, True),
    "of_the_trees_owner_to_his_own": (ALICE, ALICE, ALICE, True),
    "of_the_trees_owner_to_roots": (ALICE, 0, ALICE, False),
    "of_the_trees_owner_to_a_third_users": (ALICE, BOB, ALICE, False),
    "of_a_stranger_to_his_own": (BOB, BOB, ALICE, False),
    "of_a_stranger_in_roots_tree": (BOB, 0, 0, False),
}


@pytest.mark.parametrize(("link", "goal", "root", "wanted"), LINKS.values(), ids=LINKS)
def test_a_link_leads_out_of_a_tree_only_to_what_its_maker_may_change(
    link: int, goal: int, root: int, wanted: bool
) -> None:
    made = entry(stat.S_IFLNK, 0o777, owner=link)
    assert trust.follows(made, entry(FOLDER, 0o755, owner=goal), entry(FOLDER, 0o755, owner=root)) is wanted


def verdicts(tree: Path) -> list[str]:
    """What the reader of the state and the one who locks say of the hidden folder."""
    found = [state.load(tree).problem]
    try:
        with disk.Folders(tree) as folders, lock.hold(folders, 0):
            found.append("")
    except Refusal as refusal:
        found.append(str(refusal))
    return found


@pytest.mark.parametrize(
    ("root", "home", "believed"),
    [
        (0o755, 0o755, True),
        (0o755, 0o775, False),
        (0o755, 0o777, False),
        (0o775, 0o775, True),
        (0o775, 0o777, False),
        (0o777, 0o777, True),
        (0o1777, 0o777, False),
        (0o1777, 0o755, True),
    ],
)
def test_reading_and_locking_judge_the_hidden_folder_alike(
    tree: Path, root: int, home: int, believed: bool
) -> None:
    commit(tree, change(tree / "vllm/a.py"))
    tree.chmod(root)
    (tree / ".glm-pto").chmod(home)
    read, locked = verdicts(tree)
    assert bool(read) is bool(locked) is not believed
    for said in (read, locked) if not believed else ():
        assert said.startswith(f"{tree / '.glm-pto'}: can be written by ")
        assert f"(mode {home:04o}), so others could have written it" in said
        assert (
            "look at it, then move it away" in said.lower() and "the guards in the files are enough" in said
        )


@as_root
@pytest.mark.parametrize("name", [".glm-pto/state.json", ".glm-pto/journal.json"])
def test_a_strangers_file_in_the_hidden_folder_is_not_believed(tree: Path, name: str) -> None:
    commit(tree, change(tree / "vllm/a.py"))
    work = journal.Journal("0123456789abcdef", 1, (journal.Entry("vllm/a.py", None, seal.digest(NEW)),))
    if name.endswith("journal.json"):
        (tree / name).write_bytes(seal.dump("journal", 1, asdict(work)))
    os.chown(tree / name, BOB, BOB)
    if name.endswith("journal.json"):
        with pytest.raises(Refusal, match=rf"journal\.json belongs to user {BOB} \(mode 0644\), so others"):
            transaction.recover(tree, wait=0)
    else:
        assert f"state.json: belongs to user {BOB} (mode 0644), so others" in state.load(tree).problem
    assert (tree / "vllm/a.py").read_bytes() == NEW


@as_root
@pytest.mark.parametrize("done", [False, True], ids=["open", "done"])
def test_the_owner_of_a_tree_cannot_have_root_remove_what_is_not_his(
    tree: Path, tmp_path: Path, done: bool
) -> None:
    """His link and his forged journal name a file that only root may remove."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_bytes(OLD)
    (tree / "etc").symlink_to(outside)
    entries = (journal.Entry("etc/a.py", None, None, True),)
    (tree / ".glm-pto").mkdir()
    file = tree / ".glm-pto" / (journal.DONE if done else journal.OPEN)
    file.write_bytes(seal.dump("journal", 1, asdict(journal.Journal("0123456789abcdef", 1, entries))))
    for path in (tree, tree / "etc", tree / ".glm-pto", file):
        os.chown(path, BOB, BOB, follow_symlinks=False)
    before = snapshot(outside)
    with pytest.raises(Refusal, match=rf"etc: is a link out of the tree .* another user \(id {BOB}\); name"):
        transaction.recover(tree, wait=0)
    assert snapshot(outside) == before


@as_root
def test_the_owner_of_a_tree_may_link_to_what_is_his(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tree / "vllm").rename(outside)
    (tree / "vllm").symlink_to(outside)
    for path in (tree, tree / "vllm", outside):
        os.chown(path, BOB, BOB, follow_symlinks=False)
    commit(tree, change(tree / "vllm/a.py"))
    assert (outside / "a.py").read_bytes() == NEW
