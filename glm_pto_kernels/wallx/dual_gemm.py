"""Two matrix products of unlike sizes in one launch. Source: wall-x ``csrc/dual_asym_grouped_gemm.cu``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.backends import implementation
from glm_pto_kernels.wallx.overlaps import refuse_overlaps
from glm_pto_kernels.wallx.plans import MOST_PLANS, direct, refuse_output, written

NAMES = ("input_expert0", "input_expert1", "weight_expert0", "weight_expert1")
# Sizes of calls whose outputs shared no memory.
APART: set[tuple[int | bool, ...]] = set()


def asym_dual_gmm_separated(
    input_expert0: Tensor,
    input_expert1: Tensor,
    weight_expert0: Tensor,
    weight_expert1: Tensor,
    output_expert0: Tensor | None = None,
    output_expert1: Tensor | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
) -> tuple[Tensor, Tensor]:
    """``output_i = op(input_i) @ op(weight_i)`` for two experts, accumulated in fp32, rounded once.

    Args:
        input_expert0, input_expert1: [m_i, k_i], or [k_i, m_i] with ``trans_a``; floating, any strides.
        weight_expert0, weight_expert1: [k_i, n_i], or [n_i, k_i] with ``trans_b``. m, n and k may differ
            between the experts; either expert may be empty, and k = 0 gives zeros.
        output_expert0, output_expert1: [m_i, n_i], any strides; made here where None, for every layout.
            Memory that they share with an input or each other is looked for at the first call of these sizes
            only.
        trans_a, trans_b: how inputs and weights are stored, see above.

    Returns:
        ``(output_expert0, output_expert1)``. Differentiable where both outputs are made here.

    Raises:
        TypeError: the six tensors are not of one floating type.
        ValueError: shapes or devices do not fit, or an output shares memory with an input, the other output
            or itself.
        RuntimeError: an output was given and gradients were asked for.
    """
    shapes = check(input_expert0, input_expert1, weight_expert0, weight_expert1, trans_a, trans_b)
    inputs = (input_expert0, input_expert1, weight_expert0, weight_expert1)
    if output_expert0 is None and output_expert1 is None and not direct(*inputs):
        return dual_gemm_op(*inputs, trans_a, trans_b)
    out0, out1 = (
        x.new_empty(shape) if out is None else checked_output(out, x, shape)
        for out, x, shape in zip((output_expert0, output_expert1), inputs[:2], shapes, strict=True)
    )
    if direct(*inputs, out0, out1):
        if output_expert0 is not None or output_expert1 is not None:
            same = out0 is out1 or out0 is input_expert0 or out1 is input_expert1
            key = (*shapes[0], *shapes[1], trans_a, trans_b)
            if same or key not in APART:
                keep_apart(key, inputs, out0, out1)
        implementation("dual_gemm", input_expert0)(*inputs, out0, out1, trans_a, trans_b)
        written(out0, out1)
        return out0, out1
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, out0, out1)):
        raise RuntimeError(
            "asym_dual_gmm: autograd cannot record writes into given outputs; leave both None, or call it "
            "under torch.no_grad() or inside an autograd.Function"
        )
    dual_gemm_out_op(*inputs, out0, out1, trans_a, trans_b)
    return out0, out1


def check(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, trans_a: bool, trans_b: bool
) -> list[tuple[int, int]]:
    """The two output shapes, or an error that names what does not fit."""
    shapes = []
    for i, (a, b) in enumerate(((a0, b0), (a1, b1))):
        if a.dim() != 2 or b.dim() != 2:
            raise ValueError(
                f"asym_dual_gmm: expert {i}: expected matrices, found {list(a.shape)} and {list(b.shape)}"
            )
        (k, m) = a.shape if trans_a else (a.shape[1], a.shape[0])
        (n, weight_k) = b.shape if trans_b else (b.shape[1], b.shape[0])
        if k != weight_k:
            raise ValueError(
                f"asym_dual_gmm: expert {i}: input {list(a.shape)} (trans_a={trans_a}) has k = {k}, "
                f"weight {list(b.shape)} (trans_b={trans_b}) has k = {weight_k}"
            )
        shapes.append((m, n))
    kind, place = a0.dtype, a0.device
    if not (kind == a1.dtype == b0.dtype == b1.dtype and kind.is_floating_point):
        raise TypeError(
            "asym_dual_gmm: inputs and weights must have one floating type, "
            f"found {a0.dtype}, {a1.dtype}, {b0.dtype}, {b1.dtype}"
        )
    if not place == a1.device == b0.device == b1.device:
        raise ValueError(
            "asym_dual_gmm: inputs and weights must be on one device, "
            f"found {a0.device}, {a1.device}, {b0.device}, {b1.device}"
        )
    return shapes


def keep_apart(key: tuple[int | bool, ...], inputs: tuple[Tensor, ...], out0: Tensor, out1: Tensor) -> None:
    """Refuse outputs that overlap anything, and take it for settled for other calls of these sizes."""
    named = tuple(zip(("output_expert0", "output_expert1"), (out0, out1), strict=True))
    refuse_overlaps("asym_dual_gmm", named, tuple(zip(NAMES, inputs, strict=True)))
    if len(APART) >= MOST_PLANS:
        APART.clear()
    APART.add(key)


def checked_output(out: Tensor, like: Tensor, shape: tuple[int, int]) -> Tensor:
    if tuple(out.shape) != shape or out.dtype != like.dtype or out.device != like.device:
        raise ValueError(
            f"asym_dual_gmm: an output must be {list(shape)} {like.dtype} on {like.device}, "
            f"found {list(out.shape)} {out.dtype} on {out.device}"
        )
    refuse_output("asym_dual_gmm", out)
    return out


@torch.library.custom_op(
    "glm_pto_wallx::dual_gemm",
    mutates_args=(),
    schema=("(Tensor a0, Tensor a1, Tensor b0, Tensor b1, bool trans_a, bool trans_b) -> (Tensor, Tensor)"),
)
def dual_gemm_op(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, trans_a: bool, trans_b: bool
) -> tuple[Tensor, Tensor]:
    o0, o1 = outputs(a0, a1, b0, b1, trans_a, trans_b)
    implementation("dual_gemm", a0)(a0, a1, b0, b1, o0, o1, trans_a, trans_b)
    return o0, o1


def outputs(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, trans_a: bool, trans_b: bool
) -> tuple[Tensor, Tensor]:
    m, n = (1 if trans_a else 0), (0 if trans_b else 1)
    return a0.new_empty(a0.shape[m], b0.shape[n]), a1.new_empty(a1.shape[m], b1.shape[n])


dual_gemm_op.register_fake(outputs)


@torch.library.custom_op(
    "glm_pto_wallx::dual_gemm_out",
    mutates_args=("o0", "o1"),
    schema=(
        "(Tensor a0, Tensor a1, Tensor b0, Tensor b1, Tensor(a!) o0, Tensor(b!) o1, "
        "bool trans_a, bool trans_b) -> ()"
    ),
)
def dual_gemm_out_op(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, o0: Tensor, o1: Tensor, trans_a: bool, trans_b: bool
) -> None:
    implementation("dual_gemm", a0)(a0, a1, b0, b1, o0, o1, trans_a, trans_b)


@dual_gemm_out_op.register_fake
def _(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, o0: Tensor, o1: Tensor, trans_a: bool, trans_b: bool
) -> None:
    return None


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.trans_a, ctx.trans_b = inputs
    ctx.save_for_backward(*tensors)


def _grad(ctx: Any, g0: Tensor, g1: Tensor) -> tuple[Tensor | None, ...]:
    """Both gradients are dual GEMMs again: transposed factors are read in place where rows are aligned."""
    a0, a1, b0, b1 = ctx.saved_tensors
    ta, tb = ctx.trans_a, ctx.trans_b
    needs = ctx.needs_input_grad
    a_grads: tuple[Tensor | None, Tensor | None] = (None, None)
    b_grads: tuple[Tensor | None, Tensor | None] = (None, None)
    if needs[0] or needs[1]:
        if ta:
            a_grads = dual_gemm_op(b0, b1, g0, g1, tb, True)
        else:
            a_grads = dual_gemm_op(g0, g1, b0, b1, False, not tb)
    if needs[2] or needs[3]:
        if tb:
            b_grads = dual_gemm_op(g0, g1, a0, a1, True, ta)
        else:
            b_grads = dual_gemm_op(a0, a1, g0, g1, not ta, False)
    return (*a_grads, *b_grads, None, None)


dual_gemm_op.register_autograd(_grad, setup_context=_context)
