"""What a step works out once: the position operators, whole calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.wallx.case import Call, peer
from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import reference

MERGE, IMAGE, VIDEO, START = 2, 3, 4, 2


def position_cases() -> list[tuple[str, dict[str, Call]]]:
    """8 x 768 tokens with two images of 32 x 32 patches a sequence."""
    ids = torch.randint(10, 1000, (8, 768), device="cuda")
    for begin in (5, 300):
        ids[:, begin], ids[:, begin + 1 : begin + 257] = START, IMAGE
    grids, mask = torch.tensor([[1, 32, 32]] * 16, device="cuda"), torch.ones_like(ids)
    rates = 1e4 ** -(torch.arange(0, 40, 2, device="cuda") / 40)
    vision = reference.Vision(MERGE, IMAGE, VIDEO, START, 2.0)
    found: list[tuple[str, dict[str, Call]]] = [
        (
            "rope_index",
            {
                "ours": lambda: wallx.get_rope_index(
                    ids, grids, None, None, mask, MERGE, IMAGE, VIDEO, START, 2.0
                ),
                "torch": lambda: reference.rope_index(ids, grids, None, None, mask, vision),
            },
        ),
        (
            "rot_pos_emb",
            {
                "ours": lambda: wallx.rot_pos_emb(rates, grids, MERGE),
                "torch": lambda: reference.rot_pos_emb(rates, grids, MERGE),
            },
        ),
        (
            "get_window_index",
            {
                "ours": lambda: wallx.get_window_index(grids, MERGE, 4, 14, MERGE**2),
                "torch": lambda: reference.get_window_index(grids, MERGE, 4, MERGE**2),
            },
        ),
    ]
    if extension := peer("wallx_csrc"):
        originals = wallx_csrc(extension, ids, grids, mask, rates)
        for (_, calls), call in zip(found, originals, strict=True):
            calls["wallx_csrc"] = call
    for name, calls in found:
        if not same(calls["ours"](), calls["torch"]()):
            raise AssertionError(f"{name} differs from its reference")
    return found


def same(actual: Any, exact: Any) -> bool:
    """Of two results, or of two tuples of them."""
    pairs = zip(actual, exact, strict=True) if isinstance(actual, tuple) else ((actual, exact),)
    return all(torch.equal(a, e) for a, e in pairs)


def wallx_csrc(extension: Any, ids: Tensor, grids: Tensor, mask: Tensor, rates: Tensor) -> tuple[Call, ...]:
    """wall-x's own, in the order of the cases."""
    narrow = grids.to(torch.int32)
    return (
        lambda: extension.rope_index(ids, grids, None, None, mask, MERGE, IMAGE, VIDEO, START, 2.0),
        lambda: extension.rot_pos_emb(rates, grids, MERGE),
        lambda: extension.get_window_index(narrow, MERGE, 4, 14, MERGE**2),
    )
