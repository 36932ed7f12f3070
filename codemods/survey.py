"""What stands where in a tree, as frozen results: the rows of `status`, the digest, the notes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from glm_pto.codemods import pairs, plan, recipes, spelling
from glm_pto.codemods.findings import Action, Finding, Options, State, TreeReport, UsageError
from glm_pto.codemods.plan import Files, Spot
from glm_pto.codemods.recipe import Recipe
from glm_pto.codemods.trees import Tree


def choose(options: Options) -> tuple[Recipe, ...]:
    """The recipes that the options select; `UsageError` with a suggestion for an unknown name."""
    known = {recipe.site: recipe for recipe in recipes.load()}
    for name in (*options.sites, *options.skip):
        if name not in known:
            raise UsageError(f"there is no site {name!r}.{spelling.nearest(name, known)}")
    chosen = tuple(
        r
        for r in known.values()
        if r.site not in options.skip and (not options.sites or r.site in options.sites)
    )
    if not chosen:
        raise UsageError("no site is left to work on: every site that is asked for is skipped too")
    return chosen


def survey(tree: Tree, chosen: Iterable[Recipe]) -> tuple[Files, list[Spot]]:
    """The tree's files and the spots of the chosen recipes."""
    files = Files(tree)
    return files, plan.survey(files, chosen)


def report(
    files: Files, spots: Sequence[Spot], actions: Mapping[tuple[str, str], Action] | None = None
) -> TreeReport:
    """The frozen result for one tree."""
    did = actions or {}
    rows = tuple(
        replace(_with_reached(files.tree, s), action=did.get((s.recipe.site, s.place.name))) for s in spots
    )
    packages = {p.name: p.version for p in files.tree.packages}
    return TreeReport(files.tree.root, packages, rows, _digest(files, rows), tuple(_notes(files.tree, spots)))


def _with_reached(tree: Tree, spot: Spot) -> Finding:
    reached = spot.place.reached(tree)
    if spot.finding.state is State.ABSENT:
        return replace(spot.finding, reached_when="" if reached.by_default else reached.when)
    return replace(spot.finding, reached=reached.by_default, reached_when=reached.when)


def _digest(files: Files, rows: Sequence[Finding]) -> str:
    """One value for what the tree's sites are: equal on two nodes only if versions, states and texts are."""
    parts = [f"{p.name}={p.version}" for p in files.tree.packages]
    for row in rows:
        parts.append(f"{row.site}/{row.place}={row.state.value}:{row.form}")
    for name in sorted({row.file for row in rows if row.file}):
        parts.append(f"{name}={files.fingerprint(files.tree.root / name)}")
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _notes(tree: Tree, spots: Sequence[Spot]) -> list[str]:
    seen = {s.finding.package for s in spots}
    wanted = {p.package for r in recipes.load() for p in r.places} - {"wall_x"}
    missing = sorted(wanted - {p.name for p in tree.packages})
    notes = [_skipped(tree, name) for name in missing if "vllm" in seen or tree.find(name)]
    mixed = pairs.mismatch(tree)
    return [*tree.notes, *notes, *([mixed] if mixed else [])]


def _skipped(tree: Tree, name: str) -> str:
    where = "stands beside, but was not named" if tree.find(name) else "is not in this tree"
    return f"{name} {where}: its sites are skipped"
