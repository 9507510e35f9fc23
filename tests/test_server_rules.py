"""Servers: what their steps replay, what lies between them, and what is worth mending; nothing of it in other programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from attrs import asdict

from conftest import RECORDINGS, recording, regions_of
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.readers.kineto import read_kineto
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import UNKNOWN, Timeline
from llm_perf_opt.regions.fixes import Fix
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.step_graphs import step_graphs
from served_traces import ServedStep, served, trace_of

SIZES = (8, 16, 24, 32)
MIXED = ServedStep(phase="mixed_step", batch=9, tokens=2048, kernel_us=700, graph=False)
SHOWN = {  # rule -> steps that show it, the stage it is found in, and the part of it that it would win
    "serve.schedule": ([ServedStep(schedule_us=900)] * 40, "whole recording", 0.33),
    "serve.graph": (
        [ServedStep(batch=n, graph=n != 24, kernel_us=20, kernels=100, launch_us=60) for n in SIZES * 10],
        "decode_step",
        0.31,
    ),
    "serve.mixed": (([ServedStep()] * 5 + [MIXED]) * 8, "mixed_step", 0.43),
    "serve.cache": ([ServedStep(moved_us=400)] * 40, "decode_step", 0.13),
    "memory.bound": ([ServedStep(batch=n, kernel_us=100 + n / 10) for n in (2, 4, 16) * 10], "decode_step", 0.49),
}


def report_of(steps: list[ServedStep], named: bool = True) -> NCUProfileRegionReport:
    return build_report([served(steps, named=named)], ReportOptions())


def fixes(steps: list[ServedStep], named: bool = True) -> dict[str, Fix]:
    return {fix.rule: fix for fix in report_of(steps, named).answer.fixes}


@pytest.mark.parametrize("rule", SHOWN)
def test_a_rule_of_servers_sees_its_case(rule: str) -> None:
    steps, stage, gain = SHOWN[rule]
    found = fixes(steps)
    assert found[rule].stage == stage
    assert found[rule].gain_share == pytest.approx(gain, abs=0.02)
    assert found[rule].because
    assert "{" not in found[rule].because + found[rule].action


@pytest.mark.parametrize("rule", SHOWN)
def test_no_rule_of_servers_speaks_of_another_program(rule: str) -> None:
    """The same work, in steps that say nothing of requests."""
    found = fixes(SHOWN[rule][0], named=False)
    assert not [name for name in found if name.startswith("serve.") or name == "memory.bound"]


def test_a_server_that_does_well_gets_no_fix() -> None:
    assert fixes([ServedStep()] * 40) == {}


def test_evidence_names_sizes_and_times() -> None:
    graph = fixes(SHOWN["serve.graph"][0])["serve.graph"].because
    assert "10 steps with batch 24 replay no CUDA graph" in graph
    assert "those with 8, 16, 32 do" in graph
    assert "14 ms in a mixed step (2,048 tokens) and 2.04 ms" in fixes(SHOWN["serve.mixed"][0])["serve.mixed"].because
    assert "steps of 2 to 16 requests" in fixes(SHOWN["memory.bound"][0])["memory.bound"].because.lower()


def test_mixed_steps_of_a_server_that_only_reads_are_left_alone() -> None:
    assert "serve.mixed" not in fixes([ServedStep(), *[MIXED] * 20] * 2)


def test_fixes_of_steps_are_told_also_where_the_whole_recording_is_the_stage() -> None:
    steps = [ServedStep(**{**asdict(step), "schedule_us": 600}) for step in SHOWN["serve.graph"][0]]
    answer = report_of(steps).answer
    assert answer.stage == "whole recording"
    assert [(fix.rule, fix.stage) for fix in answer.fixes if fix.rule.startswith("serve.")] == [
        ("serve.schedule", "whole recording"),
        ("serve.graph", "decode_step"),
    ]


def test_steps_with_and_without_a_graph_are_groups_of_their_own() -> None:
    steps = [ServedStep(batch=n, graph=n != 24) for n in SIZES * 10]
    (region,) = [r for r in report_of(steps).scopes[-1].regions if r.name == "decode_step"]
    assert region.timing is not None
    assert region.timing.steps is not None
    groups = [(g.smallest, g.largest, g.in_graph, g.instances) for g in region.timing.steps.groups]
    assert groups == [(8, 8, True, 10), (16, 16, True, 10), (24, 24, False, 10), (32, 32, True, 10)]


def test_what_lies_between_and_outside_the_steps_is_named() -> None:
    found = {d.code: d.message for d in report_of([ServedStep(schedule_us=800, fill_us=400)] * 20).diagnostics}
    assert (
        "schedule 800 µs, update 50 µs, other work 425 µs; the GPU is idle for 69 % of that" in found["BETWEEN_STEPS"]
    )
    assert "1.28 ms (median)" in found["BETWEEN_STEPS"]
    assert "16.0 % of the GPU's time from the first step to the last is outside all steps" in found["OUTSIDE_STEPS"]
    assert "FillFunctor" in found["OUTSIDE_STEPS"]
    quiet = {d.code for d in report_of([ServedStep()] * 20).diagnostics}
    assert "BETWEEN_STEPS" in quiet
    assert "OUTSIDE_STEPS" not in quiet
    assert not {"BETWEEN_STEPS", "OUTSIDE_STEPS"} & {d.code for d in report_of([ServedStep()] * 9, False).diagnostics}


def test_a_pause_without_requests_is_none_of_the_engine() -> None:
    steps = [ServedStep()] * 10 + [ServedStep(schedule_us=500_000)] + [ServedStep()] * 10
    found = {d.code: d.message for d in report_of(steps).diagnostics}
    assert "takes 115 µs (median), on average schedule 50 µs" in found["BETWEEN_STEPS"]


def test_steps_of_an_engine_that_runs_ahead_end_when_their_work_is_done() -> None:
    """Their ranges are closed after a tenth of that: tokens per second would be ten times too many."""
    report = report_of([ServedStep(**{**asdict(step), "waits": False}) for step in SHOWN["serve.mixed"][0]])
    regions = {r.name: r for r in report.scopes[-1].regions if r.timing is not None and r.timing.steps is not None}
    for name, kernel_us in (("decode_step", 100), ("mixed_step", 700)):
        steps = regions[name].timing.steps
        assert regions[name].timing.steady.median_ns < 0.2e6
        assert steps.median_ns == pytest.approx(20 * kernel_us * 1000, rel=0.02)
        assert steps.groups[0].median_ns == steps.median_ns
    assert "14 ms in a mixed step (2,048 tokens) and 2.02 ms" in next(
        fix.because for fix in report.answer.fixes if fix.rule == "serve.mixed"
    )


def _ranges(timeline: Timeline, name: str) -> np.ndarray:
    return np.flatnonzero(timeline.ranges.name == timeline.strings.index(name))


@pytest.mark.parametrize("traced", ["node", "whole"])
def test_a_recording_tells_which_ranges_replay_a_graph(traced: str) -> None:
    timeline = read_recording(Path(RECORDINGS / f"nsys-2025.3.1-h200-graph_{traced}.sqlite.gz"))
    assert isinstance(timeline, Timeline)
    replays, eager = (step_graphs(timeline, _ranges(timeline, name)) for name in ("decode_step", "eager"))
    assert replays[:, 0].tolist() == [1] * 6
    assert eager[:, 0].tolist() == [0]
    assert len(set(replays[:, 1].tolist())) == 1  # all of one graph
    assert (replays[0, 1] != UNKNOWN) == (traced == "node")


def test_a_trace_without_gpu_work_says_nothing_of_graphs() -> None:
    trace = json.loads(trace_of([ServedStep()] * 3))
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] == "user_annotation"]
    timeline = read_kineto(io.BytesIO(json.dumps(trace).encode()), "trace.json")
    assert (step_graphs(timeline, np.arange(3)) == UNKNOWN).all()


def test_the_steps_of_a_real_engine_wait_for_the_plans_of_cudnn_and_for_its_scheduler() -> None:
    """A fill of 4 bytes lies between the gap and the attention kernel; `prepare_next_batch` is no DataLoader."""
    timeline = read_recording(recording("serving-*-continuous-batching"), launch_config=True)
    report = build_report([timeline], ReportOptions())
    told = {(fix.rule, fix.stage) for fix in report.answer.stage_fixes}
    assert report.answer.fixes[0].rule == "attention.replan"
    assert "enable_cudnn_sdp(False)" in report.answer.fixes[0].action
    assert {("attention.replan", "LLM@decode_step"), ("serve.schedule", "LLM@schedule")} <= told
    assert not [rule for rule, _ in told if rule == "host.data"]
    # What the engine launches between two steps is of its scheduler: nobody captures that.
    assert not told & {("launch.graph", "LLM@schedule"), ("launch.graph", "LLM@update")}
    steps = {
        key.partition("@")[2]: found.inclusive.kernel_count for key, found in regions_of(report.main_scope).items()
    }
    assert {"prefill", "mixed_step", "decode_step"} <= set(steps)
