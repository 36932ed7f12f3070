"""unpermute and its gradient. Source: wall-x ``csrc/permute.cu``; semantics in docs/wallx.md."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.backends import implementation, run
from glm_pto_kernels.wallx.permute import check_map
from glm_pto_kernels.wallx.plans import count, direct, planned


def unpermute(
    input: Tensor, row_id_map: Tensor, prob: Tensor | None, max_tokens: int, num_topK: int
) -> Tensor:
    """Bring expert outputs back to token order and add each token's K rows.

    ``out[t] = sum_k prob[t, k] * input[map[k*T + t]]``, summed in fp32 and rounded once. A slot with map -1
    adds nothing, whatever the memory of unmapped rows holds.

    Args:
        input: [N, H] floating, any strides.
        row_id_map: int32 [K*T] as ``permute`` returns it.
        prob: [T, K] floating; None or an empty tensor means a plain sum. With K = 1 it is not used, as in the
            original: scale the rows yourself.
        max_tokens: T, the number of tokens.
        num_topK: K.

    Returns:
        [T, H] in ``input``'s type.

    Raises:
        TypeError: ``input`` or ``prob`` is not floating, ``row_id_map`` not int32, or a number no integer.
        ValueError: shapes or devices do not fit, or a number is negative.
    """
    if type(max_tokens) is not int or type(num_topK) is not int:
        max_tokens = count("unpermute: max_tokens", max_tokens)
        num_topK = count("unpermute: num_topK", num_topK)
    if prob is not None and not (num_topK > 1 and prob.numel()):
        prob = None
    tensors = (input, row_id_map) if prob is None else (input, row_id_map, prob)
    numbers = ("unpermute", max_tokens, num_topK, prob is None)
    plan = planned(numbers, *tensors)
    if plan is not None:
        return plan(input, row_id_map, prob)  # type: ignore[no-any-return]
    check_map("unpermute", input, row_id_map, max_tokens, num_topK)
    check_prob("unpermute", input, prob, max_tokens, num_topK)
    arguments = (input, row_id_map, prob, max_tokens, num_topK)
    if direct(*tensors):
        return run("unpermute", numbers, tensors, *arguments)  # type: ignore[no-any-return]
    return unpermute_op(*arguments)


def unpermute_bwd(
    input_bwd: Tensor, input_fwd: Tensor, row_id_map: Tensor, prob: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of ``unpermute``.

    Args:
        input_bwd: [T, H] gradient of the output, any strides.
        input_fwd: [N, H] the forward's input.
        row_id_map: int32 [K*T], the forward's.
        prob: [T, K] the forward's; None or an empty tensor means K = 1.

    Returns:
        ``(act_grad [N, H], prob_grad fp32 [T, K])``. Rows that the map does not name and dropped slots are
        zeros. With K = 1 the forward ignores ``prob``, so its gradient is zero.

    Raises:
        TypeError, ValueError: as for ``unpermute``.
    """
    tensors = (input_bwd, input_fwd, row_id_map) if prob is None else (input_bwd, input_fwd, row_id_map, prob)
    numbers = ("unpermute_bwd", input_bwd.numel(), prob is None)
    plan = planned(numbers, *tensors)
    if plan is not None:
        return plan(input_bwd, input_fwd, row_id_map, prob)  # type: ignore[no-any-return]
    tokens = input_bwd.shape[0] if input_bwd.dim() else 0
    if prob is not None and prob.dim() != 2 and prob.numel():
        raise ValueError(f"unpermute_bwd: prob must be [T, K] with T = {tokens}, found {list(prob.shape)}")
    # An empty one is none, but where there are no slots at all it says how many columns its gradient has.
    if prob is not None and not prob.numel() and not (prob.shape[:1] == (tokens,) and not row_id_map.numel()):
        return unpermute_bwd(input_bwd, input_fwd, row_id_map, None)
    top_k = 1 if prob is None else prob.shape[1]
    check_map("unpermute_bwd", input_bwd, row_id_map, tokens, top_k)
    if input_fwd.dim() != 2 or input_fwd.shape[1] != input_bwd.shape[1] or input_fwd.dtype != input_bwd.dtype:
        raise ValueError(
            f"unpermute_bwd: input_fwd must be [N, {input_bwd.shape[1]}] {input_bwd.dtype}, "
            f"found {list(input_fwd.shape)} {input_fwd.dtype}"
        )
    if input_fwd.device != input_bwd.device:
        raise ValueError(
            f"unpermute_bwd: input_bwd is on {input_bwd.device}, input_fwd on {input_fwd.device}; "
            "move one of them"
        )
    if prob is not None:
        check_prob("unpermute_bwd", input_bwd, prob, tokens, top_k)
    arguments = (input_bwd, input_fwd, row_id_map, prob)
    if direct(*tensors):
        return run("unpermute_bwd", numbers, tensors, *arguments)  # type: ignore[no-any-return]
    return unpermute_bwd_op(*arguments)


