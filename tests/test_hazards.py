"""What a patcher of installed trees must survive: one test, or more, for every row of the table of hazards.

The number in the name is the row's. Row 10 (killed, disk full) is in ``tests/codemods/test_crash.py``.
"""

from __future__ import annotations

import codecs
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from glm_pto.codemods import missing, operations, state
from glm_pto.codemods.findings import Options, Refusal, UsageError
from glm_pto.codemods.findings import State as Row
from tests.codemods import planted
from tests.codemods.planted import FILE, GATE, HEAD, MARK, METHOD, MODEL, plant, refused, round_trip


def cli(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, **environment}
    command = [sys.executable, "-m", "glm_pto.cli", *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, timeout=120, check=False)


def own_lines(guarded: bytes, original: bytes) -> list[bytes]:
    """The lines of the guarded text that are not in the original, indentation aside."""
    known = [line.strip(b" \t") for line in original.splitlines(keepends=True)]
    lines = guarded.splitlines(keepends=True)
    return [line for line in lines if line.strip(b" \t") not in known]


# 1: endings


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_hazard_01_our_lines_end_like_the_file(tmp_path: Path, ending: str) -> None:
    original = MODEL.replace("\n", ending).encode()
    plant(tmp_path, original)
    ours = own_lines(round_trip(tmp_path), original)
    assert len(ours) == 4
    assert all(line.endswith(ending.encode()) for line in ours)
    assert ending == "\r\n" or not any(b"\r" in line for line in ours)


@pytest.mark.parametrize("line", range(MODEL.count("\n")))
def test_hazard_01_one_odd_ending_among_others_stays(tmp_path: Path, line: int) -> None:
    lines = MODEL.splitlines()
    text = "".join(text + ("\r\n" if number == line else "\n") for number, text in enumerate(lines))
    plant(tmp_path, text)
    round_trip(tmp_path)


@pytest.mark.parametrize(
    "text",
    [MODEL.replace("\n", "\r"), MODEL + "\r", MODEL.replace("\n", "\r", 1), MODEL.rstrip("\n") + "\r"],
    ids=["cr_only", "lone_cr_at_the_end", "one_cr_line", "last_line_ends_in_cr"],
)
def test_hazard_01_carriage_returns_are_kept_or_refused(tmp_path: Path, text: str) -> None:
    kept_or_refused(tmp_path, text.encode())


def kept_or_refused(root: Path, data: bytes) -> None:
    """Either the whole round trip is exact, or nothing changes and the file is named."""
    plant(root, data)
    try:
        planted.apply(root)
    except Refusal:
        refused(root, "glm4_moe.py")
    else:
        assert planted.revert(root).changed
        assert (root / FILE).read_bytes() == data
        round_trip(root)


# 2: indentation


@pytest.mark.parametrize("unit", ["\t", "   ", "  ", "        "], ids=["tab", "three", "two", "eight"])
def test_hazard_02_indent_comes_from_the_sites_own_line(tmp_path: Path, unit: str) -> None:
    plant(tmp_path, MODEL.replace("    ", unit))
    guarded = round_trip(tmp_path).decode()
    header = next(line for line in guarded.splitlines() if MARK.decode() in line)
    assert header.startswith(unit * 2 + "if ")


@pytest.mark.parametrize("before", ["class Glm4MoE", f"        {GATE}", "import torch"])
def test_hazard_02_form_feeds_are_kept_or_refused(tmp_path: Path, before: str) -> None:
    kept_or_refused(tmp_path, MODEL.replace(before, "\f\n" + before, 1).encode())
    kept_or_refused(tmp_path, MODEL.replace(before, "\f" + before, 1).encode())


# 3: codecs


@pytest.mark.parametrize(
    ("codec", "comment"),
    [("utf-8", "# naïve 算子 🙂"), ("latin-1", "# café"), ("gbk", "# 算子替换"), ("utf-8-sig", "# é")],
)
def test_hazard_03_the_codec_is_kept(tmp_path: Path, codec: str, comment: str) -> None:
    cookie = "" if codec.startswith("utf-8") else f"# -*- coding: {codec} -*-\n"
    plant(tmp_path, (cookie + comment + "\n" + MODEL).encode(codec))
    guarded = round_trip(tmp_path)
    assert comment in guarded.decode(codec)
    assert guarded.startswith(codecs.BOM_UTF8) == (codec == "utf-8-sig")


