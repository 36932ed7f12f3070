"""The static proof holds on a right edit, and each of its checks fails on the fault that it is for."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_pto import Options, UsageError, apply
from glm_pto.cli import demo
from glm_pto.codemods import signatures, trees, verify

MODEL = "vllm/model_executor/models/glm4_moe.py"
SELECTOR = "vllm_ascend/ops/fused_moe/experts_selector.py"


@pytest.fixture
def applied(tmp_path: Path) -> Path:
    demo.write(tmp_path)
    apply([tmp_path], Options(install_kernels=True))
    return tmp_path


def failed(root: Path) -> set[tuple[str, str]]:
    """(site, check) of everything that is refuted."""
    return {(c.site, c.name) for c in verify.verify(trees.find([root])) if c.ok is False}


def undecided(root: Path) -> set[tuple[str, str]]:
    return {(c.site, c.name) for c in verify.verify(trees.find([root])) if c.ok is None}


def change(file: Path, *pairs: tuple[str, str]) -> None:
    text = file.read_bytes().decode()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_bytes(text.encode())


def test_every_check_of_every_guard_holds_after_apply(applied: Path) -> None:
    checks = verify.verify(trees.find([applied]))
    assert len(checks) == 5 * len(verify.CHECKS)
    assert {c.name for c in checks} == set(verify.CHECKS)
    assert [c for c in checks if not c.ok] == []


def test_a_tree_without_guards_is_a_wrong_request(tmp_path: Path) -> None:
    demo.write(tmp_path)
    with pytest.raises(UsageError, match="no guard to verify"):
        verify.verify(trees.find([tmp_path]))


def test_a_layer_that_cannot_be_parsed_is_said_to_be_that_and_not_to_lack_a_function(applied: Path) -> None:
    (applied / "glm_pto_kernels/ops/gate.py").write_text("def gate(\n")
    (told,) = {c.detail for c in verify.verify(trees.find([applied])) if c.site == "gate" and c.ok is False}
    assert told.startswith(f"{applied / 'glm_pto_kernels/ops/gate.py'}: cannot be read (SyntaxError: ")


def test_refutes_a_guard_that_uses_an_unbound_name(applied: Path) -> None:
    change(
        applied / MODEL,
        ("def forward(self, hidden_states: torch.Tensor)", "def forward(self, rows: torch.Tensor)"),
        ("tokens, width = hidden_states.shape", "tokens, width = rows.shape"),
        ("        hidden_states = hidden_states.view(-1, width)\n", ""),
    )
    assert failed(applied) == {("gate", "names")}


def test_refutes_a_branch_that_leaves_a_later_name_unset(applied: Path) -> None:
    change(applied / SELECTOR, ("    return topk_weights, topk_ids", "    return topk_weights, topk_ids, _"))
    assert failed(applied) == {("select_experts", "names")}


@pytest.mark.parametrize(
    "pair",
    [
        (
            "def gate(layer: Any, hidden_states: torch.Tensor)",
            "def gate(layer: Any, hidden_states: int, more: int)",
        ),
        ("def gate(layer: Any, hidden_states: torch.Tensor)", "def gate(layer: Any)"),
        ("def gate_supported(", "def gate_is_supported("),
    ],
    ids=["asks_for_more", "takes_less", "is_not_there"],
)
def test_refutes_a_layer_that_does_not_take_the_call(applied: Path, pair: tuple[str, str]) -> None:
    change(applied / "glm_pto_kernels" / "ops" / "gate.py", pair)
    assert failed(applied) == {("gate", "call")}


def test_refutes_a_guard_whose_own_lines_were_edited(applied: Path) -> None:
    change(applied / MODEL, ("USE_PTO_GATE and", "USE_PTO_GATE or"))
    assert ("gate", "program") in failed(applied)


def test_refutes_a_file_that_does_not_compile(applied: Path) -> None:
    change(applied / SELECTOR, ("    norm_type = 0", "    return = 0"))
    assert failed(applied) == {("-", "program")}


def test_does_not_judge_edits_elsewhere(applied: Path) -> None:
    change(applied / SELECTOR, ("norm_type = 0 if", "norm_type = 2 if"))
    assert failed(applied) == set()
    assert undecided(applied) == {("select_experts", "bytes")}


def test_an_engine_that_loses_a_statement_is_seen(applied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof takes guards out of the syntax tree itself, so it does not repeat the engine's mistakes."""
    original = verify.edit.strip

    def careless(file, *rest, **options):
        stripped = original(file, *rest, **options)
        return verify.source.read(stripped.name, stripped.data.replace(b"renorm=0,", b"renorm=1,"))

    monkeypatch.setattr(verify.edit, "strip", careless)
    assert failed(applied) == {("select_experts", "program")}


Case = tuple[str, str, str | None]


@pytest.mark.parametrize(
    ("parameters", "call", "reason"),
    [
        ("a, b", "f(1, 2)", None),
        ("a, b=1", "f(1)", None),
        ("a, *, b=1", "f(1, b=2)", None),
        ("a, *rest, **more", "f(1, 2, 3, z=4)", None),
        ("a, b", "f(*x)", None),
        ("a, b", "f(1)", "asks for b"),
        ("a", "f(1, 2)", "takes 1 positional"),
        ("a, b", "f(1, a=2, b=3)", "gets a twice"),
        ("a", "f(1, c=2)", "has no parameter c"),
        ("a, /, b", "f(a=1, b=2)", "has no parameter a"),
        ("*, a", "f()", "asks for a"),
    ],
)
def test_misfit_says_what_python_would(parameters: str, call: str, reason: str | None) -> None:
    names: dict[str, Callable[..., None]] = {}
    exec(f"def f({parameters}): pass", names)
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    wanted = ast.parse(f"def f({parameters}): pass").body[0]
    assert isinstance(wanted, ast.FunctionDef)
    found = signatures.misfit(node, wanted.args)
    assert (found is None) if reason is None else (found or "").startswith(reason)
    if "*x" not in call:
        try:
            eval(call, names)
            refused = False
        except TypeError:
            refused = True
        assert refused == (reason is not None)
