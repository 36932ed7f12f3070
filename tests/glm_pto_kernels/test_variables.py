"""Names of environment variables: all that are read are known, and a slip is refused with what was meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glm_pto_kernels import backends, variables

ROOT = Path(__file__).parents[2]
OWN = (
    "glm_pto_kernels",
    "cli",
    "codemods",
    "benchmarks",
    "tests",
    "docs",
    ".ci",
    "README.md",
    "pyproject.toml",
)
SLIPS = ("test_backends.py", "test_variables.py", "test_import.py")  # have misspelt names on purpose


def named() -> set[str]:
    """Every name with the prefix in the project's own files, but for the list itself."""
    files = [
        path
        for place in OWN
        for path in ((ROOT / place).rglob("*") if (ROOT / place).is_dir() else [ROOT / place])
    ]
    texts = [
        path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in (".py", ".md", ".toml", "")
        and path.is_file()
        and path.name not in SLIPS
        and path != Path(variables.__file__)
    ]
    return {name for text in texts for name in re.findall(r"\bGLM_PTO_[A-Z_]*[A-Z]\b", text)}


def test_every_name_in_the_project_is_known_and_every_known_name_is_used() -> None:
    found = named()
    assert found <= variables.KNOWN
    assert variables.KNOWN - set(variables.KERNELS) <= found


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("GLM_PTO_DISABEL", "GLM_PTO_DISABLE"),
        ("GLM_PTO_BAKEND", "GLM_PTO_BACKEND"),
        ("GLM_PTO_BACKENDS", "GLM_PTO_BACKEND"),
        ("glm_pto_check", "GLM_PTO_CHECK"),
        ("GLM_PTO_KERNEL_gate", "GLM_PTO_KERNEL_GATE"),
        ("GLM_PTO_KERNEL_FFN_SHARE_EXPERT_QUANT", "GLM_PTO_KERNEL_SHARED_EXPERT"),
        ("GLM_PTO_KERNEL_FA", "GLM_PTO_KERNEL_PAGED_ATTENTION"),
        ("GLM_PTO_KERNEL_SHARE_EXEPERTS", "GLM_PTO_KERNEL_SHARED_EXPERT"),
    ],
)
def test_a_slip_is_refused_with_what_was_meant(slip: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"sets {slip}, which nothing reads; did you mean {meant}\?"):
        backends.decide("gate", {"GLM_PTO_DISABLE": "all", slip: "gate"})


def test_a_kernel_of_no_operator_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"there is GLM_PTO_KERNEL_GATE, .*, GLM_PTO_KERNEL_SHARED_EXPERT$"):
        variables.refuse_unknown({"GLM_PTO_KERNEL_MLP": "a:b"})


def test_a_name_like_none_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"there is GLM_PTO_BACKEND, .*, GLM_PTO_KERNEL_SHARED_EXPERT"):
        variables.refuse_unknown({"GLM_PTO_XXXXXXXXXXXXXXXX": "1"})


def test_other_names_are_others() -> None:
    names = (*variables.KNOWN, "_GLM_PTO_COMPLETE", "GLM_PTOX", "MY_GLM_PTO_BACKEND", "PATH")
    variables.refuse_unknown(dict.fromkeys(names, "anything"))
