"""``glm-pto kernels``: recorded outside any package, refused by name, and without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.glm_pto_kernels import upstream_tree


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "glm-pto" / "kernels.json"


def test_import_list_remove(run: Callable, tmp_path: Path, configuration: Path) -> None:
    folder = upstream_tree.write(tmp_path / "pypto")
    answer = run("kernels", "import", tmp_path / "pypto")
    assert answer.returncode == 0 and str(configuration) in answer.stdout
    assert "gate(hidden_states, gate_weight, router_logits_out)" in answer.stdout
    listed = json.loads(run("kernels", "list", "--json").stdout)
    assert listed["record"] == str(configuration) and listed["checkout"]["folder"] == str(folder)
    assert sorted(listed["checkout"]["kernels"]) == [
        "attention_pre",
        "gate",
        "paged_attention",
        "select_experts",
        "shared_expert",
    ]
    assert run("kernels", "remove").returncode == 0 and not configuration.exists()
    assert "no checkout" in run("kernels", "remove").stdout
    assert json.loads(run("kernels", "list", "--json").stdout)["checkout"] is None
    assert folder.is_dir()


def test_the_last_line_names_the_whole_command(run: Callable) -> None:
    assert run("kernels", "list").stdout.endswith("glm-pto kernels list: exit=0 kernels=0\n")
    wrong = run("kernels", "list", "--bogus")
    assert wrong.stdout == "glm-pto kernels list: exit=2 action=usage problems=1\n"
    assert wrong.stderr.startswith("glm-pto kernels list: No such option")


def test_without_a_command_the_help_is_shown_as_it_is(process: Callable) -> None:
    shown, asked = process("kernels"), process("kernels", "--help")
    assert asked.stdout.strip() in (shown.stderr + shown.stdout)
    assert "glm-pto kernels: " not in shown.stderr and "see `glm-pto" not in shown.stderr
    assert "import  Check the kernels in a checkout and record them.\n" in asked.stdout


def test_import_refuses_all_that_does_not_fit_at_once(
    run: Callable, tmp_path: Path, configuration: Path
) -> None:
    folder = upstream_tree.write(tmp_path)
    (folder / "glm_gate.py").write_text(
        "def gate(hidden_states, gate_weight, router_logits_out, stream):\n    pass\n"
    )
    (folder / "glm_attention.py").unlink()
    answer = run("kernels", "import", folder)
    assert answer.returncode == 3 and not configuration.exists()
    assert "stream" in answer.stderr and "glm_attention.py" in answer.stderr


def test_import_of_another_folder_says_where_it_looked(run: Callable, tmp_path: Path) -> None:
    answer = run("kernels", "import", tmp_path)
    assert answer.returncode == 3 and "models/glm_v4_5" in answer.stderr


def test_list_refuses_a_checkout_that_changed(run: Callable, tmp_path: Path) -> None:
    folder = upstream_tree.write(tmp_path)
    run("kernels", "import", folder)
    with (folder / "glm_gate.py").open("a") as file:
        file.write("# edited\n")
    answer = run("kernels", "list")
    assert answer.returncode == 3 and "changed" in answer.stderr and "import it again" in answer.stderr


def test_a_damaged_record_is_refused_by_name(run: Callable, configuration: Path) -> None:
    configuration.parent.mkdir(parents=True)
    for text, why in (
        ("not json", "not a record of kernels (JSON"),
        ('{"format": 2}', "a record of format 2"),
    ):
        configuration.write_text(text)
        answer = run("kernels", "list")
        assert answer.returncode == 3
        assert answer.stderr.startswith(f"glm-pto kernels list: {configuration}: {why}")
    assert run("kernels", "remove").returncode == 0 and not configuration.exists()


def test_a_record_that_cannot_be_placed_leaves_nothing(
    run: Callable, tmp_path: Path, configuration: Path
) -> None:
    configuration.mkdir(parents=True)
    answer = run("kernels", "import", upstream_tree.write(tmp_path))
    assert answer.returncode == 4 and "Is a directory" in answer.stderr
    assert list(configuration.parent.iterdir()) == [configuration]


def test_a_configuration_without_a_home_is_refused(run: Callable) -> None:
    for command in ("list", "remove"):
        answer = run("kernels", command, XDG_CONFIG_HOME="~nobody-has-this-name")
        assert answer.returncode == 3 and "~nobody-has-this-name" in answer.stderr


def test_torch_is_not_imported(process: Callable, tmp_path: Path) -> None:
    upstream_tree.write(tmp_path)
    script = (
        "import sys; from glm_pto.cli import group\n"
        f"group.main(['kernels', 'import', {str(tmp_path)!r}], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    import subprocess
    import sys

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
