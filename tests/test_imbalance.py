"""Experts with unequally many tokens, and bubbles of a pipeline, from schedules that are known."""

from __future__ import annotations

import pytest
from attrs import evolve

from llm_perf_opt.analysis.build import ReportOptions, build_report, with_ranks
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.html import render_html
from llm_perf_opt.report.markdown import render_markdown
from llm_perf_opt.report.view import view_of
from test_communication import GEMM, made

SENDS = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_TO_ALL = "void deep_ep::intranode::{}<__nv_bfloat16, 8>(int)"
MS, STEPS = 1_000_000, 5


def job(ranks: list[tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]]) -> NCUProfileRegionReport:
    """Ranges and kernels of each rank; clocks are ten seconds apart."""
    found: list[Timeline] = []
    for rank, (ranges, kernels) in enumerate(ranks):
        off = rank * 10_000 * MS
        moved = made([(n, a + off, b + off) for n, a, b in ranges], [(n, at + off, took) for n, at, took in kernels])
        found.append(evolve(with_ranks(moved, rank), source=f"rank{rank}.sqlite"))
    return build_report(found, ReportOptions())


def pipeline(stages: int, batches: int, times: list[int]) -> NCUProfileRegionReport:
    """Forward passes: a stage begins a micro-batch when the one before has sent it, and it is done with its last."""
    sending = MS // 50
    ranks: list[tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]] = [([], []) for _ in range(stages)]
    begin = 0
    for _ in range(STEPS):
        free, arrived = [begin] * stages, [begin] * batches
        for stage in range(stages):
            for batch in range(batches):
                start = max(free[stage], arrived[batch])
                ranks[stage][1].append((GEMM, start, times[stage]))
                ranks[stage][1].append((SENDS, start + times[stage], sending))
                free[stage] = arrived[batch] = start + times[stage] + sending
        end = max(free)
        for stage in range(stages):
            ranks[stage][0].append(("step", begin, end))
        begin = end + MS
    return job(ranks)


def test_bubbles_of_a_pipeline_with_equal_stages() -> None:
    """All but 8 of 11 slots are used: (stages - 1) of (batches + stages - 1) are bubble, and the sending."""
    report = pipeline(4, 8, [MS] * 4)
    (found,) = report.imbalance
    slot = MS + MS // 50
    assert (found.kind, found.sections, found.common_ns) == ("stages", STEPS, 11 * slot)
    assert found.lost_share == pytest.approx(1 - 8 * MS / (11 * slot), abs=1e-3)
    assert found.uneven_share == pytest.approx(0, abs=1e-6)
    said = next(one.message for one in report.diagnostics if one.code == "PIPELINE_BUBBLES")
    assert "29 % of their GPU time in step (11.2 ms) is bubble" in said
    assert report.rank_steps is not None
    assert [row.computing_ns for row in report.rank_steps.ranks] == [8 * MS] * 4


def test_a_stage_that_has_more_to_do_is_named() -> None:
    report = pipeline(4, 8, [MS, MS, 2 * MS, MS])
    (found,) = report.imbalance
    assert found.most == "rank 2"
    assert found.uneven_share == pytest.approx((16 - 10) * MS / found.common_ns, abs=1e-3)
    assert [load.time_ns for load in found.ranks] == [8 * MS, 8 * MS, 16 * MS, 8 * MS]
    text = render_markdown(view_of(report))
    assert "Stages of a pipeline, computing in a step" in text
    assert "rank 2 16 ms" in text
    assert "Stages of a pipeline, computing in a step" in render_html(view_of(report))


def receiving(batches: int, times: list[int]) -> NCUProfileRegionReport:
    """The same where a stage waits for the one before in a kernel that receives, as NCCL does; each ends its step alone."""
    sending = MS // 50
    ranks: list[tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]] = [([], []) for _ in times]
    begin = 0
    for _ in range(STEPS):
        free, arrived = [begin] * len(times), [begin] * batches
        for stage, (time, (ranges, kernels)) in enumerate(zip(times, ranks, strict=True)):
            for batch in range(batches):
                if stage:
                    got = max(free[stage], arrived[batch] - sending) + sending
                    kernels.append((SENDS, free[stage], got - free[stage]))
                    free[stage] = got
                kernels.append((GEMM, free[stage], time))
                free[stage] += time
                if stage < len(times) - 1:
                    kernels.append((SENDS, free[stage], sending))
                    free[stage] += sending
                arrived[batch] = free[stage]
            ranges.append(("step", begin, free[stage]))
        begin = max(free) + MS
    return job(ranks)


