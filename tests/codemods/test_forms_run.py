"""Every form is run: the patched function of a real release, with stand-ins for what it calls.

The operator layer is the real one on the torch backend. With the switch on, our operator is called once with
GLM-4.5's tensors and the native one is not; with it off, or for another model, the native one is, and the
result is the unpatched function's to the bit.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import glm_pto_kernels as K
from glm_pto import apply
from glm_pto.codemods import recipes
from glm_pto_kernels import backends
from glm_pto_kernels.ops import paged_attention, select_experts, shared_expert
from tests.glm_pto_kernels.stand_ins import (
    AscendAttentionBackendImpl,
    DecoderLayer,
    SharedExpert,
    glm_4_5,
    metadata,
)

from .conftest import LightTree

SIZES = glm_4_5()
Function = Callable[..., Any]


#: Releases of the quick tier; the others are run with all releases.
QUICK = {"0.11.0", "0.12.0", "0.12.0rc1", "0.13.0", "0.33.0", None}


def cases(*rows: tuple[Any, ...]) -> list[Any]:
    """Parameters that end in (vllm, vllm-ascend, ...), each in its tier."""
    found = []
    for row in rows:
        versions = [v for v in row if v is None or (isinstance(v, str) and v[:2] == "0.")]
        tier = pytest.mark.trees if QUICK.issuperset(versions) else pytest.mark.all_releases
        found.append(pytest.param(*row, id="-".join(map(str, row)), marks=tier))
    return found


@dataclass
class Native:
    """Counts the calls of the native computation."""

    calls: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)

    def of(self, function: Function) -> Function:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self.seen.append(kwargs)
            return function(*args, **kwargs)

        return counted


class Torch:
    """torch with an NPU that does nothing."""

    npu = MagicMock()
    ops = MagicMock()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class State(enum.Enum):
    DecodeOnly = 0
    PrefillNoCache = 1


def load(path: Path, scope: str, **stands: Any) -> Function:
    """The function ``scope`` of a file, without decorators and annotations, among stand-ins.

    Global names that are not given are mocks.
    """
    node: Any = ast.parse(path.read_bytes())
    for name in scope.split("."):
        (node,) = [n for n in definitions(node) if n.name == name]
    node.decorator_list, node.returns = [], None
    for argument in ast.walk(node):
        if isinstance(argument, ast.arg):
            argument.annotation = None
        elif isinstance(argument, (ast.FunctionDef, ast.AsyncFunctionDef)):
            argument.returns = None
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - set(dir(builtins))
    space: dict[str, Any] = {name: MagicMock(name=name) for name in names}
    space |= {"glm_pto_kernels": K, "torch": Torch(), **stands}
    module = ast.fix_missing_locations(ast.Module([node], []))
    exec(compile(module, str(path), "exec"), space)
    return space[node.name]  # type: ignore[no-any-return]


def definitions(owner: Any) -> list[Any]:
    found = []
    for name in ("body", "orelse"):
        for node in getattr(owner, name, ()):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.append(node)
            else:
                found += definitions(node)
    return found


@dataclass
class Patched:
    """A form in its release: the function before and after the edit, and the switch."""

    path: Path
    before: Path
    scope: str
    switch: str
    site: str


@pytest.fixture
def patched(light_tree: LightTree, tmp_path: Path) -> Callable[..., Patched]:
    def make(site: str, form: str, vllm: str | None, ascend: str | None) -> Patched:
        root = light_tree(vllm, ascend)
        recipe = next(r for r in recipes.load() if r.site == site)
        place, wanted = next((p, f) for p in recipe.places for f in p.forms if f.name == form)
        path = root / place.package / wanted.file
        before = tmp_path / "before.py"
        before.write_bytes(path.read_bytes())
        (report,) = apply([root]).trees
        assert form in [f.form for f in report.findings if f.site == site]
        return Patched(path, before, wanted.scope, recipe.switch, site)

    return make


@pytest.fixture(autouse=True)
def layer_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real layer, its reference for a backend."""
    for name in backends.OPERATORS:
        monkeypatch.setitem(backends.CHOICES, name, backends.decide(name, {"GLM_PTO_BACKEND": "torch"}))
    torch.manual_seed(0)


