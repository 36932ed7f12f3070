"""Find the trees and packages to work on, and their versions, without importing any of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Packages that some recipe edits.
PACKAGES = ("vllm", "vllm_ascend", "wall_x")


@dataclass(frozen=True)
class Package:
    """A package folder: import name, folder, and the version its metadata states (None if none is found)."""

    name: str
    path: Path
    version: str | None


@dataclass(frozen=True)
class Tree:
    """A folder that holds one or more of the packages side by side.

    ``packages`` are the ones to work on; ``beside`` are known packages that stand there too and decide facts
    (whether vllm-ascend replaces a vllm computation) but were not named by the user.
    """

    root: Path
    packages: tuple[Package, ...]
    beside: tuple[Package, ...] = ()

    def find(self, name: str) -> Package | None:
        """The package called ``name``, to be worked on or beside."""
        return next((p for p in (*self.packages, *self.beside) if p.name == name), None)

    def version(self, name: str) -> tuple[int, ...] | None:
        """Release number of a package as integers, (0, 12, 0); None without the package or its version."""
        raise NotImplementedError
