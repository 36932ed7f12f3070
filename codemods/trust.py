"""Whom a tree is believed: who could have written what stands in it, and whose links may lead out of it.

One rule. Root, this user and the owner of the folder above are believed: each of them could put anything in
its place. Nobody else may gain by what he writes into the hidden folder, or by a link that he makes, what he
could not do to the tree itself.
"""

from __future__ import annotations

import os
import stat


def stranger(found: os.stat_result, above: os.stat_result) -> str:
    """Who could have written ``found`` but not replaced it in the folder ``above``, in words; empty: nobody.

    ``found`` is the hidden folder below a tree's root, or a file in the hidden folder. That a group, or all,
    can write it counts only where they cannot write the folder above as well: a tree that its group shares
    (umask 002, images for any user number with ``chmod g=u``) or that all can write (``chmod -R 777``, drives
    without modes) is theirs to change in easier ways. A sticky folder (/tmp) shares nothing: there only a
    file's owner replaces it. Modes hold for access lists too, which show as the group's bits.
    """
    mode = stat.S_IMODE(found.st_mode)
    shared = _shared(found, above)
    # Of a folder for several users any of them may have made the file; the folder itself has one owner.
    made_by_any = shared and not stat.S_ISDIR(found.st_mode)
    if found.st_uid not in (0, os.geteuid(), above.st_uid) and not made_by_any:
        return f"belongs to user {found.st_uid} (mode {mode:04o})"
    if mode & ~shared & stat.S_IWOTH:
        return f"can be written by every user (mode {mode:04o})"
    if mode & ~shared & stat.S_IWGRP:
        return f"can be written by group {found.st_gid} (mode {mode:04o})"
    return ""


def _shared(found: os.stat_result, above: os.stat_result) -> int:
    """The permissions of group and others to write ``found`` that the folder above gives them, too."""
    if above.st_mode & stat.S_ISVTX:
        return 0
    if above.st_mode & stat.S_IWOTH:
        return stat.S_IWOTH | stat.S_IWGRP
    return above.st_mode & stat.S_IWGRP if above.st_gid == found.st_gid else 0


def follows(link: os.stat_result, goal: os.stat_result, root: os.stat_result) -> bool:
    """May a link be followed out of the tree at ``root`` to a file in the folder ``goal``?

    One of root's or this user's may. One of the tree's owner may where the folder is his, too: else he could
    have root, who runs a command on his tree, write and remove files anywhere.
    """
    return link.st_uid in (0, os.geteuid()) or link.st_uid == root.st_uid == goal.st_uid