def three_ways(
    case: Patched, monkeypatch: pytest.MonkeyPatch, run: Callable[[Path, Native], Any]
) -> tuple[Any, Any]:
    """Results of the patched code with the switch on, and of the unpatched code; off equals unpatched."""
    native, before = Native(), K.calls()[case.site]
    ours = run(case.path, native)
    assert (K.calls()[case.site] - before, native.calls) == (1, 0), "the operator is not called once"
    theirs = run(case.before, native)
    assert native.calls == 1

    monkeypatch.setattr(K, case.switch, False)
    off = run(case.path, native)
    assert (K.calls()[case.site] - before, native.calls) == (1, 2), "the switch does not turn it off"
    monkeypatch.setattr(K, case.switch, True)
    for mine, wanted in zip(flat(off), flat(theirs), strict=True):
        assert torch.equal(mine, wanted)
    return ours, theirs


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in flat(v)] if isinstance(value, tuple) else []


def stays_native(case: Patched, run: Callable[[Path, Native], Any]) -> None:
    native, before = Native(), K.calls()[case.site]
    run(case.path, native)
    assert (K.calls()[case.site] - before, native.calls) == (0, 1)


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> bool:
    return bool((ours.float() - theirs.float()).abs().max() <= tolerance * theirs.float().abs().max())


# --- gate and attention_pre ------------------------------------------------------------------------------

MODEL_TEXTS = cases(*((v,) for v in ("0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.19.1", "0.20.2", "0.33.0")))


@pytest.mark.parametrize("vllm", MODEL_TEXTS)
def test_gate(patched: Callable[..., Patched], monkeypatch: pytest.MonkeyPatch, vllm: str) -> None:
    pair = vllm in ("0.10.0", "0.33.0")
    case = patched("gate", "layer-returns-pair" if pair else "cast-to-fp32", vllm, None)
    hidden = torch.randn(5, SIZES.hidden).bfloat16()
    weight = torch.nn.Linear(SIZES.hidden, SIZES.experts, bias=False)

    def run(path: Path, native: Native) -> Any:
        class Gate(torch.nn.Linear):
            def forward(self, rows: torch.Tensor) -> Any:
                logits = super().forward(rows.float())
                return (logits, None) if pair else logits

        gate = Gate(SIZES.hidden, SIZES.experts, bias=False)
        gate.weight = weight.weight
        gate.forward = native.of(gate.forward)  # type: ignore[method-assign]
        seen: list[torch.Tensor] = []

        def experts(hidden_states: torch.Tensor, router_logits: torch.Tensor) -> Any:
            seen.append(router_logits)
            both = vllm in ("0.11.0", "0.19.1")
            return (hidden_states, hidden_states) if both else hidden_states

        moe = MagicMock(gate=gate, n_shared_experts=1, routed_scaling_factor=2.5, tp_size=1)
        moe.shared_experts = MagicMock(side_effect=lambda rows: rows)
        moe.experts = MagicMock(side_effect=experts)
        with torch.no_grad():
            out = load(path, case.scope)(moe, hidden)
        return out, seen[0]

    ours, theirs = three_ways(case, monkeypatch, run)
    assert ours[1].shape == (5, SIZES.experts) and ours[1].dtype is torch.float32
    assert close(ours[1], theirs[1], 1e-5) and torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize("first_layer", [True, False])
@pytest.mark.parametrize("vllm", cases(("0.10.0",), ("0.12.0",), ("0.33.0",)))
def test_attention_pre(
    patched: Callable[..., Patched], monkeypatch: pytest.MonkeyPatch, vllm: str, first_layer: bool
) -> None:
    case = patched("attention_pre", "norm-then-attention", vllm, None)
    layer = DecoderLayer(SIZES)
    hidden, residual = torch.randn(2, 4, SIZES.hidden).bfloat16()
    positions = torch.arange(4)

    def run(path: Path, native: Native) -> Any:
        own = load(path, "Glm4MoeAttention.forward")
        attention, norm = layer.self_attn, layer.input_layernorm

        def normed(rows: torch.Tensor, add: torch.Tensor | None = None) -> Any:
            total = rows if add is None else rows + add
            out = rms(total, norm)
            return out if add is None else (out, total)

        layers: dict[Any, Function] = {
            norm: normed,
            attention.qkv_proj: lambda rows: (w8a8(rows, attention.qkv_proj), None),
            attention.q_norm: lambda rows: rms(rows, attention.q_norm),
            attention.k_norm: lambda rows: rms(rows, attention.k_norm),
            attention.rotary_emb: native.of(lambda where, q, k: turned(attention, where, q, k)),
            attention: lambda **given: own(attention, **given),
        }
        for module, function in layers.items():
            module.forward = function
        attention.attn = lambda q, k, v: torch.cat((q, k, v), dim=-1)
        attention.o_proj = lambda rows: (rows, None)
        layer.post_attention_layernorm = lambda rows, add: (rows, add)
        layer.mlp = lambda rows: rows
        with torch.no_grad():
            return load(path, case.scope)(layer, positions, hidden, None if first_layer else residual)

    ours, theirs = three_ways(case, monkeypatch, run)
    assert close(ours[0], theirs[0], 0.06) and close(ours[1], theirs[1], 2.0**-7)


