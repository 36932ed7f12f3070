"""What is said of a place where no form fits: the nearest statements and their difference."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from glm_pto import Finding, Options, Refusal, State, apply, status
from glm_pto.codemods import missing, reading, source
from glm_pto.codemods.recipe import Form
from tests.codemods.planted import GATE, HEAD, METHOD, plant


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


def test_cuts_a_long_difference() -> None:
    found = near(method(f"x = {'a' * 80}"), form("x = b"))
    assert found.difference == f"`b` is `{'a' * 57}...` here"


def test_is_silent_where_the_function_is_not_there() -> None:
    assert missing.nearest(source.read("a.py", b"class A: pass\n"), [form("x = f(1)")]) is None


ELSEWHERE = "def other(self):\n    self.gate = 1\n    return Glm4MoeMLP(self)\n"


def test_code_that_cannot_be_parsed_but_looks_like_the_site_is_not_absent(tmp_path: Path) -> None:
    plant(tmp_path, HEAD)
    file = tmp_path / "vllm/elsewhere.py"
    file.write_text(ELSEWHERE)
    assert gate_row(tmp_path).message.startswith("vllm/elsewhere.py:1: this function looks like")
    file.write_text(ELSEWHERE + "no python is this\n")
    row = gate_row(tmp_path)
    assert row.state is State.MOVED
    assert row.message.startswith("vllm/elsewhere.py:4: this Python cannot parse the file")


def test_a_file_that_cannot_be_read_may_hold_the_site(tmp_path: Path, monkeypatch) -> None:
    plant(tmp_path, HEAD)
    (tmp_path / "vllm/elsewhere.py").write_text("")
    assert gate_row(tmp_path).state is State.ABSENT
    load = reading.load

    def refused(path: Path, *rest: int) -> bytes:
        if path.name == "elsewhere.py":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return load(path, *rest)

    monkeypatch.setattr(reading, "load", refused)
    row = gate_row(tmp_path)
    assert (row.state, row.message) == (
        State.MOVED,
        "vllm/elsewhere.py: cannot be read (Permission denied), so nobody can tell whether gate stands in it",
    )


def gate_row(root: Path) -> Finding:
    (row,) = status([root], Options(sites=("gate",))).trees[0].findings
    return row


def test_a_refusal_names_the_sites_that_a_file_keeps_out_once(tmp_path: Path) -> None:
    file = plant(tmp_path, METHOD + "\0")
    with pytest.raises(Refusal) as told:
        apply([tmp_path])
    (problem,) = (p for p in told.value.problems if "NUL" in p)
    name = file.relative_to(tmp_path).as_posix()
    assert problem == (
        f"{name}: holds NUL bytes, so it is not Python source. "
        "This keeps out attention_pre, gate, shared_expert; --skip SITE goes on without"
    )


def test_a_refusal_names_the_site_of_statements_that_stand_twice(tmp_path: Path) -> None:
    plant(tmp_path, HEAD + METHOD.replace(GATE, f"{GATE}\n        {GATE}"))
    with pytest.raises(Refusal, match=r"stand more than once .*This keeps out gate; --skip SITE"):
        apply([tmp_path])
