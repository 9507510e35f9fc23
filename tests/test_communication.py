"""Communication: exposed against overlapped, and several ranks together, with offsets and lateness known beforehand."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from conftest import SHARED, examples, regions_of, report
from llm_perf_opt.analysis.build import ReportOptions, build_report, with_ranks
from llm_perf_opt.analysis.odd_collectives import odd_in
from llm_perf_opt.analysis.ranks import RankCalls
from llm_perf_opt.analysis.verdicts.communication_costs import Communication, odd_collectives
from llm_perf_opt.regions.columns import UNKNOWN, Timeline
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionPerformance
from llm_perf_opt.regions.table import RegionTable
from test_join_rules import timeline as made

PUBLIC = SHARED / "public"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
here = pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public recordings are not here")


def region(found: NCUProfileRegionReport, key: str) -> NCUProfileRegion:
    return regions_of(found.main_scope)[key]


def evaluated(found: NCUProfileRegionReport, key: str) -> RegionPerformance:
    performance = region(found, key).performance
    assert performance is not None
    return performance


def one(*kernels: tuple[str, int, int], end: int = 1_000_000) -> NCUProfileRegionReport:
    return build_report([made([("step", 0, end)], list(kernels))], ReportOptions())


# -- one rank ----------------------------------------------------------------------------------------------


def test_only_what_runs_beside_no_computation_is_exposed() -> None:
    found = one((GEMM, 0, 400_000), (REDUCE, 300_000, 300_000), (GEMM, 900_000, 90_000))
    assert (region(found, "step").collective_ns, region(found, "step").exposed_collective_ns) == (300_000, 200_000)
    (fix,) = [o for o in found.opportunities if o.rule == "comm.exposed"]
    assert fix.recoverable.of("ns") == 200_000
    assert "200 µs of 1 ms are collectives" in fix.because


def test_hidden_communication_is_no_cost() -> None:
    found = one((GEMM, 0, 950_000), (REDUCE, 100_000, 800_000))
    assert region(found, "step").exposed_collective_ns == 0
    assert evaluated(found, "step").verdict.bound != "communication"
    assert [o for o in found.opportunities if o.rule.startswith("comm.")] == []


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=6)


@given(spans, spans)
def test_exposed_time_moment_by_moment(collectives: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    found = one(*((REDUCE, *span) for span in collectives), *((GEMM, *span) for span in others), end=100)
    moments = {name: np.zeros(120, dtype=bool) for name in ("collective", "other")}
    for name, part in (("collective", collectives), ("other", others)):
        for launch, time in part:
            moments[name][launch + 1 : launch + 1 + time] = True
    step = region(found, "step")
    assert step.collective_ns == moments["collective"].sum()
    assert step.exposed_collective_ns == (moments["collective"] & ~moments["other"]).sum()


def test_nested_regions_have_their_own_part() -> None:
    recording = made(
        [("step", 0, 1_000), ("backward", 100, 500)], [(REDUCE, 200, 100), (GEMM, 250, 100), (REDUCE, 600, 50)]
    )
    found = build_report([recording], ReportOptions())
    exposed = {key: r.exposed_collective_ns for key, r in regions_of(found.main_scope).items()}
    assert exposed == {"step": 100, "step/backward": 50}


def test_one_rank_with_one_odd_collective_is_unsure() -> None:
    usual = [(REDUCE, n * 1_000_000, 150_000) for n in range(1, 8)]
    verdict = evaluated(one(*usual, (REDUCE, 10_000_000, 101_000_000), end=120_000_000), "step").verdict
    assert verdict.title == "unsure: one rank, an all-reduce of 101 ms"
    assert (verdict.bound, verdict.confidence) == ("communication", "low")
    assert "llm-perf report RANK0 RANK1" in verdict.next_step


def test_one_rank_that_waits_once_in_every_step_is_unsure() -> None:
    """One of eight all-reduces in each of four steps: nobody knows whether they wait, but not that the network is slow."""
    kernels = []
    for step in range(4):
        begin = step * 100_000_000
        kernels += [(REDUCE, begin, 62_000_000)]
        kernels += [(REDUCE, begin + 70_000_000 + n * 1_000_000, 150_000) for n in range(7)]
    found = one(*kernels, end=400_000_000)
    verdict = evaluated(found, "step").verdict
    assert verdict.title == "unsure: one rank, an all-reduce of 62 ms, 4 times"
    assert found.opportunities[0].rule == "comm.skew"
    assert found.opportunities[0].recoverable.of("ns") == pytest.approx(4 * 61_850_000)


def test_a_long_collective_in_the_warm_up_says_nothing_about_the_steps_after_it() -> None:
    """NCCL sets up its communicator in the first one, which the kernels of the steady steps do not have."""
    found = one(*((REDUCE, n * 10_000_000, 9_000_000) for n in range(8)), end=80_000_000)
    step, time = region(found, "step"), evaluated(found, "step").time
    assert Communication.of(step, time, None, odd=odd_collectives(REDUCE, [2.9e9], 9e6)).odd is None
    assert Communication.of(step, time, None, odd=odd_collectives(REDUCE, [9e6] * 8, 1e5)).odd is not None


def test_a_message_that_is_larger_may_take_longer() -> None:
    """Sixteen of 8 bytes, and one of 400 MB in each step: its size explains its time, where that is known."""
    sizes, times = [*[8] * 16, 400_000_000] * 4, [*[12_000] * 16, 20_000_000] * 4
    start = np.cumsum([0, *times[:-1]])
    table = RegionTable()
    step = table.intern_path("", ["step"])
    calls = RankCalls(
        *(0, 1, 0, "trace.json", [REDUCE] * len(sizes), start, start + times, start, [np.full(len(sizes), step)]),
        exposed=np.array(times),
        clock=object(),
        bytes=np.array(sizes),
    )
    assert odd_in(calls, table) == {}
    unknown = evolve(calls, bytes=np.full(len(sizes), UNKNOWN))
    assert odd_in(unknown, table)["step"].what == "an all-reduce of 20 ms, 4 times"


def test_messages_of_ever_other_sizes_are_looked_at_in_no_time() -> None:
    """As between experts: twenty thousand calls, and no two of the same size."""
    count, table = 20_000, RegionTable()
    at, step = np.arange(count) * 100_000, table.intern_path("", ["step"])
    took = np.full(count, 20_000)
    took[count // 2] = 2_000_000
    calls = RankCalls(
        *(0, 1, 0, "trace.json", [REDUCE] * count, at, at + took, at, [np.full(count, step)]),
        exposed=took,
        clock=object(),
        bytes=1_000_000 + np.arange(count) * 50,
    )
    began = process_time()
    assert odd_in(calls, table)["step"].what == "an all-reduce of 2 ms"
    assert process_time() - began < 1.5


def test_long_collectives_that_are_alike_are_not_odd() -> None:
    verdict = evaluated(one(*((REDUCE, n * 10_000_000, 9_000_000) for n in range(8)), end=80_000_000), "step").verdict
    assert (verdict.title, verdict.confidence) == ("communication-bound", "high")


# -- several ranks -----------------------------------------------------------------------------------------


def rank(number: int, arrives: list[int], offset: int) -> Timeline:
    """One rank: it comes to the n-th all-reduce at `arrives[n]`; all are through 100 µs after the last. Its clock is off."""
    last = [max(times) for times in zip(*ARRIVALS, strict=True)]
    kernels = [(GEMM, first + 200, 500) for first in arrives]
    kernels += [(REDUCE, first + 1_000, 100_000 + end - first) for first, end in zip(arrives, last, strict=True)]
    step = [("step", 0, last[-1] + 200_000)]
    shifted = made(
        [(name, start + offset, end + offset) for name, start, end in step],
        [(name, start + offset, time) for name, start, time in kernels],
    )
    order = np.argsort(shifted.kernels.start, kind="stable")
    columns = {c: getattr(shifted.kernels, c)[order] for c in ("start", "end", "name", "host_time")}
    return evolve(
        with_ranks(shifted, number), source=f"rank{number}.sqlite", kernels=evolve(shifted.kernels, **columns)
    )


# Rank 1 comes 5 ms late to the second all-reduce; rank 2 1 ms late to the last one.
ARRIVALS = [
    [10_000, 1_010_000, 8_000_000, 9_000_000],
    [10_000, 6_010_000, 8_000_000, 9_000_000],
    [10_000, 1_010_000, 8_000_000, 10_000_000],
]
OFFSETS = [0, 7_000_000_000, -300_000]


@pytest.fixture(scope="module")
def together() -> NCUProfileRegionReport:
    ranks = [rank(n, arrives, offset) for n, (arrives, offset) in enumerate(zip(ARRIVALS, OFFSETS, strict=True))]
    return build_report(ranks, ReportOptions())


def test_clocks_are_aligned_and_the_late_rank_is_named(together: NCUProfileRegionReport) -> None:
    skew = together.ranks
    assert skew is not None
    assert [r.clock_offset_ns for r in skew.ranks] == OFFSETS
    assert (skew.residual_ns, skew.collectives, skew.late) == (0, 4, "rank 1")
    assert [r.waiting_ns for r in skew.ranks] == [6_000_000, 1_000_000, 5_000_000]
    assert [r.caused_waiting_ns for r in skew.ranks] == [0, 5_000_000, 1_000_000]
    assert skew.transfer_ns == 400_000
    (diagnosis,) = [d for d in together.diagnostics if d.code == "RANKS_COMPARED"]
    assert "9 of 10 ends agree within 0 ns" in diagnosis.message


def test_waiting_and_transfer_are_told_apart(together: NCUProfileRegionReport) -> None:
    fixes = {o.rule: o for o in together.opportunities}
    assert fixes["comm.skew"].recoverable.of("ns") == 6_000_000  # of rank 0, which waits for both
    assert "mostly for rank 1" in fixes["comm.skew"].because
    assert fixes["comm.exposed"].recoverable.of("ns") == pytest.approx(400_000)
    verdict = evaluated(together, "step").verdict
    assert (verdict.bound, verdict.title) == ("communication", "waits for a late rank")
    assert "rank 0 waits 6 ms" in verdict.text


def test_ranks_take_their_time_together_and_not_one_after_the_other(together: NCUProfileRegionReport) -> None:
    step, alone = region(together, "step"), regions_of(together.scope("rank:0"))["step"]
    assert (step.wall_ns, step.instances) == (alone.wall_ns, 1)
    assert step.inclusive.kernel_count == 3 * alone.inclusive.kernel_count  # work adds up


def test_each_rank_names_the_one_it_waits_for(together: NCUProfileRegionReport) -> None:
    late = regions_of(together.scope("rank:1"))["step"].performance
    assert late is not None
    (fix,) = [o for o in late.opportunities if o.rule == "comm.skew"]
    assert (fix.recoverable.of("ns"), "mostly for rank 2" in fix.because) == (1_000_000, True)


def test_a_rank_with_more_work_is_found_though_all_take_the_same_time() -> None:
    """Rank 1 computes 4 ms, the others 1 ms and then wait: every step takes as long on all, on the late one a bit longer."""
    ranks = []
    for number in range(3):
        kernels = []
        for step in range(4):
            begin = step * 5_000_000
            work = 4_000_000 if number == 1 else 1_000_000
            kernels += [(GEMM, begin, work), (REDUCE, begin + work, 4_100_000 - work)]
        end = 20_000_000 + (1_000 if number == 1 else 0)
        ranks.append(with_ranks(made([("step", 0, end)], kernels), number))
    found = build_report(ranks, ReportOptions())
    assert found.ranks is not None
    assert found.ranks.late == "rank 1"
    assert found.opportunities[0].rule == "comm.skew"
    assert found.opportunities[0].recoverable.of("ns") == pytest.approx(12_000_000, rel=0.01)


@given(st.integers(0, 2**32), st.integers(2, 8), st.integers(3, 40), st.sampled_from([0, 500, 3_000, 8_000]))
@examples(40)
def test_clocks_with_known_offsets_and_drifts_are_found_within_the_residual(
    seed: int, ranks: int, calls: int, apart: int
) -> None:
    """Within 5 µs beyond what the report says remains; the ends lie up to `apart` ns around where they should."""
    known = np.random.default_rng(seed)
    offsets = np.concatenate([[0], known.integers(-(10**10), 10**10, ranks - 1)])
    drifts = np.concatenate([[0], known.choice([0, 1e-6, 20e-6], ranks - 1)])
    arrives = np.cumsum(known.integers(1_000_000, 9_000_000, calls)) + known.integers(0, 800_000, (ranks, calls))
    ends = arrives.max(axis=0) + 100_000 + known.integers(-apart, apart + 1, (ranks, calls))
    recordings = []
    for number, (offset, drift) in enumerate(zip(offsets.tolist(), drifts.tolist(), strict=True)):
        first, last = ((times[number] * (1 + drift) + offset).astype(np.int64) for times in (arrives, ends))
        kernels = [(REDUCE, begin, end - begin) for begin, end in zip(first.tolist(), last.tolist(), strict=True)]
        one = with_ranks(made([("step", offset, int(last[-1]) + 10_000)], kernels), number)
        recordings.append(evolve(one, source=f"rank{number}.sqlite"))
    skew = build_report(recordings, ReportOptions(verdicts=False)).ranks
    assert skew is not None
    halfway = (ends[0, 0] + ends[0, -1]) / 2
    for rank, offset, drift in zip(skew.ranks, offsets, drifts, strict=True):
        assert abs(rank.clock_offset_ns - offset - drift * halfway) <= 5_000 + skew.residual_ns


def test_ranks_without_collectives_in_common_are_not_compared() -> None:
    mine = with_ranks(made([("step", 0, 1_000)], [(REDUCE, 0, 100), (REDUCE, 200, 100)]), 0)
    other = with_ranks(made([("step", 0, 1_000)], [(GATHER, 0, 100), (REDUCE, 200, 100)]), 1)
    assert build_report([mine, other], ReportOptions()).ranks is None


def test_messages_between_two_ranks_do_not_align_clocks() -> None:
    """The n-th message ends here and there at times that have nothing to do with each other."""
    send = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    shared = [(REDUCE, 50_000_000 * n, 100_000) for n in range(1, 8)]
    mine = [(send, 10_000_000, 10_000), (send, 20_000_000, 10_000)]
    later = [(send, 13_000_000, 10_000), (send, 29_000_000, 10_000)]
    ranks = [
        with_ranks(made([("step", 0, 900_000_000)], sorted(kernels, key=lambda k: k[1])), number)
        for number, kernels in enumerate(([*shared, *mine], [*shared, *later]))
    ]
    found = build_report(ranks, ReportOptions()).ranks
    assert found is not None
    assert (found.collectives, found.late) == (7, None)


# -- recordings of others ----------------------------------------------------------------------------------


@pytest.mark.process
@here
def test_a_training_step_has_88_ms_of_exposed_communication() -> None:
    found = report(PUBLIC / "facebookresearch+HolisticTraceAnalysis+control_control.json.gz")
    assert found.main_scope is not None
    # An independent script (unions of intervals, kernel by kernel) finds 87.92 ms.
    outermost = [r for r in found.main_scope.regions if r.depth == 0]
    assert sum(r.exposed_collective_ns or 0 for r in outermost) == pytest.approx(87.92e6, rel=0.01)


@pytest.mark.process
@here
def test_a_rank_that_comes_late_is_named() -> None:
    traces = sorted(PUBLIC.glob("*gptoss120b_bs-1-*TP-[024]-EXTEND*"))
    found = report(*traces)
    assert found.ranks is not None
    assert found.ranks.late == "rank 2"
    assert [round(r.longest_ns / 1e6, 1) for r in found.ranks.ranks] == [101.2, 0.1, 151.8]
    assert found.ranks.residual_ns < 20_000
    assert found.opportunities[0].rule == "comm.skew"
    assert "rank 2" in found.opportunities[0].text
    alone = evaluated(report(traces[0]), "step[EXTEND bs=1 toks=4096]").verdict
    assert (alone.title, alone.confidence) == ("unsure: one rank, an all-reduce of 101 ms", "low")
