"""Ranks by steps: each step of each rank, its waiting and transfer, the common time, and what a rank does differently."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from llm_perf_opt.analysis.build import ReportOptions, build_report, with_ranks
from llm_perf_opt.analysis.rank_steps import _difference
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.gpu_samples import COLUMNS, GpuSamples
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionStats
from llm_perf_opt.report.accounting import account_line
from llm_perf_opt.report.closing import following_of, next_of
from llm_perf_opt.report.html import render_html
from llm_perf_opt.report.identity import identity
from llm_perf_opt.report.markdown import render_markdown
from llm_perf_opt.report.view import view_of
from test_communication import GEMM, PUBLIC, REDUCE, here, made, report
from test_energy import generations, timeline_of

STEPS, STEP_NS, TRANSFER = 6, 10_000_000, 100_000
Work = Callable[[int, int], list[tuple[str, int, int]]]  # of a rank in a step: kernels, from its start on


def ranks_doing(work: Work, count: int = 3) -> list[Timeline]:
    """Ranks that do some work in each step and meet in an all-reduce at its end; each clock is off."""
    found = []
    for rank in range(count):
        ranges, kernels = [], []
        for step in range(STEPS):
            begin = step * STEP_NS + rank * 5_000_000_000
            done = [max((at + time for _, at, time in work(r, step)), default=0) for r in range(count)]
            ranges.append(("step", begin, begin + STEP_NS - 1_000))
            kernels += [(name, begin + at, time) for name, at, time in work(rank, step)]
            kernels.append((REDUCE, begin + done[rank] + 1_000, max(done) - done[rank] + TRANSFER))
        found.append(evolve(with_ranks(made(ranges, kernels), rank), source=f"rank{rank}.sqlite"))
    return found


def report_of(work: Work, count: int = 3) -> NCUProfileRegionReport:
    return build_report(ranks_doing(work, count), ReportOptions())


def why(report: NCUProfileRegionReport) -> list[str]:
    assert report.rank_steps is not None
    return [row.why for row in report.rank_steps.ranks]


def test_each_step_of_each_rank_with_its_waiting_and_transfer() -> None:
    def work(rank: int, step: int) -> list[tuple[str, int, int]]:
        return [(GEMM, 0, 3_000_000 if (rank, step) == (1, 2) else 1_000_000)]

    report = report_of(work)
    steps = report.rank_steps
    assert steps is not None
    assert (steps.region, steps.all_steps, len(steps.ranks)) == ("step", STEPS, 3)
    assert steps.common_ns == [STEP_NS - 1_000] * STEPS
    for row in steps.ranks:
        assert row.transfer_ns == pytest.approx([TRANSFER] * STEPS, abs=2_000)
        waits = [0, 0, 2_000_000 if row.rank != 1 else 0, 0, 0, 0]
        assert row.waiting_ns == pytest.approx(waits, abs=2_000)
    codes = {one.code: one.message for one in report.diagnostics}
    assert codes["RANK_STEPS"].startswith("3 ranks run step 6 times; a steady instance takes")


def test_two_steps_of_the_program_are_better_than_many_operators() -> None:
    ranks = []
    for rank in range(2):
        ranges, kernels = [], []
        for step in range(2):
            begin = step * STEP_NS
            ranges.append(("step", begin, begin + 5_000_000))
            ranges += [("aten::mm", begin + n * 1_000_000, begin + n * 1_000_000 + 800_000) for n in range(5)]
            kernels += [(GEMM, begin + n * 1_000_000 + 1_000, 1_600_000) for n in range(5)]
            kernels.append((REDUCE, begin + 8_100_000, TRANSFER))
        ranks.append(evolve(with_ranks(made(ranges, kernels), rank), source=f"rank{rank}.sqlite"))
    report = build_report(ranks, ReportOptions())
    assert report.rank_steps is not None
    assert (report.rank_steps.region, report.rank_steps.all_steps) == ("step", 2)


def test_what_the_late_rank_does_differently_is_part_of_the_answer() -> None:
    """And that it is late in one step alone, as one that writes a checkpoint."""

    def work(rank: int, step: int) -> list[tuple[str, int, int]]:
        return [(GEMM, 0 if (rank, step) != (1, 2) else 8_000_000, 1_000_000)]

    why = report_of(work).answer.why
    assert "What rank 1 does differently: its GPU waits" in why
    assert why.endswith("; 90 % of the waiting is in 1 of 6 steps.")


def test_of_ranks_that_are_late_by_turns_none_is_named() -> None:
    def work(rank: int, step: int) -> list[tuple[str, int, int]]:
        return [(GEMM, 0, 9_000_000 if rank == step % 3 else 5_000_000)]

    answer = report_of(work).answer
    assert "does differently" not in answer.why
    assert "by turns for all" in answer.fixes[0].because
    assert "rank 1" not in answer.do_first


def test_a_rank_that_computes_longer_is_what_to_look_at_first() -> None:
    """Its own times are those of the answer, for it takes longest; it waits for nobody."""

    def work(rank: int, step: int) -> list[tuple[str, int, int]]:
        return [(GEMM, 0, 9_000_000 if rank == 1 else 6_000_000)]

    ranks = ranks_doing(work)
    for number in (0, 2):
        ranges = ranks[number].ranges
        ranks[number] = evolve(ranks[number], ranges=evolve(ranges, end=ranges.end - 1_500_000))
    report = build_report(ranks, ReportOptions())
    assert report.answer.fixes[0].rule == "comm.skew"
    assert report.answer.fixes[0].gain_ns == pytest.approx(3_000_000, rel=0.02)
    assert "Rank 1 computes 9 ms of each step, the others 6 ms, and wait" in report.answer.fixes[0].because


def test_the_common_time_is_that_of_the_slowest() -> None:
    ranks = ranks_doing(lambda rank, step: [(GEMM, 0, 1_000)])
    ranges = ranks[2].ranges
    longer = ranges.end.copy()
    longer[3] += 800
    ranks[2] = evolve(ranks[2], ranges=evolve(ranges, end=longer))
    steps = build_report(ranks, ReportOptions()).rank_steps
    assert steps is not None
    assert steps.common_ns[3] == STEP_NS - 200
    assert steps.common_median_ns == STEP_NS - 1_000


def test_more_work_slower_kernels_and_a_slower_host_are_told_apart() -> None:
    assert why(report_of(lambda rank, step: [(GEMM, n * 500_000, 400_000) for n in range(8 if rank == 1 else 4)])) == [
        "",
        "more work: 8 kernels in a step, usually 4; they take 1.6 ms longer",
        "",
    ]
    slower = report_of(lambda rank, step: [(GEMM, 0, 3_000_000 if rank == 2 else 1_000_000)])
    assert why(slower) == [
        "",
        "",
        "the same number of kernels take 2 ms longer in a step: larger inputs, or a slower GPU",
    ]
    assert "rank 2: the same number" in next(d.message for d in slower.diagnostics if d.code == "RANKS_DIFFER")
    host = why(report_of(lambda rank, step: [(GEMM, 2_000_000 if rank == 0 else 0, 1_000_000)]))
    assert host[0].startswith("its GPU waits")
    assert host[0].endswith("longer in a step for its host")
    assert host[1:] == ["", ""]


def test_of_two_ranks_each_is_held_against_the_other() -> None:
    """And not against what is halfway between them."""
    assert why(report_of(lambda rank, step: [(GEMM, 0, 3_000_000 if rank else 1_000_000)], count=2))[1] == (
        "the same number of kernels take 2 ms longer in a step: larger inputs, or a slower GPU"
    )


def test_a_part_that_one_rank_alone_has_is_named() -> None:
    ranks = []
    for rank in range(2):
        ranges = [("step", n * STEP_NS, n * STEP_NS + STEP_NS - 1_000) for n in range(STEPS)]
        ranges += [("forward", n * STEP_NS + 1_000, n * STEP_NS + 2_000_000) for n in range(STEPS)]
        if rank:
            ranges += [("checkpoint", n * STEP_NS + 3_000_000, n * STEP_NS + 9_000_000) for n in range(0, STEPS, 2)]
        ranks.append(evolve(with_ranks(made(ranges, []), rank), source=f"rank{rank}.sqlite"))
    found = why(build_report(ranks, ReportOptions()))
    assert found == ["", "checkpoint, which no other rank has, takes 3 ms of a step"]


def test_who_waits_in_a_collective_is_not_said_to_differ() -> None:
    """Ranges alone: the rank that comes early is longer in the all-reduce, because the other one is late."""
    ranks = []
    for rank in range(2):
        data = 6_000_000 if rank else 1_000_000
        ranges = []
        for begin in range(0, STEPS * STEP_NS, STEP_NS):
            ranges += [("step", begin, begin + STEP_NS - 1_000), ("data", begin, begin + data)]
            ranges += [("all_reduce", begin + data, begin + 7_000_000)]
        ranks.append(evolve(with_ranks(made(ranges, []), rank), source=f"rank{rank}.sqlite"))
    assert why(build_report(ranks, ReportOptions())) == ["", "data takes 6 ms, usually 1 ms"]


def test_a_gpu_that_waits_for_its_host_names_the_part_in_which_it_does() -> None:
    ranks = ranks_doing(lambda rank, step: [(GEMM, 3_000_000 if rank == 1 else 100_000, 1_000_000)])
    for number, one in enumerate(ranks):
        ranges = one.ranges
        longer = 3_000_000 if number == 1 else 100_000
        parts = [("data", begin, begin + longer) for begin in ranges.start.tolist()]
        steps = [("step", *span) for span in zip(ranges.start.tolist(), ranges.end.tolist(), strict=True)]
        kernels = zip(one.kernels.name.tolist(), one.kernels.start.tolist(), one.kernels.end.tolist(), strict=True)
        again = made(
            sorted([*steps, *parts], key=lambda own: own[1]), [(one.strings[n], a, b - a) for n, a, b in kernels]
        )
        ranks[number] = evolve(with_ranks(again, number), source=one.source)
    found = why(build_report(ranks, ReportOptions()))
    assert found[0] == found[2] == ""
    assert found[1].endswith("longer in a step for its host: data takes 3 ms, usually 100 µs")


def test_one_that_started_late_is_told_by_the_first_step() -> None:
    """Even in a loop: the others waited for it once, and never again."""
    ranks = []
    for rank in range(3):
        begin, late = rank * 10**9, 50_000_000
        start, end = begin + (late if rank == 2 else 0), begin + late + 10_000_000
        ranges, kernels = (
            [("step", start, end)],
            [(GEMM, start, 1_000_000), (REDUCE, start + 1_000_000, end - start - 1_500_000)],
        )
        for step in range(1, STEPS):
            start = end + 1_000 * step * step
            end = start + STEP_NS
            ranges.append(("step", start, end))
            kernels += [(GEMM, start, 1_000_000), (REDUCE, start + 1_000_000, 2_000_000)]
        ranks.append(evolve(with_ranks(made(ranges, kernels), rank), source=f"rank{rank}.sqlite"))
    found = why(build_report(ranks, ReportOptions()))
    assert found == ["", "", "starts 50 ms after rank 0"]


def test_a_time_that_nobody_knows_is_not_compared_as_if_it_were_nothing() -> None:
    """As of a part that only the capture of a graph tells of: it has no range of its own on that rank."""

    def part(wall_ns: int | None) -> NCUProfileRegion:
        steps = (STEPS, RegionStats(None, 0), RegionStats(None, 0))
        return NCUProfileRegion("layer", "", ["step", "layer"], "step", 1, None, None, *steps, wall_ns=wall_ns)

    def told(*layers: int | None) -> list[str]:
        step = evolve(part(STEPS * STEP_NS), name="step", path=["step"], parent=None, depth=0)
        ranks = {n: {"step": step, "step/layer": part(wall)} for n, wall in enumerate(layers)}
        return [_difference(rank, "step", ranks, in_turn=False) for rank in ranks]

    took = STEPS * 3_000_000
    assert told(took, None) == ["", ""]
    assert told(took, None, took) == ["", "", ""]
    assert told(2 * took, None, took) == ["layer takes 6 ms, usually 3 ms", "", ""]


def test_where_only_ranges_were_timed_the_ranks_that_differ_are_what_to_look_at_first() -> None:
    ranks = []
    for rank in range(3):
        took = 8_000_000 if rank == 1 else 2_000_000
        ranges = [("step", n * STEP_NS, n * STEP_NS + STEP_NS - 1_000) for n in range(STEPS)]
        ranges += [("data", n * STEP_NS + 1_000, n * STEP_NS + took) for n in range(STEPS)]
        ranks.append(evolve(with_ranks(made(ranges, []), rank), source=f"rank{rank}.sqlite"))
    answer = build_report(ranks, ReportOptions()).answer
    assert answer.do_first.startswith("Look at how ranks differ in step: rank 1: data takes 8 ms, usually 2 ms.")
    assert "llm-perf profile" in answer.do_first
    assert "differently" not in build_report([ranks[0], ranks[2]], ReportOptions()).answer.do_first
    # A rank alone would wait for the others: its launcher has to start it.
    found = build_report(ranks, ReportOptions())
    ran = evolve(found, environment=found.environment | {"run": {"workload": ["python", "train.py"], "state": "done"}})
    launched = "in place of llm-perf measure, under the same launcher"
    assert next_of(ran, Path("run")) == f"{launched}: llm-perf profile -- python train.py"
    assert identity(view_of(ran)) == ["10 ms per step"]
    assert (following := following_of(ran)) is not None
    assert (following.command, launched in following.why) == ("llm-perf profile -- python train.py", True)
    # One llm-perf that starts torchrun itself has the times of all ranks in one file.
    inside = evolve(ran, inputs=ran.inputs[:1])
    assert next_of(inside, Path("run")) == "llm-perf profile -- python train.py"
    assert (following := following_of(inside)) is not None
    assert launched not in following.why


def test_time_of_ranks_side_by_side_is_accounted_for_over_all_of_them() -> None:
    """A stage has the time of the rank that took longest, here another one for each stage."""
    ranks = []
    for rank in range(2):
        took = (6_000_000, 2_000_000) if rank else (2_000_000, 6_000_000)
        ranges = []
        for n in range(STEPS):
            ranges += [("load", n * STEP_NS, n * STEP_NS + took[0])]
            ranges += [("compute", n * STEP_NS + took[0], n * STEP_NS + sum(took))]
        ranks.append(evolve(with_ranks(made(ranges, []), rank), source=f"rank{rank}.sqlite"))
    assert "in other ranges" not in account_line(view_of(build_report(ranks, ReportOptions())))


def test_a_slower_clock_is_the_reason_where_somebody_looked() -> None:
    """Rank 1 is at 1.2 GHz, and rank 2 too, while it waits; rank 0 needs longer at the clock of the others."""

    def clocked(rank: int, of: Timeline, least: int, most: int) -> Timeline:
        at = np.linspace(of.ranges.start.min(), of.ranges.end.max(), 100).astype(np.int64)
        columns = {name: np.zeros(len(at), dtype=np.int64) for name in COLUMNS}
        columns |= {"time": at, "sm_mhz": np.where(np.arange(len(at)) % 2, most, least)}
        limits = {"power_limit_mw": -1, "max_sm_mhz": 1980}
        return evolve(of, gpus=[GpuSamples(run=0, uuid=f"GPU-{rank}", name="H200", **limits, **columns)])

    times = (2_500_000, 3_000_000, 1_000_000, 1_000_000)
    ranks = ranks_doing(lambda rank, step: [(GEMM, 0, times[rank])], count=4)
    clocks = [(1_980, 1_980), (1_200, 1_200), (1_200, 1_980), (1_980, 1_980)]
    found = why(build_report([clocked(n, of, *clocks[n]) for n, of in enumerate(ranks)], ReportOptions()))
    assert found[0].endswith("larger inputs, or a slower GPU")
    assert found[1].endswith("larger inputs, or a slower GPU; its GPU runs at 1,200 MHz, usually 1,980 MHz")
    assert found[2:] == ["", ""]


def test_each_rank_has_its_own_memory_and_energy() -> None:
    """Rank 1 draws twice the power, and holds 3 GB where rank 0 holds 1 GB."""
    rows = [row for row in generations() if row[0] != "step"]
    ranks = []
    for rank in range(2):
        watts = {"": 100.0, "prefill": 300.0 * (rank + 1), "decode": 150.0 * (rank + 1)}
        measured = with_ranks(timeline_of(rows, 24, watts), rank)
        peak = np.full(len(rows), (2 * rank + 1) * 10**9, dtype=np.int64)
        ranks.append(evolve(measured, source=f"rank-{rank}/run.json", ranges=evolve(measured.ranges, memory_peak=peak)))
    report = build_report(ranks, ReportOptions())
    assert report.rank_steps is not None
    assert report.rank_steps.region == "decode"
    assert [row.memory_peak_bytes for row in report.rank_steps.ranks] == [10**9, 3 * 10**9]
    assert [row.energy_j for row in report.rank_steps.ranks] == pytest.approx([0.5 * 150, 0.5 * 300], rel=0.05)
    text = render_markdown(view_of(report))
    assert "memory peak | energy a step" in text[text.index("## Ranks") :].partition("##")[2]


def test_ranks_that_do_the_same_differ_in_nothing() -> None:
    report = report_of(lambda rank, step: [(GEMM, 0, 1_000_000)], count=4)
    assert why(report) == [""] * 4
    assert "RANKS_DIFFER" not in {one.code for one in report.diagnostics}


def test_one_rank_has_no_steps_to_compare() -> None:
    (alone,) = ranks_doing(lambda rank, step: [(GEMM, 0, 1_000)], count=1)
    assert build_report([alone], ReportOptions()).rank_steps is None


def test_the_page_and_the_text_have_the_ranks() -> None:
    report = report_of(lambda rank, step: [(GEMM, 0, 3_000_000 if rank == 2 else 1_000_000)])
    view = view_of(report)
    page, text = render_html(view), render_markdown(view)
    assert 'id="rank-matrix"' in page
    assert [part for part in ("time", "waiting", "transfer") if f'data-rank-measure="{part}"' in page] == [
        "time", "waiting", "transfer",
    ]  # fmt: skip
    (row,) = [line for line in text.splitlines() if line.startswith("| 2 |")]
    assert "| 0 ns | 100 µs | +10 s | the same number of kernels take 2 ms longer" in row  # it waits for nobody
    assert "memory peak" not in text[text.index("## Ranks") :].partition("##")[0]  # nobody measured it
    alone = build_report(ranks_doing(lambda rank, step: [(GEMM, 0, 1_000)], count=1), ReportOptions())
    assert 'id="rank-matrix"' not in render_html(view_of(alone))


@pytest.mark.process
@pytest.mark.slow
@here
def test_ranks_of_a_server_that_start_later_are_told_from_slow_ones() -> None:
    """One prompt on four of eight ranks: what each waits for is that two of them begin it 150 ms later."""
    files = sorted(PUBLIC.glob("sgl-project+sglang+gptoss120b_bs-1-*-TP-[0124]-EXTEND.trace.json.gz"))
    starts, took = {}, {}
    for rank, file in zip((0, 1, 2, 4), files, strict=True):  # read here by other means
        with gzip.open(file) as text:
            events = json.load(text)["traceEvents"]
        (step,) = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("step[EXTEND")]
        starts[rank], took[rank] = step["ts"], step["dur"]
    found = report(*files)
    assert found.rank_steps is not None
    assert {row.rank: row.times_ns[0] / 1e3 for row in found.rank_steps.ranks} == pytest.approx(took, rel=1e-4)
    assert found.rank_steps.common_ns[0] / 1e3 == pytest.approx(max(took.values()), rel=1e-4)
    later = {rank: (start - starts[4]) / 1e3 for rank, start in starts.items()}
    whys = {row.rank: row.why for row in found.rank_steps.ranks}
    assert (whys[0], whys[4]) == ("", "")
    assert (whys[1], whys[2]) == (f"starts {later[1]:.0f} ms after rank 4", f"starts {later[2]:.0f} ms after rank 4")


def test_a_rank_of_a_job_leads_to_its_own_report() -> None:
    found = report_of(lambda rank, step: [(GEMM, 0, 1_000_000)])
    in_job = evolve(found, inputs=[{"path": f"rank-{rank}/run.sqlite", "kind": "nsys-sqlite"} for rank in range(3)])
    assert '<a href="ranks/rank-2/report.html">' in render_html(view_of(in_job))
    assert "ranks/rank-2/report.html" not in render_html(view_of(found))  # recordings, and no folder of a job
