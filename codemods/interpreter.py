"""Ask another Python what it would import: in a process of its own, and nothing is imported here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from glm_pto.codemods.findings import UsageError

#: The folder that a command happens to be called in is not where a server imports from.
_AWAY = "import sys\nsys.path[:] = filter(None, sys.path)\n"


class NoAnswer(UsageError):
    """The Python could not be run, or did not answer; ``why`` is what it said last."""

    def __init__(self, python: Path | None, why: str) -> None:
        name = f"--python {python}" if python else sys.executable
        super().__init__(f"{name}: is not a Python that can be asked ({why})")
        self.why = why


def ask(python: Path | None, code: str, *arguments: str, timeout: float = 60) -> Any:
    """The JSON value that ``code`` prints as its last line in that Python (None: this one); `NoAnswer`.

    What is printed before, by a `sitecustomize` for example, is not looked at.
    """
    command = [str(python or sys.executable), "-c", _AWAY + code, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout)
    except OSError as error:
        raise NoAnswer(python, error.strerror or str(error)) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(python, f"no answer within {timeout:g} seconds") from None
    if done.returncode:
        raise NoAnswer(python, _last(done.stderr) or f"it ended with {done.returncode}")
    try:
        return json.loads(_last(done.stdout))
    except ValueError:
        raise NoAnswer(python, f"it answered {_last(done.stdout)[:60]!r}") from None


def search_path(python: Path) -> list[str]:
    """The module search path of another Python."""
    path: list[str] = ask(python, "import json\nprint(json.dumps(sys.path))")
    return path


def _last(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]
