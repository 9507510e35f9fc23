"""What the whole GPU moved, sampled beside the timeline: which bytes are whose, and how kernels share them."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import llm_perf_opt
from conftest import RECORDINGS, codes, examples, read
from fake_tools import tools  # noqa: F401 - a fixture
from llm_perf_opt.analysis.build import ReportOptions, build_report, with_ranks
from llm_perf_opt.analysis.fitted import Fitted, fit
from llm_perf_opt.analysis.sampled_traffic import Moved, moved_in_regions
from llm_perf_opt.analysis.scopes import timeline_scopes
from llm_perf_opt.cli.main import main
from llm_perf_opt.nsight.nsys.argv import NsysOptions
from llm_perf_opt.nsight.nsys.gpu_metrics import RankOnNode, counters_of, metric_set, with_sampling
from llm_perf_opt.nsight.tools import find_nsys
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.model import MetricValue, NCUProfileRegionReport
from llm_perf_opt.regions.table import ROOT, RegionTable
from llm_perf_opt.regions.traffic import SOURCE, Traffic
from llm_perf_opt.rundir.contents import files_of
from llm_perf_opt.rundir.manifest import read_manifest
from synthetic import make_export
from test_attribution import Kernel, Range, timeline_of

OCR = RECORDINGS / "profile-2025.3.1-h200-ocr.sqlite.xz"
READ, WRITTEN, L2 = THREE = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum")


# -- a real run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ocr() -> NCUProfileRegionReport:
    counters = read_recording(RECORDINGS / "profile-2025.3.1-h200-ocr.ncu-rep.xz")
    return build_report([read_recording(OCR, launch_config=True), counters], ReportOptions())


@pytest.mark.parametrize("launch_config", [True, False])
def test_samples_come_with_the_timeline(launch_config: bool) -> None:
    timeline = read_recording(OCR, launch_config=launch_config)
    assert isinstance(timeline, Timeline)
    (traffic,) = timeline.traffic.values()
    assert traffic.step == pytest.approx(100_000, rel=1e-4)
    assert set(traffic.bytes) == set(THREE)


def test_bytes_of_every_stage_are_those_of_range_replay(ocr: NCUProfileRegionReport) -> None:
    """Within 1 %; within 5 % for a stage of four launches and six megabytes."""
    results = Path(__file__).parents[1] / "benchmarks" / "results" / "bridge-h200.json"
    rows = json.loads(results.read_text(encoding="utf-8"))["parts"]["ocr_truth"]["figures"]["rows"]
    truth = {(row["stage"], row["counter"]): row["truth"] for row in rows}
    assert ocr.main_scope is not None
    stages = {r.key: r.inclusive.metrics for r in ocr.main_scope.regions if r.key in {stage for stage, _ in truth}}
    assert len(stages) == 4
    for stage, metrics in stages.items():
        within = 0.05 if stage.endswith("projector") else 0.01
        assert metrics[READ].value + metrics[WRITTEN].value == pytest.approx(truth[stage, "DRAM bytes"], rel=within)
        assert metrics[L2].value == pytest.approx(truth[stage, "L2 bytes"], rel=within)
        assert {metrics[counter].source for counter in THREE} == {SOURCE}
        assert {metrics[counter].coverage for counter in THREE} == {1.0}


def test_parts_add_up_and_verdicts_have_the_same_bytes(ocr: NCUProfileRegionReport) -> None:
    assert ocr.main_scope is not None
    regions = {region.key: region for region in ocr.main_scope.regions}
    whole, parts = regions["LLM@generate"], [r for r in regions.values() if r.parent == "LLM@generate"]
    for counter in THREE:
        summed = sum(r.inclusive.metrics[counter].value for r in parts) + whole.exclusive.metrics[counter].value
        assert summed == pytest.approx(whole.inclusive.metrics[counter].value, rel=0.01)
    for region in parts:
        metrics, performance = region.inclusive.metrics, region.performance
        assert performance is not None
        assert performance.work is not None
        assert performance.work.dram is not None
        # Copies are in what was sampled, and not added to it again.
        assert performance.work.dram.value == pytest.approx(metrics[READ].value + metrics[WRITTEN].value)


def test_where_kernels_added_up_tell_something_else_the_report_says_so(ocr: NCUProfileRegionReport) -> None:
    told = next(d for d in ocr.diagnostics if d.code == "FITTED_TO_TRAFFIC")
    assert "LLM@generate/decode" in told.message
    assert WRITTEN in told.message


# -- which bytes are whose -------------------------------------------------------------------------


def traffic_of(*values: int, step: int = 10, start: int = 1_000_000) -> Traffic:
    return Traffic(start + step * np.arange(len(values)), {READ: np.array(values, dtype=np.int64)})


def moved(kernels: list[tuple[str, int, int]], traffic: dict[int, Traffic], devices: list[int] | None = None) -> Any:
    """Bytes by name of region. Kernels: the range they are launched in, when they begin and end on the GPU."""
    names = list(dict.fromkeys(name for name, _, _ in kernels))
    ranges = [Range(i * 10, i * 10 + 10, name) for i, (name, _, _) in enumerate(kernels) if name]
    timeline = timeline_of(ranges, [Kernel(launched=i * 10 + 5) for i in range(len(kernels))])
    work = evolve(
        timeline.kernels,
        start=np.array([start for _, start, _ in kernels], dtype=np.int64),
        end=np.array([end for _, _, end in kernels], dtype=np.int64),
        device=np.array(devices or [0] * len(kernels), dtype=np.int32),
    )
    timeline = evolve(timeline, kernels=work, traffic=traffic)
    attribution = attribute(timeline)
    selection = timeline_scopes(timeline, None, aggregate=True)[-1].selection
    found = moved_in_regions(timeline, attribution, selection, [True] * len(attribution.table))
    by_name = {attribution.table.name[number]: sums for number, sums in found.items()}
    return {name: by_name[name][READ] if name in by_name else None for name in names if name}


def test_what_moves_between_two_pauses_belongs_to_the_work_between_them() -> None:
    """Samples of ten nanoseconds, from 1,000,000 on; pauses from 20 to 40 and from 60 on."""
    found = moved([("a", 1_000_012, 1_000_018), ("b", 1_000_042, 1_000_058)], {0: traffic_of(0, 7, 0, 0, 30, 40, 0, 0)})
    assert found == {"a": Moved(7.0, 0.0, 1), "b": Moved(70.0, 0.0, 2)}
    assert found["b"].is_measured()


def test_a_sample_that_two_share_is_divided_by_time_and_counts_as_uncertain() -> None:
    found = moved([("a", 1_000_010, 1_000_034), ("b", 1_000_035, 1_000_060)], {0: traffic_of(0, 10, 10, 10, 10, 10, 0)})
    assert found["a"].value == pytest.approx(24)
    assert found["b"].value == pytest.approx(25)
    assert (found["a"].uncertain, found["b"].uncertain) == (10, 10)
    assert not found["a"].is_measured()


@pytest.mark.parametrize("kernels", [
    [("a", 1_000_010, 1_000_900), ("b", 1_000_500, 1_009_000)],  # one begins while another runs
    [("b", 1_000_010, 1_009_900), ("a", 1_002_000, 1_002_100), ("c", 1_005_000, 1_005_100)],  # one runs beside others
])  # fmt: skip
def test_work_of_others_at_the_same_time_makes_it_uncertain(kernels: list[tuple[str, int, int]]) -> None:
    found = moved(kernels, {0: traffic_of(*[10] * 1_100)})
    assert not any(known.is_measured() for known in found.values())
    for name, start, end in kernels:
        assert found[name].value <= end - start + 20


def test_a_gpu_that_others_use_makes_everything_uncertain() -> None:
    """It moves as much while nothing of the program runs."""
    kernels = [("a", 1_000_500, 1_000_900)]
    alone, crowded = [0] * 50 + [10] * 40 + [0] * 110, [4] * 50 + [14] * 40 + [4] * 110
    assert moved(kernels, {0: traffic_of(*alone)})["a"].is_measured()
    found = moved(kernels, {0: traffic_of(*crowded)})["a"]
    assert (found.value, found.uncertain) == (40 * 14, pytest.approx(40 * 4))
    assert not found.is_measured()


def test_a_gpu_that_others_use_is_told(ocr: NCUProfileRegionReport) -> None:
    assert "GPU_USED_BY_OTHERS" not in codes(ocr)
    timeline = read_recording(OCR, launch_config=True)
    assert isinstance(timeline, Timeline)
    ((device, traffic),) = timeline.traffic.items()
    more = {name: values + 10_000_000 for name, values in traffic.bytes.items()}  # 100 GB/s
    crowded = evolve(timeline, traffic={device: Traffic(traffic.start, more)})
    counters = read_recording(RECORDINGS / "profile-2025.3.1-h200-ocr.ncu-rep.xz")
    told = build_report([crowded, counters], ReportOptions(verdicts=False))
    assert "100 GB/s" in next(d for d in told.diagnostics if d.code == "GPU_USED_BY_OTHERS").message
    assert told.main_scope is not None
    decode = next(r for r in told.main_scope.regions if r.name == "decode")
    assert decode.inclusive.metrics[READ].source == "extrapolated"


def test_each_rank_has_the_bytes_of_its_own_gpu() -> None:
    """Two recordings whose GPUs have one number: the second one moved twice as much."""
    first = read_recording(OCR, launch_config=True)
    assert isinstance(first, Timeline)
    ((device, traffic),) = first.traffic.items()
    more = {name: 2 * values for name, values in traffic.bytes.items()}
    second = evolve(first, source="second", traffic={device: Traffic(traffic.start, more)})
    counters = read_recording(RECORDINGS / "profile-2025.3.1-h200-ocr.ncu-rep.xz")
    told = build_report([first, second, counters], ReportOptions(verdicts=False))
    assert told.main_scope is not None
    decode = next(r for r in told.main_scope.regions if r.name == "decode").inclusive.metrics[READ]
    alone = build_report([first, counters], ReportOptions(verdicts=False)).main_scope
    assert alone is not None
    once = next(r for r in alone.regions if r.name == "decode").inclusive.metrics[READ]
    assert (decode.source, once.source) == (SOURCE, SOURCE)
    assert decode.value == pytest.approx(3 * once.value)


def sampled_ranks(factors: Sequence[int], gpus: Sequence[str] = ()) -> NCUProfileRegionReport:
    """Recordings of one rank each, without counters; each moved so many times as much as the first. 0: not sampled.

    `gpus`: how their machines call the one that each uses.
    """
    first = read_recording(OCR)
    assert isinstance(first, Timeline)
    ((device, traffic),) = first.traffic.items()
    ranks = []
    for number, factor in enumerate(factors):
        more = Traffic(traffic.start, {name: factor * values for name, values in traffic.bytes.items()})
        own = evolve(first, source=f"rank{number}.sqlite", traffic={device: more} if factor else {})
        if gpus:
            own = evolve(own, gpu_facts={device: {**first.gpu_facts[device], "uuid": gpus[number]}})
        ranks.append(with_ranks(own, number) if len(factors) > 1 else own)
    return build_report(ranks, ReportOptions())


def bytes_of(told: NCUProfileRegionReport, scope: str) -> dict[str, dict[str, MetricValue]]:
    return {region.key: region.inclusive.metrics for region in told.scope(scope).regions}


def test_samples_alone_are_the_bytes_of_regions_without_any_counters(ocr: NCUProfileRegionReport) -> None:
    """The same as with counters of kernels, which only share them out further."""
    alone, fitted = bytes_of(sampled_ranks([1]), "aggregate"), bytes_of(ocr, "aggregate")
    measured = {key: own for key, own in alone.items() if own}
    assert {"LLM@generate", "LLM@generate/vision", "LLM@generate/prefill", "LLM@generate/decode"} <= measured.keys()
    for key, own in measured.items():
        for name, value in own.items():
            assert (value.source, value.unit, value.rollup, value.coverage) == (SOURCE, "byte", "sum", 1.0)
            assert value.value == pytest.approx(fitted[key][name].value)
    told = sampled_ranks([1])
    decode = next(region for region in told.scope("aggregate").regions if region.key == "LLM@generate/decode")
    assert decode.performance is not None
    assert decode.performance.work is not None
    assert decode.performance.work.dram is not None
    assert decode.performance.work.dram.value == pytest.approx(
        sum(measured[decode.key][n].value for n in (READ, WRITTEN))
    )
    assert "bytes of regions come from samples" in next(d for d in told.diagnostics if d.code == "NO_COUNTERS").message


def test_every_rank_of_a_job_has_its_bytes_and_all_together_their_sum() -> None:
    """Read one after the other: no rank had counters, and none was replayed."""
    one, told = bytes_of(sampled_ranks([1]), "aggregate"), sampled_ranks([1, 2, 4])
    for scope, factor in (("rank:0", 1), ("rank:1", 2), ("rank:2", 4), ("aggregate", 7)):
        found = bytes_of(told, scope)
        assert {key for key, own in found.items() if own} == {key for key, own in one.items() if own}
        for key, own in one.items():
            for name, value in own.items():
                assert found[key][name].value == pytest.approx(factor * value.value)
                assert found[key][name].spread == pytest.approx(value.spread)
    exclusive = {region.key: region.exclusive.metrics for region in told.scope("rank:1").regions}
    parts = [key for key in one if key.startswith("LLM@generate/") and key.count("/") == 1]
    summed = sum(bytes_of(told, "rank:1")[key][READ].value for key in parts)
    whole = bytes_of(told, "rank:1")["LLM@generate"][READ].value
    assert summed + exclusive["LLM@generate"][READ].value == pytest.approx(whole)


def test_where_one_rank_was_not_sampled_nobody_adds_up_the_others() -> None:
    told = sampled_ranks([1, 0])
    assert bytes_of(told, "rank:0")["LLM@generate/decode"][READ].value > 0
    assert bytes_of(told, "rank:1")["LLM@generate/decode"] == {}
    assert bytes_of(told, "aggregate")["LLM@generate/decode"] == {}


def test_samples_of_a_gpu_that_ranks_share_are_nobodys() -> None:
    """Both work at the same time: what moved was for both."""
    own = sampled_ranks([1, 2], ["GPU-0a1", "GPU-0b2"])
    assert bytes_of(own, "aggregate")["LLM@generate/decode"][READ].source == SOURCE
    shared = sampled_ranks([1, 2, 4], ["GPU-0a1", "GPU-0a1", "GPU-0c3"])
    found = {
        scope: bytes_of(shared, scope)["LLM@generate/decode"] for scope in ("rank:0", "rank:1", "rank:2", "aggregate")
    }
    assert [bool(found[scope]) for scope in found] == [False, False, True, False]


def test_a_rank_asks_for_the_samples_of_its_own_gpu_and_no_other() -> None:
    eight = range(8)
    assert RankOnNode(3, 8).gpu(eight) == "3"
    assert RankOnNode(1, 2, "6,4").gpu(eight) == "4"
    assert RankOnNode(5, None, "2", gpu_is_own=True).gpu([2]) == "cuda-visible"  # srun --gpus-per-task=1
    assert RankOnNode(None, 1).gpu(eight) == "cuda-visible"
    # What may be shared: more ranks than GPUs, fewer visible than ranks, names that nsys does not number, nobody says.
    shared = [RankOnNode(1, 2, ""), RankOnNode(0, 2, "0"), RankOnNode(0, 2, "GPU-a,GPU-b"), RankOnNode(0, None)]
    assert [rank.gpu([0]) for rank in shared] == [None] * 4
    assert RankOnNode(0, 2, "8,9").gpu(eight) is None
    assert RankOnNode(1, 2, "0,0").gpu(eight) is None


@pytest.mark.process
@pytest.mark.parametrize(("ranks", "asked"), [("1", True), ("2", False)])
def test_ranks_of_a_job_are_sampled_where_each_has_a_gpu(
    tools: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    ranks: str,
    asked: bool,
) -> None:
    """The machine of the transcripts has one GPU."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("llm_perf_opt.capture.rank_job._PATIENCE_S", 0.0)
    assert main(["profile", "--out", "run", "--quiet", "--", sys.executable, "-c", "pass"]) == 0
    steps = {step.name: step for step in read_manifest(Path("run/ranks/rank-0")).steps}
    assert ("--gpu-metrics-devices" in steps["nsys"].argv) is asked
    assert ("ncu" in steps) is False
    told = {d.code: d.message for d in llm_perf_opt.load("run").diagnostics}
    assert ("TRAFFIC_NOT_SAMPLED" in told) is not asked


