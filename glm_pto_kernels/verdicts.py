"""What ``supported`` answered for a layer, kept on the layer for the next eager step.

A verdict rests on facts that stay: attributes, sizes, and the limits of a kernel, which are dear to ask. Each
eager step asks again for every layer, so the answer is kept with the backend's choice, weak references to the
tensors that it rests on, and what was asked about; it holds while all are the same. Under torch.compile
nothing is kept or read: there a condition is evaluated once, by the trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
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


def keep(
    owner: Any, name: str, verdict: bool, choice: object, tensors: tuple[Any, ...], fact: object
) -> bool:
    """Keep ``verdict`` on ``owner`` as (choice, a reference a tensor, fact, verdict), and return it."""
    attributes = getattr(owner, "__dict__", None)
    if type(attributes) is dict and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        attributes[name] = (choice, *map(_reference, tensors), fact, verdict)
    return verdict


def _reference(tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    return weakref.ref(tensor)
