"""Ranges timed from inside a program, with no profiler, against the program's own clock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt import inject
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.measured import collect, read_measured
from llm_perf_opt.regions.attribution import attribute

pytestmark = pytest.mark.process

PROGRAM = """
import json, threading, time
import nvtx

took = {}

def timed(name, body):
    began = time.perf_counter_ns()
    body()
    took.setdefault(name, []).append(time.perf_counter_ns() - began)

def step():
    with nvtx.annotate("step", domain="LLM"):
        time.sleep(0.01)
        with nvtx.annotate("inner", domain="LLM"):
            time.sleep(0.005)

@nvtx.annotate("decorated")
def decorated():
    time.sleep(0.01)

def pushed():
    nvtx.push_range("pushed")
    time.sleep(0.01)
    nvtx.pop_range()

domain = nvtx.get_domain("LLM")
def by_domain():
    domain.push_range(domain.get_event_attributes("by domain"))
    time.sleep(0.01)
    domain.pop_range()

for _ in range(3):
    timed("LLM@step", step)
    timed("decorated", decorated)
    timed("pushed", pushed)
    timed("LLM@by domain", by_domain)
thread = threading.Thread(target=lambda: timed("LLM@step", step))
thread.start()
thread.join()
print(json.dumps(took))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    folder = tmp_path_factory.mktemp("measure")
    environment = inject.environment("off", ranges=True, timers=folder)
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return folder, json.loads(ran.stdout)


def test_ranges_take_what_the_program_says_they_take(measured: tuple[Path, dict[str, list[int]]]) -> None:
    """All ways to open a range are seen although no tool is attached, and on every thread."""
    folder, own = measured
    timeline = read_measured(_collected(folder))
    attribution = attribute(timeline)
    found = defaultdict(list)
    for region, duration in zip(attribution.range_region.tolist(), timeline.ranges.duration.tolist(), strict=True):
        found[attribution.table.key(region)].append(duration)
    assert found.keys() == {*own, "LLM@step/inner"}
    for name, times in own.items():
        assert len(found[name]) == len(times)
        # The range lies inside what the program timed; the rest is opening and closing it.
        outside = np.sort(times) - np.sort(found[name])
        assert (outside >= 0).all()
        assert np.median(outside) < 0.05 * np.median(times)


def _collected(folder: Path) -> Path:
    collect([folder], folder / "run.json")
    return folder / "run.json"


def test_rows_that_make_no_sense_are_left_out(measured: tuple[Path, dict[str, list[int]]], tmp_path: Path) -> None:
    folder, _ = measured
    rows, names = (next(folder.glob(f"*.{ending}")) for ending in ("rows", "names"))
    whole = len(read_measured(_collected(folder)).ranges)
    (tmp_path / names.name).write_bytes(names.read_bytes())
    bad = np.array([[99, 1000, 1, -1, 5, 6, -1, -1], [99, 0, 1, -1, 7, 6, -1, -1]], dtype="<i8").tobytes()
    (tmp_path / rows.name).write_bytes(rows.read_bytes() + bad + b"cut off")
    assert len(read_measured(_collected(tmp_path)).ranges) == whole


def test_a_file_without_times_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="no times") as caught:
        read_measured(_collected(tmp_path))
    assert "--annotate" in caught.value.fix


LOOP = """
import time, nvtx
for number in range(6):
    with nvtx.annotate("step", domain="LLM"):
        time.sleep(0.6 if number == 0 else 0.06)
"""


def test_measure_tells_warm_up_from_steady_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    out = tmp_path / "run"
    assert main(["measure", "--runs", "2", "--out", str(out), "--", sys.executable, str(program)]) == 0
    assert "with no profiler" in capsys.readouterr().out
    (step,) = json.loads((out / "report.json").read_text())["scopes"][-1]["regions"]
    timing = step["timing"]
    assert timing["source"] == "undisturbed"
    assert (timing["instances"], timing["warmup"]["instances"], timing["steady"]["instances"]) == (12, 2, 10)
    assert timing["warmup"]["total_ns"] > 1.1e9
    assert 60e6 <= timing["steady"]["median_ns"] < 200e6
    assert main(["report", str(out), "--out", str(tmp_path / "again")]) == 0  # and from the file alone
    assert json.loads((tmp_path / "again" / "report.json").read_text())["scopes"][-1]["regions"][0]["timing"] == timing


@pytest.mark.parametrize(("program", "code"), [("pass", 5), ("raise SystemExit(3)", 4)])
def test_a_program_that_gives_no_times_says_why(
    program: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["measure", "--out", str(out), "--", sys.executable, "-c", program]) == code
    assert ("opened no range" if code == 5 else "exit code 3") in capsys.readouterr().err
    assert json.loads((out / "manifest.json").read_text())["state"] == "failed"
