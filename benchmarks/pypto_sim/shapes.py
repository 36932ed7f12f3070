"""What the benchmark runs: a name, the operator and its sizes, and whether upstream is asked as well."""

from dataclasses import dataclass
from typing import Any

from benchmarks.pypto_sim import roofline


@dataclass(frozen=True)
class Shape:
    operator: str
    label: str
    sizes: dict[str, Any]
    work: roofline.Work
    headline: bool = False  # counts in the geometric mean that is quoted

    @property
    def name(self) -> str:
        return f"{self.operator} {self.label}"


def headline() -> list[Shape]:
    """GLM-4.5 at tensor parallel size 8, a decode step of 8 and of 32 tokens."""
    return [
        Shape(operator, f"{tokens} tokens", sizes, work, headline=True)
        for tokens in (8, 32)
        for operator, sizes, work in (
            ("gate", {"tokens": tokens}, roofline.gate(tokens)),
            ("select_experts", {"tokens": tokens}, roofline.select_experts(tokens)),
            ("paged_attention", {"lengths": (1024,) * tokens}, roofline.paged_attention(tokens)),
            ("attention_pre", {"tokens": tokens}, roofline.attention_pre(tokens)),
            ("shared_expert", {"tokens": tokens}, roofline.shared_expert(tokens)),
        )
    ]


def wide() -> list[Shape]:
    """More token counts where upstream runs as well, then other shards and models."""
    shapes = []
    for tokens in (16, 64, 128):
        for operator in ("gate", "select_experts", "attention_pre", "shared_expert"):
            work = getattr(roofline, operator)(tokens)
            shapes.append(Shape(operator, f"{tokens} tokens", {"tokens": tokens}, work))
    for count, length in ((16, 1024), (8, 4096), (8, 300)):
        work = roofline.paged_attention(count, length)
        label = f"{count} sequences of {length}"
        shapes.append(Shape("paged_attention", label, {"lengths": (length,) * count}, work))
    for tp in (1, 2, 4, 16):
        both = {"heads": 96 // tp, "kv_heads": max(1, 8 // tp)}
        sizes = {"tokens": 8, **both}
        shapes += [
            Shape("attention_pre", f"8 tokens, TP-{tp}", sizes, roofline.attention_pre(**sizes)),
            Shape(
                "paged_attention",
                f"8 sequences of 1024, TP-{tp}",
                {"lengths": (1024,) * 8, **both},
                roofline.paged_attention(**sizes),
            ),
        ]
        sizes = {"tokens": 8, "intermediate": 1536 // tp}
        shapes.append(Shape("shared_expert", f"8 tokens, TP-{tp}", sizes, roofline.shared_expert(**sizes)))
    return shapes + air()


def air() -> list[Shape]:
    """GLM-4.5-Air, 8 tokens: gate and expert selection are not sharded."""
    least = roofline.attention_pre(8, 4096)
    sizes = {"tokens": 8, "hidden": 4096}
    router = {"tokens": 8, "experts": 128}
    shards = [(tp, {**sizes, "intermediate": 1408 // tp}) for tp in (4, 8, 16)]
    return [
        Shape("gate", "8 tokens, Air", {**sizes, "experts": 128}, roofline.gate(8, 4096, 128)),
        Shape("select_experts", "8 tokens, Air", router, roofline.select_experts(**router)),
        Shape("attention_pre", "8 tokens, Air TP-8", {**sizes, "head_norm": False}, least),
        *(
            Shape("shared_expert", f"8 tokens, Air TP-{tp}", mlp, roofline.shared_expert(**mlp))
            for tp, mlp in shards
        ),
    ]


# What may vary in upstream's kernels; their entries refuse other sizes, attention's runs no task for 6 heads.
UPSTREAM_TAKES = {"tokens", "lengths"}


def upstream_runs(shape: Shape) -> bool:
    return set(shape.sizes) <= UPSTREAM_TAKES
