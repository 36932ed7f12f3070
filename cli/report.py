"""The only module that prints. Colour and tables come from rich, which is imported on a terminal only."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

from glm_pto.cli import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from glm_pto.codemods.findings import Finding, TreeReport


#: A column is not made narrower than this, however narrow the terminal is.
NARROWEST = 16


class Unwritten(Exception):
    """The output could not be written; what the command did is done."""


@dataclass(frozen=True)
class Report:
    """How one run of one command reports."""

    command: str
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    target: str = ""

    def colored(self) -> bool:
        """May this output be coloured? NO_COLOR and TERM=dumb count only where nothing was asked for."""
        if self.color != "auto":
            return self.color == "always"
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not plain and on_terminal()

    def trees(
        self, trees: Sequence[TreeReport], *, action: str | None, code: int = 0, closing: str = ""
    ) -> int:
        """Report of status, apply and revert; returns ``code``."""
        if self.json:
            from glm_pto.cli import document

            return self.document(document.of_trees(trees, action), code)
        for tree in trees if not self.quiet else ():
            self._tree(tree, text.PLANNED if action == "planned" else text.HEADINGS)
        if closing and not self.quiet:
            self.line(closing)
        findings = [f for tree in trees for f in tree.findings]
        fields: dict[str, object] = {} if action is None else {"action": action}
        fields["trees"] = len(trees)
        return self.ended(code, {**fields, **text.counts(findings)})

    def _tree(self, tree: TreeReport, headings: Sequence[str]) -> None:
        self.line(text.heading(tree), style="bold")
        self.table(headings, [text.row(f) for f in tree.findings])
        for remark in text.remarks(tree.findings, self.verbose):
            self.line(f"  {remark}", style="yellow")
        for note in text.notes(tree):
            self.line(f"  {text.plain(note)}")
        if self.verbose and tree.digest:
            self.line(f"  digest {tree.digest}")
        self.line()

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, state: int | None = 1) -> None:
        """Columns under headings; the column ``state`` is coloured by what it says."""
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        styles = ["bright_black"] * len(headings)
        self._row(headings, widths, styles)
        for row in rows:
            styles = ["bold", *[""] * (len(row) - 1)]
            if state is not None:
                styles[state] = text.COLORS.get(row[state], "")
            self._row(row, widths, styles)

    def _row(self, cells: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> None:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        margin = sum(widths[:-1]) + 2 * len(cells)
        padded[-1], *more = text.wrapped(cells[-1], max(_columns() - margin, NARROWEST))
        if self.colored():
            padded = [_styled(cell, style) for cell, style in zip(padded, styles, strict=True)]
        self._write(sys.stdout, "  " + "  ".join(padded).rstrip() + "\n")
        for part in more:
            self._write(sys.stdout, " " * margin + part + "\n")

    def line(self, words: str = "", *, style: str = "") -> None:
        """One line of text, already made plain."""
        self._write(sys.stdout, (_styled(words, style) if style and self.colored() else words) + "\n")

    def aside(self, words: str) -> None:
        """A remark for people where standard output is for something else."""
        if not self.quiet:
            self._write(sys.stderr, f"glm-pto {self.command}: {text.plain(words)}\n")

    def document(self, document: dict[str, Any], code: int = 0) -> int:
        """A JSON document, ASCII only, on one line: the last line of the output in every case."""
        import json

        self._write(sys.stdout, json.dumps(document) + "\n")
        return code

    def ended(self, code: int, fields: dict[str, object]) -> int:
        """The last, machine-readable line."""
        self._write(sys.stdout, text.last_line(self.command, code, fields) + "\n")
        return code

    def failed(
        self,
        action: str,
        code: int,
        problems: Sequence[str],
        findings: Sequence[Finding] = (),
        notes: Sequence[str] = (),
    ) -> int:
        """A refusal or a failure: what was done before and all problems to stderr, the last line to stdout.

        Where that cannot be written there is nobody left to tell, but ``code`` still tells.
        """
        if self.json:
            from glm_pto.cli import document

            with contextlib.suppress(Unwritten):
                self.document(document.of_failure(action, code, problems, findings, notes))
            return code
        with contextlib.suppress(Unwritten):
            for note in notes:
                self.aside(note)
            for problem in problems:
                first, *rest = problem.splitlines() or [""]
                self._write(sys.stderr, f"glm-pto {self.command}: {text.plain(first)}\n")
                for more in rest:
                    self._write(sys.stderr, f"  {text.plain(more)}\n")
        with contextlib.suppress(Unwritten):
            self.ended(code, {"action": action, "problems": len(problems)})
        return code

    def raw(self, content: bytes) -> None:
        """Bytes as they are, for pipes and files: a patch must not be changed on its way."""
        self._write_bytes(sys.stdout, content)

    def page(self, content: RenderableType, pager: bool) -> None:
        """Something that rich draws, through a pager where it is longer than the screen."""
        from rich.console import Console

        colors: Literal["auto"] | None = "auto" if self.colored() else None
        console = Console(force_terminal=True, color_system=colors, highlight=False)
        with console.capture() as captured:
            console.print(content)
        drawn = captured.get()
        if not pager or drawn.count("\n") < console.size.height:
            self._write(sys.stdout, drawn)
            return
        os.environ.setdefault("LESS", "-FRX")
        from click import echo_via_pager

        echo_via_pager(drawn, color=True)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Say after a second that work goes on; on a terminal only."""
        if self.json or self.quiet or not (sys.stderr and sys.stderr.isatty()):
            yield
            return
        from threading import Timer

        timer = Timer(1.0, lambda: self._write(sys.stderr, f"glm-pto {self.command}: still working ...\n"))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _write(self, stream: TextIO | None, words: str) -> None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        self._write_bytes(stream, words.encode(encoding, errors="backslashreplace"))

    def _write_bytes(self, stream: TextIO | None, content: bytes) -> None:
        if stream is None or stream.closed:
            return
        try:
            stream.flush()
            stream.buffer.write(content)
            stream.buffer.flush()
        except OSError as error:
            _silence(stream)
            if error.errno not in (errno.EPIPE, errno.EINVAL):
                raise Unwritten(f"{stream.name}: {error.strerror}") from None


def _columns() -> int:
    """How wide a line may be: as the terminal is, and any width where a program reads."""
    if not on_terminal():
        return sys.maxsize
    from shutil import get_terminal_size

    return get_terminal_size().columns


def on_terminal() -> bool:
    """Does a person read the output?"""
    return bool(sys.stdout) and not sys.stdout.closed and sys.stdout.isatty()


def _styled(words: str, style: str) -> str:
    from click import style as styled

    return styled(words, fg=style or None) if style != "bold" else styled(words, bold=True)


def _silence(stream: TextIO) -> None:
    """Nobody reads any more (`| head`): let the rest, and Python's own flush at exit, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
