"""What ``import glm_pto_kernels`` adds to ``import torch``: a ratio of the interpreter's import times.

    python benchmarks/import_cost.py

The limit is 0.05. The smallest of some runs counts, since other work on the machine only ever adds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LIMIT = 0.05
ROOT = Path(__file__).resolve().parent.parent


def ratio() -> float:
    """One fresh interpreter: the layer's own import time by torch's."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import torch, glm_pto_kernels"
    command = [sys.executable, "-X", "importtime", "-c", code]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    spent = {name: int(time) for time, name in re.findall(r"import time:\s+\d+ \|\s+(\d+) \| (\S+)", lines)}
    return spent["glm_pto_kernels"] / spent["torch"]


def main() -> int:
    ratios = sorted(ratio() for _ in range(5))
    print(
        "import glm_pto_kernels / import torch: " + " ".join(f"{r:.4f}" for r in ratios) + f"  limit {LIMIT}"
    )
    return int(ratios[0] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
