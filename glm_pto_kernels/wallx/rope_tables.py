"""The gradients of rope for its tables cos and sin. Source: derived from the formula in ``rope``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def table_grads(
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor],
    table: Tensor,
    sections: Sequence[int],
    repeated: bool,
    backward: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients for cos and sin: sums over the heads, put into the plane of each dim's band."""
    wide = torch.float64 if table.dtype == torch.float64 else torch.float32
    cosine = torch.zeros(table.shape[1:], dtype=wide, device=table.device)
    sine = torch.zeros_like(cosine)
    for x, grad in zip(inputs, grads, strict=True):
        x, grad = x.to(wide), grad.to(wide)
        turned, still = (grad, x) if backward else (x, grad)
        low, high = turned.chunk(2, dim=-1)
        cosine = cosine + (x * grad).sum(1)
        sine = sine + (torch.cat((-high, low), dim=-1) * still).sum(1)
    widths = list(sections) * (2 if repeated else 1)
    plane = torch.tensor([i % 3 for i, width in enumerate(widths) for _ in range(width)], device=table.device)
    mask = (plane == torch.arange(3, device=table.device).unsqueeze(1)).view(3, 1, 1, -1)
    return (cosine * mask).to(table.dtype), (sine * mask).to(table.dtype)
