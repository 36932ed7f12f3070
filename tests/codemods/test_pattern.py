"""Patterns: what they match, what they leave alone, what their holes hold."""

from __future__ import annotations

import ast

import pytest

from glm_pto.codemods import pattern

MATCHES = {
    "layout_and_quotes_do_not_count": ("f('a', b=1)", 'f(\n  "a",  # c\n  b = 1,\n)', {}),
    "hole_is_any_expression": ("x = f($a)", "x = f(g(1) + 2)", {"a": "g(1) + 2"}),
    "hole_repeats_the_same_code": ("f($a, $a)", "f(x.y, x.y)", {"a": "x.y"}),
    "hole_in_a_name": ("self.$m(x)", "self.run(x)", {"m": "run"}),
    "nameless_hole_remembers_nothing": ("a, $_ = f()", "a, b = f()", {}),
    "hole_as_target": ("$w, $i = f()", "weights, ids = f()", {"w": "weights", "i": "ids"}),
    "keywords_in_any_order": ("f(a=$x, b=2)", "f(b=2, a=1)", {"x": "1"}),
    "rest_of_arguments": ("f(x, ..., k=$k)", "f(x, y, z=1, k=8, **more)", {"k": "8"}),
    "rest_matches_nothing_too": ("f(x, ...)", "f(x)", {}),
    "operands_in_between": ("a and ... and c()", "a and b and b2 and c()", {}),
    "operands_at_the_end": ("a and ... and c() and ...", "a and c() and d", {}),
    "any_body_and_any_else": ("if a:\n ...\nelse:\n ...", "if a:\n x\n y\nelif b:\n z\nelse:\n w", {}),
    "last_statement_of_a_body": ("if a:\n ...\n x = $v", "if a:\n y\n z\n x = 3", {"v": "3"}),
    "chained_or_single_none": (
        "if $r is None:\n ...\nelse:\n ...",
        "if q is None:\n a\nelse:\n b",
        {"r": "q"},
    ),
}


@pytest.mark.parametrize(("text", "code", "bound"), MATCHES.values(), ids=MATCHES.keys())
def test_matches(text, code, bound):
    assert pattern.match(pattern.compile_pattern(text), tuple(ast.parse(code).body), {}) == bound


LEFT_ALONE = {
    "another_name": ("x = f()", "x = g()"),
    "another_target": ("x = f()", "y = f()"),
    "more_arguments": ("f(a)", "f(a, b)"),
    "fewer_arguments": ("f(a, b)", "f(a)"),
    "an_extra_keyword": ("f(a)", "f(a, b=1)"),
    "a_missing_keyword": ("f(a, ..., b=$b)", "f(a)"),
    "another_keyword_value": ("f(k=1)", "f(k=2)"),
    "true_is_not_one": ("f(k=1)", "f(k=True)"),
    "hole_with_other_code": ("f($a, $a)", "f(x, y)"),
    "an_else_that_the_pattern_has_not": ("if a:\n ...", "if a:\n b\nelse:\n c"),
    "no_else_where_the_pattern_has_one": ("if a:\n ...\nelse:\n x", "if a:\n b"),
    "augmented_assignment": ("x = f()", "x += f()"),
    "annotated_assignment": ("x = f()", "x: int = f()"),
    "awaited": ("x = f()", "x = await f()"),
    "or_instead_of_and": ("a and b", "a or b"),
    "another_order_of_operands": ("a and ... and c()", "b and a and c()"),
    "starred": ("f(a)", "f(*a)"),
    "keyword_given_by_position": ("f(a=1)", "f(1)"),
}


@pytest.mark.parametrize(("text", "code"), LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_leaves_alone(text, code):
    assert pattern.match(pattern.compile_pattern(text), tuple(ast.parse(code).body), {}) is None


@pytest.mark.parametrize(
    ("template", "bound", "text"),
    [
        ("f($a)", {"a": "x.y[0]"}, "f(x.y[0])"),
        ("$a and g", {"a": "x or y"}, "(x or y) and g"),
        ("f(k=$k)", {"k": "-1"}, "f(k=(-1))"),
        ("f(k=$k, l=$k)", {"k": "n"}, "f(k=n, l=n)"),
    ],
    ids=["plain", "operator_in_parentheses", "sign_in_parentheses", "twice"],
)
def test_fill(template, bound, text):
    assert pattern.fill(template, bound) == text
