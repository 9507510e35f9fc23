"""Which captures a timeline leads to."""

from __future__ import annotations

import attrs
import pytest

from conftest import report
from llm_perf_opt.analysis.measured_parts import sum_of_parts
from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.pipeline.choose import cut, instances_to_take, outermost, plan_counters
from llm_perf_opt.pipeline.request import CounterRequest, ProfileRequest
from llm_perf_opt.profiling.vendor.ncu import NcuOptions
from llm_perf_opt.regions.model import MetricValue

TIMELINE = "nsys*-decoder-8layers-warm.sqlite"


def request(**counters: object) -> ProfileRequest:
    return ProfileRequest(command=["program"], counters=CounterRequest(**counters))  # type: ignore[arg-type]


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


def test_without_a_timeline_patterns_are_translated() -> None:
    asked = attrs.evolve(request(), report=ReportOptions(include=["LLM@prefill", "ncu:raw/"]))
    (capture,) = plan_counters(None, asked).captures
    assert "LLM@prefill/" in capture.expressions
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
