"""Clocks of ranks are aligned by what ended everywhere at the same moment: offsets, drift, moments that were not the same."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from llm_perf_opt.analysis.build import ReportOptions, build_report, with_ranks
from llm_perf_opt.analysis.clocks import clocks_of
from test_communication import GEMM, REDUCE, made


def moments(
    offsets: list[int], drifts: list[float], count: int = 300, span_s: float = 120.0
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of collectives as ranks with such clocks see them, some µs apart; and what is right."""
    random = np.random.default_rng(5)
    truth = np.sort(random.uniform(0, span_s * 1e9, count)).astype(np.int64) + 10**15
    seen = np.array(
        [np.round(truth * (1 + drift)).astype(np.int64) + offset for offset, drift in zip(offsets, drifts, strict=True)]
    )
    return truth, seen + random.normal(0, 1_500, seen.shape).astype(np.int64)


@pytest.mark.parametrize("drifts", [[0.0, 0.0, 0.0, 0.0], [0.0, 4e-6, -9e-6, 1e-7], [2e-6, 2e-6, 0.0, 5e-5]])
def test_known_offsets_and_drifts_are_found_within_five_microseconds(drifts: list[float]) -> None:
    truth, seen = moments([0, 7_000_000_000, -300_000, 12_345], drifts)
    found = clocks_of(seen)
    aligned = seen - found.at(seen[0])
    apart = np.abs(aligned - aligned[0])
    assert np.percentile(apart, 90) < 5_000  # their own scatter is 1.5 µs on each side
    by_first = np.round(truth * (1 + drifts[0])).astype(np.int64)
    assert np.percentile(np.abs(aligned - by_first), 90) < 5_000
    relative = (np.array(drifts) - drifts[0]) / (1 + drifts[0])
    assert found.drift == pytest.approx(relative, abs=2e-7)


def test_moments_that_were_not_the_same_do_not_count() -> None:
    _, seen = moments([0, 5_000_000], [0.0, 3e-6])
    seen[1, ::4] += np.random.default_rng(1).integers(10**6, 10**8, len(seen[1, ::4]))
    found = clocks_of(seen)
    good = np.ones(seen.shape[1], dtype=bool)
    good[::4] = False
    aligned = seen - found.at(seen[0])
    assert np.percentile(np.abs(aligned[1] - aligned[0])[good], 90) < 6_000


def test_a_few_moments_tell_no_drift() -> None:
    assert clocks_of(np.array([[0, 10**9, 2 * 10**9], [5, 10**9 + 900, 2 * 10**9 + 2_000]])).drift.tolist() == [0, 0]


def test_waiting_is_right_though_clocks_run_apart() -> None:
    """Rank 1 comes 2 ms late to every tenth all-reduce; its clock goes 20 ppm faster, a millisecond in the recording."""
    ranks = []
    for number, (offset, drift) in enumerate([(0, 0.0), (3_000_000_000, 2e-5)]):
        kernels = []
        for step in range(50):
            begin, late = 10**6 + step * 10**9, 2_000_000 if step % 10 == 0 else 0
            arrives = begin + (late if number == 1 else 0)
            end = begin + late + 150_000
            scaled = [round(t * (1 + drift)) + offset for t in (begin - 5_000, arrives, end)]
            kernels += [(GEMM, scaled[0], 1_000), (REDUCE, scaled[1], scaled[2] - scaled[1])]
        until = round(51 * 10**9 * (1 + drift)) + offset
        one = with_ranks(made([("loop", offset, until)], kernels), number)
        ranks.append(evolve(one, source=f"rank{number}.sqlite"))
    skew = build_report(ranks, ReportOptions()).ranks
    assert skew is not None
    assert skew.residual_ns < 5_000
    assert skew.ranks[1].clock_drift_ppm == pytest.approx(20, abs=0.1)
    assert skew.ranks[0].waiting_ns == pytest.approx(5 * 2_000_000, rel=0.01)
    assert skew.late == "rank 1"
