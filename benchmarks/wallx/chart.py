"""``python benchmarks/wallx/chart.py RESULTS.json CHART.svg``: the chart, and on standard output the tables.

Memory-bound operators are drawn as a share of a plain copy of the same bytes in the same run, matrix
products as a share of two ``torch.mm``. Shorter is faster; 1 is the dashed line.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HIDDEN = {"copy", "two torch.mm again"}
WIDTH, LEFT, SCALE, ROW, CAP = 900, 250, 260, 30, 2.3
OURS, OTHER, TEXT = "#2f6fde", "#b9bec9", "#20242c"


@dataclass(frozen=True)
class Line:
    """One case: our time and the best other's, over the yardstick's."""

    label: str
    ours: float
    other: float
    name: str
    unit: float
    floor: float

    @property
    def shares(self) -> tuple[float, float]:
        return self.ours / self.unit, self.other / self.unit


def lines(results: dict[str, Any]) -> list[Line]:
    found, ceilings = [], results["ceilings"]
    for case in results["cases"]:
        gemm = case["operator"] == "dual GEMM"
        kind, yardstick = "interleaved" if gemm else "gpu_only", yardstick_of(case)
        times = {name: kinds[kind] for name, kinds in case["times"].items()}
        others = {n: t for n, t in times.items() if n not in HIDDEN and n != "ours"}
        name = min(others, key=lambda n: others[n])
        label = f"{case['operator']} {case['shape']}"
        # us: bytes over GB/s of a large copy, or operations over TFLOP/s of a large product.
        floor = case["bytes_or_flops"] / (
            ceilings["mm_tflop_s"] * 1e6 if gemm else ceilings["copy_gb_s"] * 1e3
        )
        found.append(Line(label, times["ours"], others[name], name, times[yardstick], floor))
    return found


def table(results: dict[str, Any]) -> str:
    rows = [
        "| case | ours, us | best other, us | copy or two mm, us | share | floor over ours |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in lines(results):
        other = f"{one.other:.1f} ({one.name})"
        shares = f"{one.shares[0]:.2f} | {one.floor / one.ours:.2f}"
        rows.append(f"| {one.label} | {one.ours:.1f} | {other} | {one.unit:.1f} | {shares} |")
    return "\n".join(rows)


def small(results: dict[str, Any]) -> str:
    """What else was timed where the host matters: ours and, after the stroke, the yardstick."""
    kinds = ("back_to_back", "graph", "do_bench")
    rows = [
        "| ours / copy or two mm, us | host, back to back | in a CUDA graph | between events |",
        "| --- | --- | --- | --- |",
    ]
    for case in results["cases"]:
        ours, yardstick = (case["times"].get(who, {}) for who in ("ours", yardstick_of(case)))
        if "back_to_back" in ours:
            cells = (
                f"{ours[k]:.1f} / {yardstick[k]:.1f}" if k in ours and k in yardstick else "" for k in kinds
            )
            rows.append(f"| {case['operator']} {case['shape']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def yardstick_of(case: dict[str, Any]) -> str:
    return "two torch.mm" if case["operator"] == "dual GEMM" else "copy"


def positions(results: dict[str, Any]) -> str:
    """The operators that a step runs once: whole calls, host included."""
    names = ["ours", "torch", "wallx_csrc"]
    rows = [
        "| once a step, whole call | ours, us | torch, us | wallx_csrc, us |",
        "| --- | --- | --- | --- |",
    ]
    for name, times in results.get("positions", {}).items():
        cells = (f"{times[n]:.0f}" if n in times else "" for n in names)
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def chart(results: dict[str, Any]) -> str:
    found = lines(results)
    height = ROW * len(found) + 70
    one = LEFT + SCALE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(LEFT, 18, "time over a plain copy of the same bytes (matrix products: over two torch.mm)"),
        bar(LEFT, 26, 10, OURS),
        text(LEFT + 16, 35, "ours"),
        bar(LEFT + 60, 26, 10, OTHER),
        text(LEFT + 76, 35, f"best other in the same run, cut off at {CAP}"),
    ]
    for i, line in enumerate(found):
        top = 48 + i * ROW
        parts.append(text(LEFT - 8, top + 14, line.label, "end"))
        for share, offset, colour, note in (
            (line.shares[0], 0, OURS, f"{line.shares[0]:.2f}"),
            (line.shares[1], 11, OTHER, f"{line.shares[1]:.2f} {line.name}"),
        ):
            length = SCALE * min(share, CAP)
            parts.append(bar(LEFT, top + offset, length, colour))
            parts.append(text(LEFT + length + 5, top + offset + 9, note))
    parts.append(
        f'<line x1="{one}" y1="42" x2="{one}" y2="{height - 12}" stroke="{TEXT}" stroke-dasharray="3 3"/>'
    )
    return "\n".join([*parts, "</svg>", ""])


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{safe}</text>'


def bar(x: float, y: float, length: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{length:.1f}" height="10" fill="{colour}"/>'


if __name__ == "__main__":
    measured = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(chart(measured))
    print(table(measured))
    print()
    print(small(measured))
    print()
    print(positions(measured))
