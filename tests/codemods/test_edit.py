"""The edit proves itself: whatever goes wrong in making a guard, nothing of it reaches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto.codemods import guard
from tests.codemods.planted import plant, refused

Lines = list[str]

SABOTAGE: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "does_not_compile": (
        lambda lines: [lines[0], " " * 12 + "break\n", *lines[1:]],
        "the edited file does not compile: 'break' outside loop",
    ),
    "another_condition": (
        lambda lines: [lines[0].replace("if ", "if not "), *lines[1:]],
        "gate: the guard is not found again",
    ),
    "no_marker": (
        lambda lines: [lines[0].replace("# glm-pto: ", "# "), *lines[1:]],
        "gate: the guard is not found again",
    ),
    "another_program": (
        lambda lines: [*lines[:-1], lines[-1].replace("self.gate", "self.other")],
        "gate: the else-branch is not the original program",
    ),
    "another_text": (
        lambda lines: [*lines[:-1], lines[-1].replace("\n", "  # the same program\n")],
        "taking the guards out again does not give the file's bytes back",
    ),
}


@pytest.mark.parametrize(("sabotage", "said"), SABOTAGE.values(), ids=SABOTAGE)
def test_a_wrong_edit_is_found_out_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[Lines], Lines], said: str
) -> None:
    wrap = guard.wrap
    monkeypatch.setattr(guard, "wrap", lambda *given: sabotage(wrap(*given)))
    plant(tmp_path)
    refused(tmp_path, "glm4_moe.py: ", said, "Nothing was written; please report this release")


def test_an_edit_that_a_second_apply_would_change_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "as_written", lambda *_: False)
    plant(tmp_path)
    refused(tmp_path, "glm4_moe.py: gate: a second apply would change the file", "please report")
