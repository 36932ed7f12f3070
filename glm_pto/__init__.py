"""glm-pto: switch an installed vLLM + vLLM-Ascend to fused GLM-4.5 operators, and back to the byte.

The commands as functions, with the same frozen results as ``--json``::

    from glm_pto import Options, apply, diff, revert, status

    result = apply(["site-packages"], Options(require_reached=True))

They raise `Refusal` (nothing was changed; all reasons are named), `UsageError` or `WriteFailure`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glm_pto.codemods.findings import (
        Action,
        Finding,
        Reached,
        Refusal,
        State,
        TreeReport,
        UsageError,
        WriteFailure,
    )
    from glm_pto.codemods.operations import DiffResult, Options, Result, apply, diff, revert, status

__version__ = "0.1.0"

_HOMES = {
    "glm_pto.codemods.findings": (
        "Action",
        "Finding",
        "Reached",
        "Refusal",
        "State",
        "TreeReport",
        "UsageError",
        "WriteFailure",
    ),
    "glm_pto.codemods.diff": ("DiffResult",),
    "glm_pto.codemods.operations": ("Options", "Result", "apply", "diff", "revert", "status"),
}

__all__ = [
    "Action",
    "DiffResult",
    "Finding",
    "Options",
    "Reached",
    "Refusal",
    "Result",
    "State",
    "TreeReport",
    "UsageError",
    "WriteFailure",
    "apply",
    "diff",
    "revert",
    "status",
]


def __getattr__(name: str) -> Any:
    """Load the patcher when one of its names is first used: `glm-pto --help` never needs it."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
