"""``glm-pto doctor``."""

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
  glm-pto doctor
  glm-pto doctor ./glm-net
  glm-pto doctor --python /opt/venv/bin/python --json
"""


@click.command("doctor", epilog=EXAMPLES)
@options.trees
@options.output(verbose=False)
def command(report: Report, trees: tuple[Path, ...], python: Path | None) -> int:
    """Tell what stands on this machine, without importing vllm, and what to do about what stands in the way.

    Versions, the Ascend and PyPTO stack, which backends can run and why others cannot, switches in the
    environment, the state of each TREE, compile caches that may hold code from before the edit, and what to
    do before glm-pto is uninstalled. The exit code is 0 whatever is found.
    """
    from glm_pto.cli import machine

    return present.examined(report, machine.examine(trees, python, report.target))
