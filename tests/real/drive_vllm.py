"""Generates from a tiny GLM-4.5 with a real vLLM on the CPU; run by `test_real_vllm` in its environment.

``drive_vllm.py OUT MODEL RUN...`` with RUN one of: plain (whatever is installed, untouched), off, on, planted
(the gate two per cent wrong), each optionally followed by ``+compile``. Saves tokens, log probabilities
and the calls of our operators by run.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "DO_NOT_TRACK": "1",
}


def planted(hidden_states: Any, gate_weight: Any, router_logits_out: Any) -> None:
    router_logits_out.copy_(hidden_states @ gate_weight.t())
    router_logits_out[:, 0] *= 1.02


def choose(run: str) -> Any:
    """Set the switches for one run; the operator layer, or None where nothing is patched."""
    if run == "plain":
        return None
    import glm_pto_kernels

    for name in [n for n in vars(glm_pto_kernels) if n.startswith("USE_PTO_")]:
        setattr(glm_pto_kernels, name, run != "off")
    if run == "planted":
        os.environ["GLM_PTO_BACKEND"] = "custom"
        glm_pto_kernels.register("gate", planted)
    return glm_pto_kernels


def generate(model: str, compiled: bool) -> list[dict[str, Any]]:
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    source = random.Random(0)
    prompts = [
        TokensPrompt(prompt_token_ids=[source.randrange(3, 1024) for _ in range(length)])
        for length in (3, 5, 8, 17, 31, 64)
    ]
    engine = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=not compiled,
        # An opaque op moves the borders of fused kernels, and with them where bf16 rounds.
        dtype="float32" if compiled else "bfloat16",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        block_size=32,
        seed=0,
        disable_log_stats=True,
        enable_prefix_caching=False,
    )
    asked = SamplingParams(temperature=0.0, max_tokens=16, logprobs=5, ignore_eos=True, detokenize=False)
    answers = [reply.outputs[0] for reply in engine.generate(prompts, asked, use_tqdm=False)]
    del engine
    gc.collect()
    return [
        {
            "tokens": list(answer.token_ids),
            "logprobs": [{str(k): v.logprob for k, v in step.items()} for step in answer.logprobs],
        }
        for answer in answers
    ]


def main(out: str, model: str, runs: list[str]) -> None:
    os.environ.update({k: v for k, v in SETTINGS.items() if k not in os.environ})
    import vllm
    import vllm._custom_ops as ops

    ops._supports_onednn = False  # with it vLLM empties Linear.weight, which the gate reads
    report: dict[str, Any] = {"vllm": vllm.__version__, "file": vllm.__file__}
    for run in runs:
        name, _, compiled = run.partition("+")
        kernels = choose(name)
        before = kernels.calls() if kernels else {}
        answers = generate(model, compiled == "compile")
        after = kernels.calls() if kernels else {}
        report[run] = {"answers": answers, "calls": {k: n - before[k] for k, n in after.items()}}
    Path(out).write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
