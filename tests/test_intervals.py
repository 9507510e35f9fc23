"""Busy time is the length of a union of intervals: counted here unit by unit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conftest import examples
from llm_perf_opt.regions.intervals import BusyTime, union_by_group

Interval = tuple[int, int]


def column(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def busy(intervals: list[Interval]) -> BusyTime:
    return BusyTime.of(column([a for a, _ in intervals]), column([b for _, b in intervals]))


def units(intervals: list[Interval]) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


intervals = st.lists(
    st.tuples(st.integers(-10, 40), st.integers(0, 12)).map(lambda i: (i[0], i[0] + i[1])), max_size=12
)


@examples(300)
@given(intervals)
def test_the_total_is_the_length_of_the_union(some: list[Interval]) -> None:
    assert busy(some).total == len(units(some))


@examples(200)
@given(intervals)
def test_merged_intervals_are_apart_and_in_order(some: list[Interval]) -> None:
    merged = busy(some)
    assert (merged.starts[1:] > merged.ends[:-1]).all()
    assert (merged.starts <= merged.ends).all()
    assert units(list(zip(merged.starts.tolist(), merged.ends.tolist(), strict=True))) == units(some)


@examples(300)
@given(intervals, intervals)
def test_busy_time_inside_windows_is_counted_to_the_unit(some: list[Interval], windows: list[Interval]) -> None:
    found = busy(some).within(column([a for a, _ in windows]), column([b for _, b in windows]))
    assert found.tolist() == [len(units(some) & set(range(a, b))) for a, b in windows]


@examples(100)
@given(intervals)
def test_busy_time_until_a_moment_never_shrinks(some: list[Interval]) -> None:
    until = busy(some).until(np.arange(-20, 60))
    assert (np.diff(until) >= 0).all()
    assert (np.diff(until) <= 1).all()
    assert until[0] == 0
    assert until[-1] == len(units(some))


@st.composite
def grouped_intervals(draw: st.DrawFn) -> tuple[list[int], list[Interval]]:
    some = sorted(draw(intervals), key=lambda i: i[0])
    return draw(st.lists(st.integers(0, 5), min_size=len(some), max_size=len(some))), some


def union(groups: list[int], some: list[Interval], factor: int = 1) -> list[int]:
    starts, ends = column([a for a, _ in some]) * factor, column([b for _, b in some]) * factor
    return union_by_group(column(groups), starts, ends, 6).tolist()


@examples(300)
@given(grouped_intervals())
def test_every_group_has_the_union_of_its_own_intervals(drawn: tuple[list[int], list[Interval]]) -> None:
    groups, some = drawn
    assert union(groups, some) == [
        len(units([i for i, g in zip(some, groups, strict=True) if g == group])) for group in range(6)
    ]


@examples(300)
@given(grouped_intervals())
def test_times_so_far_apart_that_their_sums_overflow_give_the_same(drawn: tuple[list[int], list[Interval]]) -> None:
    groups, some = drawn
    # With a factor of 2**56 two groups laid end to end no longer fit into 64 bits.
    assert union(groups, some, 2**56) == [length * 2**56 for length in union(groups, some)]


def test_nothing_is_busy_for_no_time() -> None:
    assert busy([]).total == 0
    assert busy([]).within(column([0]), column([9])).tolist() == [0]
    assert union([], []) == [0] * 6
