"""A tree in a container's image: an overlay, where a first write moves a file of a lower layer elsewhere."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from glm_pto.codemods import operations
from tests.codemods import planted
from tests.codemods.planted import FILE, MARK, MODEL, plant, round_trip

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount an overlay")


@contextmanager
def overlay(lower: Path, above: Path) -> Iterator[Path]:
    """A container's view of the layer ``lower``, its changes kept in ``above``."""
    upper, work, view = (above / name for name in ("upper", "work", "view"))
    for folder in (upper, work, view):
        folder.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mounted = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, view], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no overlay here: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield view
    finally:
        subprocess.run(["umount", view], check=True)


@pytest.fixture(params=["one_file_system", "two_file_systems"])
def layers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Folders for the lower and the upper layer."""
    with ExitStack() as stack:
        lower = tmp_path / "lower"
        if request.param == "two_file_systems":
            lower = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        yield lower, tmp_path / "above"


@pytest.mark.parametrize("linked", [False, True], ids=["copied", "hard_linked"])
def test_a_tree_of_a_lower_layer_round_trips(layers: tuple[Path, Path], linked: bool) -> None:
    lower, above = layers
    file = plant(lower)
    if linked:
        (lower / "cache.py").hardlink_to(file)
    before = planted.names(lower)
    with overlay(lower, above) as root:
        round_trip(root)
    assert planted.names(lower) == before, "the layer below is not ours to change"


def test_an_apply_in_one_layer_is_reverted_in_the_next(layers: tuple[Path, Path]) -> None:
    lower, above = layers
    file = plant(lower)
    planted.apply(lower)
    guarded = file.read_bytes()
    with overlay(lower, above) as root:
        assert operations.revert([root]).changed
        assert (root / FILE).read_text() == MODEL
        assert not (root / ".glm-pto").exists()
    assert file.read_bytes() == guarded
    assert MARK in guarded
