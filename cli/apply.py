"""``glm-pto apply``."""

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
  glm-pto apply --dry-run
  glm-pto apply ./glm-net --site gate --site paged_attention
  glm-pto apply --python /opt/venv/bin/python --install-kernels --require reached
"""


@click.command("apply", epilog=EXAMPLES)
@options.trees
@options.choice
@click.option("-n", "--dry-run", is_flag=True, help="Do and check everything but the writing.")
@click.option(
    "--require",
    type=click.Choice(["reached"]),
    metavar="reached",
    help="Refuse where a guard would stand in code that a decode step does not reach.",
)
@click.option(
    "--install-kernels",
    is_flag=True,
    help="Copy the operator layer beside the packages, for a Python that has none.",
)
@options.output()
def command(
    report: Report,
    trees: tuple[Path, ...],
    python: Path | None,
    sites: tuple[str, ...],
    skip: tuple[str, ...],
    dry_run: bool,
    require: str | None,
    install_kernels: bool,
) -> int:
    """Guard the native operators of every TREE: all sites or nothing.

    TREE is a folder that holds vllm/ and/or vllm_ascend/ (site-packages, a checkout), or one of those
    packages; without TREE the packages of this environment. Everything is planned and checked before the
    first byte is written: the edit parses, compiles, and taken out again gives the original bytes.
    """
    asked = glm_pto.Options(sites, skip, dry_run, require is not None, install_kernels)
    return present.edited(report, glm_pto.apply(trees, asked, python=python), dry_run)
