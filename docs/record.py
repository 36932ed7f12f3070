"""Record a real run of apply, diff and revert as the picture that the README shows.

    python docs/record.py           write docs/assets/apply-diff-revert.svg
    python docs/record.py --check   exit 1 if the commands print something else by now (a test runs this)

The tree is the miniature of `glm-pto demo`; its temporary path is shown as ``~/glm-net``.
"""

from __future__ import annotations

import html
import io
import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from glm_pto.cli import demo

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "assets" / "apply-diff-revert.svg"
WIDTH = 132
STEPS = (
    ("apply", "glm-net"),
    ("diff", "--applied", "glm-net", "--site", "gate", "--no-pager"),
    ("revert", "glm-net"),
)


def shown(folder: Path, arguments: tuple[str, ...]) -> str:
    """What a command prints on a terminal, with its escape codes."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(folder)
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "GLM_PTO_BACKEND")}
        settings = {**kept, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "200"}
        settings["PYTHONPATH"] = os.pathsep.join([str(ROOT), settings.get("PYTHONPATH", "")])
        os.execve(sys.executable, [sys.executable, "-m", "glm_pto.cli", *arguments], settings)
    out = io.BytesIO()
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            break
        if not part:
            break
        out.write(part)
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    if status:
        raise SystemExit(
            f"glm-pto {' '.join(arguments)} failed, nothing is recorded: {out.getvalue().decode()}"
        )
    text = out.getvalue().decode().replace("\r\n", "\n").replace(str(folder), "~")
    return re.sub(r"glm-pto \w+: still working \.\.\.\n", "", text)


def record() -> str:
    """The session: prompts and what follows them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "glm-net").mkdir()
        demo.write(folder / "glm-net")
        parts = [f"\x1b[1m$ glm-pto {' '.join(step)}\x1b[0m\n{shown(folder, step)}" for step in STEPS]
    return "\n".join(parts)


def picture(session: str) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(session), no_wrap=True, overflow="crop")
    # The fonts of rich's template come from a network; a picture in a README should not ask for them.
    template = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.S)
    template = template.replace("<svg ", '<svg xml:space="preserve" ', 1)  # or some viewers drop the blanks
    return console.export_svg(title="glm-pto", code_format=template, unique_id="glm-pto")


def words(svg: str) -> list[str]:
    """The text of a picture, without its blanks."""
    return re.sub(r"\s", " ", html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)))).split()


def main() -> int:
    svg = picture(record())
    if "--check" in sys.argv[1:]:
        same = PICTURE.is_file() and words(PICTURE.read_text()) == words(svg)
        if not same:
            sys.stderr.write(
                "run `python docs/record.py`: the picture in the README is not what is printed now\n"
            )
        return 0 if same else 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
