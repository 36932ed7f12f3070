"""``glm-pto diff``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

import glm_pto
from glm_pto.cli import options, present

if TYPE_CHECKING:
    from glm_pto.cli.report import Report

EXAMPLES = """\
\b
Examples:
  glm-pto diff
  glm-pto diff ./glm-net --stat
  glm-pto diff --exit-code --quiet
  glm-pto diff ./glm-net --output glm-pto.patch
"""

WHICH = {None: "auto", True: "applied", False: "pending"}


@click.command("diff", epilog=EXAMPLES)
@options.trees
@options.choice
@click.option(
    "--applied/--pending",
    "which",
    default=None,
    callback=lambda _, __, applied: WHICH[applied],
    help="What is applied, or what apply would change. Default: what is pending, else what is applied.",
)
@click.option("--stat", is_flag=True, help="Only the files and how many lines they gain.")
@click.option("--exit-code", is_flag=True, help="Exit 1 where there is a difference.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the patch to FILE.",
)
@click.option("--pager/--no-pager", default=True, help="Use a pager on a terminal.")
@options.output(verbose=False)
def command(
    report: Report,
    trees: tuple[Path, ...],
    python: Path | None,
    sites: tuple[str, ...],
    skip: tuple[str, ...],
    which: Literal["auto", "pending", "applied"],
    stat: bool,
    exit_code: bool,
    output: Path | None,
    pager: bool,
) -> int:
    """Show what apply would change in every TREE, or what is applied.

    On a terminal the files stand side by side, or on a narrow one below each other, where `>` marks lines
    that only move one level deeper. In a pipe or a FILE it is a unified diff, byte for byte: read it in a
    review, or apply it from the tree's folder with `git apply` or `patch -p1 --binary`.
    """
    found = glm_pto.diff(trees, glm_pto.Options(sites, skip), which=which, python=python)
    present.difference(report, found, asked=which, stat=stat, output=output, pager=pager)
    return 1 if exit_code and found.patch else 0
