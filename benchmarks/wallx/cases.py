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
    """Makes a case of an operator, so that its memory is free again after it. ``small``: its time on the host
    matters.
    """

    operator: str
    make: Callable[[], Case]
    small: bool


def every_case(quick: bool) -> list[Entry]:
    return [*moves(quick), *sums(quick), *gradients(quick), *rotations(quick), *products(quick)]


def moves(quick: bool) -> list[Entry]:
    """Rows in another order, sorted or by a map."""
    tokens = LENGTHS[:3] if quick else LENGTHS
    made = [Entry("permute", lambda t=t: permute_case(t, 2048, 1), t <= 6144) for t in tokens]
    made += [Entry("permute", lambda k=k: permute_case(4096, 4096, k), True) for k in (2, 8)]
    made += [Entry("permute, map given", lambda t=t: map_case(t, 2048, 1), t <= 6144) for t in tokens]
    made += [Entry("permute, map given", lambda k=k: map_case(4096, 4096, k), False) for k in (2, 8)]
    made += [Entry("permute", lambda: permute_case(6143, 2040, 1), True)]
    unknown = "permute, unknown map"
    return made + [
        Entry(unknown, lambda t=t: map_case(t, 2048, 1, known=False), t <= 6144) for t in LENGTHS[:3]
    ]


def sums(quick: bool) -> list[Entry]:
    tokens = LENGTHS[:3] if quick else LENGTHS
    made = [Entry("unpermute", lambda t=t: unpermute_case(t, 2048, 1), t <= 6144) for t in tokens]
    made += [Entry("unpermute", lambda k=k: unpermute_case(4096, 4096, k), True) for k in (2, 8)]
    return [*made, Entry("unpermute", lambda: unpermute_case(4099, 2056, 2), True)]


def gradients(quick: bool) -> list[Entry]:
    made = [Entry("unpermute_bwd", lambda t=t: bwd_case(t, 2048, 1), t <= 2048) for t in LENGTHS[:3]]
    for t in (512, 2048, 6144) + (() if quick else (65536,)):
        made += [Entry("unpermute_bwd", lambda t=t: bwd_case(t, 2048, 2), t <= 2048)]
    others = ((4096, 4096, 8), (6143, 2040, 2))
    return made + [Entry("unpermute_bwd", lambda s=sizes: bwd_case(*s), False) for sizes in others]


def rotations(quick: bool) -> list[Entry]:
    made = []
    for name, backward in (("rope", False), ("rope_bwd", True)):
        for batch, length in ((1, 768), (8, 768)) + (() if quick else ((8, 2048),)):
            made += [Entry(name, lambda b=batch, s=length, back=backward: rope_case(b, s, back), batch == 1)]
        made += [Entry(name, lambda back=backward: rope_case(8, 768, back, 80), False)]
    return made


def products(quick: bool) -> list[Entry]:
    made = []
    for sizes in (*gemm.ODD, *gemm.ROWS[: 2 if quick else None]):
        small = sizes == gemm.ROWS[0]
        made += [Entry("dual GEMM", lambda t=t, s=sizes: gemm.gemm_case(t, *s), small) for t in (False, True)]
    return made
