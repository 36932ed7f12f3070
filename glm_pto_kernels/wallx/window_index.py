"""Window order of patch grids. Source: wall-x ``csrc/window_index.cu``."""

from __future__ import annotations

from torch import Tensor

from glm_pto_kernels.wallx.backends import traceable
from glm_pto_kernels.wallx.reference import get_window_index as reference
from glm_pto_kernels.wallx.rope_index import check_grid, check_merge


def get_window_index(
    grid_thw: Tensor,
    spatial_merge_size: int,
    vit_merger_window_size: int,
    patch_size: int,
    spatial_merge_unit: int,
) -> tuple[Tensor, Tensor]:
    """The order that puts the merged patches of each window side by side.

    Args:
        grid_thw: [G, 3] int32 or int64: frames, rows, columns in patches. What is less than
            a merged patch is left out, and so is a grid with a zero.
        spatial_merge_size: patches per merged side.
        vit_merger_window_size: merged patches per window side; border windows are smaller.
        patch_size: not used, as in the original.
        spatial_merge_unit: patches per merged patch; the lengths are in patches.

    Returns:
        ``(index int32 [merged patches], cumulative lengths int32 [windows + 1])``.

    Raises:
        ValueError: shapes, types or sizes do not fit, or a grid has a negative value.
    """
    check_grid("get_window_index", "grid_thw", grid_thw)
    check_merge("get_window_index", spatial_merge_size)
    if vit_merger_window_size < 1:
        raise ValueError(
            f"get_window_index: vit_merger_window_size must be positive, found {vit_merger_window_size}"
        )
    if spatial_merge_unit < 1:
        raise ValueError(f"get_window_index: spatial_merge_unit must be positive, found {spatial_merge_unit}")
    run = traceable(reference, "get_window_index", grid_thw)
    result: tuple[Tensor, Tensor] = run(
        grid_thw, spatial_merge_size, vit_merger_window_size, spatial_merge_unit
    )
    return result
