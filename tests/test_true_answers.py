"""The benchmark of answers about programs with warm-up: it runs on a CPU, and finds wrong answers."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import true_answers as benchmark


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_a_training_program_gets_the_times_it_takes_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "answers"
    monkeypatch.setattr(sys, "argv", ["true_answers.py", "--tiny", "--only", "training", "--out", str(out)])
    assert benchmark.main() == 0
    found = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))["parts"]["training"]
    medians = {c["what"]: c["off"] for c in found["checks"] if c["off"] is not None}
    assert abs(medians["steady median of LLM@step"]) < 0.1  # the same run, timed twice; the first step takes far more
    assert "the answer is about a stage of the program: LLM@step" in out.with_suffix(".md").read_text(encoding="utf-8")


OWN = {
    "keys": {"generate": "LLM@generate"},
    "steady_ms": {"generate": 100.0},
    "tokens_per_second": {},
    "warmup": {"LLM@generate": ["first use"]},
}


def region(**changes: Any) -> dict[str, Any]:
    steady = {"instances": 3, "median_ns": 100_500_000}
    timing = {"source": "undisturbed", "warmup": {"instances": 1, "why": "first use"}, "steady": steady}
    time = {"wall": {"value": 100.0, "unit": "ns"}, "busy": {"value": 90.0, "unit": "ns"}}
    performance = {"time": time, "verdict": {"bound": "memory"}, "tokens": None}
    found = {"key": "LLM@generate", "timing": timing, "performance": performance}
    for place, value in changes.items():
        *outer, last = place.split("__")
        inside: Any = found
        for name in outer:
            inside = inside[name]
        inside[last] = value
    return found


def wrong(one: dict[str, Any], fixes: list[dict[str, Any]] | None = None) -> list[str]:
    answer = {"stage": "LLM@generate", "fixes": fixes or []}
    report = {"scopes": [{"regions": [copy.deepcopy(one)]}], "stages": ["LLM@generate"], "answer": answer}
    checks = benchmark.compare({"own": OWN, "report": report}, measured=True, tiny=False)
    return [check["what"] for check in checks if not check["ok"]]


def test_a_right_answer_passes() -> None:
    assert wrong(region(), [{"rule": "copy.host", "stage": "LLM@generate", "gain_ns": 5e6}]) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"timing__steady__median_ns": 104_000_000}, "steady median of LLM@generate"),
        ({"timing__source": "timeline"}, "times of LLM@generate are undisturbed"),
        ({"timing__warmup__why": "compilation"}, "warm-up of LLM@generate: 1 instances, compilation"),
        ({"performance__verdict__bound": "host"}, "LLM@generate: the GPU works 90 % of the time; verdict: host"),
    ],
)
def test_a_wrong_answer_is_found(changes: dict[str, Any], said: str) -> None:
    assert wrong(region(**changes)) == [said]


def test_a_promise_of_more_than_a_steady_instance_is_wrong() -> None:
    (found,) = wrong(region(), [{"rule": "host.python", "stage": "LLM@generate", "gain_ns": 5e9}])
    assert found.startswith("host.python promises 5e+03 ms")
