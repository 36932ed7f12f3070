"""Decode attention over the paged key and value cache, in vllm-ascend's attention backend.

Up to 0.12 the backend has a method for pure decode batches with the native call in it. From 0.13 on
``forward_impl`` chooses between two native operators; a guard before that choice serves both. The new keys
and values are in the cache before the site in every release.

Source: https://github.com/vllm-project/vllm-ascend/blob/v0.13.0/vllm_ascend/attention/attention_v1.py
Drop when: the native decode attention is as fast for 12 query heads, 1 key-value head and blocks of 128.
"""

from __future__ import annotations

from glm_pto.codemods.findings import Reached
from glm_pto.codemods.recipe import Form, Place, Recipe
from glm_pto.codemods.trees import Tree

FILE = "attention/attention_v1.py"
DECODE_ONLY = "AscendAttentionBackendImpl._forward_decode_only"

CALL = """\
torch_npu._npu_paged_attention(
    query=query,
    key_cache=self.key_cache,
    value_cache=self.value_cache,
    num_kv_heads=self.num_kv_heads,
    num_heads=self.num_heads,
    scale_value=self.scale,
    block_table=attn_metadata.block_tables,
    context_lens=attn_metadata.seq_lens,
    out=output,
)
"""

# The order of the tests and the arguments of both calls differ between releases; which two methods, does not.
CHOICE = """\
if attn_metadata.attn_state == AscendAttentionState.DecodeOnly and ... and using_paged_attention(...) and ...:
    output = self.forward_paged_attention(query, attn_metadata, output)
else:
    output = self.forward_fused_infer_attention(query, key, value, attn_metadata, output, ...)
"""

SUPPORTED = "K.paged_attention_supported(self, query, attn_metadata)"
IS_DECODE = "attn_metadata.attn_state == AscendAttentionState.DecodeOnly"
BRANCH = (
    "output = K.paged_attention(query, self.key_cache, self.value_cache, attn_metadata.block_tables, "
    "attn_metadata.seq_lens, output, scale=self.scale, attn_metadata=attn_metadata)"
)


def reached(tree: Tree) -> Reached:
    """Python code of the backend runs between captured graphs, not inside a replayed full one."""
    ascend = tree.version("vllm_ascend")
    off = "speculative decoding (MTP), context parallelism or the xlite graph mode"
    if ascend is None:
        return Reached(
            None, "the version of vllm-ascend is unknown; enforce_eager=True reaches it in every one"
        )
    if ascend < (0, 11):
        return Reached(True, "with unquantised weights only: GLM-4.5 W8A8 loads from vllm-ascend 0.11.0 on")
    if ascend < (0, 21):
        return Reached(True, f"between piecewise graphs and in eager mode; not with FULL_DECODE_ONLY, {off}")
    if ascend < (0, 30):
        return Reached(
            False,
            "with enforce_eager=True or cudagraph_mode=PIECEWISE: the default replays a full graph for "
            f"decode steps from 0.21.0rc1 on; not with {off}",
        )
    return Reached(
        False,
        "with enforce_eager=True or cudagraph_mode=PIECEWISE; by default this release makes key and value "
        "views of one buffer, whole blocks apart, which the pypto backend takes and the upstream backend "
        f"leaves to the original code; not with {off}",
    )


RECIPE = Recipe(
    site="paged_attention",
    function="paged_attention",
    switch="USE_PTO_FA",
    title="Decode attention over the paged cache",
    why=(
        "A GLM-4.5 decode step has 12 query heads for each key-value head, one of these a rank on tensor "
        "parallel size 8. The fused kernel attends for all of them at once over each block of the cache; "
        "shapes that it cannot take stay native."
    ),
    links=(
        "https://github.com/vllm-project/vllm-ascend/blob/v0.13.0/vllm_ascend/attention/attention_v1.py",
        "https://github.com/vllm-project/vllm-ascend/issues/8370",
        "https://gitcode.com/cann/pypto/tree/master/models/glm_v4_5",
    ),
    drop_when="the native decode attention is as fast for GLM-4.5's head counts",
    places=(
        Place(
            name="backend",
            package="vllm_ascend",
            reached=reached,
            landmarks=("torch_npu._npu_paged_attention(", "context_lens=attn_metadata.seq_lens"),
            forms=(
                Form(
                    name="decode-method",
                    file=FILE,
                    scope=DECODE_ONLY,
                    site=CALL,
                    condition=f"K.USE_PTO_FA and {SUPPORTED}",
                    branch=BRANCH,
                    releases="vllm-ascend 0.10.1rc1, 0.10.2rc1",
                    within=("self.sliding_window is not None", "else"),
                ),
                # The other arm records the call for a captured graph and has to stay as it is.
                Form(
                    name="decode-method-eager-arm",
                    file=FILE,
                    scope=DECODE_ONLY,
                    site=CALL,
                    condition=f"K.USE_PTO_FA and {SUPPORTED}",
                    branch=BRANCH,
                    releases="vllm-ascend 0.11.0rc0-0.11.0",
                    within=("forward_context.capturing", "else"),
                ),
                Form(
                    name="decode-method-window-arm",
                    file=FILE,
                    scope=DECODE_ONLY,
                    site=CALL,
                    condition=f"K.USE_PTO_FA and {SUPPORTED}",
                    branch=BRANCH,
                    releases="vllm-ascend 0.12.0rc1",
                    within=("self.sliding_window is not None and ...", "else"),
                ),
                Form(
                    name="choice-of-operator",
                    file=FILE,
                    scope="AscendAttentionBackendImpl.forward_impl",
                    site=CHOICE,
                    condition=f"K.USE_PTO_FA and {IS_DECODE} and {SUPPORTED}",
                    branch=BRANCH,
                    releases="vllm-ascend 0.13.0rc1-0.30.0rc2",
                ),
            ),
        ),
    ),
)
