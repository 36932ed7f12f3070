"""Two-axis rotary frequencies of patch grids. Source: wall-x ``csrc/rot_pos.cu``."""

from __future__ import annotations

from torch import Tensor

from glm_pto_kernels.wallx.backends import traceable
from glm_pto_kernels.wallx.reference import rot_pos_emb as reference
from glm_pto_kernels.wallx.rope_index import check_grid, check_merge


def rot_pos_emb(inv_freq: Tensor, grid_thw: Tensor, spatial_merge_size: int) -> Tensor:
    """Row and column frequency of every patch, in the order in which merged blocks lie in memory.

    Args:
        inv_freq: [F] floating; used in fp32.
        grid_thw: [G, 3] int32 or int64: frames, rows, columns in patches. What is less than
            a block has no tokens, nor has a grid with a zero.
        spatial_merge_size: patches per merged side.

    Returns:
        fp32 [tokens, 2F]: row times frequency, then column times frequency. No grids give an empty tensor.

    Raises:
        ValueError: shapes or types do not fit, or a grid has a negative value.
    """
    if inv_freq.dim() != 1 or not inv_freq.dtype.is_floating_point:
        raise ValueError(
            f"rot_pos_emb: inv_freq must be floating [F], found {inv_freq.dtype} {list(inv_freq.shape)}"
        )
    check_grid("rot_pos_emb", "grid_thw", grid_thw)
    check_merge("rot_pos_emb", spatial_merge_size)
    run = traceable(reference, "rot_pos_emb", inv_freq, grid_thw)
    found: Tensor = run(inv_freq, grid_thw, spatial_merge_size)
    return found
