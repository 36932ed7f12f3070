"""Seeded changes of a real file around a site, each with what it means for an edit.

A mutation knows the file's text, the site's lines and its syntax; it knows nothing of patterns. It returns
the new text and a verdict: KEPT, the site is still the site (guard it, or refuse by name), or BROKEN:
whatever is guarded now is wrong. `renamed` maps names that were changed everywhere in the function.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class Verdict(Enum):
    KEPT = "kept"
    BROKEN = "broken"


class Unfit(Exception):
    """The mutation has no place in this site; draw another."""


@dataclass(frozen=True)
class Target:
    """A site in a released file. Lines count from 0, ``end`` is exclusive; the text has LF endings.

    ``open``: parts of the site are anything, so only its first line is changed in ways that break it.
    ``values``: names that the guard takes over from the site as they are.
    """

    label: str
    site: str
    file: str
    text: str
    scope: str
    start: int
    end: int
    open: bool
    values: frozenset[str]

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @property
    def indent(self) -> str:
        line = self.lines[self.start]
        return line[: len(line) - len(line.lstrip())]

    def function(self) -> ast.FunctionDef:
        for node in ast.walk(ast.parse(self.text)):
            inside = isinstance(node, ast.FunctionDef) and node.lineno <= self.start + 1
            if inside and self.end <= (node.end_lineno or 0) and node.name == self.scope.rpartition(".")[2]:
                return node  # type: ignore[return-value]
        raise AssertionError(self.label)

    def block(self) -> list[ast.stmt]:
        """The site's statements with the line numbers of the file."""
        inside = [
            n
            for n in ast.walk(self.function())
            if isinstance(n, ast.stmt) and self.start < n.lineno and (n.end_lineno or 0) <= self.end
        ]
        nested = {
            id(m) for n in inside for m in ast.walk(n) if m is not n
        }  # an `elif` starts in no new column
        return sorted((n for n in inside if id(n) not in nested), key=lambda n: n.lineno)

    def with_lines(self, new: list[str]) -> str:
        return "\n".join([*self.lines[: self.start], *new, *self.lines[self.end :]])


@dataclass(frozen=True)
class Mutant:
    text: str
    verdict: Verdict
    renamed: dict[str, str] = field(default_factory=dict)


Mutation = Callable[[Target, random.Random], Mutant]


def laid_out(node: ast.stmt, indent: str, style: str) -> list[str]:
    """A statement in the style of a formatter: one_line, exploded, aligned or packed."""
    if isinstance(node, ast.If):
        lines = [f"{indent}if {test(node.test, indent, style)}:"]
        lines += [line for n in node.body for line in laid_out(n, indent + "    ", style)]
        if node.orelse:
            lines.append(f"{indent}else:")
            lines += [line for n in node.orelse for line in laid_out(n, indent + "    ", style)]
        return lines
    call = getattr(node, "value", None)
    if style == "one_line" or not isinstance(call, ast.Call) or not (call.args or call.keywords):
        return [indent + line for line in ast.unparse(node).split("\n")]
    targets = "".join(ast.unparse(t).strip("()") + " = " for t in getattr(node, "targets", []))
    head = f"{indent}{targets}{ast.unparse(call.func)}("
    words = [ast.unparse(a) for a in call.args]
    words += [
        f"{k.arg}={ast.unparse(k.value)}" if k.arg else f"**{ast.unparse(k.value)}" for k in call.keywords
    ]
    if style == "exploded":
        return [head, *(f"{indent}    {w}," for w in words), f"{indent})"]
    if style == "aligned":
        pad = "\n" + " " * len(head)
        return (head + f",{pad}".join(words) + ")").split("\n")
    packed, line = [head], indent + "    "
    for word in words:
        if len(line) + len(word) > 79 and line.strip():
            packed.append(line.rstrip())
            line = indent + "    "
        line += word + ", "
    return [*packed, line.rstrip(", ") + ")"]


def test(node: ast.expr, indent: str, style: str) -> str:
    parts = [ast.unparse(v) for v in node.values] if isinstance(node, ast.BoolOp) else [ast.unparse(node)]
    word = " or " if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) else " and "
    if style == "one_line" or len(parts) == 1:
        return word.join(parts)
    return "(" + f"\n{indent}       {word.strip()} ".join(parts) + ")"


def styled(style: str) -> Mutation:
    def reformat(target: Target, rng: random.Random) -> Mutant:
        lines = [line for n in target.block() for line in laid_out(n, target.indent, style)]
        return Mutant(target.with_lines("\n".join(lines).split("\n")), Verdict.KEPT)

    reformat.__name__ = style
    return reformat


