"""The rules by which sampled counters become values of regions, one by one, on timelines made for the purpose."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.sample_matrix import Samples, add_up_results
from llm_perf_opt.regions.columns import (
    UNKNOWN,
    Action,
    CounterSet,
    LaunchConfig,
    MetricInfo,
    Process,
    Ranges,
    Timeline,
    Work,
)
from llm_perf_opt.regions.model import NCUProfileRegionReport

INFO = {
    "bytes.sum": MetricInfo("byte", "sum"),
    "peak.max": MetricInfo("", "max"),
    "busy.pct": MetricInfo("%", "mean"),
    "gpu__time_duration.sum": MetricInfo("ns", "sum"),
}


def ints(values: list[int], dtype: type = np.int32) -> np.ndarray:
    return np.array(values, dtype=dtype)


def timeline(
    ranges: list[tuple[str, int, int]],
    kernels: list[tuple[str, int, int]],
    *,
    processes: int = 1,
    domains: dict[str, str] | None = None,
    start_end: tuple[str, ...] = (),
    graphs: list[tuple[int, int]] = [],  # noqa: B006 - never changed
) -> Timeline:
    """Ranges (name, start, end) and kernels (name, launch, duration), the same in every process."""
    strings = [*sorted({name for name, *_ in (*ranges, *kernels)}), "graph"]
    of_domain = domains or {}
    names = ["", *sorted(set(of_domain.values()))]

    def work(rows: list[tuple[str, int, int]]) -> Work:
        count = len(rows) * processes
        everyone = [p for p in range(processes) for _ in rows]
        grid = np.ones((count, 3), dtype=np.int32)
        name = ints([strings.index(n) for n, *_ in rows] * processes)
        return Work(
            start=ints([launch + 1 for _, launch, _ in rows] * processes, np.int64),
            end=ints([launch + 1 + time for _, launch, time in rows] * processes, np.int64),
            process=ints(everyone),
            device=ints([0] * count),
            name=name,
            host_time=ints([launch for _, launch, _ in rows] * processes, np.int64),
            thread=ints(everyone),
            graph_node=ints([UNKNOWN] * count),
            config=LaunchConfig(name, name, grid, grid, ints([0] * count)),
        )

    return Timeline(
        source="run.sqlite",
        kind="nsys-sqlite",
        strings=strings,
        domains=names,
        processes=[Process(pid=7 + p) for p in range(processes)],
        threads=list(range(processes)),
        kernels=work(kernels),
        copies=Work.empty(),
        graphs=work([("graph", launch, time) for launch, time in graphs]),
        ranges=Ranges(
            start=ints([s for _, s, _ in ranges] * processes, np.int64),
            end=ints([e for _, _, e in ranges] * processes, np.int64),
            process=ints([p for p in range(processes) for _ in ranges]),
            thread=ints([p for p in range(processes) for _ in ranges]),
            domain=ints([names.index(of_domain.get(n, "")) for n, *_ in ranges] * processes),
            name=ints([strings.index(n) for n, *_ in ranges] * processes),
            start_end=np.array([n in start_end for n, *_ in ranges] * processes),
        ),
    )


def result(stack: dict[str, list[str]], kind: str = "kernel", name: str = "k", **metrics: float) -> Action:
    renamed = {"gpu__time_duration.sum" if k == "time" else k.replace("_", "."): v for k, v in metrics.items()}
    one = (1, 1, 1)
    return Action(kind, name, name, name, name, one, one, push_pop=stack, metrics=renamed)


def joined(recording: Timeline, *actions: Action, aggregate: bool = True) -> NCUProfileRegionReport:
    counters = CounterSet("counters.ncu-rep", "ncu-rep", list(actions), INFO)
    return build_report([recording, counters], ReportOptions(aggregate=aggregate))


def metric(report: NCUProfileRegionReport, key: str, name: str = "bytes.sum", scope: str = "aggregate"):
    return {r.key: r for r in report.scope(scope).regions}[key].inclusive.metrics.get(name)


def test_a_sample_from_another_region_is_not_called_measured() -> None:
    recording = timeline([("layer0", 0, 100), ("layer1", 200, 300)], [("k", 10, 5), ("k", 210, 5)])
    report = joined(recording, result({"": ["layer0"]}, bytes_sum=5.0))
    here, there = metric(report, "layer0"), metric(report, "layer1")
    assert (here.value, here.source, here.spread) == (5, "kernel replay", 0)
    assert (there.value, there.source, there.spread) == (5, "extrapolated", None)


def test_samples_of_the_same_stage_are_preferred_to_those_of_the_same_layer_in_another() -> None:
    """A decode step's layer is more like another layer of a decode step than like itself in prefill."""
    spans = {"prefill": (0, 100), "decode": (200, 300)}
    ranges = [(stage, *span) for stage, span in spans.items()]
    for start, _ in spans.values():
        ranges += [(f"layer{i}", start + 10 + 40 * i, start + 40 + 40 * i) for i in range(2)]
        ranges += [("attention", start + 20 + 40 * i, start + 30 + 40 * i) for i in range(2)]
    recording = timeline(ranges, [("k", at, 5) for at in (21, 61, 221, 261)])
    samples = [
        result({"": ["prefill", "layer1", "attention"]}, bytes_sum=1000.0),
        result({"": ["decode", "layer0", "attention"]}, bytes_sum=1.0),
    ]
    report = joined(recording, *samples)
    assert metric(report, "decode/layer1/attention").value == 1
    assert metric(report, "prefill/layer0/attention").value == 1000
    assert metric(report, "decode").value == 2


