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
    "class_imported": FIRST + "from fast import A\n",
    "class_imported_under_the_name": FIRST + "try:\n import fast as A\nexcept E:\n pass\n",
    "class_replaced_with_annotation": FIRST + "A: type = Other\n",
    "method_replaced_with_others": FIRST + "A.run, A.walk = one, two\n",
    "method_replaced_by_setattr": FIRST + "setattr(A, 'run', other)\n",
    "method_replaced_below_match": FIRST + "match q:\n case 1:\n  A.run = other\n",
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
    "another_import": FIRST + "from fast import B as C, D\n",
    "annotated_only": FIRST + "A: type\n",
    "imported_before": "from fast import A\n" + FIRST,
    "imported_or_defined": "try:\n from fast import A\nexcept E:\n class A:\n  def run(s):\n   x = f(1)\n",
    "wrapped_by_setattr": FIRST + "setattr(A, 'run', wrap(A.run))\n",
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