def rms(rows: torch.Tensor, norm: Any) -> torch.Tensor:
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return (wide * norm.weight.float() + norm.bias.float()).bfloat16()


def w8a8(rows: torch.Tensor, qkv: Any) -> torch.Tensor:
    scaled = rows.float() * qkv.aclnn_input_scale_reciprocal.float() + qkv.aclnn_input_offset.float()
    product = scaled.round().clamp(-128, 127).double() @ qkv.weight.double() + qkv.quant_bias
    return (product.float() * qkv.deq_scale.float()).bfloat16()


def turned(attention: Any, where: torch.Tensor, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cos, sin = attention.rotary_emb.cos_sin_cache[where].unsqueeze(1).chunk(2, dim=-1)
    half, found = cos.shape[-1], []
    for one in rows:
        heads = one.unflatten(-1, (-1, attention.head_dim)).float()
        a, b, rest = heads.split((half, half, attention.head_dim - 2 * half), dim=-1)
        found.append(torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1).flatten(1).bfloat16())
    return tuple(found)


# --- paged_attention -------------------------------------------------------------------------------------

ATTENTION = cases(
    ("decode-method", "0.10.2", "0.10.2rc1"),
    ("decode-method-eager-arm", "0.11.0", "0.11.0rc0"),
    ("decode-method-eager-arm", "0.11.0", "0.11.0"),
    ("decode-method-window-arm", "0.12.0", "0.12.0rc1"),
    ("choice-of-operator", "0.13.0", "0.13.0"),
    ("choice-of-operator", "0.20.2", "0.20.2rc1"),
    ("choice-of-operator", "0.23.0", "0.23.0"),
    ("choice-of-operator", "0.30.0", "0.30.0rc2"),
)


@pytest.mark.parametrize(("form", "vllm", "ascend"), ATTENTION)
def test_paged_attention(
    patched: Callable[..., Patched], monkeypatch: pytest.MonkeyPatch, form: str, vllm: str, ascend: str
) -> None:
    case = patched("paged_attention", form, vllm, ascend)
    loaded, meta = AscendAttentionBackendImpl(SIZES), metadata([1, 129, 300])
    query = torch.randn(3, SIZES.heads, SIZES.head).bfloat16()

    def attend(output: torch.Tensor) -> torch.Tensor:
        keys, values = loaded.key_cache, loaded.value_cache
        return output.copy_(
            paged_attention.reference(query, keys, values, meta.block_tables, meta.seq_lens, loaded.scale)
        )

    def run(path: Path, native: Native, state: State = State.DecodeOnly, sinks: bool = False) -> Any:
        meta.attn_state, output = state, torch.zeros_like(query)
        impl = copy.copy(loaded)  # a layer's verdict is kept, so each run has a layer of its own
        impl.sinks = torch.ones(1) if sinks else None
        counted = native.of(lambda *_, **__: attend(output))
        impl.forward_fused_infer_attention = impl.forward_paged_attention = counted
        impl.vllm_config = impl._forward_decode_only_ascend91095 = None
        function = load(
            path,
            case.scope,
            AscendAttentionState=State,
            torch_npu=SimpleNamespace(_npu_paged_attention=counted),
            get_forward_context=lambda: SimpleNamespace(capturing=False),
            is_310p=lambda: False,
            using_paged_attention=lambda *_: False,
            attention_transfer_window=contextlib.nullcontext,
        )
        if form != "choice-of-operator":
            return function(impl, query, meta, output)
        return function(impl, query, None, None, (impl.key_cache, impl.value_cache), meta, output)

    ours, theirs = three_ways(case, monkeypatch, run)
    assert close(ours, theirs, paged_attention.TOLERANCE)
    if form == "choice-of-operator":
        stays_native(case, lambda path, native: run(path, native, State.PrefillNoCache))
    stays_native(case, lambda path, native: run(path, native, sinks=True))


