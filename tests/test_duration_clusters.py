"""Launches of one signature that do different work: told apart by duration, each sampled, each with its own samples."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from conftest import examples
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.sampled_clusters import Clock, clock_of, samples_of_clusters
from llm_perf_opt.planning import decide, facts_of
from llm_perf_opt.planning.chosen_regions import selectable_regions
from llm_perf_opt.planning.cluster_cover import WantedSamples, cover
from llm_perf_opt.planning.launch_table import describe_launches
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import UNKNOWN, Timeline
from llm_perf_opt.regions.duration_clusters import DurationClusters, context_of, split_by_duration
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.request import ProfileRequest

RANDOM = np.random.default_rng(1)


def clusters_of(*durations: int) -> list[tuple[int, int]]:
    found = split_by_duration(np.zeros(len(durations), dtype=np.int64), np.array(durations, dtype=np.int64))
    return [(int(calls), round(mean)) for calls, mean in zip(found.calls, found.mean.tolist(), strict=True)]


def test_the_sizes_of_a_kernel_that_fills_the_gpu_are_told_apart() -> None:
    """Durations of the attention of a vision encoder as an H200 had them: one grid of 132 blocks for all five."""
    durations = [19_500] * 24 + [38_400] * 8 + [119_000] * 8 + [202_000] * 4 + [436_000] * 4
    assert clusters_of(*durations) == [(24, 19_500), (8, 38_400), (8, 119_000), (4, 202_000), (4, 436_000)]


def test_two_inner_dimensions_are_told_apart_where_durations_scatter() -> None:
    """A matrix product with inner dimensions of 1280 and 1792 in the decode steps of the same model."""
    scattered = np.concatenate([RANDOM.normal(4_900, 170, 760), RANDOM.normal(6_050, 200, 184)])
    assert [calls for calls, _ in clusters_of(*scattered.astype(int).tolist())] == pytest.approx([760, 184], abs=3)


@pytest.mark.parametrize(
    "durations",
    [
        RANDOM.normal(5_000, 600, 1_000),
        RANDOM.uniform(4_000, 8_000, 1_000),
        RANDOM.exponential(2_000, 1_000) + 2_000,
        np.arange(1_000, 9_000, 100),
        [2_000, 2_250, 2_400],
        [100_000, 110_000],
        [7],
    ],
    ids=["bell", "even", "tail", "ramp", "short", "near", "one"],
)
def test_what_merely_scatters_is_one_kind(durations: np.ndarray) -> None:
    assert len(clusters_of(*np.asarray(durations).astype(int).tolist())) == 1


def test_kinds_that_scatter_into_each_other_are_told_apart_by_what_they_come_after() -> None:
    """A projection after a norm, and one after an activation: 4.8 µs and 5.9 µs, each by half a microsecond."""
    layers = 200
    signature = np.tile([1, 0, 2, 0], layers)
    duration = np.tile([900, 4_800, 1_500, 5_900], layers) + np.random.default_rng(7).normal(0, 500, 4 * layers).astype(
        np.int64
    )
    context = context_of(signature, np.zeros(4 * layers, dtype=np.int64))
    divisible = np.array([True, False, False])
    by_itself = split_by_duration(signature, duration, divisible)
    assert (by_itself.signature == 0).sum() == 1
    found = split_by_duration(signature, duration, divisible, context)
    mine = np.flatnonzero(found.signature == 0)
    assert found.mean[mine].tolist() == pytest.approx([4_800, 5_900], rel=0.05)
    assert set(found.of_launch[1::4].tolist()) == {int(mine[0])}


def test_a_launch_in_a_rare_context_is_no_kind_of_its_own() -> None:
    signature = np.tile([1, 0], 500)
    duration = np.tile([900, 3_000], 500) + np.random.default_rng(7).normal(0, 200, 1_000).astype(np.int64)
    signature[10] = 7  # so that the launch after it comes after something rare
    duration[11] = 2_200
    found = split_by_duration(signature, duration, None, context_of(signature, np.zeros(1_000, dtype=np.int64)))
    assert np.unique(found.of_launch[signature == 0]).size == 1


def test_a_context_does_not_reach_into_another_queue() -> None:
    signature, queue = np.array([5, 6, 5, 6, 7, 7]), np.array([0, 1, 0, 1, 0, 1])
    context = context_of(signature, queue)
    assert len(set(context.tolist())) == 6  # each comes after others, or after nothing
    again = context_of(np.tile(signature, 2), np.repeat([0, 1], 6))
    assert (again[:6] == again[6:]).all()


def test_nothing_has_no_kinds() -> None:
    assert clusters_of() == []


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**9)), max_size=60),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_every_launch_is_of_one_kind_of_its_signature(rows: list[tuple[int, int]], divisible: list[bool]) -> None:
    signature = np.array([s for s, _ in rows], dtype=np.int64)
    duration = np.array([d for _, d in rows], dtype=np.int64)
    found = split_by_duration(signature, duration, np.array(divisible))
    assert (found.signature[found.of_launch] == signature).all()
    assert found.calls.sum() == len(rows)
    assert found.total.sum() == duration.sum()
    for number in range(len(found)):
        mine = duration[found.of_launch == number]
        others = duration[(signature == found.signature[number]) & (found.of_launch != number)]
        assert not ((others > mine.min()) & (others < mine.max())).any(), "kinds do not overlap"
        assert divisible[found.signature[number]] or not len(others)


# -- which samples are of which kind ---------------------------------------------------------------


def test_a_sample_goes_to_the_kind_it_takes_as_long_as_without_what_ncu_adds() -> None:
    """Under ncu everything takes a microsecond longer: 2.9 µs there is 1.9 µs, not 3.1 µs."""
    clusters = DurationClusters(
        of_launch=np.zeros(0, dtype=np.int64),
        signature=np.array([0, 0, 1]),
        calls=np.array([5, 5, 5]),
        total=np.array([5 * 1_900, 5 * 3_100, 5 * 1_000]),
    )
    durations = np.array([2_900.0, 4_200.0, 2_950.0, 2_000.0])
    assert samples_of_clusters(clusters, {0: [0, 1, 2], 1: [3]}, durations) == {0: [0, 2], 1: [1], 2: [3]}


def test_a_slower_clock_under_ncu_is_seen() -> None:
    timeline = np.array([1_000.0, 2_000.0, 40_000.0, 80_000.0])
    assert clock_of(timeline, 1.3 * timeline + 900) == Clock(pytest.approx(1.32, abs=0.01), pytest.approx(870, abs=30))
    assert clock_of(np.array([]), np.array([])) == Clock()


# -- where to sample them --------------------------------------------------------------------------


def wanted_of(kind: list[int], samples: list[int]) -> WantedSamples:
    label = np.array(kind, dtype=np.int64)
    calls = np.bincount(label, minlength=len(samples)).astype(np.int64)
    clusters = DurationClusters(label, np.arange(len(samples)), calls, 1_000 * calls)
    return WantedSamples(clusters, np.array(samples, dtype=np.int64), [1 / len(samples)] * len(samples))


def test_of_layers_alike_one_is_taken_and_of_another_what_it_alone_has() -> None:
    #       layer 1   layer 2   layer 3      layer 4, in two ranges
    kind = [0, 1, 1, 0, 1, 1, 0, 1, 1, 2, 0, 1, 1, 2]
    atom = [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5]
    chosen = cover(wanted_of(kind, [1, 1, 1]), np.array(atom), early=True)
    assert set(np.array(atom)[chosen].tolist()) == {1, 5}


def test_the_second_sample_comes_from_the_end_unless_the_program_is_to_end_early() -> None:
    kind, atom = [0] * 9, list(range(9))
    assert np.flatnonzero(cover(wanted_of(kind, [2]), np.array(atom), early=False)).tolist() == [0, 8]
    assert np.flatnonzero(cover(wanted_of(kind, [2]), np.array(atom), early=True)).tolist() == [0, 1]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 12)), max_size=80),
    st.lists(st.integers(0, 3), min_size=7, max_size=7),
    st.booleans(),
)
@examples(200)
def test_every_kind_gets_its_samples_as_far_as_there_are_and_no_atom_is_needless(
    rows: list[tuple[int, int]], samples: list[int], early: bool
) -> None:
    kind, atom = (np.array([r[i] for r in rows], dtype=np.int64) for i in (0, 1))
    reachable = np.bincount(kind[atom != UNKNOWN], minlength=7)
    chosen = cover(wanted_of(kind.tolist(), samples), atom, early=early)
    have = np.bincount(kind[chosen], minlength=7)
    least = np.minimum(np.array(samples), reachable)
    assert (have >= least).all()
    assert not chosen[atom == UNKNOWN].any()
    for one in np.unique(atom[chosen]).tolist():
        assert chosen[atom == one].all(), "an atom is taken as a whole"
        assert (have - np.bincount(kind[atom == one], minlength=7) < least).any(), "without it something is missing"


def test_what_has_no_sample_of_its_kind_is_told() -> None:
    wanted = wanted_of([0, 0, 1, 2], [1, 1, 0])
    assert wanted.missed(np.array([True, False, False, False])) == pytest.approx(1 / 3)
    assert wanted.missed(np.array([True, False, True, False])) == 0


# -- a real run ------------------------------------------------------------------------------------

RECORDINGS = Path(__file__).parent / "recordings"
OCR = RECORDINGS / "profile-2025.3.1-h200-ocr.sqlite.xz"
SAMPLED = RECORDINGS / "profile-2025.3.1-h200-ocr.ncu-rep.xz"
TRUTH = Path(__file__).parents[1] / "benchmarks" / "results" / "bridge-h200.json"


@pytest.fixture(scope="module")
def ocr() -> NCUProfileRegionReport:
    recordings = [read_recording(OCR, launch_config=True), read_recording(SAMPLED)]
    return build_report(recordings, ReportOptions(verdicts=False))


def test_samples_of_every_kind_come_near_to_what_range_replay_measured(ocr: NCUProfileRegionReport) -> None:
    """A vision encoder, a decoder with experts: tensor operations within half a per cent."""
    assert ocr.main_scope is not None
    regions = {region.key: region.inclusive.metrics for region in ocr.main_scope.regions}
    rows = json.loads(TRUTH.read_text(encoding="utf-8"))["parts"]["ocr_truth"]["figures"]["rows"]
    compared = [row for row in rows if row["counter"] == "tensor operations"]
    assert len(compared) == 4
    for row in compared:
        value = regions[row["stage"]]["sm__ops_path_tensor_src_bf16_dst_fp32.sum"]
        assert value.value == pytest.approx(row["truth"], rel=0.005), row["stage"]
        assert value.coverage == pytest.approx(1)


def test_marker_ranges_are_in_the_recording_and_not_in_the_report(ocr: NCUProfileRegionReport) -> None:
    assert ocr.main_scope is not None
    assert not [region.key for region in ocr.main_scope.regions if "llm-perf" in region.key]
    marked, plain = (read_recording(OCR, marker_ranges=wanted) for wanted in (True, False))
    assert isinstance(marked, Timeline)
    assert isinstance(plain, Timeline)
    assert len(marked.ranges) > 100 * len(plain.ranges)


def test_the_plan_samples_every_kind_in_windows_around_modules(ocr: NCUProfileRegionReport) -> None:
    """As it was planned for this run, with what its program had counted: no kind of weight is left out."""
    marked = read_recording(OCR, launch_config=True, marker_ranges=True)
    assert isinstance(marked, Timeline)
    ranges = marked.ranges
    names = zip(ranges.domain.tolist(), ranges.name.tolist(), ranges.start_end.tolist(), strict=True)
    counted = Counter((marked.domains[d], marked.strings[n]) for d, n, start_end in names if not start_end)
    request = ProfileRequest(command=["python", "ocr.py"])
    plan = decide(request, ocr, marked, facts_of({}))
    found = decide(request, ocr, marked, facts_of({}), {marked.processes[0].pid: dict(counted)})
    (capture,) = found.captures
    assert capture.windows is not None
    assert capture.windows.count > 30
    assert sum(name.startswith("llm-perf:") for _, name in capture.windows.windows) > 20
    assert found.results < 1.1 * plan.results  # for less than half of the error
    assert plan.table is not None
    assert plan.table.error is not None
    assert found.table is not None
    assert found.table.error is not None
    assert found.table.error < 0.03 < 0.06 < plan.table.error
    assert "KERNELS_VARY" in {d.code for d in plan.diagnostics}
    assert "KERNELS_VARY" not in {d.code for d in found.diagnostics}


def test_products_whose_work_scatters_have_more_samples_and_what_only_moves_bytes_has_fewer(
    ocr: NCUProfileRegionReport,
) -> None:
    """Experts get other numbers of tokens in each layer: of 11 layers all are sampled, 22 launches of one signature."""
    timeline = read_recording(OCR, launch_config=True)
    assert isinstance(timeline, Timeline)
    assert ocr.main_scope is not None
    launches = describe_launches(timeline, attribute(timeline), *selectable_regions(ocr.main_scope))
    wanted = WantedSamples.of(evolve(launches, bytes_are_known=True))
    by_name = {launches.signatures[s].name: n for s, n in zip(wanted.clusters.signature, wanted.samples, strict=True)}
    assert max(by_name.values()) == 11
    grouped = max(by_name, key=lambda name: by_name[name])
    assert "GroupProblemShape" in grouped
    for_bytes_too = WantedSamples.of(launches)
    assert for_bytes_too.samples.sum() > wanted.samples.sum()
    # However little is wanted of it: a signature has a sample, or another stands in for it.
    assert (wanted.samples > 0).sum() > 0.9 * len(launches.signatures)
    everything = np.ones(len(launches), dtype=np.bool_)
    assert (wanted.short(everything), wanted.short(~everything)) == (0, wanted.samples.sum())
