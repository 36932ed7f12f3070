"""Do the vllm and the vllm-ascend of a tree belong together? It explains, and never decides where to edit."""

from __future__ import annotations

from glm_pto.codemods.trees import Tree


def mismatch(tree: Tree) -> str | None:
    """What to tell a user whose two packages are of different release lines; None where they fit.

    Upstream releases vllm-ascend 0.N.x for vllm 0.N.x. Recipes match structure, so a mixed tree is edited all
    the same; facts about what a step runs through are then those of the vllm-ascend at hand.
    """
    vllm, ascend = tree.version("vllm"), tree.version("vllm_ascend")
    if vllm is None or ascend is None or vllm[:2] == ascend[:2]:
        return None
    names = {p.name: p.version for p in (*tree.packages, *tree.beside)}
    line = ".".join(map(str, ascend[:2]))
    return (
        f"vllm {names['vllm']} and vllm-ascend {names['vllm_ascend']} do not belong together (upstream pairs "
        f"the latter with vllm {line}): sites were matched by the structure of the code, and `reached` is "
        f"what holds for vllm-ascend {line}; expect upstream's own errors before ours"
    )
