"""Facts about this machine for `doctor`. vllm is never imported; torch only with the operator layer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import glm_pto
from glm_pto.cli import questions, releases
from glm_pto.cli.text import counts
from glm_pto.codemods import interpreter, operations, recipes
from glm_pto.codemods.findings import BLOCKING, Refusal, TreeReport, UsageError, WriteFailure

#: Distribution names; the ones after the first two are optional.
PACKAGES = ("glm-pto", "libcst", "glm-pto-kernels", "vllm", "vllm-ascend", "torch", "torch-npu", "pypto",
            "triton", "triton-ascend")  # fmt: skip
SUPPORTED = ((3, 10), (3, 13))
CANN_FILES = ("version.cfg", "ascend_toolkit_install.info", "compiler/version.info", "runtime/version.info")
#: The releases whose sources were read, by package.
READ = {"vllm": releases.VLLM, "vllm_ascend": releases.ASCEND}


@dataclass(frozen=True)
class Fact:
    """One line of the report. ``verdict``: ok, note or problem; ``advice`` says what to do."""

    topic: str
    name: str
    value: str
    verdict: str = "ok"
    advice: str = ""


def examine(trees: Sequence[Path], python: Path | None, target: str = "") -> tuple[Fact, ...]:
    """Everything that doctor tells; ``target`` are the words that named the trees."""
    answer = ask(python)
    found, none = surveyed(trees, python)
    return (
        *versions(answer, target),
        *ascend(os.environ),
        *backends(answer["packages"], os.environ),
        *choices(answer["packages"], python),
        *switches(os.environ),
        *none,
        *states(found, python, target),
        *caches(os.environ, found),
        Fact("uninstall", "before `pip uninstall glm-pto`", f"run `glm-pto revert{target}` first", "note",
             "guarded files import glm_pto_kernels; without it vLLM would not start"),
    )  # fmt: skip


def ask(python: Path | None) -> dict[str, object]:
    """Versions and places of the packages that a Python would import."""
    answer: dict[str, object] = interpreter.ask(python, questions.PACKAGES, json.dumps(PACKAGES))
    return answer


def versions(answer: Mapping[str, object], target: str = "") -> Iterator[Fact]:
    """Python and the packages."""
    python = str(answer["python"])
    release = tuple(int(part) for part in python.split(".")[:2])
    fits = SUPPORTED[0] <= release <= SUPPORTED[1]
    yield Fact("python", python, str(answer["executable"]), "ok" if fits else "problem",
               "" if fits else "glm-pto is tested with Python 3.10 to 3.13")  # fmt: skip
    yield Fact("packages", "glm-pto (this tool)", f"{glm_pto.__version__}  {Path(glm_pto.__file__).parent}")
    for name, (version, place) in _packages(answer).items():
        if name == "glm-pto":
            continue
        if name == "glm-pto-kernels":  # comes with glm-pto, or as a copy beside the packages
            yield _layer(place, target)
        elif version or place:
            yield Fact("packages", name, f"{version or 'version unknown'}  {place or '(no module found)'}")
        else:
            yield Fact("packages", name, "not installed", "note")


def _layer(place: str | None, target: str) -> Fact:
    if place:
        return Fact("packages", "glm_pto_kernels", place)
    return Fact("packages", "glm_pto_kernels", "not importable by this Python", "problem",
                f"install glm-pto there, or use `glm-pto apply{target} --install-kernels`")  # fmt: skip


def _packages(answer: Mapping[str, object]) -> dict[str, tuple[str | None, str | None]]:
    found = answer["packages"]
    assert isinstance(found, dict)
    return {name: (version, place) for name, (version, place) in found.items()}


def ascend(environment: Mapping[str, str]) -> Iterator[Fact]:
    """CANN and the devices."""
    home = environment.get("ASCEND_HOME_PATH")
    if home is None:
        yield Fact("ascend", "CANN", "ASCEND_HOME_PATH is not set", "note",
                   "on an Ascend machine: source the set_env.sh of the CANN toolkit")  # fmt: skip
    else:
        found = [line for name in CANN_FILES for line in _version_lines(Path(home, name))]
        yield Fact("ascend", "CANN", f"{found[0] if found else 'version not found'}  {home}",
                   "ok" if found else "problem",
                   "" if found else f"ASCEND_HOME_PATH holds none of {', '.join(CANN_FILES)}")  # fmt: skip
    devices = sorted(path.name for path in Path("/dev").glob("davinci[0-9]*"))
    yield Fact("ascend", "devices", ", ".join(devices) or "none", "ok" if devices else "note")


def _version_lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if "version" in line.lower() and "=" in line]


def backends(packages: object, environment: Mapping[str, str]) -> Iterator[Fact]:
    """Which backend of the operator layer can run, as far as files and the environment tell."""
    assert isinstance(packages, dict)

    def has(name: str) -> bool:
        return any(packages.get(name) or ())

    lacking = [name for name in ("torch", "torch-npu", "pypto") if not has(name)]
    if not environment.get("ASCEND_HOME_PATH"):
        lacking.append("CANN (ASCEND_HOME_PATH)")
    advice = "the auto backend leaves the original code in charge"
    if lacking:
        yield Fact("backends", "pypto", f"cannot run: no {', no '.join(lacking)}", "note", advice)
    else:
        yield Fact("backends", "pypto", "what it needs is there")
    if has("torch"):
        yield Fact(
            "backends", "torch", "can run (reference; GLM_PTO_BACKEND=torch, for checking, not for speed)"
        )
    else:
        yield Fact("backends", "torch", "cannot run: no torch", "note")


def choices(packages: object, python: Path | None) -> Iterator[Fact]:
    """Who computes each operator, as the operator layer itself decides it in the target's Python."""
    assert isinstance(packages, dict)
    if not any(packages.get("torch") or ()) or not any(packages.get("glm-pto-kernels") or ()):
        return
    try:
        found = interpreter.ask(python, questions.CHOICES, timeout=300)
    except interpreter.NoAnswer as error:
        yield Fact("backends", "glm_pto_kernels", f"cannot be imported: {error.why}", "problem",
                   "guarded files import it; vLLM would stop with the same error")  # fmt: skip
        return
    for name, backend, native, fault in found:
        if fault:
            yield Fact("backends", name, f"the {backend} backend is chosen and cannot compute: {fault}",
                       "problem", "vLLM would stop with the same error at the first step")  # fmt: skip
            continue
        said = f"the original code computes: {native}" if native else f"the {backend} backend computes"
        yield Fact("backends", name, said, "note" if native else "ok")