def of_two_sizes(long: int = 20_000) -> Timeline:
    """A kernel that takes 2 µs four times and `long` ns twice, on one grid."""
    durations = [2_000, 2_000, long, 2_000, long, 2_000]
    return timeline([("decode", 0, 10**6)], [("k", 100_000 * (i + 1), d) for i, d in enumerate(durations)])


def test_launches_of_two_kinds_take_the_samples_of_their_own() -> None:
    """Of six launches four take 2 µs and two 20 µs; under ncu a microsecond more."""
    samples = [result({"": ["decode"]}, bytes_sum=b, time=t) for b, t in ((10.0, 3_000.0), (500.0, 21_000.0))]
    value = metric(joined(of_two_sizes(), *samples), "decode")
    assert (value.value, value.source, value.coverage) == (4 * 10 + 2 * 500, "extrapolated", 1)


@pytest.mark.parametrize("long", [0, 3_000, 20_000, 10**9])
def test_launches_that_were_held_up_do_the_same_work(long: int) -> None:
    """Nothing of their kind was sampled, so nobody knows that they are of another; nor are those that took no time."""
    value = metric(joined(of_two_sizes(long), result({"": ["decode"]}, bytes_sum=10.0, time=3_000.0)), "decode")
    assert (value.value, value.launches, value.coverage) == (60, 6, 1)


def test_a_region_that_was_sampled_completely_is_measured_whatever_its_kinds_are() -> None:
    """ncu saw one of the short launches take as long as the long ones do."""
    durations = [2_000, 2_000, 2_700, 2_700]
    kernels = [("k", at + 10 * i, d) for at in (1_000, 100_000) for i, d in enumerate(durations)]
    recording = timeline([("one", 0, 50_000), ("two", 90_000, 150_000)], kernels)
    times, amounts = (3_000, 3_650, 3_700, 3_700), (10, 10, 100, 100)
    samples = [result({"": ["one"]}, bytes_sum=b, time=t) for t, b in zip(times, amounts, strict=True)]
    report = joined(recording, *samples)
    value = metric(report, "one")
    assert (value.value, value.source, value.spread) == (220, "kernel replay", 0)
    assert metric(report, "two").source == "extrapolated"


def test_a_result_without_a_duration_leaves_the_kinds_of_the_others_apart() -> None:
    """Of a second report with another counter, which did not ask for the time."""
    samples = [result({"": ["decode"]}, bytes_sum=b, time=t) for b, t in ((10.0, 3_000.0), (500.0, 21_000.0))]
    untimed = result({"": ["decode"]}, busy_pct=40.0)
    report = joined(of_two_sizes(), *samples, untimed)
    assert metric(report, "decode").value == 4 * 10 + 2 * 500
    assert metric(report, "decode", "busy.pct").value == 40


