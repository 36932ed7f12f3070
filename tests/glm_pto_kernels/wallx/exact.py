"""fp64 values of the operators, and for each element the sum of its terms' absolute values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def rows_of(y: Tensor, targets: Tensor) -> Tensor:
    """Rows of ``y``, zeros where a slot has none, whatever rows that nobody names hold."""
    return torch.where((targets >= 0)[:, None], y[targets.clamp(min=0).long()].double(), 0)


def unpermute(y: Tensor, row_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Pair:
    """[T, H]. With K = 1 ``prob`` is not used."""
    exact, terms = torch.zeros(2, tokens, y.shape[1], dtype=torch.float64, device=y.device)
    for k, targets in enumerate(row_map.view(top_k, tokens)):
        product = rows_of(y, targets)
        if prob is not None and top_k > 1:
            product *= prob[:, k, None].double()
        exact += product
        terms += product.abs()
    return exact, terms


def act_grad(grad: Tensor, rows: int, row_map: Tensor, prob: Tensor) -> Tensor:
    """[N, H]: each element is one product."""
    exact = torch.zeros(rows, grad.shape[1], dtype=torch.float64, device=grad.device)
    for k, targets in enumerate(row_map.view(prob.shape[1], prob.shape[0])):
        mapped = targets >= 0
        exact[targets[mapped].long()] = grad[mapped].double() * prob[mapped, k, None].double()
    return exact


def prob_grad(grad: Tensor, y: Tensor, row_map: Tensor, top_k: int) -> Pair:
    """[T, K]."""
    columns = [grad.double() * rows_of(y, targets) for targets in row_map.view(top_k, grad.shape[0])]
    return torch.stack([c.sum(1) for c in columns], 1), torch.stack([c.abs().sum(1) for c in columns], 1)


def product(a: Tensor, b: Tensor) -> Pair:
    a, b = a.double(), b.double()
    return a @ b, a.abs() @ b.abs()


def rope(x: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int], backward: bool) -> Pair:
    """[B, heads, S, D], with three consecutive bands."""
    band = torch.arange(3).repeat_interleave(torch.tensor(list(sections))).to(x.device)
    dims = torch.arange(x.shape[-1], device=x.device)
    cosine, sine = (t.double()[band, :, :, dims].permute(1, 2, 0)[:, None] for t in (cos, sin))
    x = x.double()
    if backward:
        low, high = (x * sine).chunk(2, -1)
        other = torch.cat((high, -low), -1)
    else:
        low, high = x.chunk(2, -1)
        other = torch.cat((-high, low), -1) * sine
    return x * cosine + other, (x * cosine).abs() + other.abs()
