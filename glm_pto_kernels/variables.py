"""The environment variables of this project by name: one that only looks like them is refused.

Everything that is read is here, also what the command line, the benchmarks and the tests read, since the
operator layer is imported in their processes too. The switches ``USE_PTO_*`` are in
`glm_pto_kernels.switches`.
"""

from __future__ import annotations

from collections.abc import Mapping

from glm_pto_kernels import switches

PREFIX = "GLM_PTO_"
KERNEL = "GLM_PTO_KERNEL_"
KERNELS = tuple(KERNEL + name.upper() for name in switches.SWITCHES.values())
LAYER = ("GLM_PTO_BACKEND", "GLM_PTO_DISABLE", "GLM_PTO_CHECK", "GLM_PTO_CACHE", "GLM_PTO_WALLX_BACKEND")
OTHERS = ("GLM_PTO_UPSTREAM", "GLM_PTO_UPSTREAM_CHECKOUT", "GLM_PTO_ENVIRONMENTS")
KNOWN = frozenset((*LAYER, *KERNELS, *OTHERS))


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raise ValueError for a name with our prefix, in any case of letters, that nothing reads."""
    for name in environment:
        if name.upper().startswith(PREFIX) and name not in KNOWN:
            raise ValueError(f"the environment sets {name}, which nothing reads; {_instead(name)}")


def _instead(name: str) -> str:
    from difflib import get_close_matches  # only where something is wrong: an import costs every start

    kernel = name.upper().startswith(KERNEL)
    begin, there = (KERNEL, KERNELS) if kernel else (PREFIX, (*LAYER, *KERNELS))
    # What all of them begin with must not count: it alone would make any two of them alike.
    ends = {each.removeprefix(begin): each for each in (KERNELS if kernel else KNOWN)}
    end = name.upper().removeprefix(begin)
    if kernel:  # named like the operator's switch
        operator = switches.SWITCHES.get(switches.SPELLINGS.get(f"USE_PTO_{end}", ""), "")
        end = operator.upper() or end
    near = get_close_matches(end, ends, n=1)
    return f"did you mean {ends[near[0]]}?" if near else f"there is {', '.join(there)}"
