"""Code-shaped patterns: Python text in which ``$name`` is any expression and ``...`` any number of items.

The idea is semgrep's and ast-grep's, cut down to what the recipes need. Patterns are compared with the
standard library's syntax tree: layout, comments and quotes do not count, structure and names do.

- ``$name`` matches one expression, or one name where a name stands (``self.$method``); the same hole twice
  must match the same code. ``$_`` matches without remembering.
- ``...`` among positional arguments, operands, elements or statements matches any number of them; as an
  argument it also allows further keywords. A body or an else-branch of ``...`` alone matches any.
- Keywords are matched by name in any order. A pattern's ``if`` without ``else`` matches only such an ``if``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache

#: What the holes matched: name -> source text on one line.
Bindings = dict[str, str]

_HOLE = "__hole_"
_IGNORED = frozenset({"ctx", "type_comment", "kind", "type_params"})


@cache
def compile_pattern(text: str) -> tuple[ast.stmt, ...]:
    """The statements of a pattern."""
    return tuple(ast.parse(re.sub(r"\$(\w+)", rf"{_HOLE}\1", text)).body)


@cache
def compile_expression(text: str) -> ast.expr:
    """The expression of a one-expression pattern."""
    (statement,) = compile_pattern(text)
    if not isinstance(statement, ast.Expr):
        raise TypeError(f"not an expression: {text}")
    return statement.value


def match(pattern: object, node: object, bound: Bindings) -> Bindings | None:
    """Bindings under which ``node`` has the pattern's structure, or None."""
    if isinstance(pattern, (list, tuple)):
        return _sequence(pattern, node, bound) if isinstance(node, (list, tuple)) else None
    if isinstance(pattern, str) and pattern.startswith(_HOLE) and isinstance(node, str):
        return _bind(pattern, node, bound)
    if isinstance(pattern, ast.Name) and pattern.id.startswith(_HOLE) and isinstance(node, ast.expr):
        return _bind(pattern.id, ast.unparse(node), bound)
    if not isinstance(pattern, ast.AST):
        return bound if type(pattern) is type(node) and pattern == node else None
    if type(pattern) is not type(node):
        return None
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
        return _call(pattern, node, bound)
    for name in pattern._fields:
        if name in _IGNORED:
            continue
        found = match(getattr(pattern, name, None), getattr(node, name, None), bound)
        if found is None:
            return None
        bound = found
    return bound


def _bind(hole: str, text: str, bound: Bindings) -> Bindings | None:
    name = hole.removeprefix(_HOLE)
    if name == "_":
        return bound
    if name in bound:
        return bound if bound[name] == text else None
    return {**bound, name: text}


def _is_rest(node: object) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is ...


def _sequence(patterns: Sequence[object], nodes: Sequence[object], bound: Bindings) -> Bindings | None:
    if not patterns:
        return None if nodes else bound
    if _is_rest(patterns[0]):
        for skipped in range(len(nodes) + 1):
            found = _sequence(patterns[1:], nodes[skipped:], bound)
            if found is not None:
                return found
        return None
    if not nodes:
        return None
    found = match(patterns[0], nodes[0], bound)
    return None if found is None else _sequence(patterns[1:], nodes[1:], found)


def _call(pattern: ast.Call, node: ast.Call, bound: Bindings) -> Bindings | None:
    found = match(pattern.func, node.func, bound)
    if found is None:
        return None
    found = _sequence(pattern.args, node.args, found)
    if found is None:
        return None
    actual = {k.arg: k.value for k in node.keywords}
    for keyword in pattern.keywords:
        value = actual.pop(keyword.arg, None)
        found = None if value is None else match(keyword.value, value, found)
        if found is None:
            return None
    open_ended = any(_is_rest(a) for a in pattern.args)
    return found if open_ended or not actual else None


def fill(template: str, bound: Bindings) -> str:
    """A template with its holes filled; what is not a plain name, call or literal is put in parentheses."""

    def text(hole: re.Match[str]) -> str:
        code = bound[hole[1]]
        expression = ast.parse(code, mode="eval").body
        closed = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict)
        return code if isinstance(expression, closed) else f"({code})"

    return re.sub(r"\$(\w+)", text, template)