def test_a_region_is_not_measured_while_samples_were_lost_or_were_not_taken() -> None:
    lost = traffic_of(1, 1, 1, 1, 1, 1, 1, 1)
    lost = Traffic(lost.start + np.array([0, 0, 0, 50, 50, 50, 50, 50]), lost.bytes)
    assert moved([("a", 1_000_012, 1_000_060)], {0: lost}) == {"a": None}
    assert moved([("a", 1_000_012, 1_000_060)], {0: traffic_of(1, 1, 1)}) == {"a": None}  # they end before it does
    assert moved([("a", 1_000_012, 1_000_018)], {0: traffic_of(1, 1, 1, start=1_000_500)}) == {"a": None}
    assert moved([("a", 1_000_012, 1_000_018)], {1: traffic_of(1, 1, 1)}) == {"a": None}  # another GPU's


def test_several_gpus_are_added_up_if_all_were_sampled() -> None:
    kernels = [("a", 1_000_012, 1_000_018), ("a", 1_000_012, 1_000_018)]
    both = {0: traffic_of(0, 7, 0, 0), 1: traffic_of(0, 5, 0, 0)}
    assert moved(kernels, both, [0, 1])["a"].value == 12
    assert moved(kernels, {0: both[0]}, [0, 1]) == {"a": None}


