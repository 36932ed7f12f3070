"""Facts about this machine for `doctor`. Packages are looked up, never imported; torch is not started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import glm_pto
from glm_pto.codemods.findings import Refusal, UsageError, WriteFailure

#: What is asked of the Python that runs the packages; answered on one line of JSON.
QUESTION = """
import json, os, sys
from importlib import metadata
from importlib.util import find_spec
names = json.loads(sys.argv[1])
def version(name):
    try: return metadata.version(name)
    except Exception: return None
def place(name):
    try: spec = find_spec(name)
    except Exception: return None
    return None if spec is None else (spec.origin or list(spec.submodule_search_locations or [""])[0])
print(json.dumps({"python": sys.version.split()[0], "executable": sys.executable,
                  "packages": {n: [version(n), place(n.replace("-", "_"))] for n in names}}))
"""

#: Distribution names; the ones after the first two are optional.
PACKAGES = ("glm-pto", "libcst", "glm-pto-kernels", "vllm", "vllm-ascend", "torch", "torch-npu", "pypto",
            "triton", "triton-ascend")  # fmt: skip
SUPPORTED = ((3, 10), (3, 13))
CANN_FILES = ("version.cfg", "ascend_toolkit_install.info", "compiler/version.info", "runtime/version.info")


@dataclass(frozen=True)
class Fact:
    """One line of the report. ``verdict``: ok, note or problem; ``advice`` says what to do."""

    topic: str
    name: str
    value: str
    verdict: str = "ok"
    advice: str = ""


def examine(trees: Sequence[Path], python: Path | None) -> tuple[Fact, ...]:
    """Everything that doctor tells."""
    answer = ask(python)
    return (
        *versions(answer),
        *ascend(os.environ),
        *backends(answer["packages"], os.environ),
        *switches(os.environ),
        *states(trees, python),
        *caches(os.environ),
        Fact("uninstall", "before `pip uninstall glm-pto`", "run `glm-pto revert` first", "note",
             "guarded files import glm_pto_kernels; without it vLLM would not start"),
    )  # fmt: skip


def ask(python: Path | None) -> dict[str, object]:
    """Versions and places of the packages that a Python would import."""
    command = [str(python or sys.executable), "-c", QUESTION, json.dumps(PACKAGES)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--python {python}: cannot be asked for its packages ({error})") from None
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def versions(answer: Mapping[str, object]) -> Iterator[Fact]:
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
            yield _layer(place)
        elif version or place:
            yield Fact("packages", name, f"{version or 'version unknown'}  {place or '(no module found)'}")
        else:
            yield Fact("packages", name, "not installed", "note")


def _layer(place: str | None) -> Fact:
    if place:
        return Fact("packages", "glm_pto_kernels", place)
    return Fact("packages", "glm_pto_kernels", "not importable by this Python", "problem",
                "install glm-pto there, or use `glm-pto apply --install-kernels`")  # fmt: skip


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
                   "ok" if found else "problem")  # fmt: skip
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


def switches(environment: Mapping[str, str]) -> Iterator[Fact]:
    """What the environment says to the operator layer."""
    ours = {n: v for n, v in sorted(environment.items()) if n.startswith(("USE_PTO_", "GLM_PTO_"))}
    for name, value in ours.items():
        yield Fact("switches", name, value)
    if not ours:
        yield Fact("switches", "USE_PTO_*, GLM_PTO_*", "none set: every switch is on, the backend is auto")


def states(trees: Sequence[Path], python: Path | None) -> Iterator[Fact]:
    """One line per tree: how many sites stand how."""
    from glm_pto.cli.text import counts

    try:
        found = glm_pto.status(trees, python=python).trees
    except (UsageError, Refusal, WriteFailure) as error:
        yield Fact("trees", "none", str(error), "note")
        return
    for tree in found:
        states = counts(tree.findings)
        bad = {"moved", "ambiguous", "pasted", "edited"} & states.keys()
        words = ", ".join(f"{amount} {state}" for state, amount in sorted(states.items()))
        yield Fact("trees", str(tree.root), words or "no site", "problem" if bad else "ok",
                   "`glm-pto status` shows which" if bad else "")  # fmt: skip


def caches(environment: Mapping[str, str]) -> Iterator[Fact]:
    """vLLM's own torch.compile cache: graphs traced before an edit, or under another switch, live there."""
    root = Path(
        environment.get("VLLM_CACHE_ROOT") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "vllm")
    )
    folder = root.expanduser() / "torch_compile_cache"
    try:
        entries = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        entries = []
    if not entries:
        yield Fact("caches", "torch.compile cache of vLLM", f"empty  {folder}")
        return
    yield Fact("caches", "torch.compile cache of vLLM", f"{len(entries)} entries  {folder}", "note",
               "after a change of a switch or backend: delete the folder, or start once with "
               "VLLM_DISABLE_COMPILE_CACHE=1")  # fmt: skip
