"""Which names a guard may use where it stands, judged from the text alone."""

from __future__ import annotations

import ast

import pytest

from glm_pto.codemods import scope

METHOD = """\
class Layer:
    def forward(self, x):
        before = 1
        if READ:
            pass
        else:
            pass
        after = 2
"""
INNER = """\
def outer(given, *rest, key, **more):
    stored = 1
    def inner(x):
        if READ:
            pass
        else:
            pass
    return inner
"""
UNBOUND = {
    "imported": ("from m import name\n" + METHOD, "name", []),
    "imported_for_types_only": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from m import name\n" + METHOD,
        "name",
        ["name"],
    ),
    "builtin": (METHOD, "len", []),
    "parameter": (METHOD, "x", []),
    "stored_before": (METHOD, "before", []),
    "stored_after": (METHOD, "after", ["after"]),
    "global_that_a_later_line_makes_local": ("after = 0\n" + METHOD, "after", ["after"]),
    "nowhere": (METHOD, "name", ["name"]),
    "of_the_function_around": (INNER, "given and rest and key and more and stored", []),
    "not_of_the_function_around": (INNER, "given and name", ["name"]),
}


@pytest.mark.parametrize(("text", "reads", "missing"), UNBOUND.values(), ids=UNBOUND)
def test_names_that_are_not_bound_where_the_guard_stands(text: str, reads: str, missing: list[str]) -> None:
    module = ast.parse(text.replace("READ", reads))
    (guard,) = (n for n in ast.walk(module) if isinstance(n, ast.If) and n.orelse)
    function = scope.enclosing(module, guard)
    assert function is not None
    assert scope.unbound(module, function, guard) == missing