@given(st.lists(st.tuples(st.integers(-80, 40), st.integers(1, 60), st.sampled_from("abc")), min_size=1, max_size=30))
@examples(200)
def test_regions_side_by_side_have_all_bytes_between_them_but_for_what_is_uncertain(
    pieces: list[tuple[int, int, str]],
) -> None:
    """Work of three regions on one GPU, one after the other or at once; every nanosecond of it moves a byte."""
    at, kernels = 1_000_020, []
    for pause, takes, name in pieces:
        begin = max(at + pause, kernels[-1][1] if kernels else at)
        kernels.append((name, begin, begin + takes))
        at = max(at, begin + takes)
    busy = np.zeros(at - 1_000_000 + 40, dtype=np.int64)
    for _, start, end in kernels:
        busy[start - 1_000_000 : end - 1_000_000] += 1
    busy = busy[: len(busy) // 10 * 10]
    found = moved(kernels, {0: traffic_of(*busy.reshape(-1, 10).sum(axis=1).tolist())})
    for name in {name for name, _, _ in kernels}:
        truth = sum(end - start for other, start, end in kernels if other == name)
        assert abs(found[name].value - truth) <= found[name].uncertain + 1e-6


# -- how kernels share them ------------------------------------------------------------------------


def estimate(value: float, source: str = "extrapolated", coverage: float = 1.0) -> MetricValue:
    return MetricValue(value, "byte", "sum", source, 3, 9, coverage, 0.1)


def tree(*parents: int) -> RegionTable:
    table = RegionTable()
    for number, parent in enumerate(parents):
        table.intern("", False, parent, f"r{number}")
    return table


NO_COPIES = np.zeros(9, dtype=np.int64)


def fitted_to(
    table: RegionTable, estimates: dict[int, MetricValue], totals: dict[int, Moved], copied: Any = NO_COPIES
) -> Fitted:
    own = {number: value.value for number, value in estimates.items()}
    for number in estimates:
        if table.parent[number] in own:
            own[table.parent[number]] -= estimates[number].value
    return fit(table, estimates, own, totals, copied)


def test_a_total_replaces_the_estimate_and_what_is_inside_shares_it() -> None:
    table = tree(ROOT, 0, 0, 1)
    fitted = fitted_to(table, dict(enumerate(map(estimate, (90.0, 60.0, 25.0, 20.0)))), {0: Moved(180, 1, 50)})
    assert [fitted.values[n].value for n in range(4)] == [180, 120, 50, 40]
    assert [fitted.own[n] for n in range(4)] == [10, 80, 50, 40]
    assert (fitted.values[0].source, fitted.values[0].samples, fitted.values[1].source) == (SOURCE, 50, "extrapolated")
    assert fitted.estimated == {0: 90}


def test_parts_with_totals_of_their_own_keep_them_and_the_rest_is_shared() -> None:
    table = tree(ROOT, 0, 0, 0)
    totals = {0: Moved(200, 1, 50), 1: Moved(100, 1, 20)}
    fitted = fitted_to(table, dict(enumerate(map(estimate, (100.0, 80.0, 15.0, 5.0)))), totals)
    assert [fitted.values[n].value for n in range(4)] == [200, 100, 75, 25]


def test_uncertain_totals_and_results_of_range_replay_change_nothing() -> None:
    table = tree(ROOT, 0)
    assert fitted_to(table, {0: estimate(10), 1: estimate(5)}, {0: Moved(100, 3, 5)}).values == {}
    whole = {0: estimate(10, "range replay"), 1: estimate(5)}
    assert fitted_to(table, whole, {0: Moved(100, 0, 5)}).values == {}


@pytest.mark.parametrize(
    ("whole", "part", "shared"),
    [
        (100.0, 99.5, 180.0),  # what is left over is too little to be blown up
        (1.0, 0.5, 100.0),  # a hundred times as much as counters say
        (0.0, 0.0, 50.0),  # counters saw nothing
    ],
)
def test_what_cannot_be_shared_is_the_regions_own(whole: float, part: float, shared: float) -> None:
    totals = {0: Moved(200.0, 0, 5)} | ({1: Moved(180.0, 0, 5)} if whole == 100 else {})
    fitted = fitted_to(tree(ROOT, 0), {0: estimate(whole), 1: estimate(part)}, totals)
    assert fitted.values[0].value == 200
    assert fitted.values[1].value <= shared
    assert fitted.values[1].value + fitted.own[0] == pytest.approx(200)


def test_where_half_of_the_kernels_have_no_counters_the_others_stand_for_them() -> None:
    fitted = fitted_to(tree(ROOT, 0), {0: estimate(50, coverage=0.5), 1: estimate(20)}, {0: Moved(100, 0, 5)})
    assert [fitted.values[n].value for n in (0, 1)] == [100, 40]
    assert fitted.own[0] == 60


def test_copies_are_no_bytes_of_kernels() -> None:
    """Of 150 bytes 50 were copied: the kernels' counters were right."""
    copied = np.array([50, 0, 0], dtype=np.int64)
    fitted = fitted_to(tree(ROOT, 0), {0: estimate(100), 1: estimate(60)}, {0: Moved(150, 0, 5)}, copied)
    assert [fitted.values[n].value for n in (0, 1)] == [150, 60]
    assert fitted.own[0] == 90, "those copies, and the kernels that are right in it"


def test_a_region_that_was_exact_before_is_an_estimate_of_unknown_error() -> None:
    fitted = fitted_to(tree(ROOT, 0), {0: estimate(10), 1: estimate(5, "kernel replay")}, {0: Moved(20, 0, 5)})
    assert (fitted.values[1].value, fitted.values[1].source, fitted.values[1].spread) == (10, "extrapolated", None)


@given(st.data())
@examples(200)
def test_regions_with_totals_have_them_and_parts_add_up_to_their_parents(data: st.DataObject) -> None:
    """Whatever the estimates are, which regions were measured, and which are shown at all."""
    count = data.draw(st.integers(1, 8))
    table = tree(*(ROOT if n == 0 else data.draw(st.integers(0, n - 1)) for n in range(count)))
    own = [data.draw(st.floats(0, 1000)) for _ in range(count)]
    true = [data.draw(st.floats(0, 30)) * value for value in own]
    estimates, totals = own.copy(), true.copy()
    for number in range(count - 1, 0, -1):
        estimates[table.parent[number]] += estimates[number]
        totals[table.parent[number]] += totals[number]
    seen = {n: Moved(totals[n], 0, 5) for n in range(count) if totals[n] and data.draw(st.booleans())}
    shown = {n: estimate(estimates[n]) for n in range(count) if data.draw(st.integers(0, 5))}
    fitted = fit(table, shown, {n: own[n] for n in shown}, seen, NO_COPIES)
    for number in shown if fitted.values else ():
        assert number not in seen or fitted.values[number].value == pytest.approx(seen[number].value)
        children = [n for n in range(1, count) if table.parent[n] == number]
        if all(n in shown for n in children):
            parts = sum(fitted.values[n].value for n in children) + fitted.own[number]
            assert parts == pytest.approx(fitted.values[number].value, rel=1e-6, abs=1e-6)


# -- reading them ----------------------------------------------------------------------------------

_TABLES = """
CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
"""


def sampled(path: Path, rows: list[tuple[int, int, int, int]], devices: list[tuple[int, int, int]]) -> Timeline:
    make_export(path, [("a", 0, 100)], [("kernel", 10, 20, 30)])
    with sqlite3.connect(path) as db:
        db.executescript(_TABLES)
        for kind in {kind for _, kind, _, _ in rows}:
            for metric, name in enumerate([READ, WRITTEN]):
                db.execute("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, ?, ?)", (kind, metric, f"{name} [byte]"))
            db.execute("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 2, 'SMs Active [Throughput %]')", (kind,))
        db.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", rows)
        db.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?)", devices)
    timeline = read(path, launch_config=True)
    assert isinstance(timeline, Timeline)
    return timeline


