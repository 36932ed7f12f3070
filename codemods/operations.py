"""The commands as functions: apply, revert, diff, status. All is proved before the one writer writes.

The parser, the recipes and the writer are imported where they are first needed: most calls in a tree that is
already as it should be need none of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from glm_pto.codemods import recall
from glm_pto.codemods.findings import (
    Action,
    Changed,
    FileChange,
    Options,
    Refusal,
    Result,
    State,
    TreeReport,
    UsageError,
    WriteFailure,
)
from glm_pto.codemods.interrupted import notes, settled, telling
from glm_pto.codemods.target import CONTROL
from glm_pto.codemods.trees import Tree

if TYPE_CHECKING:
    from glm_pto.codemods.diff import DiffResult
    from glm_pto.codemods.prepare import Prepared

__all__ = ["DiffResult", "Options", "Result", "apply", "diff", "revert", "status"]

Targets = Sequence[str | Path]


def status(targets: Targets = (), options: Options | None = None, *, python: Path | None = None) -> Result:
    """Every place of every site with its state; nothing is changed but an interrupted run is finished."""
    asked = options or Options()
    found = []
    for tree in settled(targets, python):
        memory = recall.recall(tree) if _everything(asked) else None
        if memory is not None:
            found.append(memory.report)
            continue
        from glm_pto.codemods import origin
        from glm_pto.codemods.survey import choose, survey
        from glm_pto.codemods.survey import report as full_report

        found.append(origin.annotate(full_report(*survey(tree, choose(asked)))))
    return Result(tuple(found))


def lacking(report: TreeReport, python: Path | None = None) -> str | None:
    """Why the guards of a tree, those to come too, could not call the layer, with what to do; None if so."""
    from glm_pto.codemods import kernels, recipes

    sites = {f.site for f in report.findings if f.state is not State.ABSENT}
    return kernels.problem(report.root, [r.function for r in recipes.load() if r.site in sites], python)


def apply(targets: Targets = (), options: Options | None = None, *, python: Path | None = None) -> Result:
    """Put every chosen guard in, or change nothing.

    Raises `Refusal` naming everything that stands in the way, `UsageError` for a wrong request and
    `WriteFailure` where the disk failed and all files are as before.
    """
    asked = options or Options()
    return _once_more(lambda: _apply(targets, asked, python))


def _apply(targets: Targets, asked: Options, python: Path | None) -> Result:
    found = settled(targets, python)
    with telling(found):
        return _apply_to(found, asked, python)


def _apply_to(found: Sequence[Tree], asked: Options, python: Path | None) -> Result:
    done = [report for tree in found if (report := _as_wanted(tree, asked, python)) is not None]
    if len(done) == len(found):
        return Result(tuple(done), "apply", False)
    from glm_pto.codemods.prepare import prepare_apply
    from glm_pto.codemods.survey import choose

    chosen = choose(asked)
    return _run("apply", [prepare_apply(tree, chosen, asked, python) for tree in found], asked)


def revert(targets: Targets = (), options: Options | None = None, *, python: Path | None = None) -> Result:
    """Take every chosen guard out; the guards themselves are enough, no backup or state is needed."""
    asked = options or Options()
    return _once_more(lambda: _revert(targets, asked, python))


def _revert(targets: Targets, asked: Options, python: Path | None) -> Result:
    from glm_pto.codemods import origin
    from glm_pto.codemods.prepare import prepare_revert
    from glm_pto.codemods.survey import choose

    choose(asked)  # a wrong name is told before anything is done
    found = settled(targets, python)
    with telling(found):
        prepared = [prepare_revert(tree, asked) for tree in found]
        told = [replace(one, report=origin.annotate(one.report)) for one in prepared]
        return _run("revert", told, asked)


def diff(
    targets: Targets = (),
    options: Options | None = None,
    *,
    which: Literal["auto", "pending", "applied"] = "auto",
    python: Path | None = None,
) -> DiffResult:
    """What apply would change ("pending"), what is applied, or the first of these that is not empty."""
    from glm_pto.codemods.diff import DiffResult, file_diff
    from glm_pto.codemods.survey import choose

    asked = options or Options()
    if which not in ("auto", "pending", "applied"):
        raise UsageError(f"which={which!r}: choose from auto, pending, applied")
    choose(asked)  # a wrong name is told before anything is done
    found = settled(targets, python)
    patches, shown = [], []
    with telling(found):
        for tree in found:
            what, changes = _differences(tree, asked, which, python)
            shown.append(what)
            files = [file_diff(c.path.relative_to(tree.root).as_posix(), c.before, c.after) for c in changes]
            patches.append((tree.root, tuple(files)))
    return DiffResult(tuple(patches), notes(found), tuple(shown))


def _differences(
    tree: Tree, asked: Options, which: str, python: Path | None
) -> tuple[str, Sequence[FileChange]]:
    """What the difference is, "pending" or "applied", and its files."""
    from glm_pto.codemods.prepare import prepare_apply, prepare_revert
    from glm_pto.codemods.survey import choose

    if which != "applied":
        prepared = prepare_apply(tree, choose(asked), asked, python, check_layer=False)
        if prepared.problems:
            raise Refusal(*prepared.problems, findings=prepared.report.findings)
        if which == "pending" or prepared.changes:
            return "pending", prepared.changes
    taken = prepare_revert(tree, replace(asked, force=True))  # an edited guard is shown too
    if taken.problems:
        raise Refusal(*taken.problems, findings=taken.report.findings)
    what = "applied" if which == "applied" or taken.changes else "pending"
    return what, [_reverse(c) for c in taken.changes]


def _once_more(work: Callable[[], Result]) -> Result:
    """Look again where another run wrote the files in the meantime; most often it did the same work."""
    try:
        return work()
    except Changed:
        return work()


def _everything(asked: Options) -> bool:
    return not (asked.sites or asked.skip or asked.require_reached or asked.install_kernels)


def _as_wanted(tree: Tree, asked: Options, python: Path | None) -> TreeReport | None:
    """The report of a tree in which everything is applied and the layer is found; None: look closer."""
    memory = recall.recall(tree) if _everything(asked) else None
    if memory is None or not memory.finished:
        return None
    from glm_pto.codemods import kernels

    if kernels.problem(tree.root, memory.functions, python) is not None:
        return None
    rows = tuple(replace(row, action=Action.UNCHANGED) for row in memory.report.findings)
    return replace(memory.report, findings=rows)


def _run(action: str, prepared: Sequence[Prepared], asked: Options) -> Result:
    many = len(prepared) > 1
    problems = [
        f"{one.tree.root}: {p}" if many and str(one.tree.root) not in p else p
        for one in prepared
        for p in one.problems
    ]
    problems += _met_twice(prepared)
    if problems:
        raise Refusal(*problems, findings=tuple(f for one in prepared for f in one.report.findings))
    if not asked.dry_run:
        prepared = _write_all(action, prepared)
    return Result(tuple(one.report for one in prepared), action, any(one.changes for one in prepared))


def _met_twice(prepared: Sequence[Prepared]) -> list[str]:
    """Files that two of the trees lead to by links: the second could only find them changed."""
    names: dict[Path, list[str]] = {}
    for change in (change for one in prepared for change in one.changes):
        names.setdefault(change.path.resolve(), []).append(str(change.path))
    return [
        f"{real}: {' and '.join(paths)} are links to this one file; name one TREE at a time"
        for real, paths in names.items()
        if len(paths) > 1
    ]


def _write_all(action: str, prepared: Sequence[Prepared]) -> list[Prepared]:
    """One transaction a tree; where a later tree fails, the earlier ones are put back."""
    done: list[Prepared] = []
    try:
        for one in prepared:
            done.append(_write(action, one))
    except BaseException as error:
        stuck = [why for one in reversed(done) if (why := _put_back(action, one))]
        if stuck:
            raise WriteFailure("; ".join((str(error) or type(error).__name__, *stuck))) from error
        raise
    return done


def _put_back(action: str, one: Prepared) -> str:
    """Undo what was written to one tree; why it could not be, where somebody else wrote there since."""
    try:
        _write(action, replace(one, changes=tuple(_reverse(c) for c in one.changes), memory={}))
    except (Refusal, WriteFailure) as problem:
        return f"{one.tree.root} could not be put back and stays as it is now: {problem}"
    return ""


def _write(action: str, one: Prepared) -> Prepared:
    """Carry one tree out; what the user should know becomes notes of its report."""
    outdated = action == "revert" and os.path.lexists(one.tree.root / CONTROL)
    if not one.changes and not outdated:
        return one
    from glm_pto import __version__
    from glm_pto.codemods import transaction

    told = transaction.commit(one.tree.root, one.changes, one.report.packages, __version__, survey=one.memory)
    return replace(one, report=replace(one.report, notes=(*one.report.notes, *told)))


def _reverse(change: FileChange) -> FileChange:
    return FileChange(change.path, change.after, change.before, change.package)
