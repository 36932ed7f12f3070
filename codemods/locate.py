"""Where a form's statements stand in a file, and what stands there instead where they do not."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glm_pto.codemods import guard, pattern
from glm_pto.codemods.pattern import Bindings
from glm_pto.codemods.recipe import KERNELS, MODULE, Form
from glm_pto.codemods.source import Source, first_line

_RENAMING = re.compile(rf"import\s+{KERNELS}\s+as\b|from\s+{KERNELS}\s+import\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True)
class Match:
    """Statements that a form describes, the node that owns their block, and what the holes matched."""

    form: Form
    function: Function
    block: tuple[ast.stmt, ...]
    parent: ast.AST
    bound: Bindings

    @property
    def line(self) -> int:
        return first_line(self.block[0]) + 1


def functions(tree: ast.Module, scope: str) -> list[Function]:
    """The functions with that exact qualified name; several where it is defined more than once."""
    if scope == MODULE:
        return [tree]
    owners: list[ast.AST] = [tree]
    *classes, name = scope.split(".")
    for wanted in classes:
        owners = [
            n for o in owners for n in _definitions(o) if isinstance(n, ast.ClassDef) and n.name == wanted
        ]
    found = [n for o in owners for n in _definitions(o)]
    return [n for n in found if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name]


def span(function: Function, source: Source) -> tuple[int, int]:
    """First and last line (from 1) of a function, or of the file."""
    if isinstance(function, ast.Module):
        return 1, len(source.lines)
    return function.lineno, function.end_lineno or 0


def _definitions(owner: ast.AST) -> Iterator[ast.stmt]:
    """Classes and functions that the owner defines, also below `if`, `try` and `with` but not deeper."""
    for field in ("body", "orelse", "handlers", "finalbody"):
        for node in getattr(owner, field, ()):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node
            else:
                yield from _definitions(node)


def blocks(
    node: ast.AST, arms: tuple[tuple[ast.If, str], ...] = ()
) -> Iterator[tuple[list[ast.stmt], ast.AST, tuple[tuple[ast.If, str], ...]]]:
    """Every block below a function with the ``if`` arms around it; nested definitions are left out."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if not block or not isinstance(block, list):
            continue
        inner = (*arms, (node, "else" if field == "orelse" else "body")) if isinstance(node, ast.If) else arms
        yield block, node, inner
        for statement in block:
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from blocks(statement, inner)
    for field in ("handlers", "cases"):
        for child in getattr(node, field, ()):
            yield from blocks(child, arms)


def matches(source: Source, form: Form) -> list[Match]:
    """Every place in the file where the form fits, outside of guards that stand already."""
    site = pattern.compile_pattern(form.site)
    found = []
    for function in functions(source.tree, form.scope):
        for block, parent, arms in blocks(function):
            if any(guard.marker(source, node) for node, _ in arms):
                continue
            for start in range(len(block)):
                end = len(block) if form.rest else start + len(site)
                bound = fit(form, block[start:end])
                if bound is not None and _within(form, arms):
                    found.append(Match(form, function, tuple(block[start:end]), parent, bound))
    return found


def fit(form: Form, block: list[ast.stmt] | tuple[ast.stmt, ...]) -> Bindings | None:
    """What the form's holes match if it describes exactly these statements, else None."""
    site = pattern.compile_pattern(form.site)
    if len(block) < len(site) or (len(block) > len(site) and not form.rest):
        return None
    bound = pattern.match(site, tuple(block[: len(site)]), {})
    if bound is None:
        return None
    allowed = all(bound[hole] in texts for hole, texts in form.where.items())
    return bound if allowed else None


def stands(source: Source, form: Form, line: int) -> bool:
    """Does the statement at ``line`` (from 0) stand in the function, and in the arm, that the form names?"""
    return any(
        _within(form, arms)
        for function in functions(source.tree, form.scope)
        for block, _, arms in blocks(function)
        if any(statement.lineno == line + 1 for statement in block)
    )


