"""``glm-pto sites``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from glm_pto.cli import options, present

if TYPE_CHECKING:
    from glm_pto.cli.report import Report

EXAMPLES = """\
\b
Examples:
  glm-pto sites
  glm-pto sites --verbose
  glm-pto sites --json
"""


@click.command("sites", epilog=EXAMPLES)
@options.output(quiet=False)
def command(report: Report) -> int:
    """List the sites that the recipes know: what is replaced, in which package, by which switch."""
    from glm_pto.codemods import recipes

    return present.sites(report, recipes.load())
