"""Unified diffs as bytes: exact for every ending and encoding, valid for ``git apply`` and ``patch -p1``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_CONTEXT = 3


@dataclass(frozen=True)
class FileDiff:
    """One file's difference: path relative to the tree, the patch text, lines added and removed."""

    path: str
    patch: bytes
    added: int
    removed: int


@dataclass(frozen=True)
class DiffResult:
    """Differences by tree root, in the order of the files' paths; ``notes`` tell what was done before.

    ``which`` says of each tree what its difference is: "pending" or "applied".
    """

    trees: tuple[tuple[Path, tuple[FileDiff, ...]], ...]
    notes: tuple[str, ...] = ()
    which: tuple[str, ...] = ()

    @property
    def patch(self) -> bytes:
        """All differences as one patch."""
        return b"".join(f.patch for _, files in self.trees for f in files)


def file_diff(path: str, before: bytes | None, after: bytes | None) -> FileDiff:
    """The patch that turns ``before`` into ``after``; None stands for a file that does not exist."""
    old, new = _LINE.findall(before or b""), _LINE.findall(after or b"")
    name = path.encode("utf-8", "surrogateescape")
    patch = [b"diff --git a/%s b/%s\n" % (name, name)]
    if before is None:
        patch.append(b"new file mode 100644\n")
    if after is None:
        patch.append(b"deleted file mode 100644\n")
    patch.append(b"--- a/%s\n" % name if before is not None else b"--- /dev/null\n")
    patch.append(b"+++ b/%s\n" % name if after is not None else b"+++ /dev/null\n")
    added = removed = 0
    for group in _groups(old, new):
        lines, more, less = _hunk(group, old, new)
        patch += lines
        added, removed = added + more, removed + less
    return FileDiff(path, b"".join(patch) if added or removed else b"", added, removed)


Opcode = tuple[str, int, int, int, int]


def _groups(old: list[bytes], new: list[bytes]) -> Iterable[list[Opcode]]:
    """Hunks; common head and tail are cut first, since the matcher's time grows with what it compares."""
    from difflib import SequenceMatcher

    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start, cut = max(0, head - _CONTEXT), max(0, tail - _CONTEXT)
    matcher = SequenceMatcher(None, old[start : len(old) - cut], new[start : len(new) - cut], autojunk=False)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        yield [(tag, i1 + start, i2 + start, j1 + start, j2 + start) for tag, i1, i2, j1, j2 in group]


def _hunk(group: list[Opcode], old: list[bytes], new: list[bytes]) -> tuple[list[bytes], int, int]:
    first, last = group[0], group[-1]
    lines = [b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4]))]
    added = removed = 0
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            lines += [_line(b" ", text) for text in old[i1:i2]]
            continue
        lines += [_line(b"-", text) for text in old[i1:i2]]
        lines += [_line(b"+", text) for text in new[j1:j2]]
        added, removed = added + j2 - j1, removed + i2 - i1
    return lines, added, removed


def _line(sign: bytes, text: bytes) -> bytes:
    return sign + text if text.endswith(b"\n") else sign + text + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (1 if length else 0), length)
