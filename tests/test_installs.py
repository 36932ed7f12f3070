"""Packages installed by uv and pip in each of their ways, from wheels of our own: what is shared stays.

The wheels are tiny, are built here in the targets' shape, and are installed offline from a local folder.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from glm_pto.codemods import kernels, operations
from glm_pto.codemods.findings import Options, Refusal, UsageError
from tests.codemods import planted
from tests.codemods.planted import FILE, MARK, MODEL, refused, round_trip

UV = Path(sys.executable).with_name("uv")
pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not in this environment")

Print = dict[str, tuple[int, int, str]]


def wheel(folder: Path, version: str = "0.12.0", text: str = MODEL) -> Path:
    """A wheel named vllm that holds the model file and nothing else of vllm."""
    files = {"vllm/__init__.py": b"", FILE: text.encode()}
    info = f"vllm-{version}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(exist_ok=True)
    made = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made


@dataclass(frozen=True)
class Shop:
    """Wheels, a uv cache, and environments made from them."""

    home: Path

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    def run(self, *command: str | Path, **more: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_", "PYTHON"))}
        env |= {"UV_CACHE_DIR": str(self.cache), "UV_OFFLINE": "1", "UV_NO_CONFIG": "1", "PIP_NO_INDEX": "1"}
        done = subprocess.run(
            [*map(str, command)], env=env | more, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def environment(self, name: str, mode: str, *more: str) -> Path:
        """Python of an environment with vllm installed by uv in this link mode."""
        home = self.home / name
        if not home.exists():
            self.run(UV, "venv", "--python", sys.executable, home)
        python = home / "bin/python"
        links = ("--find-links", self.home / "wheels", "--no-index", "--link-mode", mode)
        self.run(UV, "pip", "install", "--python", python, *links, *more, "vllm")
        return python

    def packages(self, name: str) -> Path:
        (found,) = (self.home / name / "lib").glob("python3*/site-packages")
        return found

    def shared(self) -> Print:
        """Everything in the cache: mode, time and hash. (Its lock files and lists may be rewritten by uv.)"""
        return prints(self.cache / "archive-v0")


def prints(folder: Path) -> Print:
    found: Print = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        info = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found[path.relative_to(folder).as_posix()] = (info.st_mode, info.st_mtime_ns, digest)
    assert found, f"nothing in {folder}"
    return found


@pytest.fixture(autouse=True)
def layer_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments made here hold no operator layer: let the one of the tests count for them."""
    monkeypatch.setattr(kernels, "_path_with", lambda root: sys.path)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    wheel(tmp_path / "wheels")
    return made


@pytest.mark.parametrize("mode", ["hardlink", "copy", "clone"])
def test_uv_the_cache_and_other_environments_stay_as_they_are(shop: Shop, mode: str) -> None:
    shop.environment("one", mode)
    shop.environment("two", mode)
    root = shop.packages("one")
    if mode == "hardlink":
        assert (root / FILE).stat().st_nlink > 1, "uv did not link, so this would show nothing"
    before, other = shop.shared(), prints(shop.packages("two"))
    planted.apply(root)
    assert MARK in (root / FILE).read_bytes()
    assert shop.shared() == before
    assert prints(shop.packages("two")) == other
    planted.revert(root)
    round_trip(root)
    assert shop.shared() == before


def test_uv_symlinks_into_the_cache_are_refused(shop: Shop) -> None:
    shop.environment("one", "symlink")
    root = shop.packages("one")
    assert (root / FILE).is_symlink(), "uv did not link, so this would show nothing"
    before = shop.shared()
    refused(root, "glm4_moe.py", "package cache", "UV_LINK_MODE=copy")
    assert shop.shared() == before


def test_a_tree_inside_of_the_cache_is_refused(shop: Shop) -> None:
    shop.environment("one", "hardlink")
    (root,) = {path.parents[3] for path in (shop.cache / "archive-v0").rglob("glm4_moe.py")}
    before = shop.shared()
    with pytest.raises(Refusal, match="lies in the package cache"):
        planted.apply(root.parent if root.name == "vllm" else root)
    assert shop.shared() == before


