"""The patched functions of real releases themselves, executed with stand-in layers around them.

One release for each distinct text of a site, unpatched, switched off and switched on with the torch backend:
ours is called once with GLM-4.5's arguments and agrees, off is the original result exactly.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glm_pto_kernels
from glm_pto.cli import releases
from glm_pto.codemods import operations
from glm_pto_kernels import backends

pytestmark = pytest.mark.trees

BF16 = torch.bfloat16
GLM = "vllm/model_executor/models/glm4_moe.py"
SWITCHES = [name for name in vars(glm_pto_kernels) if name.startswith("USE_PTO_")]
Run = Callable[[Path], Any]


# --- running one text three ways ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def torch_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in backends.NAMES:
        choice = backends.decide(name, {"GLM_PTO_BACKEND": "torch"})
        monkeypatch.setitem(backends.CHOICES, name, choice)
    monkeypatch.setattr(backends, "_KERNELS", {})


@contextlib.contextmanager
def switched(on: bool) -> Iterator[None]:
    before = {name: getattr(glm_pto_kernels, name) for name in SWITCHES}
    for name in SWITCHES:
        setattr(glm_pto_kernels, name, on)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(glm_pto_kernels, name, value)


@pytest.fixture
def patched(tmp_path: Path, released: Any) -> Callable[[str, str, str, str], tuple[Path, Path]]:
    """``patched(package, version, file, site)``: a file of a release, and a copy with that site guarded."""

    def make(package: str, version: str, file: str, site: str) -> tuple[Path, Path]:
        source = released(package.replace("_", "-"), version)
        info = next(source.glob("*.dist-info/METADATA"))
        # Where a release holds the layer twice, both files are guarded.
        both = (file, *([f"vllm_ascend/{FUSED_MOE}"] if file.endswith("fused_moe_0_23_0.py") else []))
        for name in (f"{package}/__init__.py", *both, str(info.relative_to(source))):
            target = tmp_path / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((source / name).read_bytes())
        result = operations.apply(
            [tmp_path / "tree"], operations.Options(sites=(site,), install_kernels=True)
        )
        assert result.changed, f"nothing to guard in {file} of {version}"
        return source / file, tmp_path / "tree" / file

    return make


@pytest.fixture
def three_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[tuple[Path, Path], str, Run], tuple[Any, Any, dict[str, Any]]]:
    """Run the original, then the patched text off (must be equal) and on (must call ``function`` once)."""

    def compare(files: tuple[Path, Path], function: str, run: Run) -> tuple[Any, Any, dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        operator = getattr(glm_pto_kernels, function)
        names = operator.__code__.co_varnames

        def watched(*args: Any, **kwargs: Any) -> Any:
            calls.append(dict(zip(names, args, strict=False)) | kwargs)
            return operator(*args, **kwargs)

        def asked(*args: Any, **kwargs: Any) -> bool:
            reasons.append(refusal(*args, **kwargs))
            return reasons[-1] is None

        reasons: list[str | None] = []
        refusal = getattr(glm_pto_kernels, f"{function}_refusal")
        monkeypatch.setattr(glm_pto_kernels, function, watched)
        monkeypatch.setattr(glm_pto_kernels, f"{function}_supported", asked)
        original = run(files[0])
        with switched(False):
            off = run(files[1])
        assert calls == []
        assert same(off, original)
        with switched(True):
            on = run(files[1])
        assert len(calls) == 1, f"{function} was called {len(calls)} times; asked: {reasons}"
        return original, on, calls[0]

    return compare


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=-1e9), b.nan_to_num(nan=-1e9))
    return len(a) == len(b) and all(map(same, a, b))


def near(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    assert a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.isnan(), b.isnan())
    wide, other = a.nan_to_num().float(), b.nan_to_num().float()
    assert (wide - other).abs().max() <= tolerance * max(1.0, float(other.abs().max()))


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


class Stream:
    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: None


class Module(torch.nn.Module):
    """A module with the given attributes and, if any, the given forward."""

    def __init__(self, forward: Callable[..., Any] | None = None, **attributes: Any) -> None:
        super().__init__()
        self.run = forward
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        assert self.run is not None
        return self.run(*args, **kwargs)


def frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


# --- vllm: gate -----------------------------------------------------------------------------------------

# A release for each distinct text of Glm4MoE.forward. 0.10.0 keeps its gate in bf16, which is refused.
MOE = ("0.10.1", "0.10.2", "0.12.0", "0.20.2", "0.32.0")


def moe(body: Any, pair: bool, integrated: bool, dtype: torch.dtype = torch.float32) -> Run:
    hidden = seeded(33, 512).to(BF16)
    weight = frozen(seeded(160, 512).to(dtype))

    def gate(x: torch.Tensor) -> Any:
        logits = x.to(dtype) @ weight.t()
        return (logits, None) if pair else logits

    class Experts:
        seen: torch.Tensor

        def __call__(self, hidden_states: torch.Tensor, router_logits: torch.Tensor) -> Any:
            self.seen = router_logits
            out = hidden_states * router_logits.mean(-1, keepdim=True).to(BF16)
            return (hidden_states, out) if integrated else out

    def run(file: Path) -> Any:
        names = {"torch": torch, "glm_pto_kernels": glm_pto_kernels}
        forward = body(file, "Glm4MoE.forward", names)
        experts = Experts()
        layer = types.SimpleNamespace(
            gate=Module(gate, weight=weight),
            experts=experts,
            shared_experts=lambda x: x * 2,
            n_shared_experts=1,
            routed_scaling_factor=2.5,
            tp_size=1,
        )
        return forward(layer, hidden), experts.seen

    return run


@pytest.mark.parametrize("version", MOE)
def test_gate(patched: Any, three_ways: Any, body: Any, version: str) -> None:
    integrated = version == "0.12.0"
    run = moe(body, pair=version == "0.32.0", integrated=integrated)
    original, on, call = three_ways(patched("vllm", version, GLM, "gate"), "gate", run)
    assert call["hidden_states"].dtype is BF16 and call["hidden_states"].shape == (33, 512)
    near(on[1], original[1], 2e-5)
    assert on[1].dtype is torch.float32
    near(on[0], original[0], 2.0**-7)


def test_a_gate_in_bf16_stays_native(patched: Any, body: Any) -> None:
    """vllm 0.10.0 keeps the gate's weight in the model's dtype."""
    original, copy = patched("vllm", "0.10.0", GLM, "gate")
    run = moe(body, pair=True, integrated=False, dtype=BF16)
    before = glm_pto_kernels.calls()["gate"]
    with switched(True):
        assert same(run(copy), run(original))
    assert glm_pto_kernels.calls()["gate"] == before


# --- vllm: attention_pre ---------------------------------------------------------------------------------

HIDDEN, HEADS, KV, DIM = 5120, 12, 1, 128


def norm(size: int, seed: int) -> Module:
    weight = frozen(1 + 0.1 * seeded(size, seed=seed).to(BF16))

    def forward(x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x.float() if residual is None else x.float() + residual.float()
        normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * weight.float()
        return normed.to(BF16) if residual is None else (normed.to(BF16), total.to(BF16))

    return Module(forward, weight=weight, variance_epsilon=1e-5, bias=None)


def static_w8a8() -> Module:
    """qkv_proj with static W8A8 weights, its native arithmetic spelled out."""
    columns = (HEADS + 2 * KV) * DIM
    generator = torch.Generator().manual_seed(7)
    weight = torch.randint(-127, 128, (HIDDEN, columns), dtype=torch.int8, generator=generator)
    reciprocal, offset = torch.full((HIDDEN,), 20.0), torch.full((HIDDEN,), 3.0)
    bias = torch.randint(-500, 500, (columns,), dtype=torch.int32, generator=generator)
    scale = (seeded(columns).abs() + 0.5) / 4e4

    def forward(x: torch.Tensor) -> Any:
        steps = (x.float() * reciprocal + offset).round().clamp(-128, 127)
        return ((steps.double() @ weight.double() + bias).float() * scale).to(BF16), None

    return Module(
        forward,
        weight=frozen(weight),
        # After loading these two are plain tensors in every release, the others parameters.
        aclnn_input_scale_reciprocal=reciprocal.to(BF16),
        aclnn_input_offset=offset.to(BF16),
        quant_bias=frozen(bias),
        deq_scale=frozen(scale),
    )


def rotary() -> Module:
    angles = torch.arange(300).unsqueeze(-1) / 1e4 ** (torch.arange(32) / 32)
    cache = torch.cat((angles.cos(), angles.sin()), -1).to(BF16)

    def turn(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        cos, sin = rows.float().unsqueeze(1).chunk(2, -1)
        a, b, rest = x.float().view(len(x), -1, DIM).split((32, 32, 64), -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).flatten(1).to(BF16)

    def forward(positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> Any:
        rows = cache[positions if positions.dim() == 1 else positions[0]]
        return turn(q, rows), turn(k, rows)

    layer = Module(forward, is_neox_style=True)
    layer.register_buffer("cos_sin_cache", cache, persistent=False)
    return layer


def decoder(
    body: Any,
    rows: int,
    first: bool,
    seen: list[Any],
    positions: torch.Tensor | None = None,
    qk_norm: bool = True,
) -> Run:
    """One decoder layer around the real forward methods of the layer and of its attention."""
    hidden = seeded(rows, HIDDEN).to(BF16)
    residual = None if first else seeded(rows, HIDDEN, seed=1).to(BF16)
    where = torch.arange(rows) if positions is None else positions

    def attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((q, k, v))
        return q

    def run(file: Path) -> Any:
        names = {"torch": torch, "glm_pto_kernels": glm_pto_kernels}
        attention = body(file, "Glm4MoeAttention.forward", names)
        layer = body(file, "Glm4MoeDecoderLayer.forward", names)
        self_attn = Module(
            qkv_proj=static_w8a8(),
            q_norm=norm(DIM, 2),
            k_norm=norm(DIM, 3),
            rotary_emb=rotary(),
            attn=attn,
            o_proj=lambda x: (torch.cat((x, x, x, x[:, :512]), -1), None),
            q_size=HEADS * DIM,
            kv_size=KV * DIM,
            head_dim=DIM,
            num_heads=HEADS,
            num_kv_heads=KV,
            use_qk_norm=qk_norm,
        )
        self_attn.run = lambda **k: attention(self_attn, **k)
        block = Module(
            input_layernorm=norm(HIDDEN, 4),
            self_attn=self_attn,
            post_attention_layernorm=norm(HIDDEN, 5),
            mlp=lambda x: x,
        )
        return layer(block, where, hidden, residual)

    return run


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("first", [False, True], ids=["later_layer", "fault_4_first_layer"])
@pytest.mark.parametrize("version", ["0.12.0"])
def test_attention_pre(
    patched: Any, three_ways: Any, body: Any, version: str, first: bool, rows: int
) -> None:
    check_attention_pre(patched, three_ways, body, version, first, rows)


@pytest.mark.parametrize("version", ["0.10.0", "0.11.0", "0.20.2", "0.33.0"])
def test_attention_pre_in_other_texts(patched: Any, three_ways: Any, body: Any, version: str) -> None:
    check_attention_pre(patched, three_ways, body, version, False, 2)


def check_attention_pre(
    patched: Any, three_ways: Any, body: Any, version: str, first: bool, rows: int
) -> None:
    seen: list[Any] = []
    run = decoder(body, rows, first, seen)
    original, on, call = three_ways(patched("vllm", version, GLM, "attention_pre"), "attention_pre", run)
    assert (call["residual"] is None) is first
    assert call["positions"].tolist() == list(range(rows))
    near(on[1], original[1], 2.0**-6)  # the residual
    near(on[0], original[0], 2.0**-5)
    for ours, native in zip(seen[2], seen[0], strict=True):
        near(ours, native, 2.0**-5)


@pytest.mark.parametrize(
    "other",
    [{"positions": torch.arange(2).expand(3, 2)}, {"qk_norm": False}],
    ids=["glm_4.5v_mrope_positions", "glm_4.5_air_no_qk_norm"],
)
def test_fault_16_relatives_stay_native(patched: Any, body: Any, other: dict[str, Any]) -> None:
    original, copy = patched("vllm", "0.12.0", GLM, "attention_pre")
    run = decoder(body, 2, False, [], **other)
    before = glm_pto_kernels.calls()["attention_pre"]
    with switched(True):
        assert same(run(copy), run(original))
    assert glm_pto_kernels.calls()["attention_pre"] == before


# --- vllm without vllm-ascend: the whole MLP --------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.12.0", "0.33.0"])
def test_whole_mlp(patched: Any, three_ways: Any, body: Any, version: str) -> None:
    hidden = seeded(33, 512).to(BF16)

    def run(file: Path) -> Any:
        names = {"torch": torch, "glm_pto_kernels": glm_pto_kernels}
        mlp = shared_mlp(512, 192)
        return body(file, "Glm4MoeMLP.forward", names)(mlp, hidden)

    files = patched("vllm", version, GLM, "shared_expert")
    original, on, _ = three_ways(files, "ffn_share_expert_quant", run)
    near(on, original, 2.0**-6)


def test_fault_10_a_dense_mlp_keeps_its_all_reduce(patched: Any, body: Any) -> None:
    original, copy = patched("vllm", "0.12.0", GLM, "shared_expert")

    def run(file: Path) -> Any:
        mlp = shared_mlp(512, 192)
        mlp.down_proj.reduce_results = True
        names = {"torch": torch, "glm_pto_kernels": glm_pto_kernels}
        return body(file, "Glm4MoeMLP.forward", names)(mlp, seeded(3, 512).to(BF16))

    before = glm_pto_kernels.calls()["shared_expert"]
    with switched(True):
        assert same(run(copy), run(original))
    assert glm_pto_kernels.calls()["shared_expert"] == before


# --- vllm-ascend ----------------------------------------------------------------------------------------


class Torch:
    """torch with the attributes that torch_npu and vllm-ascend add."""

    def __init__(self, npu: Any) -> None:
        self.npu = types.SimpleNamespace(current_stream=Stream, Event=object)
        gating, activation = npu.moe_gating_top_k, npu.dequant_swiglu_quant
        own = types.SimpleNamespace(moe_gating_top_k=gating, npu_dequant_swiglu_quant=activation)
        self.ops = types.SimpleNamespace(_C_ascend=own)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture
def names(load_module: Any) -> Callable[[], dict[str, Any]]:
    """The globals that the functions of vllm-ascend find around them."""
    npu = load_module("real/npu_on_cpu")
    torch_npu = types.SimpleNamespace(
        _npu_paged_attention=npu.paged_attention,
        npu_dynamic_quant=npu.dynamic_quant,
        npu_quant_matmul=npu.quant_matmul,
        npu_moe_gating_top_k=npu.npu_moe_gating_top_k,
    )
    state = enum.Enum("AscendAttentionState", ["DecodeOnly", "ChunkedPrefill"])
    context = types.SimpleNamespace(capturing=False, moe_comm_type=None, weight_prefetch_method=None)
    quiet = lambda *a, **k: contextlib.nullcontext()  # noqa: E731
    routed = types.SimpleNamespace(forward_impl=lambda *a, **k: "routed")
    config = types.SimpleNamespace(init_redundancy_expert=0)
    modes = ["TENSOR_PARALLEL", "SHARED_EXPERT_DATA_PARALLEL_ONLY", "SEQUENCE_PARALLEL_ONLY"]

    def make() -> dict[str, Any]:
        return {
            "glm_pto_kernels": glm_pto_kernels,
            "torch": Torch(npu),
            "torch_npu": torch_npu,
            "npu": npu,
            "AscendAttentionState": state,
            "AscendDeviceType": enum.Enum("AscendDeviceType", ["_910B", "_910_95", "A2", "A5"]),
            "AscendFusedMoE": routed,
            "AscendSituAndMul": type("AscendSituAndMul", (), {}),
            "DeviceOperator": types.SimpleNamespace(moe_gating_top_k=npu.moe_gating_top_k),
            "MoECommType": types.SimpleNamespace(ALLTOALL=1, MC2=2, FUSED_MC2=3, FUSED_ALLTOALL=4),
            "QuantType": types.SimpleNamespace(W8A8=1, W4A8=2, W4A8MXFP=3),
            "SharedExpertParallelMode": enum.Enum("SharedExpertParallelMode", modes),
            "PreparedSharedExpertExecution": types.SimpleNamespace,
            "_EXTRA_CTX": context,
            "attention_transfer_window": quiet,
            "get_ascend_config": lambda: config,
            "get_ascend_device_type": lambda: None,
            "get_forward_context": lambda: context,
            "get_graph_params": lambda: None,
            "has_lora": lambda lora: lora is not None,
            "is_310p": lambda: False,
            "npu_stream_switch": quiet,
            "record_attention_compute_start": lambda: None,
            "return_row_idx": lambda hidden, top_k: torch.arange(hidden.shape[0] * top_k),
            "shared_expert_dp_enabled": lambda: False,
            "shared_experts_calculation_stream": Stream,
            "shared_experts_compute_stream": Stream,
            "using_paged_attention": lambda *a: True,
        }

    return make


# A release for each distinct text of the decode choice.
DECODE_METHOD = ("0.10.1rc1", "0.11.0rc0", "0.11.0", "0.12.0rc1")
DECODE_CHOICE = ("0.13.0", "0.14.0rc1", "0.19.1rc1", "0.23.0", "0.24.0rc1", "0.29.0rc1")
ATTENTION = "vllm_ascend/attention/attention_v1.py"


@pytest.mark.parametrize("version", [*DECODE_METHOD, *DECODE_CHOICE])
def test_paged_attention(patched: Any, three_ways: Any, body: Any, names: Any, version: str) -> None:
    method = "_forward_decode_only" if version in DECODE_METHOD else "forward_impl"
    caches = [seeded(8, 128, 1, 128, seed=s).to(BF16) for s in (1, 2)]
    query = seeded(4, HEADS, DIM).to(BF16)  # the last row is padding
    lengths, table = torch.tensor([5, 200, 129]), torch.tensor([[3, 0], [1, 5], [2, 7]], dtype=torch.int32)

    class AscendAttentionBackendImpl:
        def __init__(self) -> None:
            self.key_cache, self.value_cache = caches
            self.num_heads, self.num_kv_heads, self.head_size, self.scale = HEADS, KV, DIM, DIM**-0.5
            self.sliding_window = self.alibi_slopes = self.sinks = self.vllm_config = None
            self.attn_type = "decoder"

        def forward_paged_attention(self, query: Any, metadata: Any, output: Any) -> Any:
            native = names()["npu"].paged_attention
            native(query, *caches, KV, HEADS, self.scale, metadata.block_tables, metadata.seq_lens, output)
            return output

    def run(file: Path) -> Any:
        around = names()
        function = body(file, f"AscendAttentionBackendImpl.{method}", around)
        metadata = types.SimpleNamespace(
            attn_state=around["AscendAttentionState"].DecodeOnly, seq_lens=lengths, block_tables=table
        )
        output = torch.full((4, HEADS, DIM), float("nan"), dtype=BF16)
        rest = (metadata, output) if method != "forward_impl" else (query, query, None, metadata, output)
        return function(AscendAttentionBackendImpl(), query, *rest)

    files = patched("vllm_ascend", version, ATTENTION, "paged_attention")
    original, on, call = three_ways(files, "paged_attention", run)
    assert call["actual_seqs_cpu"].tolist() == [5, 200, 129] and call["scale"] == DIM**-0.5
    assert call["block_tables"] is table and call["key_cache"] is caches[0]
    assert call["attn_metadata"].seq_lens is lengths
    near(on, original, 2.0**-7)
    assert original[3].isnan().all()


FUSION_OPS = "_select_experts_with_fusion_ops"
NATIVE_PARTS = (
    FUSION_OPS,
    "_native_select_experts",
    "_native_grouped_topk",
    "_renormalize_topk_weights",
    "_select_expert_use_group_topk",
)
# A release for each distinct text: where it is, and the scaling factor that the release passes on.
NATIVE_ROUTING = {
    "0.10.1rc1": "vllm_ascend/ops/layers/experts_selector.py",
    "0.10.2rc1": "vllm_ascend/ops/moe/experts_selector.py",
    "0.11.0": "vllm_ascend/ops/moe/experts_selector.py",
}
GATING = ("0.12.0rc1", "0.13.0", "0.13.0rc3", "0.15.0rc1", "0.18.0", "0.19.1rc1", "0.20.2rc1")
ROUTER = ("0.27.1rc1", "0.28.0rc1", "0.29.0rc1")
UNSCALED = (*NATIVE_ROUTING, "0.12.0rc1")


@pytest.mark.parametrize("version", [*NATIVE_ROUTING, *GATING, *ROUTER])
def test_select_experts(patched: Any, three_ways: Any, body: Any, names: Any, version: str) -> None:
    logits, bias = seeded(33, 160), 0.1 * seeded(160)
    if version in ROUTER:
        file, qualified = (
            "ops/fused_moe/router/fused_topk_router.py",
            "AscendFusedTopKRouter._compute_routing",
        )
    else:
        file = "ops/fused_moe/experts_selector.py"
        qualified = "select_experts" if version in NATIVE_ROUTING else FUSION_OPS
    file = NATIVE_ROUTING.get(version, f"vllm_ascend/{file}")
    routing = {
        "top_k": 8,
        "use_grouped_topk": True,
        "renormalize": True,
        "topk_group": 1,
        "num_expert_group": 1,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.5,
        "e_score_correction_bias": bias,
    }

    def run(path: Path) -> Any:
        around = names()
        for part in NATIVE_PARTS if version in NATIVE_ROUTING else ():
            body(path, part, around)
        function = body(path, qualified, around)
        hidden = torch.zeros(33, HIDDEN, dtype=BF16)
        if version not in ROUTER:
            extra = {"global_num_experts": 160} if version in NATIVE_ROUTING or version < "0.16" else {}
            return function(hidden_states=hidden, router_logits=logits, **routing, **extra)[:2]
        router = types.SimpleNamespace(
            **routing, bias_vl=None, tid2eid=None, is_fused_supported=lambda h: True
        )
        return function(router, hidden, logits, torch.int32)

    files = patched("vllm_ascend", version, file, "select_experts")
    original, on, call = three_ways(files, "select_experts", run)
    assert call["router_logits"] is logits and call["e_score_correction_bias"] is bias
    assert (call["top_k"], call["topk_group"], call["num_expert_group"]) == (8, 1, 1)
    assert call["routed_scaling_factor"] == (1.0 if version in UNSCALED else 2.5)
    assert on[0].dtype is torch.float32 and on[1].dtype is torch.int32
    dense = [torch.zeros(33, 160).scatter_(1, ids.long(), w.float()) for w, ids in (original, on)]
    near(dense[1], dense[0], 1e-5)


def shared_mlp(hidden: int = HIDDEN, size: int = 192) -> Module:
    """A shared expert with dynamic W8A8 weights; calling it is the native computation."""
    generator = torch.Generator().manual_seed(5)

    def linear(rows: int, columns: int) -> Module:
        weight = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, generator=generator)
        scale = ((seeded(columns).abs() + 0.5) / 1e3).to(BF16)

        def forward(x: torch.Tensor) -> Any:
            row = x.float().abs().amax(-1, keepdim=True) / 127
            steps = (x.float() / row).round().clamp(-128, 127)
            return ((steps.double() @ weight.double()).float() * row * scale).to(BF16), None

        return Module(
            forward,
            weight=frozen(weight),
            weight_scale=frozen(scale),
            weight_scale_fp32=scale.float(),
            reduce_results=False,
        )

    class SiluAndMul(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate, up = x.float().chunk(2, -1)
            return (torch.nn.functional.silu(gate) * up).to(BF16)

    up, down, act = linear(hidden, 2 * size), linear(size, hidden), SiluAndMul()
    return Module(lambda x: down(act(up(x)[0]))[0], gate_up_proj=up, down_proj=down, act_fn=act)


FUSED_MOE, EXECUTOR = "ops/fused_moe/fused_moe.py", "ops/fused_moe/shared_experts.py"
# version: file, function; a release for each distinct text.
SHARED = {
    "0.11.0rc0": ("ops/common_fused_moe.py", "AscendSharedFusedMoE.forward_impl"),
    "0.11.0": ("ops/common_fused_moe.py", "AscendSharedFusedMoE.forward_impl"),
    "0.12.0rc1": (FUSED_MOE, "AscendSharedFusedMoE.forward_impl"),
    "0.13.0rc1": (FUSED_MOE, "AscendSharedFusedMoE.forward_impl"),
    "0.13.0": (FUSED_MOE, "AscendSharedFusedMoE._forward_shared_experts"),
    "0.15.0rc1": (FUSED_MOE, "AscendSharedFusedMoE._forward_shared_experts"),
    "0.17.0rc1": (FUSED_MOE, "AscendSharedFusedMoE._forward_shared_experts"),
    "0.20.2rc1": (FUSED_MOE, "AscendFusedMoE._forward_shared_experts"),
    "0.21.0rc1": (FUSED_MOE, "AscendFusedMoE._forward_shared_experts"),
    "0.23.0": ("ops/fused_moe/fused_moe_0_23_0.py", "AscendFusedMoE._forward_shared_experts"),
    "0.23.0rc1": (FUSED_MOE, "AscendMoERunner._forward_shared_experts"),
    "0.24.0rc1": (FUSED_MOE, "AscendMoERunner._forward_shared_experts"),
    "0.25.1rc1": (FUSED_MOE, "AscendMoERunner._forward_shared_experts"),
    "0.26.0rc1": (FUSED_MOE, "AscendMoERunner._forward_shared_experts"),
    "0.27.1rc1": (EXECUTOR, "AscendSharedExperts.forward"),
    "0.28.0rc1": (EXECUTOR, "AscendSharedExperts.forward"),
    "0.30.0rc2": (EXECUTOR, "AscendSharedExperts.forward"),
}


def shared_layer(mlp: Module, around: dict[str, Any]) -> Any:
    """The object that computes a shared expert in some release: the union of what the releases ask of it."""
    mode = around["SharedExpertParallelMode"].TENSOR_PARALLEL
    finish = lambda submitted, milestones: mlp(submitted.hidden_states)  # noqa: E731
    return types.SimpleNamespace(
        _shared_experts=mlp,
        layer=mlp,
        lora_context=None,
        multistream_overlap=False,
        multistream_overlap_gate=False,
        multistream_overlap_shared_expert=False,
        quant_type=around["QuantType"].W8A8,
        shared_expert_stream=None,
        situ_activation=None,
        swiglu_alpha=1.0,
        swiglu_beta=0.0,
        swiglu_limit=0.0,
        _finalize_shared_expert_output=lambda out: out,
        _finish_shared_mlp=finish,
        _prepare_execution_input=lambda prepared, milestones, mode: (prepared.hidden_states, None),
        _prepare_gate_up_input=lambda hidden: hidden,
        _prepare_shared_expert_input=lambda hidden: hidden,
        _run_shared_mlp=lambda hidden, milestones: mlp(hidden),
        _shared_experts_part1=lambda hidden: mlp.gate_up_proj(hidden)[0],
        _shared_experts_part2=lambda hidden, up: mlp.down_proj(mlp.act_fn(up))[0],
        enqueue_gate_up_after_router=lambda execution, event: execution,
        parallel_mode=lambda: mode,
    )


@pytest.mark.parametrize("version", SHARED)
def test_shared_expert(patched: Any, three_ways: Any, body: Any, names: Any, version: str) -> None:
    file, qualified = SHARED[version]
    hidden = seeded(33, HIDDEN).to(BF16)
    events = types.SimpleNamespace(
        after_routed_experts=None,
        before_combine=None,
        before_dispatch=None,
        before_gmm2=None,
        before_routed_experts=None,
        router_output_ready=None,
        swiglu_alpha=1.0,
        swiglu_beta=0.0,
        swiglu_limit=0.0,
    )

    def run(path: Path) -> Any:
        around = names()
        layer = shared_layer(shared_mlp(), around)
        function = body(path, qualified, around)
        if qualified.endswith("forward_impl"):
            return function(layer, hidden, None)[0]
        staged = version in ("0.28.0rc1", "0.30.0rc2")
        return function(layer, types.SimpleNamespace(hidden_states=hidden) if staged else hidden, events)

    files = patched("vllm_ascend", version, f"vllm_ascend/{file}", "shared_expert")
    original, on, call = three_ways(files, "ffn_share_expert_quant", run)
    assert call["hidden_states"] is hidden
    near(on, original, 2.0**-6)


# --- nothing is left out --------------------------------------------------------------------------------


def text(file: Path, qualified: str, site: str = "") -> str | None:
    """The function's syntax tree as text, or None where the file has no such function with the site in it."""
    if not file.is_file():
        return None
    *owners, name = qualified.split(".")
    scope: list[Any] = [ast.parse(file.read_bytes())]
    for owner in owners:
        scope = [n for s in scope for n in ast.walk(s) if isinstance(n, ast.ClassDef) and n.name == owner]
    found = [f for s in scope for f in s.body if isinstance(f, ast.FunctionDef) and f.name == name]
    return ast.dump(found[0]) if found and site in ast.unparse(found[0]) else None


