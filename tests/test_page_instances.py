"""The instances of a region as bars, what lies in no stage, and libraries' ranges: what the page shows of them."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from conftest import examples, regions_of
from conftest import report as build
from llm_perf_opt.analysis.instance_strips import ALL_BARS, FEW_BARS, MOST_BARS, instance_strips
from llm_perf_opt.regions.detail import TREND_LEVELS, InstanceStrip, TimelineDetail
from llm_perf_opt.regions.instances import Instances
from llm_perf_opt.regions.libraries import library_regions
from llm_perf_opt.report.accounting import accounts
from llm_perf_opt.report.instance_columns import strip_columns
from llm_perf_opt.report.markdown import render_markdown
from llm_perf_opt.report.md_syntax import plain
from llm_perf_opt.report.page_data import page_data, page_regions
from llm_perf_opt.report.view import view_of
from synthetic import make_export

MS = 1_000_000
report = partial(build, launch_detail=True)


def strips_of(*regions: tuple[list[int], int]) -> list[InstanceStrip]:
    """Strips of regions, each with the durations of its instances and how many of the first are warm-up."""
    duration = np.array([d for durations, _ in regions for d in durations], dtype=np.int64)
    warm = np.array([i < n for durations, n in regions for i in range(len(durations))], dtype=np.bool_)
    zeros = np.zeros(len(duration), dtype=np.int64)
    ends = np.cumsum([len(durations) for durations, _ in regions])
    ranges = {n: np.arange(end - len(regions[n][0]), end) for n, end in enumerate(ends.tolist())}
    timed = Instances(duration, zeros, warm, warm, zeros, zeros, {})
    found = instance_strips(timed, ranges, np.ones(len(regions), dtype=np.bool_))
    return [found[n] for n in sorted(found)]


def shared_out(strip: InstanceStrip) -> list[int]:
    """The first instance of each bar, as the script of the page takes it."""
    bars = len(strip.median)
    rest = [
        strip.alone + (i * (strip.instances - strip.alone)) // (bars - strip.alone) for i in range(bars - strip.alone)
    ]
    return [*range(strip.alone), *rest, strip.instances]


# -- bars --------------------------------------------------------------------------------------------


def test_a_few_instances_have_a_bar_each() -> None:
    (strip,) = strips_of(([900, 300, 310, 290, 305], 1))
    assert strip.median.tolist() == strip.shortest.tolist() == strip.longest.tolist() == [900, 300, 310, 290, 305]
    assert strip.warmup.tolist() == [True, False, False, False, False]
    assert strip.steady == (293, 302, 308)
    assert strips_of(([5], 0)) == []  # one instance is no strip


@examples(20)
@given(st.integers(MOST_BARS + 1, 3000), st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_of_many_a_bar_has_the_shortest_the_median_and_the_longest(count: int, seed: int, warm: int) -> None:
    durations = np.random.default_rng(seed).integers(1, 10**9, count).tolist()
    (strip,) = strips_of((durations, warm))
    first = shared_out(strip)
    assert len(strip.median) == MOST_BARS
    assert strip.alone == warm  # warm-up does not hide among others
    assert np.flatnonzero(strip.warmup).tolist() == list(range(warm))
    for bar, (begin, after) in enumerate(pairwise(first)):
        inside = sorted(durations[begin:after])
        told = [strip.shortest[bar], strip.median[bar], strip.longest[bar]]
        assert told == [inside[0], inside[(len(inside) - 1) // 2], inside[-1]]


def test_regions_with_the_most_time_have_the_most_bars() -> None:
    found = strips_of(*[([1000 - n] * 300, 0) for n in range(400)])
    sizes = [len(strip.median) for strip in found]
    assert sizes[0] == MOST_BARS
    assert sizes[-1] == FEW_BARS
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= ALL_BARS + FEW_BARS * 400


def unpacked(packed: list[Any]) -> list[float]:
    _, _, low, high, text, *_ = packed
    levels = [TREND_LEVELS.index(a) * 64 + TREND_LEVELS.index(b) for a, b in zip(text[::2], text[1::2], strict=True)]
    return [low * math.exp(math.log(high / low) * level / 4095) for level in levels]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that loads, then takes two slow and 500 steady steps, with a library's range inside each."""
    ranges, kernels, at = [], [], 10 * MS
    kernels.append(("load_weights", 1000, 2000, 2000 + MS))
    for number in range(502):
        length = (900, 300)[number] * MS if number < 2 else 2 * MS + 1000 * (number % 7)
        ranges += [("step", at, at + length), ("cub::DeviceScan", at + 2000, at + 500_000)]
        kernels.append(("scan_kernel", at + 3000, at + 10_000, at + 110_000))
        at += length
    ranges.append(("save", at + MS, at + 5 * MS))
    return make_export(tmp_path_factory.mktemp("steps") / "run.sqlite", ranges, kernels)


def test_what_the_page_gets_is_small_and_true(steps: Path) -> None:
    found = report(steps)
    view = view_of(found)
    regions = page_regions(view)
    detail = found.timeline_detail
    assert isinstance(detail, TimelineDetail)
    (packed,) = [p for r, p in zip(regions, strip_columns(detail, regions), strict=True) if p and r.key == "step"]
    assert packed[:2] == [502, 2]
    assert packed[5:] == [[0, 1]]  # the quantiles are those of the timing
    values = unpacked(packed)
    assert len(values) == 3 * MOST_BARS
    assert values[:6] == pytest.approx([900 * MS] * 3 + [300 * MS] * 3, rel=0.002)
    assert all(2 * MS * 0.998 <= value <= 2.006 * MS * 1.002 for value in values[6:])
    assert len(packed[4]) < 1500
    timing = page_data(view, regions)["timing"][[r.key for r in regions].index("step")]
    assert timing == [0, 502, 500, 2_003_000, 2_000_000, 2_006_000, 2, 1200 * MS, "other"]


