"""Decode attention over a paged cache, one query row a sequence, for Ascend systems.

Written for pypto 0.2.0. Not run on hardware by us: checked with pypto's interpreter, timed in its cost model.
Interface: attention of the PyPTO project's glm_v4_5 models.

Up to 1024 tokens are one softmax: scores, probabilities and output of such a chunk need no value of another,
and the product with the values is the result: no vector task follows it. Only a longer sequence carries its
running maximum, sum and output from chunk to chunk.
"""

import functools
from typing import Any

import torch

from glm_pto_kernels.pypto import chip
from glm_pto_kernels.pypto.chip import CubeTile
from glm_pto_kernels.pypto.launch import Arguments, Launch

ITEM = 2  # bytes of a bf16 element
CHUNK = 1024  # tokens of one softmax
ROWS = 12  # query heads of one vector tile: with 1024 scores each, four such arrays fill UB
LIVE = 4


# Tasks of one chunk's q @ k. A task costs the same to start however long it is, so a sequence for each of
# the 24 cube cores is best done in one; those left over in two, as far as there are cores for both halves.
WHOLE, SPLIT = 1, 2


def refusal(
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype = torch.bfloat16,
) -> str | None:
    """Why the kernel cannot attend with these sizes, or None."""
    if dtype != torch.bfloat16:
        return f"query and caches must be torch.bfloat16, got {dtype}"
    if kv_heads < 1 or heads % kv_heads:
        return f"{kv_heads} kv heads do not share {heads} heads evenly"
    if heads // kv_heads > 2 * ROWS:
        return f"at most {2 * ROWS} heads may share a kv head, got {heads // kv_heads}"
    if head_dim not in (64, 128):
        return f"head size must be 64 or 128, got {head_dim}"
    if block_size not in (64, 128):
        return f"the cache's block size must be 64 or 128, got {block_size}"
    group = heads // kv_heads
    for tile in (score_tile(group, head_dim, block_size), output_tile(group, head_dim, block_size, CHUNK)):
        reason = tile.refusal()
        if reason is not None:
            return reason
    return chip.vector_refusal(min(group, ROWS), CHUNK, LIVE)


def score_tile(group: int, dim: int, block: int) -> CubeTile:
    """q @ k: one tile is one cache block. A wider one would make vector tasks copy blocks together first."""
    return CubeTile(chip.round_up(group, chip.FRACTAL), dim, dim, dim, block, ITEM)


def output_tile(group: int, dim: int, block: int, tokens: int) -> CubeTile:
    """p @ v: the probabilities of all ``tokens`` stay in L1, the values come one cache block at a time."""
    return CubeTile(chip.round_up(group, chip.FRACTAL), block, tokens, block, dim, ITEM)


def block_step(cache: torch.Tensor) -> int:
    """Dense blocks from one block of the cache to the next: 1, or 2 where keys and values share one buffer.

    0 for any other layout.
    """
    _, block, heads, dim = cache.shape
    dense = block * heads * dim
    outer, *inner = cache.stride()
    if tuple(inner) != (heads * dim, dim, 1) or outer % dense or outer < dense:
        return 0
    return outer // dense


