"""Reference of the window order of patch grids."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_pto_kernels.wallx.grids import read as grids_of


def get_window_index(grid_thw: Tensor, merge: int, window: int, unit: int) -> tuple[Tensor, Tensor]:
    """Merged patches in window order, and the cumulative window lengths in patches.

    Args:
        grid_thw: [G, 3] frames, rows, columns in patches.
        merge: patches per merged side.  window: merged patches per window side.
        unit: patches per merged patch, by which the lengths are multiplied.

    Returns:
        int32 [merged patches] and int32 [windows + 1]. Both sizes depend on the grids' values, so they are
        read on the host once.
    """
    grids = grids_of("get_window_index", grid_thw)
    orders, lengths, first = [], [], 0
    for frames, rows, columns in ((t, h // merge, w // merge) for t, h, w in grids):
        if min(frames, rows, columns) <= 0:
            continue
        order, length = one_grid(frames, rows, columns, window)
        orders.append(order + first)
        lengths.append(length * unit)
        first += frames * rows * columns
    device = grid_thw.device
    if not orders:
        return torch.zeros(0, dtype=torch.int32, device=device), torch.zeros(
            1, dtype=torch.int32, device=device
        )
    ends = torch.cat(lengths).cumsum(0)
    bounds = torch.cat((ends.new_zeros(1), ends))
    return torch.cat(orders).to(device, torch.int32), bounds.to(device, torch.int32)


def one_grid(frames: int, rows: int, columns: int, window: int) -> tuple[Tensor, Tensor]:
    """The window order of one grid, and its windows' sizes (border windows are smaller)."""
    high, wide = -(-rows // window), -(-columns // window)
    frame, row, column = torch.meshgrid(
        torch.arange(frames), torch.arange(rows), torch.arange(columns), indexing="ij"
    )
    number = (frame * high + row // window) * wide + column // window
    # Inside a window patches keep their row-major order, which a stable sort preserves.
    return torch.argsort(number.flatten(), stable=True), torch.bincount(number.flatten())
