"""Every release: the expected places are guarded, nothing else changes, and revert gives back every byte."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import pytest

from glm_pto import apply, revert, status
from glm_pto.cli import releases
from glm_pto.codemods import trees, verify
from glm_pto.codemods.findings import Finding, State

from .conftest import LightTree

OPERATORS = {"attention_pre", "gate", "paged_attention", "select_experts", "shared_expert"}
OF_VLLM = {"attention_pre", "gate", "shared_expert"}

#: The guide's pair, the pairs before and after it, the one with two MoE layers, the newest.
SOME_PAIRS = {"0.11.0", "0.12.0rc1", "0.13.0", "0.23.0", "0.30.0rc2"}
SOME_VLLM = {"0.12.0", "0.33.0"}


def vllm_of(ascend: str) -> str:
    """The vllm that upstream pairs a vllm-ascend with."""
    return {"0.14.0rc1": "0.14.1"}.get(ascend, ascend.partition("rc")[0].partition(".post")[0])


TREES = [(vllm_of(a), a, a in SOME_PAIRS) for a in releases.ASCEND]
TREES += [(v, None, v in SOME_VLLM) for v in releases.VLLM]


@pytest.mark.parametrize(
    ("vllm", "ascend"),
    [
        pytest.param(
            vllm,
            ascend,
            id=f"vllm-{vllm}-ascend-{ascend}",
            marks=pytest.mark.trees if some else pytest.mark.all_releases,
        )
        for vllm, ascend, some in TREES
    ],
)
def test_guards_and_reverts(light_tree: LightTree, vllm: str, ascend: str | None) -> None:
    root = light_tree(vllm, ascend)
    before = {path: path.read_bytes() for path in root.rglob("*.py")}

    edited = applied(root)
    assert sites(edited) == expected(ascend)
    after = {path: path.read_bytes() for path in before}
    changed = [path for path in before if after[path] != before[path]]
    for path in changed:
        assert "_310p" not in path.parts
        compile(after[path], str(path), "exec", dont_inherit=True)
        assert without_guards(after[path]) == ast.dump(ast.parse(before[path]))
        assert endings(after[path]) == endings(before[path])
    assert len(changed) == len({f.file for f in edited})

    refuted = [c for c in verify.verify(trees.find([root])) if c.ok is False]
    assert not refuted, refuted
    assert not apply([root]).changed, "a second apply changes something"
    revert([root])
    assert {path: path.read_bytes() for path in before} == before


def applied(root: Path) -> list[Finding]:
    """Apply, and what stands where then."""
    (report,) = apply([root]).trees
    return [f for f in report.findings if f.state is State.APPLIED]


def sites(found: list[Finding]) -> list[str]:
    return sorted(f.site for f in found)


def expected(ascend: str | None) -> list[str]:
    """One place a site, but two of the shared expert in 0.23 and none before 0.11."""
    if ascend is None:
        return sorted(OF_VLLM)
    if ascend.startswith("0.10."):
        return sorted(OPERATORS - {"shared_expert"})
    return sorted([*OPERATORS, *(["shared_expert"] if ascend.startswith("0.23.") else [])])


def endings(data: bytes) -> set[bytes]:
    return {line[len(line.rstrip(b"\r\n")) :] for line in data.splitlines(keepends=True)} - {b""}


class Unguard(ast.NodeTransformer):
    """An inverse of the guard that shares nothing with the patcher: what calls the layer goes."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        return node.orelse if "glm_pto_kernels" in names else node

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return None if node.names[0].name == "glm_pto_kernels" else node


def without_guards(data: bytes) -> str:
    return ast.dump(Unguard().visit(copy.deepcopy(ast.parse(data))))


@pytest.mark.trees
@pytest.mark.parametrize(
    ("vllm", "ascend"),
    [
        pytest.param("0.12.0", "0.13.0", id="newer_ascend"),
        pytest.param("0.33.0", "0.12.0rc1", id="much_newer_vllm"),
        pytest.param("0.24.0", "0.23.0", id="the_second_moe_layer"),
    ],
)
def test_a_mixed_tree_is_edited_by_structure_and_told(light_tree: LightTree, vllm: str, ascend: str) -> None:
    root = light_tree(vllm, ascend)
    assert sites(applied(root)) == expected(ascend)
    (report,) = status([root]).trees
    assert any("do not belong together" in note for note in report.notes)
