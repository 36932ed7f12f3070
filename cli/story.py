"""What is to be told of one site: the recipe's own words, the layer's conditions, what a tree shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import glm_pto
from glm_pto.cli import document
from glm_pto.codemods import kernels
from glm_pto.codemods import recipe as recipes
from glm_pto.codemods.findings import Finding, TreeReport, UsageError
from glm_pto.codemods.recipes import load

CONTEXT = 3


@dataclass(frozen=True)
class Story:
    """``paragraphs`` are (heading, lines) in the order of telling; ``document`` is the same for `--json`."""

    paragraphs: tuple[tuple[str, tuple[str, ...]], ...]
    document: dict[str, Any]


def of(site: str, trees: tuple[Path, ...], python: Path | None) -> Story:
    """Everything about a site; where no tree is named and no known package installed, its recipe alone."""
    recipe = next(r for r in load() if r.site == site)
    try:
        found = glm_pto.status(trees, glm_pto.Options((site,)), python=python).trees
    except UsageError:
        if trees or python:
            raise
        found = ()
    return explain(recipe, found)


def explain(recipe: recipes.Recipe, trees: Sequence[TreeReport]) -> Story:
    """Everything about a recipe, and what was found of it in the trees."""
    asks = conditions(recipe.site)
    paragraphs: list[tuple[str, tuple[str, ...]]] = [
        (f"{recipe.site}: {recipe.title}", (recipe.why, *(f"see {link}" for link in recipe.links))),
        ("Switch", (f"{recipe.switch}=0 in the environment turns it off; the original code runs then.",)),
        ("Replaced by", (f"{recipes.KERNELS}.{recipe.function}",)),
        ("Left to the original code when", asks or (asks_nothing(),)),
        ("Obsolete when", (recipe.drop_when,)),
        ("Looked for in", looked_for(recipe, {p for t in trees for p in t.packages})),
    ]
    for tree in trees:
        if tree.notes:
            paragraphs.append((f"Of {tree.root}", tree.notes))
        for finding in tree.findings:
            paragraphs.append((f"In {tree.root}", tuple(_found(tree, finding))))
    facts = {
        "site": recipe.site, "title": recipe.title, "why": recipe.why, "links": list(recipe.links),
        "switch": recipe.switch, "function": recipe.function, "drop_when": recipe.drop_when,
        "refused_when": list(asks), **document.of_trees(trees, None),
    }  # fmt: skip
    return Story(tuple(paragraphs), facts)


def looked_for(recipe: recipes.Recipe, packages: set[str]) -> tuple[str, ...]:
    """One line per form of the packages (all: none of them is the recipe's): file, function, releases."""
    places = [p for p in recipe.places if p.package in packages] or recipe.places
    return tuple(
        f"{place.package}/{form.file}: {form.scope} ({form.name}: {form.releases})"
        for place in places
        for form in place.forms
    )


def _found(tree: TreeReport, finding: Finding) -> Iterator[str]:
    line = f":{finding.line}" if finding.line else ""
    yield f"{finding.state.value}: {finding.file or finding.package}{line}"
    if finding.message:
        yield finding.message
    if finding.state.value != "absent":
        yield _reached(finding)
    if finding.file and finding.line:
        yield from excerpt(tree.root / finding.file, finding.line)


def _reached(finding: Finding) -> str:
    who = "wall-x" if finding.package == "wall_x" else "a decode step"
    said, link = {
        True: (f"{who} runs through it", ": "),
        False: ("by default no decode step runs through it", "; it is reached "),
        None: (f"whether {who} runs through it cannot be told from the files", ": "),
    }[finding.reached]
    return f"{said}{link}{finding.reached_when}" if finding.reached_when else said


def excerpt(path: Path, line: int) -> Iterator[str]:
    """A few lines of a file around one, with their numbers."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    first = max(line - CONTEXT, 1)
    for number, text in enumerate(lines[first - 1 : line + CONTEXT + 6], first):
        yield f"{'>' if number == line else ' '} {number:5d}  {text}"


def asks_nothing() -> str:
    """What is said where no conditions were found."""
    known = kernels.own_folder() is not None
    return "(the switch is off; nothing else)" if known else "(the operator layer's source is not at hand)"


def conditions(site: str) -> tuple[str, ...]:
    """The reasons for which the layer leaves an operator to the original code, read from its source."""
    layer = kernels.own_folder()
    files = [layer / part / f"{site}.py" for part in ("ops", "facts", "")] if layer else []
    trees = [ast.parse(file.read_bytes()) for file in files if file.is_file()]
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    reasons = [reason for function in functions for reason in _texts(function)]
    return tuple(dict.fromkeys(reasons))


def _texts(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        value = node.value if isinstance(node, ast.Return) else None
        parts = value.values if isinstance(value, ast.JoinedStr) else [value]
        texts = [p.value if isinstance(p, ast.Constant) else "..." for p in parts if p is not None]
        if texts != ["..."] and texts and all(isinstance(text, str) for text in texts):
            yield "".join(map(str, texts))
