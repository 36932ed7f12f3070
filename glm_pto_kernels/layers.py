"""A layer's data, looked up in its dictionaries: no call of the layer's own, so any object can be asked.

Any object may be asked about: what stands in a layer's place need not be one, and a question never raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

NONE: dict[str, Any] = {}  # stands for the dictionaries of an object that has none


def held(layer: Any, name: str) -> Any:
    """A parameter, plain attribute or buffer of a layer, or None: quantisation data are any of them."""
    for place in ("_parameters", "__dict__", "_buffers"):
        found = getattr(layer, place, NONE).get(name)
        if found is not None:
            return found
    return None


def why(reason: Callable[..., str | None], *arguments: Any) -> str | None:
    """``reason(*arguments)``; of an object that only resembles a layer, what it raised when it was asked."""
    if is_dynamo_compiling():  # a trace cannot go on from an exception, nor is there any in a known model
        return reason(*arguments)
    try:
        return reason(*arguments)
    except Exception as error:
        return f"it is unlike those of any release: {error!r}"


def norm_bias(norm: Any, after_add: bool) -> torch.Tensor | None:
    """The bias that vllm-ascend's RMSNorm adds: after a residual add any, else only one that was loaded."""
    if not after_add and getattr(norm, "__dict__", NONE).get("bias_loaded", True) is False:
        return None
    return held(norm, "bias")  # type: ignore[no-any-return]
