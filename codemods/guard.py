"""The guard, the only edit there is: how it is written, found, put around statements and taken out again.

``if <condition>:  # glm-pto: <site> <version> <digest>``, our branch, ``else:``, the file's own statements.
The digest covers our own code and nothing else, so that any later version of the tool can tell it from a
user's; layout does not count, since formatters run over checkouts. LibCST moves the file's statements one
block deeper and back: it knows which line starts are indentation (continuations in parentheses) and which
are content (strings, backslash continuations).
"""

from __future__ import annotations

import ast
import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass

from glm_pto.codemods.source import Source, Unreadable, after, bounded, ending_of, first_line, indent_of

#: Version of the guard's form. A guard of another version with an intact digest is ours too.
VERSION = 1

MARKER = re.compile(r"  # glm-pto: (?P<site>[a-z_]+) (?P<version>\d+) (?P<digest>[0-9a-f]{8})[ \t]*$")
_PREFIX = "# glm-pto: "
_BY_HAND = "leave the site out (--skip SITE), or take its guard out by hand"
_ELSE = re.compile(r"else:[ \t]*(#.*)?")


@dataclass(frozen=True)
class Guard:
    """A guard found in a file. Line numbers are indices into ``Source.lines``; ``end`` is exclusive.

    ``fault`` is empty where our lines are as we wrote them, else it says what is different. ``orelse`` is
    empty where there is no plain ``else:``, so that not even force can take the guard out.
    """

    site: str
    header: int
    branch_end: int
    end: int
    indent: str
    orelse: tuple[ast.stmt, ...]
    fault: str = ""
    digest: tuple[int, str] = (0, "")


def render(site: str, indent: str, unit: str, condition: str, branch: str, eol: str) -> list[str]:
    """Our lines, from the ``if`` to the ``else:``."""
    digest = _digest(site, VERSION, *_parsed(condition, branch))
    header = f"{indent}if {condition}:  {_PREFIX}{site} {VERSION} {digest}"
    body = (indent + unit + line for line in branch.splitlines())
    return [line + eol for line in (header, *body, f"{indent}else:")]


def _parsed(condition: str, branch: str) -> tuple[ast.expr, list[ast.stmt]]:
    return ast.parse(condition, mode="eval").body, ast.parse(branch).body


