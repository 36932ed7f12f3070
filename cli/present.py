"""How the results of each command are shown: what goes into the table, what into words, what into JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glm_pto.cli import text
from glm_pto.cli.report import Report, on_terminal
from glm_pto.codemods.findings import WriteFailure

if TYPE_CHECKING:
    from glm_pto.cli.machine import Fact
    from glm_pto.cli.rehearsal import Trial
    from glm_pto.cli.story import Story
    from glm_pto.codemods.operations import DiffResult, Result
    from glm_pto.codemods.recipe import Recipe
    from glm_pto.codemods.verify import Check


def edited(report: Report, result: Result, dry_run: bool) -> int:
    """Report of apply and revert."""
    files = {(t.root, f.file) for t in result.trees for f in t.findings if f.action in text.DONE}
    closing = text.closing(report.command, result, len(files), dry_run, report.target)
    return report.trees(result.trees, action=text.action(result, dry_run), closing=closing)


def surveyed(report: Report, result: Result, check: bool, reached: bool, python: Path | None) -> int:
    """Report of status; every site of the release must be applied with ``check``, reached with ``reached``.

    A guard that another apply would renew, or whose else-branch is no known text, is not: it has a message.
    Nor is one whose layer is gone: the edited module could not be imported.
    """
    short = text.shortfall(result.trees, check, reached)
    if check and not short:
        from glm_pto.codemods.operations import lacking

        missing = filter(None, (lacking(tree, python) for tree in result.trees))
        short = " ".join(f"The check fails: {why}." for why in missing)
    closing = " ".join(filter(None, (short, text.advice(result.trees, report.target))))
    return report.trees(result.trees, action=None, code=1 if short else 0, closing=closing)


def asides(report: Report, notes: Iterable[str]) -> None:
    """What was done to the trees before, where standard output is for something else."""
    for note in notes:
        report.aside(note)


def difference(
    report: Report, found: DiffResult, *, asked: str, stat: bool, output: Path | None, pager: bool
) -> None:
    """Report of diff: a patch in a pipe or a file, a side view on a terminal.

    Where ``asked`` leaves open which difference is meant, what is applied must not be taken for pending.
    """
    if not report.json:
        asides(report, found.notes)
    if output is not None:
        try:
            output.write_bytes(found.patch)
        except OSError as error:
            raise WriteFailure(
                f"{output}: cannot be written ({error.strerror}); name another --output"
            ) from None
    if report.json:
        from glm_pto.cli import document

        report.document(document.of_diff(found))
        return
    if not found.patch:
        report.aside(f"no difference to show; `glm-pto status{report.target}` says where each site stands")
    for line in text.applied_already(found) if asked == "auto" else ():
        report.aside(line)
    if stat or output is not None:
        for line in text.stat(found):
            report.line(line)
        if output is not None:
            report.line(
                f"written to {text.plain(output)}; from the tree's folder: git apply, or patch -p1 --binary"
            )
    elif report.quiet:
        return
    elif on_terminal():
        from glm_pto.cli.sideview import SideView

        for root, files in found.trees:
            if len(found.trees) > 1:
                report.line(text.plain(root), style="bold")
            report.page(SideView(str(root), tuple((f.path, f.patch) for f in files)), pager)
    else:
        report.raw(found.patch)


def sites(report: Report, recipes: Sequence[Recipe]) -> int:
    """The list of sites."""
    if report.json:
        from glm_pto.cli import document

        return report.document(document.of_recipes(recipes))
    rows = [(r.site, r.switch, ", ".join(sorted({p.package for p in r.places})), r.title) for r in recipes]
    report.table(("site", "switch", "package", "what is replaced"), rows, state=None)
    for recipe in recipes if report.verbose else ():
        report.line()
        report.line(recipe.site, style="bold")
        for line in text.wrapped(recipe.why):
            report.line(f"  {line}")
    return 0


def told(report: Report, story: Story) -> int:
    """What explain tells."""
    if report.json:
        return report.document(story.document)
    for heading, lines in story.paragraphs:
        report.line(text.plain(heading), style="bold")
        for line in lines:
            for part in text.wrapped(line):
                report.line(f"  {text.plain(part)}")
        report.line()
    return 0


def examined(report: Report, facts: Sequence[Fact]) -> int:
    """What doctor found."""
    if report.json:
        from glm_pto.cli import document

        return report.document(document.of_facts(facts))
    topic = ""
    for fact in facts if not report.quiet else ():
        if fact.topic != topic:
            report.line(fact.topic, style="bold")
            topic = fact.topic
        style = {"problem": "red", "note": "yellow"}.get(fact.verdict, "")
        report.line(text.plain(f"  {fact.name}: {fact.value}"), style=style)
        if fact.advice:
            report.line(text.plain(f"    -> {fact.advice}"))
    return report.ended(0, text.tally(f.verdict for f in facts))


def proved(report: Report, checks: Sequence[Check], trials: Sequence[Trial] = ()) -> int:
    """What verify proved, and what its trials gave; 3 where something is refuted."""
    from glm_pto.cli import proof

    code = 3 if any(c.ok is False for c in checks) or not all(t.good for t in trials) else 0
    if report.json:
        from glm_pto.cli import document

        return report.document(document.of_checks(checks, trials), code)
    if not report.quiet:
        report.table(*proof.table(checks))
        for line in proof.legend(checks) if report.verbose else ():
            report.line(f"  {line}")
        for line in proof.remarks(checks, report.verbose):
            report.line(f"  {line}", style="yellow")
        report.line()
        report.line(proof.summary(checks, report.target))
    if trials and not report.quiet:
        report.line()
        report.line("Run on the CPU, torch reference against the original statements", style="bold")
        report.table(*proof.trials(trials))
        for line in proof.TRIALS if report.verbose else ():
            report.line(f"  {line}")
    words = {True: "proved", False: "refuted", None: "undecided"}
    ran = text.tally(("agrees" if t.good else "differs") if t.ran else "not_run" for t in trials)
    return report.ended(code, {**text.tally(words[c.ok] for c in checks), **ran})
