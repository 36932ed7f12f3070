"""The shared expert's SwiGLU MLP with dynamic int8 activations and int8 weights, for Ascend systems.

Written for pypto 0.2.0. Not run on hardware by us: checked with pypto's interpreter, timed in its cost model.
Interface: ffn_shared_expert_quant of the PyPTO project's glm_v4_5 models.
"""

import functools
from typing import Any

import torch

from glm_pto_kernels.pypto import chip
from glm_pto_kernels.pypto.chip import CubeTile, divisor
from glm_pto_kernels.pypto.launch import Arguments, Launch

BLOCK = 8  # rows; an iteration takes 4, 2 or 1 blocks
UNROLL = (4, 2, 1)
FEW = 32  # tokens; so few are cut into iterations of 16 rows, which overlap while the products are narrow
UNROLL_FEW = (2, 1)
QUANTISE_LIVE = 4  # arrays of [rows, hidden] that the quantisation keeps in UB
MIDDLE_LIVE = 4  # arrays of [rows, 2 * intermediate] that the activation keeps in UB
SCALE_LIVE = 2  # arrays of [rows, hidden] that the row scale keeps in UB
OUT_COLUMNS = 512  # of one vector task of the result
WIDE = 1024  # intermediate sizes above it get more and narrower tiles
LEAST = 1e-30  # magnitude that a row of zeros is given, so that it stays zero


def refusal(*, hidden: int, intermediate: int, dtype: torch.dtype = torch.bfloat16) -> str | None:
    """Why the kernel cannot do an MLP of these sizes, or None."""
    if dtype != torch.bfloat16:
        return f"hidden states must be torch.bfloat16, got {dtype}"
    if hidden < 1024 or hidden % 512:
        return f"hidden size must be a multiple of 512 from 1024 on, got {hidden}"
    if intermediate < 32 or intermediate % 8:
        return f"intermediate size must be a multiple of 8 from 32 on, got {intermediate}"
    for blocks in UNROLL:
        rows = blocks * BLOCK
        for tile in (up_tile(rows, hidden, intermediate), down_tile(rows, hidden, intermediate)):
            reason = tile.refusal()
            if reason is not None:
                return reason
    return chip.vector_refusal(1, hidden, 4) or chip.vector_refusal(1, 2 * intermediate, MIDDLE_LIVE)