GOOD = [(time, 0x100, metric, 5 + metric) for time in (0, 10, 20) for metric in (0, 1, 2)]


def test_the_gpu_has_the_number_that_the_program_gives_it(tmp_path: Path) -> None:
    other = [(time, 0x103, metric, value) for time, _, metric, value in GOOD]
    found = sampled(tmp_path / "a.sqlite", GOOD + other, [(0, 1, 7), (3, 0, 7)]).traffic
    assert {device: sorted(traffic.bytes) for device, traffic in found.items()} == {
        0: [READ, WRITTEN],
        1: [READ, WRITTEN],
    }
    assert found[1].bytes[READ].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("rows", "devices"),
    [
        (GOOD, [(0, 0, 7), (0, 1, 8)]),  # two processes know it by different numbers
        ([(0, 0x100, 0, 5)], [(0, 0, 7)]),
        ([*GOOD, (30, 0x100, 0, 5)], [(0, 0, 7)]),  # one counter has more samples than the other
        ([*GOOD, (30, 0x100, 0, -5), (30, 0x100, 1, 5)], [(0, 0, 7)]),
        ([*GOOD, (2**62, 0x100, 0, 5), (2**62, 0x100, 1, 5)], [(0, 0, 7)]),
        ([*GOOD, (30, 0x100, 0, 2**62), (30, 0x100, 1, 5)], [(0, 0, 7)]),
    ],
)
def test_samples_that_cannot_be_are_not_used(
    tmp_path: Path, rows: list[tuple[int, int, int, int]], devices: list[tuple[int, int, int]]
) -> None:
    timeline = sampled(tmp_path / "a.sqlite", rows, devices)
    assert timeline.traffic == {}
    assert "TRAFFIC_NOT_READ" in [d.code for d in timeline.diagnostics]


