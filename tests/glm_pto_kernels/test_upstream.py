"""The ``upstream`` backend: signatures, imports, conversions, refusals, a real checkout if given."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends, checkout, hardware, upstream
from tests.glm_pto_kernels import stand_ins, upstream_tree

REAL = os.environ.get("GLM_PTO_UPSTREAM_CHECKOUT")


@pytest.fixture
def recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]
) -> Callable[..., None]:
    """Write and record a checkout, and choose it as on a machine where PyPTO runs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(hardware, "npu_refusal", lambda: None)

    def make(**shape: Any) -> None:
        checkout.record(checkout.inspect(upstream_tree.write(tmp_path / "pypto", **shape)))
        environment(GLM_PTO_BACKEND="upstream")

    return make


def call_of(stem: str) -> dict[str, Any]:
    """What the checkout's kernel was called with last."""
    where, values = sys.modules[f"_glm_pto_upstream_{stem}"].CALLS[-1]
    assert where == "the checkout"
    return values


@pytest.mark.parametrize("order", upstream_tree.GATES)
def test_fault_6_gate_in_both_orders(recorded: Callable[..., None], order: str) -> None:
    recorded(gate=order)
    gate, hidden = torch.nn.Linear(5120, 160, bias=False), torch.randn(3, 5120).bfloat16()
    assert K.gate_refusal(gate, hidden) is None
    K.gate(gate, hidden)
    values = call_of("glm_gate")
    assert torch.equal(values["hidden_states"], hidden.float()) and values["gate_weight"] is not None
    assert values["gate_weight"].shape == (160, 5120) and values["router_logits_out"].shape == (3, 160)


@pytest.mark.parametrize("arity", upstream_tree.ATTENTIONS)
@pytest.mark.parametrize("package", [False, True], ids=["namespace_utils", "package_utils"])
def test_fault_7_attention_with_six_and_eight_arguments(
    recorded: Callable[..., None], arity: str, package: bool
) -> None:
    recorded(attention=arity, package=package)
    impl, step = stand_ins.AscendAttentionBackendImpl(stand_ins.glm_4_5()), stand_ins.metadata([3, 200])
    query = torch.randn(2, 12, 128).bfloat16()
    assert K.paged_attention_refusal(impl, query, step) is None
    arguments = (
        query,
        impl.key_cache,
        impl.value_cache,
        step.block_tables,
        step.seq_lens,
        torch.empty_like(query),
    )
    K.paged_attention(*arguments, scale=impl.scale)
    values = call_of("glm_attention")
    assert values["actual_seqs"].tolist() == [3, 200] and values["actual_seqs"].dtype == torch.int32
    if arity == "eight":
        assert values["softmax_scale"] == impl.scale and values["tile_config"].g_tile == 12
        K.paged_attention(*arguments, scale=0.5)
        assert call_of("glm_attention")["softmax_scale"] == 0.5
    else:
        with pytest.raises(backends.BackendError, match="softmax scale"):
            K.paged_attention(*arguments, scale=0.5)


def test_fault_13_bias_is_bf16_for_upstream(recorded: Callable[..., None]) -> None:
    recorded()
    K.select_experts(torch.randn(2, 160), 8, True, 1, 1, torch.randn(160))
    values = call_of("glm_select_experts")
    assert (
        values["e_score_correction_bias"].dtype == torch.bfloat16 and values["topk_ids"].dtype == torch.int32
    )


def test_fault_4_residual_and_biases_are_never_none_for_upstream(recorded: Callable[..., None]) -> None:
    recorded()
    sizes = stand_ins.glm_4_5()
    layer = stand_ins.DecoderLayer(sizes, norm_bias=False)
    hidden, positions = torch.randn(2, 5120).bfloat16(), torch.tensor([0, 5])
    assert K.attention_pre_refusal(layer, layer.self_attn, positions, hidden) is None
    K.attention_pre(hidden, None, layer, layer.self_attn, positions)
    values = call_of("glm_attention_pre_quant")
    assert not any(value is None for value in values.values())
    assert not values["residual"].any() and values["cos"].shape == (2, 1, 32)
    for norm in (layer.input_layernorm, layer.self_attn.q_norm, layer.self_attn.k_norm):
        norm.variance_epsilon = 1e-6
    with pytest.raises(backends.BackendError, match="eps"):
        K.attention_pre(hidden, None, layer, layer.self_attn, positions)


def test_shared_expert(recorded: Callable[..., None]) -> None:
    recorded()
    layer, hidden = stand_ins.SharedExpert(stand_ins.glm_4_5()), torch.randn(2, 5120).bfloat16()
    assert K.ffn_share_expert_quant_refusal(layer, hidden) is None
    K.ffn_share_expert_quant(layer, hidden)
    assert call_of("glm_ffn_shared_expert_quant")["w13_scale"].dtype == torch.bfloat16


