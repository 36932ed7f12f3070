"""What the commands cost: CPU as a ratio to a trivial click program and to ``git apply``, in one run.

    python benchmarks/cli/measure.py [--rounds 9] [--carried] [--profile]

CPU is user plus system time of the whole process. Rounds are interleaved, so that a change of the machine's
load meets every command alike, and the least of them counts, since other work only ever adds. Run it with a
Python that has libcst, click and rich, and the checkout on ``PYTHONPATH``; vllm 0.12.0 and vllm-ascend
0.12.0rc1 are fetched into the cache, unless ``--carried`` takes the miniature of `glm-pto demo`.
"""

from __future__ import annotations

import argparse
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TRIVIAL = """\
import click
@click.command()
@click.option("--name", default="x", help="A name.")
def main(name):
    \"\"\"Say a name.\"\"\"
    click.echo(name)
if __name__ == "__main__":
    main()
"""
SCRIPT = "import sys\nfrom glm_pto.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"

#: Largest ratio to the trivial click program, and largest peak of memory in MB.
BOUNDS = {"--help": 1.3, "status": 1.8, "apply again": 1.8, "apply": 8.0, "revert": 8.0}
MEMORY = 80


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds and peak resident megabytes of one process."""

    cpu: float
    peak: float


def cost(command: list[str], cwd: Path, env: dict[str, str]) -> Cost:
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited {process.returncode}: {complaint.decode()}")
    return Cost(1000 * (usage.ru_utime + usage.ru_stime), usage.ru_maxrss / 1024)


def prepare(folder: Path, carried: bool) -> Path:
    """A fresh tree to work on."""
    from glm_pto.cli import demo

    root = folder / "tree"
    root.mkdir()
    demo.write(root) if carried else demo.fetch(root, "0.12.0")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def measure(folder: Path, root: Path, rounds: int, env: dict[str, str]) -> dict[str, list[Cost]]:
    trivial, script, patch = folder / "trivial.py", folder / "glm-pto.py", folder / "change.patch"
    trivial.write_text(TRIVIAL)
    script.write_text(SCRIPT)
    python = [sys.executable]
    ours = [*python, str(script)]
    cost([*ours, "diff", str(root), "--output", str(patch)], folder, env)
    steps = {
        "trivial click": [*python, str(trivial)],
        "trivial click --help": [*python, str(trivial), "--help"],
        "--help": [*ours, "--help"],
        "diff": [*ours, "diff", str(root)],
        "apply": [*ours, "apply", str(root)],
        "status": [*ours, "status", str(root)],
        "apply again": [*ours, "apply", str(root)],
        "verify": [*ours, "verify", str(root)],
        "revert": [*ours, "revert", str(root)],
        "git apply": ["git", "apply", str(patch)],
        "git apply -R": ["git", "apply", "-R", str(patch)],
    }
    found: dict[str, list[Cost]] = {name: [] for name in steps}
    for round_ in range(rounds + 1):  # the first one warms the caches and writes the bytecode
        for name, command in steps.items():
            one = cost(command, root if command[0] == "git" else folder, env)
            if round_:
                found[name].append(one)
    return found


def table(found: dict[str, list[Cost]]) -> bool:
    """Print the ratios; False where a bound is broken."""
    trivial = min(c.cpu for c in found["trivial click"])
    git = min(c.cpu for c in found["git apply"])
    print(f"{'command':22} {'CPU ms':>8} {'/ click':>8} {'bound':>6} {'/ git apply':>12} {'peak MB':>8}")
    good = True
    for name, costs in found.items():
        cpu, peak = min(c.cpu for c in costs), max(c.peak for c in costs)
        ratio, bound = cpu / trivial, BOUNDS.get(name)
        verdict = "" if bound is None else " ok" if ratio <= bound else " OVER"
        good &= verdict != " OVER" and peak < MEMORY
        shown = "" if bound is None else f"{bound:.1f}"
        print(f"{name:22} {cpu:8.1f} {ratio:8.2f} {shown:>6} {cpu / git:12.1f} {peak:8.1f}{verdict}")
    return good


PARTS = {
    "libcst": ("libcst",),
    "click": ("click",),
    "glm_pto.cli": ("glm_pto/cli/",),
    "glm_pto.codemods": ("glm_pto/codemods/",),
    "import machinery": ("importlib", "marshal.loads", "_io.open_code"),
    "parse and compile": ("builtins.compile", "/ast.py"),
    "files": ("fsync", "rename", "posix.", "_io.", "pathlib"),
    "dataclasses and enums": ("dataclasses", "enum.py"),
}


def profile(root: Path, env: dict[str, str]) -> None:
    """Where each command's own time goes: shares by part, then the functions that take most."""
    for command in ("--help", "status", "apply", "apply", "revert"):
        arguments = [command] if command == "--help" else [command, str(root)]
        out = root.parent / "profile"
        code = "import sys; from glm_pto.cli import main; main(sys.argv[1:])"
        runner = f"import cProfile, sys; cProfile.run({code!r}, {str(out)!r})"
        subprocess.run([sys.executable, "-c", runner, *arguments], env=env, stdout=subprocess.DEVNULL)
        statistics: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(
            pstats.Stats(str(out))
        )["stats"]
        shown = sorted(statistics.items(), key=lambda item: -item[1][2])
        total = sum(values[2] for _, values in shown)
        shares = dict.fromkeys((*PARTS, "other"), 0.0)
        for (file, _, function), values in shown:
            where = f"{file} {function}"
            part = next((p for p, words in PARTS.items() if any(w in where for w in words)), "other")
            shares[part] += values[2]
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        print(f"\n{command}: " + ", ".join(f"{part} {share / total:.0%}" for part, share in ordered if share))
        for (file, line, function), values in shown[:6]:
            place = f"{Path(file).name}:{line} " if line else ""
            print(f"  {values[2] / total:5.0%}  {values[0]:6} calls  {place}{function}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--carried", action="store_true", help="use the miniature tree of the demo")
    parser.add_argument("--profile", action="store_true", help="also show what dominates")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glm-pto-") as name:
        folder = Path(name)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        root = prepare(folder, asked.carried)
        good = table(measure(folder, root, asked.rounds, env))
        if asked.profile:
            profile(root, env)
        shutil.rmtree(root)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
