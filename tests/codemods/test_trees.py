"""What a TREE may be, and how versions are read without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from glm_pto.codemods import trees
from glm_pto.codemods.findings import UsageError


def package(root: Path, name: str, version: str | None = None) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('a target is never imported')\n")
    if version:
        (folder / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    return folder


def zip_file(path: Path) -> Path:
    path.write_bytes(b"PK")
    return path


def test_folder_that_holds_both(tmp_path):
    package(tmp_path, "vllm", "0.12.0")
    package(tmp_path, "vllm_ascend", "0.12.0rc1")
    (tree,) = trees.find([tmp_path])
    assert [(p.name, p.version) for p in tree.packages] == [("vllm", "0.12.0"), ("vllm_ascend", "0.12.0rc1")]
    assert tree.beside == ()


def test_package_folder_with_another_beside(tmp_path):
    package(tmp_path, "vllm", "0.12.0")
    package(tmp_path, "vllm_ascend")
    (tree,) = trees.find([tmp_path / "vllm"])
    assert tree.root == tmp_path
    assert [p.name for p in tree.packages] == ["vllm"]
    assert [p.name for p in tree.beside] == ["vllm_ascend"]


def test_checkout_named_like_its_package(tmp_path):
    package(tmp_path / "vllm", "vllm", "0.12.0")
    (tree,) = trees.find([tmp_path / "vllm"])
    assert tree.root == tmp_path / "vllm"


def test_relative_path(tmp_path, monkeypatch):
    package(tmp_path, "vllm")
    monkeypatch.chdir(tmp_path)
    assert trees.find(["vllm"])[0].root == tmp_path
    assert trees.find(["."])[0].root == tmp_path


def test_the_same_tree_twice_is_one(tmp_path):
    package(tmp_path, "vllm")
    assert len(trees.find([tmp_path, tmp_path])) == 1


def test_a_folder_that_cannot_be_listed_is_not_one_without_versions(tmp_path, monkeypatch):
    package(tmp_path, "vllm")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refuse)
    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        trees.find([tmp_path])


def test_namespace_package(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "module.py").write_text("")
    assert trees.find([tmp_path])[0].packages[0].name == "vllm"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: p / "nothing", "no such folder"),
        (lambda p: p, "holds none of vllm/"),
        (lambda p: zip_file(p / "x.zip"), "zip or egg"),
        (lambda p: (p / "vllm").mkdir() or p, "holds none of vllm/"),
    ],
    ids=["missing", "empty", "zip", "folder_without_source"],
)
def test_refuses_what_is_no_tree(tmp_path, make, why):
    with pytest.raises(UsageError, match=why):
        trees.find([make(tmp_path)])


def test_packages_of_another_python_are_found_not_imported(tmp_path, monkeypatch):
    package(tmp_path, "vllm", "0.33.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tree,) = trees.find((), Path(sys.executable))
    assert (tree.root, tree.packages[0].version) == (tmp_path, "0.33.0")


def test_packages_of_this_environment(tmp_path, monkeypatch):
    package(tmp_path, "vllm_ascend")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert trees.find(())[0].root == tmp_path


def test_python_that_cannot_run(tmp_path):
    with pytest.raises(UsageError, match=r"can be asked \(No such file or directory\)"):
        trees.find((), tmp_path / "python")


def test_nothing_installed(monkeypatch):
    monkeypatch.setattr(trees, "PACKAGES", ("no_such_package",))
    with pytest.raises(UsageError, match="name a TREE"):
        trees.find(())


def test_version_from_metadata(tmp_path):
    package(tmp_path, "vllm_ascend")
    info = tmp_path / "vllm_ascend-0.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.13.0\n")
    assert trees.find([tmp_path])[0].version("vllm_ascend") == (0, 13, 0, trees.FINAL)


def test_metadata_of_another_package_is_not_taken(tmp_path):
    package(tmp_path, "vllm")
    (tmp_path / "PKG-INFO").write_text("Name: vllm-ascend\nVersion: 0.13.0\n")
    assert trees.find([tmp_path])[0].packages[0].version is None


ORDER = [
    "0.10.1rc1",
    "0.10.1",
    "0.10.1.1",
    "0.13.0rc1",
    "0.13.0rc2",
    "0.13.0",
    "0.13.0.post1",
    "0.20.2rc1",
    "1.0",
]


def test_versions_sort_like_releases():
    parsed = [trees.parse_version(v) for v in ORDER]
    assert None not in parsed
    assert parsed == sorted(parsed)  # type: ignore[type-var]


@pytest.mark.parametrize("text", [None, "", "dev", "main"])
def test_what_is_no_version(text):
    assert trees.parse_version(text) is None


def test_local_and_development_versions():
    assert trees.parse_version("0.25.1+empty") == (0, 25, 1, trees.FINAL)
    assert trees.parse_version("0.19.1rc2.dev1265+gabc") == (0, 19, 1, 2)


def test_two_roots_that_link_to_the_same_packages_are_one(tmp_path):
    package(tmp_path / "real", "vllm")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vllm").symlink_to(tmp_path / "real" / "vllm")
    assert [t.root.name for t in trees.find([tmp_path / "a", tmp_path / "b"])] == ["a"]


def test_namespace_package_without_a_module_at_its_top(tmp_path):
    (tmp_path / "vllm" / "models").mkdir(parents=True)
    (tmp_path / "vllm" / "models" / "glm.py").touch()
    assert trees.find([tmp_path])[0].packages[0].name == "vllm"


def test_an_empty_name_is_no_folder(tmp_path, monkeypatch):
    """``glm-pto apply "$TREE"`` with a variable that is not set must not take the current folder."""
    package(tmp_path, "vllm")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the name of a TREE is empty"):
        trees.find([""])


def test_one_name_is_a_target_too(tmp_path):
    package(tmp_path, "vllm")
    assert trees.find(str(tmp_path)) == trees.find([tmp_path])


def test_a_relative_name_where_the_current_folder_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match=r"vllm: the current folder is gone .*; name a full path"):
        trees.find(["vllm"])


def test_a_home_that_nobody_has(tmp_path):
    with pytest.raises(UsageError, match="name a full path"):
        trees.find(["~nobody-has-this-name/vllm"])


def test_packages_that_are_installed_in_two_places_are_two_trees(tmp_path, monkeypatch):
    folders = [package(tmp_path / "one", "vllm"), package(tmp_path / "two", "vllm_ascend")]
    monkeypatch.setattr(trees, "_installed", lambda python: folders)
    found = trees.find([])
    assert [(tree.root.name, [p.name for p in tree.packages]) for tree in found] == [
        ("one", ["vllm"]),
        ("two", ["vllm_ascend"]),
    ]
