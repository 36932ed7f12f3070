"""What importing the layer costs and brings in."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def run(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("USE_PTO_", "GLM_PTO_"))}
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_brings_in_no_package_beyond_torch() -> None:
    done = run(
        "import sys, json, torch; before = {n.partition('.')[0] for n in sys.modules}\n"
        "import glm_pto_kernels\n"
        "after = {n.partition('.')[0] for n in sys.modules} - before - set(sys.stdlib_module_names)\n"
        "heavy = [n for n in ('torch._dynamo', 'glm_pto_kernels.upstream') if n in sys.modules]\n"
        "print(json.dumps([sorted(after), heavy]))"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["glm_pto_kernels"], []]


def test_a_torch_that_is_too_old_stops_the_import_with_a_reason() -> None:
    older = "import torch; torch.__version__ = {!r}; import glm_pto_kernels"
    done = run(older.format("2.4.1+cu121"))
    assert done.returncode != 0
    assert "ImportError: glm_pto_kernels needs torch 2.5 or later, found 2.4.1+cu121" in done.stderr
    for version in ("2.5.0a0+git1", "2.10.0", "3.0"):
        assert run(older.format(version)).returncode == 0


def test_prints_nothing_and_logs_one_line_for_each_operator_that_stays_native() -> None:
    done = run("import glm_pto_kernels")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run(
        "import logging; logging.basicConfig(level=logging.INFO)\nimport glm_pto_kernels",
        GLM_PTO_BACKEND="torch",
        GLM_PTO_DISABLE="paged_attention",
        USE_PTO_GATE="0",
    )
    said = [line for line in done.stderr.splitlines() if "glm_pto_kernels" in line]
    assert len(said) == 2 and "gate: native code stays: USE_PTO_GATE is off" in said[0]
    assert "paged_attention: native code stays: switched off by GLM_PTO_DISABLE" in said[1]


def test_a_word_that_is_not_known_stops_the_import_with_a_reason() -> None:
    done = run("import glm_pto_kernels", USE_PTO_GATE="perhaps")
    assert done.returncode != 0 and "ValueError: USE_PTO_GATE='perhaps'" in done.stderr


def test_a_variable_that_nothing_reads_stops_the_import_with_the_one_that_was_meant() -> None:
    done = run("import glm_pto_kernels", GLM_PTO_DISABEL="gate")
    assert done.returncode != 0 and done.stderr.endswith("did you mean GLM_PTO_DISABLE?\n")


def test_the_environment_reaches_the_operators() -> None:
    done = run(
        "import torch, glm_pto_kernels as K\n"
        "gate, x = torch.nn.Linear(8, 4, bias=False), torch.ones(2, 8)\n"
        "print(K.USE_PTO_FA, K.gate_supported(gate, x), K.select_experts_refusal(x, 2, True))",
        USE_PTO_FA="0",
        GLM_PTO_BACKEND="torch",
        GLM_PTO_DISABLE="select_experts",
    )
    assert done.stdout.split(maxsplit=2)[:2] == ["False", "True"], done.stderr
    assert "GLM_PTO_DISABLE" in done.stdout
