"""The sizes that a kernel is asked about when it is chosen: GLM-4.5 and GLM-4.5-Air on 1 to 32 ranks.

A condition runs in every eager step, so it looks a layer's sizes up in the set of those that the kernel takes
(`Choice.sizes`) and does not ask the kernel again. Other models' sizes are in no set: they stay native.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

RANKS = (1, 2, 4, 8, 16, 32)
EXPERTS = range(8, 513, 8)  # pruned variants differ in this number only
TOP_K = range(1, 17)


@dataclass(frozen=True)
class Model:
    """The sizes of a whole model; heads and the shared expert are divided among the ranks."""

    hidden: int
    intermediate: int
    heads: int = 96
    kv_heads: int = 8
    head: int = 128
    rotary: int = 64


MODELS = (Model(hidden=5120, intermediate=1536), Model(hidden=4096, intermediate=1408))


def asked(operator: str) -> Iterator[tuple[tuple[int, ...], Mapping[str, int]]]:
    """(what a condition looks up, the kernel's names for it) for every size that is asked about."""
    if operator == "select_experts":
        yield from (((e, k), {"experts": e, "top_k": k}) for e in EXPERTS for k in TOP_K if k <= e)
        return
    for model in MODELS:
        if operator == "gate":
            yield from (((e, model.hidden), {"hidden": model.hidden, "experts": e}) for e in EXPERTS)
            continue
        for ranks in RANKS:
            yield from _on_rank(operator, model, ranks)


def _on_rank(operator: str, model: Model, ranks: int) -> Iterator[tuple[tuple[int, ...], Mapping[str, int]]]:
    if operator == "shared_expert":
        inner = model.intermediate // ranks
        yield (inner, model.hidden), {"hidden": model.hidden, "intermediate": inner}
        return
    heads, kv_heads, head = model.heads // ranks, max(1, model.kv_heads // ranks), model.head
    if operator == "paged_attention":
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head, "block_size": 128}
        yield (heads, kv_heads, head), sizes
        return
    q_size, kv_size = heads * head, kv_heads * head
    sizes = {"hidden": model.hidden, "q_size": q_size, "kv_size": kv_size, "head_dim": head}
    sizes["rotary_dim"] = model.rotary
    yield tuple(sizes.values()), sizes
    yield (q_size, kv_size), sizes  # what the condition looks up in each step