def comments(target: Target, rng: random.Random) -> Mutant:
    """Comments and empty lines before each statement, a deeper one after the site, one at a line's end."""
    new: list[str] = []
    for node in target.block():
        new += [target.indent + "# a remark", ""][: rng.randint(0, 2)]
        new += target.lines[node.lineno - 1 : node.end_lineno]
    if rng.random() < 0.5:
        new.append(target.indent + "    # deeper than the site")
    if rng.random() < 0.5:
        new[-1 if not new[-1].lstrip().startswith("#") else -2] += "  # noqa"
    return Mutant(target.with_lines(new), Verdict.KEPT)


def backslashes(target: Target, rng: random.Random) -> Mutant:
    """Split an assignment, or a test, over a backslash."""
    new = target.lines[target.start : target.end]
    for index, line in enumerate(new):
        at = re.search(r"(?<=\w) (=|and|is) (?=[\w(])", line)
        if at and "#" not in line:
            cut = at.end() - 1
            new[index] = f"{line[:cut]} \\\n{target.indent}      {line[cut:].lstrip()}"
            return Mutant(target.with_lines(new), Verdict.KEPT)
    raise Unfit


def crlf(target: Target, rng: random.Random) -> Mutant:
    return Mutant(target.text.replace("\n", "\r\n"), Verdict.KEPT)


def keywords_shuffled(target: Target, rng: random.Random) -> Mutant:
    node = rng.choice(target.block())
    calls = [c for c in ast.walk(node) if isinstance(c, ast.Call) and len(c.keywords) > 1]
    if not calls or isinstance(node, (ast.If, ast.With)):
        raise Unfit
    rng.shuffle(calls[0].keywords)
    return replaced(target, node, [target.indent + ast.unparse(node)], Verdict.KEPT)


def replaced(target: Target, node: ast.stmt, new: list[str], verdict: Verdict) -> Mutant:
    lines = target.lines
    lines[node.lineno - 1 : node.end_lineno] = "\n".join(new).split("\n")
    return Mutant("\n".join(lines), verdict)


def renamed_everywhere(target: Target, rng: random.Random) -> Mutant:
    """Rename a parameter or local of the function, keyword names of calls excepted."""
    function = target.function()
    names = {n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)} - {"self"}
    names |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    old = rng.choice(sorted(names))
    spots = [(n.lineno, n.col_offset) for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == old]
    spots += [(n.lineno, n.col_offset) for n in ast.walk(function) if isinstance(n, ast.arg) and n.arg == old]
    lines = target.lines
    for line, column in sorted(set(spots), reverse=True):
        text = lines[line - 1]
        lines[line - 1] = f"{text[:column]}{old}_x{text[column + len(old) :]}"
    return Mutant("\n".join(lines), Verdict.KEPT, {old: f"{old}_x"})


def swapped_with_neighbour(target: Target, rng: random.Random) -> Mutant:
    """Exchange the site with the statement before or after it in its block."""
    block = next(
        b
        for n in ast.walk(target.function())
        for b in (getattr(n, "body", None), getattr(n, "orelse", None))
        if isinstance(b, list) and any(s.lineno == target.start + 1 for s in b)
    )
    index = next(i for i, s in enumerate(block) if s.lineno == target.start + 1)
    size, lines = len(target.block()), target.lines
    after = index + size
    if index and (rng.random() < 0.5 or after >= len(block)):
        other = block[index - 1]
        low = [*lines[target.start : target.end], *lines[other.lineno - 1 : target.start]]
        return Mutant("\n".join([*lines[: other.lineno - 1], *low, *lines[target.end :]]), Verdict.KEPT)
    if after >= len(block) or isinstance(block[after], ast.Return):
        raise Unfit
    until = block[after].end_lineno or 0
    high = [*lines[target.end : until], *lines[target.start : target.end]]
    return Mutant("\n".join([*lines[: target.start], *high, *lines[until:]]), Verdict.KEPT)


def nested(target: Target, rng: random.Random) -> Mutant:
    """Put one more block around the site; a function around it makes it another scope."""
    header, verdict = rng.choice(
        [
            ("if self is not None:", Verdict.KEPT),
            ("with open(__file__):", Verdict.KEPT),
            ("def inner():", Verdict.BROKEN),
        ]
    )
    if "self" in header and "." not in target.scope:
        header = "if hidden_states is not None:"
    body = laid_out_lines(target)
    return Mutant(target.with_lines([target.indent + header, *body]), verdict)


def laid_out_lines(target: Target) -> list[str]:
    lines = [line for n in target.block() for line in laid_out(n, target.indent + "    ", "exploded")]
    return "\n".join(lines).split("\n")


def duplicated(target: Target, rng: random.Random) -> Mutant:
    site = target.lines[target.start : target.end]
    return Mutant(target.with_lines([*site, *site]), Verdict.BROKEN)


