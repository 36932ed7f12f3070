#!/usr/bin/env python3
"""Fill the cache with the sources of every release: ``python3 tests/fetch_releases.py [NAME==VERSION...]``.

About 1.2 GB on the disk and some minutes; what is there already is left alone. Any Python with pip will do;
the cache is GLM_PTO_CACHE, else ~/.cache/glm-pto.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from glm_pto.cli import fetch, releases


def main(wanted: list[str]) -> int:
    wanted = wanted or [
        *(f"vllm=={v}" for v in releases.VLLM),
        *(f"vllm-ascend=={v}" for v in releases.ASCEND),
    ]
    failed = 0
    for name, _, version in (entry.partition("==") for entry in wanted):
        try:
            print(fetch.release(name, version), flush=True)
        except fetch.FetchError as error:
            print(error, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