def test_a_damaged_table_of_samples_costs_the_samples_only(tmp_path: Path) -> None:
    timeline = sampled(tmp_path / "a.sqlite", [*GOOD, (30, 0x100, 0, "much")], [(0, 0, 7)])  # type: ignore[list-item]
    assert timeline.traffic == {}
    assert "TRAFFIC_NOT_READ" in [d.code for d in timeline.diagnostics]
    assert len(timeline.kernels) == 1


def test_gpus_that_the_program_did_not_use_are_left_out(tmp_path: Path) -> None:
    """It sees the third and the first of three, as 0 and 1."""
    rows = [(t, 0x100 + gpu, metric, 100 * (gpu + 1)) for t, _, metric, _ in GOOD for gpu in (0, 1, 2)]
    found = sampled(tmp_path / "a.sqlite", rows, [(2, 0, 7), (0, 1, 7)]).traffic
    assert {device: int(traffic.bytes[READ][0]) for device, traffic in found.items()} == {0: 300, 1: 100}


def test_where_there_is_no_memory_for_them_the_timeline_is_read_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.readers.nsys_traffic.free_bytes", lambda: 100)
    timeline = sampled(tmp_path / "a.sqlite", GOOD, [(0, 0, 7)])
    assert timeline.traffic == {}
    assert "TRAFFIC_NOT_READ" in [d.code for d in timeline.diagnostics]
    assert len(timeline.kernels) == 1


