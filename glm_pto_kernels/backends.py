"""The operators, and the kernel of each: found and announced at its first call, counted, checked if asked."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from glm_pto_kernels import cache_key, check, hardware, notice, switches
from glm_pto_kernels.choices import NAMES, Choice, canonical, decide
from glm_pto_kernels.variables import KERNEL

Kernel = Callable[..., Any]


class BackendError(RuntimeError):
    """An operator was asked of a backend that cannot run it. The message says why and what to do."""


@dataclass(frozen=True)
class Operator:
    """What the backends need to know of an operator.

    ``parameters``: the names of a kernel's arguments, in order; it writes the ``outputs`` among them.
    ``torch_kernel``: the reference under that signature. ``compare``: (arguments after a kernel ran) -> the
    largest difference from the reference and the largest that is allowed.
    """

    name: str
    entry: str
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    torch_kernel: Kernel
    compare: Callable[..., tuple[float, float]]


CHECK = check.mode()
OPERATORS: dict[str, Operator] = {}
CHOICES: dict[str, Choice] = {}
CUSTOM: dict[str, Kernel] = {}
CALLS: dict[str, int] = dict.fromkeys(NAMES, 0)
_KERNELS: dict[str, Kernel] = {}
_FINDING = threading.RLock()
#: Called in every traced condition, so that compile caches see what was decided.
TOLD: Callable[[], bool] = cache_key.told


def declare(operator: Operator) -> Operator:
    """Enter an operator and decide its backend. Called once by each module of ``ops``."""
    OPERATORS[operator.name] = operator
    CHOICES[operator.name] = decide(operator.name, os.environ)
    return operator


def register(operator: str, function: Kernel) -> None:
    """Bring your own kernel for one operator.

    Args:
        operator: ``gate``, ``attention_pre``, ``paged_attention``, ``select_experts`` or ``shared_expert``.
        function: called with the operator's documented parameters (``Operator.parameters``) by position; it
            writes the output tensors, which come last, in place.

    Raises:
        ValueError: unknown operator, or ``GLM_PTO_BACKEND`` names another backend for it.
        TypeError: the function does not take these parameters.
    """
    name = canonical(operator)
    if name not in OPERATORS:
        raise ValueError(f"unknown operator {operator!r}; there is {', '.join(OPERATORS)}")
    _fits(OPERATORS[name], function)
    switches.warn_if_late(f"register({operator!r}, ...)")
    CHOICES[name] = decide(name, os.environ, registered=True)
    CUSTOM[name] = function
    _KERNELS.pop(name, None)
    tell()


def _fits(operator: Operator, function: Kernel) -> None:
    if not callable(function):
        raise TypeError(f"the kernel for {operator.name} is {function!r}, which cannot be called")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature: its first call will tell
        return
    try:
        signature.bind(*operator.parameters)
    except TypeError as error:
        raise TypeError(
            f"{getattr(function, '__name__', function)}{signature} does not fit {operator.name}"
            f"({', '.join(operator.parameters)}): {error}"
        ) from None


def run(name: str, *arguments: Any) -> None:
    """Compute an operator inside its opaque op: the chosen kernel, found and announced at the first call."""
    kernel = _KERNELS.get(name)
    if kernel is None:
        with _FINDING:  # vLLM's overlapped batches run in threads, and imports of a checkout must not mix
            kernel = _KERNELS.get(name)
            if kernel is None:
                kernel = _KERNELS[name] = _first_use(name, arguments)
    kernel(*arguments)
    CALLS[name] += 1


def _first_use(name: str, arguments: tuple[Any, ...]) -> Kernel:
    choice = CHOICES[name]
    kernel = load(name)
    notice.taken(name, choice.backend, arguments)
    if CHECK:
        operator = OPERATORS[name]
        inputs = {
            each: place for place, each in enumerate(operator.parameters) if each not in operator.outputs
        }
        kernel = check.checked(name, choice.backend, kernel, operator.compare, inputs, CHECK == "all")
    return kernel


def load(name: str) -> Kernel:
    """The kernel of an operator's backend. Raises BackendError where an explicit choice cannot run."""
    operator, choice = OPERATORS[name], CHOICES[name]
    if choice.backend == "torch":
        return operator.torch_kernel
    if choice.backend == "custom":
        return _custom(operator)
    if choice.native is not None:
        raise BackendError(
            f"{name}: called without asking its condition, where nothing can compute it: {choice.native}"
        )
    reason = hardware.npu_refusal()
    if reason is not None:
        raise BackendError(f"{name}: GLM_PTO_BACKEND={choice.backend} cannot run here: {reason}")
    if choice.backend == "upstream":
        from glm_pto_kernels import upstream

        return upstream.load(operator.name)
    return _pypto(operator)


def _pypto(operator: Operator) -> Kernel:
    try:
        importlib.import_module("pypto")
    except Exception as error:
        raise BackendError(
            f"{operator.name}: pypto is installed but broken: {error!r}. Repair it, or keep native code with "
            f"GLM_PTO_DISABLE={operator.name}"
        ) from error
    module = importlib.import_module(f"glm_pto_kernels.pypto.{operator.name}")
    kernel: Kernel = getattr(module, operator.entry)
    _fits(operator, kernel)
    return kernel


def _custom(operator: Operator) -> Kernel:
    dotted = CHOICES[operator.name].dotted
    if operator.name in CUSTOM or dotted is None:
        return _writes(operator, CUSTOM[operator.name])
    module, _, function = dotted.replace(":", ".").rpartition(".")
    try:
        loaded = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise BackendError(f"{KERNEL}{operator.name.upper()}={dotted}: {error!r}") from error
    _fits(operator, loaded)
    return _writes(operator, loaded)


def _writes(operator: Operator, function: Kernel) -> Kernel:
    """``function``, refused where it returns its results or a coroutine: its outputs were not written."""

    def call(*arguments: Any) -> None:
        returned = function(*arguments)
        if returned is None:
            return
        given = {each.data_ptr() for each in arguments if isinstance(each, torch.Tensor)}
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        new = [each for each in results if isinstance(each, torch.Tensor) and each.data_ptr() not in given]
        if new or hasattr(returned, "send"):
            raise TypeError(
                f"the kernel for {operator.name} returned a {type(returned).__name__}; it has to write its "
                f"results into its arguments when it is called: {', '.join(operator.parameters)}"
            )

    return call


def tell() -> None:
    """Renew `TOLD` for the present switches and choices; see `glm_pto_kernels.cache_key`."""
    global TOLD
    package = sys.modules["glm_pto_kernels"].__dict__
    decisions: dict[str, object] = {name: package.get(name) for name in switches.SWITCHES}
    for name, choice in CHOICES.items():
        decisions[name] = (choice.backend, choice.native, choice.off_cpu, choice.caches)
    TOLD = cache_key.tell(decisions)


switches.CHANGED.append(tell)


def announce() -> None:
    """Log each operator that stays native in this process, once, where its model's file is imported."""
    package = sys.modules["glm_pto_kernels"].__dict__
    for switch, name in switches.SWITCHES.items():
        reason = CHOICES[name].native if package[switch] else f"{switch} is off"
        if reason is not None:
            notice.stays(name, reason)


def calls() -> dict[str, int]:
    """How often each operator has run in this process. Replays of a captured graph do not count."""
    return dict(CALLS)
