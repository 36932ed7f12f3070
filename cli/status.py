"""``glm-pto status``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import glm_pto
from glm_pto.cli import options, present

if TYPE_CHECKING:
    from glm_pto.cli.report import Report

EXAMPLES = """\
\b
Examples:
  glm-pto status
  glm-pto status ./glm-net --check
  glm-pto status --json
"""


@click.command("status", epilog=EXAMPLES)
@options.trees
@options.choice
@click.option("--check", is_flag=True, help="Exit 1 unless every site that the release has is applied.")
@options.output
def command(
    report: Report,
    trees: tuple[Path, ...],
    python: Path | None,
    sites: tuple[str, ...],
    skip: tuple[str, ...],
    check: bool,
) -> int:
    """Say for every site of every TREE where it stands, and whether a decode step reaches it.

    The digest (--verbose, --json) is the same on nodes whose files are the same.
    """
    return present.surveyed(report, glm_pto.status(trees, glm_pto.Options(sites, skip), python=python), check)