def up_tile(rows: int, hidden: int, intermediate: int) -> CubeTile:
    """Hidden to twice the intermediate size: 12 tasks, or 24 where they would be wide.

    Starting a task costs the scheduler about 0.2 us, one after the other, so that fewer tasks than cores win.
    """
    tasks = 24 if intermediate > WIDE else 12
    # With few rows short steps through L0 let the first product begin earlier.
    l0 = chip.L0B // 8 if rows == BLOCK else chip.L0B // 2
    return _tile(rows, hidden, 2 * intermediate, max(32, 2 * intermediate // tasks), l0)


def down_tile(rows: int, hidden: int, intermediate: int) -> CubeTile:
    """Intermediate size to hidden: about ten tasks, in short steps through L0."""
    return _tile(rows, intermediate, hidden, 256 if intermediate > WIDE else 512, chip.L0B // 4)


def _tile(rows: int, k: int, n: int, width: int, l0: int) -> CubeTile:
    # Tiles are whole blocks of int8; a product that is not (GLM-4.5-Air cut in 8 or 16) ends in a tail.
    m, k, n = max(rows, 32), chip.round_up(k, chip.BLOCK), chip.round_up(n, chip.BLOCK)
    columns = divisor(n, min(width, chip.L0C // (chip.ACCUMULATOR * m)), 32)
    k_l1 = divisor(k, chip.L1 // (m + columns), 32)
    # At most half of L0, as the other half is being filled meanwhile.
    k_l0 = divisor(k_l1, l0 // max(m, columns), 32)
    return CubeTile(m, k_l0, k_l1, k_l1, columns, item=1)


def middle_rows(rows: int, intermediate: int) -> int:
    """Rows of one vector task of the activation: the whole block while it fits."""
    limit = chip.UB // (MIDDLE_LIVE * 2 * intermediate * chip.ACCUMULATOR)
    return divisor(rows, max(1, limit))


def quantise_rows(rows: int, hidden: int) -> int:
    """Rows of one vector task of the quantisation: two while they fit."""
    return divisor(rows, max(1, min(2, chip.UB // (QUANTISE_LIVE * hidden * chip.ACCUMULATOR))))


def scale_rows(rows: int, hidden: int) -> int:
    """Rows of one vector task of the scales: four while they fit."""
    return divisor(rows, max(1, min(4, chip.UB // (SCALE_LIVE * hidden * chip.ACCUMULATOR))))


@functools.cache
def build(hidden: int, intermediate: int, unroll: tuple[int, ...] = UNROLL) -> Any:
    """The compiled-on-first-call kernel; any number of tokens, ``unroll`` blocks an iteration."""
    import pypto

    bf16, fp32, int32, int8 = pypto.DT_BF16, pypto.DT_FP32, pypto.DT_INT32, pypto.DT_INT8

    def row_scale(magnitude: Any) -> Any:
        return pypto.mul(pypto.maximum(magnitude, LEAST), 1.0 / 127.0)

    def magnitude_of_wide(x: Any) -> Any:
        """The largest magnitude of each row without a second array of x's size."""
        return pypto.maximum(pypto.amax(x, -1, True), pypto.mul(pypto.amin(x, -1, True), -1.0))

    def magnitude(x: Any) -> Any:
        return pypto.amax(pypto.abs(x), -1, True)

    def to_int8(x: Any, scale: Any) -> Any:
        q = pypto.cast(pypto.div(x, scale), int32, pypto.CastMode.CAST_RINT)
        # There is no cast from int32 to int8; fp16 holds these numbers exactly.
        q = pypto.cast(q, pypto.DT_FP16, pypto.CastMode.CAST_ROUND)
        return pypto.cast(q, int8, pypto.CastMode.CAST_TRUNC)

    def channels(scale: Any) -> Any:
        return pypto.cast(pypto.unsqueeze(scale, 0), fp32)

    def in_scale_tasks(rows: int, of_rows: Any, of_channels: Any) -> Any:
        """With several blocks the row scales leave their tasks as products with the channel scales."""
        if rows == BLOCK:
            return of_rows
        pypto.set_vec_tile_shapes(scale_rows(rows, hidden), 2 * intermediate)
        return pypto.mul(channels(of_channels), of_rows)

    def in_activation(rows: int, valid: Any, scale: Any, of_channels: Any) -> Any:
        if rows != BLOCK:
            return scale
        shape, live = [rows, 2 * intermediate], [valid, 2 * intermediate]
        return pypto.mul(pypto.expand_clone(channels(of_channels), shape, valid_shape=live), scale)

    @pypto.frontend.jit(
        runtime_options={"run_mode": pypto.RunMode.NPU, "stitch_function_max_num": 128},
    )
    def ffn_shared_expert_quant(
        hidden_states: pypto.Tensor([pypto.DYNAMIC, ...], bf16),
        w13: pypto.Tensor([...], int8),
        w13_scale: pypto.Tensor([...], bf16),
        w2: pypto.Tensor([...], int8),
        w2_scale: pypto.Tensor([...], bf16),
        ffn_res: pypto.Tensor([pypto.DYNAMIC, ...], bf16),
    ):
        # [rows, 1] operands are kept compact instead of being expanded first.
        pypto.experimental.set_operation_options(combine_axis=True)
        tokens = hidden_states.shape[0]
        for i, blocks in pypto.loop_unroll(
            (tokens + BLOCK - 1) // BLOCK, name="ROWS", idx_name="i", unroll_list=list(unroll)
        ):
            rows = blocks * BLOCK
            first = i * BLOCK
            valid = (tokens - first).min(rows)

            # 1. Quantisation, two rows a vector task, and the first product.
            pypto.set_vec_tile_shapes(quantise_rows(rows, hidden), hidden)
            x = pypto.cast(
                pypto.view(hidden_states, [rows, hidden], [first, 0], valid_shape=[valid, hidden]), fp32
            )
            q = to_int8(x, row_scale(magnitude_of_wide(x)))
            # The scales once more, in tasks of their own: the scheduler resolves the successors of a task one
            # by one, so that the first product starts sooner when the tasks above have no other.
            group, width = scale_rows(rows, hidden), 1 if rows == BLOCK else 2 * intermediate
            scale = pypto.tensor([rows, width], fp32, "scale")
            for g in range(rows // group):
                pypto.set_vec_tile_shapes(group, hidden)
                pypto.set_pass_options(sg_set_scope=1 + g)
                at = first + g * group
                live = (tokens - at).max(0).min(group)
                again = pypto.view(hidden_states, [group, hidden], [at, 0], valid_shape=[live, hidden])
                of_rows = row_scale(magnitude_of_wide(pypto.cast(again, fp32)))
                scale[g * group : (g + 1) * group, 0:] = in_scale_tasks(rows, of_rows, w13_scale)
                pypto.set_pass_options(sg_set_scope=-1)
            scale = pypto.view(scale, [rows, width], [0, 0], valid_shape=[valid, width])
            pypto.set_cube_tile_shapes(*up_tile(rows, hidden, intermediate).shapes())
            up = pypto.matmul(q, w13, int32)

            # 2. The whole block in one vector task while it fits.
            part = middle_rows(rows, intermediate)
            pypto.set_vec_tile_shapes(part, 2 * intermediate)
            act = pypto.mul(pypto.cast(up, fp32), in_activation(rows, valid, scale, w13_scale))
            pypto.set_vec_tile_shapes(part, chip.round_up(intermediate, chip.BLOCK))
            gate = pypto.view(act, [rows, intermediate], [0, 0], valid_shape=[valid, intermediate])
            lin = pypto.view(act, [rows, intermediate], [0, intermediate], valid_shape=[valid, intermediate])
            sigmoid = pypto.add(pypto.exp(pypto.mul(gate, -1.0)), 1.0)
            gated = pypto.mul(pypto.div(gate, sigmoid), lin)
            q2_scale = row_scale(magnitude(gated))
            q2 = to_int8(gated, q2_scale)

            # 3. Back to the hidden size.
            pypto.set_cube_tile_shapes(*down_tile(rows, hidden, intermediate).shapes())
            down = pypto.matmul(q2, w2, int32)
            pypto.set_vec_tile_shapes(rows, OUT_COLUMNS)
            result = pypto.mul(pypto.mul(pypto.cast(down, fp32), q2_scale), channels(w2_scale))
            pypto.assemble(pypto.cast(result, bf16), [first, 0], ffn_res)

    return ffn_shared_expert_quant


def launch(
    hidden_states: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    ffn_res: torch.Tensor,
) -> Launch:
    """The checked call; see :func:`ffn_shared_expert_quant`."""
    check = Arguments("ffn_shared_expert_quant", hidden_states.device)
    tokens, hidden = check.rank("hidden_states", hidden_states, "tokens, hidden")
    intermediate, _ = check.rank("w2", w2, "intermediate, hidden")
    check.refuse(refusal(hidden=hidden, intermediate=intermediate))
    tensors = (
        check.tensor("hidden_states", hidden_states, (tokens, hidden), torch.bfloat16),
        check.tensor("w13", w13, (hidden, 2 * intermediate), torch.int8),
        check.tensor("w13_scale", w13_scale, (2 * intermediate,), torch.bfloat16),
        check.tensor("w2", w2, (intermediate, hidden), torch.int8),
        check.tensor("w2_scale", w2_scale, (hidden,), torch.bfloat16),
        check.tensor("ffn_res", ffn_res, (tokens, hidden), torch.bfloat16),
    )
    unroll = UNROLL_FEW if tokens <= FEW and intermediate <= WIDE else UNROLL
    kernel = functools.partial(build, hidden, intermediate, unroll)
    return Launch("ffn_shared_expert_quant", kernel, tensors, written=(5,))


def ffn_shared_expert_quant(
    hidden_states: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    ffn_res: torch.Tensor,
) -> None:
    """``down(silu(gate) * up)`` of every token; both activations are quantised by token.

    Args:
        hidden_states: bf16 ``[tokens, hidden]``, any number of tokens.
        w13: int8 ``[hidden, 2 * intermediate]``, gate then up, ND or NZ. w13_scale: bf16, one a column.
        w2: int8 ``[intermediate, hidden]``, ND or NZ. w2_scale: bf16, one a column.
        ffn_res: bf16 ``[tokens, hidden]``, written; this rank's share, not summed over the ranks.

    Raises:
        ValueError, TypeError: a shape, dtype, layout or device that the kernel does not take.
        RuntimeError: the tensors are not on an NPU.
    """
    launch(hidden_states, w13, w13_scale, w2, w2_scale, ffn_res).run()
