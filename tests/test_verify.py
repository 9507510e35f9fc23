"""Estimates held against the same regions measured as wholes: `--verify`, with real samples and real range results."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import attrs
import pytest

import llm_perf_opt
from conftest import codes, counters, read, recording
from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.verification import verify
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning import PlannedCapture, decide, facts_of, plan_verification
from llm_perf_opt.regions.columns import CounterSet, Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport, VerifiedCounter
from llm_perf_opt.request import CounterRequest, ProfileRequest
from test_profile import profile

FLOPS = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
COMPARED = {FLOPS, "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"}


def built(truth: CounterSet, **options: list[str]) -> NCUProfileRegionReport:
    timeline = read(recording("nsys-*-decoder-8layers-warm.sqlite"), True)
    samples = counters("decoder-8layers-warm-per-launch-config")
    return build_report([timeline, samples], ReportOptions(**options), truth=truth)


def verified(truth: CounterSet) -> NCUProfileRegionReport:
    """The same, but for the report: that does not depend on the truth, and is built once."""
    found, diagnoses = verify(build_report_alone(), truth)
    return attrs.evolve(build_report_alone(), verification=found, diagnostics=diagnoses)


def truth() -> CounterSet:
    return counters("decoder-8layers-warm-app-range")


def changed(region: str, metric: str, times: float) -> CounterSet:
    """The truth with one counter of one region multiplied."""
    actions = [
        attrs.evolve(a, metrics={**a.metrics, metric: a.metrics[metric] * times})
        if a.push_pop["LLM"] == [region]
        else a
        for a in truth().actions
    ]
    return attrs.evolve(truth(), actions=actions)


def counter(report: NCUProfileRegionReport, region: str, metric: str) -> VerifiedCounter:
    (found,) = [c for c in report.verification if (c.region, c.metric) == (region, metric)]
    return found


def test_every_counter_of_every_measured_region_is_held_against_the_truth() -> None:
    report = built(truth())
    assert {(c.region, c.metric) for c in report.verification} == {
        (region, metric) for region in ("LLM@prefill", "LLM@decode") for metric in COMPARED
    }
    for action in truth().actions:
        for metric in COMPARED:
            assert counter(report, f"LLM@{action.push_pop['LLM'][0]}", metric).truth == action.metrics[metric]
    assert all(c.agrees for c in report.verification)
    assert "VERIFIED" in codes(report)
    alone = build_report_alone()
    assert report.scopes == alone.scopes, "the truth is not mixed into the values"
    assert report.verification == verified(truth()).verification
    assert codes(report) == [*codes(alone), *codes(verified(truth()))]


def test_what_is_verified_is_what_is_reported() -> None:
    report = verified(truth())
    for found in report.verification:
        region = next(r for r in report.main_scope.regions if r.key == found.region)
        assert found.estimate == region.inclusive.metrics[found.metric].value


@lru_cache
def build_report_alone() -> NCUProfileRegionReport:
    timeline = read(recording("nsys-*-decoder-8layers-warm.sqlite"), True)
    return build_report([timeline, counters("decoder-8layers-warm-per-launch-config")], ReportOptions())


@pytest.mark.parametrize(("times", "agrees"), [(1.005, True), (1.05, False), (0.9, False), (0.0, False)])
def test_a_difference_beyond_the_stated_error_is_named(times: float, agrees: bool) -> None:
    report = verified(changed("decode", FLOPS, times))
    found = counter(report, "LLM@decode", FLOPS)
    assert found.agrees is agrees
    assert (found.ratio is None) == (times == 0)
    told = [d for d in report.diagnostics if d.code == "ESTIMATE_OFF"]
    assert bool(told) is not agrees
    if told:
        assert f"{FLOPS} of LLM@decode" in told[0].message
        assert told[0].severity == "warning"


def test_the_stated_error_is_that_of_the_estimate() -> None:
    report = verified(truth())
    region = next(r for r in report.main_scope.regions if r.key == "LLM@decode")
    for metric in COMPARED:
        spread = region.inclusive.metrics[metric].spread or 0.0
        assert counter(report, "LLM@decode", metric).stated_error == pytest.approx(max(2 * spread, 0.01))


def test_time_without_samples_is_part_of_the_stated_error() -> None:
    timeline = read(recording("nsys-*-decoder-8layers-warm.sqlite"), True)
    samples = counters("decoder-8layers-warm-per-launch-config")
    few = attrs.evolve(samples, actions=samples.actions[:60])
    report = build_report([timeline, few], ReportOptions(), truth=truth())
    region = next(r for r in report.main_scope.regions if r.key == "LLM@decode")
    value = region.inclusive.metrics["dram__bytes_read.sum"]
    assert value.coverage is not None
    assert value.coverage < 0.9
    assert counter(report, "LLM@decode", "dram__bytes_read.sum").stated_error > 1 - value.coverage


def test_a_region_of_which_some_instances_were_measured_is_not_compared() -> None:
    twice = attrs.evolve(truth(), actions=[*truth().actions, truth().actions[0]])
    report = verified(twice)
    assert {c.region for c in report.verification} == {"LLM@decode"}
    (told,) = [d for d in report.diagnostics if d.code == "VERIFIED_IN_PART"]
    assert "LLM@prefill (2 of 1 instances)" in told.message


def test_results_of_something_else_verify_nothing_and_that_is_said() -> None:
    report = verified(counters("qwen3-0.95b-app-range"))
    assert {c.region for c in report.verification} <= {"LLM@prefill"}  # the other range does not exist here
    other = attrs.evolve(truth(), actions=[attrs.evolve(a, push_pop={"": ["elsewhere"]}) for a in truth().actions])
    assert codes(verified(other))[-1] == "NOTHING_VERIFIED"


def test_chosen_kernels_are_not_held_against_whole_regions() -> None:
    report = built(truth(), kernel_include=["*nvjet*"])
    assert report.verification == []
    assert "ESTIMATE_OFF" not in codes(report)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.process
def test_one_command_verifies_its_estimates_and_a_rebuilt_report_still_knows(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile("--verify") == 0
    shown = capsys.readouterr().out
    assert "estimates against range replay" in shown
    assert "agrees" in shown
    lines = Path("run/ncu/cmd.txt").read_text(encoding="utf-8").splitlines()
    (last,) = [line for line in lines if "--replay-mode app-range" in line]
    assert "--nvtx-include LLM@prefill/ --nvtx-include LLM@decode/" in last
    assert "--launch-count" not in last
    assert "--filter-mode" not in last
    report = llm_perf_opt.load("run")
    assert len(report.verification) == 8
    region = next(r for r in report.main_scope.regions if r.key == "LLM@decode")
    assert region.inclusive.metrics["dram__bytes_read.sum"].source == "extrapolated"
    for page in ("report.md", "report.html"):
        assert "Estimates against range replay" in Path("run", page).read_text(encoding="utf-8")
    again = make_report(["run"], ReportOptions(), quiet=True)
    assert again.verification == report.verification
    # A damaged file costs the verification and nothing else.
    Path("run/ncu/verify.ncu-rep").write_bytes(b"NVR\0 broken")
    again = make_report(["run"], ReportOptions(), quiet=True)
    assert again.verification == []
    assert "VERIFY_FAILED" in codes(again)
    assert again.coverage == report.coverage


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_range_replay_that_fails_is_told_and_costs_nothing_else(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "kernel=ok,app-range=ncu-range-transformer")
    assert profile("--verify") == 5
    report = llm_perf_opt.load("run")
    assert report.verification == []
    assert report.coverage is not None
    assert report.coverage.signatures_matched == 88
    (told,) = [d for d in report.diagnostics if d.code == "VERIFY_FAILED"]
    assert "verify.log" in told.fix
    steps = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["steps"]
    assert [s["status"] for s in steps if s["name"] == "ncu"] == ["captured", "nothing"]


def planned(**request: object) -> PlannedCapture | str:
    timeline = read(recording("nsys-*-decoder-8layers-warm.sqlite"), True)
    assert isinstance(timeline, Timeline)
    seen = build_report([timeline], ReportOptions())
    asked = attrs.evolve(ProfileRequest(command=["program"]), **request)
    return plan_verification(seen, asked, decide(asked, seen, timeline, facts_of({})).captures)


def test_the_counters_are_those_of_the_captures_and_no_launch_is_chosen() -> None:
    capture = planned(counters=CounterRequest(options=NcuOptions(metrics="dram__bytes_read.sum", launch_count=5)))
    assert isinstance(capture, PlannedCapture)
    assert capture.options.metrics == ("dram__bytes_read.sum",)
    assert capture.options.launch_count is None
    assert (capture.options.replay_mode, capture.expected) == ("app-range", 2)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"counters": CounterRequest(options=NcuOptions(replay_mode="app-range"))}, "measured as wholes already"),
        ({"report": ReportOptions(kernel_include=["*nvjet*"])}, "kernels were chosen"),
    ],
)
def test_where_there_is_nothing_to_verify_the_program_does_not_run_again(request_: dict[str, object], why: str) -> None:
    told = planned(**request_)
    assert isinstance(told, str)
    assert why in told


@pytest.mark.process
def test_the_plan_names_the_command_that_would_verify(capsys: pytest.CaptureFixture[str]) -> None:
    timeline = str(recording("nsys-*-decoder-8layers-warm.sqlite"))
    assert main(["plan", "--timeline", timeline, "--verify", "--", "python", "model.py"]) == 0
    shown = capsys.readouterr().out
    assert "--replay-mode app-range" in shown.split("to verify")[1]
