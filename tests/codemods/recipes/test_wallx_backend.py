"""The wallx_backend recipe: the one import line that gets the guard, and what the module does after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm_pto.codemods.findings import State

FILE = "wall_x/fusions/backend.py"
ROOT = Path(__file__).parents[3]

# A module of our own with the shape of the real one: the import among others, functions that pass arguments
# on.
BEFORE = """\
\"\"\"Fused operators.\"\"\"

import torch
from typing import Optional
import wallx_csrc as backend


def sum_rows(rows, row_map, prob: Optional[torch.Tensor], tokens, top_k):
    return backend.unpermute(rows, row_map, prob, tokens, top_k)
"""

AFTER = """\
\"\"\"Fused operators.\"\"\"

import torch
from typing import Optional
import glm_pto_kernels  # glm-pto: import 1
if glm_pto_kernels.USE_PTO_WALLX and glm_pto_kernels.wallx_backend_supported():  # wallx_backend
    backend = glm_pto_kernels.wallx_backend()
else:
    import wallx_csrc as backend


def sum_rows(rows, row_map, prob: Optional[torch.Tensor], tokens, top_k):
    return backend.unpermute(rows, row_map, prob, tokens, top_k)
"""

Make = Callable[..., Any]


def test_guards_the_import(patient: Make) -> None:
    assert patient({FILE: BEFORE}).guarded() == AFTER


def test_guards_an_import_that_comes_first(patient: Make) -> None:
    text = patient({FILE: "import wallx_csrc as backend\nimport torch\n"}).guarded()
    assert text.splitlines()[0] == "import glm_pto_kernels  # glm-pto: import 1"
    assert text.splitlines()[-1] == "import torch"


def test_is_found_again_when_applied(patient: Make) -> None:
    tree = patient({FILE: BEFORE})
    tree.apply()
    assert tree.finding().state is State.APPLIED


def test_a_release_without_the_line_is_absent(patient: Make) -> None:
    found = patient({FILE: BEFORE.replace("import wallx_csrc as backend\n", "")}).finding()
    assert found.state is State.ABSENT
    assert "has no such computation" in found.message


def test_a_release_without_the_file_is_absent(patient: Make) -> None:
    assert patient({"wall_x/model.py": "import torch\n"}).finding().state is State.ABSENT


@pytest.mark.parametrize("line", ["import wallx_csrc", "import wallx_csrc as backends"])
def test_another_spelling_is_named(patient: Make, line: str) -> None:
    found = patient({FILE: BEFORE.replace("import wallx_csrc as backend", line)}).finding()
    assert found.state is State.MOVED
    assert "Nearest" in found.message
    assert line in found.message


def test_leaves_alone_an_import_in_a_function(patient: Make) -> None:
    text = "def load():\n    import wallx_csrc as backend\n    return backend\n"
    assert patient({FILE: text}).finding().state is State.ABSENT


@pytest.mark.parametrize("keep", ["# no final newline", ""])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_keeps_the_bytes(patient: Make, keep: str, ending: str) -> None:
    text = (BEFORE + keep).replace("\n", ending)
    patient({FILE: text}).guarded()


def glm_pto(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, with the checkout's layer on its path."""
    code = "from glm_pto.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_apply_verify_revert_by_command(patient: Make) -> None:
    path = patient({FILE: BEFORE}).root / FILE
    tree = str(path.parents[2])
    for command in ("apply", "verify"):
        done = glm_pto(command, tree)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "wallx_backend" in path.read_text()
    assert glm_pto("revert", tree).returncode == 0
    assert path.read_bytes() == BEFORE.encode()


def test_the_patched_module_runs_without_the_extension(patient: Make) -> None:
    tree = patient({FILE: BEFORE, "wall_x/fusions/__init__.py": ""})
    tree.apply()
    code = (
        "import torch; from wall_x.fusions import backend as b; "
        "rows = torch.tensor([[1., 2.], [3., 4.]]); row_map = torch.tensor([1, 0], dtype=torch.int32); "
        "print(b.backend.__name__, b.sum_rows(rows, row_map, None, 2, 1).tolist())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree.root), str(ROOT)))}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "glm_pto_kernels.wallx.csrc [[3.0, 4.0], [1.0, 2.0]]", done.stderr
    done = subprocess.run(
        run, env={**environment, "USE_PTO_WALLX": "0"}, capture_output=True, text=True, check=False
    )
    assert "No module named 'wallx_csrc'" in done.stderr