def _digest(site: str, version: int, condition: ast.expr, branch: list[ast.stmt]) -> str:
    """Of the structure, not the layout: a formatter that went over the file has changed nothing of ours."""
    text = repr((site, version, _structure(condition), _structure(branch)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _structure(node: object) -> object:
    """A syntax tree in words that every Python version uses alike (`ast.dump` and `ast.unparse` differ)."""
    if isinstance(node, list):
        return [_structure(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, getattr(node, name, None)) for name in node._fields]
    kept = [(n, v) for n, v in fields if n not in ("ctx", "kind", "type_comment") and v not in (None, [])]
    return [type(node).__name__, *((name, _structure(value)) for name, value in kept)]


def move(lines: list[str], indent: str, eol: str) -> str:
    """The statements in ``lines`` with their block's indentation changed to ``indent``."""
    import libcst  # dearer than everything else together, and not needed where nothing is edited

    if eol == "\r" and not any("\n" in line for line in lines):  # LibCST loses a lone CR at the end
        return move([line.replace("\r", "\n") for line in lines], indent, "\n").replace("\n", "\r")
    head = "if 1:" + eol
    at_top = not lines[0][:1].isspace()
    try:
        module = libcst.parse_module("".join(lines) if at_top else head + "".join(lines))
        statement = libcst.If(libcst.Integer("1"), libcst.IndentedBlock([])) if at_top else module.body[0]
        block = statement.body if isinstance(statement, libcst.If) else None
        more = (len(module.body) > 1 and not at_top) or module.header
        if more or not isinstance(statement, libcst.If) or not isinstance(block, libcst.IndentedBlock):
            raise Unreadable(f"the statements are not one block of lines; {_BY_HAND}")
        if at_top:  # the statements of the module become the block's
            block = block.with_changes(body=module.body, footer=module.footer)
        if indent:
            whole = statement.with_changes(body=block.with_changes(indent=indent))
            code = module.with_changes(body=[whole], footer=()).code
        else:  # a block without indentation is a module
            code = module.with_changes(body=block.body, footer=block.footer).code
    except (libcst.ParserSyntaxError, RecursionError, ValueError) as error:
        raise Unreadable(f"LibCST cannot parse the statements ({type(error).__name__}); {_BY_HAND}") from None
    moved = code.removeprefix(head)
    if _program("".join(lines)) != _program(moved):
        raise Unreadable(
            "moving the statements to another indentation changes what they mean "
            f"(an f-string that spans lines, for example); {_BY_HAND}"
        )
    return moved


def _program(block: str) -> str:
    if not block[:1].isspace():
        return ast.dump(ast.parse(block))
    (holder,) = ast.parse("if 1:\n" + block).body
    return ast.dump(ast.Module(getattr(holder, "body", []), []))


@bounded
def find(source: Source) -> list[Guard]:
    """Every guard of ours in the file, in order, including those that were edited by hand."""
    likely = (i for i, line in enumerate(source.lines) if _PREFIX in line and line.lstrip()[0] != "#")
    marked = {i: m for i in likely if (m := MARKER.search(source.lines[i].rstrip("\r\n")))}
    if not marked:
        return []
    found = []
    for line, marker in marked.items():
        node = _innermost(source.tree, line + 1)
        if isinstance(node, ast.If) and line in _header(node):
            found.append(_inspect(source, node, marker))
        elif node is None or not _in_string(node, line + 1):
            fault = "the marker no longer stands on the `if` that it was written on"
            indent = indent_of(source.lines[line])
            found.append(Guard(marker["site"], line, line + 1, line + 1, indent, (), fault))
    return sorted(found, key=lambda g: g.header)


def marker(source: Source, node: ast.If) -> re.Match[str] | None:
    """Our marker on the header of an ``if``."""
    marks = (MARKER.search(source.lines[i].rstrip("\r\n")) for i in _header(node))
    return next(filter(None, marks), None)


def _header(node: ast.If) -> range:
    """The lines on which a marker may stand: a formatter spreads a long header and leaves it at the end."""
    return range((node.test.end_lineno or node.lineno) - 1, first_line(node.body[0]))


def _innermost(node: ast.AST, line: int) -> ast.stmt | None:
    """The innermost statement that a line belongs to."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, field, None) or []
        at = bisect_right(children, line, key=_start)
        if not at:
            continue
        child = children[at - 1]
        last = child.body[-1] if isinstance(child, ast.match_case) else child
        if line <= (last.end_lineno or 0):
            inner = _innermost(child, line)
            return inner or (child if isinstance(child, ast.stmt) else None)
    return None


def _start(child: ast.stmt | ast.ExceptHandler | ast.match_case) -> int:
    return child.pattern.lineno if isinstance(child, ast.match_case) else child.lineno


def _in_string(node: ast.stmt, line: int) -> bool:
    """Does the line end inside a string of the statement?"""
    return any(
        isinstance(n, (ast.Constant, ast.JoinedStr)) and n.lineno <= line < (n.end_lineno or 0)
        for n in ast.walk(node)
    )


def _inspect(source: Source, node: ast.If, marker: re.Match[str]) -> Guard:
    lines, header = source.lines, node.lineno - 1
    indent = indent_of(lines[header])
    branch_end = after(node.body[-1])
    end = after(node.orelse[-1]) if node.orelse else branch_end
    plain = branch_end < end and _ELSE.fullmatch(lines[branch_end].rstrip("\r\n"), len(indent))
    orelse = tuple(node.orelse) if plain else ()
    fault = _fault(lines, node, indent, marker)
    digest = int(marker["version"]), marker["digest"]
    return Guard(marker["site"], header, branch_end + 1, end, indent, orelse, fault, digest)


def _fault(lines: tuple[str, ...], node: ast.If, indent: str, marker: re.Match[str]) -> str:
    header, branch_end = node.lineno - 1, after(node.body[-1])
    if not node.orelse or branch_end >= len(lines) or lines[branch_end].rstrip() != indent + "else:":
        return "it has no plain `else:` right after our branch"
    ours = (MARKER.sub("", line.rstrip("\r\n")) for line in lines[header:branch_end])
    if any("#" in line for line in ours):
        return "a comment was added to it"
    expected = _digest(marker["site"], int(marker["version"]), node.test, node.body)
    return "" if expected == marker["digest"] else "its condition or branch was changed"


def as_written(guard: Guard, condition: str, branch: str) -> bool:
    """Is the guard what this version would write for the condition and branch, whatever its layout?"""
    return guard.digest == (VERSION, _digest(guard.site, VERSION, *_parsed(condition, branch)))


def edited(source: Source, guard: Guard) -> str:
    """In words: where a guard of ours was edited, how, and what stands there now."""
    shown = " / ".join(line.strip() for line in source.lines[guard.header : guard.branch_end][:3])
    where = f"{source.name}:{guard.header + 1}: the guard of {guard.site}"
    return f"{where} is edited inside our lines: {guard.fault}. Found: {shown}"


def wrap(source: Source, block: list[ast.stmt], our: list[str], indent: str, unit: str) -> list[str]:
    """The lines that replace the block's: our lines and the block one level deeper."""
    start, end = first_line(block[0]), after(block[-1])
    eol = ending_of(our[0])
    return [*our, _moved(source, start, end, indent + unit, eol)]


def unwrap(source: Source, guard: Guard) -> list[str]:
    """The lines that replace the guard's: the statements of its else-branch one level up.

    Where a formatter has made ``else: if`` into ``elif``, the else-branch is one of the outer ``if`` again.
    """
    if source.lines[guard.header].startswith("elif", len(guard.indent)):
        return list(source.lines[guard.branch_end - 1 : guard.end])
    eol = ending_of(source.lines[guard.header]) or "\n"
    return [_moved(source, guard.branch_end, guard.end, guard.indent, eol)]


def _moved(source: Source, start: int, end: int, indent: str, eol: str) -> str:
    try:
        return move(list(source.lines[start:end]), indent, eol)
    except Unreadable as error:
        raise Unreadable(f"{source.name}:{start + 1}: {error}") from None


def step_of(source: Source, block: list[ast.stmt], parent: ast.AST) -> str:
    """The indentation step of the block, for the level that the guard adds: the file's own style."""
    if isinstance(parent, ast.Module):
        inner = (getattr(node, "body", None) for node in parent.body)
        first = next((body[0] for body in inner if body), None)
        return (indent_of(source.lines[first_line(first)]) if first else "") or "    "
    indent = indent_of(source.lines[first_line(block[0])])
    owner = parent.pattern if isinstance(parent, ast.match_case) else parent
    outer = indent_of(source.lines[getattr(owner, "lineno", 1) - 1])
    if not indent.startswith(outer) or indent == outer:
        raise Unreadable(
            f"{source.name}:{first_line(block[0]) + 1}: the indentation mixes tabs and spaces; use one"
        )
    return indent[len(outer) :]
