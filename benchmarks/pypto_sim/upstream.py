"""The kernels of a user's own checkout of the PyPTO project, as cases on the same inputs as ours.

Nothing of that project is kept here; it is imported from where the user points. Its modules ask torch_npu for
a tensor's layout; without an NPU they are told that it is the plain one.
"""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.pypto_sim import cases
from benchmarks.pypto_sim.simulator import Case

CHECKOUT = "GLM_PTO_UPSTREAM"  # environment variable with the path of the checkout
MODELS = "models/glm_v4_5"


def folder() -> Path | None:
    """The folder of the GLM kernels in the checkout that the environment names, or None."""
    named = os.environ.get(CHECKOUT)
    if not named:
        return None
    path = Path(named) / MODELS
    if not (path / "glm_gate.py").is_file():
        raise FileNotFoundError(f"{CHECKOUT}={named}: there is no {MODELS}/glm_gate.py in it")
    return path


def _kernel(module: str, name: str) -> Any:
    home = folder()
    assert home is not None
    sys.path.insert(0, str(home))
    utils, layout = ModuleType("utils"), ModuleType("utils.get_format")
    utils.__path__ = []
    layout.get_format = lambda tensor: "ND"  # type: ignore[attr-defined]
    sys.modules.update({"torch_npu": ModuleType("torch_npu"), "utils": utils, "utils.get_format": layout})
    return getattr(importlib.import_module(module), name)


def gate(**sizes: Any) -> Case:
    inputs = cases.gate_inputs(**sizes)
    return Case(_kernel("glm_gate", "select_experts_mm_kernel"), tuple(inputs.values()), (2,))


def select_experts(**sizes: Any) -> Case:
    inputs = cases.select_experts_inputs(**sizes)
    names = ("router_logits", "e_score_correction_bias", "topk_weights", "topk_ids")
    options = tuple(inputs[name] for name in ("renormalize", "topk_group", "num_expert_group"))
    tensors = tuple(inputs[name] for name in names)
    return Case(_kernel("glm_select_experts", "select_experts_kernel"), tensors, (2, 3), options)


def paged_attention(**sizes: Any) -> Case:
    inputs = cases.paged_attention_inputs(**sizes)
    del inputs["softmax_scale"]
    # Its loop is unrolled over 512 tokens and reads that many table entries.
    inputs["block_tables"] = cases.padded(inputs["block_tables"], 4)
    return Case(_kernel("glm_attention", "ifa_func_kernel"), tuple(inputs.values()), (5,))


def attention_pre(**sizes: Any) -> Case:
    inputs = cases.attention_pre_inputs(**sizes)
    del inputs["eps"]
    kernel = _kernel("glm_attention_pre_quant", "quant_attention_pre_kernel")
    return Case(kernel, tuple(inputs.values()), (15, 16, 17, 18))


def shared_expert(**sizes: Any) -> Case:
    inputs = cases.shared_expert_inputs(**sizes)
    return Case(_kernel("glm_ffn_shared_expert_quant", "share_expert_moe_main"), tuple(inputs.values()), (5,))
