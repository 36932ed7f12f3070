"""The guide's own pair, and vllm alone: applied, reviewed, reverted on the released files."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from glm_pto import Options, State, apply, diff, revert, status

pytestmark = pytest.mark.trees

FIVE = ["attention_pre", "gate", "paged_attention", "select_experts", "shared_expert"]
TREES = {
    "pair-0.12.0": ({"vllm": "0.12.0", "ascend": "0.12.0rc1"}, FIVE),
    "vllm-0.12.0": ({"vllm": "0.12.0"}, ["attention_pre", "gate", "shared_expert"]),
    "vllm-0.33.0": ({"vllm": "0.33.0"}, ["attention_pre", "gate", "shared_expert"]),
}


@pytest.fixture(params=TREES.values(), ids=TREES.keys())
def case(request, tree_factory):
    releases, sites = request.param
    return tree_factory(**releases), sites


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and mode of every file below a folder, ours beside the packages left out."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in root.rglob("*")
        if path.is_file() and ".glm-pto" not in path.parts
    }


class Unguard(ast.NodeTransformer):
    """Takes guards and our import out of a syntax tree, independently of the engine."""

    def visit_If(self, node: ast.If) -> object:
        self.generic_visit(node)
        ours = any(
            isinstance(n, ast.Attribute)
            and n.attr.startswith("USE_PTO_")
            and ast.unparse(n.value) == "glm_pto_kernels"
            for n in ast.walk(node.test)
        )
        return node.orelse if ours else node

    def visit_Import(self, node: ast.Import) -> object:
        return None if [a.name for a in node.names] == ["glm_pto_kernels"] else node


def test_apply_and_revert(case):
    """Faults 9 and 14 too: the else-branches are the file's own program, by a second opinion."""
    root, sites = case
    before = snapshot(root)
    result = apply([root])
    assert [f.site for f in result.trees[0].findings] == sites
    assert {f.state for f in result.trees[0].findings} == {State.APPLIED}
    after = snapshot(root)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {f.file for f in result.trees[0].findings}
    for name in changed:
        old, new = before[name][0], after[name][0]
        compile(new, name, "exec")
        assert ast.dump(Unguard().visit(ast.parse(new))) == ast.dump(ast.parse(old))
        assert after[name][1] == before[name][1]
        assert (b"\r\n" in new, new.count(b"\n") == new.count(b"\r\n")) == (
            b"\r\n" in old,
            old.count(b"\n") == old.count(b"\r\n"),
        )
    assert not apply([root]).changed
    assert snapshot(root) == after
    assert revert([root]).changed
    assert snapshot(root) == before
    assert not revert([root]).changed


def test_revert_needs_no_state(case):
    root, _ = case
    before = snapshot(root)
    apply([root])
    shutil.rmtree(root / ".glm-pto")
    revert([root])
    assert snapshot(root) == before
    assert not (root / ".glm-pto").exists()


@pytest.mark.parametrize(
    "tool", [["git", "apply", "-"], ["patch", "-p1", "--binary", "-s"]], ids=["git", "patch"]
)
def test_diff_equals_apply(case, tool):
    root, _ = case
    before = snapshot(root)
    subprocess.run(tool, cwd=root, input=diff([root]).patch, check=True)
    patched = snapshot(root)
    assert patched != before
    assert {f.state for f in status([root]).trees[0].findings} == {State.APPLIED}
    revert([root])
    assert snapshot(root) == before
    apply([root])
    assert snapshot(root) == patched


def test_single_sites_in_any_order_give_the_same_bytes(pair_tree):
    before = snapshot(pair_tree)
    for site in reversed(FIVE):
        apply([pair_tree], Options(sites=(site,)))
    after = snapshot(pair_tree)
    for site in ("gate", "shared_expert", "attention_pre"):
        revert([pair_tree], Options(sites=(site,)))
    apply([pair_tree])
    assert snapshot(pair_tree) == after
    for site in FIVE:
        revert([pair_tree], Options(sites=(site,)))
    assert snapshot(pair_tree) == before


def test_the_selector_stays_a_crlf_file(pair_tree):
    apply([pair_tree])
    data = (pair_tree / "vllm_ascend/ops/fused_moe/experts_selector.py").read_bytes()
    assert b"# glm-pto: select_experts 1" in data
    assert data.count(b"\n") == data.count(b"\r\n") > 100


def test_an_mlp_guard_is_taken_out_when_vllm_ascend_joins_the_tree(tree_factory):
    root = tree_factory(vllm="0.12.0")
    before = snapshot(root)
    apply([root])
    joined = tree_factory(vllm="0.12.0", ascend="0.12.0rc1")
    shutil.move(joined / "vllm_ascend", root / "vllm_ascend")
    rows = {(f.site, f.package): f.state for f in apply([root]).trees[0].findings}
    assert rows == {
        (s, "vllm" if s in ("gate", "attention_pre") else "vllm_ascend"): State.APPLIED for s in FIVE
    }
    assert b"USE_PTO_SHARE_EXPERTS" not in (root / "vllm/model_executor/models/glm4_moe.py").read_bytes()
    revert([root])
    del before["vllm-0.12.0.dist-info/METADATA"]
    assert {n: v for n, v in snapshot(root).items() if n.startswith("vllm/")} == before


def test_fault_5_every_edited_file_imports_the_layer(pair_tree):
    apply([pair_tree])
    for name, (data, _) in snapshot(pair_tree).items():
        if b"glm_pto_kernels." in data:
            tree = ast.parse(data)
            names = [a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names]
            assert names.count("glm_pto_kernels") == 1, name
