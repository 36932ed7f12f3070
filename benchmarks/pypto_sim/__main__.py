"""Simulated times of our PyPTO kernels, beside upstream's where a checkout is at hand.

``python -m benchmarks.pypto_sim [--wide] [--only WORD] [--json FILE] [--chart FILE]``

Upstream's kernels run on the same inputs when GLM_PTO_UPSTREAM names a checkout of the PyPTO project (the
recorded results: tag r0.2.0). All times are the cost model's, never a measurement on hardware.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.pypto_sim import cases, chart, shapes, table, upstream
from benchmarks.pypto_sim.simulator import SimulationError, simulate


@dataclass(frozen=True)
class Row:
    """One line of the result; microseconds are simulated, utilisation is of all cores in percent."""

    operator: str
    label: str
    headline: bool
    ours_us: float
    ours_utilisation: float
    upstream_us: float | None
    upstream_utilisation: float | None
    least_us: float
    bytes_moved: float
    products: float

    @property
    def ratio(self) -> float | None:
        return self.ours_us / self.upstream_us if self.upstream_us else None


def measure(shape: shapes.Shape, compare: bool) -> Row:
    ours = simulate(getattr(cases, f"ours_{shape.operator}"), passes=None, **shape.sizes)
    theirs = None
    if compare and shapes.upstream_runs(shape):
        try:
            theirs = simulate(getattr(upstream, shape.operator), passes=None, **shape.sizes)
        except SimulationError as error:
            print(f"upstream does not run {shape.name}: {str(error).splitlines()[0]}")
    return Row(
        shape.operator,
        shape.label,
        shape.headline,
        ours.time_us,
        ours.utilisation,
        theirs and theirs.time_us,
        theirs and theirs.utilisation,
        shape.work.least_us(),
        shape.work.moved,
        shape.work.products,
    )


def line(row: Row) -> str:
    theirs = f"{row.upstream_us:9.2f} {row.ratio:6.2f}" if row.upstream_us else f"{'':9} {'':6}"
    return (
        f"{row.operator:16} {row.label:28} {row.ours_us:8.2f} {row.ours_utilisation:5.1f}% {theirs} "
        f"{row.least_us:8.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wide", action="store_true", help="more token counts, shards and models")
    parser.add_argument("--only", default="", help="only shapes with this word in their name")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--chart", type=Path, help="draw the headline rows there, as SVG")
    options = parser.parse_args()
    compare = upstream.folder() is not None
    chosen = shapes.headline() + (shapes.wide() if options.wide else [])
    print(
        f"{'operator':16} {'shape':28} {'ours us':>8} {'used':>6} {'upstream':>9} {'ratio':>6} {'least':>8}"
    )
    rows = []
    start = time.monotonic()
    for shape in chosen:
        if options.only in shape.name:
            rows.append(measure(shape, compare))
            print(line(rows[-1]), flush=True)
            if options.json:  # after each row, as a run takes many minutes
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    results = [asdict(row) for row in rows]
    if any(row.headline and row.upstream_us for row in rows):
        print(f"geometric mean of the ratios, 8 and 32 tokens: {table.mean_ratio(results):.3f}")
    print(f"simulated, not hardware; {len(rows)} shapes in {time.monotonic() - start:.0f} s")
    if options.chart:
        options.chart.write_text(chart.draw(rows))


if __name__ == "__main__":
    main()
