"""Calls like one before: they go straight to the launch that was worked out then.

A plan belongs to the integers of a call, to whether autograd records, and to all that checks and backends
look at in its tensors: type, shape, strides, dtype, device, whether they ask for a gradient, and the modes
that torch dispatches by. These are compared by the C++ test that torch.compile guards its graphs with, in
0.3 us; comparing them in Python, or a registered operator's dispatch, takes 3 and 8 us.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C._dynamo.guards import TensorGuards
from torch.compiler import is_compiling

Plan = Callable[..., Any]
Test = Callable[..., bool]

MOST_PLANS = 4096
MOST_ALIKE = 4  # plans of calls with equal integers, the last one first
PLANS: dict[tuple[Hashable, bool], tuple[tuple[Test, Plan], ...]] = {}

PLAIN = (torch.Tensor, torch.nn.Parameter)


def planned(numbers: Hashable, *tensors: Tensor) -> Plan | None:
    """The plan of a call with these integers and such tensors, if there was one."""
    if is_compiling():
        return None
    for alike, plan in PLANS.get((numbers, is_grad_enabled()), ()):
        if alike(*tensors):
            return plan
    return None


def keep(numbers: Hashable, tensors: Sequence[Tensor], plan: Plan) -> None:
    """Let the next call with these integers and such tensors go straight to ``plan``.

    Not where one tensor is given twice, which the test always denies.
    """
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        return
    if len(PLANS) >= MOST_PLANS:
        PLANS.clear()
    key = (numbers, is_grad_enabled())
    PLANS[key] = ((like(*tensors), plan), *PLANS.get(key, ())[: MOST_ALIKE - 1])


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

    A registered operator is needed for autograd, tracing and tensor subclasses only.
    """
    if is_compiling():
        return False
    if is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and (type(tensor) not in PLAIN or tensor.requires_grad):
                return False
        return True
    return all(tensor is None or type(tensor) in PLAIN for tensor in tensors)
