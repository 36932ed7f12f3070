"""The operator layer that patched code imports. Depends on torch only.

Each operator has its adaptation function (the guide's name), a pure ``<op>_supported`` for the guard and an
``<op>_refusal`` that says why not. ``USE_PTO_*`` are the switches; ``GLM_PTO_BACKEND`` chooses who computes.
"""

from glm_pto_kernels import switches as _switches
from glm_pto_kernels.backends import announce, calls, register
from glm_pto_kernels.explain import explain
from glm_pto_kernels.ops.attention_pre import attention_pre, attention_pre_refusal, attention_pre_supported
from glm_pto_kernels.ops.gate import gate, gate_refusal, gate_supported
from glm_pto_kernels.ops.paged_attention import (
    paged_attention,
    paged_attention_refusal,
    paged_attention_supported,
)
from glm_pto_kernels.ops.select_experts import (
    select_experts,
    select_experts_refusal,
    select_experts_supported,
)
from glm_pto_kernels.ops.shared_expert import (
    ffn_share_expert_quant,
    ffn_share_expert_quant_refusal,
    ffn_share_expert_quant_supported,
)
from glm_pto_kernels.wallx_backend import (
    wallx_backend,
    wallx_backend_refusal,
    wallx_backend_supported,
)

USE_PTO_GATE: bool
USE_PTO_FA: bool
USE_PTO_FA_PRE: bool
USE_PTO_SELECT_EXPERTS: bool
USE_PTO_SHARE_EXPERTS: bool
USE_PTO_WALLX: bool
USE_PTO_SELECT_EXEPERTS: bool  # the guide's spelling, kept because people copied it
USE_PTO_SHARE_EXEPERTS: bool

_switches.install(__name__)
announce()

__all__ = [
    "attention_pre",
    "attention_pre_refusal",
    "attention_pre_supported",
    "calls",
    "explain",
    "ffn_share_expert_quant",
    "ffn_share_expert_quant_refusal",
    "ffn_share_expert_quant_supported",
    "gate",
    "gate_refusal",
    "gate_supported",
    "paged_attention",
    "paged_attention_refusal",
    "paged_attention_supported",
    "register",
    "select_experts",
    "select_experts_refusal",
    "select_experts_supported",
    "wallx_backend",
    "wallx_backend_refusal",
    "wallx_backend_supported",
]
