"""What a survey and an edit cost as forms and files grow: CPU as ratios within one run.

    python benchmarks/forms/measure.py [--rounds 7]

Forms: the recipes are given 10 and 100 times as many forms, half of them for files that are not there, half
for other functions of the file that is. Files: the edited file is given twice and four times its length. Run
it with a Python that has libcst and click, and the checkout on ``PYTHONPATH``; vllm 0.12.0 and vllm-ascend
0.12.0rc1 are fetched into the cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from glm_pto.cli import fetch
from glm_pto.codemods import edit, plan, recipes, source, trees
from glm_pto.codemods.findings import State
from glm_pto.codemods.plan import Files
from glm_pto.codemods.recipe import Recipe

#: Largest ratio for ten times the forms that still counts as independent of their number.
BOUND = 1.3


def with_forms(recipe: Recipe, factor: int) -> Recipe:
    """The recipe with ``factor`` times its forms; the added ones fit nowhere."""
    places = []
    for place in recipe.places:
        added = [
            replace(
                form,
                name=f"{form.name}-{n}",
                file=f"no/such/file_{n}.py" if n % 2 else form.file,
                scope=form.scope if n % 2 else f"{form.scope}_{n}",
            )
            for n in range(1, factor)
            for form in place.forms
        ]
        places.append(replace(place, forms=(*added, *place.forms)))
    return replace(recipe, places=tuple(places))


def survey(root: Path, chosen: tuple[Recipe, ...]) -> None:
    (tree,) = trees.find([root])
    spots = plan.survey(Files(tree), chosen)
    assert all(s.finding.state is State.APPLICABLE for s in spots), [s.finding.message for s in spots]


def edit_gate(root: Path, file: Path) -> None:
    (tree,) = trees.find([root])
    gate = next(r for r in recipes.load() if r.site == "gate")
    (spot,) = plan.survey(Files(tree), [gate])
    assert spot.match is not None
    edit.apply(source.read(file.name, file.read_bytes()), [("gate", spot.match)])


def cpu(work: Callable[[], None], rounds: int) -> float:
    """Least CPU milliseconds of some rounds."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append(1000 * (time.process_time() - start))
    return min(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    operators = tuple(r for r in recipes.load() if all(p.package != "wall_x" for p in r.places))
    with tempfile.TemporaryDirectory() as folder:
        root = fetch.pair("0.12.0rc1", "0.12.0", Path(folder, "tree"))
        many = {n: tuple(with_forms(r, n) for r in operators) for n in (1, 10, 100)}
        times = {n: cpu(partial(survey, root, chosen), rounds) for n, chosen in many.items()}
        print("survey of the pair by number of forms")
        for factor, spent in times.items():
            count = sum(len(p.forms) for r in operators for p in r.places) * factor
            print(f"  {count:5d} forms  {spent:7.1f} ms CPU  ratio {spent / times[1]:.2f}")

        file = root / "vllm/model_executor/models/glm4_moe.py"
        original = file.read_text()
        base = 0.0
        print("survey and edit of one file by its length")
        for factor in (1, 2, 4):
            more = original[original.index("class ") :].replace("class Glm4", "class More")
            file.write_text("\n".join([original, *[more] * (factor - 1)]))
            spent = cpu(partial(edit_gate, root, file), rounds)
            base = base or spent
            print(f"  {factor * len(original):7d} bytes  {spent:7.1f} ms CPU  ratio {spent / base:.2f}")
    worst = times[10] / times[1]
    print(f"ten times the forms cost {worst:.2f} times the CPU (bound {BOUND})")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    raise SystemExit(main())