def test_a_neighbour_s_kinds_stand_in_for_the_kinds_of_a_grid_without_a_sample() -> None:
    """Two grids with 8 short and 2 long launches each; one of each kind was sampled, all on the first grid."""
    durations = [10_000] * 8 + [100_000] * 2
    recording = timeline([("decode", 0, 10**7)], [("k", 200_000 * (i + 1), d) for i, d in enumerate(durations * 2)])
    assert recording.kernels.config is not None
    recording.kernels.config.grid = np.array([(b, 1, 1) for b in [100] * 10 + [104] * 10], dtype=np.int32)
    samples = [
        attrs.evolve(result({"": ["decode"]}, bytes_sum=b, time=t), grid=(100, 1, 1))
        for b, t in ((10.0, 11_000.0), (500.0, 101_000.0))
    ]
    one = 8 * 10 + 2 * 500
    assert metric(joined(recording, *samples), "decode").value == pytest.approx(one + 1.04 * one)


def test_samples_without_a_duration_speak_for_all_launches_alike() -> None:
    samples = [result({"": ["decode"]}, bytes_sum=b) for b in (10.0, 500.0)]
    assert metric(joined(of_two_sizes(), *samples), "decode").value == 6 * 255


def test_launches_that_were_all_sampled_are_added_up_as_they_are() -> None:
    """Whatever kinds they are of, and however long ncu saw them take."""
    times = [3_000.0, 21_000.0, 3_000.0, 3_000.0, 3_000.0, 21_000.0]
    samples = [result({"": ["decode"]}, bytes_sum=float(i), time=t) for i, t in enumerate(times)]
    value = metric(joined(of_two_sizes(), *samples), "decode")
    assert (value.value, value.source, value.spread) == (15, "kernel replay", 0)


def on_grids(blocks: list[int]) -> Timeline:
    """Launches of one kernel in `decode`, each on another grid."""
    recording = timeline([("decode", 0, 1000)], [("k", 10 * (i + 1), 5) for i in range(len(blocks))])
    assert recording.kernels.config is not None
    recording.kernels.config.grid = np.array([(b, 1, 1) for b in blocks], dtype=np.int32)
    return recording


def test_a_grid_without_a_sample_takes_those_of_the_nearest_in_proportion_to_the_blocks() -> None:
    """As the cache grows: the grids 100 and 109 were sampled, 101, 108 and 118 not."""
    samples = [attrs.evolve(result({"": ["decode"]}, bytes_sum=float(10 * b)), grid=(b, 1, 1)) for b in (100, 109)]
    report = joined(on_grids([100, 101, 108, 109, 118]), *samples)
    assert report.coverage is not None
    assert metric(report, "decode").value == pytest.approx(10 * (100 + 101 + 108 + 109) + 10 * 118)
    assert (report.coverage.signatures_matched, report.coverage.signatures_scaled) == (5, 3)
    assert report.coverage.gpu_time_scaled_ns == 15
    assert metric(report, "decode").source == "extrapolated"
    # What the scaled ones may be off by is what they were scaled by.
    off = 1000 * 0.01 + 1090 * (1 / 109) + 1090 * (118 / 109 - 1)
    assert metric(report, "decode").spread == pytest.approx(off / metric(report, "decode").value, rel=0.15)
    (told,) = [d for d in report.diagnostics if d.code == "SIGNATURES_SCALED"]
    assert "3 of 5 kernel signatures in the regions (60.0 % of their GPU time)" in told.message


@pytest.mark.parametrize(
    ("blocks", "takes", "scaled"), [(101, 5, 1), (112, 5, 0), (101, 50, 0)], ids=["near", "larger", "ten times as long"]
)
def test_what_cannot_stand_in_fills_nothing_in(blocks: int, takes: int, scaled: int) -> None:
    recording = on_grids([100, blocks])
    recording.kernels.end[1] = recording.kernels.start[1] + takes
    report = joined(recording, attrs.evolve(result({"": ["decode"]}, bytes_sum=5.0), grid=(100, 1, 1)))
    assert report.coverage is not None
    assert (report.coverage.signatures_matched, report.coverage.signatures_scaled) == (1 + scaled, scaled)
    assert metric(report, "decode").value == pytest.approx(5.0 + scaled * 5.0 * blocks / 100)
    assert metric(report, "decode").coverage == pytest.approx(1.0 if scaled else 5 / (5 + takes))


