"""doctor and explain: what they find, and what they say to do about it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from glm_pto import Options, apply
from glm_pto.cli import machine, story
from glm_pto.codemods import recipes
from glm_pto.codemods.findings import Finding, State, TreeReport


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting torch takes seconds, and most of what doctor tells does not need it."""
    monkeypatch.setattr(machine, "choices", lambda *_: ())


def facts(run, *arguments: str | Path, **environment: str) -> dict[str, dict[str, str]]:
    answer = run("doctor", *arguments, "--json", **environment)
    assert answer.returncode == 0
    return {f["name"]: f for f in json.loads(answer.stdout)["facts"]}


def test_doctor_tells_versions_trees_and_what_cannot_run(run, tree: Path) -> None:
    found = facts(run, tree, ASCEND_HOME_PATH="")
    assert found["glm-pto (this tool)"]["value"].startswith("0.1.0")
    assert found["vllm"]["value"] == "not installed"
    assert "no torch-npu" in found["pypto"]["value"] and "CANN" in found["pypto"]["value"]
    assert found["gate"]["value"].startswith("the original code computes: ")
    assert found[str(tree)]["value"] == "5 applicable"
    assert "glm-pto revert" in found["before `pip uninstall glm-pto`"]["value"]


def test_doctor_names_a_switch_that_does_not_exist(run, tree: Path) -> None:
    found = facts(run, tree, USE_PTO_GATES="1", USE_PTO_SHARE_EXEPERTS="0")
    assert (found["USE_PTO_GATES"]["verdict"], found["USE_PTO_SHARE_EXEPERTS"]["verdict"]) == (
        "problem",
        "ok",
    )
    assert "USE_PTO_GATE," in found["USE_PTO_GATES"]["advice"]
    assert "cannot be imported" in found["glm_pto_kernels"]["value"]


