"""Have the operator layer run the guarded statements of a tree beside their originals (`verify --run`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm_pto.codemods import kernels, trees, verify
from glm_pto.codemods.findings import Refusal, UsageError
from glm_pto.codemods.recipe import KERNELS


@dataclass(frozen=True)
class Trial:
    """One guard on stand-in layers: largest differences with the switch off and on, relative to the largest
    value; ``ran`` is False where the stand-ins lack what the form uses (``detail`` says what)."""

    root: Path
    site: str
    file: str
    line: int
    ran: bool
    calls: int = 0
    off: float = 0.0
    on: float = 0.0
    allowed: float = 0.0
    detail: str = ""

    @property
    def good(self) -> bool:
        """Off is the original exactly; on calls the operator once and agrees with the original."""
        return not self.ran or (self.off == 0 and self.calls == 1 and self.on <= self.allowed)


def rehearse(settled: Sequence[trees.Tree], python: Path | None) -> tuple[Trial, ...]:
    """Run every guard of the trees; `Refusal` where the Python has no torch or no fitting operator layer."""
    found: list[Trial] = []
    for tree in settled:
        layer = kernels.find(tree.root, python=python)
        guards = verify.guards(tree)
        if layer is None:
            raise Refusal(f"{tree.root}: no {KERNELS} to run; apply with --install-kernels")
        rows = ask(python, layer.folder.parent, [g.question() for g in guards]) if guards else []
        found += [
            Trial(tree.root, file=g.file, line=g.line, **row) for g, row in zip(guards, rows, strict=True)
        ]
    if not found:
        raise UsageError("there is no guard to run in these trees; run `glm-pto apply` first")
    return tuple(found)


def ask(python: Path | None, folder: Path, guards: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Answers of the operator layer in ``folder``, in a process of its own."""
    command = [str(python or sys.executable), "-m", f"{KERNELS}.trial"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("USE_PTO_", "GLM_PTO_"))}
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command,
        input=json.dumps({"guards": guards}),
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": path, "GLM_PTO_BACKEND": "torch"},
    )
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        raise Refusal(
            f"{command[0]}: the guards could not be run ({why}); --run needs torch in that Python: install "
            "it there, or leave --run out, the proof needs no torch"
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers
