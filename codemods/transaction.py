"""The only writer: all of a set of file changes, or none of them, whatever happens in the middle.

Order of a commit: lock; settle an interrupted run; check everything; journal; new files beside the targets
and a second name for the old ones; renames, the state last; the journal's rename, which is the moment of
commitment; leftovers removed. Before that moment any failure, Ctrl-C or death rolls back, after it everything
rolls forward.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from glm_pto.codemods import disk, journal, lock, running, settle, state, steps, target
from glm_pto.codemods.findings import Changed, FileChange, Refusal, WriteFailure
from glm_pto.codemods.settle import Recovery

__all__ = ["Recovery", "commit", "recover"]


def recover(root: Path, *, wait: float = lock.WAIT) -> Recovery | None:
    """Finish or roll back what an interrupted run left in the tree; None where there was nothing.

    The first thing that every command does. Costs one system call in a tree that was never touched and takes
    the lock only where something is left. Raises `Refusal` (busy, not permitted) and `WriteFailure`.
    """
    with disk.Folders(root) as folders, _failing(folders, "looking for an interrupted run"):
        if not _unsettled(folders):
            return None
        with ExitStack() as held:
            try:
                control = held.enter_context(lock.hold(folders, wait))
            except Refusal as refusal:
                raise Refusal(
                    *(f"{p}; an interrupted run is to be settled" for p in refusal.problems)
                ) from None
            return settle.settle(folders, control)


def commit(
    root: Path,
    changes: Sequence[FileChange],
    versions: Mapping[str, str | None],
    tool: str,
    *,
    survey: Mapping[str, Any] | None = None,
    wait: float = lock.WAIT,
) -> tuple[str, ...]:
    """Write ``changes`` to the tree at ``root``, and what they are to its state: all of it or nothing.

    Returns what the user should know.
    Without changes it only brings the state up to date. ``versions`` are those of the packages, ``tool`` that
    of glm-pto; the state keeps both, and ``survey`` for `glm_pto.codemods.recall`. Raises `Refusal` where
    something stands in the way before the first write (a file that is not as the plan read it, a read-only
    one, a link into a cache, another run) and `WriteFailure` after a failure, rolled back.
    """
    done: tuple[str, ...] | None = None
    try:
        with disk.Folders(root) as folders, _failing(folders, "writing"), lock.hold(folders, wait) as control:
            recovery = settle.settle(folders, control)
            todo, notes = steps.prepare(folders, changes)
            named = [(step.spot.path, step.look.mode, step.change) for step in todo if step.change]
            known = state.prune(folders.root, state.load(folders.root).record)
            record = state.merge(known, named, versions, tool, survey)
            todo += steps.remember(folders, record)
            if recovery:
                notes += [recovery.message, *recovery.notes]
            if named:
                notes += running.warning(folders.root)
            if todo:
                notes += _carry_out(folders, control, todo)
            done = tuple(notes)
    except KeyboardInterrupt:
        if done is None:
            raise
    return done


def _unsettled(folders: disk.Folders) -> bool:
    """Is there anything in the hidden folder that needs the lock, and that this user can settle?"""
    try:
        control = folders.open(folders.root / target.CONTROL)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False  # what this user may not see is settled by the next run of its owner
    names = disk.names(control)
    if state.at_rest(names):
        return False
    if names & {journal.OPEN, journal.DONE}:
        return True
    return os.access(".", os.W_OK, dir_fd=control, effective_ids=True)


def _carry_out(folders: disk.Folders, control: int, todo: list[steps.Step]) -> list[str]:
    """Journal, stage, swap, commit, clear. Returns notes; raises after a roll-back."""
    missing = sorted({folder for step in todo for folder in _missing(folders, step)}, key=len)
    work = journal.Journal(journal.new_id(), os.getpid(), tuple(step.entry for step in todo), tuple(missing))
    notes: list[str] = []
    committed = False
    try:
        journal.write(control, work)
        folders.sync([folders.root])  # the journal is of no use in a folder whose name is not durable
        _stage(folders, work, todo)
        _swap(folders, work, todo)
        with _undisturbed():
            journal.close(control)
            committed = True
            notes += _clear(folders, control, work)
    except BaseException as error:
        if not committed:
            with _undisturbed():
                _undo(folders, control, work)
        elif isinstance(error, KeyboardInterrupt):
            return [*notes, "Ctrl-C came when everything was written already"]
        raise
    return notes


def _undo(folders: disk.Folders, control: int, work: journal.Journal) -> None:
    if journal.read(control) is None:
        journal.remove(control)
    else:
        settle.roll_back(folders, control, work)


def _clear(folders: disk.Folders, control: int, work: journal.Journal) -> list[str]:
    try:
        settle.clear(folders, control, work)
    except OSError as error:
        return [f"everything is written; what is left over goes with the next command ({error})"]
    return []


def _stage(folders: disk.Folders, work: journal.Journal, todo: list[steps.Step]) -> None:
    """Write the new files and give the old ones a second name; no target is touched yet."""
    made = [target.locate(folders, path) for path in work.folders]
    for spot in made:
        os.mkdir(spot.name, 0o755, dir_fd=folders.open(spot.parent))
    for index, step in enumerate(todo):
        folder = folders.open(step.spot.parent)
        new, old = work.staged(index)
        if step.after is not None:
            disk.write_new(folder, new, step.after, step.look)
            if step.entry.before is not None:
                disk.keep(folder, step.spot.name, old)
    folders.sync([*(spot.parent for spot in made), *(step.spot.parent for step in todo)])


def _swap(folders: disk.Folders, work: journal.Journal, todo: list[steps.Step]) -> None:
    """Rename everything into place, the state last."""
    for index, step in enumerate(todo):
        folder, name = folders.open(step.spot.parent), step.spot.name
        new, old = work.staged(index)
        if step.disturbed(folder):
            raise Changed(f"{step.spot.real}: changed while it was being replaced; run the command again")
        source, aim = (name, old) if step.after is None else (new, name)
        os.rename(source, aim, src_dir_fd=folder, dst_dir_fd=folder)
    folders.sync(step.spot.parent for step in todo)


def _missing(folders: disk.Folders, step: steps.Step) -> Iterator[str]:
    """The folders, from the root, that must be made for a new file."""
    for parent in Path(step.spot.path).parents:
        if parent.name and not (folders.root / parent).exists():
            yield parent.as_posix()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Ctrl-C waiting until the tree is in order again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _failing(folders: disk.Folders, doing: str) -> Iterator[None]:
    """Turn an OSError into the WriteFailure that says whether the tree is as it was."""
    try:
        yield
    except (OSError, disk.NotRegular) as error:
        rest = (
            "undoing it failed too, so the next command does that"
            if _left_open(folders)
            else "every file is as it was before"
        )
        raise WriteFailure(f"{folders.root}: {doing} failed ({error}); {rest}") from error


def _left_open(folders: disk.Folders) -> bool:
    """Is there a journal still? Also where the disk does not even tell that."""
    try:
        return any((folders.root / target.CONTROL / name).exists() for name in (journal.OPEN, journal.DONE))
    except OSError:
        return True
