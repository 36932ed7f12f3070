"""The edit proves itself: whatever goes wrong in making a guard, nothing of it reaches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto.codemods import guard, operations
from glm_pto.codemods.findings import Options, State
from tests.codemods.planted import FILE, GATE, MODEL, plant, refused

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


UNGUARDABLE = {
    "something_follows": (GATE, f"{GATE}; seen = 1"),
    "not_alone": (GATE, f"seen = 1; {GATE}"),
    "below_if_on_one_line": (GATE, f"if True: {GATE}"),
    "a_local_name": (GATE, f"glm_pto_kernels = 1\n        {GATE}"),
    "a_name_of_the_module": ("import torch\n", "import torch as glm_pto_kernels\n"),
    "a_form_feed": (f"        {GATE}", f"\f        {GATE}"),
}


@pytest.mark.parametrize(("old", "new"), UNGUARDABLE.values(), ids=UNGUARDABLE)
def test_status_says_what_apply_refuses(tmp_path: Path, old: str, new: str) -> None:
    plant(tmp_path, MODEL.replace(old, new))
    (row,) = operations.status([tmp_path], Options(sites=("gate",))).trees[0].findings
    assert row.state is State.MOVED and row.message.startswith(FILE)
    refused(tmp_path, f"{row.message}. This keeps out gate; --skip SITE goes on without")


def test_a_guard_that_cannot_be_renewed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = plant(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(guard, "VERSION", 0)
        operations.apply([tmp_path], Options(sites=("gate",), install_kernels=True))
    file.write_text(file.read_text().replace("        return", "        glm_pto_kernels = 1\n        return"))
    refused(tmp_path, f"{FILE}:", "glm_pto_kernels is a local name here")
