"""Torch references of the wall-x operators: any device, any strides, differentiable, no Triton.

They state what the operators mean; every other backend is compared with them.
"""

from glm_pto_kernels.wallx.reference.dual_gemm import dual_gemm
from glm_pto_kernels.wallx.reference.permute import permute, permute_with_map
from glm_pto_kernels.wallx.reference.rope import apply_rope, rope
from glm_pto_kernels.wallx.reference.rope_index import Vision, rope_index
from glm_pto_kernels.wallx.reference.rot_pos_emb import rot_pos_emb
from glm_pto_kernels.wallx.reference.unpermute import unpermute, unpermute_bwd
from glm_pto_kernels.wallx.reference.window_index import get_window_index

__all__ = [
    "Vision",
    "apply_rope",
    "dual_gemm",
    "get_window_index",
    "permute",
    "permute_with_map",
    "rope",
    "rope_index",
    "rot_pos_emb",
    "unpermute",
    "unpermute_bwd",
]
