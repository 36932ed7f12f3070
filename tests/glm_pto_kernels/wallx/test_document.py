"""docs/wallx.md says what was measured and tested."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/wallx.md").read_text()


def chart():
    spec = importlib.util.spec_from_file_location("wallx_chart", ROOT / "benchmarks/wallx/chart.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_chart_and_the_table_are_those_of_the_recorded_run():
    results = json.loads((ROOT / "benchmarks/wallx/h200.json").read_text())
    assert all(case["correct"] for case in results["cases"])
    assert chart().chart(results) == (ROOT / "docs/assets/wallx.svg").read_text()
    assert chart().table(results) in PAGE


def test_every_failure_case_has_a_test():
    tests = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    listed = set(re.findall(r"^\| (F\d+) \|", PAGE, re.M))
    assert len(listed) == 13
    assert listed <= set(re.findall(r"\b(F\d+)\b", tests.replace("_", " ")))
