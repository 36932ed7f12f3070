"""Drives real vllm-ascend modules on the CPU; run by `test_real_ascend` in a prepared environment.

``drive_ascend.py OUT`` imports the release that is on the module path, patched or not, sends GLM-4.5's decode
step and a foreign model's through select_experts, decode attention and the shared expert, and saves in OUT
what came out and how our operators were called. On a patched tree each scenario runs with all switches off
and then on. Stand-ins: the forward context, streams, and the configuration objects of a running engine.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch_npu

sys.path.insert(0, str(Path(__file__).resolve().parent))
import npu_on_cpu

BF16 = torch.bfloat16
KERNELS = ("attention_pre", "select_experts", "paged_attention", "ffn_share_expert_quant")


def present(name: str) -> Any:
    """A module if the release has it, else None. A module that fails to import is an error."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return None if spec is None else importlib.import_module(name)


class Stream:
    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: None


class Watch:
    """Records the arguments with which the patched code calls our operators, and lets the calls through."""

    def __init__(self, kernels: Any) -> None:
        self.kernels, self.calls = kernels, []
        for name in KERNELS if kernels else ():
            setattr(kernels, name, self.watched(name, getattr(kernels, name)))

    def watched(self, name: str, function: Any) -> Any:
        signature = inspect.signature(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            self.calls.append((name, dict(bound.arguments)))
            return function(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def switched(self, on: bool) -> Iterator[None]:
        for name in [n for n in vars(self.kernels) if n.startswith("USE_PTO_")] if self.kernels else ():
            setattr(self.kernels, name, on)
        yield


def context(**extra: Any) -> types.SimpleNamespace:
    fields = {
        "capturing": False,
        "weight_prefetch_method": None,
        "moe_comm_type": None,
        "in_profile_run": False,
        "sp_enabled": False,
        "additional_kwargs": {"capturing": False},
        "attn_metadata": None,
    }
    return types.SimpleNamespace(**(fields | extra))


def fitting(function: Any, **values: Any) -> dict[str, Any]:
    """Those keyword arguments that the release's function takes."""
    names = inspect.signature(function).parameters
    return {k: v for k, v in values.items() if k in names}


# --- select_experts -------------------------------------------------------------------------------------

ROUTING = {  # experts, top_k, groups, chosen groups, scoring, scaling
    "glm": (160, 8, 1, 1, "sigmoid", 1.0),
    "glm_scaled": (160, 8, 1, 1, "sigmoid", 2.5),
    "softmax_128": (128, 8, None, None, "softmax", 1.0),
    "groups_256": (256, 8, 8, 4, "sigmoid", 1.0),
}


def route(experts: int, top_k: int, groups: Any, chosen: Any, scoring: str, scale: float, rows: int) -> Any:
    torch.manual_seed(rows + experts)
    logits, bias = torch.randn(rows, experts), torch.randn(experts) * 0.1
    biased = scoring == "sigmoid"
    values = {
        "hidden_states": torch.zeros(rows, 5120, dtype=BF16),
        "router_logits": logits,
        "top_k": top_k,
        "use_grouped_topk": groups is not None,
        "renormalize": True,
        "topk_group": chosen,
        "num_expert_group": groups,
        "scoring_func": scoring,
        "routed_scaling_factor": scale,
        "e_score_correction_bias": bias if biased else None,
        "global_num_experts": experts,
    }
    router = present("vllm_ascend.ops.fused_moe.router.fused_topk_router")
    if router is not None:
        cls = router.AscendFusedTopKRouter
        layer = cls(**fitting(cls.__init__, **values))
        return layer._compute_routing(values["hidden_states"], logits, torch.int32)
    for name in ("ops.fused_moe.experts_selector", "ops.moe.experts_selector", "ops.layers.experts_selector"):
        selector = present(f"vllm_ascend.{name}")
        if selector is not None:
            break
    names = [n for n in ("get_ascend_config", "get_weight_prefetch_method") if hasattr(selector, n)]
    with contextlib.ExitStack() as stack:
        for name in names:
            value = Stream() if "prefetch" in name else types.SimpleNamespace(init_redundancy_expert=0)
            stack.enter_context(mock.patch.object(selector, name, lambda value=value: value))
        return selector.select_experts(**fitting(selector.select_experts, **values))[:2]


# --- decode attention -----------------------------------------------------------------------------------


def attention(heads: int, kv_heads: int, paged: bool, strided: bool = False, metadata: Any = None) -> Any:
    """One layer's step of three requests of 5, 200 and 129 tokens, with two rows of padding behind them."""
    module = importlib.import_module("vllm_ascend.attention.attention_v1")
    torch.manual_seed(heads)
    dim, block, lengths, padded = 128, 128, [5, 200, 129], 5
    table = torch.tensor([[3, 0], [1, 5], [2, 7]], dtype=torch.int32)
    config = mock.MagicMock()
    config.kv_transfer_config = config.speculative_config = config.quant_config = None
    config.parallel_config.prefill_context_parallel_size = 1
    config.parallel_config.decode_context_parallel_size = 1
    config.model_config.dtype = BF16
    for name in ("vllm.config", "vllm.config.vllm"):
        if hasattr(sys.modules.get(name), "_current_vllm_config"):
            sys.modules[name]._current_vllm_config = config  # type: ignore[attr-defined]
    impl = module.AscendAttentionBackendImpl(
        heads, dim, dim**-0.5, kv_heads, None, None, "auto", None, module.AttentionType.DECODER, None
    )
    if strided:
        both = torch.randn(8, 2, block, kv_heads, dim).to(BF16)
        cache = (both[:, 0], both[:, 1])
    else:
        cache = tuple(torch.randn(8, block, kv_heads, dim).to(BF16) for _ in range(2))
    query = torch.randn(padded, heads, dim).to(BF16)
    key, value = (torch.randn(padded, kv_heads, dim).to(BF16) for _ in range(2))
    slots = [int(table[i, (n - 1) // block]) * block + (n - 1) % block for i, n in enumerate(lengths)]
    metadata = metadata or module.AscendMetadata(
        **fitting(
            module.AscendMetadata,
            attn_state=module.AscendAttentionState.DecodeOnly,
            num_actual_tokens=3,
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=torch.tensor(lengths),
            seq_lens_list=lengths,
            actual_seq_lengths_q=[1, 2, 3],
            query_start_loc=torch.tensor([0, 1, 2, 3]),
            query_lens=torch.ones(3, dtype=torch.int32),
            max_query_len=1,
            block_tables=table,
            slot_mapping=torch.tensor(slots, dtype=torch.int32),
        )
    )
    layer = types.SimpleNamespace(_k_scale_float=1.0, _v_scale_float=1.0, layer_name="model.layers.0.attn")
    output = torch.full((padded, heads, dim), float("nan"), dtype=BF16)
    extra = fitting(impl.forward, trace_flag=False)
    with contextlib.ExitStack() as stack:
        if hasattr(module, "using_paged_attention"):
            stack.enter_context(mock.patch.object(module, "using_paged_attention", lambda *a: paged))
        result = impl.forward(layer, query, key, value, cache, metadata, output, **extra)
    return result.view(padded, heads, dim), metadata


def two_layers() -> str:
    """Whether the second layer of a step finds the lengths that the first one copied."""
    _, metadata = attention(12, 1, False)
    first = getattr(metadata, "_glm_pto_lengths", None)
    attention(12, 1, False, metadata=metadata)
    second = getattr(metadata, "_glm_pto_lengths", None)
    return "none" if first is None else "one copy" if first[1] is second[1] else "two copies"


# --- shared expert --------------------------------------------------------------------------------------


class Projection(torch.nn.Module):
    """A linear layer made, filled and prepared after loading by the release's own quantisation method."""

    def __init__(self, method: Any, inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        parameters = dict(method.get_weight(inputs, outputs, BF16))
        for more in ("get_pertensor_param", "get_perchannel_param"):
            if hasattr(method, more):
                size = () if "tensor" in more else (outputs,)
                parameters |= getattr(method, more)(*size, BF16)
        for name, tensor in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
            tensor.zero_()
        self.weight.data.random_(-127, 128, generator=source)
        self.weight_scale.data.uniform_(5e-4, 15e-4, generator=source)
        if hasattr(self, "deq_scale"):
            self.input_scale.data.fill_(0.05)
            self.input_offset.data.fill_(3)
            self.quant_bias.data.random_(-500, 500, generator=source)
            self.deq_scale.data.uniform_(1e-5, 4e-5, generator=source)
        self.method, self.quant_method, self.reduce_results = method, None, False
        self.params_dtype, self.prefix = BF16, "model.layers.0.proj"
        method.process_weights_after_loading(self)

    def forward(self, x: torch.Tensor) -> Any:
        return self.method.apply(self, x), None


def quantisation(kind: str) -> Any:
    """The release's linear method for W8A8, ``kind`` "dynamic" or "static"."""
    for folder in ("", "methods.", "methods.w8a8."):
        for name, owner in (
            ("w8a8_dynamic", "AscendW8A8DynamicLinearMethod"),
            ("w8a8_static", "AscendW8A8LinearMethod"),
            ("w8a8", "AscendW8A8LinearMethod"),
        ):
            if ("dynamic" in name) != (kind == "dynamic"):
                continue
            cls = getattr(present(f"vllm_ascend.quantization.{folder}{name}"), owner, None)
            if cls is not None:
                method = object.__new__(cls)
                method.transpose_weight, method.quant_method = True, "ascend"  # what some __init__ set
                return method
    raise LookupError(f"no {kind} W8A8 method in this release")


class SiluAndMul(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_swiglu(x)


def shared_mlp() -> Any:
    """The release's own Glm4MoeMLP (its forward) at the sizes of one rank of eight."""
    glm = importlib.import_module("vllm.model_executor.models.glm4_moe")
    torch.manual_seed(0)
    mlp = object.__new__(glm.Glm4MoeMLP)
    torch.nn.Module.__init__(mlp)
    method = quantisation("dynamic")
    mlp.gate_up_proj = Projection(method, 5120, 384, seed=1)
    mlp.down_proj = Projection(method, 192, 5120, seed=2)
    mlp.act_fn = SiluAndMul()
    return mlp


def moe_module() -> Any:
    return present("vllm_ascend.ops.common_fused_moe") or importlib.import_module(
        "vllm_ascend.ops.fused_moe.fused_moe"
    )


def shared_layer(module: Any, mlp: Any) -> Any:
    layer = object.__new__(module.AscendSharedFusedMoE)
    torch.nn.Module.__init__(layer)
    layer._shared_experts = mlp
    layer.multistream_overlap_shared_expert = layer.multistream_overlap_gate = False
    layer.hidden_size = 5120
    layer.moe_config = types.SimpleNamespace(in_dtype=BF16)
    return layer


def shared_expert(rows: int) -> torch.Tensor:
    executor = present("vllm_ascend.ops.fused_moe.shared_experts")
    hidden = torch.randn(rows, 5120, generator=torch.Generator().manual_seed(rows)).to(BF16)
    if executor is not None and hasattr(executor, "AscendSharedExperts"):
        return shared_executor(executor, hidden)
    module = moe_module()
    layer = shared_layer(module, shared_mlp())
    routed = types.SimpleNamespace(
        routed_out=torch.zeros_like(hidden), before_dispatch_evt=None, before_combine_evt=None
    )
    result = routed if hasattr(module, "FusedMoEResult") else routed.routed_out
    with contextlib.ExitStack() as stack:
        for name in ("shared_experts_compute_stream", "shared_experts_calculation_stream"):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, Stream))
        stack.enter_context(
            mock.patch.object(module, "npu_stream_switch", lambda *a, **k: contextlib.nullcontext())
        )
        stack.enter_context(mock.patch.object(module.AscendFusedMoE, "forward_impl", lambda *a, **k: result))
        shared, _ = layer.forward_impl(hidden, torch.zeros(rows, 160))
    return shared


def shared_executor(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    cls, mlp = module.AscendSharedExperts, shared_mlp()
    executor = object.__new__(cls)
    group = types.SimpleNamespace(world_size=8, rank_in_group=0)
    vars(executor).update(
        layer=mlp,
        moe_config=types.SimpleNamespace(tp_group=group, is_sequence_parallel=False, in_dtype=BF16),
        hidden_size=5120,
        swiglu_limit=0.0,
        swiglu_alpha=1.0,
        swiglu_beta=0.0,
        is_sequence_parallel=False,
        situ_activation=None,
        quant_type=module.QuantType.W8A8,
        lora_context=None,
        multistream_overlap=False,
        weights_replicated=False,
    )
    milestones = module.RoutedMoEMilestones()
    prepared = module.PreparedSharedExpertInput(hidden_states=hidden)
    with (
        mock.patch.object(module, "shared_experts_calculation_stream", Stream),
        mock.patch.object(module, "npu_stream_switch", lambda *a, **k: contextlib.nullcontext()),
    ):
        return executor.forward(prepared, milestones)


def load_check(guide: bool) -> str | None:
    """The comparison that some releases make at loading; ``guide``: under the guide's edit of the method."""
    module = moe_module()
    cls = getattr(module, "AscendSharedFusedMoE", None)
    if cls is None or not hasattr(cls, "_validate_shared_expert_consistency"):
        return None
    mlp = shared_mlp()
    rand = torch.rand
    here = mock.patch.object(torch, "rand", lambda *a, device=None, **k: rand(*a, **k))
    if guide:
        import glm_pto_kernels

        class Pasted(type(mlp)):  # type: ignore[misc]
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return glm_pto_kernels.ffn_share_expert_quant(self, x)

        mlp.__class__ = Pasted
    with here:
        try:
            shared_layer(module, mlp)._validate_shared_expert_consistency()
        except ValueError:
            return "refused"
    return "passed"


# --- the decoder layer ----------------------------------------------------------------------------------


class Norm(torch.nn.Module):
    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        weight = 1 + 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(seed))
        self.weight = torch.nn.Parameter(weight.to(BF16), requires_grad=False)
        self.variance_epsilon = 1e-5

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x.float() if residual is None else x.float() + residual.float()
        normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * self.weight.float()
        return normed.to(BF16) if residual is None else (normed.to(BF16), total.to(BF16))


class Rotary(torch.nn.Module):
    """The first half of each head of 128 turns, by halves."""

    is_neox_style = True

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(300).unsqueeze(-1) / 1e4 ** (torch.arange(32) / 32)
        self.register_buffer("cos_sin_cache", torch.cat((angles.cos(), angles.sin()), -1).to(BF16))

    def forward(self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> Any:
        cos, sin = self.cos_sin_cache[positions].float().unsqueeze(1).chunk(2, -1)
        return tuple(self.turn(x, cos, sin) for x in (q, k))

    def turn(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b, rest = x.float().view(len(x), -1, 128).split((32, 32, 64), -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).flatten(1).to(BF16)


def plain_module(cls: Any, **attributes: Any) -> Any:
    """An object of a release's class without its __init__, which would want a whole engine."""
    made = object.__new__(cls)
    torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def decoder_layer(rows: int, first: bool) -> Any:
    """The release's Glm4MoeDecoderLayer and Glm4MoeAttention, one rank of eight, with static W8A8 weights."""
    glm = importlib.import_module("vllm.model_executor.models.glm4_moe")
    ops = present("vllm_ascend.ops.register_custom_ops")
    if hasattr(ops, "_quantize_impl") and not npu_on_cpu.QUANTIZE:
        npu_on_cpu.QUANTIZE.append(torch.library.Library("vllm", "IMPL", "CPU"))
        npu_on_cpu.QUANTIZE[0].impl("quantize", ops._quantize_impl)
    source = torch.Generator().manual_seed(rows)
    hidden, residual = (torch.randn(rows, 5120, generator=source).to(BF16) for _ in range(2))
    seen: list[Any] = []
    attention = plain_module(
        glm.Glm4MoeAttention,
        qkv_proj=Projection(quantisation("static"), 5120, 1792, seed=3),
        q_norm=Norm(128, 4),
        k_norm=Norm(128, 5),
        rotary_emb=Rotary(),
        attn=lambda q, k, v: seen.append((q, k, v)) or q,
        o_proj=lambda x: (x.repeat(1, 4)[:, :5120], None),
        q_size=1536,
        kv_size=128,
        head_dim=128,
        num_heads=12,
        num_kv_heads=1,
        use_qk_norm=True,
    )
    layer = plain_module(
        glm.Glm4MoeDecoderLayer,
        input_layernorm=Norm(5120, 6),
        self_attn=attention,
        post_attention_layernorm=Norm(5120, 7),
        mlp=lambda x: x,
    )
    out = layer(torch.arange(rows), hidden, None if first else residual)
    return (*out, *seen[0])


# --- the run --------------------------------------------------------------------------------------------


def run(name: str, watch: Watch, scenario: Any) -> dict[str, Any]:
    watch.calls.clear()
    npu_on_cpu.CALLS.clear()
    result = scenario()
    calls = [(n, {k: plain(v) for k, v in a.items()}) for n, a in watch.calls]
    return {"result": result, "calls": calls, "native": dict(npu_on_cpu.CALLS)}


def plain(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor | int | float | str | type(None)) else type(value).__name__


def scenarios() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (experts, top_k, groups, chosen, scoring, scale) in ROUTING.items():
        for rows in (1, 33):
            found[f"select_experts/{name}/{rows}"] = (
                lambda a=(experts, top_k, groups, chosen, scoring, scale), r=rows: route(*a, r)
            )
    for name, heads, kv, paged in (
        ("glm/paged", 12, 1, True),
        ("glm/fused", 12, 1, False),
        ("foreign/paged", 32, 8, True),
        ("foreign/fused", 32, 8, False),
    ):
        found[f"paged_attention/{name}"] = lambda h=heads, k=kv, p=paged: attention(h, k, p)[0]
    found["paged_attention/two_layers"] = two_layers
    found["paged_attention/strided"] = lambda: attention(12, 1, False, strided=True)[0]
    for rows in (1, 33):
        found[f"shared_expert/{rows}"] = lambda r=rows: shared_expert(r)
    for name, rows, first in (("first", 2, True), ("later", 2, False), ("later", 33, False)):
        found[f"attention_pre/{name}/{rows}"] = lambda r=rows, f=first: decoder_layer(r, f)
    found["load_check"] = lambda: load_check(False)
    return found


def main(out: str) -> None:
    npu_on_cpu.install()
    kernels = present("glm_pto_kernels")
    watch = Watch(kernels)
    forward_context = importlib.import_module("vllm.forward_context")
    forward_context._forward_context = context()
    utils = importlib.import_module("vllm_ascend.utils")
    # What the releases work out from the engine's configuration: no NZ weight format, no prefetching.
    settled = {
        "_ENABLE_NZ": False,
        "_should_trans_nz": lambda weight: False,
        "_WEIGHT_PREFETCH_METHOD": Stream(),
    }
    for name in settled.keys() & vars(utils).keys():
        setattr(utils, name, settled[name])
    torch.npu.current_stream = lambda *a, **k: Stream()  # type: ignore[attr-defined]
    report: dict[str, Any] = {}
    for on in (False, True) if kernels else (False,):
        with watch.switched(on):
            for name, scenario in scenarios().items():
                report[f"{name}/{'on' if on else 'off'}"] = run(name, watch, scenario)
    if kernels:
        report["sizes"] = sizes()
        with watch.switched(True):
            report["load_check/guide"] = run("guide", watch, lambda: load_check(True))
    torch.save(report, out)


def sizes() -> dict[Any, str | None]:
    """Why the fused backend leaves a step of the release's own objects native, None where it does not."""
    from glm_pto_kernels import backends

    choice = backends.decide("paged_attention", {"GLM_PTO_BACKEND": "pypto"})
    with mock.patch.dict(backends.CHOICES, {"paged_attention": choice}):
        return {
            ("pypto", 12, 1): refusal(12, 1),
            ("pypto", 32, 8): refusal(32, 8),
            ("pypto", "strided"): refusal(12, 1, strided=True),
        }


def refusal(heads: int, kv_heads: int, strided: bool = False) -> str | None:
    import glm_pto_kernels

    seen: list[str | None] = []

    def supported(*arguments: Any) -> bool:
        seen.append(glm_pto_kernels.paged_attention_refusal(*arguments))
        return False

    with mock.patch.object(glm_pto_kernels, "paged_attention_supported", supported):
        attention(heads, kv_heads, True, strided=strided)
    (answer,) = seen
    return answer


if __name__ == "__main__":
    main(sys.argv[1])