def test_the_timeline_keeps_a_typical_steady_instance(steps: Path) -> None:
    found = report(steps)
    detail = found.timeline_detail
    assert isinstance(detail, TimelineDetail)
    step = next(n for n in range(len(detail.table)) if detail.table.key(n) == "step")
    kept = sorted(detail.instances.number[detail.instances.region == step].tolist())
    assert (kept[0], kept[-1]) == (0, 501)
    typical = next(n for n in kept if n not in (0, 501))
    assert typical % 7 == 3  # as long as half of them are


# -- all time is accounted for -----------------------------------------------------------------------


def test_what_lies_in_no_stage_is_named(steps: Path) -> None:
    view = view_of(report(steps))
    assert [region.name for region in view.stages] == ["step"]
    (time, work) = accounts(view)
    step = regions_of(view.scope)["step"]
    assert view.scope
    totals = view.scope.totals
    assert totals.recorded_ns == totals.span_ns
    assert step.wall_ns
    shares = {part.kind: part.share * totals.recorded_ns for part in time.parts}
    assert shares == pytest.approx(
        {
            "stages": step.wall_ns - 1200 * MS,
            "warmup": 1200 * MS,
            "other": 4 * MS,  # save
            "none": totals.recorded_ns - step.wall_ns - 4 * MS,
        }
    )
    assert "in other ranges (save)" in time.sentence
    assert work.sentence.endswith("is in no range (1 kernel).")
    assert sum(part.share for part in work.parts) == pytest.approx(1)
    assert plain(f"{time.sentence} {work.sentence}") in render_markdown(view)


def test_stages_side_by_side_are_not_added_up() -> None:
    view = view_of(report("nsys-*-train.sqlite"))
    assert view.scope
    totals = view.scope.totals
    assert accounts(view)[0].parts[0].name == "in the stages"
    twice = [evolve(r, wall_ns=2 * (totals.recorded_ns or 0)) for r in view.stages]
    (first, *_) = accounts(evolve(view, stages=twice))
    assert [part.name for part in first.parts] == ["in ranges", "in no range"]
    assert sum(part.share for part in first.parts) == pytest.approx(1)


def test_time_of_several_processes_is_added_up() -> None:
    found = report("nsys-*-ranks.sqlite")
    processes = [scope.totals for scope in found.scopes if scope.scope.startswith("process:")]
    assert len(processes) == 2
    whole = found.scope("aggregate").totals
    assert whole.recorded_ns == sum(totals.recorded_ns or 0 for totals in processes)
    assert whole.outside_ranges_ns == sum(totals.outside_ranges_ns or 0 for totals in processes)
    assert whole.recorded_ns > (whole.span_ns or 0)
    assert "in all processes together" in accounts(view_of(found))[0].sentence


def test_nothing_is_said_where_all_is_in_one_stage() -> None:
    assert accounts(view_of(report("kineto-"))) == []


# -- libraries ---------------------------------------------------------------------------------------


def test_ranges_of_libraries_are_folded_away(steps: Path) -> None:
    found = report(steps)
    regions = page_regions(view_of(found))
    inside = next(r for r in regions if r.name == "cub::DeviceScan")
    assert library_regions(regions, found.stages) == {inside.key}
    assert library_regions(regions, {inside.key}) == set()  # a stage is never hidden
    assert library_regions([inside], []) == set()  # nor is everything
    ocr = report("profile-*-ocr.sqlite")
    hidden = library_regions(ocr.scopes[-1].regions, ocr.stages)
    assert hidden == {r.key for r in ocr.scopes[-1].regions if r.domain == "CCCL"} != set()
    nested = [evolve(inside, key="a", parent=None), evolve(inside, key="a/mine", parent="a", name="mine"), regions[0]]
    assert library_regions(nested, []) == {"a", "a/mine"}
    for name in ("ncclAllReduce", "cublasLtMatmul", "cublasSgemm"):
        assert library_regions([evolve(inside, name=name), regions[0]], []) == {inside.key}
    assert library_regions([evolve(inside, name="ncclude"), regions[0]], []) == set()


# -- what the host is in -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("nsys-*-graph_node.sqlite", "cudaMalloc_v3020"),  # no lines, no operators: its calls
        ("kineto-*-2layers.json.gz", "aten::scaled_dot_product_attention"),
        ("lines-*-waits.sqlite", "lines.py:163 waits"),
    ],
)
def test_the_page_has_a_track_of_the_host_whatever_the_recording_tells_of_it(name: str, seen: str) -> None:
    view = view_of(report(name))
    track = page_data(view, page_regions(view))["strip"]["code"]
    assert seen in track["places"]
    assert len(track["place"]) == len(track["start"]) == len(track["length"]) == len(track["window"])
    ends: dict[int, int] = {}
    for window, start, length in zip(track["window"], track["start"], track["length"], strict=True):
        assert start >= ends.get(window, start)  # one behind the other
        ends[window] = start + length
