"""What a guard costs that is not taken, as a ratio to calling an empty ``torch.nn.Module``.

    python benchmarks/guard_overhead.py

Each figure is the smallest of interleaved repetitions, all in one process. "off": the switch is off. "refused
last": the switch is on, the backend is PyPTO's with its real limits, the layer is GLM-4.5's on 8 ranks, and
only the last test of ``supported`` refuses, which is the dearest way to refuse: the tensors are on the CPU,
or, for paged_attention (tensors of torch's meta device, a stand-in for torch.npu), a graph is being captured.
"every fact": what ``refusal`` takes where nothing refuses, so all that the operator rests on is asked. Under
torch.compile a guard costs nothing: it is evaluated while tracing.

Not in the figures: three conditions name a child of the layer, such as ``self.gate``. PyTorch finds a child
by a Python call; the last line is what that takes, in the native statement as in the guard.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends
from tests.glm_pto_kernels import stand_ins

LIMITS = {"off": 0.05, "refused last": 1.0}
KINDS = (*LIMITS, "every fact")


class Empty(torch.nn.Module):
    def forward(self) -> None:
        return None


class State(enum.Enum):
    DecodeOnly = 3


@dataclasses.dataclass
class Metadata:
    """The step's metadata, as vllm-ascend has it."""

    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    attn_state: State = State.DecodeOnly
    causal: bool = True


class MoE(torch.nn.Module):
    """The attributes that a guard reads of vLLM's MoE layer and of vllm-ascend's."""

    def __init__(self, sizes: stand_ins.Sizes) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(sizes.hidden, sizes.experts, bias=False)
        self._shared_experts = stand_ins.SharedExpert(sizes)
        self.multistream_overlap_shared_expert = False
        self.swiglu_limit = 0.0


Pair = tuple[Callable[[], bool], Callable[[], str | None]]


def guards() -> dict[str, Pair]:
    """Per operator the guard's condition on a layer that passes every test but the last, and its refusal."""
    sizes = stand_ins.glm_4_5()
    hidden = torch.randn(8, sizes.hidden).bfloat16()
    return {**of_experts(sizes, hidden), **of_attention(sizes, hidden)}


def of_experts(sizes: stand_ins.Sizes, hidden: torch.Tensor) -> dict[str, Pair]:
    """The guards of a MoE layer."""
    moe, logits, bias = MoE(sizes), torch.randn(8, 160), torch.randn(160)
    routing: tuple[Any, ...] = (logits, 8, True, 1, 1, bias)
    gate, expert, use_grouped_topk = moe.gate, moe._shared_experts, True
    return {
        "gate": (
            lambda: K.USE_PTO_GATE and K.gate_supported(gate, hidden),
            lambda: K.gate_refusal(gate, hidden),
        ),
        "select_experts": (
            lambda: (
                K.USE_PTO_SELECT_EXPERTS
                and use_grouped_topk
                and K.select_experts_supported(logits, 8, True, 1, 1, bias, scoring_func="sigmoid")
            ),
            lambda: K.select_experts_refusal(*routing, scoring_func="sigmoid"),
        ),
        "shared_expert": (
            lambda: (
                K.USE_PTO_SHARE_EXPERTS
                and not moe.multistream_overlap_shared_expert
                and not moe.swiglu_limit
                and K.ffn_share_expert_quant_supported(expert, hidden)
            ),
            lambda: K.ffn_share_expert_quant_refusal(expert, hidden),
        ),
    }


def of_attention(sizes: stand_ins.Sizes, hidden: torch.Tensor) -> dict[str, Pair]:
    """The guards before and in a layer's attention."""
    positions, layer = torch.arange(8), stand_ins.DecoderLayer(sizes)
    impl, step = stand_ins.AscendAttentionBackendImpl(sizes), Metadata(**vars(stand_ins.metadata([5] * 8)))
    impl.key_cache, impl.value_cache = impl.key_cache.to("meta"), impl.value_cache.to("meta")
    query, attention = torch.zeros(8, 12, 128, device="meta").bfloat16(), layer.self_attn
    return {
        "paged_attention": (
            lambda: (
                K.USE_PTO_FA
                and step.attn_state == State.DecodeOnly
                and K.paged_attention_supported(impl, query, step)
            ),
            lambda: K.paged_attention_refusal(impl, query, step),
        ),
        "attention_pre": (
            lambda: K.USE_PTO_FA_PRE and K.attention_pre_supported(layer, attention, positions, hidden),
            lambda: K.attention_pre_refusal(layer, attention, positions, hidden),
        ),
    }


def choices(off_cpu: bool) -> dict[str, backends.Choice]:
    """PyPTO's kernels with their limits, and tensors on the CPU refused or not."""
    decided = {name: backends.decide(name, {"GLM_PTO_BACKEND": "pypto"}) for name in backends.NAMES}
    return {name: dataclasses.replace(choice, off_cpu=off_cpu) for name, choice in decided.items()}


def measure(number: int = 500, rounds: int = 400) -> tuple[dict[str, dict[str, float]], float]:
    """The ratios of each kind for every operator, and that of finding a module's child."""
    conditions, every, last = guards(), choices(off_cpu=False), choices(off_cpu=True)
    npu = torch.npu = ModuleType("torch.npu")  # type: ignore[attr-defined]
    moe = MoE(stand_ins.SMALL)
    timed: dict[str, Callable[[], object]] = {"empty": Empty(), "lambda": lambda: None}
    timed["child"] = lambda: moe.gate
    for name, (guard, refusal) in conditions.items():
        for capturing, answer in ((False, True), (True, name != "paged_attention")):
            npu.is_current_stream_capturing = lambda answer=capturing: answer  # type: ignore[attr-defined]
            backends.CHOICES.update(every)
            assert guard() is answer and (refusal() is None) is answer, (name, refusal())
        backends.CHOICES.update(last)
        assert guard() is False, name
        timed[f"{name} off"] = timed[f"{name} refused last"] = guard
        timed[f"{name} every fact"] = refusal
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, function in timed.items():
            for switch in backends.switches.SWITCHES:
                K.__dict__[switch] = not name.endswith(" off")
            backends.CHOICES.update(every if name.endswith(" every fact") else last)
            spent = timeit.timeit(function, number=number) / number
            best[name] = min(best.get(name, spent), spent)
    # What is measured is the guard inside a function that runs anyway, so the lambda's call is taken off.
    ratios = {name: (spent - best["lambda"]) / best["empty"] for name, spent in best.items()}
    rows = {name: {kind: ratios[f"{name} {kind}"] for kind in KINDS} for name in conditions}
    return rows, ratios["child"]


def main() -> int:
    result, child = measure()
    print(f"{'ratio to an empty Module call':32}" + "".join(f"{kind:>14}" for kind in KINDS))
    for name, ratios in result.items():
        print(f"{name:32}" + "".join(f"{ratios[kind]:14.3f}" for kind in KINDS))
    print(f"{'limit':32}" + "".join(f"{limit:14.3f}" for limit in LIMITS.values()))
    print(f"{'(a child of a module)':32}{child:14.3f}")
    return int(any(ratios[kind] > limit for ratios in result.values() for kind, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
