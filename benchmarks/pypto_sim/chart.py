"""A bar chart of the headline rows as SVG, written without a plotting library."""

from collections.abc import Sequence
from typing import Any

WIDTH, LABEL, BAR, GAP, TOP = 760, 190, 13, 12, 46
COLOURS = {"upstream": "#b8bec6", "ours": "#1f6feb", "roofline": "#1a7f37"}
TEXT = "font-family='system-ui, sans-serif' font-size='12' fill='#57606a'"


def draw(rows: Sequence[Any]) -> str:
    """``rows`` have operator, label, ours_us, upstream_us (or None), least_us and headline."""
    chosen = [row for row in rows if row.headline]
    longest = max(max(row.ours_us, row.upstream_us or 0.0) for row in chosen)
    scale = (WIDTH - LABEL - 60) / longest
    parts, y = [_legend()], TOP
    for row in chosen:
        parts.append(_text(LABEL - 8, y + BAR + 4, f"{row.operator}, {row.label}", "end"))
        for kind, value in (("upstream", row.upstream_us), ("ours", row.ours_us)):
            if value is not None:
                parts.append(_bar(y, value * scale, kind))
                parts.append(_text(LABEL + value * scale + 5, y + BAR - 2, f"{value:.2f}"))
            y += BAR
        at = LABEL + row.least_us * scale
        parts.append(
            f"<line x1='{at:.1f}' x2='{at:.1f}' y1='{y - 2 * BAR}' y2='{y}' stroke='{COLOURS['roofline']}' "
            "stroke-width='2'/>"
        )
        y += GAP
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {y}' role='img'>"
    title = "<title>Simulated time of the PyPTO kernels, ours and upstream's</title>"
    return "\n".join(
        [head, title, f"<rect width='{WIDTH}' height='{y}' fill='#ffffff'/>", *parts, "</svg>\n"]
    )


def _legend() -> str:
    names = {
        "upstream": "upstream r0.2.0",
        "ours": "ours",
        "roofline": "least time by bytes and operations",
    }
    parts, x = [_text(8, 24, "simulated us")], LABEL
    for kind, name in names.items():
        parts.append(f"<rect x='{x}' y='15' width='12' height='12' fill='{COLOURS[kind]}'/>")
        parts.append(_text(x + 18, 25, name))
        x += 36 + 7 * len(name)
    return "\n".join(parts)


def _bar(y: float, width: float, kind: str) -> str:
    return f"<rect x='{LABEL}' y='{y}' width='{width:.1f}' height='{BAR - 1}' fill='{COLOURS[kind]}'/>"


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y}' text-anchor='{anchor}' {TEXT}>{words}</text>"
