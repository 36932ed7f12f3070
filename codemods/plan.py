"""Read-only: where every place of every recipe stands in a tree, and in what state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from glm_pto.codemods import edit, elsewhere, guard, locate, missing, reading, seal, shadow, source
from glm_pto.codemods.findings import Finding, State
from glm_pto.codemods.guard import Guard
from glm_pto.codemods.locate import Match
from glm_pto.codemods.recipe import Form, Place, Recipe
from glm_pto.codemods.source import Source, Unreadable
from glm_pto.codemods.trees import Package, Tree


@dataclass(frozen=True)
class Spot:
    """A place in a tree: the finding, and what an edit needs. ``stale``: its guard is not as we write it now;
    ``foreign``: its guard stands where this tree needs none."""

    recipe: Recipe
    place: Place
    finding: Finding
    path: Path | None = None
    match: Match | None = None
    stale: bool = False
    foreign: bool = False


class Files:
    """The parsed files of a tree, each read once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._sources: dict[Path, Source | Unreadable | None] = {}

    def get(self, path: Path) -> Source | None:
        """The file, None where there is none; raises `Unreadable`."""
        if path not in self._sources:
            self._sources[path] = self._read(path)
        found = self._sources[path]
        if isinstance(found, Unreadable):
            raise found
        return found

    def put(self, path: Path, edited: Source) -> None:
        """Let later look-ups see an edited text."""
        self._sources[path] = edited

    def looked(self) -> dict[str, str | None]:
        """Every file that was looked for, by path from the root, with its hash; None where there is none."""
        return {
            self.name(path): None if found is None else self.fingerprint(path)
            for path, found in self._sources.items()
        }

    def fingerprint(self, path: Path) -> str:
        """SHA-256 of the file's bytes as they are, or as edited in memory; its error where it has none."""
        try:
            file = self.get(path)
        except Unreadable as error:
            return str(error)
        return seal.digest(b"" if file is None else file.data)

    def name(self, path: Path) -> str:
        """Path for messages and reports, relative to the tree."""
        return path.relative_to(self.tree.root).as_posix()

    def _read(self, path: Path) -> Source | Unreadable | None:
        try:
            return source.read(self.name(path), reading.load(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Unreadable(f"{self.name(path)}: cannot be read ({error.strerror})")
        except Unreadable as error:
            return error


def survey(files: Files, recipes: Iterable[Recipe]) -> list[Spot]:
    """One spot per place of every recipe whose package is in the tree."""
    spots: list[Spot] = []
    for recipe in recipes:
        for place in recipe.places:
            package = next((p for p in files.tree.packages if p.name == place.package), None)
            if package is not None:
                spots += _visit(files, recipe, place, package)
    return spots


def _visit(files: Files, recipe: Recipe, place: Place, package: Package) -> list[Spot]:
    foreign = place.unless_package is not None and files.tree.find(place.unless_package) is not None
    spot = look(files, recipe, place, package)
    quiet = spot.finding.state not in (State.APPLIED, State.EDITED, State.PASTED)
    if foreign and quiet:
        return []
    if place.optional and spot.finding.state is State.ABSENT:
        return []
    return [replace(spot, foreign=foreign and spot.finding.state is State.APPLIED)]


def look(files: Files, recipe: Recipe, place: Place, package: Package) -> Spot:
    """The state of one place: applied, applicable, or why it is neither."""
    blank = Finding(recipe.site, place.name, package.name, State.ABSENT)
    spots = []
    for name in dict.fromkeys(form.file for form in place.forms):
        path = package.path / name
        try:
            file = files.get(path)
            spot = None if file is None else _in_file(file, recipe, place, package, name, blank)
        except Unreadable as error:
            finding = replace(blank, state=State.MOVED, file=files.name(path), message=str(error))
            spot = Spot(recipe, place, finding, path)
        if spot is not None:
            spots.append(spot)
    if len(spots) > 1 and not any(s.finding.state is State.PASTED for s in spots):
        rows = ", ".join(f"{s.finding.file}:{s.finding.line}" for s in spots)
        message = f"the statements stand in {len(spots)} files ({rows}); expected one"
        finding = replace(spots[0].finding, state=State.AMBIGUOUS, message=message)
        return Spot(recipe, place, finding, spots[0].path)
    spots.sort(key=lambda s: s.finding.state is not State.PASTED)
    if spots:
        line = spots[0].match.line if spots[0].match else None
        row = elsewhere.uncovered(files, recipe, place, package, spots[0].finding, line)
        return replace(spots[0], finding=row)
    row, near = missing.explain(files, recipe, place, package, blank)
    return Spot(recipe, place, row, near)


@source.bounded
def _in_file(
    file: Source, recipe: Recipe, place: Place, package: Package, name: str, blank: Finding
) -> Spot | None:
    """What one file says of a place; None where it holds nothing of it."""
    spot = Spot(recipe, place, replace(blank, file=file.name), package.path / name)
    forms = [f for f in place.forms if f.file == name]
    ours = _guards(file, recipe, forms)
    faulty = next((g for g in ours if g.fault), None)
    if faulty:
        return _edited(spot, file, faulty)
    pasted = locate.pasted_lines(file, frozenset({recipe.function, recipe.switch, *recipe.misspelt}))
    if pasted:
        return _pasted(spot, pasted, package)
    found = _distinct(m for form in forms for m in locate.matches(file, form))
    if len(ours) + len(found) > 1:
        lines = ", ".join(str(n) for n in sorted([g.header + 1 for g in ours] + [m.line for m in found]))
        message = f"{file.name}: the statements stand more than once (lines {lines}); expected exactly one"
        return replace(spot, finding=replace(spot.finding, state=State.AMBIGUOUS, message=message))
    if ours:
        return _applied(spot, file, ours[0], forms)
    if not found:
        return None
    again, message = shadow.replaced(file, found[0].form, found[0].line)
    if again:
        finding = replace(spot.finding, state=State.AMBIGUOUS, line=again, message=message)
        return replace(spot, finding=finding)
    return _applicable(spot, file, found[0])


def _guards(file: Source, recipe: Recipe, forms: list[Form]) -> list[Guard]:
    """The recipe's guards inside of the functions that the forms name."""
    scopes = {f.scope for f in forms}
    spans = [locate.span(f, file) for s in scopes for f in locate.functions(file.tree, s)]
    return [
        g
        for g in guard.find(file)
        if g.site == recipe.site and any(start <= g.header + 1 <= end for start, end in spans)
    ]


def _applicable(spot: Spot, file: Source, match: Match) -> Spot:
    """The place can be guarded, unless what the guard needs around it is not there."""
    row = replace(spot.finding, line=match.line, form=match.form.name)
    condition, branch = edit.texts(match.form, match.bound)
    missing = locate.unbound(file, match, f"if {condition}:\n    pass\n{branch}")
    unset = locate.unset(match, branch)
    scope = locate.unmet(file, match.form)
    if not missing and not unset and scope is None:
        edit.refuse(file, spot.recipe.site, match)
        return replace(spot, finding=replace(row, state=State.APPLICABLE), match=match)
    what = f"{scope} is not the reviewed text any more"
    if missing:
        what = f"nothing here is called {', '.join(sorted(missing))}"
    elif unset:
        what = f"later code reads {', '.join(sorted(unset))}, which the operator does not give"
    message = (
        f"{file.name}:{match.line}: the statements are there, but {what}, so the guard would be wrong. "
        f"Report this release, or use --skip {spot.recipe.site}"
    )
    return replace(spot, finding=replace(row, state=State.MOVED, message=message))


def _distinct(matches: Iterator[Match]) -> list[Match]:
    """Matches of different statements; of two forms that fit the same ones the first counts."""
    kept: dict[int, Match] = {}
    for match in matches:
        kept.setdefault(match.line, match)
    return list(kept.values())


def _applied(spot: Spot, file: Source, ours: Guard, forms: list[Form]) -> Spot:
    row = replace(spot.finding, state=State.APPLIED, line=ours.header + 1)
    for form in forms:
        bound = locate.fit(form, ours.orelse)
        if bound is None or not locate.stands(file, form, ours.header):
            continue
        stale = not guard.as_written(ours, *edit.texts(form, bound))
        message = (
            "the guard is of an older version, or its else-branch was edited; apply renews it"
            if stale
            else shadow.replaced(file, form, ours.header + 1)[1]
        )
        return replace(spot, finding=replace(row, form=form.name, message=message), stale=stale)
    message = (
        "the else-branch was edited and fits no known form: the operator may not replace what stands there"
    )
    return replace(spot, finding=replace(row, message=message))


def _edited(spot: Spot, file: Source, ours: Guard) -> Spot:
    message = (
        f"{guard.edited(file, ours)}. Nothing is thrown away: restore the lines or take the guard out by "
        "hand, then run again"
    )
    row = replace(spot.finding, state=State.EDITED, line=ours.header + 1, message=message)
    return replace(spot, finding=row)


def _pasted(spot: Spot, lines: list[int], package: Package) -> Spot:
    shown = f" (lines {', '.join(map(str, lines))})" if len(lines) > 1 else ""
    wanted = package.name.replace("_", "-") + (f"=={package.version}" if package.version else "")
    message = (
        f"{spot.finding.file}:{lines[0]}: calls of the operator layer were pasted here by hand"
        f"{shown}. Put the original statements back, for a whole package with `pip install --no-deps "
        f"--force-reinstall {wanted}`, and apply again; or keep the snippet and use --skip {spot.recipe.site}"
    )
    return replace(spot, finding=replace(spot.finding, state=State.PASTED, line=lines[0], message=message))


def again(files: Files, spot: Spot) -> Spot:
    """The same place looked at again, after an edit in memory."""
    package = next(p for p in files.tree.packages if p.name == spot.finding.package)
    return look(files, spot.recipe, spot.place, package)
