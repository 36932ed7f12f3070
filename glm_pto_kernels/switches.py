"""The switches ``USE_PTO_*``: read from the environment at import, then plain attributes of the package.

They default to on: applying the patch is the choice, and the ``auto`` backend leaves native code alone
wherever no fused kernel can run. vLLM compiles the model as one graph and drops Dynamo's guards, so a
switch is baked in when the first layer is traced. A later flip warns, because code that is compiled already
keeps the old value.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType

SWITCHES = {
    "USE_PTO_GATE": "gate",
    "USE_PTO_FA": "paged_attention",
    "USE_PTO_FA_PRE": "attention_pre",
    "USE_PTO_SELECT_EXPERTS": "select_experts",
    "USE_PTO_SHARE_EXPERTS": "shared_expert",
}
#: Switches of modules that stand in for an extension: no operator of a model, no backend to choose.
MODULES = {"USE_PTO_WALLX": "wallx_backend"}
ALIASES = {
    "USE_PTO_SELECT_EXEPERTS": "USE_PTO_SELECT_EXPERTS",
    "USE_PTO_SHARE_EXEPERTS": "USE_PTO_SHARE_EXPERTS",
}
ALL = (*SWITCHES, *MODULES)
SPELLINGS = {**ALIASES, **{name: name for name in ALL}}
TRUE, FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")


#: Called after a switch got another value.
CHANGED: list[Callable[[], None]] = []


class SwitchModule(ModuleType):
    """The package's module class: keeps both spellings of a switch in step and speaks up on a late flip.

    The values are ordinary entries of the module's dictionary, so reading one costs nothing and is traceable.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("USE_PTO_"):
            super().__setattr__(name, value)
            return
        switch = SPELLINGS.get(name)
        if switch is None:
            raise AttributeError(f"{self.__name__} has no switch {name}; it has {', '.join(ALL)}")
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
        if self.__dict__[switch] is not value:
            warn_if_late(f"{switch} = {value}")
        for spelling, canonical in SPELLINGS.items():
            if canonical == switch:
                super().__setattr__(spelling, value)
        for inform in CHANGED:
            inform()

    def __delattr__(self, name: str) -> None:
        if name in SPELLINGS:
            raise AttributeError(f"a switch cannot be deleted; set {SPELLINGS[name]} to True or False")
        super().__delattr__(name)


def warn_if_late(change: str) -> None:
    """Warn when code was compiled before ``change``: what is traced already will not see it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    compiled = getattr(dynamo, "counters", {}).get("stats", {}).get("unique_graphs", 0)
    if compiled:
        warnings.warn(
            f"{change} comes after torch.compile has traced code in this process; compiled layers keep what "
            "they were traced with. Set it in the environment, or before the model is loaded.",
            RuntimeWarning,
            stacklevel=3,
        )


def from_environment(environment: Mapping[str, str]) -> dict[str, bool]:
    """The value of every switch. Raises ValueError for a word that is no position, or two that differ."""
    values = {}
    for switch in ALL:
        given = {
            spelling: position(spelling, environment[spelling])
            for spelling, canonical in SPELLINGS.items()
            if canonical == switch and environment.get(spelling)
        }
        if len(set(given.values())) > 1:
            raise ValueError(f"the environment sets both spellings of {switch}, and differently: {given}")
        values[switch] = next(iter(given.values()), True)
    for name in environment:
        if name.upper().startswith("USE_PTO_") and name not in SPELLINGS:
            raise ValueError(f"the environment sets {name}, which is no switch; there is {', '.join(ALL)}")
    return values


def position(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError(f"{name}={text!r} in the environment: use one of {', '.join(TRUE + FALSE)}")


def install(package: str) -> None:
    """Give ``package`` its switches, in both spellings, and the class that watches them."""
    module = sys.modules[package]
    values = from_environment(os.environ)
    for spelling, switch in SPELLINGS.items():
        module.__dict__[spelling] = values[switch]
    module.__class__ = SwitchModule
    for inform in CHANGED:
        inform()
