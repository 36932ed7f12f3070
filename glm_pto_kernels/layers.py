"""A layer's data, looked up in its dictionaries: no call of the layer's own, so any object can be asked."""

from __future__ import annotations

from typing import Any

import torch

NONE: dict[str, Any] = {}  # stands for the dictionaries of an object that has none


def held(layer: Any, name: str) -> Any:
    """A parameter, plain attribute or buffer of a layer, or None: quantisation data are any of them."""
    for place in ("_parameters", "__dict__", "_buffers"):
        found = getattr(layer, place, NONE).get(name)
        if found is not None:
            return found
    return None


def norm_bias(norm: Any, after_add: bool) -> torch.Tensor | None:
    """The bias that vllm-ascend's RMSNorm adds: after a residual add any, else only one that was loaded."""
    bias = getattr(norm, "bias", None)
    if not after_add and getattr(norm, "bias_loaded", True) is False:
        return None
    return bias  # type: ignore[no-any-return]
