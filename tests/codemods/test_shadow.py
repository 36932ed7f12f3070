"""A function that the file binds again further down is not the one that runs."""

from __future__ import annotations

import ast

import pytest

from glm_pto.codemods import locate, shadow

FIRST = "class A:\n def run(s):\n  x = f(1)\n"
SHADOWED = {
    "class_again": FIRST + "class A:\n def run(s):\n  pass\n",
    "class_again_without_the_method": FIRST + "class A:\n pass\n",
    "class_again_below_if": FIRST + "if q:\n class A:\n  pass\n",
    "method_again": FIRST + " def run(s):\n  pass\n",
    "method_replaced": FIRST + "A.run = other\n",
    "method_replaced_below_if": FIRST + "if q:\n A.run = other\n",
    "class_replaced": FIRST + "A = Other\n",
}
IN_USE = {
    "alone": FIRST,
    "defined_before": "class A:\n pass\n" + FIRST,
    "another_arm": "if q:\n class A:\n  def run(s):\n   x = f(1)\nelse:\n class A:\n  pass\n",
    "another_arm_of_try": "try:\n class A:\n  def run(s):\n   x = f(1)\nexcept E:\n class A:\n  pass\n",
    "wrapped_method": FIRST + "A.run = wrap(A.run)\n",
    "wrapped_class": FIRST + "A = wrap(A)\n",
    "another_class": FIRST + "class B:\n def run(s):\n  pass\n",
    "another_method": FIRST + "A.walk = other\n",
}


def line_of(text: str) -> int | None:
    tree = ast.parse(text)
    (function, *_) = [f for f in locate.functions(tree, "A.run") if "f(1)" in ast.unparse(f)]
    return shadow.shadowed(tree, "A.run", function)


@pytest.mark.parametrize("text", SHADOWED.values(), ids=SHADOWED.keys())
def test_shadowed(text):
    line = line_of(text)
    assert line is not None
    assert line > 3


@pytest.mark.parametrize("text", IN_USE.values(), ids=IN_USE.keys())
def test_in_use(text):
    assert line_of(text) is None
