"""Launches of one signature that do different work: told apart by duration, each sampled, each with its own samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.analysis.sampled_kinds import Clock, clock_of, samples_of_kinds
from llm_perf_opt.profiling.planning.cover import Wanted, cover
from llm_perf_opt.regions.columns import UNKNOWN
from llm_perf_opt.regions.kinds import Kinds, split_by_duration

RANDOM = np.random.default_rng(1)


def kinds_of(*durations: int) -> list[tuple[int, int]]:
    found = split_by_duration(np.zeros(len(durations), dtype=np.int64), np.array(durations, dtype=np.int64))
    return [(int(calls), round(mean)) for calls, mean in zip(found.calls, found.mean.tolist(), strict=True)]


def test_the_sizes_of_a_kernel_that_fills_the_gpu_are_told_apart() -> None:
    """Durations of the attention of a vision encoder as an H200 had them: one grid of 132 blocks for all five."""
    durations = [19_500] * 24 + [38_400] * 8 + [119_000] * 8 + [202_000] * 4 + [436_000] * 4
    assert kinds_of(*durations) == [(24, 19_500), (8, 38_400), (8, 119_000), (4, 202_000), (4, 436_000)]


def test_two_inner_dimensions_are_told_apart_where_durations_scatter() -> None:
    """A matrix product with inner dimensions of 1280 and 1792 in the decode steps of the same model."""
    scattered = np.concatenate([RANDOM.normal(4_900, 170, 760), RANDOM.normal(6_050, 200, 184)])
    assert [calls for calls, _ in kinds_of(*scattered.astype(int).tolist())] == pytest.approx([760, 184], abs=3)


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
    assert len(kinds_of(*np.asarray(durations).astype(int).tolist())) == 1


def test_nothing_has_no_kinds() -> None:
    assert kinds_of() == []


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
    kinds = Kinds(
        of_launch=np.zeros(0, dtype=np.int64),
        signature=np.array([0, 0, 1]),
        calls=np.array([5, 5, 5]),
        total=np.array([5 * 1_900, 5 * 3_100, 5 * 1_000]),
    )
    durations = np.array([2_900.0, 4_200.0, 2_950.0, 2_000.0])
    assert samples_of_kinds(kinds, {0: [0, 1, 2], 1: [3]}, durations) == {0: [0, 2], 1: [1], 2: [3]}


def test_a_slower_clock_under_ncu_is_seen() -> None:
    timeline = np.array([1_000.0, 2_000.0, 40_000.0, 80_000.0])
    assert clock_of(timeline, 1.3 * timeline + 900) == Clock(pytest.approx(1.32, abs=0.01), pytest.approx(870, abs=30))
    assert clock_of(np.array([]), np.array([])) == Clock()


# -- where to sample them --------------------------------------------------------------------------


def wanted_of(kind: list[int], samples: list[int]) -> Wanted:
    label = np.array(kind, dtype=np.int64)
    calls = np.bincount(label, minlength=len(samples)).astype(np.int64)
    kinds = Kinds(label, np.arange(len(samples)), calls, 1_000 * calls)
    return Wanted(kinds, np.array(samples, dtype=np.int64), [1 / len(samples)] * len(samples))


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
@settings(max_examples=200)
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