@pytest.mark.all_releases
@pytest.mark.parametrize(
    "qualified", ["Glm4MoE.forward", "Glm4MoeDecoderLayer.forward", "Glm4MoeAttention.forward"]
)
def test_every_vllm_text_is_one_of_those_executed(released: Any, qualified: str) -> None:
    executed = {text(released("vllm", v) / GLM, qualified) for v in (*MOE, "0.10.0", "0.11.0")}
    for version in releases.VLLM:
        assert text(released("vllm", version) / GLM, qualified) in executed, version


@pytest.mark.all_releases
def test_every_vllm_ascend_text_is_one_of_those_executed(released: Any) -> None:
    gating, router = "moe_gating_top_k(", "vllm_ascend/ops/fused_moe/router/fused_topk_router.py"
    selector = "vllm_ascend/ops/fused_moe/experts_selector.py"
    decode, choice = "_npu_paged_attention(", "using_paged_attention("
    sites: dict[tuple[str, str, str], tuple[str, ...]] = {
        (ATTENTION, "AscendAttentionBackendImpl._forward_decode_only", decode): DECODE_METHOD,
        (ATTENTION, "AscendAttentionBackendImpl.forward_impl", choice): DECODE_CHOICE,
        (selector, FUSION_OPS, gating): GATING,
        (router, "AscendFusedTopKRouter._compute_routing", gating): ROUTER,
    }
    for version, (file, qualified) in SHARED.items():
        whole = "self._shared_experts(hidden_states)" if qualified.endswith("forward_impl") else ""
        key = (f"vllm_ascend/{file}", qualified, whole)
        sites[key] = (*sites.get(key, ()), version)
    for file in set(NATIVE_ROUTING.values()):
        key = (file, "select_experts", "_native_select_experts(")
        sites[key] = tuple(v for v, f in NATIVE_ROUTING.items() if f == file)
    missed = []
    for key, versions in sites.items():
        executed = {text(released("vllm-ascend", v) / key[0], *key[1:]) for v in versions}
        for version in releases.ASCEND:
            found = text(released("vllm-ascend", version) / key[0], *key[1:])
            if found is not None and found not in executed:
                missed.append(f"{version} {key[1]}")
    assert not missed, "\n".join(missed)
