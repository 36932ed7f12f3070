"""Router gate, ``logits = hidden_states @ gate_weight.T`` in fp32, for Ascend systems.

Written for pypto 0.2.0. Not run on hardware by us: checked with pypto's interpreter, timed in its cost model.
Interface: the gate of the PyPTO project's glm_v4_5 models.
"""

import functools
from typing import Any

import torch

from glm_pto_kernels.pypto import chip
from glm_pto_kernels.pypto.chip import CubeTile, divisor
from glm_pto_kernels.pypto.launch import Arguments, Launch

ITEM = 4  # bytes of an fp32 element
SMALL = 16  # rows of an iteration for the last 32 tokens or fewer
LARGE = 64  # rows of an iteration for all before them, or twice as many
UNROLL = (2, 1)


def refusal(*, hidden: int, experts: int, dtype: torch.dtype = torch.float32) -> str | None:
    """Why the kernel cannot compute a gate of ``[experts, hidden]`` in ``dtype``, or None."""
    if dtype != torch.float32:
        return f"the gate runs in torch.float32, got {dtype}"
    if hidden < 128 or hidden % 128:
        return f"hidden size must be a multiple of 128, got {hidden}"
    if experts < 16 or experts % 16:
        return f"the number of experts must be a multiple of 16, got {experts}"
    for rows in (SMALL, *(LARGE * count for count in UNROLL)):
        reason = tiles(rows, hidden, experts).refusal()
        if reason is not None:
            return reason
    return None


def tiles(rows: int, hidden: int, experts: int) -> CubeTile:
    """The tile for one iteration of ``rows`` tokens.

    With few rows the time is that of bringing in the weight, so the tile is narrow (one task per 16 experts)
    and the weight comes in as few transfers as L1 allows. With many rows a larger tile fetches it less often.
    """
    m = rows if rows == SMALL else rows // 2
    n = 16 if rows <= 64 else divisor(experts, 32, 16)
    k_l0 = divisor(
        hidden, chip.L0A // 2 // (max(m, n) * ITEM), 8
    )  # half of L0: the other half is being filled
    k_left = divisor(hidden, chip.L1 // ((m + n) * ITEM), k_l0)
    k_right = 2 * k_left
    if hidden % k_right or (m * k_left + n * k_right) * ITEM > chip.L1:
        k_right = k_left
    return CubeTile(m, k_l0, k_left, k_right, n, ITEM)


@functools.cache
def build(hidden: int, experts: int) -> Any:
    """The compiled-on-first-call kernel for a ``[experts, hidden]`` weight; any number of tokens."""
    import pypto

    fp32 = pypto.DT_FP32

    def block(x: Any, weight: Any, out: Any, first: Any, rows: int) -> None:
        """The logits of ``rows`` tokens from ``first`` on, at most two cube tasks an iteration.

        Three or more in one iteration would wait for a common predecessor and be started in turn.
        """
        tile = tiles(rows, hidden, experts)
        n = divisor(experts, 2 * tile.n if rows == SMALL else tile.n, tile.n)
        valid = (x.shape[0] - first).min(rows)
        for e in pypto.loop(experts // n, name=f"EXPERTS_{rows}", idx_name=f"e_{rows}"):
            pypto.set_cube_tile_shapes(*tile.shapes())
            part = pypto.view(x, [rows, hidden], [first, 0], valid_shape=[valid, hidden])
            w = pypto.view(weight, [n, hidden], [e * n, 0])
            out[first:, e * n :] = pypto.matmul(part, w, fp32, b_trans=True)

    @pypto.frontend.jit(
        runtime_options={"run_mode": pypto.RunMode.NPU, "stitch_function_max_num": 128},
    )
    def gate(
        hidden_states: pypto.Tensor([pypto.DYNAMIC, ...], fp32),
        gate_weight: pypto.Tensor([], fp32),
        router_logits: pypto.Tensor([pypto.DYNAMIC, ...], fp32),
    ):
        tokens = hidden_states.shape[0]
        # 33 tokens are one large iteration that is half empty: that is faster than three small ones.
        large = (tokens + LARGE // 2 - 1) // LARGE
        for i, count in pypto.loop_unroll(large, name="LARGE", idx_name="i", unroll_list=list(UNROLL)):
            block(hidden_states, gate_weight, router_logits, i * LARGE, count * LARGE)
        small = ((tokens - large * LARGE).max(0) + SMALL - 1) // SMALL
        for j in pypto.loop(small, name="SMALL", idx_name="j"):
            block(hidden_states, gate_weight, router_logits, large * LARGE + j * SMALL, SMALL)

    return gate


def launch(hidden_states: torch.Tensor, gate_weight: torch.Tensor, router_logits_out: torch.Tensor) -> Launch:
    """The checked call; see :func:`gate`."""
    check = Arguments("gate", hidden_states.device)
    tokens, hidden = check.rank("hidden_states", hidden_states, "tokens, hidden")
    experts, _ = check.rank("gate_weight", gate_weight, "experts, hidden")
    check.refuse(refusal(hidden=hidden, experts=experts))
    tensors = (
        check.tensor("hidden_states", hidden_states, (tokens, hidden), torch.float32),
        check.tensor("gate_weight", gate_weight, (experts, hidden), torch.float32),
        check.tensor("router_logits_out", router_logits_out, (tokens, experts), torch.float32),
    )
    return Launch("gate", functools.partial(build, hidden, experts), tensors, written=(2,))


def gate(hidden_states: torch.Tensor, gate_weight: torch.Tensor, router_logits_out: torch.Tensor) -> None:
    """Router logits of every token.

    Args:
        hidden_states: fp32 ``[tokens, hidden]``, any number of tokens.
        gate_weight: fp32 ``[experts, hidden]``.
        router_logits_out: fp32 ``[tokens, experts]``, written.

    Raises:
        ValueError, TypeError: a shape, dtype, layout or device that the kernel does not take.
        RuntimeError: the tensors are not on an NPU.
    """
    launch(hidden_states, gate_weight, router_logits_out).run()
