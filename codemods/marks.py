"""Which files of a tree hold a guard of ours, told from their bytes: they need not be readable as Python."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from glm_pto.codemods import reading, recipes, state
from glm_pto.codemods.trees import Tree

MARK = b"# glm-pto: "
#: Files beyond what is edited are looked through, too: a guarded one may have grown.
_LIMIT = 64 * reading.MAX_BYTES


def candidates(tree: Tree) -> list[Path]:
    """Files that may hold a guard; without a record of them, every marked file of the packages too."""
    record = state.load(tree.root).record
    found = files(tree, record)
    if record is not None and any(marked(path) for path in found):
        return found
    scanned = {p for package in tree.packages for p in package.path.rglob("*.py") if marked(p)}
    return sorted(scanned.union(found))


def files(tree: Tree, record: state.Record | None) -> list[Path]:
    """Files of the packages that some form may edit, or that the state remembers, as far as they are there.

    An older glm-pto may have guarded a file that no form names any more.
    """
    homes = {package.name: package.path for package in tree.packages}
    places = (place for recipe in recipes.load() for place in recipe.places if place.package in homes)
    found = {homes[place.package] / form.file for place in places for form in place.forms}
    known = record.files.items() if record is not None else ()
    found |= {tree.root / name for name, file in known if file.sites and name.partition("/")[0] in homes}
    return sorted(path for path in found if path.is_file())


def marked(path: Path, sites: Iterable[str] | None = None) -> bool:
    """Does the file's text hold a marker of ours (of one of the sites), readable as Python or not?"""
    try:
        data = reading.load(path, _LIMIT)
    except OSError as error:  # of a file that may not be read nobody can tell; reading it again says why
        return error.errno not in reading.NO_SOURCE
    return any(MARK + site.encode() + b" " in data for site in sites) if sites else MARK in data
