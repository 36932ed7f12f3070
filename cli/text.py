"""Words for people: results as lines of text, with marks where a terminal may colour them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from glm_pto.codemods.findings import BLOCKING, Action, Finding, State, TreeReport

if TYPE_CHECKING:
    from glm_pto.codemods.operations import DiffResult, Result

#: Colour of a state on a terminal.
COLORS = {
    "applied": "green", "renewed": "green", "reverted": "green", "applicable": "cyan", "unchanged": "green",
    "absent": "bright_black", "moved": "red", "ambiguous": "red", "pasted": "red",
    "edited": "red", "reinstalled": "yellow",
    "proved": "green", "refuted": "red", "agrees": "green", "differs": "red", "not run": "yellow",
}  # fmt: skip

HEADINGS = ("site", "state", "reached", "where")
#: On a dry run nothing has the state that is shown.
PLANNED = ("site", "would be", "reached", "where")


def plain(value: object) -> str:
    """Text that cannot steer a terminal: whatever is not printable, a lone surrogate too, is spelt out."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelt(ord(c)) for c in text)


def _spelt(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def heading(tree: TreeReport) -> str:
    """The tree's folder and what it holds."""
    packages = ", ".join(
        f"{name} {version or '(version unknown)'}" for name, version in tree.packages.items()
    )
    return plain(f"{tree.root}  {packages}")


def row(finding: Finding) -> tuple[str, str, str, str]:
    """One line of the table."""
    reached = {True: "yes", False: "no", None: "?"}[finding.reached]
    if finding.state is State.ABSENT:
        reached = "-"
    elif finding.reached is not True and finding.reached_when:
        reached += "*"
    where = f"{finding.file}:{finding.line}" if finding.line else finding.file or finding.package
    return plain(finding.site), word(finding), reached, plain(where)


def word(finding: Finding) -> str:
    """What was done at the place, else how it stands; of a place that is not there nothing is "unchanged"."""
    nothing = finding.action is Action.UNCHANGED and finding.state is State.ABSENT
    return finding.state.value if finding.action is None or nothing else finding.action.value


def remarks(findings: Iterable[Finding], verbose: bool) -> list[str]:
    """What the table has no room for: messages, and when a place is reached. What is said of several sites
    of one file is said once."""
    lines: dict[str, list[str]] = {}
    for finding in findings:
        if finding.message and (verbose or finding.state is not State.APPLICABLE):
            lines.setdefault(finding.message, []).append(finding.site)
        if (
            finding.reached_when
            and finding.state is not State.ABSENT
            and (verbose or finding.reached is not True)
        ):
            said = {True: "is reached", False: "* is reached", None: "* may be reached:"}[finding.reached]
            lines.setdefault(f"{said} {finding.reached_when}", []).append(finding.site)
        if verbose and finding.form:
            lines.setdefault(f"form {finding.form}, place {finding.place}", []).append(finding.site)
    return [plain(f"{', '.join(dict.fromkeys(sites))}: {line}") for line, sites in lines.items()]


def notes(tree: TreeReport) -> list[str]:
    """What is said of the whole tree, without what the remark on a site says already."""
    said = [f.message for f in tree.findings if f.state is not State.APPLICABLE]
    return [note for note in tree.notes if not any(message.startswith(note) for message in said)]


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many places stand how: by action where there is one, else by state."""
    return dict(Counter(map(word, findings)))


def last_line(command: str, code: int, fields: dict[str, object]) -> str:
    """The machine-readable line that ends what a command prints that is not a patch or a text to read."""
    words = " ".join(f"{name}={plain(value)}" for name, value in fields.items())
    return f"glm-pto {command}: exit={code} {words}".rstrip()


#: What must be restarted after a change in a package.
PROGRAMS = {"vllm": "vLLM", "vllm_ascend": "vLLM", "wall_x": "wall-x"}
#: Actions that changed (on a dry run: would change) a file.
DONE = frozenset({Action.APPLIED, Action.RENEWED, Action.REVERTED})


def closing(command: str, result: Result, files: int, dry_run: bool, target: str = "") -> str:
    """What was done, in one sentence, and what to do next to the same ``target``."""
    done = sum(f.action in DONE for tree in result.trees for f in tree.findings)
    if not done and result.changed:
        stood = "All sites are guarded already" if command == "apply" else "No site of the table was guarded"
        return f"{stood}; see above for what else was done." + (" Nothing was written." if dry_run else "")
    if not done and command == "apply":
        states = {f.state for tree in result.trees for f in tree.findings}
        why = "already applied" if State.APPLIED in states else "no site that is asked for is in this tree"
        return f"Nothing to do: {why}."
    if not done:
        return "Nothing to revert."
    verb = "guarded" if command == "apply" else "taken out"
    sites, where = "site" if done == 1 else "sites", "file" if files == 1 else "files"
    amount = f"{done} {sites} {'would be ' if dry_run else ''}{verb} in {files} {where}."
    if dry_run:
        return f"{amount} Nothing was written."
    if command == "revert":
        return f"{amount} The original statements stand alone again."
    target = plain(target)
    review, undo = f"`glm-pto diff --applied{target}`", f"`glm-pto revert{target}`"
    ran = {PROGRAMS[f.package] for tree in result.trees for f in tree.findings if f.action in DONE}
    return f"{amount} Review with {review}, undo with {undo}; restart {' and '.join(sorted(ran))} to load it."


def shortfall(trees: Sequence[TreeReport], applied: bool, reached: bool) -> str:
    """What `status --check` (``applied``) and `--require reached` miss, in one sentence, else empty."""
    short: dict[str, list[str]] = {}
    for tree in trees:
        rows = [f for f in tree.findings if f.state is not State.ABSENT]
        ran = {f.site for f in rows if f.reached}
        for row in rows:
            if applied and row.state is not State.APPLIED:
                short.setdefault(row.state.value, []).append(row.site)
            elif applied and row.message:
                short.setdefault("not as apply leaves it", []).append(row.site)
            if reached and row.site not in ran:
                short.setdefault("not reached", []).append(row.site)
    if (applied or reached) and not any(tree.findings for tree in trees):
        return "The check fails: no site that is asked for is in this tree."
    parts = [f"{reason} ({', '.join(dict.fromkeys(sites))})" for reason, sites in short.items()]
    return f"The check fails: {', '.join(parts)}." if parts else ""


def advice(trees: Sequence[TreeReport], target: str = "") -> str:
    """What to do next, where status sees something to do."""
    target = plain(target)
    states = {f.state for tree in trees for f in tree.findings}
    if states & BLOCKING:
        return f"`glm-pto explain SITE{target}` tells more about a site that stands in the way."
    if State.APPLICABLE in states or State.REINSTALLED in states:
        shown = f"`glm-pto diff{target}` shows what apply would change, `glm-pto apply{target}` does it."
        return " ".join(filter(None, (shown, left_out(trees))))
    return ""


def left_out(trees: Sequence[TreeReport]) -> str:
    """Sites that were left out before an upgrade: the next apply would take them in without a word."""
    names: dict[str, None] = {}
    for tree in trees:
        guarded = {f.site for f in tree.findings if f.state in (State.REINSTALLED, State.APPLIED)}
        if any(f.state is State.REINSTALLED for f in tree.findings):
            open_ = (f.site for f in tree.findings if f.state is State.APPLICABLE)
            names |= {site: None for site in open_ if site not in guarded}
    if not names:
        return ""
    skips = " ".join(f"--skip {name}" for name in names)
    return f"Not guarded before the upgrade: {', '.join(names)}; `{skips}` leaves it so."


def action(result: Result, dry_run: bool) -> str:
    """The word for what was done, for the last line and `--json`."""
    if not result.changed:
        return "unchanged"
    return (
        "planned" if dry_run else {"apply": "applied", "revert": "reverted"}.get(result.action or "", "done")
    )


def applied_already(found: DiffResult) -> list[str]:
    """A line for each tree whose difference is not what apply would change."""
    several = len(found.trees) > 1
    return [
        f"{f'{root}: ' if several else ''}nothing is pending; this is what is applied"
        for (root, _), which in zip(found.trees, found.which, strict=True)
        if which == "applied"
    ]


def stat(found: DiffResult) -> list[str]:
    """Files and how many lines they gain and lose."""
    files = [f for _, tree in found.trees for f in tree if f.patch]
    width = max((len(f.path) for f in files), default=0)
    lines = []
    for root, tree in found.trees:
        if len(found.trees) > 1:
            lines.append(plain(root))
        lines += [f" {plain(f.path).ljust(width)} | +{f.added} -{f.removed}" for f in tree if f.patch]
    added, removed = sum(f.added for f in files), sum(f.removed for f in files)
    amount = "1 file" if len(files) == 1 else f"{len(files)} files"
    return [*lines, f" {amount}, {added} lines added, {removed} removed (moved lines count as both)"]


def wrapped(words: str, width: int = 96) -> list[str]:
    """A paragraph in lines; text that is indented or numbered already stays as it is."""
    if len(words) <= width or words.startswith((" ", ">")) or " " not in words:
        return [words]
    lines, line = [], ""
    for word in words.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def tally(words: Iterable[str]) -> dict[str, object]:
    """How often each word occurs, for the last line."""
    return dict(Counter(words))
