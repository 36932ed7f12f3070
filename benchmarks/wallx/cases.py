"""The operators, their shapes, and who computes them: ours, eager torch, torch.compile, and peers that are
installed.

Every case checks its results before anything is timed: ours against an fp32 reference on fresh inputs,
twice, with poisoned memory; peers by the same numbers, with the known differences named (Liger rotates other
bands, moe-ops permutes in another order).
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.wallx.case import Case
from benchmarks.wallx.moe import bwd_case, map_case, permute_case, unpermute_case
from benchmarks.wallx.rotary import rope_case

LENGTHS = (512, 2048, 6144, 16384, 65536)


def memory_cases(quick: bool) -> list[Callable[[], Case]]:
    """Every case as a function, so that its memory is free again after it."""
    tokens = LENGTHS[:3] if quick else LENGTHS
    made: list[Callable[[], Case]] = []
    made += [lambda t=t: permute_case(t, 2048, 1) for t in tokens]
    made += [lambda: permute_case(4096, 4096, 2), lambda: permute_case(4096, 4096, 8)]
    made += [lambda t=t: map_case(t, 2048) for t in tokens]
    made += [lambda t=t: unpermute_case(t, 2048, 1) for t in tokens]
    made += [lambda: unpermute_case(4096, 4096, 2), lambda: unpermute_case(4096, 4096, 8)]
    made += [lambda: unpermute_case(4099, 2056, 2), lambda: permute_case(6143, 2040, 1)]
    made += [lambda t=t: bwd_case(t, 2048, 1) for t in tokens[:3]]
    made += [lambda t=t: bwd_case(t, 2048, 2) for t in (512, 2048, 6144) + (() if quick else (65536,))]
    made += [lambda: bwd_case(4096, 4096, 8)]
    for backward in (False, True):
        made += [
            lambda s=s, b=backward: rope_case(*s, b)
            for s in ((1, 768), (8, 768)) + (() if quick else ((8, 2048),))
        ]
    return made
