"""The paged_attention recipe: the eager decode call, or the choice between two native operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glm_pto.codemods.findings import State

FILE = "vllm_ascend/attention/attention_v1.py"

CALL = (
    "torch_npu._npu_paged_attention(query=query, key_cache=self.key_cache, value_cache=self.value_cache, "
    "num_kv_heads=self.num_kv_heads, num_heads=self.num_heads, scale_value=self.scale, "
    "block_table=attn_metadata.block_tables, context_lens=attn_metadata.seq_lens, out=output{more})"
)
EAGER = CALL.format(more="")

DECODE = """\
class AscendAttentionBackendImpl:
    def _forward_decode_only(self, query, attn_metadata, output=None):
        if {window}:
            output = self.windowed(query)
        else:
            {call}
        return output
"""
WINDOW = "self.sliding_window is not None"
WINDOW_AND_ROWS = "self.sliding_window is not None and attn_metadata.seq_lens.shape[0] == query.size(0)"

CAPTURE = """\
            if forward_context.capturing:
                {captured}
            else:
                {eager}
"""

CHOICE = """\
class AscendAttentionBackendImpl:
    def forward_impl(self, query, key, value, kv_cache, attn_metadata, output):
        num_tokens = query.shape[0]
        if ({test}):
            output = self.forward_paged_attention(query, attn_metadata, output)
        else:
            output = self.forward_fused_infer_attention(
                query, key, value, attn_metadata, output{more})
        return output
