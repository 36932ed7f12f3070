"""Snippets of the guide, pasted by hand into real files: named site by site, never patched twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from glm_pto.codemods import operations
from glm_pto.codemods.findings import Refusal, State
from glm_pto.codemods.survey import Options

from .conftest import LightTree

MODEL = "vllm/model_executor/models/glm4_moe.py"
ATTENTION = "vllm_ascend/attention/attention_v1.py"
SELECTOR = "vllm_ascend/ops/fused_moe/experts_selector.py"
SITES = ("attention_pre", "gate", "paged_attention", "select_experts", "shared_expert")

pytestmark = pytest.mark.trees


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Change a file as an editor would: its line ending stays."""
    text = path.read_bytes().decode()
    ending = "\r\n" if "\r\n" in text else "\n"
    changed = change(text.replace("\r\n", "\n"))
    assert changed != text.replace("\r\n", "\n"), f"{path.name}: nothing to paste over"
    path.write_bytes(changed.replace("\n", ending).encode())


def swap(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, lambda found: found.expand(new), text, count=1, flags=re.S)


def import_at_top(text: str) -> str:
    return re.sub(r"^(?=import torch$)", "import glm_pto_kernels\n", text, count=1, flags=re.M)


def switched(pattern: str, test: str, branch: str) -> Callable[[str], str]:
    """Put the lines that ``pattern`` matches under the guide's ``if`` and ``else``."""

    def change(text: str) -> str:
        found = re.search(pattern, text, flags=re.S | re.M)
        assert found is not None, pattern
        lines = found[0].splitlines()
        indent = re.match(" *", lines[0])[0]  # type: ignore[index]
        deeper = "\n".join("    " + line for line in lines)
        new = f"{indent}if {test}:\n{indent}    {branch}\n{indent}else:\n{deeper}"
        return text[: found.start()] + new + text[found.end() :]

    return change


NATIVE_GATE = r"self\.gate\(hidden_states\.to\(dtype=torch\.float32\)\)"
NATIVE_ATTENTION = r"^ *torch_npu\._npu_paged_attention\(\n.*?out=output\)"
NATIVE_CHOICE = r"^ *topk_weights, topk_ids = _native_select_experts\(\n.*?\n *\)"
NATIVE_NORM = r"^        if residual is None:\n.*?hidden_states=hidden_states\)"


def gate(root: Path) -> None:
    edit(
        root / MODEL,
        swap(NATIVE_GATE, "glm_pto_kernels.gate(self.gate, hidden_states.to(dtype=torch.float32))"),
    )


def paged_attention(root: Path, test: str = "glm_pto_kernels.USE_PTO_FA") -> None:
    call = (
        "glm_pto_kernels.paged_attention(query, self.key_cache, self.value_cache, "
        "attn_metadata.block_tables, attn_metadata.seq_lens, output)"
    )
    edit(root / ATTENTION, switched(NATIVE_ATTENTION, test, call))


def attention_pre_in_attention(root: Path, arguments: str = "hidden_states, residual, layer, self") -> None:
    edit(
        root / MODEL,
        switched(
            r"^        qkv, _ = self\.qkv_proj.*?q, k = self\.rotary_emb\(positions, q, k\)",
            "glm_pto_kernels.USE_PTO_FA_PRE",
            f"q, k, v, residual = glm_pto_kernels.attention_pre({arguments})",
        ),
    )


def attention_pre_in_layer(root: Path) -> None:
    call = "hidden_states, residual = self.self_attn(self, positions, hidden_states, residual)"
    edit(root / MODEL, switched(NATIVE_NORM, "glm_pto_kernels.USE_PTO_FA_PRE", call))


def attention_pre(root: Path) -> None:
    attention_pre_in_attention(root)
    attention_pre_in_layer(root)


def attention_pre_with_positions(root: Path) -> None:
    attention_pre_in_attention(root, "hidden_states, residual, layer, self, positions")
    attention_pre_in_layer(root)


def shared_expert(root: Path, test: str = "self.is_down_proj_quant") -> None:
    lines = (
        f"        if glm_pto_kernels.USE_PTO_SHARE_EXEPERTS and {test}:\n"
        "            return glm_pto_kernels.ffn_share_expert_quant(self, x)\n"
    )
    edit(root / MODEL, swap(r"(?=        gate_up, _ = self\.gate_up_proj\(x\))", lines))


def select_experts(root: Path, test: str = "glm_pto_kernels.USE_PTO_SELECT_EXEPERTS") -> None:
    call = (
        "topk_weights, topk_ids = glm_pto_kernels.select_experts("
        "router_logits, top_k, renormalize, topk_group, num_expert_group, e_score_correction_bias)"
    )
    edit(root / SELECTOR, switched(NATIVE_CHOICE, test, call))


def the_import(root: Path) -> None:
    edit(root / MODEL, import_at_top)


