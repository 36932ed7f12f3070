"""The first thing that every command does: see to what an interrupted run left in the trees that it works on.

Most trees hold nothing of the kind, which a look at two names tells; the writer is imported where there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from glm_pto.codemods import state, trees
from glm_pto.codemods.findings import Refusal, WriteFailure
from glm_pto.codemods.target import CONTROL
from glm_pto.codemods.trees import Tree


def settled(targets: Sequence[str | Path] = (), python: Path | None = None) -> tuple[Tree, ...]:
    """The trees, once what an interrupted run left in them is finished or rolled back; their notes tell."""
    found: list[Tree] = []
    for tree in trees.find(targets, python):
        hidden = tree.root / CONTROL
        if os.path.lexists(hidden) and not _at_rest(hidden):
            from glm_pto.codemods import transaction

            with telling(found):
                recovery = transaction.recover(tree.root)
            if recovery:
                tree = replace(tree, notes=(*tree.notes, recovery.message, *recovery.notes))
        found.append(tree)
    return tuple(found)


def _at_rest(hidden: Path) -> bool:
    try:
        names = set(os.listdir(hidden))  # noqa: PTH208 - names only, and no object for each
    except OSError:
        return False
    return state.at_rest(names) and not hidden.is_symlink()


def notes(found: Sequence[Tree]) -> tuple[str, ...]:
    """What was done to the trees before they were read."""
    return tuple(note for tree in found for note in tree.notes)


@contextmanager
def telling(found: Sequence[Tree]) -> Iterator[None]:
    """Let a refusal or a failure say, too, what was done to the trees before."""
    try:
        yield
    except (Refusal, WriteFailure) as error:
        error.notes = notes(found)
        raise