# --- select_experts --------------------------------------------------------------------------------------

SELECT = cases(
    ("native-layers", "0.10.1", "0.10.1rc1", 1.0),
    ("native-moe", "0.11.0", "0.11.0", 1.0),
    ("gating-npu", "0.12.0", "0.12.0rc1", 1.0),
    ("gating-custom", "0.13.0", "0.13.0", 2.5),
    ("gating-custom", "0.13.0", "0.13.0rc3", 2.5),
    ("gating-device", "0.22.1", "0.22.1rc1", 2.5),
    ("gating-router", "0.30.0", "0.30.0rc2", 2.5),
)


@pytest.mark.parametrize(("form", "vllm", "ascend", "scale"), SELECT)
def test_select_experts(
    patched: Callable[..., Patched],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    vllm: str,
    ascend: str,
    scale: float,
) -> None:
    case = patched("select_experts", form, vllm, ascend)
    logits, bias = torch.randn(6, SIZES.experts), torch.rand(SIZES.experts)
    hidden = torch.randn(6, SIZES.hidden).bfloat16()

    def run(path: Path, native: Native, scoring: str = "sigmoid") -> Any:
        def gating(*_: Any, **given: Any) -> Any:
            factor = given.get("routed_scaling_factor", 1.0)
            found = select_experts.reference(logits, 8, True, 1, 1, bias, routed_scaling_factor=factor)
            return found if "native" in form else (*found, None)

        counted = native.of(gating)
        parameters: dict[str, Any] = {
            "top_k": 8,
            "use_grouped_topk": True,
            "renormalize": True,
            "topk_group": 1,
            "num_expert_group": 1,
            "scoring_func": scoring,
            "routed_scaling_factor": 2.5,
            "e_score_correction_bias": bias,
        }
        stands = {
            "_native_select_experts": counted,
            "_select_experts_with_fusion_ops": lambda **_: (None, None, None)[: 3 if vllm < "0.11" else 2],
            "_renormalize_topk_weights": lambda weights, _: weights,
            "torch_npu": SimpleNamespace(npu_moe_gating_top_k=counted),
            "DeviceOperator": SimpleNamespace(moe_gating_top_k=counted),
            "get_forward_context": lambda: SimpleNamespace(weight_prefetch_method=None),
        }
        monkeypatch.setattr(
            Torch, "ops", SimpleNamespace(_C_ascend=SimpleNamespace(moe_gating_top_k=counted))
        )
        function = load(path, case.scope, **stands)
        if form == "gating-router":
            router = SimpleNamespace(**parameters, bias_vl=None, is_fused_supported=lambda _: True)
            return function(router, hidden, logits, None)
        return function(hidden_states=hidden, router_logits=logits, **parameters)[:2]

    ours, theirs = three_ways(case, monkeypatch, run)
    assert ours[0].dtype is torch.float32 and ours[1].dtype is torch.int32
    assert close(ours[0], theirs[0], 1e-5) and torch.equal(ours[1], theirs[1])
    assert ours[0].sum(-1).allclose(torch.full((6,), scale))
    stays_native(case, lambda path, native: run(path, native, "softmax"))


# --- shared_expert ---------------------------------------------------------------------------------------

SHARED = cases(
    ("call-common", "0.11.0", "0.11.0"),
    ("call", "0.12.0", "0.12.0rc1"),
    ("call", "0.13.0", "0.13.0rc1"),
    ("two-parts", "0.13.0", "0.13.0"),
    ("two-parts", "0.19.1", "0.19.1rc1"),
    ("by-quantisation", "0.22.1", "0.22.1rc1"),
    ("by-quantisation-copy", "0.23.0", "0.23.0"),
    ("by-quantisation-runner", "0.26.0", "0.26.0rc1"),
    ("executor", "0.27.1", "0.27.1rc1"),
    ("executor-call", "0.29.0", "0.29.0rc1"),
    ("executor-staged", "0.30.0", "0.30.0rc2"),
    ("mlp", "0.33.0", None),
)


