"""Multimodal rotary embedding. Source: wall-x ``csrc/rope.cu``; semantics in docs/wallx.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.backends import implementation, run
from glm_pto_kernels.wallx.overlaps import refuse_overlaps
from glm_pto_kernels.wallx.plans import direct, planned, written
from glm_pto_kernels.wallx.rope_checks import check, check_output
from glm_pto_kernels.wallx.rope_tables import table_grads


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    mrope_section_doubled: Sequence[int],
) -> None:
    """Rotate ``q`` and ``k`` into ``q_out`` and ``k_out``.

    ``out = x*cos + R(x)*sin`` with ``R(x) = (-x2, x1)`` on the two halves of a head, computed in fp32,
    rounded once.

    Args:
        q: [B, HQ, S, D] and k: [B, HK, S, D], floating, any strides (a transposed view is read in place).
        cos, sin: [3, B, S, D], one plane for time, height and width positions.
        q_out, k_out: like q and k, any strides; each may be its own input, in place. Memory that they share
            otherwise, with an input or each other, is looked for at the first call of its kind only.
        mrope_section_doubled: three widths that sum to D. They are **three consecutive bands** over the
            whole head, each with its own plane, e.g. [32, 48, 48]; plain rotary embedding is [D, 0, 0]. (The
            document calls this argument a bool.) For the usual bands, which start again at D/2, see
            ``apply_rope``.

    Raises:
        TypeError: types differ or are not floating, or a section is no integer.
        ValueError: shapes, devices or sections do not fit, D is odd, or an output shares memory with
            an input (other than in place), the other output, or itself.
        RuntimeError: gradients were asked for; use ``apply_rope``, or call under ``torch.no_grad``.
    """
    write("rope", q, k, cos, sin, q_out, k_out, mrope_section_doubled, backward=False)


def rope_bwd(
    grad_q_out: Tensor,
    grad_k_out: Tensor,
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    grad_q: Tensor,
    grad_k: Tensor,
    mrope_section_doubled: Sequence[int],
) -> None:
    """Write the gradients of ``rope`` for ``q`` and ``k`` into ``grad_q`` and ``grad_k``.

    ``dx = g*cos + R^T(g*sin)`` with ``R^T(u) = (u2, -u1)``: ``sin`` is applied before the halves change
    places, because they may lie in different bands. ``q`` and ``k`` give their shapes only. Arguments and
    errors are those of ``rope``; the gradients may have any strides and may be written in place.
    """
    if q.shape != grad_q_out.shape or k.shape != grad_k_out.shape:
        raise ValueError(
            f"rope_bwd: gradients {list(grad_q_out.shape)}, {list(grad_k_out.shape)} do not have the shapes "
            f"of q, k {list(q.shape)}, {list(k.shape)}"
        )
    write("rope_bwd", grad_q_out, grad_k_out, cos, sin, grad_q, grad_k, mrope_section_doubled, backward=True)


def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int], *, bands: str = "consecutive"
) -> tuple[Tensor, Tensor]:
    """``rope`` as a function with gradients, for q, k, cos and sin.

    Args:
        q, k, cos, sin: as in ``rope``.
        sections: as in ``rope``; with ``bands="repeated"`` three widths that sum to D/2, e.g. [16, 24, 24].
        bands: ``"consecutive"`` (wall-x), or ``"repeated"``: the usual multimodal bands, the same in both
            halves.

    Returns:
        New tensors with the strides of q and k.

    Raises:
        TypeError, ValueError: as for ``rope``, or ``bands`` is neither.
    """
    if bands not in ("consecutive", "repeated"):
        raise ValueError(f'apply_rope: bands must be "consecutive" or "repeated", found {bands!r}')
    repeated = bands == "repeated"
    widths = check("apply_rope", q, k, cos, sin, sections, repeated)
    if direct(q, k, cos, sin):
        q_out, k_out = torch.empty_like(q), torch.empty_like(k)
        implementation("rope", q)(q, k, cos, sin, q_out, k_out, widths, repeated, False)
        return q_out, k_out
    return rope_op(q, k, cos, sin, widths, repeated, False)


NAMES = {
    "rope": ("q", "k", "cos", "sin", "q_out", "k_out"),
    "rope_bwd": ("grad_q_out", "grad_k_out", "cos", "sin", "grad_q", "grad_k"),
}


def write(
    name: str,
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    *,
    backward: bool,
) -> None:
    tensors = (q, k, cos, sin, q_out, k_out)
    in_place = q_out is q and k_out is k
    # As keys floats are equal to ints, but they are refused.
    exact = type(sections) in (list, tuple) and set(map(type, sections)) == {int}
    numbers = (name, *sections, q.numel(), in_place) if exact else None
    compared = tensors[:4] if in_place else tensors
    plan = planned(numbers, *compared)
    if plan is not None:
        plan(*tensors)
        written(q_out, k_out)
        return
    widths = check(name, q, k, cos, sin, sections, False)
    check_output(name, q, q_out)
    check_output(name, k, k_out)
    if direct(*tensors):
        named = tuple(zip(NAMES[name], tensors, strict=True))
        refuse_overlaps(name, named[4:], named[:4], in_place=True)
        run("rope", (name, *widths, q.numel(), in_place), compared, *tensors, widths, False, backward)
        written(q_out, k_out)
        return
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{name} writes into its outputs, so autograd cannot record it; use apply_rope, or call it under "
            "torch.no_grad() or inside an autograd.Function"
        )
    rope_out_op(q, k, cos, sin, q_out, k_out, widths, backward)


ROPE = "(Tensor q, Tensor k, Tensor cos, Tensor sin, int[] sections, bool repeated, bool backward)"


@torch.library.custom_op("glm_pto_wallx::rope", mutates_args=(), schema=f"{ROPE} -> (Tensor, Tensor)")
def rope_op(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int], repeated: bool, backward: bool
) -> tuple[Tensor, Tensor]:
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    implementation("rope", q)(q, k, cos, sin, q_out, k_out, sections, repeated, backward)
    return q_out, k_out


@rope_op.register_fake
def _(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int], repeated: bool, backward: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


@torch.library.custom_op(
    "glm_pto_wallx::rope_out",
    mutates_args=("q_out", "k_out"),
    schema=(
        "(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor(a!) q_out, Tensor(b!) k_out, "
        "int[] sections, bool backward) -> ()"
    ),
)
def rope_out_op(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    backward: bool,
) -> None:
    implementation("rope", q)(q, k, cos, sin, q_out, k_out, sections, False, backward)


@rope_out_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    backward: bool,
) -> None:
    return None


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, cos, sin, ctx.sections, ctx.repeated, ctx.backward = inputs
    ctx.tables = cos.requires_grad or sin.requires_grad
    # q and k matter for the gradients of the tables only, which callers hardly ever ask for.
    ctx.save_for_backward(cos, sin, *((q, k) if ctx.tables else ()))


def _grad(ctx: Any, q_grad: Tensor, k_grad: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin, *inputs = ctx.saved_tensors
    turned = rope_op(q_grad, k_grad, cos, sin, ctx.sections, ctx.repeated, not ctx.backward)
    if not ctx.tables:
        return (*turned, None, None, None, None, None)
    tables = table_grads(inputs, (q_grad, k_grad), cos, ctx.sections, ctx.repeated, ctx.backward)
    return (*turned, *tables, None, None, None)


rope_op.register_autograd(_grad, setup_context=_context)