def all_imports(root: Path) -> None:
    for name in (MODEL, ATTENTION, SELECTOR):
        edit(root / name, import_at_top)


def renamed_import(root: Path) -> None:
    edit(root / MODEL, swap(r"(?m)^import torch$", "import glm_pto_kernels as pto\nimport torch"))
    edit(root / MODEL, swap(NATIVE_GATE, "pto.gate(self.gate, hidden_states)"))


def imported_member(root: Path) -> None:
    edit(root / MODEL, swap(r"(?m)^import torch$", "from glm_pto_kernels import gate as fused\nimport torch"))
    edit(root / MODEL, swap(NATIVE_GATE, "fused(self.gate, hidden_states)"))


def a_decode_only_switch(root: Path) -> None:
    paged_attention(root, "glm_pto_kernels.USE_PTO_FA and self.num_kv_heads == 1")


def an_expert_count_test(root: Path) -> None:
    select_experts(root, "glm_pto_kernels.USE_PTO_SELECT_EXEPERTS and router_logits.shape[-1] == 160")


def a_test_that_exists(root: Path) -> None:
    shared_expert(root, "hasattr(self.down_proj, 'weight_scale')")


Paste = Callable[[Path], None]
FAITHFUL: tuple[Paste, ...] = (
    the_import,
    gate,
    paged_attention,
    attention_pre,
    shared_expert,
    select_experts,
)
REPAIRED: tuple[Paste, ...] = (
    all_imports,
    gate,
    a_decode_only_switch,
    attention_pre_with_positions,
    a_test_that_exists,
    an_expert_count_test,
)

CASES = [
    pytest.param(FAITHFUL, SITES, id="the_whole_guide"),
    pytest.param(REPAIRED, SITES, id="the_whole_guide_repaired"),
    pytest.param((the_import, gate), ("gate",), id="gate"),
    pytest.param((gate,), ("gate",), id="gate_without_the_import"),
    pytest.param((renamed_import,), ("gate",), id="gate_under_another_name"),
    pytest.param((imported_member,), ("gate",), id="gate_imported_by_name"),
    pytest.param((paged_attention,), ("paged_attention",), id="attention"),
    pytest.param((a_decode_only_switch,), ("paged_attention",), id="attention_repaired"),
    pytest.param((attention_pre,), ("attention_pre",), id="both_halves_of_attention_pre"),
    pytest.param((attention_pre_in_attention,), ("attention_pre",), id="first_half_of_attention_pre"),
    pytest.param((attention_pre_in_layer,), ("attention_pre",), id="second_half_of_attention_pre"),
    pytest.param((shared_expert,), ("shared_expert",), id="shared_expert"),
    pytest.param((select_experts,), ("select_experts",), id="select_experts"),
    pytest.param((an_expert_count_test,), ("select_experts",), id="select_experts_repaired"),
    pytest.param((gate, select_experts), ("gate", "select_experts"), id="two_of_five"),
]


def paste(root: Path, snippets: Iterable[Paste]) -> dict[Path, bytes]:
    for snippet in snippets:
        snippet(root)
    return {path: path.read_bytes() for path in root.rglob("*.py")}


def states(root: Path) -> dict[str, State]:
    """State of each site; a pasted place counts before the others of its site."""
    (report,) = operations.status([root]).trees
    rows = sorted(report.findings, key=lambda f: f.state is State.PASTED)
    return {f.site: f.state for f in rows}


def test_an_import_alone_is_no_snippet(light_tree: LightTree) -> None:
    root = light_tree("0.12.0", "0.12.0rc1")
    paste(root, [the_import])
    assert set(states(root).values()) == {State.APPLICABLE}


@pytest.mark.parametrize(("snippets", "sites"), CASES)
def test_names_and_refuses_all_or_guards_the_rest(
    light_tree: LightTree, snippets: tuple[Paste, ...], sites: tuple[str, ...]
) -> None:
    root = light_tree("0.12.0", "0.12.0rc1")
    before = paste(root, snippets)
    assert {site for site, state in states(root).items() if state is State.PASTED} == set(sites)
    assert {state for site, state in states(root).items() if site not in sites} <= {State.APPLICABLE}

    with pytest.raises(Refusal) as refusal:
        operations.apply([root])
    assert {path: path.read_bytes() for path in before} == before
    text = str(refusal.value)
    for site in sites:
        assert f"--skip {site}" in text
    assert "pip install --no-deps --force-reinstall vllm" in text

    operations.apply([root], Options(skip=sites))
    guarded = {site for site, state in states(root).items() if state is State.APPLIED}
    assert guarded == set(SITES) - set(sites)
    for path in before:
        assert not re.search(rb"# glm-pto: (%s) " % "|".join(sites).encode(), path.read_bytes())

    operations.revert([root])
    assert {path: path.read_bytes() for path in before} == before
