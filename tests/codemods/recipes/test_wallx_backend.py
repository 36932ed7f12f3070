"""The wallx_backend recipe: the one import line that gets the guard, and what the module does after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm_pto import Options, Refusal, State, apply

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


NONE = "nothing in it needs wallx_csrc (looked for `import wallx_csrc as backend` at the top level of"


def test_a_release_without_the_line_is_absent(patient: Make) -> None:
    found = patient({FILE: BEFORE.replace("import wallx_csrc as backend\n", "")}).finding()
    assert found.state is State.ABSENT
    assert found.message == f"wall_x of unknown version has no such computation: {NONE} {FILE})"


def test_a_release_without_the_file_is_absent(patient: Make) -> None:
    found = patient({"wall_x/model.py": "# wallx_csrc is gone\nimport torch\n"}).finding()
    assert found.state is State.ABSENT and NONE in found.message


LINE = "import wallx_csrc as backend"
OTHERS = {
    "plain": (FILE, "import wallx_csrc"),
    "other_name": (FILE, "import wallx_csrc as backends"),
    "with_another": (FILE, "import os, wallx_csrc as backend"),
    "names": (FILE, "from wallx_csrc import permute"),
    "all_names": (FILE, "from wallx_csrc import *"),
    "submodule": (FILE, "from wallx_csrc.ops import permute"),
    "in_a_function": (FILE, f"def load():\n    {LINE}"),
    "in_a_class": (FILE, f"class Backend:\n    {LINE}"),
    "importlib": (FILE, 'backend = importlib.import_module("wallx_csrc")'),
    "dunder": (FILE, "backend = __import__('wallx_csrc')"),
    "renamed_function": (FILE, 'backend = load(name="wallx_csrc")'),
    "moved": ("wall_x/ops/backend.py", LINE),
    "moved_in_a_try": ("wall_x/ops/backend.py", f"try:\n    {LINE}\nexcept ImportError:\n    backend = None"),
}


@pytest.mark.parametrize(("file", "text"), OTHERS.values(), ids=OTHERS.keys())
def test_another_form_is_refused_with_what_was_expected_and_found(
    patient: Make, file: str, text: str
) -> None:
    tree = patient({file: BEFORE.replace(LINE, text)})
    found = tree.finding()
    lines = (tree.root / file).read_text().splitlines()
    number, line = next((i, t) for i, t in enumerate(lines, 1) if "wallx_csrc" in t)
    assert (found.state, found.file, found.line) == (State.MOVED, file, number)
    for part in (f"{file}:{number}: `{line.strip()}`", f"Expected: `{LINE}`", FILE, "--skip wallx_backend"):
        assert part in found.message
    with pytest.raises(Refusal, match="wallx_csrc"):
        apply([tree.root])


@pytest.mark.parametrize("file", [FILE, "wall_x/model.py"])
def test_a_second_import_that_no_guard_covers_is_refused_before_and_told_after(
    patient: Make, file: str
) -> None:
    second = "def other():\n    from wallx_csrc import rope\n"
    tree = patient({FILE: BEFORE})
    alone = BEFORE if file == FILE else ""
    (tree.root / file).write_text(alone + second)
    found = tree.finding()
    assert found.state is State.AMBIGUOUS
    assert "`from wallx_csrc import rope`" in found.message and "does not cover that" in found.message
    (tree.root / file).write_text(alone)
    tree.apply()
    assert (tree.finding().state, tree.finding().message) == (State.APPLIED, "")
    with (tree.root / file).open("a") as text:
        text.write(second)
    found = tree.finding()
    assert found.state is State.APPLIED and "`from wallx_csrc import rope`" in found.message


@pytest.mark.parametrize(
    "text", ["from .wallx_csrc import permute", "import wallx_csrc_tools", '"""wallx_csrc."""']
)
def test_what_only_resembles_the_import_is_none(patient: Make, text: str) -> None:
    assert patient({"wall_x/model.py": f"import os\n{text}\n"}).finding().state is State.ABSENT


@pytest.mark.parametrize(
    "beside", [f"{LINE}; X = 1", f"X = 1; {LINE}", f"if True: {LINE}", f"{LINE}\nglm_pto_kernels = 1"]
)
def test_status_says_what_apply_refuses(patient: Make, beside: str) -> None:
    tree = patient({FILE: BEFORE.replace(LINE, beside)})
    found = tree.finding()
    assert found.state is State.MOVED and found.message.startswith(FILE)
    with pytest.raises(Refusal) as told:
        apply([tree.root], Options(install_kernels=True))
    assert told.value.problems[0].startswith(found.message)
    assert "--skip SITE" in told.value.problems[0]


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
