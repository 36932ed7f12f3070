"""Switches: environment, both spellings, misuse, and flips that come too late."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest

import glm_pto_kernels as K
from glm_pto_kernels import switches


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of its own with the switches, under an empty environment."""
    for name in switches.SPELLINGS:
        monkeypatch.delenv(name, raising=False)
    module = ModuleType("a_package")
    monkeypatch.setitem(sys.modules, "a_package", module)
    switches.install("a_package")
    return module


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters={}))


def test_fault_18_every_operator_has_a_switch_and_it_is_on() -> None:
    assert switches.from_environment({}) == dict.fromkeys(switches.ALL, True)
    assert {*switches.ALL} <= {*vars(K)} and {*switches.ALIASES} <= {*vars(K)}


@pytest.mark.parametrize("word", ["0", "false", "Off", " no "])
@pytest.mark.parametrize("name", sorted(switches.SPELLINGS))
def test_environment_turns_off(name: str, word: str) -> None:
    values = switches.from_environment({name: word})
    assert [s for s, on in values.items() if not on] == [switches.SPELLINGS[name]]


@pytest.mark.parametrize("word", ["1", "true", "On", " yes ", ""])
def test_environment_turns_on(word: str) -> None:
    assert switches.from_environment({"USE_PTO_GATE": word}) == switches.from_environment({})


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"USE_PTO_GATE": "maybe"}, "maybe"),
        ({"USE_PTO_GATES": "1"}, "no switch"),
        ({"use_pto_gate": "0"}, "no switch"),
        ({"USE_PTO_SHARE_EXPERTS": "1", "USE_PTO_SHARE_EXEPERTS": "0"}, "both spellings"),
    ],
    ids=["unknown_word", "unknown_switch", "lower_case", "two_answers"],
)
def test_environment_is_refused(environment: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        switches.from_environment(environment)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize(("alias", "switch"), sorted(switches.ALIASES.items()))
def test_both_spellings_stay_in_step(package: ModuleType, alias: str, switch: str) -> None:
    setattr(package, alias, False)
    assert getattr(package, switch) is False
    setattr(package, switch, True)
    assert getattr(package, alias) is True
    with pytest.raises(AttributeError, match="cannot be deleted"):
        delattr(package, alias)


@pytest.mark.usefixtures("nothing_compiled")
def test_misuse_raises(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no switch USE_PTO_ATTENTION"):
        package.USE_PTO_ATTENTION = True  # type: ignore[attr-defined]
    for value in (0, "0", None):
        with pytest.raises(TypeError, match="True or False"):
            package.USE_PTO_GATE = value  # type: ignore[attr-defined]
    package.anything_else = 3  # type: ignore[attr-defined]
    del package.anything_else
    assert not hasattr(package, "anything_else")


def test_a_flip_after_a_compilation_warns(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"stats": {"unique_graphs": 1}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.USE_PTO_GATE = True  # type: ignore[attr-defined]  # no change, nothing to say
    with pytest.warns(RuntimeWarning, match="USE_PTO_GATE = False comes after") as caught:
        package.USE_PTO_GATE = False  # type: ignore[attr-defined]
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("nothing_compiled")
def test_a_flip_before_is_quiet(package: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.USE_PTO_GATE = False  # type: ignore[attr-defined]
