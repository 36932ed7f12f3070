"""``glm-pto kernels import|list|remove``: the user's own checkout of the PyPTO project's kernels."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from glm_pto.cli import options, text
from glm_pto.codemods.findings import Refusal

if TYPE_CHECKING:
    from glm_pto.cli.report import Report

EXAMPLES = """\
\b
Examples:
  glm-pto kernels import ~/src/pypto
  glm-pto kernels list --json
  glm-pto kernels remove
"""


#: What the list of commands says of `import`; its own help begins with the same in more words.
SHORT = "Check the kernels in a checkout and record them."


@click.group("kernels", epilog=EXAMPLES)
def command() -> None:
    """Use the kernels of your own checkout of the PyPTO project (GLM_PTO_BACKEND=upstream).

    The checkout is read, not imported and not copied; its place and the digests of its kernel files are
    recorded in your configuration folder. Its own licence applies.
    """


@command.command("import", epilog="Example: glm-pto kernels import ~/src/pypto", short_help=SHORT)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options.output(verbose=False)
def import_(report: Report, folder: Path) -> int:
    """Check the kernels in DIR, a checkout or its models/glm_v4_5, and record them."""
    checkout = _checkout()
    try:
        found = checkout.inspect(folder)
        path = checkout.record(found)
    except checkout.CheckoutError as error:
        raise Refusal(*str(error).splitlines()) from None
    return _shown(report, checkout, found, f"recorded in {path}; run with GLM_PTO_BACKEND=upstream")


@command.command("list")
@options.output(verbose=False)
def list_(report: Report) -> int:
    """Show the recorded checkout, and what has changed in it since. Exit code 3 if it cannot be used."""
    checkout = _checkout()
    try:
        found = checkout.recorded()
    except checkout.CheckoutError as error:
        raise Refusal(str(error)) from None
    if found is None:
        return _shown(report, checkout, None, "no checkout is recorded: glm-pto kernels import DIR")
    changes = checkout.changed(found)
    if changes:
        raise Refusal(*changes, f"import it again: glm-pto kernels import {shlex.quote(found.folder)}")
    return _shown(report, checkout, found, "unchanged since it was recorded")


@command.command("remove")
@options.output(verbose=False)
def remove(report: Report) -> int:
    """Forget the recorded checkout; the checkout itself is left alone."""
    checkout = _checkout()
    try:
        gone = "forgotten" if checkout.remove() else "no checkout was recorded"
    except checkout.CheckoutError as error:
        raise Refusal(str(error)) from None
    return _shown(report, checkout, None, gone)


def _shown(report: Report, checkout: ModuleType, found: object, closing: str) -> int:
    known = asdict(found) if found is not None else None  # type: ignore[call-overload]
    if report.json:
        return report.document({"record": str(checkout.record_path()), "checkout": known})
    if known is not None and not report.quiet:
        report.line(
            text.plain(f"{known['folder']} at {known['revision'] or 'no known commit'}"), style="bold"
        )
        kernels = known["kernels"].items()
        rows = [(name, k["file"], f"{k['function']}({', '.join(k['parameters'])})") for name, k in kernels]
        report.table(("operator", "file", "called as"), rows, state=None)
    if not report.quiet:
        report.line(text.plain(closing))
    return report.ended(0, {"kernels": len(known["kernels"]) if known else 0})


def _checkout() -> ModuleType:
    """``glm_pto_kernels.checkout`` by itself: importing its package would import torch."""
    name = "_glm_pto_checkout"
    if name in sys.modules:
        return sys.modules[name]
    package = find_spec("glm_pto_kernels")
    folders = (package.submodule_search_locations or ()) if package else ()
    paths = (Path(folder, "checkout", "__init__.py") for folder in folders)
    path = next((path for path in paths if path.is_file()), None)
    spec = spec_from_file_location(name, path) if path else None
    if spec is None or spec.loader is None:
        raise Refusal(
            "the operator layer found here is not glm-pto's: no glm_pto_kernels/checkout on sys.path",
            "install glm-pto in this environment, or take the other glm_pto_kernels off sys.path",
        )
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
