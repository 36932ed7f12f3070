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
  glm-pto status ./glm-net --check --require reached
  glm-pto status --json
"""


@click.command("status", epilog=EXAMPLES)
@options.trees
@options.choice
@click.option(
    "--check",
    is_flag=True,
    help="Exit 1 unless every site that the release has is applied and the operator layer is there.",
)
@click.option(
    "--require",
    type=click.Choice(["reached"]),
    metavar="reached",
    help="Exit 1 where a site stands in code that a decode step does not reach.",
)
@options.output()
def command(
    report: Report,
    trees: tuple[Path, ...],
    python: Path | None,
    sites: tuple[str, ...],
    skip: tuple[str, ...],
    check: bool,
    require: str | None,
) -> int:
    """Say for every site of every TREE where it stands, and whether a decode step reaches it.

    `reached` is read from the release's own code; the settings of your run that it rests on are named by
    --verbose. The digest (--verbose, --json) is the same on nodes whose files are the same.
    """
    found = glm_pto.status(trees, glm_pto.Options(sites, skip), python=python)
    return present.surveyed(report, found, check, require is not None, python)
