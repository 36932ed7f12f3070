"""Options that several commands share, and the frozen values that they become."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from glm_pto.cli.report import Report

    SiteType = click.ParamType[str]
    PathType = click.Path[Path]
else:
    SiteType = click.ParamType
    PathType = click.Path

Command = Callable[..., Any]


def site_names() -> tuple[str, ...]:
    """Names of the recipes, read from their file names: no recipe is imported for them."""
    folder = Path(__file__).resolve().parent.parent / "codemods" / "recipes"
    return tuple(sorted(f.stem for f in folder.glob("*.py") if not f.stem.startswith("_")))


class Site(SiteType):
    """The name of a site, as `glm-pto sites` lists it."""

    name = "site"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        folded = value.replace("-", "_")
        names = site_names()
        if folded not in names:
            from glm_pto.codemods.spelling import nearest

            self.fail(f"there is no site {value!r}.{nearest(value, names)}", param, ctx)
        return folded

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in site_names() if name.startswith(incomplete)]


class Folder(PathType):
    """A folder. `pathlib` takes an empty name for the current one; it is a variable that is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not value:
            self.fail("the name is empty (a variable that is not set?); '.' is this folder", param, ctx)
        return Path(value)


def trees(function: Command) -> Command:
    """``[TREE]...`` and ``--python``: what to work on."""
    function = click.option(
        "--python",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="PATH",
        help="Work on the packages of this interpreter instead of the current one's.",
    )(function)
    return click.argument("trees", nargs=-1, metavar="[TREE]...", type=Folder())(function)


def choice(function: Command) -> Command:
    """``--site`` and ``--skip``: which sites."""
    function = click.option(
        "--skip",
        type=Site(),
        multiple=True,
        metavar="SITE",
        help="Leave this site alone. May be given several times.",
    )(function)
    return click.option(
        "--site",
        "sites",
        type=Site(),
        multiple=True,
        metavar="SITE",
        help="Only this site. May be given several times.",
    )(function)


def _reported(function: Command, flags: tuple[Command, ...]) -> Command:
    """Hands the command a `Report`, takes its exit code, turns refusals into exit codes."""

    @wraps(function)
    @click.pass_context
    def run(
        ctx: click.Context,
        /,
        color: str,
        as_json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        **values: Any,
    ) -> None:
        from glm_pto.cli.report import Report

        target = _target(values.get("trees", ()), values.get("python"))
        report = Report(words_of(ctx), as_json, quiet, verbose, color, target)
        ctx.exit(_guarded(report, lambda: function(report=report, **values)))

    for flag in flags:
        run = flag(run)
    return run


def words_of(ctx: click.Context) -> str:
    """The command as it was typed behind the program's name: ``kernels list``."""
    return ctx.command_path.partition(" ")[2]


def _target(trees: tuple[Path, ...], python: Path | None) -> str:
    """The words of the command line that named the trees, for commands that a message recommends."""
    import shlex

    words = [str(tree) for tree in trees] + (["--python", str(python)] if python else [])
    return "".join(f" {shlex.quote(word)}" for word in words)


_COLOR = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    metavar="WHEN",
    help="Colour the output: auto (on a terminal, unless NO_COLOR is set), always or never.",
)
_VERBOSE = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Say more: forms, messages, settings that `reached` rests on, digests, what a check proves.",
)
_QUIET = click.option(
    "-q", "--quiet", is_flag=True, help="Print only the last line, where the command has one."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on one line.")


def shown(function: Command) -> Command:
    """For commands that only show: ``--color``."""
    return _reported(function, (_COLOR,))


def output(*, quiet: bool = True, verbose: bool = True) -> Callable[[Command], Command]:
    """For commands with results: ``--json``, ``--color``, and what changes the output of the other two."""
    flags = (_COLOR, *([_VERBOSE] if verbose else []), *([_QUIET] if quiet else []), _JSON)
    return lambda function: _reported(function, flags)


def _guarded(report: Report, work: Callable[[], int | None]) -> int:
    from glm_pto.cli.report import Unwritten
    from glm_pto.codemods.findings import Refusal, UsageError, WriteFailure

    try:
        with report.waiting():
            return work() or 0
    except Refusal as refusal:
        return report.failed("refused", 3, refusal.problems, refusal.findings, refusal.notes)
    except UsageError as error:
        return report.failed("usage", 2, (str(error),))
    except Unwritten as error:  # the work is done: 4 would say that it was taken back
        code = 0 if report.command in ("apply", "revert") else 4
        return report.failed("unwritten", code, (f"done, but this could not be written: {error}",))
    except WriteFailure as failure:
        return report.failed("failed", 4, (str(failure),), (), failure.notes)
    except OSError as error:
        return report.failed("failed", 4, (str(error),))
