"""Bytes to bytes: put guards into a file, take them out, and prove both before anybody writes anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

from glm_pto.codemods import guard as guards
from glm_pto.codemods import imports, pattern, source
from glm_pto.codemods.locate import Match
from glm_pto.codemods.recipe import KERNELS, Form
from glm_pto.codemods.source import Source, Unreadable, after, bounded, ending_of, first_line, indent_of


class SelfCheckFailed(Exception):
    """The edit is not the exact, reversible change that it must be: nothing is written, please report it."""


@bounded
def apply(file: Source, wanted: Sequence[tuple[str, Match]]) -> Source:
    """The file with a guard around each match (site name and match), proved to be exactly that."""
    lines: list[str] = list(file.lines)
    for site, match in sorted(wanted, key=lambda pair: -pair[1].line):
        start, end = first_line(match.block[0]), after(match.block[-1])
        lines[start:end] = guards.wrap(
            file, list(match.block), our_lines(file, site, match), *_level(file, match)
        )
    at = imports.position(file, min(match.line for _, match in wanted) - 1)
    if at is not None:
        lines.insert(at, imports.insert(file, at))
    edited = source.read(file.name, file.encode(lines))
    _prove(file, edited, wanted)
    return edited


@bounded
def refuse(file: Source, site: str, match: Match) -> None:
    """Raises `Unreadable` where no guard can be put around the match: what `apply` refuses before it edits.

    Only what is known to change when it is moved is moved here: LibCST is dear.
    """
    level = _level(file, match)
    imports.position(file, match.line - 1)
    strings = (n for s in match.block for n in ast.walk(s) if isinstance(n, ast.JoinedStr))
    if any(n.end_lineno != n.lineno for n in strings):
        guards.wrap(file, list(match.block), our_lines(file, site, match), *level)


@bounded
def strip(file: Source, sites: Collection[str] | None = None, *, force: bool = False) -> Source:
    """The file without the guards of the sites (all: None); our import line goes with the last guard.

    A guard that was edited inside our lines stays, or with ``force`` goes if it still has an else-branch.
    """
    standing = guards.find(file)
    going = [g for g in standing if sites is None or g.site in sites]
    going = [g for g in going if not g.fault or (force and g.orelse)]
    last = len(going) == len(standing)
    return source.read(file.name, _without(file, going, imports.find(file) if last else None))


def _without(file: Source, going: Sequence[guards.Guard], line: int | None) -> bytes:
    """The file's bytes without these guards and, by its index, our import line."""
    lines: list[str] = list(file.lines)
    if line is not None:
        lines[line] = ""  # not removed yet: the guards are found by their line numbers
    for found in reversed(going):
        lines[found.header : found.end] = guards.unwrap(file, found)
    return file.encode(lines)


def our_lines(file: Source, site: str, match: Match) -> list[str]:
    """The guard's own lines for a match, as this version writes them."""
    indent, unit = _level(file, match)
    condition, branch = texts(match.form, match.bound)
    eol = ending_of(file.lines[first_line(match.block[0])]) or _any_ending(file)
    return guards.render(site, indent, unit, condition, branch, eol)


def texts(form: Form, bound: pattern.Bindings) -> tuple[str, str]:
    """Condition and branch of a form's guard with the names that the matched code uses."""
    condition, branch = (
        re.sub(r"\bK\.", f"{KERNELS}.", pattern.fill(t, bound)) for t in (form.condition, form.branch)
    )
    return condition, branch


def _level(file: Source, match: Match) -> tuple[str, str]:
    block = list(match.block)
    problem = source.whole_lines(file.lines, block)
    if problem:
        raise Unreadable(
            f"{file.name}: {problem}, so no guard can be put around it; give it lines of its own"
        )
    indent = indent_of(file.lines[first_line(block[0])])
    where = f"{file.name}:{match.line}"
    if "\f" in indent:
        raise Unreadable(f"{where}: a form feed in the indentation cannot be kept exactly; take it out first")
    for name in ast.walk(match.function):
        if (isinstance(name, ast.arg) and name.arg == KERNELS) or (
            isinstance(name, ast.Name) and name.id == KERNELS and isinstance(name.ctx, ast.Store)
        ):
            raise Unreadable(f"{where}: {KERNELS} is a local name here; rename it, the guard needs the name")
    return indent, guards.step_of(file, block, match.parent)


def _any_ending(file: Source) -> str:
    return next((ending_of(line) for line in reversed(file.lines) if ending_of(line)), "\n")


def _prove(file: Source, edited: Source, wanted: Sequence[tuple[str, Match]]) -> None:
    """The edit compiles, strips back to the same bytes, and keeps the guarded statements' program."""
    fresh = {g.site: g for g in guards.find(edited)}
    lines = [g.header + 1 for g in fresh.values()]
    # Every other statement at the top level is the file's own, to the byte, and need not be compiled again.
    touched = [n for n in edited.tree.body if any(n.lineno <= i <= (n.end_lineno or 0) for i in lines)]
    try:
        compile(ast.Module(touched, []), file.name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SelfCheckFailed(f"{file.name}: the edited file does not compile: {error}") from None
    for site, match in wanted:
        found = fresh.get(site)
        if found is None or found.fault:
            raise SelfCheckFailed(f"{file.name}: {site}: the guard is not found again")
        if [ast.dump(n) for n in match.block] != [ast.dump(n) for n in found.orelse]:
            raise SelfCheckFailed(f"{file.name}: {site}: the else-branch is not the original program")
    ours = [g for g in guards.find(edited) if g.site in {site for site, _ in wanted}]
    line = imports.find(edited) if imports.find(file) is None else None
    if _without(edited, ours, line) != file.data:
        raise SelfCheckFailed(f"{file.name}: taking the guards out again does not give the file's bytes back")
