"""The guard, the only edit there is: how it is written, found, put around statements and taken out again.

``if <condition>:  # glm-pto: <site> <version> <digest>``, our branch, ``else:``, the file's own statements.
The digest covers our own lines and nothing else, so that any later version of the tool can tell them from a
user's. LibCST moves the file's statements one block deeper and back: it knows which line starts are
indentation (continuations in parentheses) and which are content (strings, backslash continuations).
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass

from glm_pto.codemods.recipe import KERNELS
from glm_pto.codemods.source import Source, Unreadable, after, ending_of, first_line, indent_of

#: Version of the guard's form. A guard of another version with an intact digest is ours too.
VERSION = 1

MARKER = re.compile(r"  # glm-pto: (?P<site>[a-z_]+) (?P<version>\d+) (?P<digest>[0-9a-f]{8})[ \t]*$")
_PREFIX = "# glm-pto: "
#: Our import line, the same in every file.
IMPORT = f"import {KERNELS}  {_PREFIX}import 1"


@dataclass(frozen=True)
class Guard:
    """A guard found in a file. Line numbers are indices into ``Source.lines``; ``end`` is exclusive.

    ``fault`` is empty where our lines are as we wrote them, else it says what is different.
    """

    site: str
    header: int
    branch_end: int
    end: int
    indent: str
    orelse: tuple[ast.stmt, ...]
    fault: str = ""


def render(site: str, indent: str, unit: str, condition: str, branch: str, eol: str) -> list[str]:
    """Our lines, from the ``if`` to the ``else:``."""
    body = branch.splitlines()
    header = f"{indent}if {condition}:  {_PREFIX}{site} {VERSION} {_digest(site, VERSION, condition, body)}"
    return [line + eol for line in (header, *(indent + unit + b for b in body), f"{indent}else:")]


def _digest(site: str, version: int, condition: str, branch: list[str]) -> str:
    text = "\n".join((site, str(version), condition, *branch))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def move(lines: list[str], indent: str, eol: str) -> str:
    """The statements in ``lines`` with their block's indentation changed to ``indent``."""
    import libcst  # dearer than everything else together, and not needed where nothing is edited

    if eol == "\r" and not any("\n" in line for line in lines):  # LibCST loses a lone CR at the end
        return move([line.replace("\r", "\n") for line in lines], indent, "\n").replace("\n", "\r")
    try:
        module = libcst.parse_module("if 1:" + eol + "".join(lines))
        (statement,) = module.body
        if not isinstance(statement, libcst.If):
            raise Unreadable("the lines are not one block")
        block = statement.body.with_changes(indent=indent)
        code = module.with_changes(body=[statement.with_changes(body=block)]).code
    except (libcst.ParserSyntaxError, RecursionError, ValueError) as error:
        raise Unreadable(f"LibCST cannot parse the statements ({type(error).__name__})") from None
    moved = code.removeprefix("if 1:" + eol)
    if _program("".join(lines)) != _program(moved):
        raise Unreadable(
            "moving the statements to another indentation changes what they mean "
            "(an f-string that spans lines, for example), so they cannot be guarded"
        )
    return moved


def _program(block: str) -> str:
    return ast.dump(ast.parse("if 1:\n" + block))


def find(source: Source) -> list[Guard]:
    """Every guard of ours in the file, in order, including those that were edited by hand."""
    likely = (i for i, line in enumerate(source.lines) if _PREFIX in line)
    marked = {i: m for i in likely if (m := MARKER.search(source.lines[i].rstrip("\r\n")))}
    if not marked:
        return []
    found = []
    for line, marker in marked.items():
        node = _innermost(source.tree, line + 1)
        if isinstance(node, ast.If) and node.lineno == line + 1:
            found.append(_inspect(source, node, marker))
        elif node is None or not _in_string(node, line + 1):
            fault = "the marker no longer stands on the `if` that it was written on"
            indent = indent_of(source.lines[line])
            found.append(Guard(marker["site"], line, line + 1, line + 1, indent, (), fault))
    return sorted(found, key=lambda g: g.header)


