"""Future releases, simulated: changed real files are guarded rightly or refused by name, never wrongly.

A wrong edit compiles and is not the reviewed guard around exactly the site's statements. The judge shares no
code with the patcher: it compares syntax trees with those of the unchanged release.
"""

from __future__ import annotations

import ast
import builtins
import collections
import copy
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from glm_pto.codemods import operations, recipes, trees
from glm_pto.codemods.findings import Options, State
from glm_pto.codemods.prepare import Prepared, prepare_apply
from glm_pto.codemods.recipe import Form, Recipe

from .conftest import LightTree
from .mutate import MUTATIONS, Mutant, Target, Unfit, Verdict

SOME = (("0.11.0", "0.11.0"), ("0.12.0", "0.12.0rc1"), ("0.13.0", "0.13.0"))
#: One release of every other form.
OTHERS = (
    ("0.10.0", "0.10.1rc1"),
    ("0.17.0", "0.17.0rc1"),
    ("0.22.1", "0.22.1rc1"),
    ("0.23.0", "0.23.0"),
    ("0.26.0", "0.26.0rc1"),
    ("0.27.1", "0.27.1rc1"),
    ("0.29.0", "0.29.0rc1"),
    ("0.33.0", "0.30.0rc2"),
)


@dataclass(frozen=True)
class Reviewed:
    """A target, its recipe, and the guard that the unchanged release gets."""

    target: Target
    recipe: Recipe
    guard: ast.If


def reviewed(root: Path) -> list[Reviewed]:
    """Every site of a tree with its guard on the unchanged files."""
    found = []
    for recipe in recipes.load():
        before = operations.status([root], Options(sites=(recipe.site,))).trees[0].findings
        edits = {c.path: c for c in prepare(root, recipe).changes}
        for row in before:
            if row.state is not State.APPLICABLE or row.file is None or row.line is None:
                continue
            change = edits[root / row.file]
            assert change.before is not None and change.after is not None
            form = next(f for p in recipe.places for f in p.forms if f.name == row.form)
            (guard,) = guards(ast.parse(change.after))
            size = (guard.orelse[-1].end_lineno or 0) - guard.orelse[0].lineno + 1
            text = change.before.decode().replace("\r\n", "\n")
            target = Target(
                label=f"{row.file} {row.form}",
                site=recipe.site,
                file=row.file,
                text=text,
                scope=form.scope,
                start=row.line - 1,
                end=row.line - 1 + size,
                open="..." in form.site,
                values=values(form, guard),
            )
            found.append(Reviewed(target, recipe, guard))
    return found


def values(form: Form, guard: ast.If) -> frozenset[str]:
    """Expressions that stand in the site and, taken over, in the guard."""
    ours = {ast.unparse(n) for n in ast.walk(guard) if isinstance(n, ast.expr)}
    return frozenset(ours) if "$" in form.site else frozenset()


def prepare(root: Path, recipe: Recipe) -> Prepared:
    (tree,) = trees.find([root])
    return prepare_apply(tree, [recipe], Options(), check_layer=False)


def guards(tree: ast.Module) -> list[ast.If]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.If) and "glm_pto_kernels" in names(n.test)]


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


class Normal(ast.NodeTransformer):
    """Keywords sorted, names renamed: what is left is what the code does."""

    def __init__(self, renamed: dict[str, str]) -> None:
        self.renamed = renamed

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        node.keywords.sort(key=lambda k: k.arg or "")
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.renamed.get(node.id, node.id)
        return node


def dumped(nodes: list[ast.stmt], renamed: dict[str, str] | None = None) -> list[str]:
    return [ast.dump(Normal(renamed or {}).visit(copy.deepcopy(n))) for n in nodes]


