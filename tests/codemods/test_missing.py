"""What is said of a place where no form fits: the nearest statements and their difference."""

from __future__ import annotations

import pytest

from glm_pto.codemods import missing, source
from glm_pto.codemods.recipe import Form


def form(site: str, scope: str = "A.run") -> Form:
    return Form("some", "a.py", scope, site, "K.x", "pass", "all")


def near(text: str, *forms: Form) -> missing.Near:
    found = missing.nearest(source.read("a.py", text.encode()), forms)
    assert found is not None
    return found


def method(*lines: str) -> str:
    return "class A:\n def run(s):\n  " + "\n  ".join(lines) + "\n"


def test_names_the_most_similar_statement() -> None:
    found = near(method("y = 1", "x = f(1, 2)", "return x"), form("x = f(1)"))
    assert (found.line, found.found) == (4, "x = f(1, 2)")
    assert found.difference == "nothing is `, 2` here"


def test_compares_all_statements_of_a_site() -> None:
    found = near(method("x = f(1)", "y = h(x)", "return y"), form("x = f(1)\ny = g(x)"))
    assert (found.line, found.difference) == (3, "`g` is `h` here")


def test_takes_the_form_that_is_nearest() -> None:
    found = near(method("x, _ = f(1, key=2)"), form("x = f(1)"), form("x, _ = f(1, key=3)"))
    assert found.wanted == "x, _ = f(1, key=3)"
    assert found.difference == "`3` is `2` here"


def test_says_when_only_the_block_differs() -> None:
    assert "another block" in near(method("x = f(1)"), form("x = f(1)")).difference


@pytest.mark.parametrize("many", [4, 40])
def test_shows_the_first_differences_only(many: int) -> None:
    wanted = ", ".join(f"a{n}=1" for n in range(many))
    found = near(method("f(" + wanted.replace("=1", "=2") + ")"), form(f"f({wanted})"))
    assert found.difference.count(" is ") == 3 and found.difference.endswith("...")


def test_is_silent_where_the_function_is_not_there() -> None:
    assert missing.nearest(source.read("a.py", b"class A: pass\n"), [form("x = f(1)")]) is None
