"""Random sequences of calls: with plans, Triton gives what the reference gives, errors included.

A step is made from its seed alone and from the maps that earlier steps left, so both backends run the same.
Few sizes and many layouts: most calls come again, and calls that are nearly alike stand beside each other.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import plans

ODD = ("transposed", "cut", "strided", "expanded", "negated", "parameter", "leaf")
LAYOUTS = ("dense",) * 14 + ODD
NAMES = ("permute", "permute", "permute_with_map", "unpermute", "unpermute", "bwd", "rope", "rope", "apply")
MODES = ("grad", "grad", "no_grad", "inference", "default_dtype")
DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16)


class Program:
    """One sequence; what a step leaves for later ones is in ``maps``."""

    def __init__(self, seed: int, device: str, kinds: int) -> None:
        self.seed, self.device, self.kinds = seed, device, kinds
        self.maps: list[tuple[Tensor, int, int, int]] = []
        self.workspace: Any = []

    def step(self, number: int) -> Any:
        """What the call gave, as values; the error's type where it was refused."""
        # One kind of call of a few: its second time, with other numbers, may have a plan.
        self.rng = random.Random(f"{self.seed} {random.Random(number).randrange(self.kinds)}")
        torch.manual_seed(self.seed * 1000 + number)
        name = self.rng.choice(NAMES)
        mode = self.rng.choice(MODES)
        try:
            with within(mode, self.device):
                return name, mode, values(getattr(self, name)())
        except (ValueError, TypeError, RuntimeError) as error:
            kind = next(k for k in (ValueError, TypeError, RuntimeError) if isinstance(error, k))
            return name, mode, kind.__name__

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32, layouts: Any = LAYOUTS) -> Tensor:
        """Random numbers in a random layout."""
        layout = self.rng.choice(layouts)
        x = torch.randn(shape, device=self.device).to(dtype)
        if layout == "transposed" and x.dim() > 1:
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        if layout == "cut":
            return torch.cat([x, x, x], dim=-1)[..., shape[-1] : 2 * shape[-1]]
        if layout == "strided":
            return torch.stack([x, x], dim=-1).flatten(-2)[..., ::2]
        if layout == "expanded" and shape[0]:
            return x[:1].expand(shape)
        if layout == "negated":
            return torch._neg_view(x)
        if layout == "parameter":
            return torch.nn.Parameter(x)
        return x.requires_grad_() if layout == "leaf" else x

    def count(self, number: int) -> Any:
        """A number as callers may have it."""
        return self.rng.choice(
            (number, number, number, number, np.int64(number), torch.tensor(number, device="cpu"))
        )

    def sizes(self) -> tuple[int, int, int]:
        return self.rng.choice((0, 1, 3, 3, 5)), self.rng.choice((1, 2)), self.rng.choice((1, 8, 8, 12))

    def permute(self) -> Any:
        tokens, top_k, hidden = self.sizes()
        x = self.tensor(tokens, hidden, dtype=self.rng.choice(DTYPES))
        kind = self.rng.choice((torch.int32, torch.int64))
        ids = torch.randint(-1, 3, (tokens, top_k), device=self.device, dtype=kind)
        if self.rng.random() < 0.3:
            ids = ids.t().contiguous().t()
        rows = self.rng.choice((0, 0, 2, tokens * top_k, tokens * top_k + 2))
        most = tokens * top_k + self.rng.choice((0, 0, 5, -1))
        masked = self.rng.random() < 0.3
        out, row_map, _ = wallx.permute(x, ids, self.count(rows), [], self.count(most), mask_negative=masked)
        self.maps.append((row_map, tokens, top_k, out.shape[0]))
        return backward(x, out), row_map

    def row_map(self) -> tuple[Tensor, int, int, int]:
        """A map of an earlier call, sometimes written to, copied, or a view."""
        if not self.maps:
            return torch.arange(3, device=self.device, dtype=torch.int32), 3, 1, 3
        row_map, *sizes = self.rng.choice(self.maps[-4:])
        what = self.rng.random()
        if what < 0.15 and row_map.numel() and not row_map.is_inference():
            row_map[self.rng.randrange(row_map.numel())] = -1
        elif what < 0.25:
            row_map = copy.deepcopy(row_map)
        elif what < 0.35:
            row_map = torch.stack([row_map, row_map], 1)[:, 0]
        elif what < 0.4:
            row_map = row_map.long()
        return (row_map, *sizes)

    def permute_with_map(self) -> Any:
        row_map, tokens, top_k, rows = self.row_map()
        x = self.tensor(tokens, self.rng.choice((1, 8)), dtype=self.rng.choice(DTYPES))
        return backward(x, wallx.permute_with_map(x, row_map, self.count(rows), self.count(top_k)))

    def prob(self, tokens: int, top_k: int) -> Tensor | None:
        return self.rng.choice(
            (None, self.tensor(tokens, top_k, dtype=self.rng.choice(DTYPES)), torch.tensor([]))
        )

    def unpermute(self) -> Any:
        row_map, tokens, top_k, rows = self.row_map()
        y, prob = self.tensor(rows, 8, dtype=self.rng.choice(DTYPES)), self.prob(tokens, top_k)
        return backward(y, wallx.unpermute(y, row_map, prob, self.count(tokens), self.count(top_k)), prob)

    def bwd(self) -> Any:
        row_map, tokens, top_k, rows = self.row_map()
        kind = self.rng.choice(DTYPES)
        prob = None if top_k == 1 else self.tensor(tokens, top_k)
        return wallx.unpermute_bwd(
            self.tensor(tokens, 8, dtype=kind), self.tensor(rows, 8, dtype=kind), row_map, prob
        )

    def rotary(self) -> tuple[Tensor, ...]:
        batch, length = self.rng.choice((1, 2)), self.rng.choice((0, 3, 3))
        q_heads, k_heads = self.rng.choice(((2, 2), (2, 1), (0, 1)))
        tables = [self.tensor(3, batch, length, 8) for _ in range(2)]
        return self.tensor(batch, q_heads, length, 8), self.tensor(batch, k_heads, length, 8), *tables

    def rope(self) -> Any:
        q, k, cos, sin = self.rotary()
        outs = [self.tensor(*x.shape) for x in (q, k)]
        alias = self.rng.random()
        if alias < 0.2:
            outs = [q, k]
        elif alias < 0.3:
            outs[0] = q
        elif alias < 0.4 and q.shape == k.shape:
            outs = [k, q]
        sections = self.rng.choice(
            ([2, 3, 3], [2, 3, 3], (2, 3, 3), [8, 0, 0], torch.tensor([0, 4, 4]), [2, 2, 2])
        )
        if self.rng.random() < 0.3:
            wallx.rope_bwd(q, k, q, k, cos, sin, *outs, sections)
        else:
            wallx.rope(q, k, cos, sin, *outs, sections)
        return q, k, *outs

    def apply(self) -> Any:
        q, k, cos, sin = self.rotary()
        sections, bands = self.rng.choice((([2, 3, 3], "consecutive"), ([1, 2, 1], "repeated")))
        q_out, k_out = wallx.apply_rope(q, k, cos, sin, sections, bands=bands)
        return backward(q, q_out, cos), backward(k, k_out, sin)


