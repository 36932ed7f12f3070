"""The attention_pre recipe: two statements of the decoder layer, tied to what the attention does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glm_pto.codemods.findings import State

FILE = "vllm/model_executor/models/glm4_moe.py"

ATTENTION = """\
class Glm4MoeAttention:
    def forward(self, positions, hidden_states):
        "Project, normalise, rotate, attend, project."
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        if self.use_qk_norm:
            q = self.q_norm(q.reshape(-1, self.num_heads, self.head_dim)).reshape(q.shape)
            k = self.k_norm(k.reshape(-1, self.num_kv_heads, self.head_dim)).reshape(k.shape)
        q, k = self.rotary_emb(positions, q, k)
        attn_output = self.attn(q, k, v)
        output, _ = self.o_proj(attn_output)
        return output


"""

SITE = """\
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(
                hidden_states, residual)
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
"""

LAYER = """\
class Glm4MoeDecoderLayer:
    def forward(self, positions, hidden_states, residual):
{site}        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual
"""

GUARD = """\
        if glm_pto_kernels.USE_PTO_FA_PRE and glm_pto_kernels.attention_pre_supported(\
self, self.self_attn, positions, hidden_states):  # attention_pre
            q, k, v, residual = glm_pto_kernels.attention_pre(\
hidden_states, residual, self, self.self_attn, positions)
            attn_output = self.self_attn.attn(q, k, v)
            hidden_states, _ = self.self_attn.o_proj(attn_output)
        else:
"""

Make = Callable[..., Any]


def layer(site: str = SITE) -> str:
    return ATTENTION + LAYER.format(site=site)


def test_guards_both_statements(patient: Make) -> None:
    deeper = "".join(f"    {line}\n" for line in SITE.splitlines())
    expected = "import glm_pto_kernels  # glm-pto: import 1\n" + layer(GUARD + deeper)
    assert patient({FILE: layer()}).guarded() == expected


def test_keeps_comments_between_the_statements(patient: Make) -> None:
    noted = SITE.replace(
        "        hidden_states = self.self_attn", "\n        # attend\n        hidden_states = self.self_attn"
    )
    assert (
        "\n\n            # attend\n            hidden_states = self.self_attn("
        in patient({FILE: layer(noted)}).guarded()
    )


def test_is_applied_once(patient: Make) -> None:
    tree = patient({FILE: layer()})
    tree.apply()
    assert tree.finding().state is State.APPLIED


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(layer().replace("Glm4MoeDecoderLayer", "Glm4DecoderLayer"), id="the_dense_model"),
        pytest.param(layer().replace("Glm4MoeDecoderLayer", "LlamaDecoderLayer"), id="another_model"),
        pytest.param(layer().replace("Glm4MoeDecoderLayer", "Glm4MoeLiteDecoderLayer"), id="the_lite_model"),
        pytest.param(
            layer().replace("Layer:\n    def forward", "Layer:\n    def prefill"),
            id="another_method_of_the_layer",
        ),
        pytest.param(ATTENTION, id="attention_only"),
    ],
)
def test_leaves_alone(patient: Make, text: str) -> None:
    assert patient({FILE: text}).finding().state is State.ABSENT


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param(
            layer(
                SITE.replace("positions=positions, hidden_states=hidden_states", "positions, hidden_states")
            ),
            State.MOVED,
            id="positional_arguments",
        ),
        pytest.param(
            layer(SITE.replace("hidden_states = self.self_attn", "hidden_states, residual = self.self_attn")),
            State.MOVED,
            id="the_guides_signature",
        ),
        pytest.param(
            layer(
                SITE.replace(
                    "        else:\n", "        elif self.sandwich:\n            pass\n        else:\n"
                )
            ),
            State.MOVED,
            id="a_third_arm",
        ),
        pytest.param(
            layer(
                SITE.replace(
                    "        hidden_states = self.self_attn",
                    "        x = 1\n        hidden_states = self.self_attn",
                )
            ),
            State.MOVED,
            id="a_statement_between",
        ),
        pytest.param(
            layer().replace(
                "        attn_output = self.attn(q",
                "        q = q * self.scale\n        attn_output = self.attn(q",
            ),
            State.MOVED,
            id="a_new_step_in_the_attention",
        ),
        pytest.param(
            layer().replace(
                "        output, _ = self.o_proj(attn", "        output, _ = self.o_proj(self.gate * attn"
            ),
            State.MOVED,
            id="an_output_gate",
        ),
        pytest.param(LAYER.format(site=SITE), State.MOVED, id="no_attention_to_compare_with"),
        pytest.param(
            layer().replace("positions, hidden_states, residual)", "where, hidden_states, residual)"),
            State.MOVED,
            id="renamed_parameter",
        ),
        pytest.param(layer(SITE + SITE), State.AMBIGUOUS, id="twice"),
        pytest.param(
            layer().replace(
                "        attn_output = self.attn(q",
                "        q, k, v, r = glm_pto_kernels.attention_pre(hidden_states, None, None, self)\n"
                "        attn_output = self.attn(q",
            ),
            State.PASTED,
            id="half_of_the_guide_in_the_attention",
        ),
        pytest.param(
            layer("        if glm_pto_kernels.USE_PTO_FA_PRE:\n            pass\n" + SITE),
            State.PASTED,
            id="half_of_the_guide_in_the_layer",
        ),
    ],
)
def test_refuses(patient: Make, text: str, state: State) -> None:
    found = patient({FILE: text}).finding()
    assert found.state is state
    assert "attention_pre" in found.message or found.state is State.AMBIGUOUS


def test_a_new_step_is_named(patient: Make) -> None:
    text = layer().replace(
        "        attn_output = self.attn(q", "        v = v * 2\n        attn_output = self.attn(q"
    )
    assert "Glm4MoeAttention.forward is not the reviewed text" in patient({FILE: text}).finding().message


@pytest.mark.parametrize(
    ("ascend", "default", "words"),
    [
        pytest.param(None, False, "with vllm-ascend beside", id="vllm_alone"),
        pytest.param("0.10.1rc1", False, "from vllm-ascend 0.11.0", id="w8a8_does_not_load"),
        pytest.param("0.12.0rc1", True, "enable_shared_expert_dp", id="default"),
        pytest.param("0.30.0rc2", True, "flashcomm", id="newest"),
        pytest.param("", None, "unknown", id="no_version"),
    ],
)
def test_reached(patient: Make, ascend: str | None, default: bool | None, words: str) -> None:
    files = {FILE: layer()} | ({} if ascend is None else {"vllm_ascend/a.py": ""})
    fact = patient(files, vllm="0.12.0", **({"vllm_ascend": ascend} if ascend else {})).reached()
    assert fact.by_default is default and words in fact.when
