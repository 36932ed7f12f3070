"""The rules that CONTRIBUTING names: who imports whom, who prints, one stem per operator, sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm_pto import Options, apply
from glm_pto.cli import COMMANDS, demo

ROOT = Path(__file__).parents[1]
PARTS = {name: sorted((ROOT / name).rglob("*.py")) for name in ("cli", "codemods", "glm_pto_kernels")}
MODULES = [path for paths in PARTS.values() for path in paths]

#: What a part may import when it is loaded, beside the standard library and itself.
AT_IMPORT = {
    "cli": {"click", "rich", "glm_pto", "glm_pto.codemods"},
    "codemods": {"libcst"},
    "glm_pto_kernels": {"torch"},
}
#: What it may import later, inside a function. Nobody else's names may appear at all.
LATER = {
    "cli": {"click", "rich", "glm_pto", "glm_pto.codemods", "glm_pto_kernels", "torch", "pip"},
    "codemods": {"libcst", "glm_pto"},
    "glm_pto_kernels": {
        "torch",
        "pypto",
        "triton",
        "torch_npu",
        "vllm",
        "vllm_ascend",
        "wallx_csrc",
        "numpy",
    },
}
#: Run as a program of its own, in another Python: it has nobody else to print for it.
PROGRAMS = {"cli/registry.py", "glm_pto_kernels/trial/__main__.py"}
#: Lines, a function's without its docstring; a command is any function that click makes one of.
MODULE_LINES, FUNCTION_LINES, COMMAND_LINES = 250, 40, 15
SIZED = [
    *MODULES,
    *sorted((ROOT / "glm_pto").glob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.py")),
    *sorted((ROOT / "docs").glob("*.py")),
]
#: One kernel a file, with all that it is built from: a kernel is one function by its nature.
KERNEL_BODIES = ("glm_pto_kernels/pypto/", "glm_pto_kernels/wallx/triton/")
#: Loaded by the first call that needs a kernel, never before (test_backends of wallx proves it).
LATE_FOLDER = "glm_pto_kernels/wallx/triton/"
DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc", "core", "base"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module and whether the import runs when the module is loaded."""
    tree = ast.parse(path.read_bytes())
    late = {
        child
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or _for_types(node)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            own = ".".join(path.relative_to(ROOT).parent.parts) if node.level else ""
            yield ".".join(filter(None, (own, node.module))), node not in late


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def allowed(part: str, module: str, at_import: bool) -> bool:
    top = module.partition(".")[0]
    own = f"glm_pto.{part}" if part != "glm_pto_kernels" else part
    if top in sys.stdlib_module_names or module == own or module.startswith(f"{own}."):
        return True
    names = AT_IMPORT[part] if at_import else LATER[part]
    if top == "glm_pto":
        return any(module == n or module.startswith(f"{n}.") for n in names if n != "glm_pto") or (
            module == "glm_pto" and "glm_pto" in names
        )
    return top in names


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0]
    late = name(path).startswith(LATE_FOLDER)
    assert [m for m, at_import in imports(path) if not allowed(part, m, at_import and not late)] == []


@pytest.mark.parametrize(
    ("part", "module", "at_import"),
    [
        ("codemods", "glm_pto_kernels", False),
        ("codemods", "torch", False),
        ("codemods", "glm_pto.cli.report", False),
        ("glm_pto_kernels", "libcst", False),
        ("glm_pto_kernels", "pypto", True),
        ("glm_pto_kernels", "glm_pto.codemods", False),
        ("cli", "torch", True),
    ],
)
def test_the_rule_forbids(part: str, module: str, at_import: bool) -> None:
    assert not allowed(part, module, at_import)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_the_report_prints(path: Path) -> None:
    if name(path) in {"cli/report.py", *PROGRAMS}:
        return
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "click.echo", "click.secho") or called.startswith(
                ("sys.stdout.", "sys.stderr.")
            ):
                found.append(f"line {node.lineno}: {called}")
    assert found == []


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From ``def`` to the end; decorators, which hold a command's options, and the docstring do not count."""
    spent = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        spent -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return spent


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    made_by = (ast.unparse(d.func) for d in node.decorator_list if isinstance(d, ast.Call))
    return any(maker.rpartition(".")[2] in ("command", "group") for maker in made_by)


