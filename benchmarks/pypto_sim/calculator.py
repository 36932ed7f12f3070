"""pypto's calculator library, built once per pypto and torch version and kept in the cache folder.

pypto compiles it anew in every process that verifies a kernel (close to a minute). It needs a real cmake
(>= 3.16), make and g++.
"""

import fcntl
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

CACHE = Path(os.environ.get("GLM_PTO_CACHE", "~/.cache/glm-pto")).expanduser()
NAME = "libtile_fwk_calculator.so"


def calculator() -> Path:
    """The library's path, after building it if no process has done so yet."""
    home = CACHE / "calculator" / f"pypto-{version('pypto')}-torch-{version('torch')}"
    library = home / "install" / "lib" / NAME
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".complete").exists():
            _build(home)
            if not library.exists():
                raise RuntimeError(f"the build of pypto's calculator left no {library}")
            (home / ".complete").touch()
    return library


def _build(home: Path) -> None:
    import torch
    from pypto._utils import BuildOnlineManager

    cmake = BuildOnlineManager._CMakeContext().cmake  # finds a binary cmake, not the one of the wheel
    source = BuildOnlineManager().pkg_lib_dir / "calculator"
    build, install = home / "build", home / "install"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_PREFIX": install,
        "PY3_MOD_TORCH_VERSION": torch.__version__,
        "PY3_MOD_TORCH_ROOT_PATH": Path(torch.__file__).parent,
        "PY3_MOD_TORCH_C_GLIBCXX_USE_CXX11_ABI": int(torch._C._GLIBCXX_USE_CXX11_ABI),
    }
    steps = (
        [cmake, "-S", source, "-B", build, *(f"-D{key}={value}" for key, value in settings.items())],
        [cmake, "--build", build, "-j", "2"],
        [cmake, "--install", build],
    )
    for step in steps:
        done = subprocess.run(["nice", "-n", "10", *map(str, step)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(map(str, step))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
