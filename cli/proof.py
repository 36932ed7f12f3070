"""Words for what `verify` proved and what its trials gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glm_pto.cli.text import plain
from glm_pto.codemods.verify import CHECKS

if TYPE_CHECKING:
    from glm_pto.cli.rehearsal import Trial
    from glm_pto.codemods.verify import Check


def table(checks: Sequence[Check]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of the table of verify: one row per guard, one column per check."""
    names = tuple(dict.fromkeys(c.name for c in checks))
    guards = sorted({(c.site, c.file, c.line) for c in checks})
    results = {(c.site, c.file, c.line, c.name): c.ok for c in checks}
    marks = {True: "ok", False: "NO", None: "?"}
    rows = []
    for site, file, line in guards:
        cells = [
            marks[results[site, file, line, n]] if (site, file, line, n) in results else "-" for n in names
        ]
        verdict = "refuted" if "NO" in cells else "proved"
        rows.append((plain(site), verdict, *cells, plain(f"{file}:{line}")))
    return ("site", "verdict", *names, "where"), rows


def legend(checks: Sequence[Check]) -> list[str]:
    """What each column of that table proves."""
    return [f"{name}: {CHECKS[name]}" for name in dict.fromkeys(c.name for c in checks)]


def summary(checks: Sequence[Check], target: str = "") -> str:
    """What the table amounts to, in one sentence; ``target`` are the words that named the trees."""
    guards = {(c.site, c.file, c.line) for c in checks}
    refuted = {(c.site, c.file, c.line) for c in checks if c.ok is False}
    amount = f"{len(guards)} guard{'s' if len(guards) != 1 else ''}, {len(checks)} checks"
    if refuted:
        more = f"`glm-pto explain SITE{plain(target)}` tells more about a site"
        return f"{amount}: {len(refuted)} refuted; {more}."
    undecided = sum(c.ok is None for c in checks)
    left = f" {undecided} could not be decided here, see above." if undecided else ""
    return f"{amount}, none refuted: a guard that is off, or taken out, leaves the original program.{left}"


def remarks(checks: Sequence[Check], verbose: bool) -> list[str]:
    """Why a check failed or could not be decided; what holds for several sites is said once."""
    told: dict[str, list[str]] = {}
    for check in sorted(checks, key=lambda c: c.site):
        if check.detail and (check.ok is not True or verbose):
            told.setdefault(f"{check.name}: {check.detail}", []).append(check.site)
    return [plain(f"{', '.join(dict.fromkeys(sites))}: {line}") for line, sites in told.items()]


def trials(found: Sequence[Trial]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of the table of `verify --run`."""
    rows: list[tuple[str, ...]] = []
    for one in sorted(found, key=lambda one: (one.site, one.file, one.line)):
        verdict = ("agrees" if one.good else "differs") if one.ran else "not run"
        numbers = (
            (f"{one.off:.2g}", f"{one.on:.2g}", f"{one.allowed:.2g}", str(one.calls))
            if one.ran
            else ("-",) * 4
        )
        rows.append((plain(one.site), verdict, *numbers, plain(one.detail or f"{one.file}:{one.line}")))
    return ("site", "verdict", "off", "on", "allowed", "calls", "where"), rows


#: What the columns of that table are.
TRIALS = (
    "off: largest difference from the original statements with the switch off, which must be 0",
    "on: the same with the switch on and the torch reference, relative to the largest value",
    "allowed: what the operator may differ by, since it sums in another order or rounds once",
    "calls: how often the operator was called with the switch on, which must be once",
)