def test_doctor_tries_a_kernel_of_the_users_own(run, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def fits(a, b, out): ...\ndef short(a): ...\nprint('a module that talks')\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    kernels = {
        f"GLM_PTO_KERNEL_{name}": f"own:{function}"
        for name, function in (("GATE", "fits"), ("PAGED_ATTENTION", "short"), ("SHARED_EXPERT", "gone"))
    }
    found = facts(run, tree, PYTHONPATH=path, **kernels)
    assert found["gate"]["value"] == "the custom backend computes"
    assert "short(a) does not fit paged_attention(query, " in found["paged_attention"]["value"]
    assert "GLM_PTO_KERNEL_SHARED_EXPERT=own:gone: AttributeError" in found["shared_expert"]["value"]
    assert found["shared_expert"]["verdict"] == "problem" and "first step" in found["shared_expert"]["advice"]


def test_doctor_tells_of_a_chosen_backend_that_cannot_run_and_of_a_switch_that_is_off(
    run, tree: Path
) -> None:
    found = facts(run, tree, GLM_PTO_BACKEND="pypto,select_experts=torch", USE_PTO_GATE="0")
    assert found["gate"]["value"] == "the original code computes: switched off by USE_PTO_GATE"
    assert "GLM_PTO_BACKEND=pypto cannot run here: " in found["attention_pre"]["value"]
    assert found["attention_pre"]["verdict"] == "problem"
    assert found["select_experts"]["value"] == "the torch backend computes"


@pytest.mark.usefixtures("without_torch")
def test_doctor_recommends_commands_for_the_same_tree(run, tree: Path) -> None:
    model = tree / "vllm/model_executor/models/glm4_moe.py"
    text = model.read_text().replace("self.gate(hidden", "glm_pto_kernels.gate(self.gate, hidden")
    model.write_text(text)
    found = facts(run, tree)
    assert found[str(tree)]["advice"] == f"`glm-pto status {tree}` shows which"
    assert f"`glm-pto revert {tree}`" in found["before `pip uninstall glm-pto`"]["value"]
    asked: dict[str, object] = {
        "python": "3.11.7",
        "executable": "python",
        "packages": {"glm-pto-kernels": [None, None]},
    }
    layer = next(f for f in machine.versions(asked, " TREE") if f.name == "glm_pto_kernels")
    assert "`glm-pto apply TREE --install-kernels`" in layer.advice
    (told,) = [line for line in run("status", tree).stdout.splitlines() if "pasted here by hand" in line]
    assert "by hand. Put the original" in told


@pytest.mark.usefixtures("without_torch")
def test_doctor_names_a_layer_that_was_made_by_hand(run, tree: Path) -> None:
    (tree / "glm_pto_kernels").mkdir()
    (tree / "glm_pto_kernels" / "__init__.py").write_text("def gate(layer, x): ...\n")
    found = facts(run, tree)["operator layer"]
    assert found["verdict"] == "problem" and "made by hand" in found["value"]
    assert "the folder or wheel that this one came from" in found["value"]


@pytest.mark.usefixtures("without_torch")
def test_doctor_counts_compiled_graphs_from_before_the_edit(run, tree: Path, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / "cache" / "torch_compile_cache" / name).mkdir(parents=True)
    os.utime(tmp_path / "cache" / "torch_compile_cache" / "old", (1, 1))
    apply([tree], Options(install_kernels=True))
    os.utime(tmp_path / "cache" / "torch_compile_cache" / "new")
    found = facts(run, tree, VLLM_CACHE_ROOT=str(tmp_path / "cache"))
    assert found["torch_compile_cache"]["value"].startswith("2 entries, 1 made before")
    assert "VLLM_DISABLE_COMPILE_CACHE=1" in found["torch_compile_cache"]["advice"]
    assert found["torch_aot_compile"]["value"].startswith("empty")


@pytest.mark.usefixtures("without_torch")
def test_doctor_prints_each_topic_once_with_its_facts_and_what_to_do(run, tree: Path) -> None:
    lines = run("doctor", tree, ASCEND_HOME_PATH="").stdout.splitlines()
    topics = [line for line in lines[:-1] if not line.startswith(" ")]
    assert topics == ["python", "packages", "ascend", "backends", "switches", "trees", "caches", "uninstall"]
    after = lines[next(n for n, line in enumerate(lines) if line.startswith("  before `pip uninstall")) + 1]
    assert after == "    -> guarded files import glm_pto_kernels; without it vLLM would not start"
    assert run("doctor", tree, "--quiet").stdout.splitlines() == lines[-1:]


def test_what_is_known_of_a_package_is_told() -> None:
    packages = {"vllm": [None, "/x"], "torch": ["2.1", None], "pypto": [None, None], "triton": ["3", "/t"]}
    asked: dict[str, object] = {"python": "3.9.1", "executable": "python", "packages": packages}
    python, _, *rest = machine.versions(asked)
    assert (python.verdict, "3.10 to 3.13" in python.advice) == ("problem", True)
    assert [(f.name, f.value, f.verdict) for f in rest] == [
        ("vllm", "version unknown  /x", "ok"),
        ("torch", "2.1  (no module found)", "ok"),
        ("pypto", "not installed", "note"),
        ("triton", "3  /t", "ok"),
    ]


@pytest.mark.parametrize(
    ("missing", "pypto", "torch"),
    [
        ("", "what it needs is there", "can run"),
        ("pypto", "cannot run: no pypto", "can run"),
        ("torch", "cannot run: no torch", "cannot run: no torch"),
        ("CANN", "cannot run: no CANN (ASCEND_HOME_PATH)", "can run"),
    ],
)
def test_what_the_backends_need(missing: str, pypto: str, torch: str) -> None:
    packages = {n: [None, None] if n == missing else ["1", "/x"] for n in ("torch", "torch-npu", "pypto")}
    environment = {} if missing == "CANN" else {"ASCEND_HOME_PATH": "/cann"}
    kernels, reference = machine.backends(packages, environment)
    assert (kernels.value, kernels.verdict) == (pypto, "note" if missing else "ok")
    assert reference.value.startswith(torch)


def test_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, value, verdict in (
        ((), "none", "note"),
        (("davinci1", "davinci0"), "davinci0, davinci1", "ok"),
    ):
        monkeypatch.setattr(Path, "glob", lambda *_, found=found: (Path("/dev", name) for name in found))
        fact = next(f for f in machine.ascend({}) if f.name == "devices")
        assert (fact.value, fact.verdict) == (value, verdict)


def test_switches_are_told_or_that_there_are_none() -> None:
    (none,) = machine.switches({"PATH": "/bin"})
    assert none.value.startswith("none set")
    told = machine.switches({"GLM_PTO_BACKEND": "torch", "USE_PTO_GATES": "1", "USE_PTO_GATE": "0"})
    assert [(f.name, f.verdict) for f in told] == [
        ("GLM_PTO_BACKEND", "ok"),
        ("USE_PTO_GATE", "ok"),
        ("USE_PTO_GATES", "problem"),
    ]


def test_a_site_whose_file_is_gone_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "torch_compile_cache/graph").mkdir(parents=True)
    gone = Finding("gate", "Class.method", "vllm", State.ABSENT, file="gone.py")
    tree = TreeReport(tmp_path, {}, (gone,))
    told = {f.name: f.value for f in machine.caches({"VLLM_CACHE_ROOT": str(tmp_path)}, (tree,))}
    assert told["torch_compile_cache"].startswith("1 entries, 0 made before")


@pytest.mark.usefixtures("without_torch")
def test_doctor_asks_another_python(run, tree: Path) -> None:
    answer = run("doctor", tree, "--python", sys.executable)
    assert answer.returncode == 0 and sys.version.split()[0] in answer.stdout
    assert run("doctor", tree, "--python", tree / "nothing").returncode == 2


@pytest.mark.parametrize(
    ("home", "verdict"),
    [({"compiler/version.info": "Version=8.3.RC1\n"}, "ok"), ({}, "problem")],
    ids=["found", "lost"],
)
def test_doctor_reads_the_version_of_cann(tmp_path: Path, home: dict[str, str], verdict: str) -> None:
    for name, text in home.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    cann = next(f for f in machine.ascend({"ASCEND_HOME_PATH": str(tmp_path)}) if f.name == "CANN")
    assert cann.verdict == verdict
    assert ("8.3.RC1" in cann.value) == (verdict == "ok")


