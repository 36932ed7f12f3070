"""Statements that are there though a guard around them would be wrong, and one place in two files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from glm_pto.codemods import plan, recipes, trees
from glm_pto.codemods.findings import State
from tests.codemods.planted import FILE, GATE, HEAD, METHOD, MODEL, plant, refused

WRONG = {
    "name_that_nobody_binds": (
        MODEL.replace("(self, hidden_states)", "(self, states)"),
        f"{FILE}:7: the statements are there, but nothing here is called hidden_states",
    ),
    "value_that_the_operator_does_not_give": (
        MODEL.replace(GATE, "router_logits, _ = self.gate(hidden_states)").replace(
            "return router_logits", "return router_logits, _"
        ),
        f"{FILE}:7: the statements are there, but later code reads _, which the operator does not give",
    ),
    "layers_name_is_a_local": (
        MODEL.replace("return router_logits", "glm_pto_kernels = router_logits"),
        f"{FILE}:7: glm_pto_kernels is a local name here; rename it",
    ),
    "layers_name_is_a_parameter": (
        MODEL.replace("hidden_states)", "hidden_states, glm_pto_kernels=None)", 1),
        f"{FILE}:7: glm_pto_kernels is a local name here; rename it",
    ),
    "tabs_after_spaces": (
        HEAD + "class Glm4MoE:\n\tdef forward(self, hidden_states):\n" + f"        \t{GATE}\n",
        f"{FILE}:7: the indentation mixes tabs and spaces; use one",
    ),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_a_guard_that_would_be_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    plant(tmp_path, text)
    refused(tmp_path, said)


@pytest.mark.parametrize("where", ["one", "other", "both", "pasted"])
def test_the_statements_of_one_place_in_two_files(tmp_path: Path, where: str) -> None:
    """Upstream moves code between files: each may be the one, both together are ambiguous."""
    recipe = next(r for r in recipes.load() if r.site == "gate")
    (place,) = recipe.places
    other = "model_executor/models/other.py"
    place = replace(place, forms=(*place.forms, *(replace(form, file=other) for form in place.forms)))
    pasted = HEAD + METHOD.replace(GATE, "router_logits = glm_pto_kernels.gate(self, hidden_states)")
    empty = HEAD
    plant(tmp_path, empty if where == "other" else MODEL)
    text = {"one": empty, "pasted": pasted}.get(where, MODEL)
    (tmp_path / "vllm" / other).write_text(text)
    (tree,) = trees.find([tmp_path])
    found = plan.look(plan.Files(tree), recipe, place, tree.packages[0]).finding
    if where == "both":
        assert found.state is State.AMBIGUOUS
        assert found.message == (f"the statements stand in 2 files ({FILE}:7, vllm/{other}:7); expected one")
    else:
        state = State.PASTED if where == "pasted" else State.APPLICABLE
        assert (found.state, found.file) == (state, FILE if where == "one" else f"vllm/{other}")
