"""Reference of the multimodal rotary embedding and of its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glm_pto_kernels.wallx.reference.unpermute import wider


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    repeated: bool,
    backward: bool,
) -> None:
    """Write the rotated ``q`` and ``k`` (backward: the gradients that belong to them) into the outputs."""
    q_rotated, k_rotated = apply_rope(q, k, cos, sin, sections, repeated, backward)
    q_out.copy_(q_rotated)
    k_out.copy_(k_rotated)


def apply_rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    sections: Sequence[int],
    repeated: bool = False,
    backward: bool = False,
) -> tuple[Tensor, Tensor]:
    """``x*cos + R(x)*sin`` with ``R(x) = (-x2, x1)``, each dim with the plane of its band, in fp32.

    Backward: ``g*cos + R^T(g*sin)`` with ``R^T(u) = (u2, -u1)``. The two halves of a head may lie in
    different bands, so this is not the forward with the sign of ``sin`` changed.

    Args:
        q: [B, HQ, S, D].  k: [B, HK, S, D].  cos, sin: [3, B, S, D].
        sections: three band widths that sum to D (to D/2 where ``repeated``).
        repeated: the usual bands, which start again at D/2, instead of three consecutive ones.
    """
    wide = wider(q.dtype)
    cosine = in_bands(cos, sections, repeated).to(wide).unsqueeze(1)
    sine = in_bands(sin, sections, repeated).to(wide).unsqueeze(1)

    def turn(x: Tensor) -> Tensor:
        x = x.to(wide)
        if not backward:
            low, high = x.chunk(2, dim=-1)
            return x * cosine + torch.cat((-high, low), dim=-1) * sine
        low, high = (x * sine).chunk(2, dim=-1)
        return x * cosine + torch.cat((high, -low), dim=-1)

    return turn(q).to(q.dtype), turn(k).to(k.dtype)


def in_bands(table: Tensor, sections: Sequence[int], repeated: bool) -> Tensor:
    """[3, B, S, D] -> [B, S, D]: for each dim the plane of its band."""
    widths = list(sections) * (2 if repeated else 1)
    pieces = table.split(widths, dim=-1)
    return torch.cat([piece[i % 3] for i, piece in enumerate(pieces)], dim=-1)
