"""Are the names that a guard uses bound there, and does its branch bind what the code after it reads?"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from glm_pto.codemods.signatures import names_bound

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Module


def unbound(module: ast.Module, function: Scope, guard: ast.If) -> list[str]:
    """Names that the guard's condition or branch reads and that are not bound at that point."""
    known_before = _before(function, guard.lineno)
    local = known_before | _stored(list(function.body))
    outer = {n for node in module.body if not _typing_only(node) for n in names_bound(node)}
    for node in ast.walk(module):  # functions around this one
        if isinstance(node, Function) and node is not function and _around(node, function):
            outer |= _parameters(node) | _stored(list(node.body))
    missing: list[str] = []
    bound = set(known_before)
    for statement in (ast.Expr(guard.test), *guard.body):
        for name in _loaded(statement):
            visible = name in bound or (name not in local and (name in outer or hasattr(builtins, name)))
            if not visible and name not in missing:
                missing.append(name)
        bound |= _stored([statement])
    return missing


def forgotten(function: Scope, guard: ast.If) -> list[str]:
    """Names that the else-branch binds, that code after the guard reads, and that our branch leaves out."""
    if isinstance(guard.body[-1], (ast.Return, ast.Raise)):
        return []
    end = guard.end_lineno or guard.lineno
    read_later: set[str] = set()
    written_later: set[str] = set()
    for statement in _following(function, end):
        read_later |= set(_loaded(statement)) - written_later
        if not isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            written_later |= _stored([statement])
    return sorted((_stored(guard.orelse) - _stored(guard.body)) & read_later)


def enclosing(module: ast.Module, node: ast.stmt) -> Function | None:
    """The innermost function around a statement."""
    around = [f for f in ast.walk(module) if isinstance(f, Function) and _holds(f, node)]
    return max(around, key=lambda f: f.lineno, default=None)


def _around(outer: Function, inner: Scope) -> bool:
    return not isinstance(inner, ast.Module) and _holds(outer, inner)


def _holds(outer: ast.stmt, inner: ast.stmt) -> bool:
    return outer.lineno < inner.lineno and (inner.end_lineno or 0) <= (outer.end_lineno or 0)


def _before(function: Scope, line: int) -> set[str]:
    earlier = [n for n in _own(list(function.body)) if getattr(n, "lineno", line) < line]
    return _parameters(function) | {name for node in earlier for name in _names(node)}


def _following(function: Scope, end: int) -> Iterator[ast.stmt]:
    """Statements of the function that start after the line, outermost first."""

    def visit(block: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in block:
            if node.lineno > end:
                yield node
            elif (node.end_lineno or 0) > end:
                for field in ("body", "orelse", "finalbody"):
                    yield from visit(getattr(node, field, []))
                for handler in getattr(node, "handlers", []):
                    yield from visit(handler.body)

    return visit(function.body)


def _parameters(function: Scope) -> set[str]:
    if isinstance(function, ast.Module):
        return set()
    a = function.args
    listed = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(x for x in (a.vararg, a.kwarg) if x)]
    return {arg.arg for arg in listed}


def _own(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes of the statements, without the inside of functions, classes, lambdas and comprehensions."""
    todo: list[ast.AST] = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        inner = (
            Function,
            ast.ClassDef,
            ast.Lambda,
            ast.ListComp,
            ast.SetComp,
            ast.DictComp,
            ast.GeneratorExp,
        )
        if not isinstance(node, inner):
            todo += ast.iter_child_nodes(node)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, (Function, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return names_bound(node)
    if isinstance(node, ast.ExceptHandler) and node.name:
        return [node.name]
    return []


def _stored(nodes: list[ast.stmt]) -> set[str]:
    return {name for node in _own(nodes) for name in _names(node)}


def _loaded(node: ast.stmt) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]


def _typing_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
