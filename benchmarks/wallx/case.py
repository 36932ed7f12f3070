"""What a case is: one operator at one shape with everyone who computes it, and what cases are made of."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BF16 = torch.bfloat16
ULPS = "ours, largest error in units of the last place"
Call = Callable[[], Any]


@dataclass
class Case:
    """One operator at one shape."""

    operator: str
    shape: str
    bytes: int
    calls: dict[str, Call]
    errors: dict[str, float] = field(default_factory=dict)

    def wrong_by(self, what: str, *errors: float) -> None:
        """Note errors. The worst of all draws and outputs counts; what is no number is the worst of all."""
        worst = [math.inf if math.isnan(error) else error for error in errors]
        self.errors[what] = max(self.errors.get(what, 0.0), *worst)

    def compare(self, who: str, results: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
        """Note how far rounded results are from exact ones; ours element by element, too."""
        pairs = list(zip(results, exact, strict=True))
        self.wrong_by(who, *(relative(*pair) for pair in pairs))
        if who == "ours":
            self.wrong_by(ULPS, *(ulps(*pair) for pair in pairs))


def peer(name: str) -> Any:
    """The module, or None where its package is not installed."""
    package = name.partition(".")[0]
    return importlib.import_module(name) if importlib.util.find_spec(package) else None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def relative(actual: Tensor, exact: Tensor) -> float:
    """Norm of the error over the norm of the exact result."""
    return ((actual.double() - exact.double()).norm() / exact.double().norm()).item()


def ulps(actual: Tensor, exact: Tensor) -> float:
    """Largest error of one element, in units of the last place that the exact value has in the result's type.

    Of values that nearly cancelled, what fp32 sums are off by is more than their last place: below a
    hundredth of the root mean square, its unit counts.
    """
    wide = exact.float()
    least = wide.square().mean().sqrt() / 100
    exponent = torch.frexp(wide.abs().clamp(min=least)).exponent
    digits = 1 - round(math.log2(torch.finfo(actual.dtype).eps))
    return ((actual.float() - wide).abs() * torch.exp2((digits - exponent).float())).max().item()


def copy_of(size: int) -> Call:
    """A plain copy that moves ``size`` bytes, read and written together."""
    source = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def routing(tokens: int, top_k: int) -> Tensor:
    """int32 [T, K]: uniform over 2, 8 or 64 experts, distinct for one token."""
    experts = {1: 2, 2: 8, 8: 64}[top_k]
    return torch.rand(tokens, experts, device="cuda").topk(top_k).indices.to(torch.int32)


def rows(tokens: int, hidden: int) -> Tensor:
    return torch.randn(tokens, hidden, device="cuda").to(BF16)


def poison() -> None:
    """Leave NaN in the memory that the next outputs will take."""
    blocks = [torch.full((1 << 26,), float("nan"), device="cuda") for _ in range(4)]
    del blocks


def label(tokens: int, hidden: int, top_k: int) -> str:
    return f"T={tokens} H={hidden} K={top_k}"