def test_samples_of_more_gpus_than_there_can_be_take_no_time(tmp_path: Path) -> None:
    """Every type was looked for in all samples: five megabytes took the better part of a minute, or of an hour."""
    rows = [(0, kind, metric, 5) for kind in range(60_000) for metric in (0, 1)]
    path = tmp_path / "a.sqlite"
    assert sampled(path, rows, [(0, 0, 7)]).traffic == {}
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM TARGET_INFO_GPU_METRICS WHERE typeId")
        db.execute("UPDATE GPU_METRICS SET timestamp = rowid")
    began = time.process_time()
    read(path, launch_config=True)
    assert time.process_time() - began < 3


# -- taking them -----------------------------------------------------------------------------------


def profile(tools: Path, *options: str) -> str:  # noqa: F811 - the fixture
    """Run it; the nsys commands that were run."""
    (tools / "program.py").write_text("print('hello')")
    assert (
        main(["profile", "--no-measure", "--out", "run", *options, "--", sys.executable, str(tools / "program.py")])
        == 0
    )
    return Path("run/nsys/cmd.txt").read_text(encoding="utf-8")


@pytest.mark.process
def test_nsys_samples_bytes_by_a_set_of_ours(tools: Path) -> None:  # noqa: F811
    told = profile(tools)
    file = Path("run/nsys/llm_perf_traffic.config").resolve()
    assert f"--gpu-metrics-devices cuda-visible --gpu-metrics-set file:{file} --gpu-metrics-frequency 10000" in told
    assert file.read_text() == metric_set(["GH100"])
    assert "TRAFFIC_NOT_SAMPLED" not in codes(llm_perf_opt.load("run").data)
    ours = {f.name for f in files_of(Path("run"), read_manifest(Path("run"))) if f.is_ours}
    assert "nsys/llm_perf_traffic.config" in ours


