"""Which collectives of several ranks are the same: recordings that begin later or lack steps, groups of some of the ranks, jobs that were mixed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from llm_perf_opt.analysis.build import ReportOptions, build_report, with_ranks
from llm_perf_opt.analysis.matched_calls import Calls, MatchedCalls, match_calls
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.collective_messages import Messages
from llm_perf_opt.regions.columns import UNKNOWN, Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from test_communication import GEMM, REDUCE, made

STEPS, TRANSFER = 14, 200_000
Event = tuple[str, int, int]


class Job:
    """Ranks that compute and reduce twice in each step; each by its own clock, and how long they compute varies."""

    def __init__(self, ranks: int, slow: int | None, groups: Sequence[Sequence[Sequence[int]]], seed: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.offset = random.integers(-(10**9), 10**9, ranks) + 10**10
        self.steps: list[list[tuple[Event, list[Event], list[str]]]] = [[] for _ in range(ranks)]
        now = np.zeros(ranks, dtype=np.int64)
        for _ in range(STEPS):
            begin, kernels, members = now.copy(), [[] for _ in range(ranks)], [[] for _ in range(ranks)]  # type: ignore[var-annotated]
            for groups_now in groups:
                done = now + 1_000_000 + random.integers(0, 20_000, ranks)
                if slow is not None:
                    done[slow] += 500_000
                for group in groups_now:
                    end = int(done[list(group)].max()) + TRANSFER
                    for rank in group:
                        last = end + int(random.integers(0, 1_500))
                        kernels[rank] += [(GEMM, int(now[rank]), int(done[rank] - now[rank]))]
                        kernels[rank] += [(REDUCE, int(done[rank]), last - int(done[rank]))]
                        members[rank] += ["", str(list(group))]
                        now[rank] = last
            for rank in range(ranks):
                span = ("step", int(begin[rank]), int(now[rank] - begin[rank]))
                self.steps[rank].append((span, kernels[rank], members[rank]))
                now[rank] += 100_000

    def recording(self, rank: int, which: Sequence[int], named: bool = False) -> Timeline:
        ranges, kernels, groups = [], [], []
        for step in which:
            (name, begin, took), work, members = self.steps[rank][step]
            at = int(self.offset[rank])
            ranges.append((name, at + begin, at + begin + took))
            kernels += [(kernel, at + start, time) for kernel, start, time in work]
            groups += members
        timeline = with_ranks(made(ranges, kernels), rank)
        if named:
            strings = [*timeline.strings, *dict.fromkeys(group for group in groups if group)]
            messages = Messages.of(
                [
                    (at, 1_000_000, len(json.loads(group)), strings.index(REDUCE), strings.index(group))
                    for at, group in enumerate(groups)
                    if group
                ]
            )
            timeline = evolve(timeline, strings=strings, messages=messages)
        return evolve(timeline, source=f"rank{rank}.sqlite")

    def is_aligned(self, report: NCUProfileRegionReport) -> bool:
        assert report.ranks is not None
        truth = {n: int(offset - self.offset[0]) for n, offset in enumerate(self.offset)}
        return all(abs(one.clock_offset_ns - truth[one.rank or 0]) < 5_000 for one in report.ranks.ranks)


def codes(report: NCUProfileRegionReport) -> dict[str, str]:
    return {one.code: one.message for one in report.diagnostics}


@pytest.mark.parametrize(
    ("windows", "common"),
    [
        ([range(2, 12), range(4, 14), range(3, 13)], 8),  # as many steps of each, and not the same ones
        ([range(STEPS), range(STEPS), range(10)], 10),  # one was cut
        ([range(STEPS), [*range(5), *range(7, STEPS)], range(STEPS)], 12),  # two steps are missing
        ([range(4, STEPS), range(STEPS), range(STEPS)], 10),  # the first began later
    ],
)
def test_recordings_of_other_steps_are_compared_over_those_that_all_have(
    windows: list[Sequence[int]], common: int
) -> None:
    job = Job(3, 1, [[[0, 1, 2]], [[0, 1, 2]]])
    report = build_report([job.recording(rank, which) for rank, which in enumerate(windows)], ReportOptions())
    assert job.is_aligned(report)
    assert report.ranks is not None
    assert (report.ranks.collectives, report.ranks.late) == (2 * common, "rank 1")
    assert report.ranks.transfer_ns == pytest.approx(2 * common * TRANSFER, rel=0.02)
    steps = report.rank_steps
    assert steps is not None
    assert steps.all_steps == common
    shared = sorted(set.intersection(*map(set, windows)))
    for row in steps.ranks:
        assert row.times_ns == [job.steps[row.rank][step][0][2] for step in shared]
        assert row.waiting_ns == pytest.approx([0 if row.rank == 1 else 1_000_000] * common, abs=60_000)


def test_groups_of_some_of_the_ranks_align_all_clocks() -> None:
    """As with HSDP: parameters are sharded among some, gradients reduced among others. No collective has all ranks."""
    shards, replicas = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]
    job = Job(8, 6, [shards, replicas])
    report = build_report([job.recording(rank, range(STEPS), named=True) for rank in range(8)], ReportOptions())
    assert job.is_aligned(report)
    assert report.ranks is not None
    assert (report.ranks.late, report.ranks.collectives, report.ranks.residual_ns < 5_000) == (
        "rank 6",
        6 * STEPS,
        True,
    )
    # Rank 0 waits for rank 4, which was held up by rank 6.
    assert "comm.skew" in [one.rule for one in report.opportunities]
    text = next(one.text for one in report.opportunities if one.rule == "comm.skew")
    assert "rank 6" in text
    assert "larger inputs, or a slower GPU" in text
    assert "RANKS_NOT_ALIGNED" not in codes(report)


def test_calls_of_other_times_that_happen_to_fit_are_not_said_to_be_the_same() -> None:
    """Seven steps each, none of them common: of fourteen calls, some always lie at about the same distances."""
    job = Job(2, 1, [[[0, 1]], [[0, 1]]])
    report = build_report([job.recording(0, range(7)), job.recording(1, range(7, 14))], ReportOptions())
    assert report.ranks is None or report.ranks.by_order


def test_ranks_without_a_step_in_common_are_compared_by_their_collectives_alone() -> None:
    job = Job(3, 2, [[[0, 1]], [[1, 2]]])
    windows = range(6), range(2, 12), range(8, 14)
    report = build_report([job.recording(rank, w, named=True) for rank, w in enumerate(windows)], ReportOptions())
    assert job.is_aligned(report)
    assert report.ranks is not None
    assert (report.ranks.collectives, report.rank_steps) == (8, None)


def test_where_nobody_says_who_takes_part_ranks_are_not_compared() -> None:
    job = Job(8, 6, [[[0, 1, 2, 3], [4, 5, 6, 7]]])
    report = build_report([job.recording(rank, range(STEPS)) for rank in range(8)], ReportOptions())
    assert report.ranks is None
    assert "The clock of rank 4, rank 5, rank 6, rank 7 cannot be aligned" in codes(report)["RANKS_NOT_ALIGNED"]


def test_ranks_of_two_jobs() -> None:
    one, other = (Job(4, None, [[[0, 1, 2, 3]]] * 2, seed) for seed in (1, 2))
    parts = [one.recording(0, range(STEPS)), one.recording(1, range(STEPS))]
    mixed = build_report([*parts, other.recording(2, range(STEPS)), other.recording(3, range(STEPS))], ReportOptions())
    assert "RANKS_NOT_ALIGNED" in codes(mixed) or (mixed.ranks is not None and mixed.ranks.by_order)
    twice = build_report([*parts, evolve(other.recording(1, range(STEPS)), source="b.sqlite")], ReportOptions())
    assert "Rank 1 is in several recordings: rank1.sqlite, b.sqlite" in codes(twice)["RANK_GIVEN_TWICE"]
    assert twice.ranks is None


def test_ranks_that_are_not_given_or_have_no_name() -> None:
    job = Job(4, 1, [[[0, 1, 2, 3]], [[0, 1, 2, 3]]])
    some = build_report([job.recording(rank, range(STEPS), named=True) for rank in (0, 1)], ReportOptions())
    assert "have 4 ranks, but the recordings do not contain rank 2, rank 3" in codes(some)["RANKS_NOT_GIVEN"]
    unnamed = [job.recording(rank, range(STEPS)) for rank in range(4)]
    unnamed = [evolve(one, processes=[evolve(p, rank=None) for p in one.processes]) for one in unnamed]
    assert "RANKS_UNNAMED" in codes(build_report(unnamed, ReportOptions()))


def test_by_order_is_said_where_times_between_collectives_do_not_differ() -> None:
    def calls(ends: list[int]) -> Calls:
        end = np.array(ends, dtype=np.int64)
        return Calls(end - 1_000, end, [("", "a")] * len(end), object())

    even = match_calls([calls([10**6 * n for n in range(20)]), calls([10**6 * n + 77 for n in range(20)])])
    assert isinstance(even, MatchedCalls)
    assert (even.by_order, even.clocks.offset.tolist()) == (True, [0, 77])
    uneven = [n * n * 10**6 for n in range(20)]
    told = match_calls([calls(uneven), calls([end + 77 for end in uneven])])
    assert isinstance(told, MatchedCalls)
    assert not told.by_order
    assert match_calls([calls(uneven), calls([])]) == [1]


@pytest.mark.process
def test_members_of_a_group_are_read_from_a_trace(tmp_path: Path) -> None:
    told = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Group size": 2}
    kernels: list[dict[str, Any]] = [
        {"ph": "X", "cat": "kernel", "name": REDUCE, "ts": 10.0 * n, "dur": 5.0, "pid": 0, "tid": 7}
        | {"args": {"device": 0, "stream": 7, "correlation": n, **told, "Process Group Ranks": ranks}}
        for n, ranks in enumerate(("[0, 4]", "[]"), 1)
    ]
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump({"schemaVersion": 1, "traceEvents": kernels}, file)
    trace = read_recording(tmp_path / "trace.json.gz")
    assert isinstance(trace, Timeline)
    groups = trace.messages.group.tolist()
    assert [trace.strings[group] if group != UNKNOWN else None for group in groups] == ["[0, 4]", None]
