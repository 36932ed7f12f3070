"""Reference of unpermute and of its gradient."""

from __future__ import annotations

import torch
from torch import Tensor


def unpermute(y: Tensor, row_id_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Tensor:
    """``out[t] = sum_k prob[t, k] * y[map[k*T + t]]`` in fp32, rounded once; -1 adds nothing.

    ``prob`` None is a plain sum. With K = 1 ``prob`` is not used, as in the original.
    """
    weighted = prob is not None and top_k > 1
    wide = wider(y.dtype)
    total = torch.zeros(tokens, y.shape[1], dtype=wide, device=y.device)
    for k, rows in enumerate(row_id_map.view(top_k, tokens)):
        picked, mapped = rows_of(y, rows)
        if weighted:
            assert prob is not None
            # A product with zero would let NaN of an unmapped row through, here and in prob's gradient.
            picked = picked * torch.where(mapped, prob[:, k].to(wide), 0).unsqueeze(1)
        total = total + picked
    return total.to(y.dtype)


def unpermute_bwd(grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of ``unpermute``: for ``y`` (unmapped rows are zeros) and, in fp32, for ``prob``.

    With K = 1, or without ``prob``, the probability is 1 and its gradient 0, because the forward ignores it.
    """
    tokens = grad.shape[0]
    top_k = 1 if prob is None else prob.shape[1]
    weighted = prob is not None and top_k > 1
    wide = wider(grad.dtype)
    wide_grad = grad.to(wide)
    act_grad = torch.zeros(y.shape[0], grad.shape[1], dtype=grad.dtype, device=grad.device)
    columns = []
    for k, rows in enumerate(row_id_map.view(top_k, tokens)):
        picked, mapped = rows_of(y, rows)
        scaled = wide_grad
        if weighted:
            assert prob is not None
            scaled = wide_grad * prob[:, k].to(wide).unsqueeze(1)
            columns.append((wide_grad * picked).sum(1))
        act_grad = act_grad.index_put((rows[mapped].long(),), scaled[mapped].to(grad.dtype))
    if not weighted:
        return act_grad, torch.zeros(tokens, top_k, dtype=wide, device=grad.device)
    return act_grad, torch.stack(columns, dim=1)


def rows_of(y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mapped rows of ``y`` in the wide type, zeros elsewhere, and which are mapped."""
    mapped = rows >= 0
    if y.shape[0] == 0:
        return torch.zeros(rows.shape[0], y.shape[1], dtype=wider(y.dtype), device=y.device), mapped
    picked = y.index_select(0, rows.clamp(min=0).long()).to(wider(y.dtype))
    return torch.where(mapped.unsqueeze(1), picked, 0), mapped


def wider(dtype: torch.dtype) -> torch.dtype:
    """The type that sums are kept in: fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32
