"""Finding statements by qualified name and structure, and what is said where they are not."""

from __future__ import annotations

import pytest

from glm_pto.codemods import locate, source
from glm_pto.codemods.recipe import Form


def form(**changes: object) -> Form:
    base = {
        "name": "f",
        "file": "m.py",
        "scope": "A.run",
        "site": "x = f($a)",
        "condition": "K.A",
        "branch": "x = K.f($a)",
        "releases": "all",
    }
    return Form(**{**base, **changes})  # type: ignore[arg-type]


def read(text: str) -> source.Source:
    return source.read("m.py", text.encode())


FOUND = {
    "plain": ("class A:\n def run(s):\n  x = f(1)\n", 1),
    "below_if_at_the_top": ("if q:\n class A:\n  def run(s):\n   x = f(1)\n", 1),
    "below_else_at_the_top": ("if q:\n pass\nelse:\n class A:\n  def run(s):\n   x = f(1)\n", 1),
    "method_below_if": ("class A:\n if q:\n  def run(s):\n   x = f(1)\n", 1),
    "defined_twice": ("class A:\n def run(s):\n  x = f(1)\n def run(s):\n  x = f(1)\n", 2),
    "in_both_arms": ("class A:\n def run(s):\n  if q:\n   x = f(1)\n  else:\n   x = f(2)\n", 2),
    "prefix_of_the_class_name": ("class AB:\n def run(s):\n  x = f(1)\n", 0),
    "prefix_of_the_method_name": ("class A:\n def run_it(s):\n  x = f(1)\n", 0),
    "nested_class": ("class B:\n class A:\n  def run(s):\n   x = f(1)\n", 0),
    "nested_function": ("class A:\n def run(s):\n  def g():\n   x = f(1)\n", 0),
    "class_made_in_a_function": ("def make():\n class A:\n  def run(s):\n   x = f(1)\n", 0),
    "function_of_that_name": ("def run(s):\n x = f(1)\n", 0),
    "in_a_comprehension_of_another": ("class A:\n def run(s):\n  y = f(1)\n", 0),
}


@pytest.mark.parametrize(("text", "count"), FOUND.values(), ids=FOUND.keys())
def test_finds_exactly_the_qualified_function(text, count):
    assert len(locate.matches(read(text), form())) == count


def test_within_ties_the_site_to_the_innermost_arm():
    text = "class A:\n def run(s):\n  if q:\n   x = f(1)\n  else:\n   x = f(2)\n   if p:\n    x = f(3)\n"
    (match,) = locate.matches(read(text), form(within=("q", "else")))
    assert match.bound == {"a": "2"}


def test_rest_takes_everything_to_the_end_of_the_block():
    text = "class A:\n def run(s):\n  x = f(1)\n  y = 2\n  return y\n"
    (match,) = locate.matches(read(text), form(rest=True))
    assert len(match.block) == 3


def test_where_limits_a_hole():
    text = "class A:\n def run(s):\n  x = f(1)\n"
    assert locate.matches(read(text), form(where={"a": ("1", "2")}))
    assert not locate.matches(read(text), form(where={"a": ("3",)}))


UNBOUND = {
    "parameter": ("class A:\n def run(s, a):\n  x = f(1)\n", set()),
    "local_above": ("class A:\n def run(s):\n  a = 1\n  x = f(1)\n", set()),
    "local_below": ("class A:\n def run(s):\n  x = f(1)\n  a = 1\n", {"a"}),
    "module_level": ("from m import a\nclass A:\n def run(s):\n  x = f(1)\n", set()),
    "module_level_in_try": (
        "try:\n import a\nexcept E:\n a = 1\nclass A:\n def run(s):\n  x = f(1)\n",
        set(),
    ),
    "imported_as": ("from m import b as a\nclass A:\n def run(s):\n  x = f(1)\n", set()),
    "imported_with_a_submodule": ("import a.b\nclass A:\n def run(s):\n  x = f(1)\n", set()),
    "imported_under_another_name": ("import a as b\nclass A:\n def run(s):\n  x = f(1)\n", {"a"}),
    "nowhere": ("class A:\n def run(s):\n  x = f(1)\n", {"a"}),
}


@pytest.mark.parametrize(("text", "names"), UNBOUND.values(), ids=UNBOUND.keys())
def test_unbound_names_of_the_guard(text, names):
    (match,) = locate.matches(read(text), form())
    assert locate.unbound(read(text), match, "b = len(a)\nc = b") == names


def test_unset_names_that_later_code_reads():
    text = "class A:\n def run(s):\n  x, y = f(z)\n  return x, z\n"
    (match,) = locate.matches(read(text), form(site="$x, $y = f(z)"))
    assert locate.unset(match, "y = 1") == {"x"}
    assert locate.unset(match, "y = x") == {"x"}, "what is only read is not bound"
    assert locate.unset(match, "x = 1") == set()
    assert locate.unset(match, "return 1") == set()


@pytest.mark.parametrize(
    ("run", "ok"),
    [("return g(x)", True), ("'''Doc.'''\n  return g(x)", True), ("y = x\n  return g(y)", False)],
    ids=["as_reviewed", "with_a_docstring", "with_a_step_more"],
)
def test_requires_the_whole_body(run, ok):
    text = f"class A:\n def run(s):\n  x = f(1)\n def other(s, x):\n  {run}\n"
    wanted = form(requires=(("A.other", "return g($x)"),))
    assert locate.unmet(read(text), wanted) == (None if ok else "A.other")


def test_pasted_lines_skip_our_own_guards():
    text = (
        "import glm_pto_kernels\n"
        "if glm_pto_kernels.USE_PTO_GATE:  # glm-pto: gate 1 01234567\n"
        " glm_pto_kernels.gate()\nelse:\n pass\n"
        "glm_pto_kernels.gate()\n"
    )
    assert locate.pasted_lines(read(text), frozenset({"gate", "USE_PTO_GATE"})) == [6]
