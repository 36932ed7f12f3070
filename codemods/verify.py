"""Prove an edit that stands in a tree, from the files alone and by other means than those that made it.

The engine works on lines; this works on syntax trees: it takes the guards out of the parsed file and compares
what is left with the parsed original. So a fault in one is seen by the other.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm_pto.codemods import (
    edit,
    guard,
    kernels,
    marks,
    reading,
    recipes,
    scope,
    seal,
    signatures,
    source,
    state,
    trees,
)
from glm_pto.codemods.findings import UsageError
from glm_pto.codemods.recipe import KERNELS
from glm_pto.codemods.source import Source, Unreadable

#: What is proved of every guard, with the words for it.
CHECKS = {
    "program": "without the guard the file is the original program (syntax trees compared)",
    "bytes": "without the guard the file has the bytes that it had before the first apply",
    "names": "every name that the guard uses is bound there, and nothing that is read later is left unset",
    "call": "the operator layer has the function, and it takes these arguments",
    "compiles": "the target's Python compiles the file",
}


@dataclass(frozen=True)
class Check:
    """One thing proved (``ok``), refuted (not ``ok``), or not decidable here (None), for one guard."""

    root: Path
    site: str
    file: str
    line: int
    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Standing:
    """A guard that stands in a tree, as text that can be run."""

    site: str
    file: str
    line: int
    switch: str
    guard: str
    original: str

    def question(self) -> dict[str, str]:
        """What the operator layer's trial asks for."""
        return {"site": self.site, "switch": self.switch, "guard": self.guard, "original": self.original}


def guards(tree: trees.Tree) -> list[Standing]:
    """Every intact guard of a tree."""
    switches = {r.site: r.switch for r in recipes.load()}
    found = []
    for path in marks.files(tree, state.load(tree.root).record):
        file = source.read(path.relative_to(tree.root).as_posix(), reading.load(path))
        for one in guard.find(file):
            if one.fault:
                continue
            node = _node(file, one)
            original = "\n".join(ast.unparse(statement) for statement in one.orelse)
            text = ast.unparse(node)
            found.append(Standing(one.site, file.name, one.header + 1, switches[one.site], text, original))
    return found


def _node(file: Source, one: guard.Guard) -> ast.If:
    return next(n for n in ast.walk(file.tree) if isinstance(n, ast.If) and n.lineno - 1 == one.header)


def verify(settled: Sequence[trees.Tree], *, python: Path | None = None) -> tuple[Check, ...]:
    """Every check of every guard in the trees; raises `UsageError` where there is no guard at all."""
    found: list[Check] = []
    for tree in settled:
        layer = kernels.find(tree.root, python=python)
        folder = None if layer is None else layer.folder
        record = state.load(tree.root).record
        for path in marks.files(tree, record):
            known = record.files.get(path.relative_to(tree.root).as_posix()) if record else None
            found += _file(tree.root, path, folder, known.before if known else None, python)
    if not found:
        looked = ", ".join(str(tree.root) for tree in settled)
        raise UsageError(f"{looked}: there is no guard to verify; run `glm-pto apply` on it first")
    return tuple(found)


def _file(
    root: Path, path: Path, layer: Path | None, original: str | None, python: Path | None
) -> list[Check]:
    name = path.relative_to(root).as_posix()
    data = reading.load(path)
    if marks.MARK not in data:
        return []
    try:
        return _checks(source.read(name, data), root, layer, original, python)
    except Unreadable as error:
        return [Check(root, "-", name, 0, "program", False, str(error))]


@source.bounded
def _checks(
    file: Source, root: Path, layer: Path | None, original: str | None, python: Path | None
) -> list[Check]:
    guards = guard.find(file)
    if not guards:
        return []
    stripped = edit.strip(file, force=True)
    common = {
        "program": _program(file, stripped),
        "bytes": _bytes(stripped, original),
        "compiles": _compiles(file, python),
    }
    found = []
    for one in guards:
        results = (
            {**common, **_of_guard(file, one, layer)} if not one.fault else {"program": (False, one.fault)}
        )
        found += [
            Check(root, one.site, file.name, one.header + 1, check, ok, detail)
            for check, (ok, detail) in results.items()
        ]
    return found


Outcome = tuple[bool | None, str]


def _program(file: Source, stripped: Source) -> Outcome:
    left = ast.dump(_Without(file).visit(ast.parse(file.data)))
    right = ast.dump(stripped.tree)
    return (True, "") if left == right else (False, "the trees differ: the file holds more than the guards")


def _bytes(stripped: Source, original: str | None) -> Outcome:
    if original is None:
        return None, "the bytes from before the first apply are not recorded"
    if seal.digest(stripped.data) == original:
        return True, ""
    return None, "the file was edited outside of our lines since apply; those edits are not judged"


def _compiles(file: Source, python: Path | None) -> Outcome:
    if python is None:
        try:
            compile(file.data, file.name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError) as error:
            return False, str(error)
        return True, ""
    command = [
        str(python),
        "-c",
        "import sys; compile(sys.stdin.buffer.read(), sys.argv[1], 'exec')",
        file.name,
    ]
    done = subprocess.run(command, input=file.data, capture_output=True)
    return done.returncode == 0, done.stderr.decode(errors="replace").strip().rpartition("\n")[2]


def _of_guard(file: Source, one: guard.Guard, layer: Path | None) -> dict[str, Outcome]:
    node = _node(file, one)
    function = scope.enclosing(file.tree, node) or file.tree
    problems = [f"{n} is not bound there" for n in scope.unbound(file.tree, function, node)]
    problems += [f"{n} is read later but our branch leaves it unset" for n in scope.forgotten(function, node)]
    names: Outcome = (not problems, "; ".join(problems))
    return {"names": names, "call": _calls(node, layer)}


def _calls(node: ast.If, layer: Path | None) -> Outcome:
    if layer is None:
        lacking = f"no {KERNELS} is found for this code, which could not be imported so"
        return None, f"{lacking}: install glm-pto where it runs, or apply with --install-kernels"
    problems = []
    for call in _layer_calls((ast.Expr(node.test), *node.body)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        try:
            wanted = signatures.function(layer, name)
        except Unreadable as error:
            return False, str(error)
        misfit = "is not there" if wanted is None else signatures.misfit(call, wanted)
        if misfit:
            problems.append(f"{KERNELS}.{name} {misfit}")
    return not problems, "; ".join(problems)


def _layer_calls(nodes: Iterable[ast.AST]) -> Iterable[ast.Call]:
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                owner = call.func.value
                if isinstance(owner, ast.Name) and owner.id == KERNELS:
                    yield call


class _Without(ast.NodeTransformer):
    """A syntax tree without our guards and our import line; knows them by their markers alone."""

    def __init__(self, file: Source) -> None:
        self.file = file

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        ours = guard.marker(
            self.file, node
        )  # looked for first: a body that begins with a guard is about to change
        self.generic_visit(node)
        return node.orelse if ours else node

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return None if marks.MARK.decode() in self.file.lines[node.lineno - 1] else node
