"""Which captures a timeline leads to where the user chose what is profiled."""

from __future__ import annotations

import attrs
import pytest

from conftest import report
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.analysis.sample_matrix import sum_of_parts
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning import CounterPlan, decide, facts_of
from llm_perf_opt.planning.by_hand import instances_to_take
from llm_perf_opt.planning.chosen_regions import cut, outermost
from llm_perf_opt.regions.model import MetricValue, NCUProfileRegionReport
from llm_perf_opt.request import CounterRequest, ProfileRequest

TIMELINE = "nsys*-decoder-8layers-warm.sqlite"


def request(**counters: object) -> ProfileRequest:
    return ProfileRequest(command=["program"], counters=CounterRequest(**counters))  # type: ignore[arg-type]


def plan_counters(seen: NCUProfileRegionReport | None, asked: ProfileRequest) -> CounterPlan:
    return decide(asked, seen, None, facts_of({}))


@pytest.mark.parametrize(
    ("sample", "taken"),
    [("all", [1, 2, 3, 4, 5]), ("first", [1]), ("middle", [3]), ("last", [5]), ("every:2", [1, 3, 5])],
)
def test_instances(sample: str, taken: list[int]) -> None:
    assert instances_to_take(sample, 5) == taken


def test_range_modes_measure_stages_not_what_holds_them() -> None:
    seen = report(TIMELINE)
    assert [r.key for r in outermost(seen)] == ["LLM@prefill", "LLM@decode"]
    # decode repeats its steps, so it is measured itself; sampled, its steps are meant
    assert [r.key for r in cut(outermost(seen), seen, repeated=False)] == ["LLM@prefill", "LLM@decode"]
    assert [r.key for r in cut(outermost(seen), seen, repeated=True)] == ["LLM@prefill", "LLM@decode/decode_step"]


def test_what_the_user_chose_is_not_narrowed() -> None:
    seen = report(TIMELINE)
    (capture,) = plan_counters(seen, request(options=NcuOptions(launch_count=7))).captures
    assert capture.options.launch_count == 7
    assert capture.options.filter_mode is None
    (given,) = plan_counters(seen, request(options=NcuOptions(set="full"), strategy="as_given")).captures
    assert given.options == NcuOptions(set="full")


def test_a_launch_that_the_timeline_does_not_have_is_not_asked_for() -> None:
    seen = report(TIMELINE)
    assert seen.main_scope is not None
    there = sum(k.calls for k in seen.main_scope.kernels if "nvjet" in k.kernel_name)

    def pick(number: int, **more: object) -> NcuOptions:
        name = {"kernel_name": "regex:nvjet", "kernel_name_base": "demangled"}
        return NcuOptions(**{**name, "launch_skip": number - 1, "launch_count": 1, **more})  # type: ignore[arg-type]

    (last,) = plan_counters(seen, request(options=pick(there), gating_nvtx=False)).captures
    assert last.expected == 1
    (rest,) = plan_counters(seen, request(options=pick(there - 1, launch_count=9), gating_nvtx=False)).captures
    assert rest.expected == 2
    beyond = plan_counters(seen, request(options=pick(there + 1), gating_nvtx=False))
    assert not beyond.captures
    assert beyond.nothing_matched
    assert f"launched {there:,} times" in beyond.skipped
    # ncu numbers the launches of every configuration for itself here: the timeline's sum says nothing
    (each,) = plan_counters(
        seen, request(options=pick(there + 1, filter_mode="per-launch-config"), gating_nvtx=False)
    ).captures
    assert each.expected is None


def test_without_a_timeline_patterns_are_translated() -> None:
    asked = attrs.evolve(request(), report=ReportOptions(include=["LLM@prefill", "ncu:raw/"]))
    (capture,) = plan_counters(None, asked).captures
    assert r"regex:^LLM$@^(LLM\x40)?prefill$/" in capture.expressions
    assert "raw/" in capture.expressions
    assert capture.options.filter_mode is None


def value(amount: float, coverage: float = 1.0, rollup: str = "sum") -> MetricValue:
    return MetricValue(amount, "byte", rollup, "range replay", 1, launches=1, coverage=coverage)


def test_parts_measured_as_wholes_add_up_to_what_holds_them() -> None:
    summed = sum_of_parts([{"a": value(3)}, {"a": value(4), "b": value(1, rollup="mean")}], [60, 30], 100)
    assert summed["a"].value == 7
    assert summed["a"].coverage == pytest.approx(0.9)
    assert "b" not in summed
    assert not sum_of_parts([{"a": value(3)}], [10], 100)
