"""The nine functions that ``import wallx_csrc as backend`` expects, under that module's names.

``from glm_pto_kernels.wallx import csrc as backend`` takes the place of that line (recipe
``wallx_backend``). Callers pass positionally. Differences from the extension, all of them wider:
docs/wallx.md.
"""

from torch import Tensor

from glm_pto_kernels.wallx.dual_gemm import asym_dual_gmm_separated as _separated
from glm_pto_kernels.wallx.permute import permute
from glm_pto_kernels.wallx.rope import rope, rope_bwd
from glm_pto_kernels.wallx.rope_index import get_rope_index as rope_index
from glm_pto_kernels.wallx.rot_pos_emb import rot_pos_emb
from glm_pto_kernels.wallx.unpermute import unpermute, unpermute_bwd
from glm_pto_kernels.wallx.window_index import get_window_index

__all__ = [
    "asym_dual_gmm",
    "get_window_index",
    "permute",
    "rope",
    "rope_bwd",
    "rope_index",
    "rot_pos_emb",
    "unpermute",
    "unpermute_bwd",
]


def asym_dual_gmm(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, o0: Tensor, o1: Tensor, trans_a: bool, trans_b: bool
) -> None:
    """``asym_dual_gmm_separated`` with all arguments, returning nothing: ``o_i = op(a_i) @ op(b_i)``."""
    _separated(a0, a1, b0, b1, o0, o1, trans_a, trans_b)