def test_the_stage_is_looked_for_below_a_range_that_holds_everything() -> None:
    ranges = [("generate", 0, 900), ("prefill", 10, 100), ("decode", 200, 300)]
    for start in (10, 200):
        ranges += [("layer0", start + 5, start + 40), ("layer1", start + 45, start + 80)]
    recording = timeline(ranges, [("k", at, 5) for at in (20, 60, 210, 250)])
    samples = [
        result({"": ["generate", "prefill", "layer1"]}, bytes_sum=1000.0),
        result({"": ["generate", "decode", "layer0"]}, bytes_sum=1.0),
    ]
    assert metric(joined(recording, *samples), "generate/decode/layer1").value == 1


@pytest.mark.parametrize(
    ("takes", "expected", "spread"),
    [(100, 800.0, None), (60, 800.0, None), (25, 200.0, 1.0), (400, 3200.0, 1.0)],
    ids=["as long", "a little shorter", "a quarter", "four times as long"],
)
def test_samples_from_elsewhere_are_scaled_where_the_time_tells_of_other_work(
    takes: int, expected: float, spread: float | None
) -> None:
    recording = timeline([("prefill", 0, 1000), ("decode", 2000, 3000)], [("k", 10, 100), ("k", 2010, takes)])
    found = metric(joined(recording, result({"": ["prefill"]}, bytes_sum=800.0)), "decode")
    assert found.value == pytest.approx(expected)
    assert found.source == "extrapolated"
    assert found.spread == spread  # how counters grow with the time is a guess, and the error bar says so


def test_a_percentage_is_not_scaled() -> None:
    recording = timeline([("prefill", 0, 1000), ("decode", 2000, 3000)], [("k", 10, 100), ("k", 2010, 10)])
    found = metric(joined(recording, result({"": ["prefill"]}, busy_pct=80.0, time=100.0)), "decode", "busy.pct")
    assert found.value == 80


def test_bytes_written_to_dram_have_an_error_that_samples_do_not_show() -> None:
    """Write-backs happen in other launches than the writes, and replay moves them: equal samples prove nothing."""
    recording = timeline([("A", 0, 5000)], [("k", 10 * i, 5) for i in range(1, 9)])
    info = {name: MetricInfo("byte", "sum") for name in ("dram__bytes_read.sum", "dram__bytes_write.sum")}
    samples = [result({"": ["A"]}) for _ in range(2)]
    for sample in samples:
        sample.metrics = dict.fromkeys(info, 64.0)
    counters = CounterSet("counters.ncu-rep", "ncu-rep", samples, info)
    report = build_report([recording, counters], ReportOptions())
    assert metric(report, "A", "dram__bytes_read.sum").spread == 0
    assert metric(report, "A", "dram__bytes_write.sum").spread == pytest.approx(0.5)


def test_maxima_stay_maxima_and_percentages_are_weighted_by_time() -> None:
    recording = timeline([("A", 0, 5000)], [("k", 10, 10), ("k", 100, 1000)])
    samples = [
        result({"": ["A"]}, peak_max=1.0, busy_pct=10.0, time=10.0),
        result({"": ["A"]}, peak_max=99.0, busy_pct=90.0, time=1000.0),
    ]
    report = joined(recording, *samples)
    assert metric(report, "A", "peak.max").value == 99
    assert metric(report, "A", "busy.pct").value == pytest.approx((10 * 10 + 90 * 1000) / 1010)


