"""A layer's data, looked up in its dictionaries: no call of the layer's own, so any object can be asked."""

from __future__ import annotations

from typing import Any

NONE: dict[str, Any] = {}  # stands for the dictionaries of an object that has none


def held(layer: Any, name: str) -> Any:
    """A parameter, plain attribute or buffer of a layer, or None: quantisation data are any of them."""
    for place in ("_parameters", "__dict__", "_buffers"):
        found = getattr(layer, place, NONE).get(name)
        if found is not None:
            return found
    return None
