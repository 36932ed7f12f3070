"""permute: group tokens by expert. Source: wall-x ``csrc/permute.cu``; semantics in docs/wallx.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.backends import implementation, run
from glm_pto_kernels.wallx.plans import count, direct, planned

INDEX_TYPES = (torch.int32, torch.int64)
MAX_SLOTS = 2**31 - 1


def permute(
    input: Tensor,
    indices: Tensor,
    num_out_tokens: int,
    workspace: Sequence[Tensor] | Tensor | None,
    max_expanded_token_num: int,
    *,
    mask_negative: bool = False,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Group tokens by expert with a stable sort.

    Args:
        input: [T, H] floating, any strides.
        indices: [T, K] int32 or int64 expert of each slot. Negative ids sort first unless ``mask_negative``.
        num_out_tokens: rows of the output; T*K where it is not positive. Slots beyond it are dropped (map
            -1), rows beyond T*K are zeros.
        workspace: what an earlier call returned, or nothing (None, an empty list). Memory that is too small,
            not dense or of another device is replaced, never overrun. One list must not serve two streams at
            the same time.
        max_expanded_token_num: the largest T*K that the workspace has to serve, at least this call's.
        mask_negative: give slots with a negative expert no row (map -1) instead of sorting them first.

    Returns:
        ``(permuted [n, H], row_id_map int32 [K*T], workspace)``; ``row_id_map[k*T + t]`` is the row of slot
        (t, k), or -1. No device-to-host synchronisation.

    Raises:
        TypeError: ``indices`` is neither int32 nor int64, ``input`` not floating, ``workspace``
            no tensors, or a number no integer.
        ValueError: shapes or devices do not fit, or ``max_expanded_token_num`` is less than T*K.
    """
    spare = list(workspace) if type(workspace) is list else tensors_of(workspace)
    if type(num_out_tokens) is not int or type(max_expanded_token_num) is not int:
        num_out_tokens = count("permute: num_out_tokens", num_out_tokens)
        max_expanded_token_num = count("permute: max_expanded_token_num", max_expanded_token_num)
    if type(mask_negative) is not bool:
        mask_negative = bool(mask_negative)
    numbers = ("permute", num_out_tokens, max_expanded_token_num, mask_negative, input.numel())
    plan = planned(numbers, input, indices)
    if plan is not None:
        return plan(input, indices, spare)  # type: ignore[no-any-return]
    check_indices("permute", input, indices)
    check_rows("permute", num_out_tokens)
    tensors_of(spare)
    if max_expanded_token_num < indices.numel():
        raise ValueError(
            f"permute: max_expanded_token_num is {max_expanded_token_num}, less than this call's T*K = "
            f"{indices.numel()}; pass the largest T*K that the workspace has to serve"
        )
    arguments = (input, indices, num_out_tokens, mask_negative)
    if direct(input, indices):
        found: tuple[Tensor, Tensor, list[Tensor]] = run(
            "permute", numbers, (input, indices), *arguments, spare, max_expanded_token_num
        )
        return found
    permuted, row_id_map = permute_op(*arguments)
    return permuted, row_id_map, spare


def permute_with_map(input: Tensor, row_id_map: Tensor, num_out_tokens: int, num_topK: int = 1) -> Tensor:
    """The gather of ``permute`` alone, for a map that is used more than once (wall-x: 36 layers a step).

    Args:
        input: [T, H] floating, any strides.
        row_id_map: int32 [K*T] as ``permute`` returns it; written to, if at all, where autograd counts writes
            (not through ``.data`` or numpy).
        num_out_tokens: rows of the output; T*K where it is not positive. Rows that the map does not name are
            zeros.
        num_topK: K.

    Returns:
        [n, H].

    Raises:
        TypeError: ``input`` is not floating, ``row_id_map`` not int32, or a number no integer.
        ValueError: shapes or devices do not fit, or a number is negative or too large.
    """
    if type(num_out_tokens) is not int or type(num_topK) is not int:
        num_out_tokens = count("permute_with_map: num_out_tokens", num_out_tokens)
        num_topK = count("permute_with_map: num_topK", num_topK)
    rows = num_out_tokens if num_out_tokens > 0 else row_id_map.numel()
    numbers = ("permute_with_map", rows, num_topK, input.numel())
    plan = planned(numbers, input, row_id_map)
    if plan is not None:
        return plan(input, row_id_map)  # type: ignore[no-any-return]
    check_rows("permute_with_map", rows)
    check_map("permute_with_map", input, row_id_map, input.shape[0] if input.dim() else 0, num_topK)
    arguments = (input, row_id_map, rows, num_topK)
    if direct(input, row_id_map):
        return run("permute_with_map", numbers, arguments[:2], *arguments)  # type: ignore[no-any-return]
    return permute_with_map_op(*arguments)


