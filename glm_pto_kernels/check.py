"""``GLM_PTO_CHECK``: the reference beside a kernel, the largest difference logged, too large a one raised.

``1`` checks the first call with each set of shapes, ``all`` every call. It works for every backend. It copies
the inputs (but for large caches) to see that a kernel leaves them alone, and waits for the device, so it is
for bringing a kernel in, not for production; captured graphs are left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch

from glm_pto_kernels import notice

LARGEST = 64 << 20  # bytes of an input that is copied


class CheckError(RuntimeError):
    """A kernel's result differs from the reference beyond the tolerance, or an input from before."""


def mode() -> str:
    """The setting: "", "1" or "all". Raises ValueError for anything else."""
    word = os.environ.get("GLM_PTO_CHECK", "").strip().lower()
    if word in ("", "0"):
        return ""
    if word in ("1", "all"):
        return word
    raise ValueError(
        f"GLM_PTO_CHECK={word!r}: use 1 (first call with each set of shapes) or all (every call)"
    )


def checked(
    operator: str,
    backend: str,
    kernel: Callable[..., Any],
    compare: Callable[..., tuple[float, float]],
    inputs: dict[str, int],
    every_call: bool,
) -> Callable[..., None]:
    """``kernel`` with the comparison after it. ``inputs``: the places of what it may not write."""
    seen: set[tuple[Any, ...]] = set()

    def call(*arguments: Any) -> None:
        shapes = tuple(tuple(a.shape) if hasattr(a, "shape") else a for a in arguments)
        if (shapes in seen and not every_call) or (_on_device(arguments) and notice.capturing()):
            kernel(*arguments)
            return
        before = {name: _copy(arguments[place]) for name, place in inputs.items()}
        kernel(*arguments)
        seen.add(shapes)
        changed = [name for name, old in before.items() if _changed(old, arguments[inputs[name]])]
        if changed:
            raise CheckError(
                f"{operator}: the {backend} backend wrote into its input {', '.join(changed)}, which others "
                f"read; GLM_PTO_DISABLE={operator} keeps native code"
            )
        difference, allowed = compare(*arguments)
        notice.logger().info(
            "%s: largest difference of the %s backend from the reference %.3g, allowed %.3g",
            operator,
            backend,
            difference,
            allowed,
        )
        if math.isnan(difference) or difference > allowed:
            raise CheckError(
                f"{operator}: the {backend} backend differs from the reference by {difference:.3g}, "
                f"allowed are {allowed:.3g}, for {notice.shapes_of(arguments)}; "
                f"GLM_PTO_DISABLE={operator} keeps native code"
            )

    return call


def _copy(value: Any) -> torch.Tensor | None:
    if not isinstance(value, torch.Tensor) or value.numel() * value.element_size() > LARGEST:
        return None
    return value.clone()


def _changed(old: torch.Tensor | None, now: Any) -> bool:
    if old is None:
        return False
    return bool(((old != now) & ~old.isnan()).any())  # what was NaN before says nothing


def _on_device(arguments: tuple[Any, ...]) -> bool:
    return any(isinstance(a, torch.Tensor) and not a.is_cpu for a in arguments)
