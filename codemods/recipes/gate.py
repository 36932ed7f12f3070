"""Router gate of GLM-4.5's mixture of experts.

``Glm4MoE.forward`` multiplies the hidden states with the fp32 gate weight. Upstream casts the activations
to fp32 first and runs a general matrix product; the fused operator reads them as they are and casts tiles.

Source: https://github.com/vllm-project/vllm/blob/v0.12.0/vllm/model_executor/models/glm4_moe.py
Drop when: vllm-ascend registers a gate layer of its own for `Glm4MoE`.
"""

from __future__ import annotations

from glm_pto.codemods.findings import Reached
from glm_pto.codemods.recipe import Form, Place, Recipe
from glm_pto.codemods.trees import Tree

FILE = "model_executor/models/glm4_moe.py"
CONDITION = "K.USE_PTO_GATE and K.gate_supported(self.gate, hidden_states)"
BRANCH = "router_logits = K.gate(self.gate, hidden_states)"


def reached(tree: Tree) -> Reached:
    """Every MoE layer of every step runs the gate; GLM hands no internal router to the experts."""
    ascend = tree.version("vllm_ascend")
    if ascend is not None and ascend < (0, 11):
        return Reached(True, "with unquantised weights only: GLM-4.5 W8A8 loads from vllm-ascend 0.11.0 on")
    return Reached(True, "in eager steps and inside captured graphs; not with the xlite graph mode")


RECIPE = Recipe(
    site="gate",
    function="gate",
    switch="USE_PTO_GATE",
    title="Router gate: hidden states times gate weight, in fp32",
    why=(
        "Up to vLLM 0.30 the native path is a general matrix product in fp32; later ones have a layer for it "
        "that is tuned for other devices. The operator takes the activations in fp32, as the native path "
        "does, in tiles for a decode step's few tokens, where bringing in the weight takes the time."
    ),
    links=(
        "https://github.com/vllm-project/vllm/blob/v0.12.0/vllm/model_executor/models/glm4_moe.py",
        "https://gitcode.com/cann/pypto/tree/master/models/glm_v4_5",
    ),
    drop_when="vllm-ascend brings a fused gate layer of its own for GLM-4.5",
    places=(
        Place(
            name="moe",
            package="vllm",
            reached=reached,
            landmarks=("self.gate = ", "Glm4MoeMLP("),
            forms=(
                Form(
                    name="cast-to-fp32",
                    file=FILE,
                    scope="Glm4MoE.forward",
                    site="router_logits = self.gate(hidden_states.to(dtype=torch.float32))",
                    condition=CONDITION,
                    branch=BRANCH,
                    releases="vllm 0.10.1-0.30.0",
                ),
                Form(
                    name="layer-returns-pair",
                    file=FILE,
                    scope="Glm4MoE.forward",
                    site="router_logits, _ = self.gate(hidden_states)",
                    condition=CONDITION,
                    branch=BRANCH,
                    releases="vllm 0.10.0, 0.31.0-0.33.0",
                ),
            ),
        ),
    ),
)
