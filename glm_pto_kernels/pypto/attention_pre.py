"""All of a decoder layer before attention, with static int8 weights, for Ascend systems.

Residual add, RMSNorm, int8 quantisation, int8 QKV projection, per-head RMSNorm, rotary embedding.
Written for pypto 0.2.0. Not run on hardware by us: checked with pypto's interpreter, timed in its cost model.
Interface: attention_pre_quant of the PyPTO project's glm_v4_5 models.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from glm_pto_kernels.pypto import chip
from glm_pto_kernels.pypto.chip import CubeTile, divisor
from glm_pto_kernels.pypto.launch import Arguments, Launch

FP32 = 4  # bytes
BLOCK = 8  # rows; an iteration takes 4, 2 or 1 blocks
UNROLL = (4, 2, 1)
GROUP = 2  # rows of one vector task of the norm: few tasks, each short
NORM_LIVE = 4  # arrays of [GROUP, hidden] that the norm keeps in UB
HEAD_LIVE = 9  # arrays of [rows, head] that a head's chain keeps in UB
PACK_LIVE = 3  # arrays that a task keeps in UB while it repeats a parameter for some heads
BIAS_LIVE = 5  # the same for the bias, which goes in two parts

# Rows of a head's block of parameters, all fp32: a task would need a load for each of them otherwise, and a
# load costs the same for one row as for ten. The bias is int32, more than fp32
# holds, so it comes in two rows.
HIGH, LOW, SCALE, WEIGHT, BIAS, ANGLES = 0, 1, 2, 3, 4, 8


@dataclass(frozen=True)
class Form:
    """Which of the optional arguments are there."""

    residual: bool = True
    norm_bias: bool = True
    head_norm: bool = True
    q_bias: bool = True
    k_bias: bool = True


def refusal(
    *,
    hidden: int,
    q_size: int,
    kv_size: int,
    head_dim: int,
    rotary_dim: int,
    dtype: torch.dtype = torch.bfloat16,
) -> str | None:
    """Why the kernel cannot do a layer of these sizes, or None."""
    if dtype != torch.bfloat16:
        return f"hidden states must be torch.bfloat16, got {dtype}"
    if head_dim not in (64, 128):
        return f"head size must be 64 or 128, got {head_dim}"
    if hidden < 512 or hidden % 512:
        return f"hidden size must be a multiple of 512, got {hidden}"
    if q_size < head_dim or q_size % head_dim or kv_size < head_dim or kv_size % head_dim:
        return f"q and kv sizes must be whole heads of {head_dim}, got {q_size} and {kv_size}"
    if not 32 <= rotary_dim <= head_dim or rotary_dim % 32:
        return f"rotary size must be a multiple of 32 up to {head_dim}, got {rotary_dim}"
    reason = tiles(max(UNROLL) * BLOCK, hidden, head_dim).refusal()
    return (
        reason
        or chip.vector_refusal(GROUP, hidden, NORM_LIVE)
        or chip.vector_refusal(max(UNROLL) * BLOCK, head_dim, HEAD_LIVE)
        or chip.vector_refusal(ANGLES + max(UNROLL) * BLOCK, head_dim, PACK_LIVE)
    )


def tiles(rows: int, hidden: int, head: int) -> CubeTile:
    """One cube tile is one head, so that each head's vector work waits for one cube task only.

    The rows are brought into L1 whole, the weight in as few transfers as the rest of L1 allows.
    """
    m = max(rows, 32)
    k_l0 = divisor(hidden, chip.L0B // 2 // head, 32)
    return CubeTile(m, k_l0, hidden, divisor(hidden, (chip.L1 - m * hidden) // head, k_l0), head, item=1)


def spans(first: int, count: int, row_bytes: int, live: int) -> list[tuple[int, int]]:
    """``count`` heads from ``first`` on as (start, length) of parts of which ``live`` arrays fit UB."""
    most = max(1, chip.UB // (row_bytes * live))
    return [(at, min(most, first + count - at)) for at in range(first, first + count, most)]


@functools.cache
def build(hidden: int, q_size: int, kv_size: int, head: int, half: int, eps: float, form: Form) -> Any:
    """The compiled-on-first-call kernel; any number of tokens."""
    import pypto

    bf16, fp32, int32, int8 = pypto.DT_BF16, pypto.DT_FP32, pypto.DT_INT32, pypto.DT_INT8
    dynamic = pypto.DYNAMIC
    q_heads, kv_heads = q_size // head, kv_size // head
    heads = q_heads + 2 * kv_heads

    def wide(x: Any) -> Any:
        return pypto.cast(x, fp32)

    def rms_norm(x: Any, width: int, weight: Any, bias: Any) -> Any:
        """fp32 ``[rows, width]`` to bf16; weight and bias are fp32 ``[1, width]``, bias may be None."""
        mean = pypto.sum(pypto.mul(pypto.mul(x, x), 1.0 / width), -1, keepdim=True)
        x = pypto.div(x, pypto.sqrt(pypto.add(mean, eps)))
        x = pypto.mul(x, weight)
        return pypto.cast(x if bias is None else pypto.add(x, bias), bf16)

    def quantise(x: Any, scale: Any, offset: Any) -> Any:
        """bf16 to int8: ``round(x * scale + offset)``, saturated; int32 reaches int8 by way of fp16."""
        x = pypto.add(pypto.mul(wide(x), wide(scale)), wide(offset))
        x = pypto.cast(pypto.cast(x, int32, pypto.CastMode.CAST_RINT), pypto.DT_FP16)
        return pypto.cast(pypto.clip(x, -128.0, 127.0), int8, satmode=pypto.SaturationMode.ON)

    def pack_dequantisation(packed: Any, quant_bias: Any, deq_scale: Any, scope: Iterator[int]) -> None:
        for at, count in spans(0, heads, head * FP32, BIAS_LIVE):
            pypto.set_vec_tile_shapes(count, 1, head)
            pypto.set_pass_options(sg_set_scope=next(scope))
            bias = pypto.view(quant_bias, [count, 1, head], [at, 0, 0])
            high = wide(bias)
            packed[at:, HIGH:, 0:] = high
            packed[at:, LOW:, 0:] = wide(pypto.sub(bias, pypto.cast(high, int32)))
            pypto.set_pass_options(sg_set_scope=next(scope))
            packed[at:, SCALE:, 0:] = pypto.mul(pypto.view(deq_scale, [count, 1, head], [at, 0, 0]), 1.0)

    def pack_norm(packed: Any, weight: Any, bias: Any, first: int, count: int, scope: Iterator[int]) -> None:
        for row, parameter in ((WEIGHT, weight), (BIAS, bias)):
            for at, n in spans(first, 0 if parameter is None else count, head * FP32, PACK_LIVE):
                pypto.set_pass_options(sg_set_scope=next(scope))
                pypto.set_vec_tile_shapes(1, head)
                one_head = pypto.reshape(wide(parameter), [1, 1, head])
                pypto.set_vec_tile_shapes(n, 1, head)
                packed[at:, row:, 0:] = pypto.mul(pypto.full([n, 1, head], 1.0, fp32), one_head)

    def pack_angles(packed: Any, angles: Any, row: Any, rows: int, valid: Any, scope: Iterator[int]) -> None:
        for column, angle in zip((0, half), angles, strict=True):
            for at, n in spans(0, q_heads + kv_heads, rows * half * FP32, PACK_LIVE):
                pypto.set_pass_options(sg_set_scope=next(scope))
                pypto.set_vec_tile_shapes(rows, half)
                x = wide(pypto.view(angle, [rows, half], [row, 0], valid_shape=[valid, half]))
                pypto.set_vec_tile_shapes(n, rows, half)
                x = pypto.reshape(x, [1, rows, half], valid_shape=[1, valid, half])
                one = pypto.full([n, rows, half], 1.0, fp32, valid_shape=[n, valid, half])
                packed[at:, ANGLES:, column:] = pypto.mul(one, x)

    def pack(parameters: tuple[Any, ...], row: Any, rows: int, valid: Any) -> Any:
        """What the heads need beside the projection, one block of rows a head: ``[heads * block, head]``.

        The projection does not wait for it. A scope each, as what is in none ends in more tasks.
        """
        quant_bias, deq_scale, q_weight, q_bias, k_weight, k_bias, cos, sin = parameters
        scope = itertools.count(2000)
        packed = pypto.tensor([heads, ANGLES + rows, head], fp32, "packed")
        pack_dequantisation(packed, quant_bias, deq_scale, scope)
        if form.head_norm:
            pack_norm(packed, q_weight, q_bias if form.q_bias else None, 0, q_heads, scope)
            pack_norm(packed, k_weight, k_bias if form.k_bias else None, q_heads, kv_heads, scope)
        pack_angles(packed, (cos, sin), row, rows, valid, scope)
        pypto.set_pass_options(sg_set_scope=-1)
        return pypto.reshape(packed, [heads * (ANGLES + rows), head], inplace=True)

    def unpack(packed: Any, j: int, rows: int, valid: Any) -> tuple[Callable[[int], Any], Any, Any]:
        """Head ``j``'s block: a function that gives one of its rows, then its cos and sin."""
        block = ANGLES + rows
        pypto.set_vec_tile_shapes(block, head)
        # The sum makes it one load of the whole block; views of what is in global memory are a load each.
        x = pypto.add(pypto.view(packed, [block, head], [j * block, 0]), 0.0)
        pypto.set_vec_tile_shapes(rows, head)
        cos, sin = (
            pypto.view(x, [rows, half], [ANGLES, column], valid_shape=[valid, half]) for column in (0, half)
        )
        return lambda row: pypto.view(x, [1, head], [row, 0]), cos, sin

    def rotate(x: Any, cos: Any, sin: Any, out: Any, row: Any, column: int, rows: int, valid: Any) -> None:
        """Rotate-half on the first ``2 * half`` columns of bf16 ``[rows, head]``; the rest is copied."""
        # Every piece is stored from the fp32 copy: storing a view of x itself would send x through global
        # memory and cost one more task.
        x = wide(x)
        low = pypto.view(x, [rows, half], [0, 0], valid_shape=[valid, half])
        high = pypto.view(x, [rows, half], [0, half], valid_shape=[valid, half])
        out[row:, column:] = pypto.cast(pypto.sub(pypto.mul(low, cos), pypto.mul(high, sin)), bf16)
        out[row:, column + half :] = pypto.cast(pypto.add(pypto.mul(high, cos), pypto.mul(low, sin)), bf16)
        rest = head - 2 * half
        if rest:
            tail = pypto.view(x, [rows, rest], [0, 2 * half], valid_shape=[valid, rest])
            out[row:, column + 2 * half :] = pypto.cast(tail, bf16)

    @pypto.frontend.jit(
        runtime_options={"run_mode": pypto.RunMode.NPU, "stitch_function_max_num": 128},
    )
    def attention_pre_quant(
        hidden_states: pypto.Tensor([dynamic, ...], bf16),
        residual: pypto.Tensor([dynamic, ...], bf16),
        norm_weight: pypto.Tensor([], bf16),
        norm_bias: pypto.Tensor([], bf16),
        in_scale: pypto.Tensor([], bf16),
        in_offset: pypto.Tensor([], bf16),
        weight: pypto.Tensor([], int8),
        quant_bias: pypto.Tensor([], int32),
        deq_scale: pypto.Tensor([], fp32),
        q_weight: pypto.Tensor([], bf16),
        q_bias: pypto.Tensor([], bf16),
        k_weight: pypto.Tensor([], bf16),
        k_bias: pypto.Tensor([], bf16),
        cos: pypto.Tensor([dynamic, ...], bf16),
        sin: pypto.Tensor([dynamic, ...], bf16),
        query: pypto.Tensor([dynamic, ...], bf16),
        key: pypto.Tensor([dynamic, ...], bf16),
        value: pypto.Tensor([dynamic, ...], bf16),
        residual_res: pypto.Tensor([dynamic, ...], bf16),
    ):
        tokens = hidden_states.shape[0]
        parameters = (quant_bias, deq_scale, q_weight, q_bias, k_weight, k_bias, cos, sin)
        for i, blocks in pypto.loop_unroll(
            (tokens + BLOCK - 1) // BLOCK, name="ROWS", idx_name="i", unroll_list=list(UNROLL)
        ):
            rows = blocks * BLOCK
            row = i * BLOCK
            valid = (tokens - row).min(rows)

            # 1. Norm and quantisation. A scope of its own per row group makes each group one task; parameters
            #    are cast inside it, as a shared cast would tie the groups into one.
            pypto.set_vec_tile_shapes(GROUP, hidden)
            quantised = pypto.tensor([rows, hidden], int8, "quantised")
            for g in range(rows // GROUP):
                pypto.set_pass_options(sg_set_scope=1 + g)
                at = row + g * GROUP
                live = (tokens - at).max(0).min(GROUP)
                h = wide(pypto.view(hidden_states, [GROUP, hidden], [at, 0], valid_shape=[live, hidden]))
                if form.residual:
                    r = pypto.view(residual, [GROUP, hidden], [at, 0], valid_shape=[live, hidden])
                    h = pypto.add(wide(r), h)
                residual_res[at:, 0:] = pypto.cast(h, bf16)
                y = rms_norm(h, hidden, wide(norm_weight), wide(norm_bias) if form.norm_bias else None)
                quantised[g * GROUP : (g + 1) * GROUP, 0:] = quantise(y, in_scale, in_offset)
                pypto.set_pass_options(sg_set_scope=-1)

            # 2. Projection, and beside it what the heads need.
            packed = pack(parameters, row, rows, valid)
            pypto.set_cube_tile_shapes(*tiles(rows, hidden, head).shapes())
            acc = pypto.matmul(quantised, weight, int32)

            # 3. One vector task per head.
            for j in range(heads):
                pypto.set_pass_options(sg_set_scope=1000 + j)
                parameter, c, s = unpack(packed, j, rows, valid)
                x = pypto.view(acc, [rows, head], [0, j * head], valid_shape=[valid, head])
                x = pypto.add(
                    x, pypto.add(pypto.cast(parameter(HIGH), int32), pypto.cast(parameter(LOW), int32))
                )
                x = pypto.cast(pypto.mul(wide(x), parameter(SCALE)), bf16)
                if j < q_heads + kv_heads:
                    is_q = j < q_heads
                    if form.head_norm:
                        has_bias = form.q_bias if is_q else form.k_bias
                        x = rms_norm(wide(x), head, parameter(WEIGHT), parameter(BIAS) if has_bias else None)
                    out, column = (query, j * head) if is_q else (key, (j - q_heads) * head)
                    rotate(x, c, s, out, row, column, rows, valid)
                else:
                    value[row:, (j - q_heads - kv_heads) * head :] = x
                pypto.set_pass_options(sg_set_scope=-1)

    return attention_pre_quant


def launch(
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    input_layernorm_weight: torch.Tensor,
    input_layernorm_bias: torch.Tensor | None,
    atten_qkv_input_scale_reciprocal: torch.Tensor,
    atten_qkv_input_offset: torch.Tensor,
    atten_qkv_weight: torch.Tensor,
    atten_qkv_quant_bias: torch.Tensor,
    atten_qkv_deq_scale: torch.Tensor,
    atten_q_norm_weight: torch.Tensor | None,
    atten_q_norm_bias: torch.Tensor | None,
    atten_k_norm_weight: torch.Tensor | None,
    atten_k_norm_bias: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    residual_res: torch.Tensor,
    eps: float = 1e-5,
    *,
    head_dim: int | None = None,
) -> Launch:
    """The checked call; see :func:`attention_pre_quant`."""
    check = Arguments("attention_pre_quant", hidden_states.device)
    bf16 = torch.bfloat16
    tokens, hidden = check.rank("hidden_states", hidden_states, "tokens, hidden")
    _, q_size = check.rank("query", query, "tokens, q size")
    _, kv_size = check.rank("key", key, "tokens, kv size")
    _, _, half = check.rank("cos", cos, "tokens, 1, rotary size / 2")
    norms = (atten_q_norm_weight, atten_k_norm_weight)
    if (norms[0] is None) != (norms[1] is None):
        check.refuse("either both q and k are normalised or none")
    head = head_dim or (128 if norms[0] is None else norms[0].shape[-1])
    check.refuse(refusal(hidden=hidden, q_size=q_size, kv_size=kv_size, head_dim=head, rotary_dim=2 * half))
    total = q_size + 2 * kv_size
    # An argument that is not there is not read; some tensor has to stand in its place.
    optional = (
        ("residual", residual, (tokens, hidden), hidden_states),
        ("input_layernorm_bias", input_layernorm_bias, (hidden,), input_layernorm_weight),
        ("atten_q_norm_weight", atten_q_norm_weight, (head,), input_layernorm_weight),
        ("atten_q_norm_bias", atten_q_norm_bias, (head,), input_layernorm_weight),
        ("atten_k_norm_weight", atten_k_norm_weight, (head,), input_layernorm_weight),
        ("atten_k_norm_bias", atten_k_norm_bias, (head,), input_layernorm_weight),
    )
    given = {
        name: stand_in if tensor is None else check.tensor(name, tensor, shape, bf16)
        for name, tensor, shape, stand_in in optional
    }
    scale, offset = atten_qkv_input_scale_reciprocal, atten_qkv_input_offset
    # Shaped here, where it costs nothing; a reshape in the kernel is one more thing that its tasks wait for.
    row, by_head, by_token = (1, -1), (-1, 1, head), (tokens, half)
    tensors = (
        check.tensor("hidden_states", hidden_states, (tokens, hidden), bf16),
        given["residual"],
        check.tensor("input_layernorm_weight", input_layernorm_weight, (hidden,), bf16).view(row),
        given["input_layernorm_bias"].view(row),
        check.tensor("atten_qkv_input_scale_reciprocal", scale, (hidden,), bf16).view(row),
        check.tensor("atten_qkv_input_offset", offset, (hidden,), bf16).view(row),
        check.tensor("atten_qkv_weight", atten_qkv_weight, (hidden, total), torch.int8),
        check.tensor("atten_qkv_quant_bias", atten_qkv_quant_bias, (total,), torch.int32).view(by_head),
        check.tensor("atten_qkv_deq_scale", atten_qkv_deq_scale, (total,), torch.float32).view(by_head),
        given["atten_q_norm_weight"].view(row),
        given["atten_q_norm_bias"].view(row),
        given["atten_k_norm_weight"].view(row),
        given["atten_k_norm_bias"].view(row),
        check.tensor("cos", cos, (tokens, 1, half), bf16).view(by_token),
        check.tensor("sin", sin, (tokens, 1, half), bf16).view(by_token),
        check.tensor("query", query, (tokens, q_size), bf16),
        check.tensor("key", key, (tokens, kv_size), bf16),
        check.tensor("value", value, (tokens, kv_size), bf16),
        check.tensor("residual_res", residual_res, (tokens, hidden), bf16),
    )
    form = Form(
        residual=residual is not None,
        norm_bias=input_layernorm_bias is not None,
        head_norm=norms[0] is not None,
        q_bias=atten_q_norm_bias is not None,
        k_bias=atten_k_norm_bias is not None,
    )
    kernel = functools.partial(build, hidden, q_size, kv_size, head, half, float(eps), form)
    return Launch("attention_pre_quant", kernel, tensors, written=(15, 16, 17, 18))


def attention_pre_quant(
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    input_layernorm_weight: torch.Tensor,
    input_layernorm_bias: torch.Tensor | None,
    atten_qkv_input_scale_reciprocal: torch.Tensor,
    atten_qkv_input_offset: torch.Tensor,
    atten_qkv_weight: torch.Tensor,
    atten_qkv_quant_bias: torch.Tensor,
    atten_qkv_deq_scale: torch.Tensor,
    atten_q_norm_weight: torch.Tensor | None,
    atten_q_norm_bias: torch.Tensor | None,
    atten_k_norm_weight: torch.Tensor | None,
    atten_k_norm_bias: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    residual_res: torch.Tensor,
    eps: float = 1e-5,
    *,
    head_dim: int | None = None,
) -> None:
    """Query, key and value of every token, ready for the cache and for attention, and the new residual.

    Args:
        hidden_states, residual: bf16 ``[tokens, hidden]``; residual None is the first layer.
        input_layernorm_weight, input_layernorm_bias: bf16 ``[hidden]``; the bias may be None.
        atten_qkv_input_scale_reciprocal, atten_qkv_input_offset: bf16 ``[hidden]``.
        atten_qkv_weight: int8 ``[hidden, q size + 2 * kv size]``, ND or NZ.
        atten_qkv_quant_bias, atten_qkv_deq_scale: int32 and fp32, one a column of the weight.
        atten_q_norm_weight ... atten_k_norm_bias: bf16 ``[head size]``; both weights None: no head norm; a
            bias None: none is added.
        cos, sin: bf16 ``[tokens, 1, rotary size / 2]``.
        query, key, value: bf16 ``[tokens, q size]``, ``[tokens, kv size]`` twice, written.
        residual_res: bf16 ``[tokens, hidden]``, written: ``hidden_states + residual``.
        eps: of all three norms.
        head_dim: needed without head norms where it is not 128.

    Raises:
        ValueError, TypeError: a shape, dtype, layout or device that the kernel does not take.
        RuntimeError: the tensors are not on an NPU.
    """
    launch(
        hidden_states,
        residual,
        input_layernorm_weight,
        input_layernorm_bias,
        atten_qkv_input_scale_reciprocal,
        atten_qkv_input_offset,
        atten_qkv_weight,
        atten_qkv_quant_bias,
        atten_qkv_deq_scale,
        atten_q_norm_weight,
        atten_q_norm_bias,
        atten_k_norm_weight,
        atten_k_norm_bias,
        cos,
        sin,
        query,
        key,
        value,
        residual_res,
        eps,
        head_dim=head_dim,
    ).run()
