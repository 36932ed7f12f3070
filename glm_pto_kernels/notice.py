"""One log line per operator and process. Never reached from ``supported``: it would break the trace."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

TORCH = vars(torch)
LEFT_ALONE: set[str] = set()  # operators of which it has been said


def logger() -> logging.Logger:
    """vLLM configures only its own logger, so inside vLLM ours is a child of it, else it stands alone."""
    return logging.getLogger("vllm.glm_pto_kernels" if "vllm" in sys.modules else "glm_pto_kernels")


def taken(operator: str, backend: str, arguments: Iterable[Any]) -> None:
    """Say once that an operator runs, and who computes it."""
    logger().info("%s: taken by the %s backend (first call: %s)", operator, backend, shapes_of(arguments))


def stays(operator: str, reason: str) -> None:
    """Say once that native code stays in charge of an operator in this process."""
    logger().info("%s: native code stays: %s", operator, reason)


def left_alone(operator: str, reason: str) -> None:
    """Say once that a layer is left to its own modules; nothing while Dynamo traces, which it would break."""
    if is_dynamo_compiling() or operator in LEFT_ALONE:
        return
    LEFT_ALONE.add(operator)
    logger().info("%s: a layer is left to its own modules: %s", operator, reason)


def shapes_of(arguments: Iterable[Any]) -> str:
    """The tensors among a call's arguments, for a message."""
    tensors = (a for a in arguments if isinstance(a, torch.Tensor))
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors)


def capturing() -> bool:
    """Whether a graph is being captured on the device. Asked where tensors are on one.

    Each decode step asks for each layer, so what torch may lack is looked up without asking torch for it. A
    torch_npu that cannot tell is old enough for vLLM's forward context to say so.
    """
    try:
        probe = TORCH["npu"].is_current_stream_capturing
    except (KeyError, AttributeError):
        return _captures_otherwise()
    return probe()  # type: ignore[no-any-return]


def _captures_otherwise() -> bool:
    if "npu" not in TORCH and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return True
    context = getattr(sys.modules.get("vllm.forward_context"), "_forward_context", None)
    return getattr(context, "capturing", False) is True
