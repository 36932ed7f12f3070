"""``glm-pto verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from glm_pto.cli import options, present

if TYPE_CHECKING:
    from glm_pto.cli.report import Report

EXAMPLES = """\
\b
Examples:
  glm-pto verify
  glm-pto verify ./glm-net --run
  glm-pto verify ./glm-net --json
"""


@click.command("verify", epilog=EXAMPLES)
@options.trees
@click.option("--run", is_flag=True, help="Also run the guards on small random layers (needs torch).")
@options.output()
def command(report: Report, trees: tuple[Path, ...], python: Path | None, run: bool) -> int:
    """Prove the edit that stands in every TREE, from the files alone; exit 3 where a proof fails.

    For every guard: without it the file is the original program; every name that it uses is bound there and
    nothing that is read later is left unset; the operator layer that the target loads has the function and
    takes these arguments; the target's Python compiles the file.

    With --run every guard is also run on the CPU, on stand-in layers with GLM-4.5's attributes: switched off
    it must give exactly what the original statements give, switched on the torch reference must be called
    once and agree. That says nothing about the speed or the numbers of an NPU.
    """
    from glm_pto.cli import rehearsal
    from glm_pto.codemods import interrupted, verify

    found = interrupted.settled(trees, python)
    present.asides(report, interrupted.notes(found))
    checks = verify.verify(found, python=python)
    return present.proved(report, checks, rehearsal.rehearse(found, python) if run else ())
