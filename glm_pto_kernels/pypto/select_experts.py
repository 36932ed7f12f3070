"""Choice of the experts of each token (sigmoid scores, biased top-k, optional groups), for Ascend systems.

Written for pypto 0.2.0. Not run on hardware by us: checked with pypto's interpreter, timed in its cost model.
Interface: select_experts of the PyPTO project's glm_v4_5 models.
"""

import functools
from typing import Any

import torch

from glm_pto_kernels.pypto import chip
from glm_pto_kernels.pypto.launch import Arguments, Launch

ITEM = 4  # bytes of an fp32 element
BLOCK = 8  # rows
UNROLL = (4, 2, 1)  # blocks of one iteration
TINY = torch.finfo(torch.float32).tiny  # the least sum: scores that are all 0 have weights of 0
LIVE = 6  # arrays of [rows, experts] that the longest chain keeps in UB


def refusal(
    *,
    experts: int,
    top_k: int,
    topk_group: int = 1,
    num_expert_group: int = 1,
    logits_dtype: torch.dtype = torch.float32,
    bias_dtype: torch.dtype = torch.bfloat16,
) -> str | None:
    """Why the kernel cannot choose ``top_k`` of ``experts``, or None."""
    if logits_dtype != torch.float32:
        return f"router logits must be torch.float32, got {logits_dtype}"
    if bias_dtype not in (torch.bfloat16, torch.float32):
        return f"the correction bias must be torch.bfloat16 or torch.float32, got {bias_dtype}"
    if experts < 8 or experts % 8:
        return f"the number of experts must be a multiple of 8, got {experts}"
    if num_expert_group < 1 or experts % num_expert_group:
        return f"{experts} experts do not make {num_expert_group} groups of one size"
    if not 1 <= topk_group <= num_expert_group:
        return f"topk_group must be 1 to {num_expert_group}, got {topk_group}"
    if not 1 <= top_k <= experts // num_expert_group * topk_group:
        return f"top_k must be 1 to {experts // num_expert_group * topk_group}, got {top_k}"
    return chip.vector_refusal(BLOCK, experts, LIVE)


def unroll(experts: int) -> list[int]:
    """Blocks per iteration, largest first: as many rows as UB holds, for one vector task each.

    A vector tile of fewer rows than the iteration has would break the chain into tasks that hand their data
    over through global memory.
    """
    return [blocks for blocks in UNROLL if chip.vector_refusal(blocks * BLOCK, experts, LIVE) is None]


@functools.cache
def build(
    experts: int,
    top_k: int,
    renormalize: bool,
    topk_group: int,
    num_expert_group: int,
    scaling: float,
    masked: float,
    bias_dtype: torch.dtype,
) -> Any:
    """The compiled-on-first-call kernel; any number of tokens. ``bias_dtype`` only keeps the two apart."""
    import pypto

    fp32 = pypto.DT_FP32
    grouped = num_expert_group > topk_group
    size = experts // num_expert_group

    def keep_best_groups(score: Any, rows: int, valid: Any) -> Any:
        """Put ``masked`` in place of every score outside the groups of largest maximum."""
        tile_groups, tile_size = chip.round_up(num_expert_group, 8), chip.round_up(size, 8)
        pypto.set_vec_tile_shapes(rows, num_expert_group, tile_size)
        parts = pypto.reshape(
            score, [rows, num_expert_group, size], valid_shape=[valid, num_expert_group, size]
        )
        best = pypto.amax(parts, -1, False)
        pypto.set_vec_tile_shapes(rows, tile_groups)
        _, chosen = pypto.topk(best, topk_group, -1, True)
        none = pypto.full([rows, num_expert_group], 0.0, fp32, valid_shape=[valid, num_expert_group])
        flags = pypto.scatter_(none, 1, chosen, 1.0)
        pypto.set_vec_tile_shapes(rows, num_expert_group, tile_size)
        flags = pypto.unsqueeze(flags, -1)
        kept = pypto.mul(parts, flags)
        if masked != 0.0:
            kept = pypto.add(kept, pypto.mul(pypto.sub(flags, 1.0), -masked))
        pypto.set_vec_tile_shapes(rows, experts)
        return pypto.reshape(kept, [rows, experts], valid_shape=[valid, experts])

    @pypto.frontend.jit(
        runtime_options={"run_mode": pypto.RunMode.NPU, "stitch_function_max_num": 128},
    )
    def select_experts(
        router_logits: pypto.Tensor([pypto.DYNAMIC, ...], fp32),
        bias: pypto.Tensor([...]),
        topk_weights: pypto.Tensor([pypto.DYNAMIC, ...], fp32),
        topk_ids: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    ):
        tokens = router_logits.shape[0]
        pypto.set_vec_tile_shapes(experts)
        bias_row = pypto.reshape(bias, [1, experts], inplace=True)
        for i, blocks in pypto.loop_unroll(
            (tokens + BLOCK - 1) // BLOCK, name="ROWS", idx_name="i", unroll_list=unroll(experts)
        ):
            rows = blocks * BLOCK
            first = i * BLOCK
            valid = (tokens - first).min(rows)
            pypto.set_vec_tile_shapes(rows, experts)
            x = pypto.view(router_logits, [rows, experts], [first, 0], valid_shape=[valid, experts])
            # Written out, as pypto.sigmoid divides by a tensor that ignores the valid rows.
            one = pypto.full([rows, experts], 1.0, fp32, valid_shape=[valid, experts])
            prob = pypto.div(one, pypto.add(pypto.exp(pypto.mul(x, -1.0)), 1.0))
            score = pypto.add(prob, pypto.cast(bias_row, fp32))
            if grouped:
                score = keep_best_groups(score, rows, valid)
                pypto.set_vec_tile_shapes(rows, experts)
            _, best = pypto.topk(score, top_k, -1, True)
            weight = pypto.gather(prob, 1, best)
            pypto.set_vec_tile_shapes(rows, chip.round_up(top_k, 8))
            if renormalize:
                weight = pypto.div(weight, pypto.maximum(pypto.sum(weight, -1, True), TINY))
            if scaling != 1.0:
                weight = pypto.mul(weight, scaling)
            pypto.assemble(weight, [first, 0], topk_weights)
            pypto.assemble(best, [first, 0], topk_ids)

    return select_experts


