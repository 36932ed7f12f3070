"""The operator interface that wall-x has over its compiled extension ``wallx_csrc``, without the extension.

Torch references on any device, Triton kernels on NVIDIA GPUs, registered operators with gradients for
torch.compile. ``csrc`` is the raw module; ``backends.use`` chooses the implementation. Semantics:
docs/wallx.md.
"""

from glm_pto_kernels.wallx.backends import use, using
from glm_pto_kernels.wallx.dual_gemm import asym_dual_gmm_separated
from glm_pto_kernels.wallx.permute import permute, permute_with_map
from glm_pto_kernels.wallx.rope import apply_rope, rope, rope_bwd
from glm_pto_kernels.wallx.rope_index import get_rope_index
from glm_pto_kernels.wallx.rot_pos_emb import rot_pos_emb
from glm_pto_kernels.wallx.unpermute import unpermute, unpermute_bwd
from glm_pto_kernels.wallx.window_index import get_window_index

__all__ = [
    "apply_rope",
    "asym_dual_gmm_separated",
    "get_rope_index",
    "get_window_index",
    "permute",
    "permute_with_map",
    "rope",
    "rope_bwd",
    "rot_pos_emb",
    "unpermute",
    "unpermute_bwd",
    "use",
    "using",
]
