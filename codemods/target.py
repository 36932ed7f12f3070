"""Where a change lands on the disk: links followed to the real file, or why it must not be written."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from glm_pto.codemods import disk, trust
from glm_pto.codemods.findings import Refusal

#: The hidden folder beside the packages that holds lock, journal and state.
CONTROL = ".glm-pto"
#: The file in it that a run locks.
LOCK = "lock"
#: FS_IOC_GETFLAGS and two of its flags (linux/fs.h): nobody may replace what has them.
_GETFLAGS, _IMMUTABLE, _APPEND = 0x80086601, 0x10, 0x20


@dataclass(frozen=True)
class Spot:
    """A file by the real folder it lives in and its name there; ``path`` is how the tree calls it."""

    path: str
    parent: Path
    name: str

    @property
    def real(self) -> Path:
        """The real path, for messages."""
        return self.parent / self.name


def locate(folders: disk.Folders, path: Path | str) -> Spot:
    """Resolve ``path`` (absolute, or relative to the root) once; `Refusal` where it must not be written."""
    relative = _inside(folders, Path(path))
    logical = folders.root / relative
    real = Path(os.path.realpath(logical))
    if not real.is_relative_to(folders.root):
        problem = _leads_out(folders.root, logical, real)
        if problem:
            raise Refusal(problem)
    return Spot(relative.as_posix(), real.parent, real.name)


def cache_of(folder: Path, root: Path | None = None) -> Path | None:
    """The package cache that ``folder`` lies in; folders that hold ``root`` too do not count.

    A cache's files are shared by every environment made from it: changing one changes them all.
    """
    personal = _personal_cache()
    for ancestor in (folder, *folder.parents):
        if root is not None and root.is_relative_to(ancestor):
            return None
        tagged = (ancestor / "CACHEDIR.TAG").exists() and not (ancestor / "pyvenv.cfg").exists()
        conda = ancestor.name == "pkgs" and (ancestor / "urls.txt").exists()
        if conda or ancestor == Path("/nix/store") or (root is not None and (tagged or ancestor == personal)):
            return ancestor
        if ancestor.name.startswith("archive-v") and (ancestor.parent / "CACHEDIR.TAG").exists():
            return ancestor.parent
    return None


def _personal_cache() -> Path | None:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # a user without a home, as in some containers
        return None


def read_only(folder: int, spot: Spot, found: os.stat_result | None) -> str | None:
    """Why the file, or its folder, is not ours to write; None where it is.

    What has no write permission at all is refused to root too: whoever made it so meant it.
    """
    why = _not_ours(
        folder, os.fstat(folder), os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True)
    )
    if why:
        return f"{spot.parent}: the folder is {why} (for {spot.name})"
    if found is None:
        return None
    above = os.fstat(folder)
    if above.st_mode & stat.S_ISVTX and os.geteuid() not in (0, above.st_uid, found.st_uid):
        return (
            f"{spot.real}: the file belongs to user {found.st_uid}, and in a sticky folder "
            f"(mode {stat.S_IMODE(above.st_mode):04o}) nobody else may replace it; run as that user"
        )
    permitted = os.access(spot.name, os.W_OK, dir_fd=folder, effective_ids=True)
    handle = os.open(spot.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        why = _not_ours(handle, found, permitted)
    finally:
        os.close(handle)
    return f"{spot.real}: the file is {why}" if why else None


def _not_ours(handle: int, found: os.stat_result, permitted: bool) -> str:
    """What keeps this user from replacing a file or folder, and what to do; empty where nothing does."""
    for flag, word, letter in ((_IMMUTABLE, "immutable", "i"), (_APPEND, "append-only", "a")):
        if _attributes(handle) & flag:
            return f"{word} (chattr +{letter}), to root too; take that off (chattr -{letter}) if it is yours"
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o222:
        return f"read-only (mode {mode:04o}); make it writable (chmod u+w) if it is yours to change"
    if permitted:
        return ""
    if os.fstatvfs(handle).f_flag & os.ST_RDONLY:
        return "on a read-only file system; make a writable copy of the environment"
    return f"read-only for this user (owner {found.st_uid}, mode {mode:04o}); run as its owner"


def _attributes(handle: int) -> int:
    """The file's attributes as ``chattr`` sets them; 0 where its file system has none."""
    try:
        answer = fcntl.ioctl(handle, _GETFLAGS, bytes(8))
    except OSError:
        return 0
    return int.from_bytes(answer[:4], sys.byteorder)


def open_to_all(folders: disk.Folders, files: dict[Path, int]) -> tuple[str, ...]:
    """A warning for every file (real path to mode), and every folder above it, that any user can change."""
    above = {folder for file in files for folder in file.parents}
    held = {p for p in above if p.is_relative_to(folders.root)} | {file.parent for file in files}
    modes = {real: os.fstat(folders.open(real)).st_mode for real in (folders.root, *sorted(held))}
    return tuple(
        f"{real} is writable by every user of this machine: anyone can change what is imported from it"
        for real, mode in {**modes, **files}.items()
        if mode & stat.S_IWOTH
    )


def _inside(folders: disk.Folders, path: Path) -> Path:
    for base in (folders.given, folders.root):
        if path.is_absolute() and path.is_relative_to(base):
            path = path.relative_to(base)
            break
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(path):
        raise Refusal(f"{path}: lies outside the tree {folders.root}; nothing outside it is ever written")
    return path


def _leads_out(root: Path, logical: Path, real: Path) -> str | None:
    """Links out of the tree are followed where they are trusted and do not end in a package cache."""
    cache = cache_of(real.parent, root)
    if cache is not None:
        return (
            f"{logical}: is a link into the package cache {cache}, which other environments share; "
            "install the package with copied files (uv: UV_LINK_MODE=copy) and apply again"
        )
    goal = next(folder.stat() for folder in real.parents if folder.is_dir())
    for part in (logical, *logical.parents):
        if part == root:
            break
        link = os.lstat(part) if os.path.lexists(part) else None
        if link is not None and stat.S_ISLNK(link.st_mode) and not trust.follows(link, goal, root.stat()):
            return (
                f"{part}: is a link out of the tree to {real}, made by another user (id {link.st_uid}); "
                "name the folder that it leads to as TREE, or make the link yourself"
            )
    return None
