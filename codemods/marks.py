"""Which files of a tree hold a guard of ours, told from their bytes: they need not be readable as Python."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from glm_pto.codemods import reading, recipes
from glm_pto.codemods.trees import Package, Tree

MARK = b"# glm-pto: "
#: Files beyond what is edited are looked through, too: a guarded one may have grown.
_LIMIT = 64 * reading.MAX_BYTES


def candidates(tree: Tree, narrowed: Iterable[str] = ()) -> list[Path]:
    """Files that may hold a guard: those that recipes name, else every marked file of the packages."""
    found = sorted(path for package in tree.packages for path in named(package))
    if narrowed or any(marked(path) for path in found):
        return found
    return sorted(p for package in tree.packages for p in package.path.rglob("*.py") if marked(p))


def named(package: Package) -> list[Path]:
    """The files of a package that some form may edit, as far as they are there."""
    places = (place for recipe in recipes.load() for place in recipe.places if place.package == package.name)
    files = {package.path / form.file for place in places for form in place.forms}
    return sorted(path for path in files if path.is_file())


def marked(path: Path, sites: Iterable[str] | None = None) -> bool:
    """Does the file's text hold a marker of ours (of one of the sites), readable as Python or not?"""
    try:
        data = reading.load(path, _LIMIT)
    except OSError as error:  # of a file that may not be read nobody can tell; reading it again says why
        return error.errno not in reading.NO_SOURCE
    return any(MARK + site.encode() + b" " in data for site in sites) if sites else MARK in data
