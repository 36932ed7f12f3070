"""A tree of a few lines to try one recipe on, and what the patcher makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from glm_pto.codemods import edit, plan, recipes, source, trees
from glm_pto.codemods.findings import Finding, Reached, State
from glm_pto.codemods.plan import Files, Spot
from glm_pto.codemods.recipe import Recipe

MARKER = re.compile(r"# glm-pto: (\w+) \d+ [0-9a-f]{8}")


@dataclass(frozen=True)
class Patient:
    """The tree and the one recipe that is tried on it."""

    root: Path
    recipe: Recipe

    def spots(self) -> list[Spot]:
        (tree,) = trees.find([self.root])
        return plan.survey(Files(tree), [self.recipe])

    def findings(self) -> dict[str, Finding]:
        """Finding of each place."""
        return {s.finding.place: s.finding for s in self.spots()}

    def finding(self) -> Finding:
        """The finding of the only place that has one."""
        (found,) = self.findings().values()
        return found

    def reached(self, place: str = "") -> Reached:
        """What the recipe says of the place (of the only one) in this tree."""
        (tree,) = trees.find([self.root])
        (found,) = [p for p in self.recipe.places if not place or p.name == place]
        return found.reached(tree)

    def guarded(self) -> str:
        """The file after the edit, digests masked; proved to go back to the byte."""
        (spot,) = [s for s in self.spots() if s.finding.state is State.APPLICABLE]
        assert spot.path is not None and spot.match is not None
        file = source.read(spot.path.name, spot.path.read_bytes())
        edited = edit.apply(file, [(self.recipe.site, spot.match)])
        assert edit.strip(edited).data == file.data
        return MARKER.sub(r"# \1", edited.data.decode())

    def apply(self) -> None:
        """Write the edit, so that the next look sees an applied site."""
        for spot in self.spots():
            if spot.path is not None and spot.match is not None:
                file = source.read(spot.path.name, spot.path.read_bytes())
                spot.path.write_bytes(edit.apply(file, [(self.recipe.site, spot.match)]).data)

    def rewrite(self, old: str, new: str) -> None:
        """Change every file of the tree by hand."""
        for path in self.root.rglob("*.py"):
            path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))


@pytest.fixture
def patient(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Patient]:
    """Make a tree for the recipe that the test module is named after: path -> text."""
    site = Path(request.path).stem.removeprefix("test_")
    recipe = next(r for r in recipes.load() if r.site == site)

    def make(files: dict[str, str], **versions: str) -> Patient:
        for name, text in files.items():
            package, path = name.partition("/")[0], tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            (tmp_path / package / "__init__.py").touch()
        for package, version in versions.items():
            info = tmp_path / f"{package}-{version}.dist-info"
            info.mkdir(exist_ok=True)
            info.joinpath("METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        return Patient(tmp_path, recipe)

    return make
