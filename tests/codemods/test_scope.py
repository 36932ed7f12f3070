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
    "of_a_function_above": ("def above(name):\n    pass\n" + METHOD, "name", ["name"]),
    "of_a_function_below": (METHOD + "def below(name):\n    pass\n", "name", ["name"]),
    "not_of_the_function_around": (INNER, "given and name", ["name"]),
}


@pytest.mark.parametrize(("text", "reads", "missing"), UNBOUND.values(), ids=UNBOUND)
def test_names_that_are_not_bound_where_the_guard_stands(text: str, reads: str, missing: list[str]) -> None:
    module = ast.parse(text.replace("READ", reads))
    (guard,) = (n for n in ast.walk(module) if isinstance(n, ast.If) and n.orelse)
    function = scope.enclosing(module, guard)
    assert function is not None
    assert scope.unbound(module, function, guard) == missing


FORGOTTEN = {
    "read_in_the_same_block": ("    IF\n    use(z)\n", ["z"]),
    "read_further_out": ("    if c:\n        IF\n    use(z)\n", ["z"]),
    "read_in_an_inner_block": ("    if c:\n        IF\n        use(z)\n", ["z"]),
    "read_after_an_error": ("    try:\n        IF\n    except E:\n        use(z)\n", ["z"]),
    "read_at_last": ("    try:\n        IF\n    finally:\n        use(z)\n", ["z"]),
    "bound_again_before_it_is_read": ("    IF\n    z = 2\n    use(z)\n", []),
    "perhaps_bound_again": ("    IF\n    if c:\n        z = 2\n    use(z)\n", ["z"]),
    "read_before_only": ("    use(z)\n    IF\n", []),
}


@pytest.mark.parametrize(("body", "names"), FORGOTTEN.values(), ids=FORGOTTEN)
def test_names_that_later_code_reads_and_our_branch_leaves_out(body: str, names: list[str]) -> None:
    """Only the ``if`` with the condition ``ours`` is the guard."""
    lines = []
    for line in body.splitlines():
        indent = line[: -len(line.lstrip())]
        guard = ("if ours:", "    x = 1", "else:", "    x = z = 1")
        lines += [indent + part for part in guard] if line.strip() == "IF" else [line]
    module = ast.parse("def f(c):\n" + "\n".join(lines))
    (found,) = (n for n in ast.walk(module) if isinstance(n, ast.If) and n.orelse)
    function = scope.enclosing(module, found)
    assert function is not None
    assert scope.forgotten(function, found) == names
