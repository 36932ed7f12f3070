"""Diffs are bytes that ``git apply`` and ``patch -p1`` take."""

from __future__ import annotations

import subprocess

import pytest

from glm_pto.codemods.diff import file_diff

LINES = b"".join(b"line %d\n" % i for i in range(40))
CASES = {
    "change": (LINES, LINES.replace(b"line 20\n", b"line 20\nmore\n")),
    "two_hunks": (LINES, LINES.replace(b"line 2\n", b"two\n").replace(b"line 33\n", b"")),
    "first_line": (LINES, b"new\n" + LINES),
    "last_line_without_newline": (LINES[:-1], LINES[:-1].replace(b"line 38\n", b"x\n")),
    "newline_added_at_the_end": (LINES[:-1], LINES),
    "crlf": (LINES.replace(b"\n", b"\r\n"), LINES.replace(b"line 9\n", b"9\n").replace(b"\n", b"\r\n")),
    "lone_cr_inside": (LINES.replace(b"line 7", b"li\rne"), LINES.replace(b"line 7", b"li\rne 7")),
    "not_utf8": (b"\xff\n" + LINES, b"\xff\n" + LINES + b"\xfe\n"),
    "new_file": (None, LINES),
    "removed_file": (LINES, None),
}


@pytest.mark.parametrize(
    "tool", [["git", "apply", "-"], ["patch", "-p1", "--binary", "-s"]], ids=["git", "patch"]
)
@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES.keys())
def test_tools_apply_it(tmp_path, before, after, tool):
    (tmp_path / "pkg").mkdir()
    target = tmp_path / "pkg" / "m.py"
    if before is not None:
        target.write_bytes(before)
    patch = file_diff("pkg/m.py", before, after)
    subprocess.run(tool, cwd=tmp_path, input=patch.patch, check=True)
    assert (target.read_bytes() if target.exists() else None) == after


def test_counts_lines():
    diff = file_diff("m.py", LINES, LINES.replace(b"line 3\n", b"a\nb\n"))
    assert (diff.added, diff.removed) == (2, 1)


def test_no_difference_is_no_patch():
    assert file_diff("m.py", LINES, LINES).patch == b""
