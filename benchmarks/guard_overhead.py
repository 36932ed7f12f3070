"""What a guard costs that is not taken, as a ratio to calling an empty ``torch.nn.Module``.

    python benchmarks/guard_overhead.py

Each figure is the smallest of interleaved repetitions, all in one process. "off": the switch is off, so the
guard is one attribute of a module. "refused last": the switch is on and only the last test of ``supported``
refuses, which is the dearest way to refuse, on every eager step but a layer's first. "first step": all the
tests, once for a layer. Under torch.compile a guard costs nothing: it is evaluated while tracing.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends
from tests.glm_pto_kernels import stand_ins

LIMITS = {"off": 0.05, "refused last": 1.0}
KINDS = (*LIMITS, "first step")


class Empty(torch.nn.Module):
    def forward(self) -> None:
        return None


def guards() -> dict[str, tuple[Callable[[], bool], Callable[[], str | None]]]:
    """Per operator the guard's condition on a layer that passes every test but the sizes, and its refusal."""
    sizes = stand_ins.glm_4_5()
    hidden = torch.randn(8, sizes.hidden).bfloat16()
    positions, gate = torch.arange(8), torch.nn.Linear(sizes.hidden, sizes.experts, bias=False)
    layer, expert = stand_ins.DecoderLayer(sizes), stand_ins.SharedExpert(sizes)
    impl, step = stand_ins.AscendAttentionBackendImpl(sizes), stand_ins.metadata([5] * 8)
    query, logits = torch.randn(8, 12, 128).bfloat16(), torch.randn(8, 160)
    bias = torch.randn(160)
    attention = layer.self_attn
    return {
        "gate": (
            lambda: K.USE_PTO_GATE and K.gate_supported(gate, hidden),
            lambda: K.gate_refusal(gate, hidden),
        ),
        "select_experts": (
            lambda: (
                K.USE_PTO_SELECT_EXPERTS
                and K.select_experts_supported(logits, 8, True, 1, 1, bias, scoring_func="sigmoid")
            ),
            lambda: K.select_experts_refusal(logits, 8, True, 1, 1, bias, scoring_func="sigmoid"),
        ),
        "paged_attention": (
            lambda: K.USE_PTO_FA and K.paged_attention_supported(impl, query, step),
            lambda: K.paged_attention_refusal(impl, query, step),
        ),
        "attention_pre": (
            lambda: K.USE_PTO_FA_PRE and K.attention_pre_supported(layer, attention, positions, hidden),
            lambda: K.attention_pre_refusal(layer, attention, positions, hidden),
        ),
        "shared_expert": (
            lambda: K.USE_PTO_SHARE_EXPERTS and K.ffn_share_expert_quant_supported(expert, hidden),
            lambda: K.ffn_share_expert_quant_refusal(expert, hidden),
        ),
    }


def refuse(**_: int) -> str:
    return "the last test"


def measure(number: int = 20_000, rounds: int = 9) -> dict[str, dict[str, float]]:
    """The ratios of both kinds for every operator."""
    conditions = guards()
    for name in conditions:
        backends.CHOICES[name] = backends.Choice("pypto", sizes=refuse)
        assert conditions[name][1]() == "the last test", (name, conditions[name][1]())
    timed: dict[str, Callable[[], object]] = {"empty": Empty(), "lambda": lambda: None}
    for name, (guard, refusal) in conditions.items():
        timed[f"{name} off"] = timed[f"{name} refused last"] = guard
        timed[f"{name} first step"] = refusal
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, function in timed.items():
            for switch in backends.switches.SWITCHES:
                K.__dict__[switch] = not name.endswith(" off")
            spent = timeit.timeit(function, number=number) / number
            best[name] = min(best.get(name, spent), spent)
    # What is measured is the guard inside a function that runs anyway, so the lambda's call is taken off.
    return {
        name: {kind: (best[f"{name} {kind}"] - best["lambda"]) / best["empty"] for kind in KINDS}
        for name in conditions
    }


def main() -> int:
    result = measure()
    print(f"{'ratio to an empty Module call':32}" + "".join(f"{kind:>14}" for kind in KINDS))
    for name, ratios in result.items():
        print(f"{name:32}" + "".join(f"{ratios[kind]:14.3f}" for kind in KINDS))
    print(f"{'limit':32}" + "".join(f"{limit:14.3f}" for limit in LIMITS.values()))
    return int(any(ratios[kind] > limit for ratios in result.values() for kind, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