def test_a_reinstall_and_an_upgrade_by_uv_are_told_apart(shop: Shop) -> None:
    shop.environment("one", "hardlink")
    root = shop.packages("one")
    planted.apply(root)
    shop.environment("one", "hardlink", "--reinstall")
    (note,) = operations.status([root], Options(sites=("gate",))).trees[0].notes[-1:]
    assert "vllm was reinstalled since" in note
    planted.apply(root)
    wheel(shop.home / "wheels", "0.13.0", "# new\n" + MODEL)
    shop.environment("one", "hardlink", "--upgrade")
    result = planted.revert(root)
    assert not result.changed
    assert any("vllm 0.12.0 was upgraded to 0.13.0" in note for note in result.trees[0].notes)
    assert (root / FILE).read_text() == "# new\n" + MODEL
    assert not (root / ".glm-pto").exists()


def test_uv_uninstall_after_apply_leaves_only_the_hidden_folder(shop: Shop) -> None:
    python = shop.environment("one", "hardlink")
    root = shop.packages("one")
    planted.apply(root)
    shop.run(UV, "pip", "uninstall", "--python", python, "vllm")
    assert not (root / "vllm").exists()
    assert (root / ".glm-pto/state.json").exists()


def test_pip_copies_round_trip(shop: Shop) -> None:
    target = shop.home / "target"
    links = ("--find-links", shop.home / "wheels")
    shop.run(sys.executable, "-m", "pip", "install", "-q", "--no-index", *links, "--target", target, "vllm")
    round_trip(target)


def test_the_packages_of_another_python_with_the_layer_copied_in(shop: Shop) -> None:
    python = shop.environment("one", "hardlink")
    root = shop.packages("one")
    before = planted.names(root)
    options = Options(sites=("gate",), install_kernels=True)
    assert operations.apply((), options, python=python).changed
    assert (root / "glm_pto_kernels/__init__.py").is_file()
    assert operations.revert((), Options(), python=python).changed
    assert planted.names(root) == before


def test_an_editable_install_is_edited_in_its_checkout(shop: Shop) -> None:
    shutil.rmtree(shop.home / "wheels")
    checkout = shop.home / "checkout"
    planted.plant(checkout, version=None)
    (checkout / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "vllm"\nversion = "0.12.0"\n[tool.setuptools]\npackages = ["vllm"]\n'
    )
    python = shop.home / "env/bin/python"
    shop.run(UV, "venv", "--python", sys.executable, shop.home / "env")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps")
    builder = sysconfig.get_path("purelib")  # setuptools of this environment builds it
    shop.run(*pip, "--no-build-isolation", "--no-index", "-e", checkout, PYTHONPATH=builder)
    before = (checkout / FILE).read_bytes()
    options = Options(sites=("gate",), install_kernels=True)
    result = operations.apply((), options, python=python)
    assert result.trees[0].root.resolve() == checkout.resolve()
    assert MARK in (checkout / FILE).read_bytes()
    operations.revert((), Options(), python=python)
    assert (checkout / FILE).read_bytes() == before
    assert not (checkout / "glm_pto_kernels").exists()
    assert not (checkout / ".glm-pto").exists()


def test_a_read_only_install_is_refused_before_the_first_write(shop: Shop) -> None:
    shop.environment("one", "copy")
    root = shop.packages("one")
    paths = [root / "vllm", *(root / "vllm").rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    refused(root, "glm4_moe.py", "read-only")
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)


def test_a_wheel_on_the_path_has_no_source_to_patch(shop: Shop) -> None:
    (made,) = (shop.home / "wheels").iterdir()
    before = made.read_bytes()
    with pytest.raises(UsageError, match="no source to edit"):
        planted.apply(made)
    assert made.read_bytes() == before
