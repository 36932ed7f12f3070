"""The operators, their shapes, and who computes them: ours, eager torch, torch.compile, and peers that are
installed.

Every case compares its results before it is timed: ours with an fp32 reference on fresh inputs, twice, with
poisoned memory, and peers likewise. Only ours have to be right. What Liger does to other bands, and moe-ops
in another order, is not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.wallx import gemm
from benchmarks.wallx.case import Case
from benchmarks.wallx.moe import bwd_case, map_case, permute_case, unpermute_case
from benchmarks.wallx.rotary import rope_case

LENGTHS = (512, 2048, 6144, 16384, 65536)


@dataclass(frozen=True)
class Entry:
    """Makes a case, so that its memory is free again after it. ``small``: its time on the host matters."""

    make: Callable[[], Case]
    small: bool


def every_case(quick: bool) -> list[Entry]:
    tokens = LENGTHS[:3] if quick else LENGTHS
    made = [Entry(lambda t=t: permute_case(t, 2048, 1), t <= 6144) for t in tokens]
    made += [Entry(lambda k=k: permute_case(4096, 4096, k), True) for k in (2, 8)]
    made += [Entry(lambda t=t: map_case(t, 2048, 1), t <= 6144) for t in tokens]
    made += [Entry(lambda k=k: map_case(4096, 4096, k), False) for k in (2, 8)]
    made += [Entry(lambda t=t: unpermute_case(t, 2048, 1), t <= 6144) for t in tokens]
    made += [Entry(lambda k=k: unpermute_case(4096, 4096, k), True) for k in (2, 8)]
    made += [
        Entry(lambda: unpermute_case(4099, 2056, 2), True),
        Entry(lambda: permute_case(6143, 2040, 1), True),
    ]
    made += [Entry(lambda t=t: map_case(t, 2048, 1, known=False), t <= 6144) for t in tokens[:3]]
    made += [Entry(lambda t=t: bwd_case(t, 2048, 1), t <= 2048) for t in tokens[:3]]
    for t in (512, 2048, 6144) + (() if quick else (65536,)):
        made += [Entry(lambda t=t: bwd_case(t, 2048, 2), t <= 2048)]
    made += [Entry(lambda: bwd_case(4096, 4096, 8), False), Entry(lambda: bwd_case(6143, 2040, 2), False)]
    for backward in (False, True):
        for batch, length in ((1, 768), (8, 768)) + (() if quick else ((8, 2048),)):
            made += [Entry(lambda b=batch, s=length, back=backward: rope_case(b, s, back), batch == 1)]
        made += [Entry(lambda back=backward: rope_case(8, 768, back, 80), False)]
    made += [Entry(lambda t=t: gemm.gemm_case(447, 33, t), False) for t in (False, True)]
    for m0, m1 in gemm.ROWS[: 2 if quick else None]:
        made += [Entry(lambda m=(m0, m1), t=t: gemm.gemm_case(*m, t), m0 <= 448) for t in (False, True)]
    return made