def launch(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int,
    num_expert_group: int,
    e_score_correction_bias: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    routed_scaling_factor: float = 1.0,
    masked_score: float = 0.0,
) -> Launch:
    """The checked call; see :func:`select_experts`."""
    check = Arguments("select_experts", router_logits.device)
    tokens, experts = check.rank("router_logits", router_logits, "tokens, experts")
    check.refuse(
        refusal(experts=experts, top_k=top_k, topk_group=topk_group, num_expert_group=num_expert_group)
    )
    tensors = (
        check.tensor("router_logits", router_logits, (tokens, experts), torch.float32),
        check.tensor(
            "e_score_correction_bias", e_score_correction_bias, (experts,), torch.bfloat16, torch.float32
        ),
        check.tensor("topk_weights", topk_weights, (tokens, top_k), torch.float32),
        check.tensor("topk_ids", topk_ids, (tokens, top_k), torch.int32),
    )
    kernel = functools.partial(
        build,
        experts,
        top_k,
        bool(renormalize),
        topk_group,
        num_expert_group,
        float(routed_scaling_factor),
        float(masked_score),
        e_score_correction_bias.dtype,
    )
    return Launch("select_experts", kernel, tensors, written=(2, 3))


def select_experts(
    router_logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    topk_group: int,
    num_expert_group: int,
    e_score_correction_bias: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    routed_scaling_factor: float = 1.0,
    masked_score: float = 0.0,
) -> None:
    """The ``top_k`` experts of each token and their weights.

    A score is ``sigmoid(logit) + bias``. With more groups than ``topk_group`` the groups of largest maximum
    are kept and the scores of the others become ``masked_score``. The weights are the sigmoids without the
    bias, divided by their sum when ``renormalize`` (0 where all are 0), times ``routed_scaling_factor``. Ids
    come in descending order of score; which of several experts with *equal* scores is taken, and in which
    order, is not specified.

    Args:
        router_logits: fp32 ``[tokens, experts]``, any number of tokens.
        e_score_correction_bias: bf16 or fp32 ``[experts]``.
        topk_weights: fp32 ``[tokens, top_k]``, written.
        topk_ids: int32 ``[tokens, top_k]``, written.

    Raises:
        ValueError, TypeError: a shape, dtype, layout or device that the kernel does not take.
        RuntimeError: the tensors are not on an NPU.
    """
    launch(
        router_logits,
        top_k,
        renormalize,
        topk_group,
        num_expert_group,
        e_score_correction_bias,
        topk_weights,
        topk_ids,
        routed_scaling_factor=routed_scaling_factor,
        masked_score=masked_score,
    ).run()
