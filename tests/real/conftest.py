"""Real releases in environments that can run them; each is prepared once, whatever the number of workers."""

from __future__ import annotations
import __future__

import ast
import fcntl
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


def load(name: str) -> ModuleType:
    """A module of the tests' folder, which is no package."""
    file = Path(__file__).parent.parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def load_module() -> Callable[[str], ModuleType]:
    return load


Names = dict[str, object]


@pytest.fixture(scope="session")
def body() -> Callable[[Path, str, Names], object]:
    """``body(file, "Class.method", names)``: one function of a file, executed with only ``names`` around it.

    Decorators and annotations are left out: they need the imports, and the statements are what is tested.
    """

    def extract(file: Path, qualified: str, names: Names) -> object:
        *owners, name = qualified.split(".")
        scope: list[ast.AST] = [ast.parse(file.read_bytes())]
        for owner in owners:  # anywhere: some classes stand in the arm of an `if` at module level
            scope = [n for s in scope for n in ast.walk(s) if isinstance(n, ast.ClassDef) and n.name == owner]
        found = [f for s in scope for f in s.body if isinstance(f, ast.FunctionDef) and f.name == name]  # type: ignore[attr-defined]
        assert len(found) == 1, f"{file}: {len(found)} functions {qualified}"
        found[0].decorator_list = []
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module(found, []), str(file), "exec", flags), names)
        return names[name]

    return extract


@pytest.fixture(scope="session")
def environment() -> Callable[[str], object]:
    """``environment("ascend")``: the cached environment. Made on the way only where that was asked for."""
    environments = load("environments")

    def find(name: str) -> object:
        found = environments.found(name)
        if found is None and os.environ.get("GLM_PTO_ENVIRONMENTS") == "make":
            found = environments.make(name)
        if found is None:
            pytest.skip(f"no cached environment; make it with `python3 tests/environments.py {name}`")
        return found

    return find


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """``once(key, fill)``: a folder that ``fill`` has filled, the same one for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def prepared(key: str, fill: Callable[[Path], None]) -> Path:
        folder = shared / key
        with (shared / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".complete").exists():
                folder.mkdir()  # fails where an earlier worker failed: once is enough
                fill(folder)
                (folder / ".complete").touch()
        return folder

    return prepared
