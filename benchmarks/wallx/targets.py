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
    """At most ``limit``: us of ``kind``, a share of what ``over`` takes in the same run, or us more than the
    operator ``above`` takes there.
    """

    operator: str
    shape: str
    limit: float
    kind: str = "gpu_only"
    over: str | None = None
    above: str | None = None

    def found(self, results: dict[str, Any]) -> float | None:
        """What a run measured; None where it left a case out."""
        taken = {(case["operator"], case["shape"]): case["times"] for case in results["cases"]}
        times, less = taken.get((self.operator, self.shape)), taken.get((self.above, self.shape))
        if times is None or (self.above and less is None):
            return None
        ours: float = times["ours"][self.kind]
        if less is not None:
            return ours - float(less["ours"][self.kind])
        return ours if self.over is None else ours / float(times[self.over][self.kind])

    @property
    def unit(self) -> str:
        if self.above is not None:
            return f"us more than {self.above}"
        if self.over is None:
            return "us on the host" if self.kind == "back_to_back" else "us"
        return f"of {self.over}"


def each(operator: str, shape: str, limits: dict[Any, float], **options: Any) -> list[Target]:
    """One target for each number that ``shape`` takes."""
    return [Target(operator, shape.format(at), limit, **options) for at, limit in limits.items()]


MAPPED, ROW = "permute, map given", "T={} H=2048 K=1"
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
            over="two torch.mm",
        )
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
    if not lacking:
        return said
    rows = [said, "", "| not reached | found | aimed at |", "| --- | --- | --- |"]
    for target, value in lacking:
        case, unit = f"{target.operator} {target.shape}", target.unit
        rows.append(f"| {case} | {value:.4g} {unit} | {target.limit:.4g} {unit} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(verdict(json.loads(Path(sys.argv[1]).read_text())))
