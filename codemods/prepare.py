"""Plan and prove what a command does to one tree, in memory; nothing here writes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from glm_pto.codemods import edit, guard, kernels, marks, plan, recall
from glm_pto.codemods.findings import BLOCKING, Action, FileChange, Finding, Options, State, TreeReport
from glm_pto.codemods.plan import Files, Spot
from glm_pto.codemods.recipe import KERNELS, Recipe
from glm_pto.codemods.source import Unreadable
from glm_pto.codemods.survey import choose, report, survey
from glm_pto.codemods.trees import Tree

Actions = dict[tuple[str, str], Action]
_STANDING = (State.APPLIED, State.EDITED)


@dataclass(frozen=True)
class Prepared:
    """Everything a command would do to one tree, checked and not yet written."""

    tree: Tree
    changes: tuple[FileChange, ...]
    report: TreeReport
    problems: tuple[str, ...] = ()
    #: What the state is to remember of the survey; empty where not everything was surveyed.
    memory: Mapping[str, Any] = field(default_factory=dict)


def prepare_apply(
    tree: Tree,
    chosen: Sequence[Recipe],
    asked: Options,
    python: Path | None = None,
    *,
    check_layer: bool = True,
) -> Prepared:
    """Plan and prove an apply of one tree in memory."""
    files, spots = survey(tree, chosen)
    problems = _in_the_way(spots)
    todo = [s for s in spots if s.finding.state is State.APPLICABLE or s.stale or s.foreign]
    changes: list[FileChange] = []
    if not problems:
        changes, problems = _change(files, todo, _guard)
    used = [s.recipe.function for s in spots if s.finding.state in (State.APPLIED, State.APPLICABLE)]
    layer: list[FileChange] = []
    if check_layer and used:
        if asked.install_kernels:
            layer = kernels.copy_in(tree.root)
        elif (lacking := kernels.problem(tree.root, used, python)) is not None:
            problems.append(lacking)
    if problems:
        return Prepared(tree, (), report(files, spots), tuple(problems))
    after = plan.survey(files, chosen)
    actions: Actions = {_key(s): Action.UNCHANGED for s in after}
    for spot in todo:
        actions[_key(spot)] = Action.RENEWED if spot.stale else Action.APPLIED
    finished = report(files, after, actions)
    unreached = _unreached(finished, chosen) if asked.require_reached else []
    memory = {} if asked.sites or asked.skip else recall.note(files, chosen, finished)
    finished = _noted(finished, _of_layer(layer, asked.dry_run))
    return Prepared(tree, (*changes, *layer), finished, tuple(unreached), memory)


def _in_the_way(spots: Iterable[Spot]) -> list[str]:
    """What keeps the sites from being guarded; what is said of several of them is said once."""
    said: dict[str, list[str]] = {}
    for spot in spots:
        if spot.finding.state in BLOCKING:
            said.setdefault(spot.finding.message, []).append(spot.recipe.site)
    return [_with_sites(message, sites) for message, sites in said.items()]


def _with_sites(message: str, sites: Iterable[str]) -> str:
    """The message with the sites that it keeps out and the way round, where it does not name them itself."""
    names = list(dict.fromkeys(sites))
    if "--skip" in message or any(f"guard of {name}" in message for name in names):
        return message
    return f"{message}. This keeps out {', '.join(names)}; --skip SITE goes on without"


def _of_layer(changes: Sequence[FileChange], dry_run: bool) -> list[str]:
    """What is done to the copied operator layer, for the report: it has no row of its own."""
    if not changes:
        return []
    verb = "made" if all(c.before is None for c in changes) else "renewed"
    verb = "taken out" if all(c.after is None for c in changes) else verb
    tense = "would be" if dry_run else "is"
    return [f"the copy of {KERNELS} beside the packages {tense} {verb} ({len(changes)} files)"]


def _noted(done: TreeReport, notes: Sequence[str]) -> TreeReport:
    return replace(done, notes=(*done.notes, *notes))


def _key(spot: Spot) -> tuple[str, str]:
    return spot.recipe.site, spot.place.name


def _unreached(done: TreeReport, chosen: Sequence[Recipe]) -> list[str]:
    problems = []
    for recipe in chosen:
        rows = [f for f in done.findings if f.site == recipe.site and f.state is not State.ABSENT]
        if rows and not any(f.state is State.APPLIED and f.reached for f in rows):
            why = "; ".join(filter(None, map(_instead, rows)))
            problems.append(
                f"{done.root}: {recipe.site} is not reached by a decode step here: {why}. Use "
                f"--skip {recipe.site}, or leave --require out where your settings reach it"
            )
    return problems


def _instead(row: Finding) -> str:
    """When a decode step runs through the place after all."""
    return f"it is reached {row.reached_when}" if row.reached is False else row.reached_when or row.message


def prepare_revert(tree: Tree, asked: Options) -> Prepared:
    """Plan and prove a revert of one tree in memory, from the guards alone."""
    chosen = choose(asked)
    files, spots = survey(tree, chosen)
    named = {s.site for s in chosen} if asked.sites or asked.skip else None
    problems: list[str] = []
    changes: list[FileChange] = []
    standing = 0
    for path in marks.candidates(tree):
        try:
            change, left = _strip(files, path, named, asked.force)
        except Unreadable as error:
            problems += [str(error)] if marks.marked(path, named) else []
            standing += marks.marked(path)
            continue
        standing += left
        changes += [change] if change else []
    layer: list[FileChange] = []
    kept: list[str] = []
    others = _guarded_beside(tree) if kernels.copied(tree.root) else []
    if not standing and not others and not problems:
        layer, names = kernels.take_out(tree.root)
        kept = [f"{n}: edited since --install-kernels put it there; move it away" for n in names]
    if problems or (kept and not asked.force):
        return Prepared(tree, (), report(files, spots), (*problems, *kept))
    after = plan.survey(files, chosen)
    gone = {_key(s) for s in spots if s.finding.state in _STANDING}
    gone -= {_key(s) for s in after if s.finding.state in _STANDING}
    done = report(files, after, dict.fromkeys(gone, Action.REVERTED))
    notes = [*kept, *_of_layer(layer, asked.dry_run), *_elsewhere(files, spots, changes)]
    if others:
        notes.append(f"the copy of {KERNELS} stays: the guards of {' and '.join(others)} import it")
    return Prepared(tree, (*changes, *layer), _noted(done, notes))


def _guarded_beside(tree: Tree) -> list[str]:
    """Packages of the tree that hold guards but were not named: what they import must stay."""
    alone = (replace(tree, packages=(package,), beside=()) for package in tree.beside)
    return [one.packages[0].name for one in alone if any(map(marks.marked, marks.candidates(one)))]


def _elsewhere(files: Files, spots: Sequence[Spot], changes: Iterable[FileChange]) -> list[str]:
    """What is done to files that have no row: no form of this version names them."""
    shown = {s.path for s in spots}
    names = (files.name(change.path) for change in changes if change.path not in shown)
    return [f"{name}: holds guards of another version of glm-pto, taken out too" for name in names]


def _strip(files: Files, path: Path, named: set[str] | None, force: bool) -> tuple[FileChange | None, int]:
    """The change that takes the named guards out of a file, and how many guards stay in it."""
    before = files.get(path)
    if before is None:
        return None, 0
    standing = guard.find(before)
    going = [g for g in standing if named is None or g.site in named]
    for found in going:
        if found.fault and not (force and found.orelse):
            tree = shlex.quote(str(files.tree.root))
            raise Unreadable(
                f"{guard.edited(before, found)}. See `glm-pto diff --applied {tree}`, then take it out by "
                "hand or use --force"
            )
    after = edit.strip(before, {g.site for g in going}, force=force)
    files.put(path, after)
    if after.data == before.data:
        return None, len(standing) - len(going)
    package = path.relative_to(files.tree.root).parts[0]
    return FileChange(path, before.data, after.data, package), len(standing) - len(going)


def _change(
    files: Files, spots: Sequence[Spot], edits: Callable[[Files, Path, list[Spot]], None]
) -> tuple[list[FileChange], list[str]]:
    """Edit every file that the spots name, in memory; every problem is collected."""
    found: list[FileChange] = []
    problems = []
    for path in sorted({s.path for s in spots if s.path}):
        here = [s for s in spots if s.path == path]
        try:
            before = files.get(path)
            edits(files, path, here)
            after = files.get(path)
        except Unreadable as error:
            problems.append(_with_sites(str(error), (s.recipe.site for s in here)))
            continue
        except edit.SelfCheckFailed as error:
            problems.append(f"{error}. Nothing was written; please report this release, or use --skip SITE")
            continue
        if before is not None and after is not None and after.data != before.data:
            found.append(FileChange(path, before.data, after.data, here[0].finding.package))
    return found, problems


def _guard(files: Files, path: Path, here: list[Spot]) -> None:
    """Take out what is stale or foreign, then put in what is wanted; the result must be seen as applied."""
    file = files.get(path)
    assert file is not None
    going = {s.recipe.site for s in here if s.stale or s.foreign}
    wanted = [s for s in here if not s.foreign]
    if going:
        files.put(path, edit.strip(file, going))
        wanted = [plan.again(files, s) for s in wanted]
        for spot in wanted:
            if spot.finding.state in BLOCKING:
                raise Unreadable(spot.finding.message)
        file = files.get(path)
        assert file is not None
    pairs = [(s.recipe.site, s.match) for s in wanted if s.match is not None]
    if pairs:
        files.put(path, edit.apply(file, pairs))
    for spot in wanted:
        seen = plan.again(files, spot)
        if seen.finding.state is not State.APPLIED or seen.stale:
            raise edit.SelfCheckFailed(
                f"{file.name}: {spot.recipe.site}: a second apply would change the file"
            )
