"""Fixtures that several test folders share."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto.cli import fetch

TreeFactory = Callable[..., Path]


def load_triton_for_its_interpreter() -> None:
    """Triton's own functions are interpreted only if the variable is set when Triton is first imported.

    Anything that compiles may import it before the first test that interprets, so it is done here, where no
    NVIDIA GPU could run the kernels anyway.
    """
    if Path("/dev/nvidiactl").exists() or importlib.util.find_spec("triton") is None:
        return
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.import_module("triton")
    if before is None:
        del os.environ["TRITON_INTERPRET"]


load_triton_for_its_interpreter()


@pytest.fixture
def tree_factory(tmp_path: Path) -> TreeFactory:
    """``tree_factory(vllm="0.12.0", ascend="0.12.0rc1")``: a fresh copy of released packages, to be edited.

    Leave one out for a tree with a single package. The test is skipped only where a release is neither
    cached nor to be had from the index.
    """
    counter = itertools.count()

    def make(vllm: str | None = None, ascend: str | None = None) -> Path:
        destination = tmp_path / f"tree-{next(counter)}"
        try:
            return fetch.pair(ascend, vllm, destination)
        except fetch.FetchError as error:
            pytest.skip(f"no released sources: {error}")

    return make


@pytest.fixture
def pair_tree(tree_factory: TreeFactory) -> Path:
    """A fresh copy of the guide's own pair: vllm 0.12.0 with vllm-ascend 0.12.0rc1."""
    return tree_factory(vllm="0.12.0", ascend="0.12.0rc1")


@pytest.fixture
def released() -> Callable[[str, str], Path]:
    """``released(name, version)``: the shared cached folder of a release, for reading only."""

    def find(name: str, version: str) -> Path:
        try:
            return fetch.release(name, version)
        except fetch.FetchError as error:
            pytest.skip(f"no released sources: {error}")

    return find
