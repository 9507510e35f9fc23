"""A release: one version, the same bytes from the same tree, and files that others read."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from llm_perf_opt.version import __version__

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"


def release_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_release", ROOT / "tools" / "check_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_could_be_released_under_its_version(tmp_path: Path) -> None:
    problems = release_check().problems
    assert problems(f"v{__version__}") == []
    assert problems("v99.0") == [f"the tag is v99.0, and src/llm_perf_opt/version.py says {__version__}"]
    (tmp_path / "src" / "llm_perf_opt").mkdir(parents=True)
    (tmp_path / "src" / "llm_perf_opt" / "version.py").write_text('__version__ = "99.0"\n')
    for name in ("CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    assert len(problems("v99.0", tmp_path)) == 2


def copy(target: Path, *, day: int, mode: int) -> Path:
    """What a wheel is made of, as another machine would have checked it out."""
    names = ("pyproject.toml", "README.md", "LICENSE", ".gitignore")
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in names:
        shutil.copy(ROOT / name, target)
    for path in target.rglob("*"):
        if path.is_file():
            path.chmod(mode)
            os.utime(path, (day * 86400, day * 86400))
    return target


@pytest.mark.slow
def test_the_same_tree_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling", reason="pip install hatchling")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    built: list[dict[str, bytes]] = []
    for number, (day, mode) in enumerate(((15_000, 0o644), (20_000, 0o600))):
        tree = copy(tmp_path / str(number), day=day, mode=mode)
        out = tmp_path / f"out{number}"
        for builder in (WheelBuilder, SdistBuilder):
            list(builder(str(tree)).build(directory=str(out)))
        built.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert built[0] == built[1]
    assert sorted(built[0]) == [f"llm_perf_opt-{__version__}-py3-none-any.whl", f"llm_perf_opt-{__version__}.tar.gz"]
    # What is read as data at run time is there, and the source package builds the same wheel.
    with zipfile.ZipFile(next((tmp_path / "out0").glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    package = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in package if "__pycache__" not in name and "egg-info" not in name} <= names
    with tarfile.open(next((tmp_path / "out0").glob("*.tar.gz"))) as source:
        source.extractall(tmp_path / "unpacked", filter="data")
    (tree,) = (tmp_path / "unpacked").iterdir()
    list(WheelBuilder(str(tree)).build(directory=str(tmp_path / "again")))
    (again,) = (tmp_path / "again").iterdir()
    assert again.read_bytes() == built[0][again.name]


def test_citation_and_forms_are_what_others_can_read() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= cited.keys()
    forms = [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        assert all(part["attributes"]["label"] for part in form["body"])


def test_the_release_workflow_publishes_only_what_was_tried() -> None:
    flow = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8"))
    jobs = flow["jobs"]
    assert flow["permissions"] == {}
    assert jobs["publish"]["needs"] == "build"
    assert "id-token" not in jobs["build"]["permissions"]
    steps = "\n".join(step.get("run", "") for step in jobs["build"]["steps"])
    assert "check_release.py" in steps
    assert "llm-perf demo" in steps
    assert "${{" not in steps  # values of the event reach the shell as variables, never as text of the script
