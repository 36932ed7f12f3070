"""Released trees that hold only what the recipes look at: small enough to copy for every test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto.cli import fetch
from glm_pto.codemods import recipes

LightTree = Callable[[str | None, str | None], Path]


@pytest.fixture
def light_tree(tmp_path: Path) -> LightTree:
    """``light_tree(vllm, ascend)``: the released files that some form names, editable, with the metadata.

    Skipped where a release is neither cached nor to be had from the index.
    """

    def make(vllm: str | None, ascend: str | None) -> Path:
        root = tmp_path / f"vllm-{vllm}-ascend-{ascend}"
        for name, package, version in (("vllm", "vllm", vllm), ("vllm-ascend", "vllm_ascend", ascend)):
            if version is None:
                continue
            try:
                cached = fetch.release(name, version)
            except fetch.FetchError as error:
                pytest.skip(f"no released sources: {error}")
            for info in cached.glob("*.dist-info"):
                shutil.copytree(info, root / info.name)
            for file in {"__init__.py", *named(package)}:
                if (cached / package / file).is_file():
                    (root / package / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(cached / package / file, root / package / file)
        return root

    return make


def named(package: str) -> set[str]:
    """Files of a package that some form names."""
    return {f.file for r in recipes.load() for p in r.places if p.package == package for f in p.forms}
