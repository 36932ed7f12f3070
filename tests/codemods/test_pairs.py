"""A tree whose packages are of different release lines is told so; a fitting or half tree is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm_pto.codemods.pairs import mismatch
from glm_pto.codemods.trees import Package, Tree


def tree(vllm: str | None, ascend: str | None) -> Tree:
    found = {"vllm": vllm, "vllm_ascend": ascend}
    return Tree(Path(), tuple(Package(n, Path(n), v) for n, v in found.items() if v is not None))


@pytest.mark.parametrize(
    ("vllm", "ascend"),
    [
        pytest.param("0.12.0", "0.12.0rc1", id="a_pair"),
        pytest.param("0.14.1", "0.14.0rc1", id="a_pair_that_differs_in_the_patch_level"),
        pytest.param("0.23.0+empty", "0.23.0.post1", id="a_local_version"),
        pytest.param("0.33.0", None, id="no_vllm_ascend"),
        pytest.param(None, "0.13.0", id="no_vllm"),
    ],
)
def test_says_nothing_about(vllm: str | None, ascend: str | None) -> None:
    assert mismatch(tree(vllm, ascend)) is None


def test_names_both_versions_of_a_mixed_tree() -> None:
    text = mismatch(tree("0.12.0", "0.13.0rc1"))
    assert text is not None
    assert "vllm 0.12.0" in text and "vllm-ascend 0.13.0rc1" in text and "0.13" in text
