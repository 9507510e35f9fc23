"""Warm-up told from the order and lengths of instances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.regions.warmup import Split, _middle, _quantile, quantiles, split

MS = 1_000_000


def ms(*values: float) -> np.ndarray:
    return np.array([round(v * MS) for v in values], dtype=np.int64)


@pytest.mark.parametrize(
    ("what", "durations", "warmup"),
    [
        ("nothing", [], 0),
        ("one instance says nothing", [3400], 0),
        ("a cold generate() and a warm one", [3400, 390], 1),
        ("a compiled decode: the first step compiles", [16500] + [2.4] * 61, 1),
        ("training: first forward, then steady", [1200, 55, 54, 56, 55, 55], 1),
        ("two slow ones of three", [1200, 900, 55], 2),
        ("the last of three is shorter", [55, 56, 20], 0),
        ("the first of three is slow", [150, 56, 54], 1),
        ("compilation, a fast step, compilation for another shape", [9000, 5, 4000, *[5] * 20], 3),
        ("all alike", [10.0, 10.1, 9.9, 10.2, 10.0, 9.8], 0),
        ("two of which one takes a bit longer", [40, 31], 0),
        ("decode steps that grow with the cache", [20 + 0.05 * i for i in range(60)], 0),
        ("a hiccup late", [10] * 30 + [500] + [10] * 30, 0),
        ("a prefill that comes again", ([40] + [10] * 15) * 4, 0),
        ("ranges of microseconds", [0.04, 0.01, 0.008, 0.009, 0.01, 0.01], 0),
    ],
)
def test_warmup_is_the_few_slow_instances_at_the_beginning(what: str, durations: list[float], warmup: int) -> None:
    assert split(ms(*durations)).warmup == warmup, what


def test_a_first_instance_in_which_the_gpu_works_more_is_no_warmup() -> None:
    """A prefill before the decode steps of one range: it takes longer because it has more to do."""
    durations = ms(40, *[10] * 30)
    assert split(durations).warmup == 1
    assert split(durations, working=ms(38, *[8] * 30)).warmup == 0
    assert split(durations, working=ms(9, *[8] * 30)).warmup == 1


def test_a_step_in_the_middle_is_reported_and_is_no_warmup() -> None:
    assert split(ms(*[10] * 20, *[5] * 20)) == Split(0, 20)
    assert split(ms(*[5] * 12, *[10] * 30)) == Split(0, 12)
    assert split(ms(900, *[10] * 20, *[5] * 20)) == Split(1, 21)


@given(st.floats(0.1, 1e4), st.integers(2, 80), st.integers(0, 2**32 - 1))
def test_no_warmup_where_all_instances_are_alike(length: float, count: int, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(1.0, 0.03, count).clip(0.9, 1.1)
    assert split((noise * length * MS).astype(np.int64)) == Split()


@given(st.integers(8, 40), st.integers(8, 40), st.floats(2, 100), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_step_change_in_the_middle_is_no_warmup(
    before: int, after: int, factor: float, faster: bool, seed: int
) -> None:
    noise = np.random.default_rng(seed).normal(1.0, 0.03, before + after).clip(0.9, 1.1)
    noise[:before] *= factor if faster else 1.0
    noise[before:] *= 1.0 if faster else factor
    share = min(before, after) / (before + after)
    found = split((noise * 10 * MS).astype(np.int64))
    if share > 0.25:
        assert found == Split(0, before)
    elif not faster:  # a few slow ones at the beginning are what warm-up looks like
        assert found.warmup == 0


@given(st.integers(6, 60), st.integers(1, 2), st.floats(3, 1000), st.integers(0, 2**32 - 1))
def test_slow_first_instances_are_found_whatever_their_length(count: int, slow: int, factor: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(1.0, 0.03, count).clip(0.9, 1.1)
    noise[:slow] *= factor
    assert split((noise * 10 * MS).astype(np.int64)).warmup == slow


@given(st.lists(st.integers(0, 10**12), max_size=40), st.booleans())
def test_any_sequence_keeps_a_steady_instance(values: list[int], known: bool) -> None:
    durations = np.array(values, dtype=np.int64)
    found = split(durations, durations // 2 if known else None)
    assert 0 <= found.warmup < max(len(values), 1)
    assert found.level_change is None or found.warmup < found.level_change < len(values)


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=60), st.sampled_from([0.05, 0.1, 0.5, 0.9, 0.95]))
def test_quantiles_are_those_of_numpy(values: list[int], part: float) -> None:
    ordered = np.sort(np.array(values, dtype=np.int64))
    assert _quantile(ordered, part) == float(np.quantile(ordered, part))
    assert _middle(ordered) == float(np.median(ordered))
    assert quantiles(np.array(values)) == tuple(round(float(q)) for q in np.quantile(values, (0.1, 0.5, 0.9)))
