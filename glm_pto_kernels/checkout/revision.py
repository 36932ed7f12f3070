"""The commit of a git work tree, read without git."""

from __future__ import annotations

import os
import re
from pathlib import Path

PACKED = 16 << 20  # bytes that are read of git's list of packed branches
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def revision(folder: Path) -> str | None:
    """The commit of the work tree around ``folder``; None where none can be told."""
    try:
        for parent in (folder, *folder.parents):
            git = parent / ".git"
            if git.is_file():  # a linked work tree or a submodule: the file says where its folder is
                place = _line(git)
                inside = place.removeprefix("gitdir: ")
                return _commit(parent / inside) if inside != place else None
            if (git / "HEAD").is_file():
                return _commit(git)
    except OSError:  # not ours to read, or a name beyond what the system takes
        return None
    return None


def _commit(git: Path) -> str | None:
    """What HEAD of a git folder is; of the files that it leads to, nothing but a commit is ever taken."""
    head = _line(git / "HEAD")
    name = head.removeprefix("ref: ")
    commit = head
    if name != head:
        if not name.startswith("refs/") or ".." in name.split("/"):
            return None
        common = git / _line(git / "commondir")  # a linked work tree shares the branches of the main one
        commit = _line(git / name) or _line(common / name) or _packed(common / "packed-refs", name)
    return commit if COMMIT.fullmatch(commit) else None


def _packed(path: Path, name: str) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        lines = file.read(PACKED).split(b"\n")[:-1]  # what is behind the last end of a line may be cut off
    wanted = b" " + os.fsencode(name)
    return next((os.fsdecode(line.removesuffix(wanted)) for line in lines if line.endswith(wanted)), "")


def _line(path: Path) -> str:
    """The first line of a file of git's, whatever its bytes are; empty for anything but a file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return os.fsdecode(file.readline(5000)).strip()
