"""The extension import of wall-x's fused operators.

``wall_x/fusions/backend.py`` binds the compiled extension ``wallx_csrc`` at its top and calls its nine
functions; without a build of the extension wall-x cannot even be imported. The operator layer has a module
with the same
functions: Triton on NVIDIA GPUs, torch elsewhere.

Source: https://github.com/X-Square-Robot/wall-x/blob/main/wall_x/fusions/backend.py
Drop when: wall-x itself runs without its extension.
"""

from __future__ import annotations

from glm_pto.codemods.findings import Reached
from glm_pto.codemods.recipe import MODULE, Form, Place, Recipe
from glm_pto.codemods.trees import Tree


def reached(tree: Tree) -> Reached:
    """The line runs when the module is imported, which the models do at their own import."""
    return Reached(
        True, "when wall_x.fusions.backend is imported; its wrappers in ops.py still refuse the CPU"
    )


RECIPE = Recipe(
    site="wallx_backend",
    function="wallx_backend",
    switch="USE_PTO_WALLX",
    title="The extension wallx_csrc: grouped GEMM, permute, unpermute, rotary embedding, position ids",
    why=(
        "The extension must be compiled with CUDA and CUTLASS for the very torch that runs, and leaves much "
        "undefined. The layer's module needs no build, states its arguments, and has torch references."
    ),
    links=("https://github.com/X-Square-Robot/wall-x/blob/main/wall_x/fusions/backend.py",),
    drop_when="wall-x runs without its extension",
    places=(
        Place(
            name="import",
            package="wall_x",
            reached=reached,
            module="wallx_csrc",
            forms=(
                Form(
                    name="import-as-backend",
                    file="fusions/backend.py",
                    scope=MODULE,
                    site="import wallx_csrc as backend",
                    condition="K.USE_PTO_WALLX and K.wallx_backend_supported()",
                    branch="backend = K.wallx_backend()",
                    releases="wall-x, September 2025",
                ),
            ),
        ),
    ),
)
