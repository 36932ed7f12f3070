"""The benchmark without a simulation: its shapes, its bounds, and that the page shows its results."""

import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from benchmarks.pypto_sim import cases, chart, references, roofline, shapes, table, upstream

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/pypto_sim/results.json"


def test_every_shape_is_taken_by_its_kernel():
    from glm_pto_kernels.pypto import attention_pre, gate, paged_attention, select_experts, shared_expert

    modules = {
        "gate": gate,
        "select_experts": select_experts,
        "paged_attention": paged_attention,
        "attention_pre": attention_pre,
        "shared_expert": shared_expert,
    }
    for shape in shapes.headline():
        inputs = getattr(cases, f"{shape.operator}_inputs")(**shape.sizes)
        assert modules[shape.operator].launch(**inputs).tensors
        assert hasattr(references, shape.operator)
        assert shapes.upstream_runs(shape)
    assert not all(shapes.upstream_runs(shape) for shape in shapes.wide())


def test_the_bound_of_a_large_product_is_its_operations():
    few, many = roofline.gate(8), roofline.gate(100_000)
    assert few.least_us() == pytest.approx(few.moved / roofline.BYTES_PER_SECOND * 1e6)
    assert many.least_us() == pytest.approx(many.products / roofline.PRODUCTS_PER_SECOND["fp32"] * 1e6)


def test_no_recorded_time_is_below_its_bound():
    for row in json.loads(RESULTS.read_text()):
        assert row["ours_us"] > row["least_us"]


def test_the_page_shows_the_recorded_results():
    page = (ROOT / "docs/kernels.md").read_text()
    for line in table.rows(json.loads(RESULTS.read_text())).splitlines():
        assert line in page
    assert f"{table.mean_ratio(json.loads(RESULTS.read_text())):.3f}" in page


def test_the_chart_is_that_of_the_recorded_results():
    rows = [SimpleNamespace(**row) for row in json.loads(RESULTS.read_text())]
    drawn = chart.draw(rows)
    ElementTree.fromstring(drawn)
    assert drawn == (ROOT / "docs/assets/kernels.svg").read_text()


def test_a_checkout_without_the_kernels_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(upstream.CHECKOUT, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="glm_gate"):
        upstream.folder()
    monkeypatch.delenv(upstream.CHECKOUT)
    assert upstream.folder() is None
