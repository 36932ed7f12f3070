"""``glm-pto revert``."""

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
  glm-pto revert --dry-run
  glm-pto revert ./glm-net
  glm-pto revert --site paged_attention
"""


@click.command("revert", epilog=EXAMPLES)
@options.trees
@options.choice
@click.option("-n", "--dry-run", is_flag=True, help="Do and check everything but the writing.")
@click.option("--force", is_flag=True, help="Also take out guards whose own lines were edited by hand.")
@options.output()
def command(
    report: Report,
    trees: tuple[Path, ...],
    python: Path | None,
    sites: tuple[str, ...],
    skip: tuple[str, ...],
    dry_run: bool,
    force: bool,
) -> int:
    """Take the guards out of every TREE again, to the byte.

    The guard itself is enough: no backup and no record is needed, and what you changed elsewhere in the
    files, or in an else-branch, stays. Run it before you uninstall glm-pto.
    """
    asked = glm_pto.Options(sites, skip, dry_run, force=force)
    return present.edited(report, glm_pto.revert(trees, asked, python=python), dry_run)
