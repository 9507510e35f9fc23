"""Programs without ranges: one stage, `whole recording`, with times, counters, a verdict and a plan like any other.

The recordings are real ones whose ranges were taken out, so that the same figures are known from the ranges.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import attrs
import numpy as np
import pytest

import llm_perf_opt
from conftest import RECORDINGS, SHARED, codes, counters, read, recording, report, timeline
from fake_tools import json_alone as json_alone
from fake_tools import write as write_tools
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.verdicts.stage_choice import stages as choose_stages
from llm_perf_opt.cli.main import main
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning import CounterPlan, decide, describe, facts_of
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.attribution import Mode, attribute
from llm_perf_opt.regions.columns import UNKNOWN, CounterSet, MetricInfo, Ranges, Timeline
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionStats
from llm_perf_opt.regions.whole_recording import with_whole_recording
from llm_perf_opt.report.csv_report import render_table
from llm_perf_opt.report.markdown import render_kernels, render_region, render_sections
from llm_perf_opt.report.tables import measured_table
from llm_perf_opt.request import CounterRequest, ProfileRequest
from synthetic import make_export

WHOLE = "whole recording"
WARM, WARM_RESULTS = "nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep"
FLOPS = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"


def without_ranges(found: Timeline) -> Timeline:
    return attrs.evolve(found, ranges=Ranges.empty(), diagnostics=[])


def without_stacks(found: CounterSet) -> CounterSet:
    """As ncu leaves it without --nvtx."""
    return attrs.evolve(found, actions=[attrs.evolve(a, push_pop={}, start_end={}) for a in found.actions])


def warm() -> Timeline:
    found = read(recording(WARM), launch_config=True)
    assert isinstance(found, Timeline)
    return found


def results(name: str = "decoder-8layers-warm-per-launch-config") -> CounterSet:
    return without_stacks(counters(name))


def only_region(found: NCUProfileRegionReport) -> NCUProfileRegion:
    assert found.main_scope is not None
    (region,) = found.main_scope.regions
    assert (region.key, region.domain, region.path, region.range_kind) == (WHOLE, "", [WHOLE], "recording")
    assert region.nvtx_include == ""
    return region


# -- timelines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("name", ["train", "graph_node", "graph_whole", "ranks", "threads"])
def test_all_work_of_a_timeline_without_ranges_is_one_stage(name: str, mode: Mode) -> None:
    found = build_report([without_ranges(timeline(name))], ReportOptions(attribution=mode))
    region, scope = only_region(found), found.main_scope
    assert scope is not None
    totals, work = scope.totals, region.inclusive
    assert (work.kernel_count, work.memory, work.graph_launches) == (
        *(totals.kernel_count, totals.memory, totals.graph_launches),
    )
    assert (work.gpu_time_ns, totals.unattributed_kernel_count) == (totals.gpu_time_ns, 0)
    assert work.kernel_count + work.graph_launches > 0
    processes = [s for s in found.scopes if s.scope.startswith("process:")]
    assert region.instances == len(processes)
    assert region.wall_ns == sum(s.totals.span_ns or 0 for s in processes)
    assert region.wall_ns - (region.gpu_idle_ns or 0) == region.gpu_busy_ns
    assert found.stages == [WHOLE]
    assert region.performance is not None
    assert codes(found)[0] == "NO_RANGES"
    if len(processes) > 1 and found.answer.fixes:  # "of each whole recording" would be nonsense
        assert " of each process." in found.answer.do_first


def test_work_whose_launch_was_not_recorded_is_in_it_too() -> None:
    found = without_ranges(timeline("train"))
    kernels = attrs.evolve(found.kernels, host_time=found.kernels.host_time * 0 + UNKNOWN)
    region = only_region(build_report([attrs.evolve(found, kernels=kernels)], ReportOptions()))
    assert region.inclusive.kernel_count == len(kernels)


def test_a_recording_with_ranges_has_no_such_stage() -> None:
    found = timeline("train")
    assert with_whole_recording(found) is found
    assert not attribute(found).table.whole


def test_ranks_without_ranges_are_one_stage_together() -> None:
    one = without_ranges(timeline("train"))
    found = build_report([one, one], ReportOptions())
    region = only_region(found)
    assert (region.instances, region.inclusive.kernel_count) == (2, 2 * len(one.kernels))
    assert "UNRELATED_TIMELINES" not in codes(found)


def test_a_pattern_finds_it_by_its_name_and_others_are_told_of_it() -> None:
    plain = without_ranges(timeline("train"))
    only_region(build_report([plain], ReportOptions(include=["whole*"])))
    found = build_report([plain], ReportOptions(include=["decode*"]))
    assert (found.available_ranges, "NO_MATCHING_REGIONS" in codes(found)) == ([WHOLE], True)


# -- counters --------------------------------------------------------------------------------------


def test_counters_joined_to_a_timeline_without_ranges_are_all_shown() -> None:
    plain, sampled = without_ranges(warm()), results()
    found = build_report([plain, sampled], ReportOptions())
    region = only_region(found)
    assert found.coverage is not None
    assert (found.coverage.results, found.coverage.results_unmatched) == (248, 0)
    assert set(region.inclusive.metrics) == {name for a in sampled.actions for name in a.metrics}
    assert sum(one.results for one in found.measured) == 248
    # The program warms up with the same work, outside of its ranges, whose FLOPs are known.
    ranged = report(WARM, WARM_RESULTS).main_scope
    assert ranged is not None
    known = sum(r.inclusive.metrics[FLOPS].value for r in ranged.regions if r.depth == 0)
    assert region.inclusive.metrics[FLOPS].value == pytest.approx(2 * known, rel=0.001)
    assert region.performance is not None
    assert region.performance.utilisation
    assert region.performance.signatures


def test_where_every_launch_was_sampled_nothing_is_extrapolated() -> None:
    ranged = read(recording("nsys-*-graph_node.sqlite"), launch_config=True)
    assert isinstance(ranged, Timeline)
    sampled = results("graph-nodes-kernel-replay")
    in_graphs = ranged.kernels.graph_node != UNKNOWN
    kept = {f.name: getattr(ranged.kernels, f.name) for f in attrs.fields(type(ranged.kernels))}
    columns = {n: c[in_graphs] for n, c in kept.items() if n not in ("config", "bytes", "stream", "pageable")}
    config = ranged.kernels.config
    assert config is not None
    config = type(config)(*(getattr(config, f.name)[in_graphs] for f in attrs.fields(type(config))))
    kernels = type(ranged.kernels)(**columns, config=config)
    found = build_report([attrs.evolve(without_ranges(ranged), kernels=kernels), sampled], ReportOptions())
    value = only_region(found).inclusive.metrics["gpu__time_duration.sum"]
    assert value.source == "kernel replay"
    assert value.value == pytest.approx(sum(a.time_ns() or 0 for a in sampled.actions))


def test_counters_without_ranges_are_one_stage_with_sections_and_rules() -> None:
    sampled = results("decoder-2layers-basic")
    found = build_report([sampled], ReportOptions())
    region = only_region(found)
    assert region.inclusive.kernel_count == len(sampled.actions) == sum(one.results for one in found.measured)
    assert set(region.inclusive.metrics) >= {name for a in sampled.actions for name in a.metrics}
    assert set(region.sections) == {name for name, shown in sampled.section_metrics.items() if shown}
    assert region.rules
    assert found.stages == [WHOLE]
    told = {(one.kernel_name, rule.rule) for one in found.measured for rule in one.rules}
    assert told == {(action.name, rule.rule) for action in sampled.actions for rule in action.rules}


def _recorded() -> list[Any]:
    names = ("ncu-*.ncu-rep*", "ncu-*.csv", "profile-*.ncu-rep*")
    ours = sorted(path for name in names for path in RECORDINGS.glob(name))
    others = sorted(SHARED.rglob("*.ncu-rep"))  # of other people: read by a process of its own
    marked = [pytest.param(path, id=path.name, marks=pytest.mark.process) for path in others]
    return [*(pytest.param(path, id=path.name) for path in ours), *marked]


def _values(given: CounterSet, name: str) -> list[float]:
    return [action.metrics[name] for action in given.actions if name in action.metrics]


@pytest.mark.parametrize("file", _recorded())
def test_every_result_and_every_counter_of_a_file_is_in_its_report(file: Path) -> None:
    found = read(file)
    assert isinstance(found, CounterSet)
    for given in (found, without_stacks(found)):
        built = build_report([given], ReportOptions(verdicts=False))
        assert sum(one.results for one in built.measured) == len(given.actions)
        recorded = {name for action in given.actions for name in action.metrics}
        named = [d.message for d in built.diagnostics if d.code == "RATES_LEFT_OUT"]
        missing = recorded - {name for one in built.measured for name in one.metrics}
        assert all(name in named[0] and max(_values(given, name)) > 100 for name in missing)
        assert recorded <= set(built.counter_units)
        _check_percentages(given, built)


def _check_percentages(given: CounterSet, built: NCUProfileRegionReport) -> None:
    """A share of a peak in a report lies between those of the launches: it is never a sum."""
    shares = {name for name, info in given.metric_info.items() if info.unit == "%"}
    highest = {n: max((a.metrics[n] for a in given.actions if n in a.metrics), default=0.0) for n in shares}
    regions = [region for scope in built.scopes for region in scope.regions]
    shown = [(n, v.value) for r in regions for s in (r.inclusive, r.exclusive) for n, v in s.metrics.items()]
    shown += [(name, value) for one in built.measured for name, value in one.metrics.items()]
    for name, value in shown:
        if name in shares:
            assert value <= highest[name] + 1e-6, name
            assert value <= 100.0 + 1e-6 or highest[name] > 100.0, name
            assert "occupancy" not in name or value <= 100.0, name


def test_results_of_kernels_outside_of_the_regions_are_named() -> None:
    found = report("nsys-*-threads.sqlite", "ncu-*-threads-scope-thread.ncu-rep")
    (said,) = [d.message for d in found.diagnostics if d.code == "COUNTERS_OUTSIDE_REGIONS"]
    assert "2 of 5" in said
    assert sum(one.results for one in found.measured) == 5


def test_a_table_of_counters_takes_no_formula_from_their_names() -> None:
    found = results("ranks-two-processes")
    odd = "=HYPERLINK(1)"
    action = attrs.evolve(found.actions[0], metrics={odd: 1.0})
    info = {**found.metric_info, odd: MetricInfo("=2", "mean")}
    built = build_report([attrs.evolve(found, actions=[action], metric_info=info)], ReportOptions())
    head, row = render_table(measured_table(built)).splitlines()
    assert head.endswith(f",'{odd} [=2]")
    assert row.endswith(",1.0")


# -- what was not counted ---------------------------------------------------------------------------


def test_a_product_whose_tensor_work_was_not_counted_has_no_flops() -> None:
    """The `basic` set tells how busy the tensor pipe was, and counts none of its operations."""
    region = next(r for r in report("ncu-*-decoder-2layers-basic.ncu-rep").scopes[-1].regions if r.depth == 0)
    performance = region.performance
    assert performance is not None
    assert (performance.work.flops, performance.intensity) == (None, None)
    assert any("tensor cores" in text and "not counted" in text for text in performance.work.missing)
    products = [s for s in performance.signatures if s.family == "gemm"]
    assert products
    assert all(s.flops is s.flop_rate is s.intensity is None for s in products)
    assert all(s.shares["tensor"] > 0.5 for s in products)
    # Operations of the CUDA cores were counted: where a copy has none, that is measured.
    copies = [s for s in performance.signatures if s.short_name == "CatArrayBatchedCopy"]
    assert copies
    assert all(s.flops is not None and s.flops.value == 0 for s in copies)
    rows = [line for line in render_region(region).splitlines() if "nvjet" in line and "tensor |" in line]
    assert rows
    assert not any("0 FLOP/s" in row for row in rows)


def test_the_answer_calls_it_the_whole_recording() -> None:
    found = build_report([without_ranges(warm())], ReportOptions()).answer
    assert found.stage == "whole recording"
    assert found.where.startswith("The whole recording takes ")
    assert " of the whole recording." in found.do_first


def test_what_was_not_counted_is_said_in_the_answer() -> None:
    from llm_perf_opt.report.answer import answer

    assert any("Not counted: tensor work" in text for text in answer(report("ncu-*-decoder-2layers-basic.ncu-rep")))
    assert not any("Not counted" in text for text in answer(report(WARM, WARM_RESULTS)))


def test_charts_over_other_launch_configurations_are_no_counters() -> None:
    """ncu gives the sum of such a chart: 3302.7 % occupancy."""
    found = report("ncu-*-decoder-2layers-basic.ncu-rep")
    for region in found.scopes[-1].regions:
        assert not any("pct_occupancy_per" in name for name in region.inclusive.metrics)
        assert "pct_occupancy_per" not in render_sections(region)
    assert "82.9 %" in render_kernels(found)


# -- the plan ---------------------------------------------------------------------------------------


def planned(**given: object) -> CounterPlan:
    plain = without_ranges(warm())
    asked = ProfileRequest(command=["program"], counters=CounterRequest(**given))  # type: ignore[arg-type]
    seen = build_report([plain], ReportOptions(verdicts=False))
    return decide(asked, seen, plain, facts_of({}))


def test_launches_of_a_program_without_ranges_are_chosen_by_signature() -> None:
    plan = planned()
    assert plan.skipped == ""
    for capture in plan.captures:
        assert capture.expressions == ()
        assert (capture.options.filter_mode, capture.options.kernel_name_base) == ("per-launch-config", "mangled")
        assert "--nvtx-include" not in capture.argv(["program"])
    assert plan.table is not None
    assert plan.table.launches == len(warm().kernels)
    assert plan.table.coverage > 0.99


@pytest.mark.parametrize("mode", ["range", "app-range"])
def test_where_there_is_no_range_to_replay_kernels_are(mode: str) -> None:
    plan = planned(options=NcuOptions(replay_mode=mode))
    (capture,) = plan.captures
    assert (capture.options.replay_mode, capture.options.filter_mode) == ("kernel", "per-launch-config")
    assert plan.diagnostics[0].code == "NO_RANGE_TO_REPLAY"
    assert "--nvtx-include" not in capture.argv(["program"])
    by_kernel = planned()
    assert (plan.results, plan.table) == (by_kernel.results, by_kernel.table)
    assert "needs ranges, but the program has none" in describe(plan, ["program"])


@pytest.mark.parametrize("more", [{"options": NcuOptions(replay_mode="application")}, {"gating_nvtx": False}])
def test_no_more_launches_are_predicted_than_will_be_profiled(more: dict[str, Any]) -> None:
    (capture,) = planned(**more).captures
    assert 0 < (capture.expected or 0) <= planned().results


def test_ranges_of_libraries_alone_do_not_keep_a_program_from_being_profiled_whole() -> None:
    """As seen on an H200: of a program with no ranges of its own, the four launches in ranges of CUB got counters."""
    ocr = read(recording("profile-*-ocr.sqlite"), launch_config=True)
    assert isinstance(ocr, Timeline)
    library = ocr.ranges.domain == ocr.domains.index("CCCL")
    assert 0 < library.sum() < len(library)
    columns = attrs.asdict(ocr.ranges, recurse=False)
    left = {name: column[library] if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    plain = attrs.evolve(ocr, ranges=Ranges(**left))
    seen = build_report([plain], ReportOptions(verdicts=False))
    plan = decide(ProfileRequest(command=["program"]), seen, plain, facts_of({}))
    assert plan.table is not None
    assert plan.table.launches == len(plain.kernels)
    assert all(capture.expressions == () for capture in plan.captures)
    assert len(plan.captures) > 0


def test_without_a_filter_for_ranges_nothing_changes_where_there_are_none() -> None:
    (capture,) = planned(gating_nvtx=False).captures
    assert (capture.expressions, capture.options.filter_mode) == ((), "per-launch-config")


def test_instances_of_what_has_no_ranges_are_not_asked_for() -> None:
    (capture,) = planned(sample="middle", options=NcuOptions(set="basic")).captures
    assert (capture.expressions, capture.options.range_filter, capture.options.launch_count) == ((), None, 3)


def test_modules_of_a_program_without_ranges_are_sampled_in_windows_and_the_rest_by_name() -> None:
    """torch is used: marker ranges around its modules are all there are. Launches between them need a capture of their own."""
    found = read_recording(recording("profile-*-ocr.sqlite"), launch_config=True, marker_ranges=True)
    assert isinstance(found, Timeline)
    markers = np.array([name.startswith("llm-perf:") for name in found.strings])[found.ranges.name]
    marked = attrs.evolve(found, ranges=found.ranges.chosen(markers))
    names = zip(marked.ranges.domain.tolist(), marked.ranges.name.tolist(), strict=True)
    counted = Counter((marked.domains[domain], marked.strings[name]) for domain, name in names)
    report = build_report([without_ranges(found)], ReportOptions(verdicts=False))
    request = ProfileRequest(command=["program"])
    alone = decide(request, report, marked, facts_of({}))
    plan = decide(request, report, marked, facts_of({}), {marked.processes[0].pid: dict(counted)})
    inside, outside = plan.captures
    assert inside.windows is not None
    assert outside.windows is None
    assert outside.options.kernel_name is not None
    assert [c.expressions for c in plan.captures] == [(), ()]
    assert [c.name for c in inside.alternatives] == ["run"]
    assert alone.table is not None
    assert plan.table is not None
    assert plan.table.coverage == alone.table.coverage == 1
    assert (plan.table.error or 1) < 0.7 * (alone.table.error or 0)
    assert plan.results < alone.results


# -- from end to end ---------------------------------------------------------------------------------


@pytest.fixture
def plain_file(unpacked: Callable[[Path], Path]) -> Path:
    """An export of nsys without a range in it."""
    file = unpacked(recording(WARM))
    with closing(sqlite3.connect(file)) as db:
        db.execute("DELETE FROM NVTX_EVENTS")
        db.commit()
    return file


def test_ranges_says_that_no_filter_is_needed(plain_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranges", "--json", str(plain_file)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["ranges"]
    assert (found["key"], found["kind"], found["nvtx_include"], found["ncu_options"]) == (WHOLE, "recording", "", [])
    assert main(["ranges", str(plain_file)]) == 0
    text = capsys.readouterr().out
    assert "no filter" in text
    assert "PyTorch" not in text


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_profile_of_a_program_without_ranges_takes_its_counters(
    tmp_path: Path, plain_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in write_tools(tmp_path, timeline=plain_file).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "--no-measure", "--out", "run", "--", sys.executable, "-c", "print()"]) == 0
    assert "--nvtx-include" not in Path("run/ncu/cmd.txt").read_text()
    found = llm_perf_opt.load("run")
    assert found.stages == [WHOLE]
    assert found.main_scope is not None
    (region,) = found.main_scope.regions
    assert region.inclusive.metrics[FLOPS].value > 0
    assert sum(one.results for one in found.data.measured) == 248


# -- ranges that hold little -----------------------------------------------------------------------


def stages_of(path: Path, ranges: list[tuple[str, int, int]], kernels: list[tuple[str, int, int, int]]) -> list[str]:
    return build_report([read_recording(make_export(path, ranges, kernels))], ReportOptions()).stages


def test_where_ranges_hold_little_the_recording_is_the_stage(tmp_path: Path) -> None:
    # A loop that loads data outside its ranges: they hold all GPU work and a third of the time.
    ranges = [("step", 300 * i, 300 * i + 100) for i in range(10)]
    kernels = [("k", 300 * i + 10, 300 * i + 20, 300 * i + 90) for i in range(10)]
    assert stages_of(tmp_path / "a.sqlite", ranges, kernels) == [WHOLE]
    # Work between the ranges.
    between = [("k", 300 * i + 110, 300 * i + 120, 300 * i + 290) for i in range(10)]
    assert stages_of(tmp_path / "b.sqlite", ranges, [*kernels, *between]) == [WHOLE]
    # What comes before the first range (weights, a model) is no part of what is asked about.
    ranges = [("prefill", 100_000, 101_000), ("decode", 101_000, 105_000)]
    kernels = [("k", 101_100, 101_200, 104_900), ("k", 100_100, 100_200, 100_900), ("init", 0, 10, 90_000)]
    assert stages_of(tmp_path / "c.sqlite", ranges, kernels) == ["prefill", "decode"]
    # A program that runs ahead of the GPU: the work of a step ends long after its range.
    ranges = [("step", 100 * i, 100 * i + 10) for i in range(10)]
    kernels = [("k", 100 * i + 5, 100 * i + 50, 100 * i + 149) for i in range(10)]
    assert stages_of(tmp_path / "d.sqlite", ranges, kernels) == ["step"]


def test_beside_ranges_it_holds_what_it_holds_alone() -> None:
    def training() -> Timeline:
        found = read(recording("nsys-*-train.sqlite"))
        assert isinstance(found, Timeline)
        return found

    def whole_of(ranges: Ranges) -> NCUProfileRegion:
        built = build_report([attrs.evolve(training(), ranges=ranges, diagnostics=[])], ReportOptions())
        assert built.main_scope is not None
        return next(region for region in built.main_scope.regions if region.key == WHOLE)

    ranges = training().ranges
    first_and_last = np.isin(ranges.start, (ranges.start.min(), ranges.start.max()))
    beside, alone = whole_of(ranges.chosen(first_and_last)), whole_of(Ranges.empty())
    assert beside.inclusive == alone.inclusive
    assert beside.inclusive.memory.host_count > 0
    assert beside.kernels == alone.kernels
    assert beside.gpu_busy_ns == alone.gpu_busy_ns
    assert beside.performance is not None
    assert alone.performance is not None
    times = [region.performance.time for region in (beside, alone) if region.performance is not None]
    assert times[0].exposed_copies == times[1].exposed_copies
    assert times[0].launches == times[1].launches


def test_without_gpu_work_the_domain_that_takes_longest_has_the_stages() -> None:
    def region(domain: str, name: str, wall_ns: int) -> NCUProfileRegion:
        none = RegionStats(gpu_time_ns=None, kernel_count=0)
        key = f"{domain}@{name}"
        return NCUProfileRegion(name, domain, [name], None, 0, None, 1, 1, none, none, key=key, wall_ns=wall_ns)

    main = [region("LLM", "prefill", 10), region("LLM", "decode", 60)]
    assert choose_stages([region("tokenizer", "encode", 5), *main]) == main


def test_operators_are_no_stages(tmp_path: Path) -> None:
    ranges = [("aten::mm", 100 * i, 100 * i + 100) for i in range(5)]
    kernels = [("k", 100 * i + 5, 100 * i + 10, 100 * i + 90) for i in range(5)]
    found = build_report([read_recording(make_export(tmp_path / "x.sqlite", ranges, kernels))], ReportOptions())
    assert found.stages == [WHOLE]
    assert found.main_scope is not None
    assert [(r.key, r.inclusive.kernel_count) for r in found.main_scope.regions] == [("aten::mm", 5), (WHOLE, 5)]
    assert found.main_scope.totals.unattributed_kernel_count == 0
    assert "RANGES_HOLD_LITTLE" in codes(found)
