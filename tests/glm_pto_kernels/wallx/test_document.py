"""docs/wallx.md says what was measured and tested."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/wallx.md").read_text()


def script(name):
    spec = importlib.util.spec_from_file_location(f"wallx_{name}", ROOT / f"benchmarks/wallx/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_chart_and_the_tables_are_those_of_the_recorded_run():
    results = json.loads((ROOT / "benchmarks/wallx/h200.json").read_text())
    assert all(case["correct"] for case in results["cases"])
    chart = script("chart")
    assert chart.chart(results) == (ROOT / "docs/assets/wallx.svg").read_text()
    for made in (chart.table, chart.small, chart.positions):
        assert made(results) in PAGE


def test_the_page_says_what_the_recorded_run_reached():
    results, targets = json.loads((ROOT / "benchmarks/wallx/h200.json").read_text()), script("targets")
    assert not targets.missed(results)
    assert targets.verdict(results) in PAGE


def test_a_target_is_missed_above_its_limit_only():
    targets = script("targets")
    times = {"ours": {"gpu_only": 6.0}, "copy": {"gpu_only": 4.0}}
    results = {"cases": [{"operator": "op", "shape": "T=1", "times": times}]}
    limits = {None: [(6.0, False), (5.9, True)], "copy": [(1.5, False), (1.4, True)]}
    for over, tries in limits.items():
        for limit, above in tries:
            not_there = [targets.Target("op", "T=2", 0), targets.Target("op", "T=1", 0, beside="T=2")]
            targets.TARGETS = [targets.Target("op", "T=1", limit, over=over), *not_there]
            assert [target.shape for target, _ in targets.missed(results)] == ["T=1"] * above
            assert targets.verdict(results).startswith(f"{1 - above} of 1 targets reached, 2 not tried")
            assert ("| op T=1 |" in targets.verdict(results)) == above


def test_a_target_can_be_the_time_above_another_operator():
    targets = script("targets")
    cases = [
        {"operator": op, "shape": "T=1", "times": {"ours": {"gpu_only": us}}}
        for op, us in (("a", 6.0), ("b", 2.5))
    ]
    target = targets.Target("a", "T=1", 3, above="b")
    assert target.found({"cases": cases}) == 3.5
    assert target.found({"cases": cases[:1]}) is None
    assert target.found({"cases": cases[1:]}) is None
    assert target.unit == "us more than b"


def test_a_target_can_be_a_share_over_that_of_another_shape_or_an_error():
    targets = script("targets")
    cases = [
        {
            "operator": "a",
            "shape": shape,
            "times": {"ours": {"gpu_only": us}, "copy": {"gpu_only": 2.0}},
            "errors": {"ours": 0.5},
        }
        for shape, us in (("odd", 6.0), ("even", 4.0))
    ]
    beside = targets.Target("a", "odd", 1.2, over="copy", beside="even")
    assert beside.found({"cases": cases}) == 1.5
    assert beside.found({"cases": cases[:1]}) is None
    assert beside.unit == "of the share of copy at even"
    assert targets.Target("a", "odd", 1, error="ours").found({"cases": cases}) == 0.5
    assert targets.Target("a", "odd", 1, error="theirs").found({"cases": cases}) is None


def test_every_failure_case_has_a_test():
    tests = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    listed = set(re.findall(r"^\| (F\d+) \|", PAGE, re.M))
    assert len(listed) == 13
    assert listed <= set(re.findall(r"\b(F\d+)\b", tests.replace("_", " ")))
