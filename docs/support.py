#!/usr/bin/env python3
"""Write `docs/support.json` and `docs/support.md` from a run over every cached release.

``python3 docs/support.py`` needs an environment with libcst and click (`tests/run.py` makes one). Each
release is surveyed by the patcher itself, read-only, in a folder of links into the cache. Rows of releases
that are not cached are kept as they are; `tests/fetch_releases.py` fills the cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from glm_pto.cli import fetch, releases  # noqa: E402
from glm_pto.codemods import operations, recipes  # noqa: E402
from glm_pto.codemods.findings import Finding, State  # noqa: E402

DATA, TABLE = HERE / "support.json", HERE / "support.md"

#: Releases of vllm-ascend whose vllm has another number than their own.
OTHER_VLLM = {"0.14.0rc1": "0.14.1"}

MARK = {True: "reached", False: "setting", None: "unknown"}


@dataclass(frozen=True)
class Cell:
    """What one place is in one release."""

    site: str
    place: str
    state: str
    form: str | None
    file: str | None
    reached: bool | None
    when: str


@dataclass(frozen=True)
class Row:
    """One tree: a vllm, and the vllm-ascend beside it if there is one."""

    vllm: str
    ascend: str | None
    cells: tuple[Cell, ...]


def trees() -> Iterator[tuple[str, str | None]]:
    """(vllm, vllm-ascend) of every tree: the pairs, then each vllm alone."""
    for ascend in releases.ASCEND:
        yield OTHER_VLLM.get(ascend, ascend.partition("rc")[0].partition(".post")[0]), ascend
    for vllm in releases.VLLM:
        yield vllm, None


def survey(vllm: str, ascend: str | None) -> Row | None:
    """The row of a tree, or None where a release of it is not cached."""
    with tempfile.TemporaryDirectory() as folder:
        for name, version in (("vllm", vllm), ("vllm-ascend", ascend)):
            cached = fetch.cached(name, version) if version else None
            if version and cached is None:
                return None
            for part in cached.iterdir() if cached else ():
                if part.is_dir():
                    Path(folder, part.name).symlink_to(part)
        (report,) = operations.status([folder]).trees
    sites = {r.site for r in recipes.load() if any(p.package != "wall_x" for p in r.places)}
    return Row(vllm, ascend, tuple(map(cell, (f for f in report.findings if f.site in sites))))


def cell(found: Finding) -> Cell:
    words = (found.reached_when or found.message) if found.state is State.ABSENT else found.reached_when
    return Cell(found.site, found.place, found.state.value, found.form, found.file, found.reached, words)


def load() -> list[Row]:
    """The committed rows."""
    if not DATA.exists():
        return []
    return [
        Row(r["vllm"], r["ascend"], tuple(Cell(**c) for c in r["cells"]))
        for r in json.loads(DATA.read_text())
    ]


def render(rows: list[Row]) -> str:
    """The page."""
    notes: dict[str, int] = {}
    pairs = [r for r in rows if r.ascend]
    alone = [r for r in rows if not r.ascend]
    parts = [
        INTRO,
        count(pairs),
        "\n## vllm with vllm-ascend\n",
        "\n".join(matrix(pairs, notes)),
        "\n## vllm alone\n",
        ALONE,
        "\n".join(matrix(alone, notes)),
        "\n## Notes\n",
        "\n".join(f"{number}. {text}" for text, number in notes.items()),
        "\n## Forms\n",
        FORMS,
        "\n".join(forms(rows)),
    ]
    return "\n".join(parts) + "\n"


INTRO = """\
# Which operator is in effect in which release

Written by `python3 docs/support.py` from a run of the patcher over the released sources; do not edit. A
test compares it with a fresh run. "reached": a GLM-4.5 decode step runs through the guard with upstream's
default settings. "setting": the guard is applied, but a step only comes by with the setting or release that
the note names. "absent": the release has no such computation, so there is nothing to apply. What was read off
the sources here is shown by running the patched code for some releases in the tests; none of it was run on
an NPU.
"""
ALONE = """\
The operators need vllm-ascend's devices and weights; these sites are there for trees that get it later.
"""
FORMS = """\
A form is one shape of upstream code. Each release has exactly one form of each place.
"""


def count(rows: list[Row]) -> str:
    """How many cells (pair x site) are applied, and how many of these a default step reaches."""
    sites = {(r.ascend, c.site): [d for d in r.cells if d.site == c.site] for r in rows for c in r.cells}
    applied = [cells for cells in sites.values() if any(c.form for c in cells)]
    reached = [cells for cells in applied if any(c.reached for c in cells)]
    return (
        f"Of {len(sites)} cells (pair x operator) of {len(rows)} pairs, {len(applied)} are applied, "
        f"{len(reached)} of them reached by default, {len(applied) - len(reached)} with a setting."
    )


def matrix(rows: list[Row], notes: dict[str, int]) -> Iterator[str]:
    """One line a release, one column a site; the numbers point to the notes."""
    sites = sorted({c.site for r in rows for c in r.cells})
    yield f"| vllm-ascend | vllm | {' | '.join(sites)} |"
    yield "|" + " --- |" * (len(sites) + 2)
    lines: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        cells = tuple("<br>".join(shown(c, notes) for c in row.cells if c.site == s) or "-" for s in sites)
        lines.setdefault((row.ascend or "none", *cells), []).append(row)
    for (ascend, *shown_cells), same in lines.items():
        vllm = ranges([r.vllm for r in same], releases.VLLM)
        yield f"| {ascend} | {vllm} | {' | '.join(shown_cells)} |"


def shown(cell: Cell, notes: dict[str, int]) -> str:
    text = f"{cell.site}: {cell.when}"
    mark = cell.state if cell.state not in ("applicable", "applied") else MARK[cell.reached]
    return f"{mark} [{notes.setdefault(text, len(notes) + 1)}]"


def forms(rows: list[Row]) -> Iterator[str]:
    """Every form with the releases it was found in, in the order of the recipes."""
    yield "| site | place | form | found in | function |"
    yield "| --- | --- | --- | --- | --- |"
    for recipe in recipes.load():
        for place in recipe.places:
            for form in place.forms:
                ascend = place.package == "vllm_ascend"
                found = [
                    (r.ascend if ascend else r.vllm)
                    for r in rows
                    if any((c.site, c.place, c.form) == (recipe.site, place.name, form.name) for c in r.cells)
                ]
                if found:
                    order = releases.ASCEND if ascend else releases.VLLM
                    seen = f"{'vllm-ascend' if ascend else 'vllm'} {ranges(found, order)}"
                    where = f"`{form.file}`: `{form.scope}`"
                    yield f"| {recipe.site} | {place.name} | {form.name} | {seen} | {where} |"


def ranges(found: list[str | None], order: tuple[str, ...]) -> str:
    """Releases as ranges of the order in which they came out."""
    runs: list[list[str]] = []
    for before, version in pairwise(("", *order)):
        if version in found:
            if runs and runs[-1][-1] == before:
                runs[-1].append(version)
            else:
                runs.append([version])
    return ", ".join(r[0] if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


def dump(rows: list[Row]) -> str:
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    return f"[\n{lines}\n]\n"


def main() -> int:
    kept = {(r.vllm, r.ascend): r for r in load()}
    rows = [fresh or kept[key] for key in trees() if (fresh := survey(*key)) or key in kept]
    DATA.write_text(dump(rows))
    TABLE.write_text(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
