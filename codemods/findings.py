"""What the patcher found and did: the frozen values that travel from the plan to the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class State(str, Enum):
    """State of one place of one site in one tree."""

    APPLIED = "applied"
    APPLICABLE = "applicable"
    ABSENT = "absent"
    MOVED = "moved"
    AMBIGUOUS = "ambiguous"
    PASTED = "pasted"
    EDITED = "edited"
    REINSTALLED = "reinstalled"


#: States that make `apply` refuse the whole tree unless the site is skipped.
BLOCKING = frozenset({State.MOVED, State.AMBIGUOUS, State.PASTED, State.EDITED})


class Action(str, Enum):
    """What a command did (or, on a dry run, would do) at one place."""

    APPLIED = "applied"
    RENEWED = "renewed"
    REVERTED = "reverted"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Reached:
    """Does a GLM-4.5 decode step run through the place in this tree?

    ``by_default`` is None where nothing in the tree can tell. ``when`` says in words which setting or
    graph mode reaches it (or keeps it from being reached).
    """

    by_default: bool | None
    when: str = ""


@dataclass(frozen=True)
class Finding:
    """One row of `status`: a place of a site, where it was looked for and what was found."""

    site: str
    place: str
    package: str
    state: State
    file: str | None = None
    line: int | None = None
    form: str | None = None
    reached: bool | None = None
    reached_when: str = ""
    message: str = ""
    action: Action | None = None


@dataclass(frozen=True)
class FileChange:
    """One file to write (``after``), create (``before`` is None) or remove (``after`` is None)."""

    path: Path
    before: bytes | None
    after: bytes | None
    package: str


@dataclass(frozen=True)
class TreeReport:
    """What a command found in one tree."""

    root: Path
    packages: dict[str, str | None]
    findings: tuple[Finding, ...]
    digest: str = ""
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Options:
    """What the user asked for. ``sites``: only these (empty: all); ``skip``: all but these."""

    sites: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    dry_run: bool = False
    require_reached: bool = False
    install_kernels: bool = False
    force: bool = False


@dataclass(frozen=True)
class Result:
    """What a command found and did, tree by tree."""

    trees: tuple[TreeReport, ...]
    action: str | None = None
    changed: bool = False


class Refusal(Exception):
    """The request is refused and nothing was changed (exit code 3).

    ``problems`` lists everything that stands in the way, not only the first; each says what was expected,
    what was found and what to do next. ``notes`` tell what was done to the trees before: an interrupted run
    is settled also by a command that is refused.
    """

    def __init__(self, *problems: str, findings: tuple[Finding, ...] = ()) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))
        self.findings = findings
        self.notes: tuple[str, ...] = ()


class Changed(Refusal):
    """Only this stands in the way: another run wrote files between our look and our turn."""


class UsageError(Exception):
    """The request itself is wrong: no such tree, no such site (exit code 2)."""


class WriteFailure(Exception):
    """Reading or writing failed and every file is as before (exit code 4); ``notes`` as in `Refusal`."""

    notes: tuple[str, ...] = ()