def too_large(text: str) -> list[str]:
    """What of a module is over its budget."""
    found = [f"{count} lines" for count in [text.count("\n")] if count > MODULE_LINES]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            limit = COMMAND_LINES if is_command(node) else FUNCTION_LINES
            if lines(node) > limit:
                found.append(f"{node.name}: {lines(node)} lines, not {limit}")
    return found


@pytest.mark.parametrize("path", SIZED, ids=name)
def test_modules_functions_and_commands_stay_small(path: Path) -> None:
    assert path.stem not in DRAWERS
    if not name(path).startswith(KERNEL_BODIES):
        assert too_large(path.read_text()) == []


@pytest.mark.parametrize(
    ("before", "line", "limit"),
    [
        pytest.param("", "x = 0\n", MODULE_LINES, id="module"),
        pytest.param(
            'def f():\n    """Of.\n\n    Any length.\n    """\n', "    x\n", FUNCTION_LINES, id="function"
        ),
        pytest.param("class C:\n    async def f():\n", "        x\n", FUNCTION_LINES, id="method"),
        pytest.param('@click.command("f")\n@option\ndef f():\n', "    x\n", COMMAND_LINES, id="command"),
        pytest.param('@command.command("f")\ndef f():\n', "    x\n", COMMAND_LINES, id="of_a_group"),
    ],
)
def test_one_line_more_is_too_large(before: str, line: str, limit: int) -> None:
    rest = limit - ("def f" in before)
    assert too_large(before + line * rest) == []
    assert len(too_large(before + line * (rest + 1))) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_known_by_its_decorator(command: str) -> None:
    tree = ast.parse((ROOT / "cli" / f"{command}.py").read_bytes())
    (function,) = (n for n in tree.body if getattr(n, "name", "") == "command")
    assert isinstance(function, ast.FunctionDef) and is_command(function)


def stems(folder: str, prefix: str = "") -> set[str]:
    found = {p.stem.removeprefix(prefix) for p in (ROOT / folder).glob(f"{prefix}*.py")}
    return {stem for stem in found if not stem.startswith("_") and stem != "conftest"}


def test_every_recipe_has_an_operator_and_both_have_tests() -> None:
    sites = stems("codemods/recipes") - {"wallx_backend"}
    assert sites == stems("glm_pto_kernels/ops")
    assert sites <= stems("tests/codemods/recipes", "test_")
    assert sites <= stems("tests/glm_pto_kernels/ops", "test_")
    assert stems("glm_pto_kernels/pypto") & sites <= stems("tests/glm_pto_kernels/pypto", "test_") | sites


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("glm_pto", ("glm_pto.codemods", "libcst", "click", "torch")),
        ("glm_pto.codemods", ("torch", "libcst", "click")),
        ("glm_pto.codemods.operations", ("torch", "libcst", "rich", "click")),
        ("glm_pto.cli", ("torch", "libcst", "rich", "glm_pto.codemods")),
        ("glm_pto_kernels", ("libcst", "pypto", "triton.language", "vllm", "glm_pto", "rich")),
    ],
)
def test_importing_loads_nothing_that_is_not_its_own(module: str, absent: tuple[str, ...]) -> None:
    check = (
        f"import sys, {module}; found = [m for m in {absent!r} if m in sys.modules]; assert not found, found"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_tree_that_is_as_it_should_be_needs_neither_parser_nor_writer(tmp_path: Path) -> None:
    demo.write(tmp_path)
    apply([tmp_path], Options(install_kernels=True))
    names = ("transaction", "recipes", "plan", "source", "survey", "prepare")
    check = (
        f"import sys; from glm_pto import apply, status; trees = [{str(tmp_path)!r}]; status(trees); "
        f"apply(trees); found = [n for n in {names!r} if 'glm_pto.codemods.' + n in sys.modules]; "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_two_links_lead_to_the_folders() -> None:
    for part in ("cli", "codemods"):
        assert (ROOT / "glm_pto" / part).readlink() == Path("..", part)
