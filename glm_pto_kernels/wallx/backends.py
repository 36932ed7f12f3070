"""Which implementation a wall-x operator runs.

``auto`` takes Triton for tensors on an NVIDIA GPU where Triton is installed and the torch reference
elsewhere. A named backend (``use``, or the environment variable ``GLM_PTO_WALLX_BACKEND``) never falls back:
where it cannot run the call raises.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.plans import PLANS, direct, keep

BACKENDS = ("auto", "triton", "torch", "wallx_csrc")
VARIABLE = "GLM_PTO_WALLX_BACKEND"
MODULES = {
    "triton": "glm_pto_kernels.wallx.triton",
    "torch": "glm_pto_kernels.wallx.reference",
    "wallx_csrc": "glm_pto_kernels.wallx.native",
}

_chosen: str | None = None
_found: dict[tuple[str | None, str, bool, bool], Any] = {}


def chosen() -> str:
    """The backend in force: the last ``use``, else the environment, else ``auto``."""
    name = _chosen or os.environ.get(VARIABLE, "auto")
    if name not in BACKENDS:
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(BACKENDS)}, found {name!r}")
    return name


def use(name: str | None) -> None:
    """Choose the backend for the whole process; None goes back to the environment's choice."""
    if name is not None and name not in BACKENDS:
        raise ValueError(f"wallx backend: expected one of {', '.join(BACKENDS)}, found {name!r}")
    global _chosen
    _chosen = name
    _found.clear()
    PLANS.clear()


@contextmanager
def using(name: str) -> Iterator[None]:
    """``use(name)`` for the time of a with-block."""
    before = _chosen
    use(name)
    try:
        yield
    finally:
        use(before)


def implementation(operator: str, tensor: Tensor) -> Any:
    """The function that runs ``operator`` for tensors like ``tensor``; None if the backend has none."""
    # With the choice, or another thread's look-up from before a `use` would stay.
    key = (_chosen, operator, tensor.is_cuda, tensor.dtype is torch.float64)
    found = _found.get(key)
    if found is None and key not in _found:
        module = importlib.import_module(MODULES[resolve(*key[2:])])
        found = _found[key] = getattr(module, operator, None)
    return found


def run(operator: str, numbers: Hashable, tensors: Sequence[Tensor], *arguments: Any) -> Any:
    """Run ``operator`` for checked arguments, and let the next call like it go straight to the plan.

    Some backends make no plans, and none makes one where something has to be copied first.
    """
    taken = implementation(operator, tensors[0])
    result = taken(*arguments)
    make = implementation(f"{operator}_plan", tensors[0])
    plan = make and make(*arguments)
    if plan is not None:
        keep(numbers, tensors, plan)
        if implementation(operator, tensors[0]) is not taken:  # another thread has called `use`
            PLANS.clear()
    return result


def traceable(reference: Callable[..., Any], operator: str, *tensors: Tensor | None) -> Any:
    """``implementation`` for the first tensor; the reference where torch must see what is computed.

    For operators that are not registered: while something traces, and for gradients.
    """
    if chosen() != "wallx_csrc" and not direct(*tensors):
        return reference
    assert tensors[0] is not None
    return implementation(operator, tensors[0])


def resolve(on_gpu: bool, double: bool = False) -> str:
    """The backend's name for tensors that are, or are not, on a GPU, and of type fp64."""
    name = chosen()
    if name == "auto":
        return "triton" if on_gpu and not double and nvidia() and installed("triton") else "torch"
    if name == "torch":
        return name
    if double:
        raise TypeError(f"wallx backend {name!r} computes in fp32; choose 'auto' or 'torch' for fp64 tensors")
    if not installed(name):
        raise RuntimeError(f"wallx backend {name!r} was asked for, but no module of that name is installed")
    if not on_gpu and not (name == "triton" and interpreting()):
        raise RuntimeError(
            f"wallx backend {name!r} was asked for, but the tensors are not on a GPU; "
            "move them, or choose 'auto' or 'torch'"
        )
    return name


def nvidia() -> bool:
    """Whether torch's GPU is NVIDIA's, the only one that the kernels were tried on."""
    return torch.version.cuda is not None


def interpreting() -> bool:
    """Whether Triton interprets kernels on the CPU (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