def switches(environment: Mapping[str, str]) -> Iterator[Fact]:
    """What the environment says to the operator layer."""
    known = {name for recipe in recipes.load() for name in (recipe.switch, *recipe.misspelt)}
    ours = {n: v for n, v in sorted(environment.items()) if n.startswith(("USE_PTO_", "GLM_PTO_"))}
    for name, value in ours.items():
        wrong = name.startswith("USE_PTO_") and name not in known
        yield Fact("switches", name, value, "problem" if wrong else "ok",
                   f"no such switch; there is {', '.join(sorted(known))}" if wrong else "")  # fmt: skip
    if not ours:
        yield Fact("switches", "USE_PTO_*, GLM_PTO_*", "none set: every switch is on, the backend is auto")


def states(found: Sequence[TreeReport], python: Path | None, target: str = "") -> Iterator[Fact]:
    """Per tree: how many sites stand how, and which operator layer its code would load."""
    for tree in found:
        states = counts(tree.findings)
        bad = {state.value for state in BLOCKING} & states.keys()
        words = ", ".join(f"{amount} {state}" for state, amount in sorted(states.items()))
        yield Fact("trees", str(tree.root), words or "no site", "problem" if bad else "ok",
                   f"`glm-pto status{target}` shows which" if bad else "")  # fmt: skip
        lacking = operations.lacking(tree, python)
        if lacking is not None:
            yield Fact("trees", "operator layer", lacking, "problem")
        yield from _unread(tree)
        for note in tree.notes:
            yield Fact("trees", "note", note, "note")


def _unread(tree: TreeReport) -> Iterator[Fact]:
    for name, version in tree.packages.items():
        if name in READ and (version or "").partition("+")[0] not in READ[name]:
            told = f"{version or 'its version'} is not among the releases whose sources were read"
            yield Fact("trees", name, told, "note", "the states tell whether its code has a known shape")


def surveyed(trees: Sequence[Path], python: Path | None) -> tuple[tuple[TreeReport, ...], tuple[Fact, ...]]:
    """The trees that can be looked at, or a fact that says why there are none."""
    try:
        return glm_pto.status(trees, python=python).trees, ()
    except (UsageError, Refusal, WriteFailure) as error:
        return (), (Fact("trees", "none", str(error), "note"),)


#: Folders of vLLM's cache that hold compiled graphs.
GRAPHS = ("torch_compile_cache", "torch_aot_compile")


def caches(environment: Mapping[str, str], found: Sequence[TreeReport]) -> Iterator[Fact]:
    """vLLM's compiled graphs: what was traced before an edit, or under another switch, lives there."""
    root = Path(
        environment.get("VLLM_CACHE_ROOT") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "vllm")
    ).expanduser()
    files = [tree.root / f.file for tree in found for f in tree.findings if f.file]
    edited = max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
    for name in GRAPHS:
        try:
            made = [entry.stat().st_mtime for entry in (root / name).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            made = []
        except OSError as error:
            yield Fact("caches", name, f"cannot be looked at ({error.strerror})  {root / name}", "note")
            continue
        if not made:
            yield Fact("caches", name, f"empty  {root / name}")
            continue
        old = sum(when < edited for when in made)
        value = f"{len(made)} entries, {old} made before the sites' files were last written  {root / name}"
        advice = f"after a change of a switch or backend: `rm -r {root / name}`, or start once with "
        yield Fact("caches", name, value, "note", f"{advice}VLLM_DISABLE_COMPILE_CACHE=1")
