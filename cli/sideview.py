"""A patch side by side for a terminal: the file as it is on the left, with our lines on the right.

Lines that only moved one level deeper are dimmed, with nothing but their new indentation marked; what is ours
stands out. The patch is the only input, so what is shown is what would be applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from glm_pto.cli.text import plain

#: Narrower than this, two columns of code cannot be read: one column is shown instead.
NARROW = 130
OURS, GONE, KEPT = "on #12341c", "on #3a1518", "dim"


@dataclass(frozen=True)
class Row:
    """One line of the view. ``kind``: same, ours, moved or gone."""

    kind: str
    left: str | None
    right: str | None
    left_number: int | None = None
    right_number: int | None = None


@dataclass(frozen=True)
class SideView:
    """The patches of one tree, drawn to the width of the console."""

    root: str
    patches: tuple[tuple[str, bytes], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        draw = _columns if options.max_width >= NARROW else _column
        for path, patch in self.patches:
            yield Rule(Text(plain(path), style="bold"), align="left", style="bright_black")
            for rows in hunks(patch):
                yield Group(draw(rows), Text(""))


def hunks(patch: bytes) -> Iterator[list[Row]]:
    """The hunks of a unified diff of one file as rows."""
    rows: list[Row] = []
    minus: list[tuple[int, str]] = []
    plus: list[tuple[int, str]] = []
    old = new = 0
    for raw in patch.split(b"\n"):
        line = raw.decode("utf-8", "replace").rstrip("\r")
        if line.startswith("@@ "):
            rows += aligned(minus, plus)
            if rows:
                yield rows
            rows, minus, plus = [], [], []
            old, new = (int(part[1:].partition(",")[0]) for part in line.split()[1:3])
        elif not old and not new:
            continue  # the header
        elif line.startswith("-"):
            minus.append((old, line[1:]))
            old += 1
        elif line.startswith("+"):
            plus.append((new, line[1:]))
            new += 1
        elif line.startswith(" "):
            rows += aligned(minus, plus)
            minus, plus = [], []
            rows.append(Row("same", line[1:], line[1:], old, new))
            old, new = old + 1, new + 1
    rows += aligned(minus, plus)
    if rows:
        yield rows


def aligned(minus: Sequence[tuple[int, str]], plus: Sequence[tuple[int, str]]) -> list[Row]:
    """Pair every line that only moved with what it was; the rest of the new lines are ours."""
    rows: list[Row] = []
    waiting = list(minus)
    for number, text in plus:
        if waiting and waiting[0][1].strip() == text.strip():
            was, original = waiting.pop(0)
            rows.append(Row("moved", original, text, was, number))
        else:
            rows.append(Row("ours", None, text, None, number))
    return rows + [Row("gone", text, None, number, None) for number, text in waiting]


def _columns(rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, show_header=False)
    for _ in range(2):
        table.add_column(width=5, justify="right", style="bright_black", no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
    for row in rows:
        left, right = _left(row), _right(row)
        table.add_row(_number(row.left_number), left, _number(row.right_number), right)
    return table


def _column(rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, show_header=False)
    table.add_column(width=5, justify="right", style="bright_black", no_wrap=True)
    table.add_column(width=1, no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    signs = {"same": " ", "ours": "+", "moved": ">", "gone": "-"}
    for row in rows:
        shown = _left(row) if row.kind == "gone" else _right(row)
        table.add_row(_number(row.right_number or row.left_number), signs[row.kind], shown)
    return table


def _left(row: Row) -> Text:
    return Text("") if row.left is None else _code(row.left, GONE if row.kind == "gone" else KEPT)


def _right(row: Row) -> Text:
    if row.right is None:
        return Text("")
    if row.kind != "moved" or row.left is None:
        return _code(row.right, OURS if row.kind == "ours" else KEPT)
    shown = _code(row.right, KEPT)
    shown.stylize(
        OURS, 0, max(0, len(row.right) - len(row.right.lstrip()) - len(row.left) + len(row.left.lstrip()))
    )
    return shown


def _code(line: str, style: str) -> Text:
    text = Syntax("", "python", theme="ansi_dark").highlight(plain(line.replace("\t", "    ")))
    text.rstrip()
    text.stylize(style)
    text.no_wrap, text.overflow = False, "fold"  # a cropped condition could not be reviewed
    return text


def _number(number: int | None) -> str:
    return "" if number is None else str(number)
