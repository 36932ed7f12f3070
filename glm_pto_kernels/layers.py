"""Reads attributes of a model's layers: of any object, without exceptions, cheap, traceable by Dynamo.

``getattr`` of a parameter, submodule or missing name goes through ``Module.__getattr__``, which costs about
as much as calling an empty module. These look into its dictionaries first.
"""

from __future__ import annotations

from typing import Any

_NOTHING: dict[str, Any] = {}


def parameter(layer: Any, name: str) -> Any:
    """``layer.name`` if it is a parameter, else any attribute of that name, else None."""
    parameters = getattr(layer, "_parameters", _NOTHING)
    if name in parameters:
        return parameters[name]
    return getattr(layer, name, None)


def child(layer: Any, name: str) -> Any:
    """``layer.name`` if it is a submodule, else any attribute of that name, else None."""
    modules = getattr(layer, "_modules", _NOTHING)
    if name in modules:
        return modules[name]
    return getattr(layer, name, None)


def has_child(layer: Any, name: str) -> bool:
    """Whether there is a submodule ``name`` that is not None; other objects: an attribute."""
    modules = getattr(layer, "_modules", None)
    if modules is None:
        return getattr(layer, name, None) is not None
    return modules.get(name) is not None
