"""What paged_attention's condition answered for a layer, kept on the layer for the next step.

The other conditions look at a few facts in each step and keep nothing. This one rests on more than can be
asked within the time of an empty module call (``docs/switches.md`` has the figures), and none of it can be
left to the operator, which cannot run the native code in its place. It is never part of a compiled graph.
A verdict holds while the backend's choice and the key cache are the same; both caches are bound at once.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Verdict(weakref.ref[torch.Tensor]):
    """A weak reference to the key cache, with the choice and the answer. A copy or a pickle of it is None."""

    __slots__ = ("choice", "verdict")
    choice: object
    verdict: bool

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def keep(owner: Any, name: str, verdict: bool, choice: object, tensor: Any) -> bool:
    """Keep ``verdict`` on ``owner``, for as long as ``choice`` and ``tensor`` are the same, and return it."""
    attributes = getattr(owner, "__dict__", None)
    if type(attributes) is dict and isinstance(tensor, torch.Tensor):
        kept = Verdict(tensor)
        kept.choice, kept.verdict = choice, verdict
        attributes[name] = kept
    return verdict
