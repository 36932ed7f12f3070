"""Stand-ins for the CANN libraries, so that ``import torch_npu`` works without an NPU.

``cann_stubs.py FOLDER`` reads the undefined symbols of the installed torch_npu with ``nm``, writes a C
function for each that returns 0, and builds one shared object for each library that is missing. With FOLDER
on LD_LIBRARY_PATH the operator schemas of torch_npu are the real ones; their bodies come from `npu_on_cpu`.
Needs gcc and binutils.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

SPECIAL = {
    "aclrtGetDeviceCount": "int aclrtGetDeviceCount(unsigned *count) { *count = 0; return 0; }",
    "aclrtGetDevice": "int aclrtGetDevice(int *device) { *device = 0; return 0; }",
    "aclrtGetSocName": 'const char *aclrtGetSocName(void) { return "Ascend910B1"; }',
    "aclGetRecentErrMsg": 'const char *aclGetRecentErrMsg(void) { return "no CANN"; }',
}
PROVIDED = re.compile(r"lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s|torch.*|c10.*|python.*|gomp.*|z)\.|ld-linux")
# Names of CANN's runtime, collectives, profiler, graph engine and secure C library; mangled ones too.
OF_CANN = re.compile(
    r"\w+_s|(acl|Acl|ACL|Hccl|hccl|Hcom|hcom|rt[A-Z]|Msprof|msprof|ge[A-Z]|GE|_ZNK?(3atb|2ge|6domi))\w+"
)
FIRST = "libascendcl.so"  # holds all the functions; the others only have to exist


def lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def needed(library: Path) -> set[str]:
    return {
        m[1] for line in lines("readelf", "-d", str(library)) if (m := re.search(r"NEEDED.*\[(.*)\]", line))
    }


def symbols(library: Path, which: str) -> set[str]:
    return {
        line.split()[-1].partition("@")[0] for line in lines("nm", "-D", which, str(library)) if line.split()
    }


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        sys.exit("torch_npu is not installed for this interpreter")
    objects = sorted(Path(spec.origin).parent.rglob("*.so*"))
    wanted = set().union(*(symbols(o, "--undefined-only") for o in objects))
    present = set().union(*(symbols(o, "--defined-only") for o in objects))
    libraries = set().union(*(needed(o) for o in objects)) - {o.name for o in objects}
    missing = {name for name in libraries if not PROVIDED.match(name)} | {FIRST, "libatb.so"}
    names = sorted(name for name in wanted - present if OF_CANN.fullmatch(name))
    (folder / "all.c").write_text(
        "\n".join(SPECIAL.get(name, f"long {name}(void) {{ return 0; }}") for name in names) + "\n"
    )
    (folder / "none.c").write_text("static int nothing;\n")
    build = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin"]
    for name in sorted(missing):
        source = folder / ("all.c" if name == FIRST else "none.c")
        subprocess.run([*build, f"-Wl,-soname,{name}", "-o", folder / name, source], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
