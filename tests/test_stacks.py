"""The stack at a moment is the list of ranges open then, in the order in which they began."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import examples
from llm_perf_opt.regions.columns import UNKNOWN
from llm_perf_opt.regions.stacks import Stacks, build_stacks, group_by

Range = tuple[int, int]


def column(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def stacks_of(ranges: list[Range], instances: list[int] | None = None) -> Stacks:
    chosen = column(list(range(len(ranges))) if instances is None else instances)
    return build_stacks(column([a for a, _ in ranges]), column([b for _, b in ranges]), chosen)


def stack_at(stacks: Stacks, moment: int) -> list[int]:
    """Range numbers open at a moment, outermost first."""
    node = int(stacks.top_at(column([moment]))[0])
    found = []
    while node != UNKNOWN:
        found.append(int(stacks.instance[node]))
        node = int(stacks.parent[node])
    return found[::-1]


def expected_at(ranges: list[Range], instances: list[int], moment: int) -> list[int]:
    """The rule, word for word."""
    is_open = [i for i in instances if ranges[i][0] <= moment < ranges[i][1]]
    return sorted(is_open, key=lambda i: (ranges[i][0], -ranges[i][1], instances.index(i)))


small_ranges = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1])), max_size=9)


@st.composite
def nested_ranges(draw: st.DrawFn) -> list[Range]:
    """Well nested ranges, as push and pop make them: ends may coincide, ranges may be empty."""
    ranges: list[Range] = []

    def fill(start: int, end: int, depth: int) -> None:
        at = start
        while depth and at <= end and draw(st.booleans()):
            begin = draw(st.integers(at, end))
            finish = draw(st.integers(begin, end))
            ranges.append((begin, finish))
            fill(begin, finish, depth - 1)
            at = finish

    fill(0, 30, 3)
    return draw(st.permutations(ranges))


@examples(300)
@given(small_ranges)
def test_any_ranges_give_the_stack_of_the_rule_at_every_moment(ranges: list[Range]) -> None:
    stacks = stacks_of(ranges)
    everyone = list(range(len(ranges)))
    for moment in range(-1, 31):
        assert stack_at(stacks, moment) == expected_at(ranges, everyone, moment)


@examples(200)
@given(nested_ranges())
def test_well_nested_ranges_give_the_same_as_the_rule(ranges: list[Range]) -> None:
    stacks = stacks_of(ranges)
    everyone = list(range(len(ranges)))
    for moment in range(-1, 32):
        assert stack_at(stacks, moment) == expected_at(ranges, everyone, moment)


@examples(100)
@given(small_ranges, st.data())
def test_only_the_chosen_ranges_count(ranges: list[Range], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(ranges))), unique=True)) if ranges else []
    stacks = stacks_of(ranges, chosen)
    for moment in range(-1, 31):
        assert stack_at(stacks, moment) == expected_at(ranges, chosen, moment)


@examples(200)
@given(small_ranges)
def test_every_range_is_in_some_stack_even_if_it_was_never_open(ranges: list[Range]) -> None:
    stacks = stacks_of(ranges)
    nodes = stacks.nodes_of_ranges()
    assert sorted(stacks.instance[nodes].tolist()) == list(range(len(ranges)))
    # Nodes are numbered so that what a node lies on comes before it.
    assert all(below < node for node, below in enumerate(stacks.parent.tolist()))


@examples(100)
@given(small_ranges, st.lists(st.integers(-2, 32), max_size=20))
def test_many_moments_at_once_are_answered_like_one_at_a_time(ranges: list[Range], moments: list[int]) -> None:
    stacks = stacks_of(ranges)
    together = stacks.top_at(column(moments)).tolist()
    assert together == [int(stacks.top_at(column([m]))[0]) for m in moments]


def test_a_range_is_open_from_its_start_up_to_but_not_at_its_end() -> None:
    stacks = stacks_of([(10, 20)])
    assert [stack_at(stacks, m) for m in (9, 10, 19, 20)] == [[], [0], [0], []]


def test_of_two_that_begin_together_the_longer_is_outside() -> None:
    assert stack_at(stacks_of([(0, 5), (0, 9)]), 2) == [1, 0]


def test_of_two_equal_ranges_the_one_recorded_first_is_outside() -> None:
    assert stack_at(stacks_of([(0, 5), (0, 5)]), 2) == [0, 1]


def test_overlapping_ranges_change_places_as_they_end() -> None:
    stacks = stacks_of([(0, 10), (5, 15), (8, 20)])
    assert [stack_at(stacks, m) for m in (4, 6, 9, 12, 17)] == [[0], [0, 1], [0, 1, 2], [1, 2], [2]]
    # A range has one node for every stack it was found in.
    assert sorted(stacks.instance.tolist()) == [0, 1, 1, 2, 2, 2]


def test_an_empty_range_holds_nothing_but_exists() -> None:
    for ranges in ([(5, 5)], [(0, 10), (5, 5)], [(0, 10), (5, 15), (7, 7)]):
        stacks = stacks_of(ranges)
        assert len(ranges) - 1 not in stack_at(stacks, ranges[-1][0])
        nodes = stacks.nodes_of_ranges()
        assert len(ranges) - 1 in stacks.instance[nodes].tolist()


def test_no_ranges_is_no_stack() -> None:
    stacks = stacks_of([])
    assert len(stacks.instance) == 0
    assert stacks.top_at(column([0, 5])).tolist() == [UNKNOWN, UNKNOWN]


@examples(200)
@given(st.lists(st.integers(-3, 3)), st.sampled_from([np.int32, np.int64]))
def test_group_by_gives_each_key_its_places_in_order(keys: list[int], dtype: type) -> None:
    found = group_by(np.array(keys, dtype=dtype))
    assert [key for key, _ in found] == sorted(set(keys))
    for key, places in found:
        assert places.tolist() == [i for i, k in enumerate(keys) if k == key]


@pytest.mark.parametrize("keys", [[], [7], [7, 7, 7]])
def test_group_by_of_at_most_one_key_needs_no_sorting(keys: list[int]) -> None:
    assert [(k, p.tolist()) for k, p in group_by(column(keys))] == ([(7, list(range(len(keys))))] if keys else [])