def test_other_sizes_stay_native(recorded: Callable[..., None]) -> None:
    recorded()
    layer, hidden = stand_ins.SharedExpert(stand_ins.glm_4_5(4)), torch.randn(2, 5120).bfloat16()
    assert "8 ranks" in (K.ffn_share_expert_quant_refusal(layer, hidden) or "")
    assert not K.gate_supported(torch.nn.Linear(4096, 128, bias=False), torch.randn(2, 4096))


def test_other_utils_of_this_process_are_left_alone(
    recorded: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ModuleType("utils")
    monkeypatch.setitem(sys.modules, "utils", others)
    path = list(sys.path)
    recorded()
    K.ffn_share_expert_quant(stand_ins.SharedExpert(stand_ins.glm_4_5()), torch.randn(2, 5120).bfloat16())
    assert sys.modules["utils"] is others and sys.path == path
    assert "utils.get_format" not in sys.modules and "glm_ffn_common_interface" not in sys.modules


def test_an_installed_utils_does_not_hide_the_checkouts(
    recorded: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A checkout's ``utils`` without ``__init__.py`` would lose to any package of the name."""
    (tmp_path / "site/utils").mkdir(parents=True)
    (tmp_path / "site/utils/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    recorded()
    K.gate(torch.nn.Linear(5120, 160, bias=False), torch.randn(3, 5120).bfloat16())
    call_of("glm_gate")


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (SimpleNamespace(), "no fields"),
        (SimpleNamespace(IfaTileShapeConfig=dataclasses.make_dataclass("T", ["g_tile", "s3"])), "g_tile, s3"),
    ],
    ids=["none", "others"],
)
def test_tiles_of_another_shape_are_refused(module: Any, found: str) -> None:
    with pytest.raises(backends.BackendError, match=f"IfaTileShapeConfig has {found} where g_tile, s2_tile"):
        upstream._tiles(module, 12)


def test_nothing_recorded_is_said(
    monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(hardware, "npu_refusal", lambda: None)
    environment(GLM_PTO_BACKEND="upstream")
    with pytest.raises(backends.BackendError, match="glm-pto kernels import"):
        K.gate(torch.nn.Linear(8, 4, bias=False), torch.zeros(2, 8))


def test_changed_and_broken_checkouts_are_said(recorded: Callable[..., None], tmp_path: Path) -> None:
    recorded()
    path = tmp_path / "pypto/models/glm_v4_5/glm_gate.py"
    path.write_text("import no_such_package\n" + path.read_text())
    gate = torch.nn.Linear(5120, 160, bias=False)
    with pytest.raises(backends.BackendError, match="changed since"):
        K.gate(gate, torch.zeros(2, 5120))
    checkout.record(checkout.inspect(tmp_path / "pypto"))
    with pytest.raises(backends.BackendError, match=r"broken.*no_such_package"):
        K.gate(gate, torch.zeros(2, 5120))


@pytest.mark.parametrize("name", ["utils/get_format.py", "utils/new.py", "glm_ffn_common_interface.py"])
def test_a_changed_file_that_a_kernel_imports_is_said(
    recorded: Callable[..., None], tmp_path: Path, name: str
) -> None:
    recorded()
    assert checkout.changed(checkout.recorded()) == []  # type: ignore[arg-type]
    with (tmp_path / "pypto/models/glm_v4_5" / name).open("a") as file:
        file.write("\nONE = 1\n")
    (line,) = checkout.changed(checkout.recorded())  # type: ignore[arg-type]
    assert name in line and "changed since" in line
    with pytest.raises(backends.BackendError, match=r"kernels import DIR again"):
        K.gate(torch.nn.Linear(5120, 160, bias=False), torch.zeros(2, 5120))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def gate(hidden_states, gate_weight):\n    pass\n", "missing: router_logits_out"),
        (
            "def gate(hidden_states, gate_weight, router_logits_out, extra):\n    pass\n",
            "not expected: extra",
        ),
        ("def gate(*args):\n    pass\n", "missing"),
        ("def gate(hidden_states, /, gate_weight, router_logits_out):\n    pass\n", "not known"),
        ("def other(): pass\n", "expected a function gate"),
        ("def gate(:\n", "not Python"),
    ],
    ids=["missing", "unknown", "varargs", "positional_only", "no_function", "syntax"],
)
def test_unknown_signatures_are_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    folder = upstream_tree.write(tmp_path)
    (folder / "glm_gate.py").write_text(text)
    with pytest.raises(checkout.CheckoutError, match=why) as caught:
        checkout.inspect(folder)
    assert "glm_gate.py" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x = " + b"-" * 200_000 + b"1\n", "not Python"),
        (b"x = " + b"(" * 5000, "not Python"),
        (b"\0" * 10, "not Python"),
        (b"#" * (checkout.LARGEST + 1), "larger than"),
    ],
    ids=["deep", "parentheses", "zeros", "large"],
)
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, data: bytes, why: str) -> None:
    folder = upstream_tree.write(tmp_path)
    (folder / "glm_gate.py").write_bytes(data)
    with pytest.raises(checkout.CheckoutError, match=rf"glm_gate\.py: {why}"):
        checkout.inspect(folder)


