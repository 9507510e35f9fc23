"""What the report of a measured program says of the GPU it ran on."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from conftest import recording
from llm_perf_opt.capture.gpu_sampler import GpuSampler
from llm_perf_opt.cli.main import main
from llm_perf_opt.nsight.nvml import Nvml
from llm_perf_opt.readers.measured import add_gpus, collect
from llm_perf_opt.regions.columns import UNKNOWN_HERE
from llm_perf_opt.regions.gpu_samples import COLUMNS

MS = 1_000_000
TOO_HOT, POWER_LIMIT = 0x40, 0x4


def left_by_program(folder: Path, *, begin_ms: int, step_ms: int, on_gpu: bool = True) -> Path:
    """Thirty steps, as a process of a program leaves them."""
    folder.mkdir()
    lines = [{"name": [0, "LLM", "step"]}, {"uuid": "1-2"}]
    (folder / "7-1.names").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = array("q")
    for number in range(30):
        start, end = ((begin_ms + 100 * number + part) * MS for part in (0, step_ms))
        events = (start, end) if on_gpu else (UNKNOWN_HERE, UNKNOWN_HERE)
        rows.extend((0, 7, start, end, *events, 1000 + number, 64))
    (folder / "7-1.rows").write_bytes(rows.tobytes())
    return folder


def seen(
    begin_ms: int, *, reasons: int = 0, mhz: int = 1980, others: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    samples = []
    for number in range(40):  # half a second before and after the steps
        at = begin_ms - 500 + 100 * number
        values = (at * MS, 40_000 * number, mhz, 2600, 400_000, 60, reasons, 10**9)
        samples.append(list(values))
    facts = {"uuid": "GPU-1-2", "name": "NVIDIA H200", "power_limit_mw": 700_000, "max_sm_mhz": 1980}
    return {**facts, "columns": list(COLUMNS), "samples": samples, "others": others or []}


def reported(tmp_path: Path, gpus: list[dict[str, Any]], steps_ms: list[int]) -> dict[str, Any]:
    begins = [1_000_000 + 10_000 * run for run in range(len(gpus))]
    folders = [
        left_by_program(tmp_path / f"run-{run}", begin_ms=begin, step_ms=step)
        for run, (begin, step) in enumerate(zip(begins, steps_ms, strict=True))
    ]
    collect(folders, tmp_path / "run.json", [[gpu] for gpu in gpus])
    assert main(["report", str(tmp_path / "run.json"), "--out", str(tmp_path / "out"), "--format", "json,md"]) == 0
    report: dict[str, Any] = json.loads((tmp_path / "out" / "report.json").read_text())
    return report


def said(report: dict[str, Any]) -> dict[str, str]:
    return {found["code"]: found["message"] for found in report["diagnostics"]}


def test_a_quiet_gpu_gives_energy_and_memory_and_no_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = reported(tmp_path, [seen(1_000_000)], [80])
    assert said(report) == {}
    (region,) = report["scopes"][-1]["regions"]
    timing = region["timing"]
    assert timing["energy_j"] == pytest.approx(0.08 * 400, rel=0.1)
    low, high = timing["energy_interval_j"]
    assert low < timing["energy_j"] < high
    assert (timing["memory_peak_bytes"], timing["memory_growth_bytes"]) == (1029, 64)
    (facts,) = report["environment"]["recordings"]
    assert facts["energy"]["counter_j"] == pytest.approx(39 * 40)
    assert facts["energy"]["regions_j"] + facts["energy"]["no_region_j"] == pytest.approx(facts["energy"]["counter_j"])
    assert facts["gpu_use"][0]["sm_mhz"] == [1980, 1980, 1980]
    shown = capsys.readouterr().out
    assert "32 J" in shown
    assert "1.029 kB" in shown or "1.03 kB" in shown


@pytest.mark.parametrize(
    ("bit", "code", "word"), [(TOO_HOT, "GPU_SLOWED", "too hot"), (POWER_LIMIT, "GPU_POWER_LIMIT", "700 W")]
)
def test_what_slows_a_gpu_down_is_named(bit: int, code: str, word: str, tmp_path: Path) -> None:
    report = reported(tmp_path, [seen(1_000_000, reasons=bit, mhz=1200)], [80])
    assert list(said(report)) == [code]
    assert word in said(report)[code]
    assert "1200 MHz" in said(report)[code]


@pytest.mark.parametrize(("percent", "severity"), [(35.0, "warning"), (0.0, "info")])
def test_other_processes_on_the_gpu_are_named_with_their_share(percent: float, severity: str, tmp_path: Path) -> None:
    other = {"pid": 4711, "name": "vllm", "bytes": 2 << 30, "percent": percent}
    report = reported(tmp_path, [seen(1_000_000, others=[other])], [80])
    (found,) = report["diagnostics"]
    assert (found["code"], found["severity"]) == ("GPU_SHARED", severity)
    assert f"vllm (4711): {percent:.0f} % of its time, 2.0 GiB" in found["message"]


def test_runs_that_differ_say_that_the_clock_did_too(tmp_path: Path) -> None:
    report = reported(tmp_path, [seen(1_000_000), seen(1_010_000, mhz=1500)], [60, 80])
    assert "between 1500 and 1980 MHz" in said(report)["RUNS_DIFFER"]


def test_what_slowed_the_measured_run_down_is_told_beside_a_recording_too(tmp_path: Path) -> None:
    reported(tmp_path, [seen(1_000_000, reasons=TOO_HOT)], [60])
    files = [str(tmp_path / "run.json"), str(recording("nsys-*-decoder-8layers.sqlite"))]
    assert main(["report", *files, "--out", str(tmp_path / "both"), "--format", "json"]) == 0
    assert "GPU_SLOWED" in said(json.loads((tmp_path / "both" / "report.json").read_text()))


@pytest.mark.parametrize(
    ("cpu", "words"),
    [
        ([[900, 100], [500, 500]], "the threads of the program waited for one for 10 to 50 % of the time"),
        ([[990, 10], [990, 10]], "nobody else used the CPUs"),
    ],
)
def test_runs_that_differ_say_whether_others_had_the_cpus(cpu: list[list[int]], words: str, tmp_path: Path) -> None:
    begins = [1_000_000, 1_010_000]
    folders = [left_by_program(tmp_path / str(b), begin_ms=b, step_ms=s) for b, s in zip(begins, (60, 90), strict=True)]
    for folder, times in zip(folders, cpu, strict=True):
        with (folder / "7-1.names").open("a") as file:
            file.write(json.dumps({"cpu": times}) + "\n")
    collect(folders, tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), "--out", str(tmp_path / "out"), "--format", "json"]) == 0
    assert words in said(json.loads((tmp_path / "out" / "report.json").read_text()))["RUNS_DIFFER"]


def test_samples_of_one_process_are_shared_out_over_its_runs(tmp_path: Path) -> None:
    """Stage 1 collects its times itself; whoever started it adds what was seen of the GPU all the time."""
    begins, gpu = [1_000_000, 1_005_000], seen(1_000_000)
    folders = [left_by_program(tmp_path / str(begin), begin_ms=begin, step_ms=60) for begin in begins]
    second = [[at + 5_000 * MS, 1_600_000 + energy, 1500, *rest] for at, energy, _, *rest in gpu["samples"]]
    collect(folders, tmp_path / "run.json")
    add_gpus(tmp_path / "run.json", [{**gpu, "samples": gpu["samples"] + second}])
    assert main(["report", str(tmp_path / "run.json"), "--out", str(tmp_path / "out"), "--format", "json"]) == 0
    facts = json.loads((tmp_path / "out" / "report.json").read_text())["environment"]["recordings"][0]
    assert [use["sm_mhz"][1] for use in facts["gpu_use"]] == [1980, 1500]
    assert facts["energy"]["counter_j"] == pytest.approx((1_600 + 39 * 40), rel=1e-6)  # nothing twice, and no gap


def test_where_there_is_no_driver_nothing_is_seen() -> None:
    if Nvml.open() is not None:
        pytest.skip("this machine has an NVIDIA driver")
    with GpuSampler() as sampler:
        pass
    assert sampler.found == []


def test_times_of_the_gpu_are_not_compared_with_times_of_the_host(tmp_path: Path) -> None:
    """A host that runs ahead takes 2 ms for a step of 40 ms: that is no gain."""
    files = []
    for step_ms, on_gpu in ((40, True), (2, False)):
        folder = left_by_program(tmp_path / f"{step_ms}", begin_ms=1_000_000, step_ms=step_ms, on_gpu=on_gpu)
        files.append(tmp_path / f"run-{step_ms}.json")
        collect([folder], files[-1], [[seen(1_000_000)]])
    assert main(["compare", *map(str, files), "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    (step,) = found["regions"]
    assert step["verdict"] == "not_comparable"
    assert "host's clock" in step["reason"]
    assert main(["compare", str(files[1]), str(files[1]), "--out", str(tmp_path / "same")]) == 0
    (step,) = json.loads((tmp_path / "same" / "compare.json").read_text())["regions"]
    assert step["verdict"] == "same"
