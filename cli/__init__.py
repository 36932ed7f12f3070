"""Command line of glm-pto: one module a command, loaded when it is called, so that `--help` loads none."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

#: Every command with the line that `--help` shows for it; the module of that name holds `command`.
COMMANDS = {
    "apply": "Guard the native operators of a tree: all sites or nothing.",
    "revert": "Take the guards out again, to the byte.",
    "diff": "Show what apply would change, or what is applied.",
    "status": "Say where each site stands and whether a decode step reaches it.",
    "verify": "Prove the edit that stands in a tree; --run also runs it on the CPU.",
    "sites": "List what can be replaced.",
    "explain": "Tell all about one site, and where it was looked for.",
    "doctor": "Tell what this machine can run, and what stands in the way.",
    "kernels": "Use the kernels of your own checkout of the PyPTO project.",
    "demo": "Show the whole job on a small tree of its own.",
}

EXAMPLES = """\
\b
Examples:
  glm-pto demo                   watch the whole job on a small tree
  glm-pto diff                   what would change in this environment
  glm-pto apply ./glm-net        guard the operators of that tree
  glm-pto status --check         fail unless everything is applied
  glm-pto revert                 take it all out again
"""

EXIT_CODES = """\
\b
Exit codes:
  0  done, already done, or nothing to do
  1  a difference where one was asked about (diff --exit-code, status --check or --require)
  2  the request itself is wrong
  3  refused, nothing was changed (verify: something is refuted)
  4  reading or writing failed, everything is as it was
  130  interrupted (Ctrl-C), everything is as it was
"""


class Commands(click.Group):
    """A group that knows its commands by name and imports only the one that is called."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run; a wrong request or Ctrl-C ends like everything else, with the last line or a document."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(words, *rest, **{**extra, "standalone_mode": False})
        except click.UsageError as error:
            if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2 and later
                error.show()
                sys.exit(error.exit_code)
            hint = f"; see `{error.ctx.command_path} -h`" if error.ctx else ""
            code = _failed(words, error.ctx, "usage", 2, error.format_message().rstrip(".") + hint)
        except click.Abort:
            code = _failed(words, None, "interrupted", 130, "interrupted; every file is as it was")
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from glm_pto.codemods.spelling import nearest

            ctx.fail(f"No such command {name!r}.{nearest(name, COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _failed(words: list[str], ctx: click.Context | None, action: str, code: int, problem: str) -> int:
    from glm_pto.cli.options import words_of
    from glm_pto.cli.report import Report

    command = words_of(ctx) if ctx and ctx.parent else next((w for w in words if w in COMMANDS), None)
    report = Report(command or "command", json="--json" in words)
    return report.failed(action, code, (problem,))


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from glm_pto import __version__
        from glm_pto.cli.report import Report

        Report("").line(f"glm-pto {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    epilog=EXAMPLES + "\n" + EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def group() -> None:
    """Switch an installed vLLM + vLLM-Ascend to fused GLM-4.5 operators, and back to the byte.

    Every operator is wrapped in the source as `if switch and supported: fused, else: the original`. With the
    switch off the program is the one it was before. `glm-pto COMMAND -h` tells more about a command.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the console script; leaves with the exit codes that `--help` lists."""
    gc.disable()  # a process that ends within a second frees nothing worth the search
    group.main(args=list(args) if args is not None else None, prog_name="glm-pto")
