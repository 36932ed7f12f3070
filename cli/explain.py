"""``glm-pto explain``."""

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
  glm-pto explain paged_attention
  glm-pto explain gate ./glm-net
  glm-pto explain select_experts --json
"""


@click.command("explain", epilog=EXAMPLES)
@click.argument("site", type=options.Site(), metavar="SITE")
@options.trees
@options.output(quiet=False, verbose=False)
def command(report: Report, site: str, trees: tuple[Path, ...], python: Path | None) -> int:
    """Tell all about one SITE: what is replaced and why, its switch, what it asks of the model.

    In every TREE: where the statements were looked for, what was found there, and whether a decode step of
    GLM-4.5 runs through it. Without a TREE, and with no known package installed, only the recipe is told.
    """
    from glm_pto.cli import story

    return present.told(report, story.of(site, trees, python))