def check_prob(name: str, x: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> None:
    if prob is None:
        return
    if prob.dim() != 2 or prob.shape[0] != tokens or prob.shape[1] != top_k:
        raise ValueError(f"{name}: prob must be [T, K] = [{tokens}, {top_k}], found {list(prob.shape)}")
    if not prob.dtype.is_floating_point:
        raise TypeError(f"{name}: prob must be floating, found {prob.dtype}")
    if prob.device != x.device:
        raise ValueError(f"{name}: input is on {x.device}, prob on {prob.device}; move one of them")


@torch.library.custom_op(
    "glm_pto_wallx::unpermute",
    mutates_args=(),
    schema="(Tensor y, Tensor row_id_map, Tensor? prob, SymInt tokens, SymInt top_k) -> Tensor",
)
def unpermute_op(y: Tensor, row_id_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Tensor:
    summed: Tensor = implementation("unpermute", y)(y, row_id_map, prob, tokens, top_k)
    return summed


@unpermute_op.register_fake
def _(y: Tensor, row_id_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Tensor:
    return y.new_empty(tokens, y.shape[1])


@torch.library.custom_op(
    "glm_pto_wallx::unpermute_bwd",
    mutates_args=(),
    schema="(Tensor grad, Tensor y, Tensor row_id_map, Tensor? prob) -> (Tensor, Tensor)",
)
def unpermute_bwd_op(
    grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None
) -> tuple[Tensor, Tensor]:
    grads: tuple[Tensor, Tensor] = implementation("unpermute_bwd", grad)(grad, y, row_id_map, prob)
    return grads


@unpermute_bwd_op.register_fake
def _(grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None) -> tuple[Tensor, Tensor]:
    top_k = 1 if prob is None else prob.shape[1]
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    return grad.new_empty(y.shape[0], grad.shape[1]), grad.new_empty(grad.shape[0], top_k, dtype=wide)


def _unpermute_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    y, row_id_map, prob, tokens, top_k = inputs
    ctx.shape = (y.shape[0], tokens, top_k)
    ctx.weighted = prob is not None and top_k > 1
    # Without weights the gradient needs the row count of y only, not y.
    ctx.save_for_backward(row_id_map, *((y, prob) if ctx.weighted else ()))


def _unpermute_grad(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, _, top_k = ctx.shape
    row_id_map, *weights = ctx.saved_tensors
    if not ctx.weighted:
        return permute_with_map_of(grad, row_id_map, rows, top_k), None, None, None, None
    y, prob = weights
    act_grad, prob_grad = unpermute_bwd_op(grad, y, row_id_map, prob)
    return act_grad, None, prob_grad.to(prob.dtype), None, None


def _bwd_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    grad, y, row_id_map, prob = inputs
    ctx.weighted = prob is not None and prob.shape[1] > 1
    ctx.tokens = grad.shape[0]
    ctx.save_for_backward(row_id_map, *((grad, y, prob) if ctx.weighted else ()))


def _bwd_grad(ctx: Any, act: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
    """The second derivative: ``act`` and ``weight`` are what comes in for act_grad and prob_grad."""
    row_id_map, *saved = ctx.saved_tensors
    if not ctx.weighted:
        return unpermute_op(act, row_id_map, None, ctx.tokens, 1), None, None, None
    grad, y, prob = saved
    top_k = prob.shape[1]
    by_act = unpermute_op(act, row_id_map, prob, ctx.tokens, top_k)
    by_weight = unpermute_op(y, row_id_map, weight, ctx.tokens, top_k)
    y_grad, _ = unpermute_bwd_op(grad, y, row_id_map, weight)
    _, prob_grad = unpermute_bwd_op(grad, act, row_id_map, prob)
    return by_act + by_weight, y_grad, None, prob_grad.to(prob.dtype)


def permute_with_map_of(grad: Tensor, row_id_map: Tensor, rows: int, top_k: int) -> Tensor:
    placed: Tensor = torch.ops.glm_pto_wallx.permute_with_map(grad, row_id_map, rows, top_k)
    return placed


unpermute_op.register_autograd(_unpermute_grad, setup_context=_unpermute_context)
unpermute_bwd_op.register_autograd(_bwd_grad, setup_context=_bwd_context)
