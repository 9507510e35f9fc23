"""`llm-perf runs history`: regions over many runs, and the runs at which they changed."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.cli.main import main
from llm_perf_opt.comparing.history import change_points, histories
from llm_perf_opt.comparing.history_page import render_history_html
from llm_perf_opt.comparing.side import LAUNCHES, UNDISTURBED, RegionSide, Side, Times
from llm_perf_opt.rundir.directory import RunDirectory
from synthetic import make_export


def _logs(*levels: tuple[float, int], noise: float = 0.01, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.concatenate([np.log(level) + random.normal(0, noise, count) for level, count in levels])


def test_steps_are_found_where_they_are() -> None:
    assert change_points(_logs((40, 12), (44, 8))) == [12]
    assert change_points(_logs((40, 8), (44, 8), (40, 8))) == [8, 16]
    assert change_points(_logs((40, 6), (60, 1))) == [6]


def test_noise_is_no_step() -> None:
    found = sum(len(change_points(_logs((40, 30), seed=seed))) for seed in range(50))
    assert found <= 3
    assert change_points(np.array([1.0])) == []
    assert change_points(np.array([])) == []


@given(st.lists(st.floats(0.1, 1e3), max_size=20))
def test_any_series_is_split_in_order(values: list[float]) -> None:
    found = change_points(np.log(np.array(values)))
    assert found == sorted(set(found))
    assert all(0 < at < len(values) for at in found)


def _run(label: str, time: float, launches: float = 300, command: tuple[str, ...] = ("python", "x.py")) -> Side:
    times = Times.of([np.full(20, time)])
    region = RegionSide("decode", ("decode",), None, {UNDISTURBED: times}, 20, 20 * time, counts={LAUNCHES: launches})
    return Side(label, {"decode": region}, command=command)


def test_a_change_of_counts_is_named_at_its_run() -> None:
    sides = [_run(f"run{n}", 40e6 if n < 5 else 45.02e6, 300 if n < 5 else 372) for n in range(9)]
    (program,) = histories(sides)
    (change,) = program.regions[0].changes
    assert change.run == "run5"
    assert change.change == pytest.approx(0.1255, abs=0.01)
    assert change.counts == ["launches 300 → 372"]
    page = render_history_html([program])
    assert "+13 % (40 ms → 45 ms) since run5: launches 300 → 372" in page
    assert "<script" not in page


def test_other_programs_have_histories_of_their_own() -> None:
    sides = [_run("a", 40e6), _run("b", 80e6, command=("python", "y.py")), _run("c", 40e6)]
    assert [program.runs for program in histories(sides)] == [["a", "c"], ["b"]]
    assert not [region.changes for program in histories(sides) for region in program.regions if region.changes]


def _make_run(folder: Path, name: str, day: int, length: int) -> None:
    run = RunDirectory.create(folder / name, ["python", "x.py"], {}, made_by="profile")
    (run.path / "nsys").mkdir(exist_ok=True)
    ranges = [("step", n * 10_000_000, n * 10_000_000 + length + n) for n in range(12)]
    make_export(run.path / "nsys" / "run.sqlite", ranges, [("k", s + 10, s + 100, e - 100) for _, s, e in ranges])
    run.manifest.started_at = f"2025-01-{day:02}T12:00:00+00:00"
    run.finish("done")
    run.release()


@pytest.mark.process
def test_a_folder_of_runs_is_told_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in range(1, 7):
        _make_run(tmp_path / "runs", f"r{day}", day, 4_000_000 if day < 4 else 5_000_000)
    (tmp_path / "runs" / "other").mkdir()
    out = tmp_path / "out"
    assert main(["runs", "history", str(tmp_path / "runs"), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "step +25 % (4 ms → 5 ms) since r4" in shown
    assert shown.splitlines()[-3:] == [
        "Result: The last change: step +25 % (4 ms → 5 ms) since r4.",
        f"Page: {out / 'history.html'}",
        f"Next: llm-perf compare {tmp_path / 'runs' / 'r3'} {tmp_path / 'runs' / 'r4'}",
    ]
    assert main(["runs", "history", str(tmp_path), "--out", str(out)]) == 0  # of a folder further up, the same
    assert capsys.readouterr().out.splitlines()[-1] == shown.splitlines()[-1]
    assert main(["runs", "history", str(tmp_path / "runs"), "--out", str(out)]) == 0
    capsys.readouterr()
    content = json.loads((out / "history.json").read_text(encoding="utf-8"))
    (step,) = [region for region in content["programs"][0]["regions"] if region["key"] == "step"]
    assert [change["run"] for change in step["changes"]] == ["r4"]
    page = (out / "history.html").read_text(encoding="utf-8")
    ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    assert main(["runs", "history", str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["programs"][0]["runs"] == [f"r{day}" for day in range(1, 7)]
