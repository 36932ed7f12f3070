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
  glm-pto verify ./glm-net --json
"""


@click.command("verify", epilog=EXAMPLES)
@options.trees
@options.output
def command(report: Report, trees: tuple[Path, ...], python: Path | None) -> int:
    """Prove the edit that stands in every TREE, from the files alone; exit 3 where a proof fails.

    For every guard: without it the file is the original program; every name that it uses is bound there and
    nothing that is read later is left unset; the operator layer that the target loads has the function and
    takes these arguments; the target's Python compiles the file.
    """
    from glm_pto.codemods import verify

    return present.proved(report, verify.verify(trees, python=python))