COMMIT, OTHER = "0123abcd" * 5, "fedc9876" * 5


def git_folder(folder: Path, head: bytes | str = "ref: refs/heads/main\n", packed: str = "") -> Path:
    """The files of a git folder that say what its commit is."""
    folder.mkdir(parents=True)
    (folder / "HEAD").write_bytes(head if isinstance(head, bytes) else head.encode())
    if packed:
        (folder / "packed-refs").write_text(packed)
    return folder


@pytest.mark.parametrize(
    ("head", "revision"),
    [
        (b"\xff\xfe", None),
        (b"ref: ../secret\n", None),
        (b"ref: refs/../../secret\n", None),
        (b"ref: refs/heads/linked\n", None),
        (b"ref: refs/heads/unborn\n", None),
        (b"ref: refs/heads/" + b"x" * 3000, None),
        (b"ref: refs/heads/\0", None),
        (b"ref: refs/heads/main\n", COMMIT),
        (COMMIT.encode(), COMMIT),
        (b"ref: ORIG_HEAD\n", None),
    ],
)
def test_a_revision_is_a_commit_from_inside_the_checkout(
    tmp_path: Path, head: bytes, revision: str | None
) -> None:
    upstream_tree.write(tmp_path)
    (tmp_path / "secret").write_text("password")
    git_folder(tmp_path / ".git", head)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    (tmp_path / ".git" / "ORIG_HEAD").write_text(f"{OTHER}\n")
    (tmp_path / ".git" / "refs" / "heads" / "linked").symlink_to(tmp_path / "secret")
    assert checkout.inspect(tmp_path).revision == revision


def test_a_packed_branch_gives_its_commit(tmp_path: Path) -> None:
    upstream_tree.write(tmp_path)
    others = f"{OTHER} refs/heads/also/refs/heads/main\n{OTHER} refs/heads/main2\n"
    packed = f"# pack-refs with: peeled\n{others}{COMMIT} refs/heads/main\n^{OTHER}\n"
    git = git_folder(tmp_path / ".git", packed=packed)
    assert checkout.inspect(tmp_path).revision == COMMIT
    (git / "packed-refs").write_text(f"{COMMIT} refs/heads/main")  # cut off, maybe inside the name
    assert checkout.inspect(tmp_path).revision is None


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "loose"])
def test_a_linked_work_tree_has_its_own_head_and_the_branches_of_the_main_one(
    tmp_path: Path, packed: bool
) -> None:
    main = git_folder(tmp_path / ".git", OTHER, f"{COMMIT} refs/heads/work\n" if packed else "")
    if not packed:
        (main / "refs" / "heads").mkdir(parents=True)
        (main / "refs" / "heads" / "work").write_text(COMMIT)
    linked = git_folder(main / "worktrees" / "linked", "ref: refs/heads/work\n")
    (linked / "commondir").write_text("../..\n")
    folder = upstream_tree.write(tmp_path / "linked")
    (tmp_path / "linked" / ".git").write_text(f"gitdir: {linked}\n")
    assert checkout.inspect(folder).revision == COMMIT


def test_a_submodule_has_its_own_commit(tmp_path: Path) -> None:
    outer = git_folder(tmp_path / ".git", OTHER)
    git_folder(outer / "modules" / "pypto", COMMIT)
    folder = upstream_tree.write(tmp_path / "pypto")
    (tmp_path / "pypto" / ".git").write_text("gitdir: ../.git/modules/pypto\n")
    assert checkout.inspect(folder).revision == COMMIT


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"gitdir:",
        b"gitdir: \n",
        b"gitdir: ../nowhere",
        b"gitdir: /dev",
        b"gitdir: \0",
        b"gitdir: \xff",
        b"gitdir: " + b"x" * 10_000,
        b"gitdir: ../pipes",
        b"gitdir: ../elsewhere",
        b"commit " + COMMIT.encode(),
    ],
    ids=["empty", "bare", "here", "nowhere", "device", "zero", "bytes", "long", "pipes", "away", "other"],
)
def test_a_git_file_that_leads_to_no_commit_is_none_and_not_the_repository_further_up(
    tmp_path: Path, text: bytes
) -> None:
    git_folder(tmp_path / ".git", OTHER)
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "HEAD")
    elsewhere = git_folder(tmp_path / "elsewhere")
    (elsewhere / "commondir").write_text("/")
    folder = upstream_tree.write(tmp_path / "pypto")
    (tmp_path / "pypto" / ".git").write_bytes(text)
    assert checkout.inspect(folder).revision is None


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(checkout.CheckoutError, match="without ~"):
        checkout.inspect("~nobody-has-this-name/pypto")
    monkeypatch.setenv("XDG_CONFIG_HOME", "~nobody-has-this-name")
    with pytest.raises(checkout.CheckoutError, match="without ~"):
        checkout.recorded()