def dense_blocks(cache: torch.Tensor, step: int) -> torch.Tensor:
    """The same memory from the first block to the last; what lies between them becomes blocks as well."""
    if step == 1:
        return cache
    blocks, *inner = cache.shape
    return cache.as_strided(((blocks - 1) * step + 1, *inner), (cache.stride(0) // step, *cache.stride()[1:]))


@functools.cache
def build(
    heads: int,
    kv_heads: int,
    dim: int,
    block: int,
    key_step: int,
    value_step: int,
    scale: float,
) -> Any:
    """The compiled-on-first-call kernel; any number of sequences, of blocks, and any lengths."""
    import pypto

    bf16, fp32, dynamic = pypto.DT_BF16, pypto.DT_FP32, pypto.DYNAMIC
    group = heads // kv_heads
    longest = CHUNK // block
    unroll = [longest >> shift for shift in range(longest.bit_length())]

    def gather(cache: Any, table: Any, seq: Any, column: Any, first: Any, count: int, step: int) -> Any:
        """``count`` blocks of one sequence, from its block ``first`` on, as ``[count * block, dim]``."""
        out = pypto.tensor([count * block, dim], bf16, "blocks")
        for j in range(count):
            row = table[seq, first + j] * (block * step)
            out[j * block : (j + 1) * block, 0:] = pypto.view(cache, [block, dim], [row, column])
        return out

    def softmax(score: Any, rows: Any, divide: bool) -> tuple[Any, Any, Any]:
        """Row maximum, row sum, and the probabilities in bf16, divided by their sum or not; one task."""
        pypto.set_vec_tile_shapes(min(group, ROWS), score.shape[1])
        pypto.set_pass_options(sg_set_scope=1)
        score = pypto.mul(pypto.view(score, score.shape, [0, 0], valid_shape=[group, rows]), scale)
        top = pypto.amax(score, -1, keepdim=True)
        p = pypto.exp(pypto.sub(score, top))
        total = pypto.sum(p, -1, keepdim=True)
        p = pypto.cast(pypto.div(p, total) if divide else p, bf16)
        pypto.set_pass_options(sg_set_scope=-1)
        return top, total, p

    def output(p: Any, v: Any, rows: Any, dtype: Any) -> Any:
        """The probabilities times the values of ``rows`` tokens; one task, which reads a block at a time."""
        pypto.set_vec_tile_shapes(group, dim)
        pypto.set_cube_tile_shapes(*output_tile(group, dim, block, v.shape[0]).shapes())
        return pypto.matmul(p, pypto.view(v, v.shape, [0, 0], valid_shape=[rows, dim]), dtype)

    def attend(
        name: str,
        first: Any,
        number: Any,
        query: Any,
        caches: tuple[Any, Any],
        table: Any,
        lengths: Any,
        result: Any,
        tasks: int,
    ) -> None:
        """All chunks of ``number`` units (a sequence and one of its kv heads) from ``first`` on."""
        for index in pypto.loop(number, name=f"UNIT_{name}", idx_name=f"unit_{name}"):
            unit = first + index
            seq, kv = unit // kv_heads, unit % kv_heads
            length = lengths[seq]
            run_out = pypto.tensor([group, dim], fp32, "run_out")
            run_sum = pypto.tensor([group, 1], fp32, "run_sum")
            run_max = pypto.tensor([group, 1], fp32, "run_max")
            blocks = (length + block - 1) // block
            # The blocks are covered exactly, so that no table entry past the sequence is ever read.
            for i, count in pypto.loop_unroll(
                blocks, name=f"CHUNK_{name}", idx_name=f"i_{name}", unroll_list=unroll
            ):
                pypto.set_pass_options(cube_l1_reuse_setting={0: longest // tasks, -1: longest})
                pypto.set_vec_tile_shapes(group, dim)
                pypto.set_cube_tile_shapes(*score_tile(group, dim, block).shapes())
                rows = (length - i * block).min(count * block)
                q = pypto.view(query, [group, dim], [unit * group, 0])
                k = gather(caches[0], table, seq, kv * dim, i, count, key_step)
                score = pypto.matmul(q, k, fp32, b_trans=True)
                v = gather(caches[1], table, seq, kv * dim, i, count, value_step)
                # is_loop_begin and is_loop_end hold once per unroll factor, so the index is compared.
                if pypto.cond(i == 0):
                    if pypto.cond(i + count == blocks):
                        _, _, p = softmax(score, rows, True)
                        result[unit * group :, 0:] = output(p, v, rows, bf16)
                    else:
                        top, total, p = softmax(score, rows, False)
                        run_max[:] = top
                        run_sum[:] = total
                        run_out[:] = output(p, v, rows, fp32)
                else:
                    top, total, p = softmax(score, rows, False)
                    out = output(p, v, rows, fp32)
                    new_max = pypto.maximum(run_max, top)
                    old_f = pypto.exp(pypto.sub(run_max, new_max))
                    new_f = pypto.exp(pypto.sub(top, new_max))
                    new_sum = pypto.add(pypto.mul(run_sum, old_f), pypto.mul(total, new_f))
                    new_out = pypto.add(pypto.mul(run_out, old_f), pypto.mul(out, new_f))
                    if pypto.cond(i + count == blocks):
                        result[unit * group :, 0:] = pypto.cast(pypto.div(new_out, new_sum), bf16)
                    else:
                        run_max[:] = new_max
                        run_sum[:] = new_sum
                        run_out[:] = new_out

    @pypto.frontend.jit(
        runtime_options={"run_mode": pypto.RunMode.NPU, "stitch_function_max_num": 128},
    )
    def attention(
        query: pypto.Tensor([dynamic, ...], bf16),
        key_cache: pypto.Tensor([dynamic, ...], bf16),
        value_cache: pypto.Tensor([dynamic, ...], bf16),
        block_tables: pypto.Tensor([dynamic, dynamic], pypto.DT_INT32),
        actual_seqs: pypto.Tensor([dynamic], pypto.DT_INT32),
        attn_res: pypto.Tensor([dynamic, ...], bf16),
    ):
        # [rows, 1] tensors (maximum, sum) are kept compact instead of padded to 32 bytes a row.
        pypto.experimental.set_operation_options(combine_axis=True)
        units = actual_seqs.shape[0] * kv_heads
        rest = units % chip.CUBE_CORES
        split = rest.min(chip.CUBE_CORES - rest)
        caches = (key_cache, value_cache)
        attend("split", 0, split, query, caches, block_tables, actual_seqs, attn_res, SPLIT)
        attend("whole", split, units - split, query, caches, block_tables, actual_seqs, attn_res, WHOLE)

    return attention


def launch(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    actual_seqs: torch.Tensor,
    attn_res: torch.Tensor,
    softmax_scale: float | None = None,
) -> Launch:
    """The checked call; see :func:`attention`."""
    check = Arguments("attention", query.device)
    sequences, heads, dim = check.rank("query", query, "sequences, heads, head size")
    blocks, block, kv_heads, _ = check.rank("key_cache", key_cache, "blocks, block size, kv heads, head size")
    _, columns = check.rank("block_tables", block_tables, "sequences, blocks of the longest")
    check.refuse(refusal(heads=heads, kv_heads=kv_heads, head_dim=dim, block_size=block))
    caches = []
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        check.tensor(name, cache, (blocks, block, kv_heads, dim), torch.bfloat16, dense=False)
        if not block_step(cache):
            check.refuse(
                f"{name}: its blocks must be dense and a whole number of blocks apart, got strides "
                f"{cache.stride()} for shape {list(cache.shape)}"
            )
        # Made rows here, where it costs nothing; the kernel's tasks would wait for a reshape of its own.
        caches.append(dense_blocks(cache, block_step(cache)).view(-1, kv_heads * dim))
    tensors = (
        check.tensor("query", query, (sequences, heads, dim), torch.bfloat16).view(-1, dim),
        *caches,
        check.tensor("block_tables", block_tables, (sequences, columns), torch.int32),
        check.tensor("actual_seqs", actual_seqs, (sequences,), torch.int32),
        check.tensor("attn_res", attn_res, (sequences, heads, dim), torch.bfloat16).view(-1, dim),
    )
    kernel = functools.partial(
        build,
        heads,
        kv_heads,
        dim,
        block,
        block_step(key_cache),
        block_step(value_cache),
        dim**-0.5 if softmax_scale is None else float(softmax_scale),
    )
    return Launch("attention", kernel, tensors, written=(5,))


def attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    actual_seqs: torch.Tensor,
    attn_res: torch.Tensor,
    softmax_scale: float | None = None,
) -> None:
    """``softmax(q k^T * scale) v`` of each sequence's last token over its cached tokens.

    Args:
        query: bf16 ``[sequences, heads, head size]``.
        key_cache, value_cache: bf16 ``[blocks, block size, kv heads, head size]``; the blocks may lie a whole
            number of blocks apart, as where keys and values share one buffer.
        block_tables: int32 ``[sequences, blocks of the longest]``; entries past a sequence are never read.
        actual_seqs: int32 ``[sequences]`` on the device: cached tokens. A row of length 0 is not written.
        attn_res: bf16 like ``query``, written.
        softmax_scale: ``head size ** -0.5`` by default.

    Raises:
        ValueError, TypeError: a shape, dtype, layout or device that the kernel does not take.
        RuntimeError: the tensors are not on an NPU.
    """
    launch(query, key_cache, value_cache, block_tables, actual_seqs, attn_res, softmax_scale).run()
