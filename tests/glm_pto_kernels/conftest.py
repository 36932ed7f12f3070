"""Fixtures of the operator layer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from glm_pto_kernels import backends, switches


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Decide every backend anew under an environment, as an import under it would."""

    def decide(**variables: str) -> None:
        for name in backends.OPERATORS:
            monkeypatch.setitem(backends.CHOICES, name, backends.decide(name, variables))
        monkeypatch.setattr(backends, "_KERNELS", {})

    monkeypatch.setattr(backends, "CUSTOM", {})
    # Other tests of this process have compiled something.
    monkeypatch.setattr(switches, "warn_if_late", lambda change: None)
    return decide


@pytest.fixture
def torch_backend(environment: Callable[..., None]) -> None:
    environment(GLM_PTO_BACKEND="torch")


@pytest.fixture
def nan_filled() -> Iterator[None]:
    """torch.empty gives NaN (integers: the largest), so an unwritten output shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
