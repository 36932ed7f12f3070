"""torch.compile: one graph, dynamic token count, through AOTAutograd, and no log call in the conditions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import glm_pto_kernels as K
from glm_pto_kernels import backends
from tests.glm_pto_kernels import stand_ins
from tests.glm_pto_kernels.ops import test_attention_pre, test_shared_expert


class Layer(torch.nn.Module):
    """The patched parts of a decoder layer, guards included; counts are what the native arms return."""

    def __init__(self, sizes: stand_ins.Sizes, top_k: int = 4) -> None:
        super().__init__()
        self.top_k = top_k
        self.layer = stand_ins.DecoderLayer(sizes)
        self.expert = stand_ins.SharedExpert(sizes)
        self.gate = torch.nn.Linear(sizes.hidden, sizes.experts, bias=False)
        self.bias = stand_ins.frozen(torch.randn(sizes.experts))

    def forward(
        self, positions: torch.Tensor, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        attention = self.layer.self_attn
        if K.USE_PTO_FA_PRE and K.attention_pre_supported(self.layer, attention, positions, hidden):
            q, _, _, residual = K.attention_pre(hidden, residual, self.layer, attention, positions)
        else:
            q, residual = hidden * 0, hidden * 1
        if K.USE_PTO_GATE and K.gate_supported(self.gate, residual):
            logits = K.gate(self.gate, residual)
        else:
            logits = self.gate(residual.float()) * 0
        if K.USE_PTO_SELECT_EXPERTS and K.select_experts_supported(
            logits, self.top_k, True, 1, 1, self.bias, scoring_func="sigmoid"
        ):
            weights, ids = K.select_experts(
                logits, self.top_k, True, 1, 1, self.bias, routed_scaling_factor=2.5
            )
        else:
            weights, ids = logits[:, :4], logits[:, :4].int()
        if K.USE_PTO_SHARE_EXPERTS and K.ffn_share_expert_quant_supported(self.expert, residual):
            shared = K.ffn_share_expert_quant(self.expert, residual)
        else:
            shared = residual * 0
        return q, residual, weights, ids, shared


def compiled(layer: Layer) -> tuple[Callable[..., tuple[torch.Tensor, ...]], list[torch.fx.GraphModule]]:
    """The layer as one graph of dynamic size, through AOTAutograd, and the graphs that were made."""
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    return torch.compile(layer, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=keep)), graphs


def opaque(graph: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if str(n.target).startswith("glm_pto.")]


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("first", [True, False], ids=["residual_none", "residual"])
def test_one_graph_for_any_number_of_tokens(first: bool) -> None:
    layer = Layer(stand_ins.SMALL)
    function, graphs = compiled(layer)
    with torch.inference_mode():
        for tokens in (3, 2, 33, 200):
            positions, hidden = torch.arange(tokens), torch.randn(tokens, 256).bfloat16()
            residual = None if first else torch.randn(tokens, 256).bfloat16()
            for ours, eager in zip(
                function(positions, hidden, residual), layer(positions, hidden, residual), strict=True
            ):
                assert torch.equal(ours, eager)
    assert len(graphs) == 1
    assert opaque(graphs[0]) == [
        "glm_pto.attention_pre.default",
        "glm_pto.gate.default",
        "glm_pto.select_experts.default",
        "glm_pto.shared_expert.default",
    ]


def test_where_nothing_can_run_the_graph_holds_native_code_only(environment: Callable[..., None]) -> None:
    environment()
    function, graphs = compiled(Layer(stand_ins.SMALL))
    with torch.inference_mode():
        function(torch.arange(3), torch.randn(3, 256).bfloat16(), None)
    assert len(graphs) == 1 and not opaque(graphs[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", ["pypto", "upstream"])
def test_limits_of_a_kernel_are_traceable(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    environment(GLM_PTO_BACKEND=backend)
    monkeypatch.setattr(backends, "_KERNELS", dict.fromkeys(backends.OPERATORS, lambda *arguments: None))
    sizes = stand_ins.glm_4_5()
    layer = Layer(sizes, top_k=8)
    function, graphs = compiled(layer)
    with torch.inference_mode():
        function(torch.arange(3), torch.randn(3, sizes.hidden).bfloat16(), None)
    assert len(opaque(graphs[0])) == 4
    function, graphs = compiled(
        Layer(stand_ins.Sizes(hidden=96, experts=24, heads=2, head=24, intermediate=24))
    )
    with torch.inference_mode():
        function(torch.arange(3), torch.randn(3, 96).bfloat16(), None)
    assert {*opaque(graphs[0])} <= {"glm_pto.select_experts.default"}


REFUSED = [
    *(("attention_pre", name) for name in test_attention_pre.CHANGES),
    *(("shared_expert", name) for name in test_shared_expert.CHANGES),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize(("operator", "change"), REFUSED, ids="-".join)
def test_every_refusal_is_traced_as_one_graph(operator: str, change: str) -> None:
    layer, expert = stand_ins.DecoderLayer(stand_ins.SMALL), stand_ins.SharedExpert(stand_ins.SMALL)
    if operator == "attention_pre":
        test_attention_pre.CHANGES[change][0](layer)
    else:
        test_shared_expert.CHANGES[change][0](expert)

    def guards(positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        if operator == "attention_pre":
            return hidden + int(K.attention_pre_supported(layer, layer.self_attn, positions, hidden))
        return hidden + int(K.ffn_share_expert_quant_supported(expert, hidden))

    before = set(vars(layer.self_attn)), set(vars(expert))
    torch._dynamo.reset()
    with torch.inference_mode():
        compiled = torch.compile(guards, fullgraph=True, dynamic=True, backend="eager")
        assert not compiled(torch.arange(3), torch.zeros(3, stand_ins.SMALL.hidden).bfloat16()).any()
    assert (set(vars(layer.self_attn)), set(vars(expert))) == before


@pytest.mark.usefixtures("torch_backend")
def test_paged_attention_writes_in_place_under_compile() -> None:
    impl = stand_ins.AscendAttentionBackendImpl(stand_ins.SMALL)
    step = stand_ins.metadata([3, 200, 7])
    query = torch.randn(3, 4, 64).bfloat16()
    caches = impl.key_cache, impl.value_cache

    def decode(query: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return (
            torch.ops.glm_pto.paged_attention(query, *caches, step.block_tables, step.seq_lens, output, 0.125)
            or output.clone()
        )

    torch._dynamo.reset()
    with torch.inference_mode():
        eager, traced = torch.zeros_like(query), torch.zeros_like(query)
        decode(query, eager)
        result = torch.compile(decode, fullgraph=True, backend="aot_eager")(query, traced)
    assert eager.any() and torch.equal(eager, traced) and torch.equal(result, eager)
