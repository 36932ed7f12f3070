"""One Python file as bytes, text, lines and syntax tree; what cannot be edited safely is refused by name.

Python and LibCST agree on what a line is (LF, CRLF or CR; never a form feed or a Unicode separator), so lines
are split here and nowhere else. Nothing is normalised: joining ``lines``, encoding and putting the byte order
mark back gives the file's bytes, and that is checked.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import tokenize
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from glm_pto.codemods.reading import MAX_BYTES

#: Up to Python 3.11 the time of an f-string grows with the square of its parts.
MAX_BRACES = 20_000
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
P = ParamSpec("P")
R = TypeVar("R")
_UTF8_BOM = b"\xef\xbb\xbf"


class Unreadable(Exception):
    """The file cannot be taken apart and put together again exactly; the text says why and what to do."""


@dataclass(frozen=True)
class Source:
    """A parsed file. ``lines`` keep their endings; ``ast`` line numbers are indices into them, plus one."""

    name: str
    data: bytes
    codec: str
    bom: bytes
    lines: tuple[str, ...]
    tree: ast.Module

    def encode(self, lines: list[str]) -> bytes:
        """Bytes of the file with other lines, in its own codec and with its own byte order mark."""
        return self.bom + "".join(lines).encode(self.codec)


def read(name: str, data: bytes) -> Source:
    """Parse ``data``; raise `Unreadable` where it is no Python text that this interpreter can parse."""
    if len(data) > MAX_BYTES:
        raise Unreadable(
            f"{name}: {len(data):,} bytes is larger than any file this tool works with ({MAX_BYTES:,})"
        )
    if data.count(b"{") > MAX_BRACES:
        raise Unreadable(
            f"{name}: holds more than {MAX_BRACES:,} braces; f-strings of that size take hours to parse"
        )
    if b"\0" in data:
        raise Unreadable(f"{name}: holds NUL bytes, so it is not Python source")
    codec, bom = _codec(name, data)
    try:
        text = data[len(bom) :].decode(codec)
        exact = text.encode(codec) == data[len(bom) :]
    except (UnicodeError, LookupError) as error:
        raise Unreadable(f"{name}: cannot be decoded as {codec} ({error}); nothing was touched") from None
    if not exact:
        raise Unreadable(f"{name}: decoding and encoding as {codec} does not give the same bytes back")
    return Source(name, data, codec, bom, tuple(_LINE.findall(text)), parse(name, text))


def _codec(name: str, data: bytes) -> tuple[str, bytes]:
    try:
        codec, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise Unreadable(f"{name}: {error.msg}; declare an encoding that Python knows") from None
    if data.startswith(_UTF8_BOM):
        return "utf-8", _UTF8_BOM
    return codec, b""


def parse(name: str, text: str) -> ast.Module:
    """`ast.parse` without warnings or garbage collection; every failure becomes `Unreadable`."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(
            f"{name}:{error.lineno}: this Python cannot parse the file ({error.msg}); "
            "run glm-pto with the Python that runs the package"
        ) from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise Unreadable(f"{name}: nested too deeply to be parsed ({type(error).__name__})") from None
    finally:
        if collecting:
            gc.enable()


def bounded(look: Callable[Concatenate[Source, P], R]) -> Callable[Concatenate[Source, P], R]:
    """Make `Unreadable` of a recursion that goes too deep: more can be parsed than can be looked through."""

    @wraps(look)
    def wrapper(file: Source, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return look(file, *args, **kwargs)
        except RecursionError:
            raise Unreadable(f"{file.name}: nested too deeply to be looked through") from None

    return wrapper


def indent_of(line: str) -> str:
    """The blanks that a line starts with."""
    return line[: len(line) - len(line.lstrip(" \t\f"))]


def ending_of(line: str) -> str:
    """The line's ending: CRLF, LF, CR, or nothing."""
    return line[len(line.rstrip("\r\n")) :]


def first_line(node: ast.stmt) -> int:
    """Index of the statement's first line, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)]) - 1


def after(node: ast.stmt) -> int:
    """Index of the line after the statement's last line."""
    return node.end_lineno or node.lineno


def whole_lines(lines: tuple[str, ...], block: list[ast.stmt]) -> str | None:
    """Why the statements are not alone on their lines, or None if they are."""
    previous = -1
    for node in block:
        start, end = first_line(node), after(node)
        if start <= previous:
            return f"line {start + 1}: two statements share one line"
        head = lines[start].encode()[: _column(node)]
        if head.strip(b" \t\f") or lines[start].lstrip(" \t\f").startswith("elif"):
            return f"line {start + 1}: the statement is not alone on its line"
        tail = lines[end - 1].encode()[node.end_col_offset or 0 :].decode().lstrip(" \t\f")
        if tail.rstrip("\r\n") and not tail.startswith("#"):
            return f"line {end}: something follows the statement on its line"
        previous = end - 1
    return None


def _column(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return decorators[0].col_offset - 1 if decorators else node.col_offset