@pytest.mark.parametrize(("form", "vllm", "ascend"), SHARED)
def test_shared_expert(
    patched: Callable[..., Patched],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    vllm: str,
    ascend: str | None,
) -> None:
    case = patched("shared_expert", form, vllm, ascend)
    expert, hidden = SharedExpert(SIZES), torch.randn(4, SIZES.hidden).bfloat16()
    up, down = expert.gate_up_proj, expert.down_proj
    up.weight_scale_fp32 = up.weight_scale.float()

    def run(path: Path, native: Native, overlap: bool = False, limit: float = 0.0) -> Any:
        whole = native.of(
            lambda *_, **__: shared_expert.reference(
                hidden, up.weight, up.weight_scale, down.weight, down.weight_scale
            )
        )
        pieces = SimpleNamespace(W8A8=1, W4A8=2, W4A8MXFP=3, W8A8MXFP=4)
        modes = SimpleNamespace(
            TENSOR_PARALLEL=1, SHARED_EXPERT_DATA_PARALLEL_ONLY=2, SEQUENCE_PARALLEL_ONLY=3
        )
        # The last matrix product of the quantised path stands for the path.
        npu = SimpleNamespace(
            npu_dynamic_quant=lambda rows: (rows, None),
            npu_quant_matmul=lambda *a, output_dtype, **_: (
                whole() if output_dtype is torch.bfloat16 else a[0]
            ),
        )
        monkeypatch.setattr(Torch, "ops", MagicMock())
        Torch.ops._C_ascend.npu_dequant_swiglu_quant.side_effect = lambda x, **_: (x, None)
        expert.forward = whole  # type: ignore[method-assign]
        layer = SimpleNamespace(
            _shared_experts=expert,
            layer=expert,
            quant_type=pieces.W8A8,
            situ_activation=None,
            lora_context=None,
            swiglu_limit=limit,
            swiglu_alpha=1.0,
            swiglu_beta=0.0,
            multistream_overlap=overlap,
            multistream_overlap_shared_expert=overlap,
            multistream_overlap_gate=False,
            parallel_mode=lambda: modes.TENSOR_PARALLEL,
            wait_for_output=lambda: None,
            _shared_experts_part1=lambda rows: rows,
            _shared_experts_part2=whole,
            _run_shared_mlp=whole,
            _finish_shared_mlp=whole,
            _prepare_shared_expert_input=lambda rows: rows,
            _finalize_shared_expert_output=lambda rows: rows,
            _prepare_execution_input=lambda given, *_: (given.hidden_states, None),
            _prepare_gate_up_input=lambda rows: rows,
            enqueue_gate_up_after_router=lambda *_: SimpleNamespace(local_dp_metadata=None),
        )
        function = load(
            path,
            case.scope,
            torch_npu=npu,
            QuantType=pieces,
            SharedExpertParallelMode=modes,
            AscendSituAndMul=type("AscendSituAndMul", (), {}),
            has_lora=lambda context: context is not None,
            npu_stream_switch=lambda *_, **__: contextlib.nullcontext(),
        )
        with torch.no_grad():
            if form == "mlp":
                return mlp(function, expert, whole, hidden)
            if form in ("executor-call", "executor-staged"):
                return function(layer, SimpleNamespace(hidden_states=hidden, is_gathered=False), MagicMock())
            events = None if form.startswith("call") else MagicMock(swiglu_limit=limit)
            out = function(layer, hidden, events)
            return out[0] if isinstance(out, tuple) else out

    ours, theirs = three_ways(case, monkeypatch, run)
    assert ours.shape == hidden.shape and close(ours, theirs, shared_expert.TOLERANCE)
    if form != "mlp":
        stays_native(case, lambda path, native: run(path, native, overlap=True))
    if form.startswith(("by-quantisation", "executor")):
        stays_native(case, lambda path, native: run(path, native, limit=7.0))


def mlp(function: Function, expert: Any, whole: Function, hidden: torch.Tensor) -> Any:
    """``Glm4MoeMLP.forward`` itself: its layers are called one by one."""
    expert.gate_up_proj.forward = lambda rows: (rows, None)
    expert.act_fn.forward = lambda rows: rows
    expert.down_proj.forward = lambda rows: (whole(), None)
    return function(expert, hidden)