@pytest.mark.parametrize("site", [r.site for r in recipes.load()])
def test_explain_tells_the_recipe_and_what_was_found(run, tree: Path, site: str) -> None:
    recipe = next(r for r in recipes.load() if r.site == site)
    shown = run("explain", site, tree).stdout
    assert recipe.title in shown and f"{recipe.switch}=0" in shown
    if site in {f["site"] for f in json.loads(run("status", tree, "--json").stdout)["trees"][0]["sites"]}:
        assert "applicable: " in shown and "a decode step runs through it" in shown and "\n  > " in shown


def test_explain_needs_no_tree(run) -> None:
    answer = run("explain", "gate")
    assert answer.returncode == 0 and "Looked for in" in answer.stdout


def test_explain_tells_where_it_looks_in_a_tree_without_the_sites_package(run, tree: Path) -> None:
    assert "wall_x/fusions/backend.py: <module> (" in run("explain", "wallx_backend", tree).stdout


def test_explain_shows_the_nearest_candidate_of_a_moved_site(run, tree: Path) -> None:
    file = tree / "vllm" / "model_executor" / "models" / "glm4_moe.py"
    file.write_text(
        file.read_text().replace("self.gate(hidden_states.to(dtype=torch.float32))", "self.gate(x, 1)")
    )
    shown = run("explain", "gate", tree).stdout
    assert "moved: " in shown and "self.gate(x, 1)" in shown


def test_explain_tells_what_stands_in_the_way_and_of_the_tree(tmp_path: Path) -> None:
    recipe = next(r for r in recipes.load() if r.site == "gate")
    rows = (
        Finding("gate", "A.b", "vllm", State.MOVED, file="gone.py", line=3, message="it is elsewhere"),
        Finding("gate", "A.b", "vllm", State.ABSENT),
    )
    told = story.explain(recipe, (TreeReport(tmp_path, {}, rows, notes=("rolled back",)),)).paragraphs[-3:]
    assert told[0] == (f"Of {tmp_path}", ("rolled back",))
    assert told[1][1][:2] == ("moved: gone.py:3", "it is elsewhere")
    assert told[2] == (f"In {tmp_path}", ("absent: vllm",))
    bare = story.explain(recipe, (TreeReport(tmp_path, {}, ()),))
    assert not any(heading.startswith("Of ") for heading, _ in bare.paragraphs)


def test_conditions_come_from_the_layers_source() -> None:
    assert "the gate has a bias" in story.conditions("gate")
    asked = story.conditions("attention_pre")  # the facts of its layer have a module of their own
    assert {"the attention has no q and k norm", "the norms are not bf16"} <= set(asked)
    assert story.conditions("no_such_site") == ()


def test_an_excerpt_ends_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "short.py"
    file.write_text("a\nb\n")
    assert [line.strip() for line in story.excerpt(file, 2)] == ["1  a", ">     2  b"]
    assert list(story.excerpt(tmp_path / "none.py", 1)) == []


def test_a_layer_without_torch_is_not_asked() -> None:
    assert list(machine.choices({"torch": [None, None], "glm-pto-kernels": [None, "x"]}, None)) == []


def test_a_cache_that_cannot_be_looked_at_is_not_called_empty(tmp_path: Path) -> None:
    (tmp_path / "torch_compile_cache").symlink_to("torch_compile_cache")
    told = {f.name: f.value for f in machine.caches({"VLLM_CACHE_ROOT": str(tmp_path)}, ())}
    assert told["torch_compile_cache"].startswith("cannot be looked at (Too many levels")
    assert told["torch_aot_compile"].startswith("empty")


def test_an_ascend_home_without_a_toolkit_says_what_was_looked_for(tmp_path: Path) -> None:
    (cann,) = (f for f in machine.ascend({"ASCEND_HOME_PATH": str(tmp_path)}) if f.name == "CANN")
    assert cann.verdict == "problem" and "holds none of version.cfg" in cann.advice


def test_what_the_wall_x_layer_asks_is_told_too(run) -> None:
    assert "(the switch is off; nothing else)" in run("explain", "wallx_backend").stdout


def test_a_release_that_nobody_read_is_said_to_be_that(run, tree: Path) -> None:
    assert "whose sources were read" not in run("doctor", tree).stdout
    for old, new in (("0.12.0", "0.12.0+empty"), ("0.12.0rc1", "0.99.0")):
        for metadata in tree.glob(f"*-{old}.dist-info/METADATA"):
            metadata.write_text(metadata.read_text().replace(f"Version: {old}\n", f"Version: {new}\n"))
    told = run("doctor", tree).stdout
    assert told.count("is not among the releases whose sources were read") == 1
    assert "  vllm_ascend: 0.99.0 is not among" in told