def unmet(file: Source, form: Form) -> str | None:
    """The first scope of ``requires`` whose body (docstring aside) is not the reviewed text, or None."""
    for scope, text in form.requires:
        wanted = pattern.compile_pattern(text)
        bodies = [
            f.body[1:] if ast.get_docstring(f) is not None else f.body for f in functions(file.tree, scope)
        ]
        fits = [pattern.match(wanted, tuple(body), {}) is not None for body in bodies]
        if not fits or not all(fits):  # of two definitions the second is the one that runs
            return scope
    return None


def unbound(file: Source, match: Match, code: str) -> set[str]:
    """Names that ``code`` reads but that nothing binds where the match stands."""
    made: set[str] = set()
    missing: set[str] = set()
    for statement in ast.parse(code).body:
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
        missing |= {n.id for n in names if isinstance(n.ctx, ast.Load)} - made
        made |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    missing -= {KERNELS, *dir(builtins), *_bound_names(match.function, match.line)}
    if not isinstance(match.function, ast.Module):
        missing -= {a.arg for a in ast.walk(match.function.args) if isinstance(a, ast.arg)}
    return missing and missing - _bound_names(file.tree, len(file.lines))


def unset(match: Match, branch: str) -> set[str]:
    """Names that the site binds and later code of the function reads, but that the branch does not bind."""
    statements = ast.parse(branch).body
    if isinstance(statements[-1], (ast.Return, ast.Raise)):
        return set()
    end = match.block[-1].end_lineno or 0
    later = {
        n.id
        for n in ast.walk(match.function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end
    }
    return (_stored(match.block) & later) - _stored(statements)


def _stored(statements: Sequence[ast.stmt]) -> set[str]:
    names = (n for s in statements for n in ast.walk(s) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


def _bound_names(owner: ast.AST, before: int) -> set[str]:
    """Names that the owner itself (not what is defined inside it) binds in statements above a line."""
    names: set[str] = set()
    for node in _own(owner):
        if getattr(node, "lineno", 0) > before:
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _own(owner: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a function or module, without the bodies of nested definitions."""
    for child in ast.iter_child_nodes(owner):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _own(child)


def holds_all(tree: ast.Module, lines: tuple[str, ...], texts: tuple[str, ...]) -> int | None:
    """Line of the first function whose text holds all of ``texts``, or None."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = "".join(lines[first_line(node) : node.end_lineno])
            if all(t in text for t in texts):
                return node.lineno
    return None


def _within(form: Form, arms: tuple[tuple[ast.If, str], ...]) -> bool:
    if form.within is None:
        return True
    if not arms:
        return False
    test, arm = form.within
    node, side = arms[-1]
    return arm == side and pattern.match(pattern.compile_expression(test), node.test, {}) is not None


def pasted_lines(source: Source, names: frozenset[str]) -> list[int]:
    """Lines (from 1) that use one of the layer's names outside of our guards: code pasted by hand."""
    uses = re.compile(rf"\b{KERNELS}\s*\.\s*(?:{'|'.join(sorted(names))})\b")
    suspects = {i + 1 for i, line in enumerate(source.lines) if KERNELS in line and uses.search(line)}
    for one in guard.find(source) if suspects else ():
        suspects -= set(range(one.header + 1, one.branch_end + 1))
    lines: set[int] = set()
    if suspects:
        used = (n for n in ast.walk(source.tree) if isinstance(n, ast.Attribute) and n.attr in names)
        lines = {n.lineno for n in used if isinstance(n.value, ast.Name) and n.value.id == KERNELS} & suspects
    return sorted(lines | _renamed_uses(source, names))


def _renamed_uses(source: Source, names: frozenset[str]) -> set[int]:
    """Lines that use the layer under another name: ``import ... as x`` or ``from ... import``."""
    if not any(KERNELS in line and _RENAMING.search(line) for line in source.lines):
        return set()
    modules: set[str] = set()
    members: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname for a in node.names if a.name == KERNELS and a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == KERNELS:
            members |= {a.asname or a.name for a in node.names if a.name in names}
    found: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found |= {node.lineno} if node.attr in names else set()
        elif isinstance(node, ast.Name) and node.id in members:
            found.add(node.lineno)
    return found
