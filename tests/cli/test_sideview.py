"""The side view shows every line of a patch, pairs what only moved, and marks what is ours."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from glm_pto import Options, diff
from glm_pto.cli import sideview
from glm_pto.codemods.diff import file_diff

BEFORE = b"def f(x):\n    y = g(\n        x)\n    return y\n"
AFTER = b"def f(x):\n    if on:\n        y = h(x)\n    else:\n        y = g(\n            x)\n    return y\n"


def kinds(before: bytes, after: bytes) -> list[tuple[str, int | None, int | None]]:
    rows = [r for hunk in sideview.hunks(file_diff("f.py", before, after).patch) for r in hunk]
    return [(r.kind, r.left_number, r.right_number) for r in rows]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_pairs_moved_lines_with_what_they_were(ending: bytes) -> None:
    before, after = (text.replace(b"\n", ending) for text in (BEFORE, AFTER))
    assert kinds(before, after) == [
        ("same", 1, 1), ("ours", None, 2), ("ours", None, 3), ("ours", None, 4),
        ("moved", 2, 5), ("moved", 3, 6), ("same", 4, 7),
    ]  # fmt: skip


def test_shows_a_line_that_is_gone() -> None:
    assert ("gone", 4, None) in kinds(BEFORE, BEFORE.replace(b"    return y\n", b""))


def test_numbers_are_those_of_the_files(tree: Path) -> None:
    ((root, files),) = diff([tree], Options(sites=("paged_attention",))).trees
    (file,) = files
    lines = (root / file.path).read_text().splitlines()
    for row in (r for hunk in sideview.hunks(file.patch) for r in hunk):
        if row.left is not None and row.left_number is not None:
            assert lines[row.left_number - 1] == row.left


@pytest.mark.parametrize(("width", "gone"), [(60, "4 - return y"), (220, "4 return y")])
def test_a_line_that_is_gone_has_its_number_in_the_old_file(width: int, gone: str) -> None:
    patch = file_diff("f.py", BEFORE, BEFORE.replace(b"    return y\n", b"")).patch
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(sideview.SideView("root", (("f.py", patch),)))
    assert gone in [" ".join(line.split()) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, sideview.NARROW - 1, sideview.NARROW, 220])
def test_every_line_is_drawn_at_any_width(tree: Path, width: int) -> None:
    ((root, files),) = diff([tree]).trees
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(sideview.SideView(str(root), tuple((f.path, f.patch) for f in files)))
    drawn = "".join(out.getvalue().split())
    for word in (
        "supported(self.gate,hidden_states):",
        "glm-pto:gate1",
        "context_lens=attn_metadata.seq_lens,",
    ):
        # Between the two, a long line is folded inside its column, beside its neighbour.
        assert word in drawn or width == sideview.NARROW, word
    assert max(len(line) for line in out.getvalue().splitlines()) <= width
