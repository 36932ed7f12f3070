"""What ``rope`` and its kin refuse. Source: what wall-x ``csrc/rope.cu`` takes for granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from glm_pto_kernels.wallx.plans import count, refuse_output


def check(
    name: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int], repeated: bool
) -> list[int]:
    """The sections as ints, or an error that names what does not fit."""
    q_shape, k_shape = q.shape, k.shape
    if len(q_shape) != 4 or len(k_shape) != 4:
        raise ValueError(
            f"{name}: expected q [B, HQ, S, D] and k [B, HK, S, D], found {q_shape} and {k_shape}"
        )
    batch, _, length, dim = q_shape
    if (k_shape[0], k_shape[2], k_shape[3]) != (batch, length, dim):
        raise ValueError(f"{name}: q {list(q_shape)} and k {list(k_shape)} differ in more than their heads")
    table = (3, batch, length, dim)
    if cos.shape != table or sin.shape != table:
        raise ValueError(
            f"{name}: cos and sin must be [3, B, S, D] = {list(table)}, "
            f"found {list(cos.shape)} and {list(sin.shape)}"
        )
    three = list(sections) if type(sections) in (list, tuple) else listed(sections)
    if len(three) != 3:
        raise ValueError(f"{name}: the sections are three band widths, e.g. [32, 48, 48], found {sections!r}")
    widths = [width if type(width) is int else count(f"{name}: a section", width) for width in three]
    whole = dim // 2 if repeated else dim
    if dim % 2 or sum(widths) != whole or min(widths) < 0:
        raise ValueError(
            f"{name}: the head size must be even and the sections must sum to {whole}, "
            f"found head size {dim} and {widths}"
        )
    kind = q.dtype
    if k.dtype != kind or cos.dtype != kind or sin.dtype != kind or not kind.is_floating_point:
        raise TypeError(
            f"{name}: q, k, cos and sin must have one floating type, "
            f"found {kind}, {k.dtype}, {cos.dtype}, {sin.dtype}"
        )
    place = q.device
    if k.device != place or cos.device != place or sin.device != place:
        raise ValueError(f"{name}: q is on {place}, k, cos, sin on {k.device}, {cos.device}, {sin.device}")
    return widths


def listed(sections: Any) -> list[Any]:
    """What is not a list or tuple: an array, a tensor. Nothing of what cannot be listed."""
    try:
        return list(sections)
    except TypeError:
        return []


def check_output(name: str, x: Tensor, out: Tensor) -> None:
    """Raises ValueError where ``out`` is not like ``x`` or cannot be written."""
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        raise ValueError(
            f"{name}: an output must be {list(x.shape)} {x.dtype} on {x.device}, "
            f"found {list(out.shape)} {out.dtype} on {out.device}"
        )
    refuse_output(name, out)
