"""One log line per operator and process. Never reached from ``supported``: it would break the trace."""

from __future__ import annotations

import logging
import sys
from typing import Any


def logger() -> logging.Logger:
    """vLLM configures only its own logger, so inside vLLM ours is a child of it, else it stands alone."""
    return logging.getLogger("vllm.glm_pto_kernels" if "vllm" in sys.modules else "glm_pto_kernels")


def taken(operator: str, backend: str, arguments: tuple[Any, ...]) -> None:
    shapes = ", ".join("x".join(map(str, a.shape)) for a in arguments if hasattr(a, "shape"))
    logger().info("%s: taken by the %s backend (first call: %s)", operator, backend, shapes)
