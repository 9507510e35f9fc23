"""`action.yml`: what the GitHub action runs, run here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import recording

ROOT = Path(__file__).parents[1]


def _steps() -> list[dict[str, Any]]:
    content = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert content["runs"]["using"] == "composite"
    steps: list[dict[str, Any]] = content["runs"]["steps"]
    return steps


def test_no_input_is_part_of_a_script() -> None:
    """One that holds a quote could run anything."""
    scripts = [step["run"] for step in _steps() if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


def _run(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    (script,) = [step["run"] for step in _steps() if step.get("id") == "compare"]
    warm = str(recording("nsys*-decoder-8layers-warm.sqlite"))
    given = {"BASE": warm, "NEW": warm, "FAIL_ON": "worse", "MIN_CHANGE": "2%", "BUDGETS": "", "EXACT": "false"}
    files = {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary", "OUT": "out dir"}
    places = {name: str(folder / file) for name, file in files.items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | given | inputs | places | {"PATH": path}
    return subprocess.run(["bash", "-e", "-c", script], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.process
def test_the_script_compares_and_tells(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_text() == "verdict=same\n"
    assert "### Nothing changed" in (tmp_path / "summary").read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.parametrize(("fail_on", "code"), [("nothing", 0), ("", 0), ("worse", 7), ("unsure", 7)])
def test_a_slower_run_fails_the_job_where_it_is_asked_to(fail_on: str, code: int, tmp_path: Path) -> None:
    cold = str(recording("nsys*-decoder-8layers.sqlite"))
    assert _run(tmp_path, NEW=cold, FAIL_ON=fail_on).returncode == code
    assert (tmp_path / "output").read_text() == "verdict=worse\n"


@pytest.mark.process
def test_a_budget_that_is_passed_fails_the_job(tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text("[decode_step]\nlaunches = 10\n")
    done = _run(tmp_path, BUDGETS=str(budgets), EXACT="true")
    assert done.returncode == 7, done.stderr
    assert "budget over: launches of LLM@decode/decode_step: 489, budget 10" in done.stdout
