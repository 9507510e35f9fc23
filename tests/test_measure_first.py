"""`llm-perf profile` measures the program by itself first, and its report says what that took."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.cli.main import main

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("json_alone")]

# The ranges of the recording that the stand-ins leave, at other times.
DECODER = """
import sys, time, nvtx
def mark(name):
    return nvtx.annotate(name, domain="LLM")
with mark("prefill"):
    time.sleep(0.05)
with mark("decode"):
    for step in range(int(sys.argv[1])):
        with mark("decode_step"):
            time.sleep(0.3 if step == 0 else 0.02)
"""


@pytest.fixture
def decoder(tools: Path) -> list[str]:
    program = tools / "decoder.py"
    program.write_text(DECODER)
    return [sys.executable, str(program), "8"]


def profile(*options: str, work: list[str]) -> int:
    return main(["profile", "--out", "run", *options, "--", *work])


def regions() -> dict[str, Any]:
    report = json.loads(Path("run/report.json").read_text())
    return {region["key"]: region for region in report["scopes"][-1]["regions"]}


def steps() -> list[str]:
    return [step["name"] for step in json.loads(Path("run/manifest.json").read_text())["steps"]]


def test_times_are_those_of_the_program_by_itself(decoder: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--no-counters", work=decoder) == 0
    shown = capsys.readouterr().err
    assert shown.index("measure: the program runs by itself") < shown.index("LLM@decode takes")
    assert shown.index("LLM@decode takes") < shown.index("timeline:")
    assert steps()[:2] == ["measure", "nsys"]
    found = regions()
    step = found["LLM@decode/decode_step"]
    timing = step["timing"]
    assert timing["source"] == "undisturbed"
    assert (timing["instances"], timing["warmup"]["instances"], timing["steady"]["instances"]) == (8, 1, 7)
    assert 20e6 <= timing["steady"]["median_ns"] < 40e6
    assert timing["disturbance"] == pytest.approx(
        timing["profiled_median_ns"] / timing["steady"]["median_ns"], rel=0.02
    )
    # Wall time from the measured run, what the GPU did from the timeline.
    time = step["performance"]["time"]
    each = timing["steady"]["total_ns"] / 7
    assert time["wall"]["value"] == pytest.approx(8 * each)
    assert time["profiled_wall"]["value"] == step["wall_ns"]
    assert time["idle"]["value"] == pytest.approx(8 * each - time["busy"]["value"], rel=0.01)
    assert step["performance"]["tokens"]["now"]["value"] == pytest.approx(1e9 / each)
    # A region without a partner keeps what the timeline says.
    assert found["LLM@decode/decode_step/layer0"]["timing"]["source"] == "timeline"


def test_without_measuring_times_are_those_of_the_timeline(decoder: list[str]) -> None:
    assert profile("--no-measure", "--no-counters", work=decoder) == 0
    assert steps()[0] == "nsys"
    assert {region["timing"]["source"] for region in regions().values()} == {"timeline"}
    assert not Path("run/measure").exists()


def test_a_program_that_fails_is_not_run_again(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(work=[sys.executable, "-c", "raise SystemExit(3)"]) == 4
    assert steps() == ["measure"]
    assert "--no-measure" in capsys.readouterr().err


def test_a_program_without_ranges_is_recorded_all_the_same(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--no-counters", work=[sys.executable, "-c", "pass"]) == 0
    assert "no range could be timed" in capsys.readouterr().err
    assert regions()["LLM@prefill"]["timing"]["source"] == "timeline"


def test_a_program_that_cannot_be_entered_is_not_run_for_nothing(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile("--no-counters", work=[sys.executable, "-I", "-c", "pass"]) == 0
    assert "measure: left out" in capsys.readouterr().err
    assert steps()[0] == "nsys"


def test_a_program_that_takes_too_long_is_recorded_all_the_same(tools: Path) -> None:
    work = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert profile("--no-counters", "--timeout", "0.5", work=work) == 124
    assert steps()[:2] == ["measure", "nsys"]


def test_a_resumed_run_has_been_measured(decoder: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "nsys-disk-full")
    assert profile("--no-counters", work=decoder) == 5
    times = Path("run/measure/run.json").read_bytes()
    monkeypatch.setenv("FAKE_NSYS", "ok")
    assert main(["profile", "--resume", "run"]) == 0
    assert Path("run/measure/run.json").read_bytes() == times
    assert regions()["LLM@prefill"]["timing"]["source"] == "undisturbed"
