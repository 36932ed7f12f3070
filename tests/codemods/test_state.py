"""What the state keeps of a file, and that a sealed text with a wrong content is not taken for one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from glm_pto.codemods import seal, state
from glm_pto.codemods.findings import FileChange
from glm_pto.codemods.state import FileRecord, Record
from tests.codemods import planted
from tests.codemods.planted import FILE, MODEL, plant

KEPT = FileRecord(None, "1" * 64, 0o644, "vllm", None, ("gate",))
BODY = asdict(Record("0.1.0", {"vllm/a.py": KEPT}))


def test_a_record_comes_back_as_it_was_written() -> None:
    full = FileRecord("0" * 64, "1" * 64, 0o640, "vllm", "0.12.0", ("gate", "attention_pre"), True)
    record = Record("0.1.0", {"vllm/a.py": full, "vllm/b.py": KEPT}, {"rows": []})
    assert state.decode(state.encode(record)) == record


@pytest.mark.parametrize(
    "different",
    [
        {"files": None},
        {"files": ["vllm/a.py"]},
        {"files": {"vllm/a.py": 7}},
        {"files": {"vllm/a.py": {"before": None}}},
        *(
            {"files": {"vllm/a.py": asdict(KEPT) | wrong}}
            for wrong in (
                {"before": 7},
                {"after": None},
                {"mode": "0644"},
                {"package": 7},
                {"version": 7},
                {"sites": 7},
            )
        ),
        {"tool": 1},
    ],
    ids=[
        "none",
        "list",
        "no_file",
        "no_fields",
        "before",
        "after",
        "mode",
        "package",
        "version",
        "sites",
        "tool",
    ],
)
def test_a_sealed_text_with_another_content_is_no_state(different: dict[str, object]) -> None:
    with pytest.raises(seal.Unusable, match="its content is not that of a state"):
        state.decode(seal.dump("state", 1, BODY | different))


def test_a_survey_of_another_kind_is_none() -> None:
    assert state.decode(seal.dump("state", 1, BODY | {"survey": [7]})).survey == {}


MARKED = "if ready:  # glm-pto: gate 1 0123abcd\n    x = 2\nelse:\n    x = 1\n"


@pytest.mark.parametrize(
    ("text", "sites"),
    [
        (MARKED + MARKED.replace("gate", "shared_expert") + MARKED, ("gate", "shared_expert")),
        (f"doc = '''\n{MARKED}'''\n", ()),
        (MARKED + "no python is this\n", ("gate",)),
        ("x = 1\n", ()),
    ],
    ids=["guards", "in_a_string", "cannot_be_parsed", "none"],
)
def test_the_sites_whose_guards_stand_in_a_file(text: str, sites: tuple[str, ...]) -> None:
    assert state.standing(text.encode()) == sites


def commit(previous: Record | None, before: bytes | None, after: bytes | None, version: str) -> Record:
    change = FileChange(Path(FILE), before, after, "vllm")
    return state.merge(previous, [(FILE, 0o640, change)], {"vllm": version}, "0.1.0", {})


def test_the_first_hash_outlives_later_changes_but_not_a_foreign_one(tmp_path: Path) -> None:
    plain = MODEL.encode()
    file = plant(tmp_path)
    planted.apply(tmp_path)
    guarded = file.read_bytes()
    renewed = guarded + b"# a renewed guard\n"
    first = commit(None, plain, guarded, "0.12.0")
    kept = first.files[FILE]
    assert (kept.before, kept.after) == (seal.digest(plain), seal.digest(guarded))
    assert (kept.mode, kept.package, kept.version, kept.sites) == (0o640, "vllm", "0.12.0", ("gate",))
    assert not kept.made
    later = commit(first, guarded, renewed, "0.13.0").files[FILE]
    assert (later.before, later.after, later.version) == (kept.before, seal.digest(renewed), "0.13.0")
    assert commit(first, renewed, guarded, "0.12.0").files[FILE].before is None, (
        "somebody else wrote in between"
    )
    assert commit(first, guarded, plain, "0.12.0").files == {}
    assert commit(first, guarded, None, "0.12.0").files == {}


def test_a_file_of_ours_is_remembered_without_a_guard_and_stays_ours() -> None:
    made = commit(None, None, b"x = 1\n", "0.12.0")
    assert made.files[FILE].made and made.files[FILE].before is None
    again = commit(made, b"x = 1\n", b"x = 2\n", "0.12.0")
    assert again.files[FILE].made and again.files[FILE].before is None


def test_pruning_forgets_what_holds_nothing_of_ours(tmp_path: Path) -> None:
    file = plant(tmp_path)
    record = Record("0.1.0", {FILE: KEPT, "vllm/gone.py": KEPT}, {"rows": []})
    assert state.prune(tmp_path, None) is None
    assert state.prune(tmp_path, record) == Record("0.1.0", {}, {"rows": []})
    planted.apply(tmp_path)
    pruned = state.prune(tmp_path, record)
    assert pruned is not None and set(pruned.files) == {FILE}
    made = Record("0.1.0", {FILE: FileRecord(None, "1" * 64, 0o644, "vllm", None, (), True)})
    planted.revert(tmp_path)
    assert state.prune(tmp_path, made) == made, "a file that we made needs no guard to be ours"
    assert file.read_text() == MODEL


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs /proc")
def test_a_file_that_cannot_be_read_is_not_forgotten(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/a.py").symlink_to("/proc/self/mem")
    record = Record("0.1.0", {"vllm/a.py": KEPT})
    assert state.prune(tmp_path, record) == record
