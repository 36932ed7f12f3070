"""What pip's session brings is kept only where it has the digest that was announced."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glm_pto.cli import registry

DATA = b"an archive" * 9


class Reply:
    def raise_for_status(self) -> None:
        return None

    def iter_content(self, size: int) -> Iterator[bytes]:
        return iter((DATA[:7], DATA[7:]))


SESSION = SimpleNamespace(get=lambda url, **_: Reply())


def link(filename: str, **hashed: str) -> Any:
    return SimpleNamespace(filename=filename, url_without_fragment=f"https://index/{filename}", **hashed)


def test_an_sdist_has_the_digest_that_the_index_announced(tmp_path: Path) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    fine = {"archive": "vllm-1.0.tar.gz", "sha256": digest}
    for told in ({"hash_name": "sha256", "hash": digest}, {"hash_name": None, "hash": None}):
        assert registry.sdist(SESSION, link("vllm-1.0.tar.gz", **told), tmp_path) == fine
        assert (tmp_path / "vllm-1.0.tar.gz").read_bytes() == DATA
    found = registry.sdist(SESSION, link("vllm-1.0.tar.gz", hash_name="sha256", hash="0" * 64), tmp_path)
    assert found["error"] == "hash" and digest in found["detail"] and "0" * 64 in found["detail"]


FILES = {"vllm/a.py": b"a = 1\n", "vllm/k.so": b"\0" * 99, "vllm/b.py": b"", "tests/t.py": b"t"}


def wheel(recorded: dict[str, bytes]) -> io.BytesIO:
    """The bytes of a wheel with `FILES`, whose RECORD is that of other contents."""
    name, remote = "vllm-1.0.dist-info", io.BytesIO()
    members = {**FILES, f"{name}/METADATA": b"Version: 1.0\n"}
    digests = {
        member: base64.urlsafe_b64encode(hashlib.sha256(recorded.get(member, data)).digest())
        for member, data in members.items()
    }
    rows = (f"{m},sha256={d.decode().rstrip('=')},{len(members[m])}\n" for m, d in digests.items())
    with zipfile.ZipFile(remote, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{name}/RECORD", "".join(rows))
    return remote


@pytest.mark.parametrize("wrong", ["", "vllm/b.py", "vllm-1.0.dist-info/METADATA"])
def test_of_a_wheel_the_sources_are_kept_that_its_record_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    lazy = pytest.importorskip("pip._internal.network.lazy_wheel")
    monkeypatch.setattr(lazy, "LazyZipOverHTTP", lambda url, session: wheel({wrong: b"other"}))
    found = registry.wheel(SESSION, link("vllm-1.0-py3-none-any.whl"), "vllm", tmp_path)
    if wrong:
        assert found["error"] == "hash" and f"{wrong} differs from its RECORD" in found["detail"]
        return
    kept = tmp_path / found["archive"]
    assert found["sha256"] == hashlib.sha256(kept.read_bytes()).hexdigest()
    assert sorted(zipfile.ZipFile(kept).namelist()) == [
        "vllm-1.0.dist-info/METADATA",
        "vllm/a.py",
        "vllm/b.py",
    ]


@pytest.mark.parametrize(("near", "requests"), [(1, 2), (1000, 1)])
def test_neighbours_come_in_one_request(monkeypatch: pytest.MonkeyPatch, near: int, requests: int) -> None:
    monkeypatch.setattr(registry, "NEAR", near)
    archive = zipfile.ZipFile(wheel({}))
    found = registry.spans(archive, {"vllm/a.py", "vllm/b.py"})
    where = {entry.filename: entry.header_offset for entry in archive.infolist()}
    assert len(found) == requests
    assert (found[0][0], found[-1][1]) == (where["vllm/a.py"], where["tests/t.py"])
    last = [n for n in where if n.endswith("RECORD")]
    assert registry.spans(archive, {*last}) == [(where[last[0]], archive.start_dir)]
    every = registry.spans(archive, {*where})
    assert every == [(0, archive.start_dir)]
