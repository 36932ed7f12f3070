"""The recipes: one file an operator, found by walking this package."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from glm_pto.codemods.recipe import Recipe


@cache
def load() -> tuple[Recipe, ...]:
    """All recipes in alphabetical order of their module, which is named after the site."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").RECIPE for name in names)
