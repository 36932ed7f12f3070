"""Write the pages that are made from the code: one per operator, and the commands.

python docs/pages.py           write docs/operators/*.md and docs/commands.md
python docs/pages.py --check   exit 1 if one of them is not what the code says (a test runs this)
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from glm_pto.cli import COMMANDS, group, story
from glm_pto.codemods import recipes
from glm_pto.codemods.recipe import KERNELS, Form, Recipe

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Made by docs/pages.py from the code; edit the code instead. -->"


def pages() -> dict[str, str]:
    """Path below ``docs`` to content."""
    made = {f"operators/{r.site}.md": operator(r) for r in recipes.load()}
    return {**made, "operators/index.md": overview(), "commands.md": commands()}


def overview() -> str:
    rows = []
    for r in recipes.load():
        packages = ", ".join(sorted({p.package for p in r.places}))
        rows.append(f"| [{r.site}]({r.site}.md) | {r.title} | `{r.switch}` | {packages} |")
    head = ["| operator | what is replaced | switch | package |", "| --- | --- | --- | --- |"]
    intro = "One page each, made from the recipe and the operator layer's source."
    return "\n".join([NOTE, "# Operators", "", intro, "", *head, *rows, ""])


def operator(recipe: Recipe) -> str:
    lines = [NOTE, f"# {recipe.site}", "", f"{recipe.title}.", "", recipe.why, ""]
    lines += ["| | |", "| --- | --- |", f"| switch | `{recipe.switch}` (0 turns it off) |"]
    lines += [f"| function | `{KERNELS}.{recipe.function}` |", f"| obsolete when | {recipe.drop_when} |", ""]
    lines += ["## What is replaced", ""]
    for place in recipe.places:
        extra = ", only where its code exists" if place.optional else ""
        extra += f", not where {place.unless_package} is in the tree" if place.unless_package else ""
        lines += [f"### {place.name} (`{place.package}`{extra})", ""]
        for form in place.forms:
            lines += [
                f"{form.name}: `{place.package}/{form.file}`, `{form.scope}`, seen in {form.releases}.",
                "",
            ]
            lines += ["```python", *guarded(form), "```", ""]
    asks = story.conditions(recipe.site)
    if asks:
        lines += ["## Left to the original code when", "", *(f"- {reason}" for reason in asks), ""]
    lines += [*reference(recipe), "## Sources", "", *(f"- <{link}>" for link in recipe.links), ""]
    return "\n".join(lines)


def guarded(form: Form) -> Iterator[str]:
    """The form's statements as they stand behind the guard; ``$name`` stands for what the file has there."""

    def named(text: str) -> str:
        return re.sub(r"\bK\.", f"{KERNELS}.", text)

    yield f"if {named(form.condition)}:"
    yield from (f"    {line}" for line in named(form.branch).splitlines())
    yield "else:"
    yield from (f"    {line}" for line in form.site.rstrip().splitlines())
    if form.rest:
        yield "    ...  # and the rest of the block"


def reference(recipe: Recipe) -> Iterator[str]:
    """Signature and docstring of the operator's functions, read from the source."""
    file = DOCS.parent / KERNELS / "ops" / f"{recipe.site}.py"
    if not file.is_file():
        return
    yield from ("## Reference", "")
    for node in ast.parse(file.read_bytes()).body:
        public = (recipe.function, f"{recipe.function}_supported", f"{recipe.function}_refusal")
        if isinstance(node, ast.FunctionDef) and node.name in public:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield from ("```python", f"{KERNELS}.{node.name}({ast.unparse(node.args)}){returns}", "```", "")
            yield from ("```text", *inspect.cleandoc(ast.get_docstring(node) or "").splitlines(), "```", "")


def commands() -> str:
    """Every command's help, as the terminal shows it."""
    lines = [NOTE, "# Commands", "", "What `glm-pto COMMAND -h` says.", ""]
    top = click.Context(group, info_name="glm-pto", terminal_width=96, help_option_names=["-h", "--help"])
    lines += ["```text", group.get_help(top), "```", ""]
    for name in COMMANDS:
        command = group.get_command(top, name)
        assert command is not None
        lines += helped(command, name, top, "##")
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def helped(command: click.Command, name: str, parent: click.Context, level: str) -> list[str]:
    """The help of a command, and below it that of its own commands."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=96)
    lines = [f"{level} {name}", "", "```text", command.get_help(context), "```", ""]
    for below, child in getattr(command, "commands", {}).items():
        lines += helped(child, below, context, f"{level}#")
    return lines


def main() -> int:
    os.environ["COLUMNS"] = "96"
    wrong = []
    for name, content in pages().items():
        path = DOCS / name
        if "--check" in sys.argv[1:]:
            wrong += [] if path.is_file() and path.read_text() == content else [name]
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    known = {DOCS / name for name in pages()}
    wrong += [f"operators/{p.name} (no recipe)" for p in (DOCS / "operators").glob("*.md") if p not in known]
    if wrong:
        sys.stderr.write(f"run `python docs/pages.py`; not what the code says: {', '.join(wrong)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