def defined_twice(target: Target, rng: random.Random) -> Mutant:
    function, lines = target.function(), target.lines
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    copied = lines[first - 1 : function.end_lineno]
    return Mutant(
        "\n".join([*lines[: function.end_lineno], "", *copied, *lines[function.end_lineno :]]), Verdict.BROKEN
    )


def scope_renamed(target: Target, rng: random.Random) -> Mutant:
    owner = rng.choice(target.scope.split("."))
    word = rf"(?<=class ){owner}\b|(?<=def ){owner}\b"
    return Mutant(re.sub(word, owner + rng.choice(["V2", "310", "_async"]), target.text), Verdict.BROKEN)


def first_line_only(target: Target, node: ast.AST) -> bool:
    """May a change of this node break the site? In open sites only the tests are pinned down."""
    return not target.open or getattr(node, "lineno", 0) == target.start + 1


def word_changed(target: Target, rng: random.Random) -> Mutant:
    """Another name, attribute, keyword or comparison in one spot of the site."""
    block = target.block()
    nodes = [
        n
        for s in block
        for n in ast.walk(s)
        if isinstance(n, (ast.Attribute, ast.Name, ast.keyword, ast.Compare)) and first_line_only(target, n)
    ]
    nodes = [n for n in nodes if not (isinstance(n, ast.Attribute) and ast.unparse(n) in target.values)]
    if target.open:
        inner = {id(m) for n in nodes if isinstance(n, ast.Compare) for m in ast.walk(n)}
        nodes = [n for n in nodes if id(n) in inner]
    if not nodes:
        raise Unfit
    node = rng.choice(nodes)
    if isinstance(node, ast.Attribute):
        node.attr += "_x"
    elif isinstance(node, ast.Name):
        node.id += "_x"
    elif isinstance(node, ast.keyword):
        node.arg = (node.arg or "") + "_x"
    else:
        node.ops[0] = ast.NotIn() if isinstance(node.ops[0], ast.In) else ast.NotEq()
    new = [line for s in block for line in ast.unparse(s).split("\n")]
    return Mutant(target.with_lines([target.indent + line for line in new]), Verdict.BROKEN)


def argument_added(target: Target, rng: random.Random) -> Mutant:
    node = rng.choice(target.block())
    call = getattr(node, "value", None)
    if not isinstance(call, ast.Call) or target.open:
        raise Unfit
    call.keywords.append(ast.keyword("added", ast.Constant(1)))
    return replaced(target, node, [target.indent + ast.unparse(node)], Verdict.BROKEN)


def argument_dropped(target: Target, rng: random.Random) -> Mutant:
    node = rng.choice(target.block())
    call = getattr(node, "value", None)
    if not isinstance(call, ast.Call) or not (call.args or call.keywords) or target.open:
        raise Unfit
    (call.keywords or call.args).pop()
    return replaced(target, node, [target.indent + ast.unparse(node)], Verdict.BROKEN)


def statement_between(target: Target, rng: random.Random) -> Mutant:
    block = target.block()
    if len(block) < 2:
        raise Unfit
    at = rng.choice(block[1:]).lineno - 1
    return Mutant(
        "\n".join([*target.lines[:at], f"{target.indent}added = 1", *target.lines[at:]]), Verdict.BROKEN
    )


def statement_dropped(target: Target, rng: random.Random) -> Mutant:
    block = target.block()
    if len(block) < 2:
        raise Unfit
    return replaced(target, rng.choice(block), [target.indent + "pass"], Verdict.BROKEN)


def statements_swapped(target: Target, rng: random.Random) -> Mutant:
    block = target.block()
    if len(block) < 2:
        raise Unfit
    at = rng.randrange(len(block) - 1)
    block[at], block[at + 1] = block[at + 1], block[at]
    new = [target.indent + line for s in block for line in ast.unparse(s).split("\n")]
    return Mutant(target.with_lines(new), Verdict.BROKEN)


def sharing_a_line(target: Target, rng: random.Random) -> Mutant:
    first = target.lines[target.start]
    if isinstance(target.block()[0], (ast.If, ast.With)):
        raise Unfit
    rest = target.lines[target.start + 1 : target.end]
    return Mutant(target.with_lines([f"{target.indent}added = 1; {first.lstrip()}", *rest]), Verdict.BROKEN)


MUTATIONS: tuple[Mutation, ...] = (
    *(styled(s) for s in ("one_line", "exploded", "aligned", "packed")),
    comments,
    backslashes,
    crlf,
    keywords_shuffled,
    renamed_everywhere,
    swapped_with_neighbour,
    nested,
    duplicated,
    defined_twice,
    scope_renamed,
    word_changed,
    argument_added,
    argument_dropped,
    statement_between,
    statement_dropped,
    statements_swapped,
    sharing_a_line,
)
