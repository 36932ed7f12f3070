"""A compile cache that keys on the text of the traced files sees every change of a switch or a backend."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import glm_pto_kernels as K
from glm_pto_kernels import backends, cache_key

# What vLLM does: remember each file that Dynamo inlines, then hash names and texts.
TRACE = """
import hashlib, json, sys
from pathlib import Path
from unittest.mock import patch
import torch
from torch._dynamo.symbolic_convert import InliningInstructionTranslator
import glm_pto_kernels as K

for assignment in sys.argv[1:]:
    name, value = assignment.split("=")
    setattr(K, name, value == "True")
files, inline = set(), InliningInstructionTranslator.inline_call_

def remember(inlined):
    files.add(inlined.f_code.co_filename)
    return inline(inlined)

class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 8))
    def forward(self, x):
        return x @ self.weight.t()

gate = Gate()

@torch.compile(backend="eager", fullgraph=True)
def layer(x):
    if K.USE_PTO_GATE and K.gate_supported(gate, x):
        return K.gate(gate, x)
    else:
        return gate(x)

with patch.object(InliningInstructionTranslator, "inline_call_", remember):
    layer(torch.ones(3, 8))
text = "".join(f"{name}{Path(name).read_text()}" for name in sorted(files))
print(json.dumps([hashlib.sha256(text.encode()).hexdigest(), K.calls()["gate"]]))
"""


def trace(cache: Path, *switches: str, **environment: str) -> tuple[str, int]:
    """The key that vLLM would make of the trace, and how often our operator ran."""
    script = cache / "trace.py"
    script.write_text(TRACE)
    run = subprocess.run(
        [sys.executable, script, *switches],
        env={**os.environ, "GLM_PTO_CACHE": str(cache), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    key, calls = json.loads(run.stdout)
    return key, calls


def test_every_decision_has_a_key_of_its_own(tmp_path):
    fused = trace(tmp_path, GLM_PTO_BACKEND="torch")
    native = trace(tmp_path, GLM_PTO_BACKEND="auto")
    off = trace(tmp_path, GLM_PTO_BACKEND="torch", USE_PTO_GATE="0")
    flipped = trace(tmp_path, "USE_PTO_GATE=True", GLM_PTO_BACKEND="torch", USE_PTO_GATE="0")
    assert [fused[1], native[1], off[1], flipped[1]] == [1, 0, 0, 1]
    assert len({fused[0], native[0], off[0]}) == 3
    assert flipped == fused


def test_the_file_is_our_text_whatever_stood_there(tmp_path, monkeypatch):
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path))
    cache_key.tell({"gate": "torch"})
    (path,) = (tmp_path / "decisions").iterdir()
    text = path.read_text()
    assert "gate: 'torch'" in text
    path.write_text("raise SystemExit('planted')\n")
    assert cache_key.tell({"gate": "torch"})()
    assert path.read_text() == text
    before = path.stat().st_ino
    cache_key.tell({"gate": "torch"})
    assert path.stat().st_ino == before  # right already: left as it is


def test_the_function_leads_to_its_module_and_text(tmp_path, monkeypatch):
    """Caches of compiled code look both up, and check the text again when they load."""
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path))
    monkeypatch.delitem(sys.modules, cache_key.MODULE, raising=False)
    told = cache_key.tell({"gate": "torch"})
    assert inspect.getmodule(told.__code__) is sys.modules[cache_key.MODULE]
    assert inspect.getsource(told.__code__) == "def told():\n    return True\n"


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"GLM_PTO_CACHE": "/ours", "XDG_CACHE_HOME": "/all"}, "/ours/decisions"),
        ({"XDG_CACHE_HOME": "/all"}, "/all/glm-pto/decisions"),
        ({"GLM_PTO_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/me/.cache/glm-pto/decisions"),
    ],
    ids=["ours", "all_programs", "home"],
)
def test_where_the_files_go(monkeypatch, environment, place):
    for name in ("GLM_PTO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    assert str(cache_key.folder()) == place


def test_a_damaged_file_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path))
    cache_key.tell({"gate": "torch"})
    (path,) = (tmp_path / "decisions").iterdir()
    text = path.read_text()
    path.write_bytes(b"\xff\xfe\x00")
    assert cache_key.tell({"gate": "torch"}) is not cache_key.told
    assert path.read_text() == text


def test_a_user_without_a_home_is_no_error(monkeypatch):
    """A container may run under a number that is in no list of users."""
    monkeypatch.setenv("GLM_PTO_CACHE", "~nobody-has-this-name/cache")
    assert cache_key.tell({"gate": "torch"}) is cache_key.told


def test_the_file_is_found_from_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLM_PTO_CACHE", "here")
    file = Path(cache_key.tell({"gate": "torch"}).__code__.co_filename)
    assert file.is_absolute() and file.is_relative_to(tmp_path)


def test_nothing_is_left_where_the_file_cannot_be_placed(tmp_path, monkeypatch):
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path))
    cache_key.tell({"gate": "torch"})
    (path,) = (tmp_path / "decisions").iterdir()
    path.unlink()
    path.mkdir()
    assert cache_key.tell({"gate": "torch"}) is cache_key.told
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_home_is_no_error(tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path / "none"))
    assert cache_key.tell({"gate": "torch"}) is cache_key.told


def test_a_file_in_the_way_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "decisions").write_text("")
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path))
    assert cache_key.tell({"gate": "torch"}) is cache_key.told


def test_a_change_renews_what_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path))
    monkeypatch.setattr(backends, "TOLD", backends.TOLD)
    monkeypatch.setitem(backends.CHOICES, "gate", backends.Choice("custom"))
    backends.tell()
    first = backends.TOLD
    monkeypatch.setitem(backends.CHOICES, "gate", backends.Choice("native", native="why"))
    backends.tell()
    assert first.__code__.co_filename != backends.TOLD.__code__.co_filename


def test_a_flip_and_a_registered_kernel_renew_it_themselves(tmp_path, monkeypatch, environment):
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path))
    monkeypatch.setattr(backends, "TOLD", backends.TOLD)
    environment()
    files = []
    for change in (
        lambda: setattr(K, "USE_PTO_GATE", False),
        lambda: setattr(K, "USE_PTO_GATE", True),
        lambda: K.register("gate", lambda hidden, weight, out: None),
    ):
        change()
        files.append(backends.TOLD.__code__.co_filename)
    assert len(set(files)) == 3