"""
IS_DECODE = "attn_metadata.attn_state == AscendAttentionState.DecodeOnly"
USING = "using_paged_attention(num_tokens, self.vllm_config{more})"
UNWINDOWED = "self.sliding_window is None"

BRANCH = (
    "output = glm_pto_kernels.paged_attention(query, self.key_cache, self.value_cache, "
    "attn_metadata.block_tables, attn_metadata.seq_lens, output, scale=self.scale, "
    "attn_metadata=attn_metadata)"
)
HEADER = "from x import AscendAttentionState, using_paged_attention\nimport torch_npu\n\n\n"

Make = Callable[..., Any]


def decode(call: str = EAGER, window: str = WINDOW) -> str:
    return HEADER + DECODE.format(call=call, window=window)


def captured(first: str, second: str) -> str:
    arms = CAPTURE.format(captured=first, eager=second)
    return HEADER + "forward_context = None\n" + DECODE.format(call=arms.strip(), window=WINDOW_AND_ROWS)


def choice(*tests: str, more: str = "", using: str = USING.format(more="")) -> str:
    return HEADER + CHOICE.format(test=" and ".join(tests or (IS_DECODE, using, UNWINDOWED)), more=more)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        pytest.param(decode(), "decode-method", id="window_test_alone"),
        pytest.param(decode(window=WINDOW_AND_ROWS), "decode-method-window-arm", id="window_and_rows"),
    ],
)
def test_guards_the_decode_call(patient: Make, text: str, form: str) -> None:
    tree = patient({FILE: text})
    assert tree.finding().form == form
    assert (
        "        else:\n"
        "            if glm_pto_kernels.USE_PTO_FA and glm_pto_kernels.paged_attention_supported("
        "self, query, attn_metadata):  # paged_attention\n"
        f"                {BRANCH}\n"
        "            else:\n"
        f"                {EAGER}\n"
        "        return output\n"
    ) in tree.guarded()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(captured(CALL.format(more=", workspace=w"), EAGER), id="a_capture_with_a_workspace"),
        pytest.param(captured(EAGER, EAGER), id="two_calls_of_the_same_text"),
    ],
)
def test_guards_the_eager_arm_only(patient: Make, text: str) -> None:
    tree = patient({FILE: text})
    assert tree.finding().form == "decode-method-eager-arm"
    edited = tree.guarded()
    before_else, _, eager = edited.partition("            else:\n                if glm_pto_kernels.")
    assert eager and "glm_pto_kernels.paged" not in before_else


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(choice(), id="window_test_last"),
        pytest.param(
            choice(IS_DECODE, UNWINDOWED, USING.format(more=", self.head_size")), id="window_test_second"
        ),
        pytest.param(choice(more=", kv_cache"), id="cache_handed_on"),
        pytest.param(
            choice()
            .replace("        if (", "        with window():\n          if (")
            .replace("\n            out", "\n              out")
            .replace("        else:", "          else:"),
            id="inside_a_with",
        ),
    ],
)
def test_guards_the_choice(patient: Make, text: str) -> None:
    tree = patient({FILE: text})
    assert tree.finding().form == "choice-of-operator"
    edited = tree.guarded()
    assert (
        f"if glm_pto_kernels.USE_PTO_FA and {IS_DECODE} and glm_pto_kernels.paged_attention_supported("
        "self, query, attn_metadata):  # paged_attention\n"
    ) in edited
    assert BRANCH in edited


@pytest.mark.parametrize("text", [pytest.param(decode(), id="call"), pytest.param(choice(), id="choice")])
def test_is_applied_once(patient: Make, text: str) -> None:
    tree = patient({FILE: text})
    tree.apply()
    assert tree.finding().state is State.APPLIED


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(decode().replace("BackendImpl", "BackendImpl310"), id="the_310p_backend"),
        pytest.param(choice().replace("BackendImpl", "CPImpl"), id="context_parallel"),
        pytest.param(choice().replace("BackendImpl", "MLAImpl"), id="mla"),
        pytest.param(decode().replace("_decode_only(", "_decode_only_ascend91095("), id="another_chip"),
        pytest.param(decode().replace("_forward_decode_only", "update_attn_params"), id="the_replay_update"),
    ],
)
def test_leaves_alone(patient: Make, text: str) -> None:
    found = patient({FILE: text.replace("torch_npu._npu", "torch_npu.npu")}).finding()
    assert found.state is State.ABSENT


def test_never_edits_a_310p_file(patient: Make) -> None:
    tree = patient({"vllm_ascend/_310p/attention/attention_v1.py": decode()})
    assert tree.finding().state is State.ABSENT


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param(
            decode(EAGER.replace("scale_value=self.scale", "scale_value=1.0")), State.MOVED, id="a_scale"
        ),
        pytest.param(decode(CALL.format(more=", workspace=w")), State.MOVED, id="a_workspace"),
        pytest.param(decode(f"output = {EAGER}"), State.MOVED, id="a_result_is_kept"),
        pytest.param(captured(EAGER, "pass"), State.MOVED, id="only_the_captured_call"),
        pytest.param(choice(USING.format(more=""), IS_DECODE), State.MOVED, id="decode_not_tested_first"),
        pytest.param(choice(IS_DECODE, UNWINDOWED), State.MOVED, id="no_choice_of_operator"),
        pytest.param(
            choice().replace("output = self.forward_paged", "out2 = self.forward_paged"),
            State.MOVED,
            id="another_result",
        ),
        pytest.param(
            choice().replace("from x import AscendAttentionState,", "import x;"),
            State.MOVED,
            id="an_unbound_name",
        ),
        pytest.param(decode(f"{EAGER}\n            {EAGER}"), State.AMBIGUOUS, id="twice"),
        pytest.param(
            decode() + choice().removeprefix(HEADER).partition("\n")[2], State.AMBIGUOUS, id="both_hooks"
        ),
        pytest.param(
            decode(
                "glm_pto_kernels.paged_attention(query, self.key_cache, self.value_cache, None, None, output)"
            ),
            State.PASTED,
            id="the_guides_call",
        ),
        pytest.param(
            decode(f"if glm_pto_kernels.USE_PTO_FA:\n                pass\n            {EAGER}"),
            State.PASTED,
            id="the_guides_switch",
        ),
    ],
)
def test_refuses(patient: Make, text: str, state: State) -> None:
    found = patient({FILE: text}).finding()
    assert found.state is state
    assert found.message


@pytest.mark.parametrize(
    ("ascend", "default", "words"),
    [
        pytest.param("0.10.2rc1", True, "unquantised", id="unquantised"),
        pytest.param("0.12.0rc1", True, "piecewise", id="eager_between_graphs"),
        pytest.param("0.20.2rc1", True, "FULL_DECODE_ONLY", id="last_piecewise_default"),
        pytest.param("0.21.0rc1", False, "cudagraph_mode=PIECEWISE", id="full_graphs_by_default"),
        pytest.param("0.30.0rc1", False, "whole blocks apart", id="strided_caches"),
        pytest.param("", None, "enforce_eager", id="no_version"),
    ],
)
def test_reached(patient: Make, ascend: str, default: bool | None, words: str) -> None:
    fact = patient({FILE: choice()}, **({"vllm_ascend": ascend} if ascend else {})).reached()
    assert fact.by_default is default and words in fact.when


@pytest.mark.parametrize("text", [decode(), decode(window=WINDOW_AND_ROWS), captured(EAGER, EAGER), choice()])
def test_an_applied_form_keeps_its_name(patient: Make, text: str) -> None:
    tree = patient({FILE: text})
    before = tree.finding().form
    tree.apply()
    assert tree.finding().form == before