@pytest.mark.parametrize(
    "data",
    [
        b"# -*- coding: klingon -*-\n" + MODEL.encode(),
        b"# caf\xe9\n" + MODEL.encode(),
        codecs.BOM_UTF8 + b"# -*- coding: latin-1 -*-\n" + MODEL.encode(),
        MODEL.encode("utf-16"),
    ],
    ids=["unknown_cookie", "undecodable", "bom_against_cookie", "utf_16"],
)
def test_hazard_03_an_unknown_codec_is_named_and_left_alone(tmp_path: Path, data: bytes) -> None:
    plant(tmp_path, data)
    refused(tmp_path, "glm4_moe.py")


# 4: the end of the file


def test_hazard_04_a_missing_final_newline_stays_missing(tmp_path: Path) -> None:
    plant(tmp_path, MODEL.rstrip("\n"))
    assert not round_trip(tmp_path).endswith(b"\n")


def test_hazard_04_the_site_is_the_last_line_without_newline(tmp_path: Path) -> None:
    plant(tmp_path, MODEL.replace("\n        return router_logits\n", ""))
    assert not round_trip(tmp_path).endswith(b"\n")


# 5: layout of the call


@pytest.mark.parametrize(
    "call",
    [
        "router_logits = self.gate(\n            hidden_states.to(\n"
        "                dtype=torch.float32,\n            )\n        )",
        "router_logits = \\\n            self.gate(hidden_states.to(dtype=torch.float32))",
        "router_logits = self.gate(  # why\n  hidden_states.to(dtype=torch.float32))  # because",
        "router_logits=self.gate( hidden_states . to( dtype = torch.float32 ) )",
    ],
    ids=["many_lines", "backslash", "comments_inside", "odd_spaces"],
)
def test_hazard_05_the_statement_stays_verbatim_in_the_else_branch(tmp_path: Path, call: str) -> None:
    plant(tmp_path, MODEL.replace(GATE, call))
    guarded = round_trip(tmp_path).decode()
    kept = [line.strip() for line in guarded.partition("else:")[2].splitlines()]
    assert [line.strip() for line in call.splitlines()] == kept[1 : 1 + len(call.splitlines())]


# 6: names


DECOY = METHOD.replace("Glm4MoE(", "Other(")


@pytest.mark.parametrize(
    "text",
    [
        HEAD + DECOY + "\n\n" + METHOD,
        HEAD + METHOD + "\n\ndef forward(self, hidden_states):\n    " + GATE + "\n    return router_logits\n",
        HEAD + METHOD.replace("    def", "    @torch.no_grad()\n    def", 1),
        HEAD + METHOD + "\n    class Inner:\n" + textwrap.indent(METHOD, "        "),
    ],
    ids=["other_class", "module_function", "decorated", "nested_namesake"],
)
def test_hazard_06_only_the_exact_qualified_name_counts(tmp_path: Path, text: str) -> None:
    plant(tmp_path, text)
    guarded = round_trip(tmp_path)
    assert guarded.count(MARK) == 1


@pytest.mark.parametrize(
    "text",
    [HEAD + METHOD + "\n\n" + METHOD, MODEL.replace(GATE, f"{GATE}\n        {GATE}")],
    ids=["class_twice", "statement_twice"],
)
def test_hazard_06_two_hits_are_ambiguous_and_nothing_changes(tmp_path: Path, text: str) -> None:
    plant(tmp_path, text)
    refused(tmp_path, "glm4_moe.py", "more than once")


@pytest.mark.parametrize(
    "end",
    [
        "if 1:\n    class Glm4MoE(nn.Module):\n        pass\n",
        "Glm4MoE.forward = other\n",
        "from fast import Glm4MoE\n",
    ],
    ids=["class_again", "method_assigned", "class_imported"],
)
def test_hazard_06_a_definition_that_is_replaced_is_not_guarded(tmp_path: Path, end: str) -> None:
    plant(tmp_path, MODEL + "\n\n" + end)
    refused(tmp_path, "glm4_moe.py", "Glm4MoE.forward is bound again here")


