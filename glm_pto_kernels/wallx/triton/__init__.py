"""Triton kernels of the wall-x operators for NVIDIA GPUs. Imported only when a call needs them."""

from glm_pto_kernels.wallx.triton.dual_gemm import dual_gemm
from glm_pto_kernels.wallx.triton.patch_grids import get_window_index, rot_pos_emb
from glm_pto_kernels.wallx.triton.permute import permute, permute_plan
from glm_pto_kernels.wallx.triton.rope import rope, rope_plan
from glm_pto_kernels.wallx.triton.rope_index import rope_index
from glm_pto_kernels.wallx.triton.scatter import (
    permute_with_map,
    permute_with_map_plan,
    unpermute_bwd,
    unpermute_bwd_plan,
)
from glm_pto_kernels.wallx.triton.unpermute import unpermute, unpermute_plan

__all__ = [
    "dual_gemm",
    "get_window_index",
    "permute",
    "permute_plan",
    "permute_with_map",
    "permute_with_map_plan",
    "rope",
    "rope_index",
    "rope_plan",
    "rot_pos_emb",
    "unpermute",
    "unpermute_bwd",
    "unpermute_bwd_plan",
    "unpermute_plan",
]
