"""`docs/support.md` is what a fresh run over the released sources says."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def support() -> ModuleType:
    spec = importlib.util.spec_from_file_location("support", DOCS / "support.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["support"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_is_written_from_the_rows(support: ModuleType) -> None:
    assert support.TABLE.read_text() == support.render(support.load())


def test_the_rows_cover_every_release(support: ModuleType) -> None:
    assert [(r.vllm, r.ascend) for r in support.load()] == list(support.trees())


def test_no_cell_is_left_unexplained(support: ModuleType) -> None:
    for row in support.load():
        for cell in row.cells:
            assert cell.state in ("applicable", "absent"), (row.ascend, cell)
            assert cell.when, (row.ascend, cell)


def test_every_form_was_found_in_a_release(support: ModuleType) -> None:
    from glm_pto.codemods import recipes

    found = {(c.site, c.place, c.form) for r in support.load() for c in r.cells}
    sites = {c.site for r in support.load() for c in r.cells}
    declared = {(r.site, p.name, f.name) for r in recipes.load() for p in r.places for f in p.forms}
    assert {key for key in declared if key[0] in sites} <= found


def check(support: ModuleType, wanted: list[tuple[str, str | None]]) -> int:
    kept = {(r.vllm, r.ascend): r for r in support.load()}
    fresh = [row for key in wanted if (row := support.survey(*key))]
    for row in fresh:
        assert json.loads(support.dump([row])) == json.loads(support.dump([kept[row.vllm, row.ascend]])), (
            f"vllm {row.vllm}, vllm-ascend {row.ascend}: run `python3 docs/support.py`"
        )
    return len(fresh)


@pytest.mark.trees
def test_some_rows_equal_a_fresh_run(support: ModuleType) -> None:
    wanted = [("0.11.0", "0.11.0"), ("0.12.0", "0.12.0rc1"), ("0.13.0", "0.13.0"), ("0.33.0", None)]
    if not check(support, wanted):
        pytest.skip("no release is cached; tests/fetch_releases.py fetches them")


@pytest.mark.all_releases
def test_all_rows_equal_a_fresh_run(support: ModuleType) -> None:
    assert check(support, list(support.trees())) > 0, "no release is cached"


def test_forms_name_the_releases_that_they_were_found_in(support: ModuleType) -> None:
    """The words of a form, "0.11.0rc0-0.11.0, 0.12.0rc1", against the rows."""
    from glm_pto.cli import releases
    from glm_pto.codemods import recipes

    rows = support.load()
    for recipe in recipes.load():
        for place in recipe.places:
            ascend = place.package == "vllm_ascend"
            order = releases.ASCEND if ascend else releases.VLLM
            for form in place.forms:
                key = (recipe.site, place.name, form.name)
                found = {
                    r.ascend if ascend else r.vllm
                    for r in rows
                    if key in {(c.site, c.place, c.form) for c in r.cells}
                }
                if found:
                    assert expanded(form.releases, order) == found, key


def expanded(words: str, order: tuple[str, ...]) -> set[str]:
    """All releases that a text names, ranges included."""
    found: set[str] = set()
    for first, last in re.findall(r"(\d+\.\d[\w.]*)(?:-(\d+\.\d[\w.]*))?", words):
        found |= set(order[order.index(first) : order.index(last or first) + 1])
    return found
