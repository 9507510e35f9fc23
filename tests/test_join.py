"""Counters of sampled launches, joined to a timeline by signature: every value says how far it reaches."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from conftest import codes, counters, examples, read, recording, regions_of, report
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.regions.columns import Action, CounterSet, LaunchConfig, MetricInfo, Timeline
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.names import printed_form
from test_attribution import Kernel, Range, timeline_of

FLOPS = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
SUMS = [FLOPS, "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"]

TIMELINE, RESULTS = "nsys-*-decoder-8layers.sqlite", "ncu-*-decoder-8layers-per-launch-config.ncu-rep"
WARM, WARM_RESULTS = "nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep"
WARM_RANGES = "ncu-*-decoder-8layers-warm-app-range.ncu-rep"
PAIRS = [(TIMELINE, RESULTS), (WARM, WARM_RESULTS)]
LAYERS = [f"layer{i}" for i in range(8)]


def value(region: NCUProfileRegion, metric: str = FLOPS) -> float:
    return region.inclusive.metrics[metric].value


# -- the decoder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS, ids=["cold", "warm"])
def test_equal_layers_have_equal_flops_wherever_the_samples_were_taken(pair: tuple[str, str]) -> None:
    """Only layers 0 to 2 were sampled; all eight do the same."""
    regions = regions_of(report(*pair).main_scope)
    for stage in ("LLM@prefill", "LLM@decode/decode_step"):
        for part in ("", "/attention", "/mlp"):
            flops = [value(regions[f"{stage}/{layer}{part}"]) for layer in LAYERS]
            assert max(flops) == pytest.approx(min(flops), rel=0.001)
            assert min(flops) > 0


@pytest.mark.parametrize("pair", PAIRS, ids=["cold", "warm"])
def test_the_flops_are_those_of_the_model(pair: tuple[str, str]) -> None:
    """Two operations for each weight and token: hidden 2048, intermediate 6144, three matrices, 2048 tokens."""
    regions = regions_of(report(*pair).main_scope)
    mlp = 2 * 3 * 2048 * 6144
    assert value(regions["LLM@prefill/layer5/mlp"]) == pytest.approx(mlp * 2048, rel=0.001)
    # One token a step, which the GPU computes in tiles of at least 8.
    assert mlp * 8 <= value(regions["LLM@decode/decode_step/layer5/mlp"]) <= mlp * 8 * 64


@pytest.mark.parametrize("pair", PAIRS, ids=["cold", "warm"])
def test_parents_are_their_children_and_their_own_launches(pair: tuple[str, str]) -> None:
    scope = report(*pair).main_scope
    assert scope is not None
    children: dict[str, list[NCUProfileRegion]] = defaultdict(list)
    for region in scope.regions:
        children[region.parent or ""].append(region)
    checked = 0
    for region in scope.regions:
        for metric in SUMS:
            parts = [c.inclusive.metrics[metric].value for c in children[region.key] if metric in c.inclusive.metrics]
            own = region.exclusive.metrics.get(metric)
            assert value(region, metric) == pytest.approx(sum(parts) + (own.value if own else 0.0), rel=0.01)
            checked += bool(parts)
    assert checked > 50


@pytest.mark.parametrize("pair", PAIRS, ids=["cold", "warm"])
def test_every_value_says_where_it_comes_from(pair: tuple[str, str]) -> None:
    scope = report(*pair).main_scope
    assert scope is not None
    sources = Counter()
    for region in scope.regions:
        for metric in SUMS:
            found = region.inclusive.metrics[metric]
            sources[found.source] += 1
            assert found.unit == "byte" or metric == FLOPS
            assert found.coverage is not None
            assert 0 < found.coverage <= 1
            assert found.launches is not None
            assert 0 < found.launches <= region.inclusive.kernel_count
            assert 0 < found.samples <= len(counters(pair[1].split("-*-")[1].removesuffix(".ncu-rep")).actions)
            assert (found.coverage == 1) == (found.launches == region.inclusive.kernel_count)
    assert set(sources) == {"extrapolated", "kernel replay"}
    # Every launch of these was measured: nothing had to be extrapolated.
    assert regions_of(scope)["LLM@prefill/layer0/mlp"].inclusive.metrics[FLOPS].source == "kernel replay"


def signatures(found: Timeline) -> list[tuple[str, Any, Any]]:
    config = found.kernels.config
    assert config is not None
    names = [found.strings[i] for i in config.mangled.tolist()]
    return list(zip(names, map(tuple, config.grid.tolist()), map(tuple, config.block.tolist()), strict=True))


def timeline_with_config(name: str) -> Timeline:
    found = read(recording(name), True)
    assert isinstance(found, Timeline)
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=["cold", "warm"])
def test_coverage_counts_every_signature_launch_and_nanosecond(pair: tuple[str, str]) -> None:
    found = report(*pair)
    coverage, scope = found.coverage, found.main_scope
    assert coverage is not None
    assert scope is not None
    source = timeline_with_config(pair[0])
    stages = ("LLM@prefill", "LLM@decode")
    inside = [regions_of(scope)[stage].inclusive for stage in stages]
    assert coverage.launches == sum(stats.kernel_count for stats in inside)
    assert coverage.gpu_time_ns == sum(stats.gpu_time_ns or 0 for stats in inside)
    sampled = {(a.mangled, a.grid, a.block) for a in counters(pair[1].split("-*-")[1].removesuffix(".ncu-rep")).actions}
    ranges = source.ranges
    outer = [i for i in range(len(ranges)) if source.strings[ranges.name[i]] in ("prefill", "decode")]
    windows = [(int(ranges.start[i]), int(ranges.end[i])) for i in outer]
    launched = source.kernels.host_time.tolist()
    lasts = (source.kernels.end - source.kernels.start).tolist()
    in_regions = [i for i, t in enumerate(launched) if any(a <= t < b for a, b in windows)]
    every = signatures(source)
    assert coverage.signatures == len({every[i] for i in in_regions})
    assert coverage.signatures_matched == len({every[i] for i in in_regions} & sampled)
    assert coverage.launches_matched == sum(every[i] in sampled for i in in_regions)
    assert coverage.gpu_time_matched_ns == sum(lasts[i] for i in in_regions if every[i] in sampled)
    assert (coverage.results, coverage.results_unmatched) == (
        len(counters(pair[1].split("-*-")[1].removesuffix(".ncu-rep")).actions),
        0,
    )
    assert len(coverage.unmatched_signatures) == min(coverage.signatures - coverage.signatures_matched, 20)


def test_signatures_without_counters_are_named_worst_first() -> None:
    found = report(TIMELINE, RESULTS)
    assert codes(found) == ["SIGNATURES_WITHOUT_COUNTERS"]
    (told,) = found.diagnostics
    assert told.severity == "warning"
    assert found.coverage is not None
    assert found.coverage.unmatched_signatures[0] in told.fix
    times = [float(text.rsplit(", ", 1)[1].removesuffix(" ms")) for text in found.coverage.unmatched_signatures]
    assert times == sorted(times, reverse=True)


def test_with_every_signature_sampled_there_is_nothing_to_say() -> None:
    found = report(WARM, WARM_RESULTS)
    assert "SIGNATURES_WITHOUT_COUNTERS" not in codes(found)
    scope = found.main_scope
    assert scope is not None
    assert {r.inclusive.metrics[FLOPS].coverage for r in scope.regions} == {1.0}


def test_time_comes_from_the_timeline_even_with_counters() -> None:
    alone, joined = regions_of(report(TIMELINE).main_scope), regions_of(report(TIMELINE, RESULTS).main_scope)
    assert {k: r.inclusive.gpu_time_ns for k, r in alone.items()} == {
        k: r.inclusive.gpu_time_ns for k, r in joined.items()
    }
    assert {r.time_source for r in joined.values()} == {"timeline"}


def test_only_the_chosen_regions_count_for_coverage() -> None:
    found = report(TIMELINE, RESULTS, include=["**/mlp"])
    assert found.coverage is not None
    assert found.coverage.launches < report(TIMELINE, RESULTS).coverage.launches
    assert {r.name for r in found.main_scope.regions} == {"mlp"}


# -- range replay ----------------------------------------------------------------------------------


def test_a_range_that_was_measured_whole_wins_over_sums_of_kernels() -> None:
    regions = regions_of(report(WARM, WARM_RESULTS, WARM_RANGES).main_scope)
    measured = {a.push_pop["LLM"][-1]: a for a in counters("decoder-8layers-warm-app-range").actions}
    assert set(measured) == {"prefill", "decode"}
    for name, action in measured.items():
        for metric in SUMS:
            found = regions[f"LLM@{name}"].inclusive.metrics[metric]
            assert (found.value, found.source) == (action.metrics[metric], "range replay")
    # What lies below was not measured as a range.
    assert regions["LLM@prefill/layer3"].inclusive.metrics[FLOPS].source == "extrapolated"


def test_extrapolated_flops_and_bytes_are_near_those_of_range_replay() -> None:
    samples, ranges = (regions_of(report(WARM, r).main_scope) for r in (WARM_RESULTS, WARM_RANGES))
    for stage in ("LLM@prefill", "LLM@decode"):
        assert value(samples[stage]) == pytest.approx(value(ranges[stage]), rel=0.001)
        for metric, off in (("dram__bytes_read.sum", 0.02), ("lts__t_bytes.sum", 0.02), ("dram__bytes_write.sum", 0.1)):
            assert value(samples[stage], metric) == pytest.approx(value(ranges[stage], metric), rel=off)


def test_range_results_alone_leave_regions_below_without_counters() -> None:
    regions = regions_of(report(WARM, WARM_RANGES).main_scope)
    assert regions["LLM@prefill"].inclusive.metrics[FLOPS].source == "range replay"
    assert regions["LLM@prefill/layer0"].inclusive.metrics == {}


# -- ncu's CSV -------------------------------------------------------------------------------------

# Printed from the first results of decoder-2layers-basic.ncu-rep, whose kernels are those of the larger decoders.
PRINTED = {"ncu-2025.3.1-h200-basic-raw.csv": 6, "ncu-2024.1.1-h200-basic-raw-german.csv": 3}


def first_results(count: int) -> CounterSet:
    whole = counters("decoder-2layers-basic")
    return evolve(whole, actions=whole.actions[:count])


@pytest.mark.parametrize("name", PRINTED)
def test_printed_names_join_as_well_as_real_ones(name: str) -> None:
    """The CSV has simplified names only."""
    source, printed = timeline_with_config(WARM), read(recording(name))
    by_text = build_report([source, printed], ReportOptions(verdicts=False))
    by_report = build_report([source, first_results(PRINTED[name])], ReportOptions(verdicts=False))
    assert by_text.coverage == by_report.coverage
    assert by_text.coverage is not None
    assert by_text.coverage.results == PRINTED[name]
    assert by_text.coverage.results_unmatched == 0
    assert by_text.coverage.signatures_matched >= 3
    ours, theirs = regions_of(by_text.main_scope), regions_of(by_report.main_scope)
    compared = 0
    for key, region in theirs.items():
        for metric in ("gpu__time_duration.sum", "dram__bytes_read.sum"):
            if metric in region.inclusive.metrics and metric in ours[key].inclusive.metrics:
                wanted, found = region.inclusive.metrics[metric], ours[key].inclusive.metrics[metric]
                assert found.value == pytest.approx(wanted.value, rel=0.02)
                assert (found.coverage, found.launches) == (wanted.coverage, wanted.launches)
                compared += 1
    assert compared > 10


@pytest.mark.parametrize("name", PRINTED)
def test_a_full_name_and_the_name_ncu_prints_for_it_have_one_printed_form(name: str) -> None:
    names = [a.demangled or "" for a in first_results(PRINTED[name]).actions]
    printed = [a.name for a in read(recording(name)).actions]
    assert [printed_form(n) for n in names] == [printed_form(n) for n in printed]


# -- results of something else ---------------------------------------------------------------------


def test_counters_of_another_program_are_not_used_and_named() -> None:
    found = report("nsys-*-threads.sqlite", "ncu-*-h200-ranks-two-processes.ncu-rep")
    assert "COUNTERS_WITHOUT_LAUNCH" in codes(found)
    assert found.coverage is not None
    assert found.coverage.results_unmatched == found.coverage.results == 12
    assert len(found.coverage.unmatched_results) == 12
    assert found.main_scope is not None
    assert all(not region.inclusive.metrics for region in found.main_scope.regions)


# -- any launches and any samples ------------------------------------------------------------------

METRIC, RARE = "work.sum", "rare.sum"
SIGNATURES = [("k1", 1), ("k1", 2), ("k2", 1), ("k3", 7)]  # name, grid

ranges = st.lists(
    st.builds(
        lambda start, length, **rest: Range(start, start + length, **rest),
        start=st.integers(0, 40),
        length=st.integers(1, 30),
        name=st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=6,
)
launches = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 100), st.sampled_from(range(len(SIGNATURES)))), min_size=1, max_size=12
)
# Of each signature: was it sampled, how often, and did the samples carry the rare metric?
samples = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=len(SIGNATURES), max_size=len(SIGNATURES))


def work_of(signature: int) -> float:
    return 10.0 ** (signature + 1)


def timeline_of_launches(some: list[Range], chosen: list[tuple[int, int, int]]) -> Timeline:
    kernels = [Kernel(time, takes=takes, name=SIGNATURES[s][0]) for time, takes, s in chosen]
    made = timeline_of(some, kernels)
    ones = np.ones((len(chosen), 3), dtype=np.int32)
    grid = ones.copy()
    grid[:, 0] = [SIGNATURES[s][1] for _, _, s in chosen]
    name = made.kernels.name
    config = LaunchConfig(name, name, grid, ones, np.zeros(len(chosen), dtype=np.int32))
    return evolve(made, kernels=evolve(made.kernels, config=config))


def results_of(taken: list[tuple[int, bool]]) -> CounterSet:
    actions = []
    for signature, (count, rare) in enumerate(taken):
        name, grid = SIGNATURES[signature]
        for _ in range(count):
            metrics = {METRIC: work_of(signature)} | ({RARE: work_of(signature)} if rare else {})
            actions.append(Action("kernel", name, name, name, name, (grid, 1, 1), (1, 1, 1), 0, 0, metrics=metrics))
    info = {METRIC: MetricInfo("op", "sum"), RARE: MetricInfo("op", "sum")}
    return CounterSet("by hand", "ncu-rep", actions, info)


def joined(some: list[Range], chosen: list[Any], taken: list[tuple[int, bool]]) -> NCUProfileRegionReport:
    return build_report([timeline_of_launches(some, chosen), results_of(taken)], ReportOptions())


@pytest.mark.slow
@examples(200)
@given(ranges, launches, samples)
def test_a_region_has_what_its_sampled_launches_did_and_says_what_share_they_are(
    some: list[Range], chosen: list[tuple[int, int, int]], taken: list[tuple[int, bool]]
) -> None:
    scope = joined(some, chosen, taken).main_scope
    assert scope is not None
    for region in scope.regions:
        inside = [c for c in chosen if _is_inside(region, some, c[0])]
        assert region.inclusive.kernel_count == len(inside)
        for metric, is_there in (
            (METRIC, lambda s: taken[s][0] > 0),
            (RARE, lambda s: taken[s][0] > 0 and taken[s][1]),
        ):
            covered = [(takes, s) for _, takes, s in inside if is_there(s)]
            found = region.inclusive.metrics.get(metric)
            if not covered:
                assert found is None, "nothing was measured, and yet there is a value"
                continue
            assert found is not None
            assert found.value == pytest.approx(sum(work_of(s) for _, s in covered))
            assert found.launches == len(covered)
            share = sum(takes for takes, _ in covered) / sum(takes for _, takes, _ in inside)
            assert found.coverage == pytest.approx(share)
            assert 0 < found.coverage <= 1
            assert (found.coverage == 1) == (len(covered) == len(inside))
            exact = all(taken[s][0] == n for s, n in Counter(s for _, s in covered).items())
            assert exact or found.source == "extrapolated"


def _stack(some: list[Range], time: int) -> list[str]:
    is_open = sorted((r for r in some if r.start <= time < r.end), key=lambda r: (r.start, -r.end))
    return [r.name for r in is_open]


def _is_inside(region: NCUProfileRegion, some: list[Range], time: int) -> bool:
    return region.is_whole_recording or _stack(some, time)[: len(region.path)] == region.path


@pytest.mark.slow
@examples(100)
@given(ranges, launches, samples)
def test_coverage_of_the_whole_adds_up(
    some: list[Range], chosen: list[tuple[int, int, int]], taken: list[tuple[int, bool]]
) -> None:
    found = joined(some, chosen, taken)
    if not any(count for count, _ in taken):
        assert found.coverage is None
        return
    whole = any(region.is_whole_recording for region in regions_of(found.main_scope).values())
    inside = [(takes, s) for time, takes, s in chosen if whole or _stack(some, time)]
    coverage = found.coverage
    assert coverage is not None
    assert coverage.launches == len(inside)
    assert coverage.gpu_time_ns == sum(takes for takes, _ in inside)
    assert coverage.launches_matched == sum(taken[s][0] > 0 for _, s in inside)
    assert coverage.gpu_time_matched_ns == sum(takes for takes, s in inside if taken[s][0])
    assert coverage.signatures == len({s for _, s in inside})
    assert coverage.signatures_matched == len({s for _, s in inside if taken[s][0]})
    assert coverage.results == sum(count for count, _ in taken)
    used = {s for _, _, s in chosen}
    assert coverage.results_unmatched == sum(count for s, (count, _) in enumerate(taken) if s not in used)


@st.composite
def placed_samples(draw: st.DrawFn) -> list[tuple[int, list[str], float]]:
    """Samples of some signatures, each from some stack of ranges, which need not exist."""
    stack = st.lists(st.sampled_from("abc"), max_size=3)
    return draw(st.lists(st.tuples(st.integers(0, len(SIGNATURES) - 1), stack, st.floats(1, 1e6)), max_size=8))


@pytest.mark.slow
@examples(200)
@given(ranges, launches, placed_samples())
def test_totals_reconcile_and_nothing_unsampled_counts_as_zero(
    some: list[Range], chosen: list[tuple[int, int, int]], taken: list[tuple[int, list[str], float]]
) -> None:
    """Wherever the samples come from, and however far they are scaled."""
    actions = []
    for signature, stack, work in taken:
        name, grid = SIGNATURES[signature]
        place = {"": stack} if stack else {}
        one = Action("kernel", name, name, name, name, (grid, 1, 1), (1, 1, 1), 0, 0, push_pop=place)
        actions.append(evolve(one, metrics={METRIC: work}))
    results = CounterSet("by hand", "ncu-rep", actions, {METRIC: MetricInfo("op", "sum")})
    report = build_report([timeline_of_launches(some, chosen), results], ReportOptions())
    sampled = {signature for signature, *_ in taken}
    regions = regions_of(report.main_scope)
    for key, region in regions.items():
        inside = [s for time, _, s in chosen if _is_inside(region, some, time)]
        found = region.inclusive.metrics.get(METRIC)
        assert (found is None) == (not sampled & set(inside)), "not measured is not 0"
        if found is None:
            continue
        assert found.value > 0
        assert found.coverage is not None
        assert (found.coverage < 1) == bool(set(inside) - sampled)
        own = region.exclusive.metrics.get(METRIC)
        below = [r.inclusive.metrics[METRIC].value for r in regions.values() if r.parent == key and r.inclusive.metrics]
        assert found.value == pytest.approx(sum(below) + (own.value if own else 0.0))
