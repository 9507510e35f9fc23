"""What is shipped: a source package that holds the whole tree, and dependencies that are said once and are all there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PIXI: dict[str, Any] = tomllib.loads((ROOT / "pixi.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["optional-dependencies"]
_IMPORTING = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)  # ruff lets no line import two


def requirements(*lists: list[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for lines in lists for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def of_pixi() -> dict[str, dict[str, Any]]:
    """What pixi takes from PyPI, in all of its environments."""
    tables = [PIXI["pypi-dependencies"], *(f["pypi-dependencies"] for f in PIXI.get("feature", {}).values())]
    return {name: spec for table in tables for name, spec in table.items()}


def test_pixi_takes_its_dependencies_from_the_project() -> None:
    assert PIXI["workspace"]["name"] == PROJECT["name"]
    assert PIXI["dependencies"] == {"python": PROJECT["requires-python"]}
    own = of_pixi()[PROJECT["name"]]
    assert own["path"] == "."
    assert set(own["extras"]) <= set(EXTRAS)
    assert "torch" in own["extras"]  # a model needs torch, transformers and pillow
    known = requirements(EXTRAS["torch"])
    assert {"torch", "transformers", "pillow"} <= set(known)
    for name, spec in of_pixi().items():
        if name != PROJECT["name"]:  # only where another index or a newer version is needed
            oldest = spec["version"].removeprefix(">=")
            assert known[name].specifier.contains(oldest), f"{name} {oldest} of pixi.toml is older than the project's"


def test_everything_that_is_imported_is_a_dependency() -> None:
    declared = set(requirements(PROJECT["dependencies"], *EXTRAS.values()))
    provided = {module for name in declared for module in modules_of(name)}
    used, lacking = set(), {}
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # What a line may import; a file is taken apart only where that is of none of the dependencies.
        names = {name for name in _IMPORTING.findall(text) if name not in sys.stdlib_module_names}
        used |= names & provided
        if names - provided - {"llm_perf_opt"}:
            lacking |= dict.fromkeys(imports_of(text) - provided, str(path.relative_to(ROOT)))
    assert {n: p for n, p in lacking.items() if n not in sys.stdlib_module_names and "llm_perf" not in n} == {}
    assert len(used) > 10


def imports_of(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def modules_of(distribution: str) -> set[str]:
    """What can be imported of it; `make check` has some of the extras not installed."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return {{"pillow": "PIL"}.get(distribution, distribution)}
    if listed := found.read_text("top_level.txt"):
        return set(listed.split())
    return {file.parts[0].removesuffix(".py") for file in found.files or ()}


@pytest.mark.process
def test_the_source_package_has_every_file_of_the_tree() -> None:
    """Then tests run and the documentation builds from it, as they do here."""
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="pip install hatchling")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    packed = {file.relative_path for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    assert tracked - packed == set()
    for private in ("tmp/", "dist/", ".venv/", ".hypothesis/", "benchmarks/data/"):
        assert not any(name.startswith(private) for name in packed)