def test_range_results_are_scaled_to_the_instances_of_a_scope() -> None:
    recording = timeline([("A", 0, 1000)], [("k", 10, 5)], processes=2)
    report = joined(recording, *(result({"": ["A"]}, "range", bytes_sum=v) for v in (5.0, 7.0)))
    assert metric(report, "A").value == 12
    assert metric(report, "A").source == "range replay"
    for scope in ("process:7", "process:8"):
        assert metric(report, "A", scope=scope).value == 6
        assert metric(report, "A", scope=scope).source == "extrapolated"


def test_more_range_results_than_instances_do_not_add_up_to_more_work() -> None:
    recording = timeline([("A", 0, 1000)], [("k", 10, 5)])
    report = joined(recording, *(result({"": ["A"]}, "range", bytes_sum=5.0) for _ in range(3)))
    assert metric(report, "A").value == 5


def test_a_range_result_is_credited_to_the_range_it_measured_only() -> None:
    ranges = [("main", 0, 9000), ("prefill", 100, 200)]
    recording = timeline(ranges, [("k", 110, 5), ("k", 5000, 5)], domains={"prefill": "LLM"})
    one = result({"LLM": ["prefill"], "": ["main"]}, "range", bytes_sum=5.0)
    one.kernels_inside = 1
    report = joined(recording, one)
    assert metric(report, "LLM@prefill").value == 5
    assert metric(report, "main") is None


def test_a_whole_graph_is_a_part_of_its_region_not_all_of_it() -> None:
    recording = timeline([("step", 0, 1000)], [("k", 10, 50)], graphs=[(100, 50), (300, 50)])
    report = joined(recording, result({"": ["step"]}, bytes_sum=1000.0), result({"": ["step"]}, "graph", bytes_sum=5.0))
    assert metric(report, "step").value == 1000 + 2 * 5


def test_results_that_fit_nothing_are_counted_and_named() -> None:
    recording = timeline([("A", 0, 1000)], [("k", 10, 5)])
    report = joined(recording, result({"": ["other"]}, "range", bytes_sum=5.0))
    assert "COUNTERS_WITHOUT_LAUNCH" in {d.code for d in report.diagnostics}
    assert report.coverage is not None
    assert report.coverage.unmatched_results == ["range result of other"]


def test_start_end_regions_have_counters_too() -> None:
    recording = timeline([("request", 0, 1000)], [("k", 10, 5)], start_end=("request",))
    sample = result({}, bytes_sum=5.0)
    sample.start_end = {"": ["request"]}
    assert metric(joined(recording, sample), "request (start/end)").value == 5


def test_leaving_out_the_aggregate_changes_nothing_else() -> None:
    recording = timeline([("A", 0, 1000)], [("k", 10, 5), ("other", 20, 5)], processes=2)
    sample = result({"": ["A"]}, bytes_sum=5.0)
    with_it, without = joined(recording, sample), joined(recording, sample, aggregate=False)
    assert with_it.coverage == without.coverage
    assert [d.code for d in with_it.diagnostics] == [d.code for d in without.diagnostics]
    assert [r.performance.verdict for s in with_it.scopes[:-1] for r in s.regions if r.performance]
    for scope in (*with_it.scopes, *without.scopes):
        for region in scope.regions:
            region.performance = None  # in detail in the main scope only, which is another without the aggregate
    assert with_it.scopes[:-1] == without.scopes


def test_a_device_is_never_busier_than_the_recording_is_long() -> None:
    recording = timeline([("A", 0, 1000)], [("k", 10, 900)], processes=2)
    report = build_report([recording], ReportOptions())
    totals = report.scope("device:0").totals
    assert totals.gpu_busy_ns == 900
    assert totals.span_ns is not None
    assert totals.gpu_busy_ns <= totals.span_ns


def test_a_rate_above_all_there_is_says_nothing() -> None:
    info = {"lts__t_sector_hit_rate.pct": MetricInfo("%", "mean")}
    results = [Action("kernel", "k", metrics={"lts__t_sector_hit_rate.pct": value}) for value in (101.5, 2942.0)]
    samples = Samples.of([CounterSet("x", "ncu-csv", results, info)])
    found = add_up_results(samples, [0, 1])
    assert found["lts__t_sector_hit_rate.pct"].value == pytest.approx(101.5)
    assert add_up_results(samples, [1]) == {}
