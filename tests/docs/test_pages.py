"""The documents: what is made from the code is current, links lead somewhere, quoted messages exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glm_pto import diff
from glm_pto.cli import demo

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
SOURCES = sorted(
    p for folder in ("cli", "codemods", "glm_pto_kernels") for p in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("script", ["pages.py", "record.py"])
def test_what_is_made_from_the_code_is_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, DOCS / script, "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            found = (page.parent / file) if file else page
            assert found.exists(), f"{page.name} -> {target}"
            assert not anchor or anchor in anchors(found), f"{page.name} -> {target}"


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as mkdocs and forges make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def messages() -> str:
    """Every text that the sources may print; what is filled in stands as `*`."""
    found = []
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_bytes())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(p.value if isinstance(p, ast.Constant) else "*" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_every_message_of_the_troubleshooting_page_exists() -> None:
    keys = re.findall(r"^### `(.+)`$", (DOCS / "troubleshooting.md").read_text(), re.M)
    known = messages().replace("\n", " ")
    missing = [k for k in keys if k.replace("glm_pto_kernels", "*") not in known and k not in known]
    assert len(keys) > 20 and missing == []


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "guard.md"], ids=lambda p: p.name)
def test_guards_that_are_shown_are_those_that_apply_writes(page: Path, tmp_path: Path) -> None:
    demo.write(tmp_path)
    written = [
        line[1:].strip() for line in diff([tmp_path]).patch.decode().splitlines() if line.startswith("+")
    ]
    shown = re.findall(r"^if glm_pto_kernels\..*$", page.read_text(), re.M)
    assert shown and [line for line in shown if line not in written] == []


def test_the_picture_shows_a_run_that_succeeded() -> None:
    text = (ROOT / "docs" / "assets" / "apply-diff-revert.svg").read_text().replace("&#160;", " ")
    assert "5 sites guarded in 4 files" in text
    assert "5 sites taken out in 4 files" in text
    assert "Error" not in text