@pytest.mark.parametrize("times", [[MS, MS, 2 * MS, MS], [2 * MS, MS, MS, MS], [MS, MS, MS, 2 * MS], [MS, 2 * MS]])
@pytest.mark.parametrize("waits", ["with idle GPUs", "in kernels that receive"])
def test_what_to_do_first_names_the_stage_that_the_others_wait_for(waits: str, times: list[int]) -> None:
    """Whichever it is, and however the others wait; what is to be won is what it computes beyond the average."""
    report = pipeline(len(times), 8, times) if waits == "with idle GPUs" else receiving(8, times)
    late = f"rank {times.index(2 * MS)}"
    assert report.answer.stage == "step"
    assert f"{late} computes for 16 ms of each step" in report.answer.why
    assert report.answer.do_first.startswith(f"Give {late} less of the model")
    first = report.answer.fixes[0]
    assert first.rule == "comm.skew"
    assert first.gain_ns == pytest.approx(8 * (max(times) - sum(times) / len(times)), rel=0.01)
    assert sum(fix.gain_share for fix in report.answer.fixes) <= 1
    # No host is slow because its GPU waits for another stage.
    assert not any("for its host" in one.message for one in report.diagnostics if one.code == "RANKS_DIFFER")


def test_of_even_stages_none_is_named() -> None:
    for report in (pipeline(4, 8, [MS] * 4), receiving(8, [MS] * 4)):
        assert [fix for fix in report.answer.fixes if fix.rule == "comm.skew"] == []
        assert report.answer.verdict == "gpu"
        told = next(one.message for one in report.diagnostics if one.code == "PIPELINE_BUBBLES")
        assert told.endswith("all have about the same work.")


def test_clocks_are_not_aligned_by_messages_of_a_pipeline() -> None:
    """Stages that begin a slot later each send at equal intervals, as one with a clock that is off would."""
    assert pipeline(4, 8, [MS] * 4).ranks is None
    assert receiving(8, [MS] * 4).ranks is None


def experts(times: list[int]) -> NCUProfileRegionReport:
    """Dispatch, experts, combine, attention; all wait in combine for the last."""
    longest, ranks = max(times), []
    for own in times:
        ranges, kernels, at = [], [], 0
        for _ in range(STEPS):
            ranges.append(("step", at, at + longest + 3 * MS))
            kernels.append((ALL_TO_ALL.format("dispatch"), at, MS // 2))
            kernels.append((GEMM, at + MS // 2, own))
            kernels.append((ALL_TO_ALL.format("combine"), at + MS // 2 + own, longest - own + MS // 2))
            kernels.append((GEMM, at + longest + MS, MS))
            at += longest + 2 * MS
            ranges[-1] = ("step", ranges[-1][1], at)
        ranks.append((ranges, kernels))
    return job(ranks)


def test_experts_with_more_tokens_are_named() -> None:
    report = experts([MS, MS, 3 * MS, MS])
    (found,) = report.imbalance
    assert (found.kind, found.sections, found.common_ns, found.most) == ("experts", STEPS, 3 * MS, "rank 2")
    assert found.lost_share == pytest.approx(1 - 1.5 / 3, abs=1e-6)
    assert [load.time_ns for load in found.ranks] == [MS, MS, 3 * MS, MS]
    said = next(one.message for one in report.diagnostics if one.code == "EXPERTS_UNEVEN")
    assert "wait for the slowest 5 times" in said
    assert "50 % of their GPU time" in said
    assert "rank 2 has the most work" in said


def test_experts_that_are_balanced_need_no_word() -> None:
    report = experts([2 * MS] * 4)
    assert "EXPERTS_UNEVEN" not in {one.code for one in report.diagnostics}
    assert [one.lost_share for one in report.imbalance] == [pytest.approx(0, abs=1e-6)]


def test_ranks_that_only_reduce_have_neither() -> None:
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    kernels = [(name, n * MS + at, MS // 4) for n in range(6) for name, at in ((GEMM, 0), (reduce, MS // 2))]
    assert job([([("step", 0, 6 * MS)], kernels)] * 2).imbalance == []


def test_all_to_alls_of_a_split_sequence_are_not_of_experts() -> None:
    kernels = [(SENDS, n * MS, MS // 4) for n in range(8)] + [(GEMM, n * MS + MS // 2, MS // 4) for n in range(8)]
    spans = [("attention", 0, 9 * MS)] + [("all_to_all", n * MS - 1, n * MS + 2) for n in range(1, 8)]
    assert [one.kind for one in job([(spans, kernels)] * 2).imbalance if one.kind == "experts"] == []
    spans = [("moe_layer", 0, 9 * MS)] + [("all_to_all", n * MS - 1, n * MS + 2) for n in range(8)]
    assert [one.kind for one in job([(spans, kernels)] * 2).imbalance] == ["experts"]
