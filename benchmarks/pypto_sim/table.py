"""The results as Markdown: ``python -m benchmarks.pypto_sim.table < results.json``."""

import json
import math
import sys
from typing import Any

HEAD = """| operator | shape | ours us | upstream us | ratio | least us | cores used % |
| --- | --- | --- | --- | --- | --- | --- |"""


def rows(results: list[dict[str, Any]]) -> str:
    lines = [HEAD]
    for row in results:
        theirs = row["upstream_us"]
        ratio = f"{row['ours_us'] / theirs:.2f}" if theirs else ""
        cells = [row["operator"], row["label"], f"{row['ours_us']:.2f}", f"{theirs:.2f}" if theirs else ""]
        cells += [ratio, f"{row['least_us']:.2f}", f"{row['ours_utilisation']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_ratio(results: list[dict[str, Any]]) -> float:
    """Geometric mean of ours over upstream's, of the headline rows."""
    chosen = [row for row in results if row["headline"] and row["upstream_us"]]
    return math.prod(row["ours_us"] / row["upstream_us"] for row in chosen) ** (1 / len(chosen))


if __name__ == "__main__":
    print(rows(json.load(sys.stdin)))
