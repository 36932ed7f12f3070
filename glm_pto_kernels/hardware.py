"""Static facts of this process: can a fused kernel run here? Imports nothing heavy."""

from __future__ import annotations

import ast
import os
import sys
from importlib.util import find_spec
from pathlib import Path

FITTING = ("A2", "A3")
# SOC_VERSION spellings of vllm-ascend's builds, by prefix; Ascend 950 (A5) and 310P have other units.
# What vllm-ascend writes as __device_type__: chip numbers in 0.12.0rc1, names of generations from 0.13 on.
DEVICE_TYPES = {"910B": "A2", "910_93": "A3", "910_95": "A5"}
SOC_PREFIXES = {
    "ascend910b": "A2",
    "ascend910_93": "A3",
    "ascend910_95": "A5",
    "ascend950": "A5",
    "ascend310p": "310P",
}


def installed(package: str) -> bool:
    """Whether a top-level package can be found, without importing it."""
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def device_type() -> str | None:
    """The generation that the installed vllm-ascend is built for: A2, A3, A5, 310P, or None."""
    try:
        spec = find_spec("vllm_ascend")
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "_build_info.py"
        if path.is_file():
            return _read_build_info(path.read_text(encoding="utf-8"))
    return None


def _read_build_info(text: str) -> str | None:
    facts = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() in ("__device_type__", "__soc_version__"):
            try:
                facts[name.strip()] = str(ast.literal_eval(value.strip()))
            except (ValueError, SyntaxError):
                continue
    soc = facts.get("__soc_version__", "").lower()
    by_soc = next((name for prefix, name in SOC_PREFIXES.items() if soc.startswith(prefix)), None)
    named = facts.get("__device_type__", "").strip("_").upper()
    return DEVICE_TYPES.get(named, named) or by_soc


def npu_refusal() -> str | None:
    """Why no PyPTO kernel can run in this process, or None. Reads the environment and looks packages up."""
    if not installed("torch_npu"):
        return "torch_npu is not installed"
    if not installed("pypto"):
        return "pypto is not installed"
    if not os.environ.get("ASCEND_HOME_PATH"):
        return "ASCEND_HOME_PATH is not set, so pypto would only simulate and leave its outputs unwritten"
    generation = device_type()
    if generation is not None and generation not in FITTING:
        return f"the kernels are for Ascend {' and '.join(FITTING)}; vllm-ascend is built for {generation}"
    return None
