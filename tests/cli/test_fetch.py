"""Fetching released sources: what is unpacked, what is refused, what survives."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from glm_pto.cli import fetch, releases


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    if "trees" not in request.keywords:
        monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path / "cache"))
    return fetch.cache()


def sdist(folder: Path, files: dict[str, bytes], name: str = "vllm-1.0") -> Path:
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, data in files.items():
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


GOOD = {"PKG-INFO": b"Version: 1.0\n", "vllm/__init__.py": b"x = 1\r\n", "vllm/a/b.py": b"\xff\r\n\n"}


def offer(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[str]:
    asked: list[str] = []

    def download(name: str, version: str, folder: Path) -> dict[str, object]:
        asked.append(f"{name} {version}")
        return {"archive": sdist(folder, files).name, "sha256": "0"}

    monkeypatch.setattr(fetch, "download", download)
    return asked


def test_keeps_bytes_and_takes_python_only(tmp_path: Path) -> None:
    archive = sdist(tmp_path, {**GOOD, "csrc/k.cpp": b"", "vllm/x.json": b"{}", "tests/t.py": b""})
    assert fetch.unpack(archive, tmp_path / "tree", "vllm", "1.0") == 3
    tree = tmp_path / "tree"
    assert {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file()} == {
        "vllm/__init__.py",
        "vllm/a/b.py",
        "vllm-1.0.dist-info/METADATA",
    }
    assert (tree / "vllm/a/b.py").read_bytes() == b"\xff\r\n\n"


def test_reads_a_wheel_too(tmp_path: Path) -> None:
    path = tmp_path / "vllm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm-1.0.dist-info/METADATA", "Version: 1.0\n")
        archive.writestr("vllm/__init__.py", b"x = 1\r\n")
        archive.writestr("vllm/_C.so", b"\0")
    assert fetch.unpack(path, tmp_path / "tree", "vllm", "1.0") == 2
    assert (tmp_path / "tree/vllm/__init__.py").read_bytes() == b"x = 1\r\n"


@pytest.mark.parametrize("member", ["../../evil.py", "vllm/../../evil.py", "/evil.py", "vllm\\..\\evil.py"])
def test_refuses_members_that_point_outside(tmp_path: Path, member: str) -> None:
    archive = sdist(tmp_path, {**GOOD, member: b""})
    with pytest.raises(fetch.FetchError, match="points outside"):
        fetch.unpack(archive, tmp_path / "deep/tree", "vllm", "1.0")
    assert not list(tmp_path.rglob("evil.py"))


def test_ignores_links(tmp_path: Path) -> None:
    archive = sdist(tmp_path, GOOD)
    with tarfile.open(tmp_path / "vllm-2.0.tar.gz", "w:gz") as linked, tarfile.open(archive) as plain:
        for member in plain:
            linked.addfile(member, plain.extractfile(member))
        link = tarfile.TarInfo("vllm-1.0/vllm/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        linked.addfile(link)
    assert fetch.unpack(tmp_path / "vllm-2.0.tar.gz", tmp_path / "tree", "vllm", "1.0") == 3
    assert not (tmp_path / "tree/vllm/link.py").exists()


def test_refuses_an_archive_without_the_package(tmp_path: Path) -> None:
    with pytest.raises(fetch.FetchError, match=r"expected vllm/__init__\.py"):
        fetch.unpack(sdist(tmp_path, {"PKG-INFO": b""}), tmp_path / "tree", "vllm", "1.0")


def test_fetches_once_and_leaves_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = offer(monkeypatch, GOOD)
    first = fetch.release("vllm", "1.0")
    assert fetch.release("vllm", "1.0") == first == fetch.cached("vllm", "1.0")
    assert asked == ["vllm 1.0"]
    assert {p.name for p in first.parent.iterdir()} == {"vllm-1.0", "vllm-1.0.lock"}


def test_a_failed_fetch_leaves_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, {"PKG-INFO": b""})
    with pytest.raises(fetch.FetchError):
        fetch.release("vllm", "1.0")
    assert fetch.cached("vllm", "1.0") is None
    assert {p.name for p in (fetch.cache() / "trees").iterdir()} == {"vllm-1.0.lock"}


def test_half_a_tree_from_a_crash_is_fetched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, GOOD)
    (fetch.cache() / "trees/vllm-1.0/vllm").mkdir(parents=True)
    assert (fetch.release("vllm", "1.0") / "vllm/a/b.py").is_file()


def test_pair_copies_and_never_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(monkeypatch, GOOD)
    tree = fetch.pair(None, "1.0", tmp_path / "tree")
    source = fetch.release("vllm", "1.0")
    assert (tree / "vllm/__init__.py").stat().st_ino != (source / "vllm/__init__.py").stat().st_ino
    (tree / "vllm/__init__.py").write_bytes(b"changed")
    assert (source / "vllm/__init__.py").read_bytes() == GOOD["vllm/__init__.py"]
    assert not (tree / fetch.RECORD).exists()


def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reply: str, log: str = "") -> None:
    """Put another script in the place of the one that asks pip."""
    script = tmp_path / "reply.py"
    script.write_text(f"import sys\nsys.stderr.write({log!r})\nprint({reply!r})\n")
    monkeypatch.setattr(fetch, "SCRIPT", script)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"error": "no-pip"}, "ensurepip"),
        ({"error": "offline", "detail": "refused"}, "refused.*check the network"),
        ({"error": "no-release", "versions": []}, "did not give it .no route.*copy the folder"),
        ({"error": "no-release", "versions": ["0.9", "1.1"]}, r"no such release.*0\.9, 1\.1"),
        ({"error": "hash", "detail": "expected a, found b"}, "not what the index announced.*try again"),
    ],
    ids=["no_pip", "offline", "nothing_listed", "other_versions", "wrong_hash"],
)
def test_says_why_and_what_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reply: dict[str, object], said: str
) -> None:
    answers(monkeypatch, tmp_path, json.dumps(reply), log="no route\n")
    with pytest.raises(fetch.FetchError, match=rf"vllm 1\.0: .*{said}"):
        fetch.release("vllm", "1.0")


def test_a_crash_of_pip_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, tmp_path, "not json", log="Traceback\nboom\n")
    with pytest.raises(fetch.FetchError, match=r"pip stopped: Traceback \| boom"):
        fetch.release("vllm", "1.0")


def test_another_pip_is_asked_by_its_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, tmp_path, json.dumps({"error": "other-pip", "detail": "moved"}))
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport subprocess, sys, zipfile, pathlib\n"
        "args = sys.argv[1:]\n"
        "if args[0] == '-c': sys.exit(subprocess.call([sys.executable, *args]))\n"
        "assert args[:3] == ['-m', 'pip', 'download'] and args[-1] == 'vllm==1.0', args\n"
        "dest = pathlib.Path(args[args.index('--dest') + 1])\n"
        "z = zipfile.ZipFile(dest / 'vllm-1.0-py3-none-any.whl', 'w')\n"
        "z.writestr('vllm-1.0.dist-info/METADATA', ''), z.writestr('vllm/__init__.py', '')\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert (fetch.release("vllm", "1.0") / "vllm/__init__.py").is_file()


def test_an_unknown_package_is_refused() -> None:
    with pytest.raises(fetch.FetchError, match="not a package that glm-pto knows"):
        fetch.release("requests", "1.0")


def test_the_lists_hold_what_was_read() -> None:
    assert len(set(releases.VLLM)) == 39
    assert len(set(releases.ASCEND)) == 33


@pytest.mark.trees
def test_a_real_release_has_its_crlf_file_and_version(pair_tree: Path) -> None:
    selector = (pair_tree / "vllm_ascend/ops/fused_moe/experts_selector.py").read_bytes()
    assert selector.count(b"\r\n") == selector.count(b"\n") > 100
    assert b"\nVersion: 0.12.0\n" in (pair_tree / "vllm-0.12.0.dist-info/METADATA").read_bytes()
    assert (pair_tree / "vllm_ascend-0.12.0rc1.dist-info/METADATA").is_file()


@pytest.mark.trees
@pytest.mark.all_releases
def test_every_vllm_has_the_model_and_every_package_its_files(released) -> None:  # type: ignore[no-untyped-def]
    for version in releases.VLLM:
        assert (released("vllm", version) / "vllm/model_executor/models/glm4_moe.py").is_file()
    for version in releases.ASCEND:
        assert (released("vllm-ascend", version) / "vllm_ascend/attention/attention_v1.py").is_file()


@pytest.mark.trees
@pytest.mark.all_releases
def test_the_wheel_reader_gives_the_bytes_of_the_sdist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released
) -> None:  # type: ignore[no-untyped-def]
    """Where both exist, the lazy wheel and the sdist hold the same model file."""
    want = released("vllm", "0.14.1") / "vllm/model_executor/models/glm4_moe.py"
    script = tmp_path / "wheels_only.py"
    text = fetch.SCRIPT.read_text().replace("not candidate.link.is_wheel", "False")
    script.write_text(text)
    monkeypatch.setattr(fetch, "SCRIPT", script)
    monkeypatch.setenv("GLM_PTO_CACHE", str(tmp_path / "cache"))
    got = released("vllm", "0.14.1") / "vllm/model_executor/models/glm4_moe.py"
    assert hashlib.sha256(got.read_bytes()).digest() == hashlib.sha256(want.read_bytes()).digest()
