"""Where the text of a file comes from: as glm-pto left it, as its wheel installed it, or edited since.

The state says what the last apply left, the wheel's RECORD what was installed. Neither decides an edit, the
guards in the text do; together they say in words what happened in between.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from glm_pto.codemods import reading, seal, state
from glm_pto.codemods.findings import Finding, State, TreeReport


class Kind(str, Enum):
    """What happened to a file since the last apply."""

    AS_LEFT = "as left"
    ORIGINAL = "original again"
    REINSTALLED = "reinstalled"
    UPGRADED = "upgraded"
    REPLACED = "replaced"
    EDITED = "edited"
    PARTLY_REVERTED = "partly reverted"
    GONE = "gone"


#: The file holds nothing of ours any more, and nobody threw an edit of ours away by hand.
FRESH = frozenset({Kind.ORIGINAL, Kind.REINSTALLED, Kind.UPGRADED, Kind.REPLACED})


@dataclass(frozen=True)
class Origin:
    """The finding and the sentence for people; the sentence is empty for `Kind.AS_LEFT`."""

    kind: Kind
    message: str = ""


def explain(root: Path, path: str, current: bytes | None, left: state.FileRecord) -> Origin:
    """What happened to the file at ``path`` (from ``root``), now ``current``, since glm-pto left it so."""
    if current is None:
        return Origin(Kind.GONE, f"{path}: is gone since the last apply; there is nothing to revert in it")
    digest = seal.digest(current)
    if digest == left.after:
        return Origin(Kind.AS_LEFT)
    here = state.standing(current)
    lost = [site for site in left.sites if site not in here]
    if not here:
        return _fresh(root, path, current, digest, left)
    if lost:
        what = f"{path}: the guard of {', '.join(lost)} was taken out by hand since the last apply"
        return Origin(Kind.PARTLY_REVERTED, f"{what}; apply puts it in again, revert takes the others out")
    return Origin(
        Kind.EDITED, f"{path}: edited since the last apply; revert takes out our lines and keeps the edit"
    )


def annotate(report: TreeReport) -> TreeReport:
    """The report with what the state and RECORD tell about it; the states of rows come from the text."""
    read = state.load(report.root)
    notes = [read.problem] if read.problem else []
    rows = report.findings
    for path, left in read.record.files.items() if read.record else ():
        if left.made:
            continue
        try:
            current: bytes | None = reading.load(report.root / path)
        except (FileNotFoundError, NotADirectoryError):
            current = None
        except OSError as error:
            notes.append(f"{path}: cannot be read ({error.strerror})")
            continue
        origin = explain(report.root, path, current, left)
        if origin.kind in FRESH:
            rows = tuple(_reinstalled(row, path, left, origin) for row in rows)
        # Of an edit inside our lines the row tells more, and revert does not take those out.
        inside = any(row.file == path and row.state is State.EDITED for row in rows)
        if origin.message and not (origin.kind is Kind.EDITED and inside):
            notes.append(origin.message)
    return replace(report, findings=rows, notes=(*report.notes, *notes))


def _reinstalled(row: Finding, path: str, left: state.FileRecord, origin: Origin) -> Finding:
    if row.file != path or row.site not in left.sites or row.state is not State.APPLICABLE:
        return row
    return replace(row, state=State.REINSTALLED, message=f"{origin.message}; apply guards it again")


def _fresh(root: Path, path: str, current: bytes, digest: str, left: state.FileRecord) -> Origin:
    version = _recorded(root, path).get(_record_hash(current))
    if version is not None:
        if version != left.version and left.version is not None:
            change = f"{left.package} {left.version} was upgraded to {version}"
            return Origin(Kind.UPGRADED, f"{path}: {change} since the last apply; there is nothing to revert")
        what = f"{left.package} was reinstalled since the last apply"
        return Origin(Kind.REINSTALLED, f"{path}: {what}; there is nothing to revert")
    if digest == left.before:
        what = "is the original text again (reinstalled, or put back by hand) since the last apply"
        return Origin(Kind.ORIGINAL, f"{path}: {what}; there is nothing to revert")
    what = "was replaced by a text without our lines since the last apply"
    return Origin(Kind.REPLACED, f"{path}: {what}; there is nothing to revert")


def _recorded(root: Path, path: str) -> dict[str, str]:
    """Hash of the file, as RECORD writes it, to the version of the distribution that installed it so."""
    package = path.partition("/")[0]
    wanted = f"{path},sha256=".encode("utf-8", "surrogateescape")
    found: dict[str, str] = {}
    for folder in sorted(root.glob(f"{package}-*.dist-info")):
        try:
            record = reading.load(folder / "RECORD", 16 * reading.MAX_BYTES)
        except OSError:
            continue
        for start in (record.find(b"\n" + wanted) + 1, 0):
            if record.startswith(wanted, start):
                rest = record[start + len(wanted) :].partition(b",")[0]
                version = folder.name[len(package) + 1 : -len(".dist-info")]
                found[rest.decode("ascii", "replace")] = version
                break
    return found


def _record_hash(data: bytes) -> str:
    raw = bytes.fromhex(seal.digest(data))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