def test_hazard_06_a_guard_that_no_longer_runs_is_told_of(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    file.write_text(file.read_text() + "\nGlm4MoE.forward = other\n")
    (row,) = operations.status([tmp_path], Options(sites=("gate",))).trees[0].findings
    assert row.state is Row.APPLIED
    assert "bound again here, so the guarded one would not run" in row.message
    assert cli("status", "--check", "--site", "gate", tmp_path).returncode == 1
    planted.revert(tmp_path)
    assert file.read_text() == MODEL + "\nGlm4MoE.forward = other\n"


def test_hazard_06_a_definition_for_another_version_does_not_count(tmp_path: Path) -> None:
    arms = "if old:\n    class Glm4MoE:\n        pass\nelse:\n" + textwrap.indent(METHOD, "    ")
    plant(tmp_path, HEAD + arms)
    assert round_trip(tmp_path).count(MARK) == 1


# 7: the import


@pytest.mark.parametrize(
    "head",
    [
        '"""Docstring."""\nfrom __future__ import annotations\n\nimport torch\nfrom torch import nn\n\n\n',
        "try:\n    import torch\nexcept ImportError:\n    torch = None\nfrom torch import nn\n\n\n",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import os\nimport torch\n"
        "from torch import nn\n\n",
        "X = 1\nprint(X)\nimport torch\nfrom torch import nn\n\n\n",
        "#!/usr/bin/env python\n# a comment\nimport torch\nfrom torch import nn\n\n\n",
        "import torch; from torch import nn\n\n\n",
        "from torch import (\n    nn,\n)\nimport torch\n\n\n",
    ],
    ids=["future", "in_try", "type_checking", "code_first", "shebang", "semicolon", "parentheses"],
)
def test_hazard_07_the_import_is_bound_before_the_site_runs(tmp_path: Path, head: str) -> None:
    plant(tmp_path, head + METHOD)
    guarded = round_trip(tmp_path).decode()
    compile(guarded, "guarded", "exec")
    line = next(i for i, text in enumerate(guarded.splitlines()) if text.startswith("import glm_pto_kernels"))
    assert line < guarded.splitlines().index("class Glm4MoE(nn.Module):")


def test_hazard_07_a_file_that_imports_the_layer_itself_keeps_its_import(tmp_path: Path) -> None:
    plant(tmp_path, "import glm_pto_kernels\n" + MODEL)
    guarded = round_trip(tmp_path)
    assert guarded.count(b"import glm_pto_kernels") == 1


# 8: read-only


@pytest.mark.parametrize("what", ["file", "folder"])
def test_hazard_08_read_only_is_a_plain_error_before_the_first_write(tmp_path: Path, what: str) -> None:
    file = plant(tmp_path)
    locked = file if what == "file" else file.parent
    mode = locked.stat().st_mode
    locked.chmod(mode & ~0o222)
    try:
        refused(tmp_path, "glm4_moe.py", "read-only")
    finally:
        locked.chmod(mode)


@pytest.mark.parametrize(("letter", "word"), [("i", "immutable"), ("a", "append-only")])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_hazard_08_what_even_root_may_not_replace(tmp_path: Path, what: str, letter: str, word: str) -> None:
    file = plant(tmp_path)
    locked = file if what == "file" else file.parent
    if shutil.which("chattr") is None or subprocess.run(["chattr", f"+{letter}", locked]).returncode:
        pytest.skip("no such attributes on this file system, or not for this user")
    try:
        refused(tmp_path, str(locked), word, f"chattr -{letter}")
    finally:
        subprocess.run(["chattr", f"-{letter}", locked], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_hazard_08_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    plant(tmp_path)
    mounts = [["mount", "--bind", tmp_path, tmp_path], ["mount", "-o", "remount,ro,bind", tmp_path]]
    if any(subprocess.run(command, capture_output=True).returncode for command in mounts):
        subprocess.run(["umount", tmp_path], capture_output=True)
        pytest.skip("no mounts here")
    try:
        refused(tmp_path, str(tmp_path), "on a read-only file system")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# 9: links and other ways of installing


def test_hazard_09_a_linked_file_is_edited_and_the_link_kept(tmp_path: Path) -> None:
    root = tmp_path / "installed"
    real = plant(root).rename(tmp_path / "real.py")
    (root / FILE).symlink_to(real)
    planted.apply(root)
    assert (root / FILE).is_symlink()
    assert MARK in real.read_bytes()
    planted.revert(root)
    assert real.read_text() == MODEL


def test_hazard_09_a_linked_package_is_edited_where_it_is(tmp_path: Path) -> None:
    root = tmp_path / "installed"
    plant(root)
    real = (root / "vllm").rename(tmp_path / "checkout")
    (root / "vllm").symlink_to(real)
    round_trip(root)
    assert (root / "vllm").is_symlink()


def test_hazard_09_a_link_into_a_package_cache_is_refused(tmp_path: Path) -> None:
    root, cache = tmp_path / "installed", tmp_path / "cache"
    cache.mkdir()
    (cache / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    stored = plant(root).rename(cache / "glm4_moe.py")
    (root / FILE).symlink_to(stored)
    refused(root, "glm4_moe.py", "package cache", "UV_LINK_MODE=copy")
    assert stored.read_text() == MODEL


def test_hazard_09_links_are_judged_without_a_home_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    test_hazard_09_a_linked_file_is_edited_and_the_link_kept(tmp_path)


def test_hazard_09_a_hard_link_is_broken_and_the_other_name_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "installed"
    other = tmp_path / "cache.py"
    other.hardlink_to(plant(root))
    before = other.stat()
    planted.apply(root)
    after = other.stat()
    assert other.read_text() == MODEL
    assert (before.st_mode, before.st_mtime_ns, before.st_ino) == (
        after.st_mode,
        after.st_mtime_ns,
        after.st_ino,
    )


def test_hazard_09_a_namespace_package_is_a_package(tmp_path: Path) -> None:
    plant(tmp_path)
    (tmp_path / "vllm/__init__.py").rename(tmp_path / "vllm/version.py")
    round_trip(tmp_path)


def test_hazard_09_zip_and_compiled_only_have_no_source_to_patch(tmp_path: Path) -> None:
    archive = tmp_path / "vllm.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(FILE, MODEL)
    with pytest.raises(UsageError, match="no source"):
        planted.apply(archive)
    compiled = tmp_path / "compiled"
    plant(compiled)
    for source in compiled.rglob("*.py"):
        source.rename(source.with_suffix(".pyc"))
    with pytest.raises(UsageError):
        planted.apply(compiled)


# 12: upgraded or reinstalled


def reinstall(root: Path, data: str, version: str) -> None:
    """What pip does: the old metadata goes, the new files come with their RECORD."""
    for old in root.glob("vllm-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    plant(root, data, version)
    record(root, data.encode(), version)


def record(root: Path, data: bytes, version: str) -> None:
    import base64
    import hashlib

    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    text = f"vllm/__init__.py,,\r\n{FILE},sha256={digest},{len(data)}\r\n".replace("\r\n", "\n")
    (root / f"vllm-{version}.dist-info/RECORD").write_text(text)


@pytest.mark.parametrize(
    ("text", "version", "word"),
    [
        (MODEL, "0.12.0", "reinstalled"),
        ("# new release\n" + MODEL, "0.13.0", "upgraded to 0.13.0"),
    ],
    ids=["reinstalled", "upgraded"],
)
def test_hazard_12_nothing_old_is_restored_over_a_new_file(
    tmp_path: Path, text: str, version: str, word: str
) -> None:
    plant(tmp_path)
    planted.apply(tmp_path)
    reinstall(tmp_path, text, version)
    (row,) = operations.status([tmp_path], Options(sites=("gate",))).trees[0].findings
    assert row.state is Row.REINSTALLED
    assert word in row.message
    result = planted.revert(tmp_path)
    assert not result.changed
    assert any(word in note and "nothing to revert" in note for note in result.trees[0].notes)
    assert (tmp_path / FILE).read_text() == text
    assert not (tmp_path / ".glm-pto").exists(), "a state about nothing is left over"


def test_hazard_12_apply_guards_the_new_file_and_revert_gives_the_new_one_back(tmp_path: Path) -> None:
    plant(tmp_path)
    planted.apply(tmp_path)
    new = "# new release\n" + MODEL
    reinstall(tmp_path, new, "0.13.0")
    assert planted.apply(tmp_path).changed
    known = state.load(tmp_path).record
    assert known is not None and known.files[FILE].version == "0.13.0"
    planted.revert(tmp_path)
    assert (tmp_path / FILE).read_text() == new


# 13: edited by the user


def test_hazard_13_a_users_edit_elsewhere_is_kept(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    file.write_text(file.read_text().replace("return router_logits", "return router_logits  # mine"))
    result = planted.revert(tmp_path)
    assert file.read_text() == MODEL.replace("return router_logits", "return router_logits  # mine")
    assert any("edited since" in note for note in result.trees[0].notes)


def test_hazard_13_a_users_edit_in_the_else_branch_is_kept(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    file.write_text(file.read_text().replace(GATE, GATE + "\n            trace(router_logits)"))
    planted.revert(tmp_path)
    assert file.read_text() == MODEL.replace(GATE, GATE + "\n        trace(router_logits)")


def test_hazard_13_an_edit_inside_our_lines_is_refused_and_shown(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    edited = file.read_text().replace("glm_pto_kernels.gate(self.gate", "glm_pto_kernels.gate(my.gate")
    file.write_text(edited)
    with pytest.raises(Refusal, match="edited inside our lines") as told:
        planted.revert(tmp_path)
    assert "my.gate" in str(told.value)
    assert file.read_text() == edited
    (tree,) = operations.status([tmp_path]).trees
    assert not [note for note in tree.notes if "revert takes out our lines" in note]
    planted.revert(tmp_path, force=True)
    assert file.read_text() == MODEL


# 14: again, nothing, lost


def test_hazard_14_revert_without_apply_has_nothing_to_do(tmp_path: Path) -> None:
    plant(tmp_path)
    before = planted.names(tmp_path)
    assert not planted.revert(tmp_path).changed
    assert planted.names(tmp_path) == before


DAMAGES = {
    "deleted": "",
    "empty": "not readable as JSON",
    "garbage": "not readable as JSON",
    "foreign": "not a glm-pto state",
    "newer": "a newer glm-pto wrote it (format 2; this one reads format 1)",
    "older": "an older glm-pto wrote it (format 0",
    "edited": "its checksum does not match its content",
    "deep": "not readable as JSON",
    "folder": "it is not a regular file",
    "link": "it is not a regular file",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_hazard_14_without_a_usable_state_the_guards_are_enough(tmp_path: Path, damage: str) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    kept = tmp_path / ".glm-pto/state.json"
    text = kept.read_text()
    kept.unlink()
    if damage == "folder":
        kept.mkdir()
    elif damage == "link":
        (tmp_path / "elsewhere.json").write_text(text)
        kept.symlink_to(tmp_path / "elsewhere.json")
    elif damage != "deleted":
        kept.write_text(
            {
                "empty": "",
                "garbage": "\0\1 no JSON",
                "foreign": text.replace('"kind": "state"', '"kind": "journal"'),
                "newer": text.replace('"format": 1', '"format": 2'),
                "older": text.replace('"format": 1', '"format": 0'),
                "edited": text.replace('"mode": 420', '"mode": 511'),
                "deep": "[" * 100_000,
            }[damage]
        )
    (tree,) = operations.status([tmp_path], Options(sites=("gate",))).trees
    assert [row.state for row in tree.findings] == [Row.APPLIED]
    told = [note for note in tree.notes if note.endswith("judging by the text alone")]
    assert len(told) == (damage != "deleted") and all(DAMAGES[damage] in note for note in told)
    if damage in ("folder", "link"):
        with pytest.raises(Refusal, match=r"state\.json: is not a regular file; remove it"):
            planted.revert(tmp_path)
        kept.rmdir() if damage == "folder" else kept.unlink()
    assert planted.revert(tmp_path).changed
    assert file.read_text() == MODEL
    assert not (tmp_path / ".glm-pto").exists()


def test_hazard_14_a_pasted_snippet_is_recognised_and_named(tmp_path: Path) -> None:
    pasted = "import glm_pto_kernels as K\n" + MODEL.replace(
        GATE, "router_logits = K.gate(self.gate, hidden_states)"
    )
    plant(tmp_path, pasted)
    refused(tmp_path, "glm4_moe.py", "pasted")


# 15: locale, names, pipes


@pytest.mark.parametrize(
    ("locale", "name"), [("C", "plain"), ("C", "naïve 算子"), ("POSIX", "sp ace"), ("C.UTF-8", "算子")]
)
def test_hazard_15_any_locale_and_any_path(tmp_path: Path, locale: str, name: str) -> None:
    root = tmp_path / name
    plant(root)
    done = cli("apply", root, LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"Traceback" not in done.stderr
    assert MARK in (root / FILE).read_bytes()


def test_hazard_15_a_name_that_is_no_text(tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9\xff")
    plant(root)
    for command in ("apply", "status", "diff", "revert"):
        done = cli(command, root, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert (root / FILE).read_text() == MODEL


@pytest.mark.parametrize("command", ["apply", "status", "diff", "revert"])
def test_hazard_15_closed_stdout_is_no_crash(tmp_path: Path, command: str) -> None:
    plant(tmp_path)
    line = f'"{sys.executable}" -m glm_pto.cli {command} "{tmp_path}" | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, check=False)
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr, done.stderr.decode()
    shut = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m glm_pto.cli {command} "{tmp_path}" >&-'],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"Traceback" not in shut.stderr, shut.stderr.decode()
    assert shut.returncode == 0


# 16: what a parser may meet


NEWEST = {
    "match": "def f(x):\n    match x:\n        case {'a': [1, *_]}:\n            return 1\n",
    "except_star": "try:\n    pass\nexcept* ValueError:\n    pass\n",
    "pep_695": "type Pair[T] = tuple[T, T]\n\n\ndef f[T](x: T) -> T:\n    return x\n",
    "pep_696": "class Box[T = int]:\n    pass\n",
    "pep_701": 'x = f"{\'a\' + "b"}"\n',
    "t_string": "x = t'{1}'\n",
}


@pytest.mark.parametrize("extra", NEWEST.values(), ids=NEWEST)
def test_hazard_16_newest_syntax_is_parsed_or_refused_by_name(tmp_path: Path, extra: str) -> None:
    kept_or_refused(tmp_path, (MODEL + "\n\n" + extra).encode())


@pytest.mark.parametrize(
    "extra",
    [
        "x = " + " + ".join(["1"] * 20_000) + "\n",
        "x = " + "(" * 400 + ")" * 400 + "\n",
        "x = " + "-" * 50_000 + "1\n",
        "".join("    " * depth + "if 1:\n" for depth in range(150)) + "    " * 150 + "pass\n",
    ],
    ids=["terms", "parentheses", "signs", "blocks"],
)
def test_hazard_16_deep_expressions_never_crash_the_process(tmp_path: Path, extra: str) -> None:
    plant(tmp_path, MODEL + "\n\n" + extra)
    done = cli("apply", "--site", "gate", tmp_path)
    assert done.returncode in (0, 3), done.stderr.decode()
    assert b"Traceback" not in done.stderr
    if done.returncode == 3:
        assert b"glm4_moe.py" in done.stdout + done.stderr
        assert (tmp_path / FILE).read_text() == MODEL + "\n\n" + extra


def test_hazard_16_a_guarded_file_that_became_huge_is_not_taken_for_reverted(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    with file.open("ab") as grown:
        grown.write(b"# padding\n" * 200_000)
    with pytest.raises(Refusal, match=r"glm4_moe\.py: .* larger than"):
        planted.revert(tmp_path)
    with pytest.raises(Refusal, match=r"glm4_moe\.py: .* larger than"):
        operations.diff([tmp_path], which="applied")
    assert MARK in file.read_bytes()


@pytest.mark.parametrize("where", ["in_the_function", "above_the_class"])
@pytest.mark.parametrize(
    "deep",
    ["x = 1" + " + 1" * 1500, "if a: pass" + "\nelif b: pass" * 600, "x = a" + ".b" * 1500],
    ids=["terms", "arms", "attributes"],
)
def test_hazard_16_what_nests_too_deeply_to_be_looked_through(tmp_path: Path, deep: str, where: str) -> None:
    """It can be parsed, but a walk through it goes too deep: kept, or refused by name."""
    indented = textwrap.indent(deep, "        " if where == "in_the_function" else "").lstrip()
    before = GATE if where == "in_the_function" else "class Glm4MoE"
    space = "\n        " if where == "in_the_function" else "\n"
    kept_or_refused(tmp_path, MODEL.replace(before, indented + space + before, 1).encode())


def test_hazard_16_a_guarded_file_that_came_to_nest_too_deeply(tmp_path: Path) -> None:
    file = plant(tmp_path)
    planted.apply(tmp_path)
    file.write_text(
        file.read_text().replace("        return", "        x = 1" + " + 1" * 1500 + "\n        return")
    )
    for command, codes in {
        "status": (0,),
        "diff": (0, 3),
        "verify": (0, 3),
        "apply": (0, 3),
        "revert": (0, 3),
    }.items():
        done = cli(command, tmp_path)
        assert done.returncode in codes, done.stderr.decode()
        assert b"Traceback" not in done.stderr, command
        assert done.returncode == 0 or b"glm4_moe.py" in done.stdout + done.stderr


def test_hazard_16_a_function_without_end_is_compared_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"        x{number} = {number}\n" for number in range(5_000))
    plant(tmp_path, HEAD + "class Glm4MoE(nn.Module):\n    def forward(self, hidden_states):\n" + lines)
    compared = []
    matcher = missing.SequenceMatcher
    monkeypatch.setattr(missing, "SequenceMatcher", lambda *a, **k: compared.append(1) or matcher(*a, **k))
    refused(tmp_path, "glm4_moe.py", "are not")
    assert 0 < len(compared) < 2_500


def test_hazard_16_an_f_string_that_takes_hours_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, MODEL + "x = f'" + "{a}" * 100_000 + "'\n")
    refused(tmp_path, "glm4_moe.py", "braces")


@pytest.mark.parametrize("data", [b"x = '\0'\n" + MODEL.encode(), b"\0" * 4096], ids=["one", "only"])
def test_hazard_16_nul_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    plant(tmp_path, data)
    refused(tmp_path, "glm4_moe.py", "NUL")


def test_hazard_16_a_huge_file_is_refused_without_being_parsed(tmp_path: Path) -> None:
    plant(tmp_path, MODEL.encode() + b"# padding\n" * 1_000_000)
    refused(tmp_path, "glm4_moe.py", "larger than")


# 17: what a calling script sees


@pytest.mark.parametrize(
    "streams", [">/dev/full", ">/dev/full 2>&1", ">&- 2>&-"], ids=["out", "both", "closed"]
)
@pytest.mark.parametrize("code", [0, 2], ids=["done", "wrong_request"])
def test_hazard_17_the_exit_code_holds_where_nothing_can_be_written(
    tmp_path: Path, streams: str, code: int
) -> None:
    plant(tmp_path)
    skipped = "--skip gate" if code else ""
    line = f'"{sys.executable}" -m glm_pto.cli apply --site gate {skipped} "{tmp_path}" {streams}'
    assert subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, check=False).returncode == code
    assert (MARK in (tmp_path / FILE).read_bytes()) == (code == 0)


def test_hazard_17_stable_exit_codes_and_a_last_machine_readable_line(tmp_path: Path) -> None:
    plant(tmp_path)
    seen = []
    for arguments, code in [
        (("status", tmp_path), 0),
        (("status", "--check", tmp_path), 1),
        (("diff", "--exit-code", tmp_path), 1),
        (("apply", tmp_path), 0),
        (("apply", tmp_path), 0),
        (("status", "--check", tmp_path), 0),
        (("revert", tmp_path), 0),
        (("revert", tmp_path), 0),
        (("apply", tmp_path / "nowhere"), 2),
    ]:
        done = cli(*arguments)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        if arguments[0] in ("apply", "revert", "status"):
            last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1].decode()
            assert last.startswith(f"glm-pto {arguments[0]}: exit={code}"), last
            seen.append(last)
    (tmp_path / FILE).chmod(0o444)
    done = cli("apply", tmp_path)
    assert done.returncode == 3