@contextlib.contextmanager
def within(mode: str, device: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if mode == "no_grad":
            stack.enter_context(torch.no_grad())
        elif mode == "inference":
            stack.enter_context(torch.inference_mode())
        elif mode == "default_dtype":
            before = torch.get_default_dtype()
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(torch.float64)
        yield


def backward(x: Tensor, out: Tensor, other: Tensor | None = None) -> Any:
    """The result, and the gradients of all that ask for one."""
    leaves = [leaf for leaf in (x, other) if leaf is not None and leaf.requires_grad and leaf.is_leaf]
    if not (leaves and torch.is_grad_enabled()):
        return out, out.requires_grad
    grads = torch.autograd.grad((out * out).sum(), leaves, allow_unused=True) if out.requires_grad else ()
    return out, out.requires_grad, *grads


def values(result: Any) -> list[Any]:
    """Flat, and by value: what is in a tensor when the call returns."""
    if isinstance(result, tuple | list):
        return [value for each in result for value in values(each)]
    if isinstance(result, Tensor):
        return [result.is_inference(), result.detach().resolve_neg().clone()]
    return [result]


def differ(found: Any, expected: Any) -> str | None:
    if found[:2] != expected[:2] or isinstance(found[2], str) or isinstance(expected[2], str):
        return None if found == expected else f"{found} where {expected} was expected"
    try:
        torch.testing.assert_close(found[2], expected[2], rtol=2e-2, atol=2e-2, equal_nan=True)
    except AssertionError as error:
        return f"{found[:2]}: {error}"
    return None


def run(place: Any, seed: int, steps: int, kinds: int) -> None:
    outcomes = []
    for backend in ("torch", "triton"):
        with wallx.using(backend):
            program = Program(seed, place.device, kinds)
            outcomes.append([program.step(number) for number in range(steps)])
            planned = bool(plans.PLANS)
    assert planned
    for number, (expected, found) in enumerate(zip(*outcomes, strict=True)):
        reason = differ(found, expected)
        assert reason is None, f"step {number} of program {seed}: {reason}"


@pytest.mark.parametrize("seed", range(1))
def test_a_sequence_gives_what_the_reference_gives(place, nan_filled, seed):
    if place.name == "torch":
        pytest.skip("compared with the reference")
    run(place, seed, 60, kinds=15)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_long_sequences_give_what_the_reference_gives(place, nan_filled, seed):
    if place.name == "torch":
        pytest.skip("compared with the reference")
    run(place, seed, 600, kinds=60)
