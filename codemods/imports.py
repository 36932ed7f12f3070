"""The import line that guards need: where it goes, whether the file binds the name itself."""

from __future__ import annotations

import ast

from glm_pto.codemods.recipe import KERNELS
from glm_pto.codemods.source import Source, Unreadable, after, ending_of, first_line

#: Our import line, the same in every file.
IMPORT = f"import {KERNELS}  # glm-pto: import 1"


def position(source: Source, site_line: int) -> int | None:
    """Index of the line before which our import goes; None where the name is bound at run time already.

    The import follows the first run of imports, after the docstring and ``__future__`` imports, at the top
    level: never inside ``try`` or ``if TYPE_CHECKING``, and always before the statement that holds the site.
    """
    if _bound(source):
        return None
    body = source.tree.body
    start = 1 if body and _is_docstring(body[0]) else 0
    while start < len(body) and isinstance(body[start], ast.ImportFrom) and _is_future(body[start]):
        start += 1
    first = next(
        (i for i in range(start, len(body)) if isinstance(body[i], (ast.Import, ast.ImportFrom))), None
    )
    if first is None or first_line(body[first]) >= site_line:
        return after(body[start - 1]) if start else first_line(body[0])
    last = first
    while last + 1 < len(body) and isinstance(body[last + 1], (ast.Import, ast.ImportFrom)):
        if first_line(body[last + 1]) >= site_line:
            break
        last += 1
    return after(body[last])


def insert(source: Source, at: int) -> str:
    """Our import line with the ending of the line next to it."""
    neighbour = source.lines[at - 1] if at else source.lines[at]
    return IMPORT + (ending_of(neighbour) or "\n")


def find(source: Source) -> int | None:
    """Index of our import line, or None."""
    for node in source.tree.body:
        if isinstance(node, ast.Import) and source.lines[node.lineno - 1].rstrip("\r\n") == IMPORT:
            return node.lineno - 1
    return None


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _bound(source: Source) -> bool:
    """Does the file import the layer under its own name? Refuses where the name means something else."""
    bound = False
    for node in _toplevel(source.tree.body):
        if isinstance(node, ast.Import) and any(a.name == KERNELS and a.asname is None for a in node.names):
            bound = True
        elif _rebinds(node):
            raise Unreadable(
                f"{source.name}:{node.lineno}: the name {KERNELS} is bound to something else here; "
                "rename it, the guard needs the name for the operator layer"
            )
    return bound


def _toplevel(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that run at import: the top level and the arms of ``try``, but not ``if TYPE_CHECKING``."""
    found = []
    for node in body:
        found.append(node)
        if isinstance(node, ast.Try):
            found += _toplevel([*node.body, *node.orelse, *node.finalbody])
    return found


def _rebinds(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((a.asname or a.name) == KERNELS for a in node.names)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == KERNELS
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(t, ast.Name) and t.id == KERNELS for t in targets)
