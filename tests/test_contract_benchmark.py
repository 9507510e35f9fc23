"""The benchmark of the contract's commands finds what is wrong in a report: what is right passes, each mistake does not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from conftest import read, recording
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.regions.columns import CounterSet
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.json_report import render_json
from llm_perf_opt.runners.overrides import normalised

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import contract_checks as check
import contract_commands as benchmark
from contract_parts import DEEP, PARTS, STAGE1, Bench, Part

DECODER = "decoder-8layers-warm"


def as_json(report: NCUProfileRegionReport) -> check.Report:
    found: check.Report = json.loads(render_json(report))
    return found


@pytest.fixture(scope="module")
def written() -> bytes:
    """The report of a timeline with counters."""
    names = (f"nsys-2025.3.1-h200-{DECODER}.sqlite.xz", f"ncu-2025.3.1-h200-{DECODER}-per-launch-config.ncu-rep.xz")
    report = make_report([str(recording(name)) for name in names], ReportOptions(), quiet=True)
    return orjson.dumps(as_json(report))


@pytest.fixture(scope="module")
def joined(written: bytes) -> check.Report:
    found: check.Report = orjson.loads(written)
    return found


@pytest.fixture(scope="module")
def counters() -> CounterSet:
    found = read(recording("ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config.ncu-rep.xz"))
    assert isinstance(found, CounterSet)
    return found


@pytest.fixture
def broken(written: bytes) -> check.Report:
    """One to spoil."""
    found: check.Report = orjson.loads(written)
    return found


def some_region(report: check.Report) -> dict[str, Any]:
    return next(region for region in check.regions(report) if region["inclusive"]["metrics"])


def test_a_right_report_passes(joined: check.Report) -> None:
    for one in (check.timed, check.counted, check.in_range, check.as_asked, check.work_by_formula):
        assert list(one(joined)) == []
    assert list(check.named_only(joined, "^LLM@")) == []
    assert list(check.measured_by(joined, "extrapolated")) == []


def test_a_report_without_counters_does_not() -> None:
    timeline = as_json(build_report([read(recording(f"nsys-2025.3.1-h200-{DECODER}.sqlite.xz"))], ReportOptions()))
    assert list(check.timed(timeline)) == []
    assert len(list(check.counted(timeline))) == 1
    assert list(check.nothing_matched(timeline, "NO_COUNTERS")) == []
    assert list(check.nothing_matched(timeline, "NO_MATCHING_KERNELS")) != []


def test_a_report_with_times_alone_has_no_counters(broken: check.Report) -> None:
    for region in check.regions(broken):
        metrics = region["inclusive"]["metrics"]
        region["inclusive"]["metrics"] = {name: value for name, value in metrics.items() if "time_duration" in name}
    assert list(check.counted(broken)) == ["0 regions have counters, 1 or more were expected"]


def test_counters_of_a_few_launches_are_not_those_of_a_stage(broken: check.Report) -> None:
    assert list(check.stages_counted(broken)) == []
    for value in next(r for r in check.regions(broken) if r["key"] in broken["stages"])["inclusive"][
        "metrics"
    ].values():
        value["coverage"] = 0.04
    assert "counters cover 4% of its time" in next(check.stages_counted(broken))


def test_values_out_of_range_are_found(broken: check.Report) -> None:
    value = next(iter(some_region(broken)["inclusive"]["metrics"].values()))
    value |= {"unit": "%", "value": 3302.7}
    assert len(list(check.in_range(broken))) == 1
    value |= {"unit": "byte", "value": -1.0}
    assert len(list(check.in_range(broken))) == 1
    value |= {"value": 1.0, "coverage": 1.5}
    assert len(list(check.in_range(broken))) == 1
    region = next(r for r in check.regions(broken) if r["performance"] and r["performance"]["utilisation"])
    value["coverage"] = None
    region["performance"]["utilisation"][0]["value"] = 1.2
    assert len(list(check.in_range(broken))) == 1


def test_another_replay_mode_or_region_is_found(broken: check.Report) -> None:
    broken["diagnostics"].append({"code": check.FELL_BACK, "severity": "info", "message": "not possible", "fix": ""})
    assert list(check.as_asked(broken)) == ["not possible"]
    assert list(check.measured_by(broken, "range replay")) != []
    assert list(check.named_only(broken, "prefill")) == ["LLM@decode was not asked for"]


def test_an_empty_report_does_not_pass(broken: check.Report) -> None:
    for scope in broken["scopes"]:
        scope["regions"] = []
    assert list(check.timed(broken)) == ["there is no region", "no region has a kernel"]
    assert list(check.counted(broken)) != []


def test_kernels_are_those_of_the_filter(counters: CounterSet) -> None:
    products = [action for action in counters.actions if "nvjet" in action.name]
    assert products
    assert list(check.kernels_match(products, "nvjet")) == []
    assert list(check.kernels_match(products, "nvjet", len(products) - 1)) != []
    assert len(list(check.kernels_match(counters.actions, "nvjet"))) > 1
    assert list(check.kernels_match([], "")) == ["ncu profiled nothing"]


def test_the_numbers_of_one_launch_are_compared(counters: CounterSet) -> None:
    one = counters.actions[:1]
    report = as_json(build_report([attrs.evolve(counters, actions=one)], ReportOptions()))
    assert list(check.one_launch_shown(report, one)) == []
    name = next(iter(report["launches"][0]["metrics"]))
    report["launches"][0]["metrics"][name]["value"] += 1
    assert [name in problem for problem in check.one_launch_shown(report, one)] == [True]
    report["launches"] = []
    assert list(check.one_launch_shown(report, one)) == ["the report shows 0 launches"]
    assert list(check.one_launch_shown(report, counters.actions)) != []


def test_a_verification_that_differs_or_is_missing_is_found(broken: check.Report) -> None:
    assert list(check.verified(broken)) == ["nothing was verified"]
    row = {"region": "A", "metric": "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "ratio": 1.0}
    broken["verification"] = [row]
    assert list(check.verified(broken)) == []
    row["ratio"] = 0.5
    assert len(list(check.verified(broken))) == 1


def test_sections_are_looked_for_in_the_page_of_ncu(tmp_path: Path) -> None:
    assert list(check.sections_shown(tmp_path, "Occupancy")) != []
    (tmp_path / "ncu").mkdir()
    (tmp_path / "ncu" / "sections_report.txt").write_text("    Section: Occupancy\n")
    assert list(check.sections_shown(tmp_path, "Occupancy")) == []
    assert list(check.sections_shown(tmp_path, "Occupancy", "Scheduler Statistics")) != []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    kernels = {"prefill": ["nvjet_tst_128x256"], "decode": ["void gemv<float, 4>(float*)"]}
    return Bench(tmp_path, "nsys", "ncu", dict(os.environ), kernels)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_command_is_one_that_the_runners_take(part: Part, bench: Bench) -> None:
    argv = part.argv(bench)
    for module in (DEEP, STAGE1):
        if module in argv:
            normalised(argv[argv.index(module) + 1 :])
    assert part.seconds < 560 / 2  # two of them in a call at least
    assert "/" not in part.name


def test_the_commands_of_the_contract_are_all_there() -> None:
    names = [part.name for part in PARTS]
    assert len(names) == len(set(names))
    assert names[:10] == [
        *("range", "app-range", "kernel", "exact-kernel", "matmul-kernels", "nsys", "ncu", "manifest"),
        *("torch-profiler", "sweep"),
    ]


@pytest.mark.process
def test_a_part_that_leaves_nothing_is_bad_whatever_its_exit_code(bench: Bench) -> None:
    from contract_parts import with_counters

    part = Part(
        "nothing", "a program that does nothing", 1, lambda _: ["python", "-c", "print('done')"], with_counters()
    )
    outcome = benchmark.run_part(part, bench, 60)
    assert outcome.exit_code == 0
    assert outcome.problems
    assert outcome.last_lines == ["done"]


def test_results_of_an_earlier_call_stay(tmp_path: Path) -> None:
    outcome = benchmark.Outcome("kernel", "about", "command", 0, 1.0, [], "abc1234")
    about = {"made_by": "m", "date": "d", "commit": "abc1234", "gpus": [], "tools": {}}
    benchmark.write(tmp_path / "result", about, [outcome])
    assert benchmark.earlier(str(tmp_path / "result")) == {"kernel": outcome}
    assert benchmark.earlier(str(tmp_path / "another")) == {}
    page = (tmp_path / "result.md").read_text()
    assert "1 of 1 parts are good" in page
    assert "Not run: range, app-range" in page


def test_no_folder_of_the_machine_is_in_a_result() -> None:
    assert (
        benchmark.without_folders("see /home/me/x/run.log and [/a/b/python,/c/d.py]") == "see run.log and [python,d.py]"
    )


def spoiled() -> Iterator[str]:
    raise KeyError("scopes")
    yield ""


def test_a_report_that_cannot_be_looked_at_is_a_problem(bench: Bench, tmp_path: Path) -> None:
    part = Part("odd", "", 1, lambda _: [], lambda *_: spoiled())
    assert "KeyError" in next(benchmark.checked(part, bench, tmp_path, []))


def test_work_that_was_not_counted_is_found(broken: check.Report) -> None:
    region = some_region(broken)
    region["performance"] = {"work": {"counted_over_formula": 0.5, "formula_note": "", "coverage": 0.9}}
    assert len(list(check.work_by_formula(broken))) == 1
    region["performance"]["work"] |= {"counted_over_formula": 10.5, "formula_note": "whole tiles (8 rows at least …"}
    assert list(check.work_by_formula(broken)) == []
