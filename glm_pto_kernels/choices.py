"""Which backend serves an operator, decided from the environment and the facts of the process.

``GLM_PTO_BACKEND`` is a default and exceptions, for example ``auto`` or ``pypto,gate=torch``. ``auto`` takes
a registered function, else our PyPTO kernel where it can run, else leaves native code alone. Any other
choice is explicit: it never falls back, and if it cannot run the operator raises with the reason.
``GLM_PTO_DISABLE`` names operators that stay native (or ``all``). One's own kernel comes by
``GLM_PTO_KERNEL_GATE=package.module:function``. All is read once, when the package is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glm_pto_kernels import hardware, models, switches
from glm_pto_kernels.variables import KERNEL, refuse_unknown

NAMES = tuple(switches.SWITCHES.values())
FUNCTIONS = {"ffn_share_expert_quant": "shared_expert"}  # the guide's function names, where they differ
BACKENDS = ("auto", "pypto", "upstream", "custom", "torch")


@dataclass(frozen=True)
class Choice:
    """The decision for one operator.

    ``native``: why native code stays, else None. ``off_cpu``: tensors on the CPU stay native (``auto``).
    ``caches``: the layout that paged attention needs, "any", "blocks" (dense inside a block) or "dense".
    ``sizes``: those that the kernel takes, asked once for each size of `glm_pto_kernels.models` (None: any).
    ``limits``: the kernel's own refusal of keyword integers. ``dotted``: a custom kernel's name.
    """

    backend: str
    native: str | None = None
    off_cpu: bool = False
    caches: str = "any"
    sizes: frozenset[tuple[int, ...]] | None = None
    limits: Callable[..., str | None] | None = None
    dotted: str | None = None

    def refusal(self, key: tuple[int, ...], **sizes: int) -> str | None:
        """Why the kernel is not for these sizes, or None. ``key`` is what `sizes` knows them by."""
        if self.sizes is None or key in self.sizes:
            return None
        reason = None if self.limits is None else self.limits(**sizes)
        return reason or "the sizes are neither GLM-4.5's nor GLM-4.5-Air's"


def decide(name: str, environment: Mapping[str, str], registered: bool = False) -> Choice:
    """The backend of an operator under an environment, and whether a function is registered for it.

    Raises:
        ValueError: a name or a word in the environment that is not known, or two that contradict.
    """
    refuse_unknown(environment)
    if name in _disabled(environment):
        return Choice("native", native="switched off by GLM_PTO_DISABLE")
    dotted = _dotted(name, environment)
    backend = _backend_of(name, environment)
    if (registered or dotted) and backend in ("auto", "custom"):
        return Choice("custom", dotted=dotted)
    if registered or dotted:
        words = environment["GLM_PTO_BACKEND"]
        raise ValueError(
            f"{name}: a kernel of your own is given, but GLM_PTO_BACKEND={words} "
            f"names another; add ,{name}=custom to take yours, or leave one of the two out"
        )
    if backend == "custom":
        return Choice("native", native=f"GLM_PTO_BACKEND is custom and no function is registered for {name}")
    if backend == "torch":
        return Choice("torch")
    if backend == "auto":
        reason = hardware.npu_refusal()
        if reason is not None:
            return Choice("native", native=reason)
        return _of_kernel("pypto", name, "blocks", off_cpu=True)
    return _of_kernel(backend, name, "dense" if backend == "upstream" else "blocks", off_cpu=False)


def _of_kernel(backend: str, name: str, caches: str, off_cpu: bool) -> Choice:
    limits = _limits(backend, name)
    sizes = frozenset(key for key, values in models.asked(name) if limits(**values) is None)
    return Choice(backend, off_cpu=off_cpu, caches=caches, sizes=sizes, limits=limits)


def _dotted(name: str, environment: Mapping[str, str]) -> str | None:
    dotted = environment.get(KERNEL + name.upper(), "").strip()
    parts = dotted.replace(":", ".").split(".")
    if dotted and not (len(parts) > 1 and all(parts)):
        raise ValueError(f"{KERNEL}{name.upper()}={dotted}: expected package.module:function")
    return dotted or None


def _backend_of(name: str, environment: Mapping[str, str]) -> str:
    defaults: set[str] = set()
    exception: str | None = None
    for word in (environment.get("GLM_PTO_BACKEND", "").strip() or "auto").split(","):
        operator, equals, backend = (part.strip() for part in word.rpartition("="))
        if backend not in BACKENDS or (equals and canonical(operator) not in NAMES):
            raise ValueError(
                f"GLM_PTO_BACKEND: {word.strip()!r} is neither one of {', '.join(BACKENDS)} nor "
                f"OPERATOR=BACKEND with an operator of {', '.join(NAMES)}"
            )
        if not equals:
            defaults.add(backend)
        elif canonical(operator) == name:
            exception = backend  # the last one, so that one can be added to a line
    if len(defaults) > 1:
        raise ValueError(f"GLM_PTO_BACKEND names the defaults {' and '.join(sorted(defaults))}; leave one")
    return exception or next(iter(defaults), "auto")


def _disabled(environment: Mapping[str, str]) -> set[str]:
    words = {
        canonical(word.strip()) for word in environment.get("GLM_PTO_DISABLE", "").split(",") if word.strip()
    }
    unknown = words - {*NAMES, "all"}
    if unknown:
        raise ValueError(
            f"GLM_PTO_DISABLE: {', '.join(sorted(unknown))} is no operator; there is {', '.join(NAMES)}, all"
        )
    return set(NAMES) if "all" in words else words


def canonical(word: str) -> str:
    """An operator's name from either of its names."""
    return FUNCTIONS.get(word, word)


def _limits(backend: str, name: str) -> Callable[..., str | None]:
    if backend == "upstream":
        from glm_pto_kernels import upstream

        return upstream.SIZES[name]
    return importlib.import_module(f"glm_pto_kernels.pypto.{name}").refusal  # type: ignore[no-any-return]
