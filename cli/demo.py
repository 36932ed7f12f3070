"""``glm-pto demo``: the whole job, by the commands that a user would type, on a throw-away tree."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from glm_pto.cli import options
from glm_pto.codemods.findings import UsageError, WriteFailure

if TYPE_CHECKING:
    from glm_pto.cli.report import Report

#: vLLM release -> the vLLM-Ascend release that belongs to it.
PAIRS = {"0.11.0": "0.11.0", "0.12.0": "0.12.0rc1", "0.13.0": "0.13.0"}
CRLF = "experts_selector.py"
TREE = "glm-net"

EXAMPLES = """\
\b
Examples:
  glm-pto demo
  glm-pto demo --keep ./play
  glm-pto demo --release 0.12.0
"""

#: What is run, with the words that introduce it.
STEPS = (
    ("Where do the sites stand?", ("status",)),
    ("What would change? Nothing is written.", ("diff", "--no-pager")),
    (
        "Do it: all or nothing, checked before the first byte is written. The operator layer is copied\n"
        "# into the tree, which has no Python with glm-pto of its own.",
        ("apply", "--install-kernels"),
    ),
    ("Prove it: the else-branches are the original program.", ("verify",)),
    ("A second apply has nothing to do.", ("apply", "--quiet")),
    ("Take it out again.", ("revert",)),
)


@click.command("demo", epilog=EXAMPLES)
@click.option(
    "--release",
    type=click.Choice(sorted(PAIRS)),
    help="Fetch this vLLM release and its vLLM-Ascend instead (pip's index, 10-70 MB, cached).",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Make the tree in this new folder and leave it there to play with.",
)
@options.shown
def command(report: Report, release: str | None, keep: Path | None) -> int:
    """Show the whole job on a small tree of its own: status, diff, apply, verify, revert.

    The tree is a miniature of vllm 0.12.0 and vllm-ascend 0.12.0rc1 that this package carries; nothing is
    downloaded, and nothing outside a temporary folder is touched.
    """
    with nullcontext(str(keep)) if keep else tempfile.TemporaryDirectory(prefix="glm-pto-") as folder:
        root = new(Path(folder, TREE))
        fetch(root, release) if release else write(root)
        return play(report, root, kept=keep is not None)


def new(root: Path) -> Path:
    """Make the folder; what stands there already is never touched."""
    try:
        root.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{root}: {error.strerror}; name a new folder with --keep") from None
    return root


def play(report: Report, root: Path, *, kept: bool) -> int:
    """Run the steps on ``root``; 0 if every command did its job and every byte came back."""
    before = fingerprints(root)
    for words, arguments in STEPS:
        report.line(f"# {words}", style="bright_black")
        report.line(f"$ glm-pto {arguments[0]} {TREE}{''.join(' ' + a for a in arguments[1:])}", style="bold")
        done = subprocess.run([sys.executable, "-m", "glm_pto.cli", *arguments, TREE], cwd=root.parent)
        report.line()
        if done.returncode:
            report.line(f"glm-pto {arguments[0]} exited {done.returncode}", style="red")
            return report.ended(done.returncode, {"failed": arguments[0]})
    same = fingerprints(root) == before
    report.line(
        f"{len(before)} files compared with the start: {'every byte is back' if same else 'DIFFERENT'}."
    )
    if kept:
        report.line(f"The tree is left in {root}: try `glm-pto apply {root}` yourself.")
    return report.ended(0 if same else 4, {"files": len(before), "restored": str(same).lower()})


def fingerprints(root: Path) -> dict[str, str]:
    """Hash and mode of every file of the packages, the operator layer's copy included."""
    files = sorted(
        f for f in root.rglob("*") if f.is_file() and not f.relative_to(root).parts[0].startswith(".")
    )
    return {
        str(f.relative_to(root)): f"{hashlib.sha256(f.read_bytes()).hexdigest()} {f.stat().st_mode:o}"
        for f in files
    }


def write(root: Path) -> None:
    """The tree that the package carries: one file of it with CRLF endings, as upstream ships it."""
    carried = Path(__file__).with_name("demo_tree")
    for source in sorted(carried.rglob("*.py.txt")):
        target = root / source.relative_to(carried).with_suffix("")
        content = source.read_bytes()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.replace(b"\n", b"\r\n") if target.name == CRLF else content)
    for package, version in (("vllm", "0.12.0"), ("vllm_ascend", PAIRS["0.12.0"])):
        (root / package / "__init__.py").write_bytes(b"")
        metadata = root / f"{package}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: {version}\n")


def fetch(root: Path, release: str) -> None:
    """The released packages themselves, as copies that may be edited."""
    from glm_pto.cli.fetch import FetchError, pair

    try:
        pair(PAIRS[release], release, root)
    except FetchError as error:
        raise WriteFailure(str(error)) from None
