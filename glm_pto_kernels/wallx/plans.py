"""Calls like one before: they go straight to the launch that was worked out then.

A plan belongs to the integers of a call and to all that checks and backends look at in its tensors: type,
shape, strides, dtype, device, whether they ask for a gradient, and the keys that torch dispatches by. These
are compared by the C++ test that torch.compile guards its graphs with, in a fraction of what a key made in
Python takes (0.3 to 2.5 us on a busy CPU) or a registered operator's dispatch. Whether autograd records,
which that test does not see, matters only where a tensor asks for a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._dynamo.guards import TensorGuards
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling, is_dynamo_compiling

Plan = Callable[..., Any]
Test = Callable[..., bool]

MOST_PLANS = 4096
MOST_ALIKE = 4  # plans of calls with equal integers, the last one first
# By integers: the test for tensors, the plan, and whether it is for calls that autograd does not record.
PLANS: dict[Hashable, tuple[tuple[Test, Plan, bool], ...]] = {}

PLAIN = (torch.Tensor, torch.nn.Parameter)


def planned(numbers: Hashable, *tensors: Tensor) -> Plan | None:
    """The plan of a call with these integers and such tensors, if there was one."""
    # The test for tensors sees neither modes in Python, which all tracing but Dynamo's runs in, nor tangents.
    if is_dynamo_compiling() or forward_ad._current_level >= 0 or _len_torch_dispatch_stack():
        return None
    for alike, plan, unrecorded in PLANS.get(numbers, ()):
        if alike(*tensors) and not (unrecorded and is_grad_enabled()):
            return plan
    return None


def count(name: str, number: Any) -> int:
    """An integer argument as an int; kernels and plans take no other (numpy's, a bool, a tensor of one).

    Raises:
        TypeError: it is no integer.
    """
    if isinstance(number, torch.SymInt):
        return number
    try:
        return int(index(number))
    except TypeError:
        raise TypeError(f"{name} must be an integer, found {number!r}") from None


def keep(numbers: Hashable, tensors: Sequence[Tensor], plan: Plan) -> None:
    """Let the next call with these integers and such tensors go straight to ``plan``.

    Not where one tensor is given twice, which the test always denies.
    """
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        return
    if len(PLANS) >= MOST_PLANS:
        PLANS.clear()
    unrecorded = any(tensor.requires_grad for tensor in tensors)
    PLANS[numbers] = ((like(*tensors), plan, unrecorded), *PLANS.get(numbers, ())[: MOST_ALIKE - 1])


def like(*tensors: Tensor) -> Test:
    """Whether tensors are just like these; what is no tensor is not."""
    test: Test = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(t.shape) for t in tensors],
        dynamic_dims_strides=[list(t.stride()) for t in tensors],
    ).check
    return test


def direct(*tensors: Tensor | None) -> bool:
    """Whether a call may go straight to its kernel instead of through torch's dispatcher.

    A registered operator is needed for autograd, for tracing and other modes, for function transforms, for
    tensor subclasses and for tensors that are not what is in memory: views that negate, zeros without memory.

    Raises:
        RuntimeError: a tensor has a forward-mode tangent, which a registered operator would lose.
    """
    if is_compiling():
        return False
    if forward_ad._current_level >= 0:
        refuse_tangents(tensors)
    if _len_torch_dispatch_stack() or maybe_current_level() is not None or _get_tracing_state() is not None:
        return False
    recorded = is_grad_enabled()
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in PLAIN or (recorded and tensor.requires_grad):
            return False
        if tensor.is_neg() or tensor._is_zerotensor():
            return False
    return True


def refuse_output(name: str, out: Tensor) -> None:
    """Raises ValueError for memory that kernels cannot write as the tensor is read."""
    if not is_compiling() and out.is_neg():
        raise ValueError(f"{name}: an output is a view that negates what is in memory; write into its base")
    if any(stride == 0 and size > 1 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise ValueError(f"{name}: elements of an output share memory (an expanded tensor); make it dense")


def written(*outputs: Tensor) -> None:
    """Let autograd know that a kernel wrote into these: it checks what it has saved by counts of writes."""
    for out in outputs:
        increment_version(out)


def refuse_tangents(tensors: Sequence[Tensor | None]) -> None:
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(
                "the wall-x operators have no forward-mode derivatives (torch.func.jvp, forward_ad); "
                "use reverse mode: requires_grad and backward"
            )
