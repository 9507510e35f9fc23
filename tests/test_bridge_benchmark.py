"""The benchmark of the bridge runs on a GPU; what it makes of the results is checked here, on real recordings."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from conftest import report
from fake_tools import TRANSCRIPTS

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import bridge

WARM = "nsys-*-decoder-8layers-warm.sqlite"
SAMPLES, RANGES = (f"ncu-*-decoder-8layers-warm-{kind}.ncu-rep" for kind in ("per-launch-config", "app-range"))


def test_estimates_are_held_against_the_truth_of_each_stage() -> None:
    estimated, measured = bridge.stages(report(WARM, SAMPLES)), report(RANGES).main_scope
    assert measured is not None
    truth = {region.key: region for region in measured.regions}
    rows = [row for region in estimated for row in bridge.compare(region, truth[region.key])]
    limited = {(r["stage"], r["counter"]): abs(r["ratio"] - 1) - r["limit"] for r in rows if r["limit"] is not None}
    assert len(limited) == 6
    assert max(limited.values()) < 0
    assert [bridge.coverage(region) for region in estimated] == [1.0, 1.0]


def test_a_counter_without_a_truth_is_not_passed_over() -> None:
    region = bridge.stages(report(WARM, SAMPLES))[0]
    with pytest.raises(bridge.PartFailed, match="missing in the estimate or in the truth"):
        bridge.compare(region, bridge.stages(report(WARM))[0])


def test_stages_without_counters_are_not_called_covered() -> None:
    assert {bridge.coverage(region) for region in bridge.stages(report(WARM))} == {None}
    assert not bridge.Check("covered", None, 0.9999, least=True).good


def test_the_start_of_every_kernel_is_seen_in_what_ncu_says(tmp_path: Path) -> None:
    """With and without a launch count, whose lines differ."""
    said = json.loads((TRANSCRIPTS / "ncu-nsys-2025.3.1-h200.json").read_text(encoding="utf-8"))
    for name in ("ncu-ok-kernel", "ncu-app-error"):
        text = said[name]["stdout"]
        ran = bridge.Ran(0.0, 0, tmp_path / name)
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        bridge.keep(reading, ran, time.monotonic())
        assert len(ran.begun) == text.count("==PROF== Profiling")
        assert ran.log.read_text(encoding="utf-8") == text


def test_parts_of_an_earlier_call_stay_and_failures_are_on_the_page(tmp_path: Path) -> None:
    about = {"made_by": "m", "date": "d", "gpus": [{"name": "GPU", "driver_version": "1"}], "tools": {"ncu": "2"}}
    first = bridge.Bench(tmp_path, tmp_path / "out", about, "nsys", "ncu")
    first.parts["alone"] = bridge.Part(["python x"], 1.0, {"alone_s": 17.0}, [bridge.Check("ratio", 3.5, 4.0)])
    first.write()
    second = bridge.Bench(tmp_path, tmp_path / "out", about, "nsys", "ncu", parts=bridge.earlier(tmp_path / "out"))
    assert second.figure("alone", "alone_s") == 17.0
    second.deadline = time.monotonic() - 1
    second.measure("graphs", 100)
    page = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert "| alone | ratio | 3.5 | ≤ 4 | pass |" in page
    assert "| graphs | not measured: no time was left for it | – | – | **fail** |" in page
    assert set(json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["parts"]) == {"alone", "graphs"}
