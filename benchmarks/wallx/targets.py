"""``python benchmarks/wallx/targets.py RESULTS.json``: what is aimed at on an H200, and what a run missed.

Absolute targets are what the best other implementation took on an H200 before, and less; shares are of a
plain copy of the same bytes, or of two ``torch.mm`` in turn, in the same run. What ``permute`` takes above
the time that it takes with a map is its sort.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Target:
    """At most ``limit``: us of ``kind``, a share of what ``over`` takes in the same run, that share over the
    one at shape ``beside``, us more than the operator ``above`` takes, or an ``error``.
    """

    operator: str
    shape: str
    limit: float
    kind: str = "gpu_only"
    over: str | None = None
    above: str | None = None
    beside: str | None = None
    error: str | None = None

    def found(self, results: dict[str, Any]) -> float | None:
        """What a run measured; None where it left a case or an error out."""
        taken = {(case["operator"], case["shape"]): case for case in results["cases"]}
        case, less = taken.get((self.operator, self.shape)), taken.get((self.above, self.shape))
        beside = taken.get((self.operator, self.beside))
        if case is None or (self.above and less is None) or (self.beside and beside is None):
            return None
        if self.error is not None:
            return case["errors"].get(self.error)  # type: ignore[no-any-return]
        if less is not None:
            return self.us(case) - self.us(less)
        if beside is not None:
            return self.share(case) / self.share(beside)
        return self.us(case) if self.over is None else self.share(case)

    def us(self, case: dict[str, Any], who: str = "ours") -> float:
        return float(case["times"][who][self.kind])

    def share(self, case: dict[str, Any]) -> float:
        assert self.over is not None
        return self.us(case) / self.us(case, self.over)

    @property
    def unit(self) -> str:
        if self.error is not None:
            return f"({self.error})"
        if self.above is not None:
            return f"us more than {self.above}"
        if self.beside is not None:
            return f"of the share of {self.over} at {self.beside}"
        if self.over is None:
            return "us on the host" if self.kind == "back_to_back" else "us"
        return f"of {self.over}"


def each(operator: str, shape: str, limits: dict[Any, float], **options: Any) -> list[Target]:
    """One target for each number that ``shape`` takes."""
    return [Target(operator, shape.format(at), limit, **options) for at, limit in limits.items()]


MAPPED, ROW, MM = "permute, map given", "T={} H=2048 K=1", "two torch.mm"
PROB_GRAD = "prob_grad, largest error"  # of whom, goes before it
TARGETS = [
    *each("permute", ROW, {512: 8, 2048: 11, 6144: 20, 16384: 40, 65536: 150}),
    *each("permute", ROW, dict.fromkeys((512, 2048, 6144, 16384, 65536), 5), above=MAPPED),
    *each("permute", "T=4096 H=4096 K={}", {2: 5, 8: 5}, above=MAPPED),
    *each(MAPPED, ROW, {512: 3.1, 2048: 6.5}),
    *each(MAPPED, ROW, {6144: 1.05, 16384: 1.05, 65536: 1.05}, over="copy"),
    *each("unpermute", ROW, {512: 3.0, 2048: 6.3}),
    *each("unpermute", ROW, {6144: 1.05, 16384: 1.05, 65536: 1.05}, over="copy"),
    *each("unpermute", "T=4096 H=4096 K={}", {2: 27, 8: 76}),
    *each("unpermute_bwd", "T={} H=2048 K=2", {512: 4.3, 6144: 33, 65536: 325}),
    *each(
        "unpermute_bwd",
        "T={} K=2",
        dict.fromkeys(("512 H=2048", "2048 H=2048", "6144 H=2048", "65536 H=2048", "6143 H=2040"), 1e-4),
        error=f"ours, {PROB_GRAD}",
    ),
    Target("unpermute_bwd", "T=4096 H=4096 K=8", 1e-4, error=f"ours, {PROB_GRAD}"),
    *each("rope", "B={}, views", {"1 S=768": 4.2, "8 S=768": 17, "8 S=2048": 42}),
    *each("rope_bwd", "B={}, views", {"1 S=768": 4.2, "8 S=768": 17, "8 S=2048": 42}),
    *(
        target
        for layout in ("NN", "NT")
        for target in each(
            "dual GEMM",
            f"rows {{}} {layout}",
            {"448+32": 0.86, "2048+64": 1.0, "6144+256": 1.02, "16384+1024": 1.02},
            kind="interleaved",
            over=MM,
        )
    ),
    # Odd shapes, as fast within a fifth as even ones.
    *(
        Target(operator, odd, 1.2, over="copy", beside=even)
        for operator, odd, even in (
            ("permute", "T=6143 H=2040 K=1", "T=6144 H=2048 K=1"),
            ("unpermute", "T=4099 H=2056 K=2", "T=4096 H=4096 K=2"),
            ("unpermute_bwd", "T=6143 H=2040 K=2", "T=6144 H=2048 K=2"),
            ("rope", "B=8 S=768 D=80, views", "B=8 S=768, views"),
            ("rope_bwd", "B=8 S=768 D=80, views", "B=8 S=768, views"),
        )
    ),
    *(
        Target("dual GEMM", f"rows 447+33 {layout}", 1.2, "interleaved", MM, beside=f"rows 448+32 {layout}")
        for layout in ("NN", "NT")
    ),
    # One product, and rows that are not aligned: within a fifth of torch.mm.
    *(
        Target("dual GEMM", f"rows {rows.format(layout)}", 1.2, "interleaved", MM)
        for layout in ("NN", "NT")
        for rows in ("448+0 {}", "448+32 {}, k=2047 n=11007", "6144+256 {}, k=2047 n=11007")
    ),
    Target("permute", "T=512 H=2048 K=1", 20, "back_to_back"),
    Target("unpermute", "T=512 H=2048 K=1", 9, "back_to_back"),
    Target("rope", "B=1 S=768, views", 28, "back_to_back"),
]


def missed(results: dict[str, Any]) -> list[tuple[Target, float]]:
    """Targets that a run did not reach."""
    return [(target, value) for target, value in tried(results) if value > target.limit]


def tried(results: dict[str, Any]) -> list[tuple[Target, float]]:
    """Targets whose cases a run did not leave out."""
    found = [(target, target.found(results)) for target in TARGETS]
    return [(target, value) for target, value in found if value is not None]


def verdict(results: dict[str, Any]) -> str:
    """How many targets a run reached and, as a Markdown table, which it missed."""
    lacking, count = missed(results), len(tried(results))
    said = f"{count - len(lacking)} of {count} targets reached"
    if count < len(TARGETS):
        said += f", {len(TARGETS) - count} not tried"
    if not lacking:
        return said
    rows = [said, "", "| not reached | found | aimed at |", "| --- | --- | --- |"]
    for target, value in lacking:
        case, unit = f"{target.operator} {target.shape}", target.unit
        rows.append(f"| {case} | {value:.4g} {unit} | {target.limit:.4g} {unit} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(verdict(json.loads(Path(sys.argv[1]).read_text())))
