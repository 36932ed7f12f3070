"""Is the function that a form names the one that runs, or does the file bind its name again further down?"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from glm_pto.codemods import locate
from glm_pto.codemods.locate import Function
from glm_pto.codemods.recipe import Form
from glm_pto.codemods.source import Source

#: The arms of compound statements around a definition: two that differ in one arm exclude each other.
Arms = tuple[tuple[ast.AST, str], ...]

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def shadowed(tree: ast.Module, scope: str, function: Function) -> int | None:
    """Line where a later definition or assignment replaces the function or its class; None if none does.

    Definitions in different arms of one ``if`` or ``try`` do not replace each other, and an assignment whose
    value mentions what it replaces (a wrapper) keeps it in use.
    """
    if isinstance(function, ast.Module):
        return None
    owner: ast.AST = tree
    *classes, name = scope.split(".")
    for wanted in (*classes, name):
        named = [(node, arms) for node, arms in _bindings(owner) if _binds(node, wanted)]
        mine = next(((n, a) for n, a in named if _holds(n, function)), None)
        if mine is None:
            return None
        for node, arms in named:
            if node.lineno > mine[0].lineno and not _exclusive(arms, mine[1]):
                return node.lineno
        owner = mine[0]
    return _assigned(tree, scope)


def replaced(file: Source, form: Form, line: int) -> tuple[int, str]:
    """Line and message where the function that holds ``line`` is bound again; 0 where that one runs."""
    for function in locate.functions(file.tree, form.scope):
        start, end = locate.span(function, file)
        again = shadowed(file.tree, form.scope, function) if start <= line <= end else None
        if again:
            what = f"{form.scope} is bound again here, so the guarded one would not run"
            return again, f"{file.name}:{again}: {what}"
    return 0, ""


def _bindings(owner: ast.AST, arms: Arms = ()) -> Iterator[tuple[ast.stmt, Arms]]:
    """The statements of a module or class, also those below `if`, `try` and `with`, with their arms."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(owner, field, ()):
            inner = arms if isinstance(owner, (ast.Module, ast.ClassDef)) else (*arms, (owner, field))
            if isinstance(node, ast.stmt):
                yield node, inner
            if not isinstance(node, _DEFINITIONS):
                yield from _bindings(node, inner)


def _binds(node: ast.stmt, name: str) -> bool:
    if isinstance(node, _DEFINITIONS):
        return node.name == name
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((a.asname or a.name).partition(".")[0] == name for a in node.names)
    return _replaces(node, name)


def _holds(node: ast.stmt, function: Function) -> bool:
    line = function.body[0].lineno
    return isinstance(node, _DEFINITIONS) and node.lineno <= line <= (node.end_lineno or 0)


def _exclusive(one: Arms, other: Arms) -> bool:
    fields = {id(owner): field for owner, field in one}
    return any(fields.get(id(owner), field) != field for owner, field in other)


def _assigned(tree: ast.Module, scope: str) -> int | None:
    """Line of ``Class.method = something else`` at the top level."""
    return next((node.lineno for node, _ in _bindings(tree) if _replaces(node, scope)), None)


def _replaces(node: ast.stmt, name: str) -> bool:
    """Does an assignment (or ``setattr``) give the name a value that does not mention it?"""
    targets: list[ast.expr] = []
    value: ast.expr | None = None
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and len(node.value.args) == 3:
        owner, member, given = node.value.args
        if getattr(node.value.func, "id", "") == "setattr" and isinstance(member, ast.Constant):
            targets, value = [ast.Attribute(owner, str(member.value), ast.Store())], given
    flat = [one for target in targets for one in getattr(target, "elts", [target])]
    if value is None or name not in map(_dotted, flat):
        return False
    return name not in map(_dotted, ast.walk(value))


def _dotted(node: ast.AST) -> str:
    """``a.b.c`` as text; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
