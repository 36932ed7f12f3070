"""The JSON form of results: `docs/schema` describes it, a test holds the two together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glm_pto.codemods.findings import Finding, TreeReport

if TYPE_CHECKING:
    from glm_pto.cli.machine import Fact
    from glm_pto.cli.rehearsal import Trial
    from glm_pto.codemods.operations import DiffResult
    from glm_pto.codemods.recipe import Recipe
    from glm_pto.codemods.verify import Check


def of_finding(finding: Finding) -> dict[str, Any]:
    """One row of ``sites``."""
    row: dict[str, Any] = {
        "site": finding.site,
        "place": finding.place,
        "package": finding.package,
        "file": finding.file,
        "line": finding.line,
        "state": finding.state.value,
        "form": finding.form,
        "reached": finding.reached,
        "reached_when": finding.reached_when,
        "message": finding.message,
    }
    if finding.action is not None:
        row["action"] = finding.action.value
    return row


def of_trees(trees: Sequence[TreeReport], action: str | None) -> dict[str, Any]:
    """The whole document of `status` (``action`` None), `apply` and `revert`."""
    document: dict[str, Any] = {} if action is None else {"action": action}
    document["trees"] = [
        {
            "root": str(tree.root),
            "digest": tree.digest,
            "packages": tree.packages,
            "sites": [of_finding(f) for f in tree.findings],
            "notes": list(tree.notes),
        }
        for tree in trees
    ]
    return document


def of_failure(
    action: str, code: int, problems: Sequence[str], findings: Sequence[Finding], notes: Sequence[str]
) -> dict[str, Any]:
    """What is printed instead where a command is refused or fails."""
    return {
        "action": action,
        "trees": [],
        "error": {
            "exit": code,
            "problems": list(problems),
            "sites": [of_finding(f) for f in findings],
            "notes": list(notes),
        },
    }


def of_recipes(recipes: Sequence[Recipe]) -> dict[str, Any]:
    """The document of `sites`."""
    return {
        "sites": [
            {
                "site": r.site,
                "title": r.title,
                "why": r.why,
                "function": r.function,
                "switch": r.switch,
                "links": list(r.links),
                "drop_when": r.drop_when,
                "places": [
                    {
                        "place": p.name,
                        "package": p.package,
                        "forms": [
                            {"form": f.name, "file": f.file, "scope": f.scope, "releases": f.releases}
                            for f in p.forms
                        ],
                    }
                    for p in r.places
                ],
            }
            for r in recipes
        ]
    }


def of_facts(facts: Sequence[Fact]) -> dict[str, Any]:
    """The document of `doctor`."""
    return {
        "facts": [
            {"topic": f.topic, "name": f.name, "value": f.value, "verdict": f.verdict, "advice": f.advice}
            for f in facts
        ]
    }


def of_checks(checks: Sequence[Check], trials: Sequence[Trial]) -> dict[str, Any]:
    """The document of `verify`."""
    return {
        "proved": all(c.ok is not False for c in checks),
        "checks": [
            {"root": str(c.root), "site": c.site, "file": c.file, "line": c.line, "check": c.name, "ok": c.ok,
             "detail": c.detail}
            for c in checks
        ],
        "trials": [
            {"root": str(t.root), "site": t.site, "file": t.file, "line": t.line, "ran": t.ran,
             "good": t.good, "calls": t.calls, "off": t.off, "on": t.on, "allowed": t.allowed,
             "detail": t.detail}
            for t in trials
        ],
    }  # fmt: skip


def of_diff(found: DiffResult) -> dict[str, Any]:
    """The document of `diff`; bytes of the patch that are no UTF-8 are lone surrogates."""
    return {
        "trees": [
            {
                "root": str(root),
                "which": which,
                "files": [
                    {
                        "file": f.path,
                        "added": f.added,
                        "removed": f.removed,
                        "patch": f.patch.decode("utf-8", "surrogateescape"),
                    }
                    for f in files
                ],
            }
            for (root, files), which in zip(found.trees, found.which, strict=True)
        ],
        "notes": list(found.notes),
    }