def tensors_of(workspace: Sequence[Tensor] | Tensor | None) -> list[Tensor]:
    """The document calls the workspace a tensor, the original takes a list: both are accepted."""
    if workspace is None:
        return []
    if isinstance(workspace, Tensor):
        return [workspace] if workspace.numel() else []
    if not isinstance(workspace, Sequence) or not all(isinstance(one, Tensor) for one in workspace):
        raise TypeError(f"permute: workspace must be tensors or None, found {workspace!r}")
    return list(workspace)


def check_indices(name: str, x: Tensor, indices: Tensor) -> None:
    if x.dim() != 2 or indices.dim() != 2 or x.shape[0] != indices.shape[0]:
        raise ValueError(
            f"{name}: expected input [T, H] and indices [T, K], "
            f"found {list(x.shape)} and {list(indices.shape)}"
        )
    if indices.dtype not in INDEX_TYPES:
        raise TypeError(f"{name}: indices must be int32 or int64, found {indices.dtype}")
    if not x.dtype.is_floating_point:
        raise TypeError(f"{name}: input must be floating, found {x.dtype}")
    if x.get_device() != indices.get_device():
        raise ValueError(f"{name}: input is on {x.device}, indices on {indices.device}; move one of them")
    if indices.numel() > MAX_SLOTS:
        raise ValueError(f"{name}: T*K = {indices.numel()} does not fit the int32 row map")


def check_rows(name: str, rows: int) -> None:
    if rows > MAX_SLOTS:
        raise ValueError(f"{name}: {rows} rows do not fit the int32 row map")


def check_map(name: str, x: Tensor, row_id_map: Tensor, tokens: int, top_k: int) -> None:
    if x.dim() != 2:
        raise ValueError(f"{name}: expected rows [N, H], found {list(x.shape)}")
    if not x.dtype.is_floating_point:
        raise TypeError(f"{name}: rows must be floating, found {x.dtype}")
    if tokens < 0 or top_k < 0:
        raise ValueError(f"{name}: T and K must not be negative, found T = {tokens}, K = {top_k}")
    if row_id_map.dtype != torch.int32:
        raise TypeError(f"{name}: row_id_map must be int32 as permute returns it, found {row_id_map.dtype}")
    if row_id_map.dim() != 1 or row_id_map.shape[0] != tokens * top_k:
        raise ValueError(
            f"{name}: row_id_map must be [K*T] = [{top_k}*{tokens}], found {list(row_id_map.shape)}"
        )
    if x.get_device() != row_id_map.get_device():
        raise ValueError(
            f"{name}: input is on {x.device}, row_id_map on {row_id_map.device}; move one of them"
        )


@torch.library.custom_op(
    "glm_pto_wallx::permute",
    mutates_args=(),
    schema="(Tensor x, Tensor indices, SymInt num_out_tokens, bool mask_negative) -> (Tensor, Tensor)",
)
def permute_op(x: Tensor, indices: Tensor, num_out_tokens: int, mask_negative: bool) -> tuple[Tensor, Tensor]:
    run = implementation("permute", x)
    result: tuple[Tensor, Tensor] = run(x, indices, num_out_tokens, mask_negative)[:2]
    return result


@permute_op.register_fake
def _(x: Tensor, indices: Tensor, num_out_tokens: int, mask_negative: bool) -> tuple[Tensor, Tensor]:
    slots = indices.shape[0] * indices.shape[1]
    rows = num_out_tokens if num_out_tokens > 0 else slots
    return x.new_empty(rows, x.shape[1]), indices.new_empty(slots, dtype=torch.int32)


@torch.library.custom_op(
    "glm_pto_wallx::permute_with_map",
    mutates_args=(),
    schema="(Tensor x, Tensor row_id_map, SymInt rows, SymInt top_k) -> Tensor",
)
def permute_with_map_op(x: Tensor, row_id_map: Tensor, rows: int, top_k: int) -> Tensor:
    placed: Tensor = implementation("permute_with_map", x)(x, row_id_map, rows, top_k)
    return placed


@permute_with_map_op.register_fake
def _(x: Tensor, row_id_map: Tensor, rows: int, top_k: int) -> Tensor:
    return x.new_empty(rows, x.shape[1])


def _permute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.shape = inputs[1].shape


def _placed_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.shape = (inputs[0].shape[0], inputs[3])


def _grad(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None, None]:
    (row_id_map,) = ctx.saved_tensors
    tokens, top_k = ctx.shape
    return torch.ops.glm_pto_wallx.unpermute(grad, row_id_map, None, tokens, top_k), None, None, None


permute_op.register_autograd(_grad, setup_context=_permute_context)
permute_with_map_op.register_autograd(_grad, setup_context=_placed_context)
