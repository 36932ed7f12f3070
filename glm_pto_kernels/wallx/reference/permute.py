"""Reference of permute: a stable sort of (token, expert) slots by expert, and the gather that follows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def permute(
    x: Tensor,
    indices: Tensor,
    num_out_tokens: int,
    mask_negative: bool,
    workspace: Sequence[Tensor] = (),
    max_slots: int = 0,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Rows of ``x`` grouped by expert, and the row map.

    Args:
        x: [T, H].
        indices: [T, K], any integer type.
        num_out_tokens: output rows; T*K where it is not positive.
        mask_negative: slots with a negative expert get no row (map -1) instead of sorting first.
        workspace, max_slots: not needed here; the workspace comes back as it was.

    Returns:
        ``permuted`` [n, H], ``row_id_map`` int32 [K*T] with ``map[k*T + t]`` = row of slot (t, k) or -1,
        workspace.
    """
    tokens, top_k = indices.shape
    slots = tokens * top_k
    rows = num_out_tokens if num_out_tokens > 0 else slots
    kept = min(rows, slots)
    experts = indices.reshape(-1)
    dead = experts < 0 if mask_negative else torch.zeros_like(experts, dtype=torch.bool)
    # Masked slots sort behind every expert and leave the rows that they would have had as zeros.
    keys = torch.where(dead, torch.iinfo(experts.dtype).max, experts)
    order = torch.argsort(keys, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(slots, device=order.device)
    target = torch.where((rank < rows) & ~dead, rank, -1)
    row_id_map = target.view(tokens, top_k).t().reshape(-1).to(torch.int32)
    picked = x.index_select(0, torch.div(order[:kept], max(top_k, 1), rounding_mode="floor"))
    picked = torch.where(dead[order[:kept]].unsqueeze(1), 0, picked)
    if rows > kept:
        picked = torch.cat([picked, picked.new_zeros(rows - kept, x.shape[1])])
    return picked, row_id_map, list(workspace)


def permute_with_map(x: Tensor, row_id_map: Tensor, rows: int, top_k: int) -> Tensor:
    """Rows of ``x`` [T, H] placed where a map made earlier says; rows that it does not name are zeros."""
    tokens = x.shape[0]
    out = x.new_zeros(rows, x.shape[1])
    for target in row_id_map.view(top_k, tokens):
        mapped = target >= 0
        out = out.index_put((target[mapped].long(),), x[mapped])
    return out
