"""Model files with the gate's statement planted in them, written in the shape that the recipe knows."""

from __future__ import annotations

import stat
from pathlib import Path

from glm_pto.codemods import operations
from glm_pto.codemods.findings import Options, Refusal, Result

FILE = "vllm/model_executor/models/glm4_moe.py"
GATE = "router_logits = self.gate(hidden_states.to(dtype=torch.float32))"
HEAD = "import torch\nfrom torch import nn\n\n\n"
METHOD = f"""class Glm4MoE(nn.Module):
    def forward(self, hidden_states):
        {GATE}
        return router_logits
"""
MODEL = HEAD + METHOD
MARK = b"# glm-pto: gate 1 "


def plant(root: Path, data: bytes | str = MODEL, version: str | None = "0.12.0") -> Path:
    """A tree with one package of one model file; returns the file."""
    file = root / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    (root / "vllm/__init__.py").write_bytes(b"")
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    if version:
        metadata = root / f"vllm-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return file


def names(root: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Every name under ``root`` with its mode and its bytes, or the aim of a link.

    Of compiled files only the mode: what is in them depends on the time of their source.
    """
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content: bytes | str | None = None
        if stat.S_ISREG(info.st_mode) and path.suffix != ".pyc":
            content = path.read_bytes()
        elif stat.S_ISLNK(info.st_mode):
            content = str(path.readlink())
        found[path.relative_to(root).as_posix()] = (info.st_mode, content)
    return found


def apply(root: Path, **options: bool) -> Result:
    return operations.apply([root], Options(sites=("gate",), **options))


def revert(root: Path, **options: bool) -> Result:
    return operations.revert([root], Options(**options))


def round_trip(root: Path) -> bytes:
    """Apply, apply again, revert; every byte and mode comes back. Returns the guarded text."""
    before = names(root)
    assert apply(root).changed
    guarded = (root / FILE).read_bytes()
    assert MARK in guarded
    applied = names(root)
    assert not apply(root).changed
    assert names(root) == applied, "a second apply changed something"
    assert revert(root).changed
    assert names(root) == before, "revert did not give every byte back"
    assert not revert(root).changed
    assert names(root) == before
    return guarded


def refused(root: Path, *words: str) -> None:
    """Apply is refused with these words in the message, and nothing is changed."""
    before = names(root)
    try:
        apply(root)
    except Refusal as refusal:
        text = str(refusal)
        assert all(word in text for word in words), text
    else:
        raise AssertionError("was not refused")
    assert names(root) == before
