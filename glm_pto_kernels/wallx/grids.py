"""The values of patch grids where the host needs them: the sizes of outputs depend on them."""

from __future__ import annotations

from torch import Tensor


def read(operator: str, grid_thw: Tensor) -> list[tuple[int, int, int]]:
    """Frames, rows and columns of every grid; on a GPU this synchronises, once.

    Raises:
        ValueError: a value is negative. Zeros are grids without patches.
    """
    grids = [(t, h, w) for t, h, w in grid_thw.tolist()]
    for number, (t, h, w) in enumerate(grids):
        if min(t, h, w) < 0:
            raise ValueError(
                f"{operator}: grid_thw must not be negative, found frames = {t}, rows = {h}, columns = {w} "
                f"in row {number}"
            )
    return grids
