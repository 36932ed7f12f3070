"""Answer from what the last apply wrote down, where nothing it looked at has changed since.

A tree is read, parsed and matched once, when guards are put in. The rows of that survey go into the state
with the hash of every file that was looked at. Equal hashes, versions and tool mean equal rows, so `status`
and a second `apply` need no parser. Anything else at all: look at the text again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm_pto.codemods import reading, seal, state
from glm_pto.codemods.findings import Finding, State, TreeReport
from glm_pto.codemods.trees import Tree

if TYPE_CHECKING:
    from glm_pto.codemods.plan import Files
    from glm_pto.codemods.recipe import Recipe


@dataclass(frozen=True)
class Memory:
    """The report of the last survey, and the functions of the layer that its guards call."""

    report: TreeReport
    functions: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Is there nothing that another apply would do?"""
        rows = self.report.findings
        return all(r.state is State.ABSENT or (r.state is State.APPLIED and not r.message) for r in rows)


def note(files: Files, chosen: Iterable[Recipe], report: TreeReport) -> dict[str, Any]:
    """What to write down of a complete survey of one tree, JSON values only."""
    sites = {row.site for row in report.findings}
    return {
        "key": _key(files.tree),
        "looked": files.looked(),
        "rows": [{**asdict(row), "action": None} for row in report.findings],
        "digest": report.digest,
        "notes": [n for n in report.notes if n not in files.tree.notes],
        "functions": [recipe.function for recipe in chosen if recipe.site in sites],
    }


def recall(tree: Tree) -> Memory | None:
    """What was written down, if every file it rests on is still the same; else None."""
    record = state.load(tree.root).record
    memory = record.survey if record else {}
    try:
        if not memory or memory["key"] != _key(tree) or not _unchanged(tree.root, memory["looked"]):
            return None
        rows = tuple(Finding(**{**entry, "state": State(entry["state"])}) for entry in memory["rows"])
        packages = {p.name: p.version for p in tree.packages}
        notes = (*tree.notes, *(str(n) for n in memory["notes"]))
        report = TreeReport(tree.root, packages, rows, str(memory["digest"]), notes)
        return Memory(report, tuple(str(name) for name in memory["functions"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # not what `note` writes: the text decides


def _unchanged(root: Path, looked: Mapping[str, str | None]) -> bool:
    for name, digest in looked.items():
        try:
            data = reading.load(root / name)
        except (FileNotFoundError, NotADirectoryError):
            if digest is not None:
                return False
            continue
        except OSError:
            return False
        if seal.digest(data) != digest:
            return False
    return bool(looked)


def _key(tree: Tree) -> str:
    """What besides the files decides the rows: the packages, and this tool's own text."""
    here = Path(__file__).parent
    parts = [f"{p.name}={p.version}" for p in tree.packages]
    parts += [f"beside {p.name}={p.version}" for p in tree.beside]
    for folder in (here, here / "recipes"):
        with os.scandir(folder) as entries:
            own = [(e.name, e.stat()) for e in entries if e.name.endswith(".py")]
        parts += sorted(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in own)
    return seal.digest("\n".join(parts).encode())
