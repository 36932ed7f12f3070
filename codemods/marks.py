"""Which files of a tree hold a guard of ours, told from their bytes: they need not be readable as Python."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from glm_pto.codemods import reading, recipes
from glm_pto.codemods.trees import Tree

MARK = b"# glm-pto: "
#: Files beyond what is edited are looked through, too: a guarded one may have grown.
_LIMIT = 64 * reading.MAX_BYTES


def candidates(tree: Tree, narrowed: Iterable[str] = ()) -> list[Path]:
    """Files that may hold a guard: those that recipes name, else every marked file of the packages."""
    named = {
        package.path / form.file
        for recipe in recipes.load()
        for place in recipe.places
        for form in place.forms
        for package in tree.packages
        if package.name == place.package
    }
    found = sorted(path for path in named if path.is_file())
    if narrowed or any(marked(path) for path in found):
        return found
    return sorted(p for package in tree.packages for p in package.path.rglob("*.py") if marked(p))


def marked(path: Path, sites: Iterable[str] | None = None) -> bool:
    """Does the file's text hold a marker of ours (of one of the sites), readable as Python or not?"""
    try:
        data = reading.load(path, _LIMIT)
    except OSError as error:  # of a file that may not be read nobody can tell; reading it again says why
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EFBIG)
    return any(MARK + site.encode() + b" " in data for site in sites) if sites else MARK in data
