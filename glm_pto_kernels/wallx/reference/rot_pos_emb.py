"""Reference of the two-axis rotary frequencies of patch grids."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_pto_kernels.wallx.grids import read as grids_of


def rot_pos_emb(inv_freq: Tensor, grid_thw: Tensor, merge: int) -> Tensor:
    """fp32 [tokens, 2 * len(inv_freq)]: row times frequency, then column times frequency.

    Tokens run over frames, then over merge x merge blocks row by row, then inside a block row by row; rows
    and columns beyond the last whole block are left out. The output's size depends on the grids' values, so
    they are read on the host once.
    """
    grids = grids_of("rot_pos_emb", grid_thw)
    pieces = [patch_positions(t, h // merge, w // merge, merge) for t, h, w in grids]
    if not pieces:
        return torch.zeros(0, 2 * inv_freq.shape[0], dtype=torch.float32, device=inv_freq.device)
    where = torch.cat(pieces).to(inv_freq.device)
    return (where.float().unsqueeze(-1) * inv_freq.float()).flatten(1)


def patch_positions(frames: int, blocks_high: int, blocks_wide: int, merge: int) -> Tensor:
    """int64 [frames * blocks * merge^2, 2]: (row, column) of every patch in block order."""
    block_row, block_column, row, column = torch.meshgrid(
        torch.arange(blocks_high),
        torch.arange(blocks_wide),
        torch.arange(merge),
        torch.arange(merge),
        indexing="ij",
    )
    rows, columns = block_row * merge + row, block_column * merge + column
    return torch.stack((rows.flatten(), columns.flatten()), dim=1).repeat(frames, 1)
