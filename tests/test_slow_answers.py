"""The tail of a server's latency is explained by the steps it lies in, and blamed on prompts only where they make it."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from llm_perf_opt.analysis.slow_answers import slow_answers
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.regions.columns import Process, Ranges, Timeline, Work

MS = 1_000_000
DECODE, MIXED = "decode_step, batch = 8, tokens = 8, new = 8", "mixed_step, batch = 8, tokens = 512"
Row = tuple[str, int, int]


def told(rounds: list[list[tuple[str, float]]], engines: int = 1) -> list[Diagnosis]:
    """Rounds of what the engine does, for so many ms each; a client waits through each round. "": nothing is marked."""
    rows: list[tuple[str, int, int]] = []
    waits, now = [], 0
    for one in rounds:
        begin = now
        for name, length in one:
            end = now + round(length * MS)
            rows += [(name, now, end)] if name else []
            now = end
        waits.append((begin, now))
    return list(slow_answers(_measured(rows, engines), {"between two tokens": np.array(waits, dtype=np.int64)}))


def _measured(rows: list[Row], engines: int) -> Timeline:
    names = list(dict.fromkeys(name for name, _, _ in rows))
    start, end = (np.tile([row[k] for row in rows], engines) for k in (1, 2))
    which = np.tile([names.index(name) for name, _, _ in rows], engines).astype(np.int32)
    process = np.repeat(np.arange(engines), len(rows)).astype(np.int32)
    thread, domain = np.zeros((2, len(which)), dtype=np.int32)
    empty = Work.empty()
    ranges = Ranges(start, end, process, thread, domain, which, np.zeros(len(which), dtype=np.bool_))
    processes = [Process(number) for number in range(engines)]
    return Timeline("run.json", "measured", names, [""], processes, [0], empty, empty, empty, ranges)


PLAIN = [("schedule", 1.0), (DECODE, 10.0)]


def test_mixed_steps_that_make_p99_are_named_with_what_they_cost() -> None:
    (found,) = told([PLAIN] * 196 + [[("schedule", 2.0), (MIXED, 40.0)]] * 4)
    assert found.code == "SLOW_ANSWERS"
    assert "median 11 ms, p99 42 ms. The slowest (4 of 200) take 31 ms longer" in found.message
    assert (
        "mixed steps 98 %, schedule 2 %. They spend 95 % of their time in mixed steps, the others 0 %" in found.message
    )
    assert "prompts of other requests make p99" in found.message
    assert "--max-num-batched-tokens" in found.fix


def test_a_scheduler_that_hangs_is_no_matter_of_prompts() -> None:
    (found,) = told([PLAIN] * 196 + [[("schedule", 30.0), (MIXED, 12.0), ("", 1.0)]] * 4)
    assert "of that, schedule 69 %" in found.message
    assert "prompts" not in found.message
    assert not found.fix


def test_where_all_steps_are_mixed_the_slow_ones_are_not_slow_for_that() -> None:
    (found,) = told([[(MIXED, 10.0)]] * 198 + [[(MIXED, 60.0)]] * 2)
    assert "mixed steps 100 %" in found.message
    assert "prompts" not in found.message


def test_nothing_is_said_of_few_waits_of_no_steps_and_of_equal_ones() -> None:
    assert told([PLAIN] * 90 + [[(MIXED, 40.0)]] * 4) == []
    assert told([[("forward", 10.0)]] * 200) == []
    assert told([PLAIN] * 200) == []
    assert told([[("", 0.0)]] * 198 + [PLAIN] * 2) == []  # an answer that comes in one piece has waits of nothing


def test_ranks_that_run_the_same_steps_are_one_engine_and_others_are_not() -> None:
    rounds = [PLAIN] * 196 + [[(MIXED, 40.0)]] * 4
    assert told(rounds, engines=2) == told(rounds)
    timeline = _measured([(DECODE, 0, 900 * MS), (MIXED, 0, 900 * MS)], 1)  # whose wait it is cannot be told
    waits = np.array([(n * MS, (n + 1 + n // 199) * MS) for n in range(200)], dtype=np.int64)
    assert list(slow_answers(timeline, {"between two tokens": waits})) == []


def test_steps_that_are_launched_ahead_run_one_after_another() -> None:
    """The range of a step is closed after a millisecond; the GPU has done its work long after."""
    kinds = [MIXED if n % 50 == 49 else DECODE for n in range(200)]
    took = np.array([40 if kind == MIXED else 10 for kind in kinds], dtype=np.int64) * MS
    ends = np.cumsum(took)
    rows = [
        (kind, max(int(end - own) - 8 * MS, 0), int(end - own) + MS)
        for kind, end, own in zip(kinds, ends, took, strict=True)
    ]
    timeline = _measured(rows, 1)
    timeline.ranges = evolve(timeline.ranges, took=took, gpu_start=ends - took)
    waits = np.column_stack([ends - took, ends])
    (found,) = slow_answers(timeline, {"between two tokens": waits})
    assert "30 ms longer than the others on average; of that, mixed steps 100 %" in found.message
