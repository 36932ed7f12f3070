"""wallx_backend: the module that stands in for wall-x's compiled extension ``wallx_csrc``.

Replaces ``import wallx_csrc as backend`` of wall-x's ``wall_x/fusions/backend.py``. Drop when wall-x runs
without its extension by itself. The operators are in ``glm_pto_kernels.wallx``, which is not imported before
it is asked for.
"""

from __future__ import annotations

from types import ModuleType


def wallx_backend() -> ModuleType:
    """The nine functions under the names and with the positional arguments of ``wallx_csrc``."""
    from glm_pto_kernels.wallx import csrc

    return csrc


def wallx_backend_refusal() -> str | None:
    """None: the module runs wherever the layer can be imported."""
    return None


def wallx_backend_supported() -> bool:
    """Whether the module can be used in this environment."""
    return wallx_backend_refusal() is None
