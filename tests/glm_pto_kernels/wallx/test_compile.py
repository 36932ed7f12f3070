"""Triton kernels compile down to machine code, which its interpreter does not try. No GPU is needed."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import glm_pto_kernels.wallx

KERNELS = Path(glm_pto_kernels.wallx.__file__).parent / "triton"
BY_TENSOR_MAPS = "dual_gemm_tma_kernel"
# Bytes of shared memory that one program may have.
SHARED = {"9 0": 232448, "8 0": 166912, "8 6": 101376}


def launched() -> set[str]:
    """Functions that are launched: those that end in _kernel."""
    return {
        node.name
        for path in KERNELS.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel")
    }


@pytest.mark.interpret
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile them on the GPU")
@pytest.mark.parametrize(
    "capability", ["9 0", *(pytest.param(older, marks=pytest.mark.thorough) for older in ("8 0", "8 6"))]
)
def test_every_kernel_compiles(capability: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(KERNELS.parents[2])}
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), *capability.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == launched() - {BY_TENSOR_MAPS}
    assert max(kernel["shared"] for kernel in found.values()) <= SHARED[capability]
    fetching = {name for name, kernel in found.items() if kernel["ahead"]}
    assert fetching == ({"gather_kernel"} if capability == "9 0" else set())
