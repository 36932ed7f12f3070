"""The user's own build of ``wallx_csrc`` as a backend, adapted to what it can read.

It is never taken by itself: choose it with ``backends.use("wallx_csrc")``. Its limits stay its own (bf16
only for the dual GEMM, unmapped rows of gradients uninitialised, no -1 masking).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.reference.rope_index import Vision


def extension() -> Any:
    """The extension module, or the error of its own import."""
    return importlib.import_module("wallx_csrc")


def dual_gemm(
    a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor, o0: Tensor, o1: Tensor, trans_a: bool, trans_b: bool
) -> None:
    """Strided outputs are written through a contiguous copy, which the extension alone would lose."""
    whole = [o.contiguous() for o in (o0, o1)]
    inputs = [t.contiguous() for t in (a0, a1, b0, b1)]
    extension().asym_dual_gmm(*inputs, *whole, trans_a, trans_b)
    for out, result in zip((o0, o1), whole, strict=True):
        if result is not out:
            out.copy_(result)


def permute(
    x: Tensor,
    indices: Tensor,
    num_out_tokens: int,
    mask_negative: bool,
    workspace: Sequence[Tensor] = (),
    max_slots: int = 0,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    if mask_negative:
        raise ValueError("wallx_csrc cannot mask negative expert ids; choose another backend")
    slots = max(max_slots, indices.numel())
    permuted, row_id_map, workspace = extension().permute(
        x.contiguous(), indices.to(torch.int32).contiguous(), num_out_tokens, list(workspace), slots
    )
    return permuted, row_id_map, workspace


def permute_with_map(x: Tensor, row_id_map: Tensor, rows: int, top_k: int) -> Tensor:
    raise RuntimeError("wallx_csrc cannot permute with a map that was made earlier; choose another backend")


def unpermute(y: Tensor, row_id_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Tensor:
    weights = torch.tensor([]) if prob is None else prob.float().contiguous()
    summed: Tensor = extension().unpermute(y.contiguous(), row_id_map, weights, tokens, top_k)
    return summed


def unpermute_bwd(grad: Tensor, y: Tensor, row_id_map: Tensor, prob: Tensor | None) -> tuple[Tensor, Tensor]:
    if prob is None:
        prob = torch.ones(grad.shape[0], 1, dtype=torch.float32, device=grad.device)
    grads: tuple[Tensor, Tensor] = extension().unpermute_bwd(
        grad.contiguous(), y.contiguous(), row_id_map, prob.float().contiguous()
    )
    return grads


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    sections: Sequence[int],
    repeated: bool,
    backward: bool,
) -> None:
    if repeated:
        raise ValueError("wallx_csrc has no repeated bands; choose another backend")
    inputs = [t.contiguous() for t in (q, k)]
    tables = [t.contiguous() for t in (cos, sin)]
    # The extension cannot work in place and ignores strides, so it gets outputs of its own.
    results = [torch.empty_like(t) for t in inputs]
    if backward:
        extension().rope_bwd(*inputs, *inputs, *tables, *results, list(sections))
    else:
        extension().rope(*inputs, *tables, *results, list(sections))
    q_out.copy_(results[0])
    k_out.copy_(results[1])


def rope_index(
    input_ids: Tensor,
    image_grid_thw: Tensor | None,
    video_grid_thw: Tensor | None,
    second_per_grid_ts: Tensor | None,
    attention_mask: Tensor | None,
    vision: Vision,
) -> tuple[Tensor, Tensor]:
    position_ids, deltas = extension().rope_index(
        input_ids,
        image_grid_thw,
        video_grid_thw,
        second_per_grid_ts,
        attention_mask,
        vision.merge,
        vision.image_token,
        vision.video_token,
        vision.start_token,
        vision.tokens_per_second,
    )
    return position_ids, deltas


def rot_pos_emb(inv_freq: Tensor, grid_thw: Tensor, merge: int) -> Tensor:
    found: Tensor = extension().rot_pos_emb(inv_freq.float(), grid_thw, merge)
    return found


def get_window_index(grid_thw: Tensor, merge: int, window: int, unit: int) -> tuple[Tensor, Tensor]:
    """The extension does not use its patch size."""
    index, bounds = extension().get_window_index(grid_thw.to(torch.int32), merge, window, 1, unit)
    return index, bounds
