"""Why no form fits: "moved", with the statements most like a form's and in what they differ, or "absent"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from glm_pto.codemods import elsewhere, locate, pattern
from glm_pto.codemods.findings import Finding, State
from glm_pto.codemods.recipe import MODULE, Form, Place, Recipe
from glm_pto.codemods.source import Source, Unreadable, bounded, first_line

if TYPE_CHECKING:
    from glm_pto.codemods.plan import Files
    from glm_pto.codemods.trees import Package

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
#: Longer texts are cut before they are compared: that a site is near shows in its beginning.
_COMPARED = 600
#: From this likeness on, a statement at the top level of a file may be the one that was looked for.
_ALIKE = 0.7
#: No function upstream has so many statements; bounds the time of a hostile one.
_LOOKED_AT = 500


@dataclass(frozen=True)
class Near:
    """Statements in the function that a form names. ``line`` counts from 1, ``likeness`` is in [0, 1]."""

    form: Form
    line: int
    likeness: float
    wanted: str
    found: str

    @property
    def difference(self) -> str:
        """The first differences in words, or that only the place differs."""
        if self.wanted == self.found:
            return "the same statements, but in another block than the reviewed one"
        before, after = _TOKEN.findall(self.wanted), _TOKEN.findall(self.found)
        parts = [
            f"{_quoted(before[a:b])} is {_quoted(after[c:d])} here"
            for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
            if kind != "equal"
        ]
        return "; ".join(parts[:3]) + ("; ..." if len(parts) > 3 else "")


@bounded
def nearest(source: Source, forms: Iterable[Form]) -> Near | None:
    """The most alike run of statements for any of the forms; None where no form's function is there."""
    found = (near for form in forms for near in islice(_candidates(source, form), _LOOKED_AT))
    return max(found, key=lambda near: near.likeness, default=None)


def _candidates(source: Source, form: Form) -> Iterator[Near]:
    site = pattern.compile_pattern(form.site)
    wanted = _text(site).replace("__hole_", "$")
    for function in locate.functions(source.tree, form.scope):
        for block, _, _ in locate.blocks(function):
            for start in range(len(block)):
                text = _text(block[start : start + len(site)])
                likeness = SequenceMatcher(None, wanted, text, autojunk=False).ratio()
                # That a file has a top level says nothing, as that a function of the name is there does.
                if form.scope == MODULE and likeness < _ALIKE:
                    continue
                yield Near(form, first_line(block[start]) + 1, likeness, wanted, text)


def _text(block: Iterable[ast.stmt]) -> str:
    return "\n".join(ast.unparse(s) for s in block)[:_COMPARED]


def _quoted(tokens: list[str]) -> str:
    text = "".join(tokens)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return f"`{shown}`" if text.strip() else "nothing"


def explain(
    files: Files, recipe: Recipe, place: Place, package: Package, blank: Finding
) -> tuple[Finding, Path | None]:
    """The finding for a place where nothing fits, and the file that it names."""
    version = package.version or "of unknown version"
    try:
        needing = elsewhere.uses(files, recipe, place, package, None)
        near = None if needing else _nearest_of(files, place, package)
    except Unreadable as error:
        return replace(blank, state=State.MOVED, message=str(error)), None
    if needing:
        return elsewhere.other_form(recipe, place, package, blank, needing[0]), needing[0].path
    if near is not None:
        file, candidate = near
        first, likest = candidate.wanted.splitlines()[0], candidate.found.splitlines()[0]
        message = (
            f"{file.name}: {candidate.form.scope} is there, but the statements that {recipe.site} replaces "
            f"are not ({package.name} {version}). Expected: {first}. Nearest, line {candidate.line}, "
            f"{candidate.likeness:.0%} alike: {likest}. Difference: {candidate.difference}. "
            f"Report this release, or use --skip {recipe.site}"
        )
        row = replace(blank, state=State.MOVED, file=file.name, line=candidate.line, message=message)
        return row, package.path / candidate.form.file
    try:
        found = _landmarks(files, recipe.site, place, package)
    except Unreadable as error:  # the computation may stand in there
        return replace(blank, state=State.MOVED, message=str(error)), None
    if found is None:
        message = f"{package.name} {version} has no such computation{elsewhere.none_of(place)}"
        return replace(blank, message=message), None
    path, line = found
    message = (
        f"{files.name(path)}:{line}: this function looks like what {recipe.site} replaces, but no known "
        f"form fits ({package.name} {version}). Report this release, or use --skip {recipe.site}"
    )
    return replace(blank, state=State.MOVED, file=files.name(path), line=line, message=message), path


def _nearest_of(files: Files, place: Place, package: Package) -> tuple[Source, Near] | None:
    found = []
    for name in dict.fromkeys(form.file for form in place.forms):
        file = files.get(package.path / name)
        near = file and nearest(file, [f for f in place.forms if f.file == name])
        if file and near:
            found.append((file, near))
    return max(found, key=lambda pair: pair[1].likeness, default=None)


def _landmarks(files: Files, site: str, place: Place, package: Package) -> tuple[Path, int] | None:
    """A function elsewhere in the package with all the landmarks; only asked when nothing fits."""
    if not place.landmarks:
        return None
    for path in elsewhere.mentioning(files, site, place.landmarks, package):
        file = files.get(path)
        line = None if file is None else locate.holds_all(file.tree, file.lines, place.landmarks)
        if line is not None:
            return path, line
    return None