def test_a_new_parameter_with_a_default_is_left_to_it(tmp_path: Path) -> None:
    folder = upstream_tree.write(tmp_path)
    (folder / "glm_gate.py").write_text(
        "def gate(hidden_states, gate_weight, router_logits_out, tiles=None): ...\n"
    )
    assert checkout.inspect(folder).kernels["gate"].parameters == tuple(
        upstream_tree.GATES["hidden_first"].split(", ")
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "kernels": 3}',
        '{"format": 1, "folder": 5, "revision": null, "kernels": {}}',
        "[" * 100_000,
    ],
    ids=["empty", "list", "nothing", "format", "kernels", "folder", "deep"],
)
def test_a_spoilt_record_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    checkout.record_path().parent.mkdir()
    checkout.record_path().write_text(text)
    with pytest.raises(checkout.CheckoutError, match=r"kernels\.json"):
        checkout.recorded()


@pytest.mark.skipif(not REAL, reason="GLM_PTO_UPSTREAM_CHECKOUT names no checkout")
@pytest.mark.pypto
def test_a_real_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]
) -> None:
    """Its modules import with pypto, and every entry hands our arguments to its kernel in its order.

    torch_npu and the kernels are stand-ins: what is tested is the call, not the chip.
    """
    pytest.importorskip("pypto")
    npu = ModuleType("torch_npu")
    npu.get_npu_format = lambda tensor: 29  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", npu)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(hardware, "npu_refusal", lambda: None)
    checkout.record(checkout.inspect(REAL or ""))
    environment(GLM_PTO_BACKEND="upstream")
    launched: list[tuple[Any, ...]] = []
    replace_kernels(monkeypatch, launched)
    sizes = stand_ins.glm_4_5()
    layer, expert = stand_ins.DecoderLayer(sizes), stand_ins.SharedExpert(sizes)
    impl, step = stand_ins.AscendAttentionBackendImpl(sizes), stand_ins.metadata([3, 200])
    hidden, query = torch.randn(2, 5120).bfloat16(), torch.randn(2, 12, 128).bfloat16()
    gate = torch.nn.Linear(5120, 160, bias=False)
    logits = K.gate(gate, hidden)
    assert launched[-1][0].dtype == torch.float32 and launched[-1][1] is gate.weight
    K.select_experts(logits, 8, True, 1, 1, torch.randn(160))
    assert launched[-1][1].dtype == torch.bfloat16
    caches = impl.key_cache, impl.value_cache
    K.paged_attention(query, *caches, step.block_tables, step.seq_lens, torch.empty_like(query), impl.scale)
    assert launched[-1][4].tolist() == [3, 200]
    K.attention_pre(hidden, None, layer, layer.self_attn, torch.tensor([0, 5]))
    assert len([a for a in launched[-1] if isinstance(a, torch.Tensor)]) == 19
    K.ffn_share_expert_quant(expert, hidden)
    assert launched[-1][1] is expert.gate_up_proj.weight
    assert len(launched) == 5


def replace_kernels(monkeypatch: pytest.MonkeyPatch, launched: list[tuple[Any, ...]]) -> None:
    """Jitted kernels record their arguments; int8 weights count as NZ, which no CPU tensor is."""
    import pypto

    def jit(*functions: Any, **_: Any) -> Any:
        def decorate(function: Any) -> Any:
            return lambda *arguments, **_: launched.append(arguments)

        return decorate(functions[0]) if functions else decorate

    monkeypatch.setattr(pypto.frontend, "jit", jit)
    # The checkout's own tests carry markers that this run does not know.
    monkeypatch.setattr(pytest, "mark", MagicMock())
    load = upstream._import

    def imported(folder: Path, file: str, operator: str) -> ModuleType:
        module = load(folder, file, operator)
        nz = {torch.int8: "NZ"}
        monkeypatch.setattr(module, "get_format", lambda tensor: nz.get(tensor.dtype, "ND"), raising=False)
        return module

    monkeypatch.setattr(upstream, "_import", imported)
