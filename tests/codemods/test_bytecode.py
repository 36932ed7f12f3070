"""After an edit a fresh interpreter runs the new code at once, whatever kind of .pyc was there."""

from __future__ import annotations

import errno
import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto.codemods import journal, transaction
from glm_pto.codemods.findings import FileChange, Refusal, WriteFailure

OLD, NEW = b"VALUE = 'old'\n", b"VALUE = 'new'\n"
MODES = list(py_compile.PycInvalidationMode)
TAG = sys.implementation.cache_tag


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "tree/package/module.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(OLD)
    return file


def edit(file: Path, before: bytes | None, after: bytes | None) -> tuple[str, ...]:
    change = FileChange(file, before, after, "package")
    return transaction.commit(file.parents[1], [change], {}, "0.1.0", wait=2)


def runs(file: Path, *flags: str) -> str:
    """What a fresh interpreter that writes no bytecode gets from the module."""
    start = f"import sys; sys.path.insert(0, {str(file.parents[1])!r})"
    code = f"{start}; import package.module as m; print(m.VALUE)"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-B", *flags, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


def flags_of(compiled: Path) -> int:
    return int.from_bytes(compiled.read_bytes()[4:8], "little")


@pytest.mark.parametrize("mode", MODES, ids=[m.name for m in MODES])
def test_the_new_code_runs_within_the_same_second(module: Path, mode: py_compile.PycInvalidationMode) -> None:
    compiled = Path(py_compile.compile(str(module), invalidation_mode=mode) or "")
    kind = flags_of(compiled)
    assert runs(module) == "old"
    for before, after, value in [(OLD, NEW, "new"), (NEW, OLD, "old"), (OLD, NEW, "new")]:
        notes = edit(module, before, after)
        assert runs(module) == value
        assert flags_of(compiled) == kind, "the invalidation mode is kept"
        assert not notes
    loaded = importlib.util.spec_from_file_location("package.module", module)
    assert loaded is not None and loaded.cached == str(compiled)


def test_a_pyc_made_again_is_really_used(module: Path) -> None:
    """An unchecked .pyc answers even where the source says something else, so the new one must be there."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(module), invalidation_mode=mode)
    edit(module, OLD, NEW)
    module.write_bytes(b"VALUE = 'src'\n")
    assert runs(module) == "new"


def test_source_and_bytecode_carry_one_time_however_slow_the_disk_is(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = Path(py_compile.compile(str(module)) or "")
    moment = 1_600_000_000_999_999_999
    monkeypatch.setattr(time, "time_ns", lambda: moment)
    edit(module, OLD, NEW)
    assert module.stat().st_mtime_ns == moment
    assert int.from_bytes(compiled.read_bytes()[8:12], "little") == 1_600_000_000


@pytest.mark.parametrize("level", [1, 2])
def test_optimised_code_is_made_again_too(module: Path, level: int) -> None:
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(module), optimize=level, invalidation_mode=unchecked)
    edit(module, OLD, NEW)
    assert runs(module, "-" + "O" * level) == "new"


@pytest.mark.parametrize(
    "name", ["module.cpython-27.pyc", f"module.{TAG}-pytest-8.3.4.pyc", "module.pypy310.pyc"]
)
def test_bytecode_of_other_interpreters_goes_and_is_named(module: Path, name: str) -> None:
    cache = module.parent / "__pycache__"
    cache.mkdir()
    other = cache / name
    other.write_bytes(b"\x03\xf3\r\n" + b"\0" * 12 + b"code")
    (cache / "modules.cpython-27.pyc").write_bytes(b"of a module with a longer name")
    (cache / "module.cpython-27.txt").write_bytes(b"not compiled")
    (note,) = edit(module, OLD, NEW)
    assert name in note
    assert not other.exists()
    assert (cache / "modules.cpython-27.pyc").exists() and (cache / "module.cpython-27.txt").exists()


def test_a_compiled_file_beside_the_source_is_renewed(module: Path) -> None:
    beside = module.with_suffix(".pyc")
    py_compile.compile(str(module), cfile=str(beside))
    before = beside.read_bytes()
    edit(module, OLD, NEW)
    assert beside.read_bytes() != before
    assert b"new" in beside.read_bytes()


def test_source_that_this_interpreter_cannot_compile_loses_its_bytecode(module: Path) -> None:
    compiled = Path(py_compile.compile(str(module)) or "")
    (note,) = edit(module, OLD, b"def (:\n")
    assert compiled.name in note
    assert not compiled.exists()


def test_a_removed_module_leaves_no_bytecode_and_no_empty_folder(module: Path) -> None:
    py_compile.compile(str(module))
    assert edit(module, OLD, None) == (), "there is nothing to be made again, so nothing to tell"
    assert not module.parent.exists()


def test_a_linked_cache_folder_is_refused(module: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    py_compile.compile(str(module))
    shutil.move(module.parent / "__pycache__", elsewhere)
    (module.parent / "__pycache__").symlink_to(elsewhere)
    with pytest.raises(Refusal, match="cannot be renewed safely"):
        edit(module, OLD, NEW)
    assert module.read_bytes() == OLD


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("x")], ids=["pipe", "link"])
def test_a_compiled_file_that_is_none_is_refused(module: Path, make: Callable[[Path], object]) -> None:
    odd = module.parent / f"__pycache__/module.{TAG}.pyc"
    odd.parent.mkdir()
    make(odd)
    with pytest.raises(Refusal, match=rf"module\.{TAG}\.pyc: is not a regular file; remove it"):
        edit(module, OLD, NEW)
    assert module.read_bytes() == OLD


def test_what_is_no_module_has_no_bytecode(module: Path) -> None:
    """Nothing but the ending tells them apart: ``module.cu`` has no share in the files of ``module.py``."""
    compiled = Path(py_compile.compile(str(module)) or "")
    before = compiled.read_bytes()
    edit(module.with_suffix(".cu"), None, b"// kernel\n")
    assert compiled.read_bytes() == before


def test_bytecode_comes_back_when_the_edit_is_rolled_back(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compiled = Path(py_compile.compile(str(module), invalidation_mode=mode) or "")
    before = compiled.read_bytes()

    def close(control: int) -> None:
        assert compiled.read_bytes() != before, "the last step before the end, so all is written"
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(journal, "close", close)
    with pytest.raises(WriteFailure, match="every file is as it was before"):
        edit(module, OLD, NEW)
    assert (module.read_bytes(), compiled.read_bytes()) == (OLD, before)