def _innermost(node: ast.AST, line: int) -> ast.stmt | None:
    """The innermost statement that a line belongs to."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, None) or ():
            owner = child.pattern if isinstance(child, ast.match_case) else child
            last = child.body[-1].end_lineno if isinstance(child, ast.match_case) else child.end_lineno
            if owner.lineno <= line <= (last or 0):
                inner = _innermost(child, line)
                return inner or (child if isinstance(child, ast.stmt) else None)
    return None


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
    fault = _fault(lines, node, indent, marker)
    return Guard(marker["site"], header, branch_end + 1, end, indent, tuple(node.orelse), fault)


def _fault(lines: tuple[str, ...], node: ast.If, indent: str, marker: re.Match[str]) -> str:
    header, branch_end = node.lineno - 1, after(node.body[-1])
    if not node.orelse or branch_end >= len(lines) or lines[branch_end].rstrip() != indent + "else:":
        return "it has no plain `else:` right after our branch"
    text = MARKER.sub("", lines[header].rstrip("\r\n"))
    if not (text.startswith(indent + "if ") and text.endswith(":")):
        return "its condition was changed"
    body = [line.rstrip("\r\n") for line in lines[header + 1 : branch_end]]
    inner = indent_of(body[0])
    if not all(line.startswith(inner) for line in body):
        return "its branch was changed"
    condition = text[len(indent) + 3 : -1]
    expected = _digest(marker["site"], int(marker["version"]), condition, [b[len(inner) :] for b in body])
    return "" if expected == marker["digest"] else "its condition or branch was changed"


def as_written(source: Source, guard: Guard, condition: str, branch: str) -> bool:
    """Is the guard what this version would write for the condition and branch?"""
    inner = indent_of(source.lines[guard.header + 1])
    eol = ending_of(source.lines[guard.header])
    expected = render(guard.site, guard.indent, inner[len(guard.indent) :], condition, branch, eol)
    return [line.rstrip("\r\n") for line in expected] == own_lines(source, guard)


def own_lines(source: Source, guard: Guard) -> list[str]:
    """Our lines of a guard, without their endings."""
    return [line.rstrip("\r\n") for line in source.lines[guard.header : guard.branch_end]]


def wrap(source: Source, block: list[ast.stmt], our: list[str], indent: str, unit: str) -> list[str]:
    """The lines that replace the block's: our lines and the block one level deeper."""
    start, end = first_line(block[0]), after(block[-1])
    eol = ending_of(our[0])
    return [*our, move(list(source.lines[start:end]), indent + unit, eol)]


def unwrap(source: Source, guard: Guard) -> list[str]:
    """The lines that replace the guard's: the statements of its else-branch one level up."""
    inner = list(source.lines[guard.branch_end : guard.end])
    return [move(inner, guard.indent, ending_of(source.lines[guard.header]) or "\n")]


def step_of(source: Source, block: list[ast.stmt], parent: ast.AST) -> str:
    """The indentation step of the block, for the level that the guard adds: the file's own style."""
    indent = indent_of(source.lines[first_line(block[0])])
    owner = parent.pattern if isinstance(parent, ast.match_case) else parent
    outer = indent_of(source.lines[getattr(owner, "lineno", 1) - 1])
    if not indent.startswith(outer) or indent == outer:
        raise Unreadable(f"{source.name}:{first_line(block[0]) + 1}: the indentation mixes tabs and spaces")
    return indent[len(outer) :]


def find_import(source: Source) -> int | None:
    """Index of our import line, or None."""
    for node in source.tree.body:
        if isinstance(node, ast.Import) and source.lines[node.lineno - 1].rstrip("\r\n") == IMPORT:
            return node.lineno - 1
    return None
