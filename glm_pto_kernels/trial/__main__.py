"""Run guarded statements and their originals on tiny random layers: ``python -m glm_pto_kernels.trial``.

Reads one JSON document (``{"guards": [{"site", "switch", "guard", "original"}]}``, the last two as Python
text), prints one. `glm-pto verify --run` starts it with the Python that runs the packages, under
``GLM_PTO_BACKEND=torch``, which is read when the package is imported.
"""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

import glm_pto_kernels
from glm_pto_kernels.trial.names import SITES, Names, names_for

#: Largest difference relative to the largest value. bf16 carries 8 bits; between int8 steps one may be off.
ALLOWED = {
    "gate": 2e-5,
    "attention_pre": 2e-2,
    "paged_attention": 1e-2,
    "select_experts": 1e-5,
    "shared_expert": 2e-2,
}
#: What the statements leave behind.
RESULTS = {
    "gate": ("router_logits",),
    "attention_pre": ("hidden_states", "residual"),
    "paged_attention": ("output",),
    "select_experts": ("topk_weights", "topk_ids"),
    "shared_expert": ("shared_out", "x"),
}


def execute(code: str, names: Names) -> Names:
    """Run statements as the body of a function whose parameters are ``names``; its locals afterwards."""
    module = ast.parse(f"def run({', '.join(names)}):\n    pass\n    return locals()")
    function = module.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body[:1] = ast.parse(code).body
    scope: Names = {"glm_pto_kernels": sys.modules.get("glm_pto_kernels")}
    exec(compile(ast.fix_missing_locations(module), "<guard>", "exec"), scope)
    result: Names = scope["run"](**names)
    return result


def difference(site: str, ours: Names, original: Names) -> float:
    """Largest difference of the results, relative to the largest value; infinite for other shapes."""
    worst = 0.0
    for name in (n for n in RESULTS[site] if n in original):
        a, b = ours[name].double(), original[name].double()
        if a.shape != b.shape:
            return float("inf")
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item())
    return worst


def trial(site: str, switch: str, guard: str, original: str) -> dict[str, Any]:
    """One guard: switch off, switch on, each against the original statements."""
    if site not in SITES:
        return {"site": site, "ran": False, "detail": "no stand-in layers for this site"}
    try:
        wanted = execute(original, names_for(site, original))
        setattr(glm_pto_kernels, switch, False)
        off = execute(guard, names_for(site, original))
        setattr(glm_pto_kernels, switch, True)
        before = glm_pto_kernels.calls()[site]
        on = execute(guard, names_for(site, original))
        calls = glm_pto_kernels.calls()[site] - before
    except (NameError, AttributeError, KeyError) as error:
        return {"site": site, "ran": False, "detail": f"the stand-ins lack what this form uses: {error}"}
    return {
        "site": site,
        "ran": True,
        "calls": calls,
        "off": difference(site, off, wanted),
        "on": difference(site, on, wanted),
        "allowed": ALLOWED[site],
        "detail": "",
    }


def main() -> None:
    rows = [trial(**guard) for guard in json.load(sys.stdin)["guards"]]
    sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
