"""What happened to a file since the last apply, as the state and the wheel's RECORD tell it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from glm_pto.codemods import operations, origin, seal, state
from glm_pto.codemods.findings import Options, State
from glm_pto.codemods.origin import Kind
from tests.codemods import planted
from tests.codemods.planted import FILE, MODEL, plant

OLD = MODEL.encode()
OTHER = b"# a new release\n" + OLD


@pytest.fixture
def guarded(tmp_path: Path) -> bytes:
    plant(tmp_path)
    planted.apply(tmp_path)
    return (tmp_path / FILE).read_bytes()


def left(root: Path) -> state.FileRecord:
    record = state.load(root).record
    assert record is not None
    return record.files[FILE]


def installed(root: Path, data: bytes, version: str) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    info = root / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "RECORD").write_text(f"x{FILE},sha256=no,1\n{FILE},sha256={digest},{len(data)}\nvllm/b.py,,\n")


def kind(root: Path, current: bytes | None) -> Kind:
    return origin.explain(root, FILE, current, left(root)).kind


def test_a_file_as_apply_left_it_needs_no_words(tmp_path: Path, guarded: bytes) -> None:
    assert origin.explain(tmp_path, FILE, guarded, left(tmp_path)) == origin.Origin(Kind.AS_LEFT)


def test_the_original_text_without_a_record(tmp_path: Path, guarded: bytes) -> None:
    assert kind(tmp_path, OLD) is Kind.ORIGINAL
    assert kind(tmp_path, OTHER) is Kind.REPLACED
    assert kind(tmp_path, None) is Kind.GONE


def test_record_tells_reinstalled_from_upgraded(tmp_path: Path, guarded: bytes) -> None:
    installed(tmp_path, OLD, "0.12.0")
    assert kind(tmp_path, OLD) is Kind.REINSTALLED
    installed(tmp_path, OTHER, "0.13.0")
    assert kind(tmp_path, OTHER) is Kind.UPGRADED
    assert kind(tmp_path, OTHER + b"# mine\n") is Kind.REPLACED


def test_an_edit_beside_our_lines(tmp_path: Path, guarded: bytes) -> None:
    told = origin.explain(tmp_path, FILE, guarded + b"# mine\n", left(tmp_path))
    assert told.kind is Kind.EDITED
    assert "keeps the edit" in told.message


def test_a_guard_taken_out_by_hand_is_named(tmp_path: Path, guarded: bytes) -> None:
    two = state.FileRecord(seal.digest(OLD), "0" * 64, 0o644, "vllm", "0.12.0", ("attention_pre", "gate"))
    told = origin.explain(tmp_path, FILE, guarded, two)
    assert told.kind is Kind.PARTLY_REVERTED
    assert "attention_pre" in told.message


def notes(root: Path) -> list[str]:
    (tree,) = operations.status([root], Options(sites=("gate",))).trees
    assert "" not in tree.notes
    return [note for note in tree.notes if "since the last apply" in note]


def test_status_tells_of_an_edit_beside_our_lines_and_leaves_one_inside_to_its_row(
    tmp_path: Path, guarded: bytes
) -> None:
    assert notes(tmp_path) == []
    (tmp_path / FILE).write_bytes(guarded + b"# mine\n")
    (note,) = notes(tmp_path)
    assert note.startswith(f"{FILE}: edited since the last apply")
    (tmp_path / FILE).write_bytes(guarded.replace(b"USE_PTO_GATE", b"USE_PTO_GATE and mine", 1))
    assert notes(tmp_path) == []
    (tmp_path / FILE).unlink()
    (note,) = notes(tmp_path)
    assert note.startswith(f"{FILE}: is gone since the last apply")


def test_only_the_row_of_a_guard_that_was_lost_is_called_reinstalled(tmp_path: Path, guarded: bytes) -> None:
    (tmp_path / FILE).write_bytes(OLD)
    report = operations.status([tmp_path], Options(sites=("gate", "shared_expert"))).trees[0]
    assert [row.site for row in report.findings if row.state is State.REINSTALLED] == ["gate"]
    other = replace(report.findings[0], file="vllm/other.py", state=State.APPLICABLE)
    again = origin.annotate(replace(report, findings=(other,), notes=()))
    assert again.findings == (other,)


def test_a_file_of_our_own_is_not_spoken_of(tmp_path: Path, guarded: bytes) -> None:
    record = state.load(tmp_path).record
    assert record is not None
    made = replace(left(tmp_path), made=True)
    (tmp_path / ".glm-pto/state.json").write_bytes(state.encode(replace(record, files={FILE: made})))
    (tmp_path / FILE).write_bytes(guarded + b"# mine\n")
    assert notes(tmp_path) == []
