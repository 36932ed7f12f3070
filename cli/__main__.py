"""Run as ``python -m glm_pto.cli``: the same as the ``glm-pto`` script, where no script is on PATH."""

from glm_pto.cli import main

main()