class Unguard(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if "glm_pto_kernels" in names(node.test) else node

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return None if node.names[0].name == "glm_pto_kernels" else node


def wrong(case: Reviewed, mutant: Mutant, after: bytes) -> str | None:
    """Why the edit of a mutant is wrong, or None."""
    tree = ast.parse(after)
    compile(after, "mutant", "exec", dont_inherit=True)
    if mutant.verdict is Verdict.BROKEN:
        return "what stands there is not the site any more"
    placed = guards(tree)
    if len(placed) != 1:
        return f"{len(placed)} guards"
    if ast.dump(Unguard().visit(copy.deepcopy(tree))) != ast.dump(ast.parse(mutant.text.encode())):
        return "something else was changed"
    (guard,) = placed
    original = case.guard
    if dumped(guard.orelse) != dumped(original.orelse, mutant.renamed):
        return "the guard stands around other statements"
    ours = [ast.Expr(original.test), *original.body]
    if dumped([ast.Expr(guard.test), *guard.body]) != dumped(ours, mutant.renamed):
        return "it is not the reviewed guard"
    unknown = unbound(tree, guard)
    return f"names that nothing binds: {', '.join(unknown)}" if unknown else None


def unbound(tree: ast.Module, guard: ast.If) -> list[str]:
    """Names that the guard reads and that are neither parameters, nor bound above it, nor global."""
    function = min(
        (
            n
            for n in ast.walk(tree)
            if isinstance(n, ast.FunctionDef) and n.lineno < guard.lineno <= (n.end_lineno or 0)
        ),
        key=lambda n: (n.end_lineno or 0) - n.lineno,
    )
    bound = {n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)} | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
    toplevel = [
        n for s in tree.body if not isinstance(s, (ast.FunctionDef, ast.ClassDef)) for n in ast.walk(s)
    ]
    above = [n for n in ast.walk(function) if getattr(n, "lineno", guard.lineno) < guard.lineno]
    for node in (*toplevel, *above):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    made = {
        n.id
        for s in guard.body
        for n in ast.walk(s)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return sorted(names(guard.test) - bound) + sorted(set().union(*map(names, guard.body)) - bound - made)


def mutated(case: Reviewed, rng: random.Random) -> tuple[str, Mutant]:
    """A mutation that fits the target and leaves valid, different code."""
    while True:
        mutation = rng.choice(MUTATIONS)
        try:
            mutant = mutation(case.target, rng)
            ast.parse(mutant.text)
        except (Unfit, SyntaxError):
            continue
        if mutant.text != case.target.text:
            return mutation.__name__, mutant


def run(cases: list[Reviewed], seeds: range, folder: Path) -> collections.Counter[str]:
    """Judge one mutant a seed; every wrong edit is a failure with its seed."""
    outcomes: collections.Counter[str] = collections.Counter()
    failures = []
    for seed in seeds:
        rng = random.Random(seed)
        case = cases[seed % len(cases)]
        name, mutant = mutated(case, rng)
        root = folder / str(seed)
        path = root / case.target.file
        path.parent.mkdir(parents=True)
        path.write_bytes(mutant.text.encode())
        (root / case.target.file.partition("/")[0] / "__init__.py").touch()
        prepared = prepare(root, case.recipe)
        if not prepared.changes:
            rows = prepared.report.findings
            assert prepared.problems or all(r.state is State.ABSENT and r.message for r in rows), (seed, rows)
            outcomes[f"refused {mutant.verdict.value}"] += 1
            continue
        (change,) = prepared.changes
        assert change.after is not None
        fault = wrong(case, mutant, change.after)
        outcomes[f"guarded {mutant.verdict.value}"] += 1
        if fault:
            failures.append(f"seed {seed}: {name} of {case.target.label}: {fault}")
    assert not failures, "\n".join(failures)
    return outcomes


def judged(light_tree: LightTree, pairs: tuple[tuple[str, str], ...], seeds: range, folder: Path) -> None:
    cases = [case for pair in pairs for case in reviewed(light_tree(*pair))]
    outcomes = run(cases, seeds, folder / "mutants")
    kept = outcomes["guarded kept"] + outcomes["refused kept"]
    print(dict(outcomes))
    assert outcomes["refused broken"] > len(seeds) / 4, "hardly any mutation breaks a site"
    assert outcomes["guarded kept"] > kept * 0.6, "too much is refused that is still the site"


@pytest.mark.trees
def test_sixty_mutants_of_the_default_pairs(light_tree: LightTree, tmp_path: Path) -> None:
    judged(light_tree, SOME, range(60), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_mutants_of_every_form(light_tree: LightTree, tmp_path: Path, part: int) -> None:
    judged(light_tree, (*SOME, *OTHERS), range(1000 + 100 * part, 1100 + 100 * part), tmp_path)


@pytest.mark.trees
def test_the_judge_sees_wrong_edits(light_tree: LightTree) -> None:
    """The judge itself is tried: edits that are off in one way each are called wrong."""
    cases = reviewed(light_tree("0.12.0", "0.12.0rc1"))
    gate = next(c for c in cases if c.target.site == "gate")
    kept = Mutant(gate.target.text, Verdict.KEPT)
    lines = ast.unparse(gate.guard)
    site = "\n".join(gate.target.lines[gate.target.start : gate.target.end])

    def edited(guard: str) -> bytes:
        body = "\n".join(gate.target.indent + line for line in guard.split("\n"))
        return ("import glm_pto_kernels\n" + gate.target.text.replace(site, body)).encode()

    assert wrong(gate, kept, edited(lines)) is None
    assert wrong(gate, Mutant(gate.target.text, Verdict.BROKEN), edited(lines)) is not None
    assert wrong(gate, kept, edited(lines + "\npass")) == "something else was changed"
    assert wrong(gate, kept, edited(lines + "\n" + lines)) == "2 guards"
    assert (
        wrong(gate, kept, edited(lines.replace("gate_supported(self.gate", "gate_supported(self.other")))
        is not None
    )
    body = "router_logits = glm_pto_kernels.gate(self.gate, hidden_states)"
    assert wrong(gate, kept, edited(lines.replace(body, "pass"))) == "it is not the reviewed guard"