@pytest.mark.process
@pytest.mark.parametrize("option", ["--no-traffic", "--no-counters"])
def test_nothing_is_sampled_where_nobody_wants_it(tools: Path, option: str) -> None:  # noqa: F811
    assert "gpu-metrics" not in profile(tools, option)


@pytest.mark.process
def test_another_profiler_on_the_gpu_costs_the_samples_only(
    tools: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_SAMPLING", "busy")
    assert "gpu-metrics" not in profile(tools)
    told = next(d for d in llm_perf_opt.load("run").diagnostics if d.code == "TRAFFIC_NOT_SAMPLED")
    assert "nsys cannot sample any GPU: Already under profiling." in told.message


@pytest.mark.process
def test_where_nsys_refuses_at_the_last_moment_it_is_asked_again(
    tools: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_SAMPLING", "refused")
    first, second = [line for line in profile(tools).splitlines() if " profile " in line]
    assert "--gpu-metrics-set" in first
    assert second == " ".join(
        part
        for part in first.replace("--gpu-metrics-devices cuda-visible ", "").split(" ")
        if "gpu-metrics" not in part
    ).replace(f" file:{Path('run/nsys/llm_perf_traffic.config').resolve()}", "").replace(" 10000 ", " ")
    steps = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["steps"]
    assert [step["status"] for step in steps if step["name"] == "nsys"] == ["refused", "captured"]
    told = next(d for d in llm_perf_opt.load("run").diagnostics if d.code == "TRAFFIC_NOT_SAMPLED")
    assert "nsys refused it: Already under profiling." in told.message


def test_chips_have_their_own_names_of_the_counters() -> None:
    assert counters_of(["GH100"]) == list(THREE)
    assert counters_of(["GB202"]) == ["dram__bytes_op_read.sum", "dram__bytes_op_write.sum", L2]
    assert counters_of(["XY999"]) == list(THREE)


@pytest.mark.process
def test_an_nsys_that_does_not_answer_about_sampling_is_used_without(
    tools: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llm_perf_opt.process.ask.TIMEOUT_S", 1.0)
    monkeypatch.setenv("FAKE_SAMPLING", "silent")
    assert "gpu-metrics" not in profile(tools)
    assert "TRAFFIC_NOT_SAMPLED" in codes(llm_perf_opt.load("run").data)


@pytest.mark.process
def test_a_program_that_removes_our_notes_is_not_started_again(tools: Path) -> None:  # noqa: F811
    """Where nsys left nothing and there was no note of the start, the sampling was thought to be the cause."""
    program = "import shutil\nopen('starts', 'a').write('x')\nshutil.rmtree('run/nsys')\n"
    (tools / "program.py").write_text(program)
    assert main(["profile", "--no-measure", "--out", "run", "--", sys.executable, str(tools / "program.py")]) == 5
    assert Path("starts").read_text() == "x"
    assert "TRAFFIC_NOT_SAMPLED" not in [d.code for step in read_manifest(Path("run")).steps for d in step.diagnostics]


@pytest.mark.process
def test_who_asks_nsys_for_metrics_of_the_gpu_gets_those(tools: Path) -> None:  # noqa: F811
    own = NsysOptions(extra_args=("--gpu-metrics-devices=0",))
    assert with_sampling(own, find_nsys(), tools / "nsys", 10_000).options is own
    assert with_sampling(own, find_nsys(), tools / "nsys", 10_000).why_not is None
