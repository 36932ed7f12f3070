"""What betrays a computation outside of the statements that a form names: texts, or the use of a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from glm_pto.codemods import guard, reading
from glm_pto.codemods.findings import Finding, State
from glm_pto.codemods.recipe import Place, Recipe
from glm_pto.codemods.source import Source, Unreadable, bounded

if TYPE_CHECKING:
    from glm_pto.codemods.plan import Files
    from glm_pto.codemods.trees import Package


@dataclass(frozen=True)
class Use:
    """Code that needs a module and that no guard covers. ``line`` counts from 1."""

    path: Path
    name: str
    line: int
    text: str


def mentioning(files: Files, site: str, texts: tuple[str, ...], package: Package) -> Iterator[Path]:
    """The files of a package that hold all the texts; raises `Unreadable` where nobody can tell."""
    for path in sorted(package.path.rglob("*.py")):
        if "_310p" in path.parts:
            continue
        try:
            data = reading.load(path)
        except OSError as error:
            if error.errno in reading.NO_SOURCE:
                continue
            raise Unreadable(
                f"{files.name(path)}: cannot be read ({error.strerror}), so nobody can tell whether {site} "
                "stands in it"
            ) from None
        if all(text.encode() in data for text in texts):
            yield path


def uses(files: Files, recipe: Recipe, place: Place, package: Package, match: int | None) -> list[Use]:
    """Where the package needs the place's module outside of the recipe's guards and of the line that it is
    going to guard (``match``, from 1, in the file of the first form)."""
    if place.module is None:
        return []
    found = []
    for path in mentioning(files, recipe.site, (place.module,), package):
        file = files.get(path)
        if file is None:
            continue
        covered = {match} if match and path == package.path / place.forms[0].file else set()
        lines = _needing(file, recipe.site, place.module) - covered
        found += [Use(path, file.name, line, file.lines[line - 1].strip()) for line in sorted(lines)]
    return found


@bounded
def _needing(file: Source, site: str, module: str) -> set[int]:
    """Lines that import the module, or name it in a string, as `importlib.import_module` needs it."""
    nodes = (node for node in ast.walk(file.tree) if isinstance(node, (ast.stmt, ast.expr)))
    lines = {n.lineno for n in nodes if any(name.partition(".")[0] == module for name in _named(n))}
    for one in guard.find(file):
        if one.site == site:
            lines -= set(range(one.header + 1, one.end + 1))
    return lines


def _named(node: ast.stmt | ast.expr) -> list[str]:
    """The modules that a node may load."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.module and not node.level else []
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return [text] if all(part.isidentifier() for part in text.split(".")) else []


def other_form(recipe: Recipe, place: Place, package: Package, blank: Finding, use: Use) -> Finding:
    """The finding where the package needs the module, but not in a known form."""
    message = (
        f"{use.name}:{use.line}: `{use.text}` needs {place.module}, but not in the form that {recipe.site} "
        f"guards ({package.name} {package.version or 'of unknown version'}). Expected: {_expected(place)}. "
        f"Write it so, report this release, or use --skip {recipe.site}"
    )
    return replace(blank, state=State.MOVED, file=use.name, line=use.line, message=message)


def _expected(place: Place) -> str:
    form = place.forms[0]
    return f"`{form.site}` at the top level of {place.package}/{form.file}"


def none_of(place: Place) -> str:
    """What was looked for in a package that does not need the module, to end the message for "absent"."""
    if place.module is None:
        return ""
    return f": nothing in it needs {place.module} (looked for {_expected(place)})"


def uncovered(
    files: Files, recipe: Recipe, place: Place, package: Package, row: Finding, line: int | None
) -> Finding:
    """The row of a guard, or of the ``line`` that gets one, if other code needs the module too: refused
    where nothing was edited yet, only said where the guard stands."""
    if place.module is None or row.state not in (State.APPLIED, State.APPLICABLE):
        return row
    try:
        rest = uses(files, recipe, place, package, line)
        message = _beside(place, row, rest) if rest else ""
    except Unreadable as error:
        message = str(error)
    if not message:
        return row
    if row.state is State.APPLIED:
        return replace(row, message="; ".join(filter(None, (row.message, message))))
    return replace(row, state=State.AMBIGUOUS, message=f"{message}. Change it, or use --skip {recipe.site}")


def _beside(place: Place, row: Finding, rest: list[Use]) -> str:
    where = ", ".join(f"{use.name}:{use.line} (`{use.text}`)" for use in rest[:3])
    more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
    return (
        f"{where}{more} needs {place.module} too, and a guard at {row.file}:{row.line} does not cover that. "
        f"Expected: {_expected(place)}, and no other use"
    )
