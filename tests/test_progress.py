"""Live progress: the profilers' real lines, cut and mixed as they come, and any garbage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.nsight.progress import Progress, ProgressReader

TRANSCRIPTS = json.loads(
    (Path(__file__).parent / "transcripts" / "ncu-nsys-2025.3.1-h200.json").read_text(encoding="utf-8")
)


class Clock:
    """One second a call."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def replay(name: str, reader: ProgressReader | None = None) -> list[Progress]:
    reader = reader or ProgressReader(clock=Clock())
    return [state for line in TRANSCRIPTS[name]["stdout"].splitlines() if (state := reader.feed(line))]


def test_kernel_replay() -> None:
    states = replay("ncu-ok-kernel")
    profiling = [s for s in states if s.phase == "profiling"]
    assert [s.kernels_done for s in profiling] == [1, 2, 3, 4, 5, 6, 7]
    assert profiling[5].kernel == "Kernel2"
    assert profiling[-1].passes == 1
    assert profiling[-1].total is None
    assert profiling[-1].seconds_left is None  # ncu does not say how many will come
    assert [states[0].phase, states[-1].phase] == ["running", "done"]
    assert states[-1].kernels_done == 7


def test_a_launch_count_gives_total_and_passes() -> None:
    last = [s for s in replay("ncu-ok-passes") if s.phase == "profiling"][-1]
    assert (last.kernels_done, last.total, last.passes) == (2, 2, 10)


def test_application_replay_starts_again_with_every_pass() -> None:
    states = [s for s in replay("ncu-ok-application") if s.phase == "profiling"]
    assert [s.kernels_done for s in states] == [1, 2, 3, 4, 5, 6, 7] * 3
    assert [s.passes for s in states] == [1] * 7 + [2] * 7 + [3] * 7
    assert states[0].total is None
    assert states[7].total == 7  # known from the first launch
    assert states[9].seconds_left == pytest.approx(4.0)
    assert replay("ncu-ok-application")[-2].phase == "report"
    assert replay("ncu-ok-application")[-2].percent == 100


def test_a_range_counts_as_one() -> None:
    last = [s for s in replay("ncu-ok-app-range") if s.phase == "profiling"][-1]
    assert (last.kernel, last.kernels_done, last.passes) == ("range", 1, 1)


def test_results_that_could_not_be_saved_are_not_counted_twice() -> None:
    assert max(s.kernels_done for s in replay("ncu-disk-full")) == 2


def test_time_left_follows_the_last_kernels() -> None:
    clock = Clock()
    reader = ProgressReader(total=10, clock=clock)
    line = '==PROF== Profiling "k" - {}: 0%....50%....100% - 3 passes'
    assert reader.feed(line.format(0)).seconds_left is None  # type: ignore[union-attr]
    assert reader.feed(line.format(1)).seconds_left == pytest.approx(8.0)  # type: ignore[union-attr]
    for index in range(2, 10):
        reader.feed(line.format(index))
    assert reader.state.seconds_left == 0


def test_nsys_report() -> None:
    states = replay("nsys-ok")
    percents = [s.percent for s in states if s.phase == "report" and s.percent is not None]
    assert percents == sorted(percents)
    assert {71, 100} <= set(percents)
    assert states[-1].phase == "done"
    assert any(s.seconds_left for s in states)


def test_a_bar_with_other_words_behind_it_and_several_steps() -> None:
    assert [s.phase for s in replay("nsys-capture-range-end-kills")][-1] == "done"
    reader = ProgressReader(clock=Clock())
    assert reader.feed("[2/4] [============50%             ] out.nsys-rep").percent == 37  # type: ignore[union-attr]
    bars = "\r[1/1] [0%      ] a.nsys-rep\r[1/1] [=====40%   ] a.nsys-repProcessing events..."
    assert reader.feed(bars).percent == 40  # type: ignore[union-attr]
    assert reader.feed("[1/0] [=5%  ]").percent is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ['say "hi" - 3: 0%', "f<1, (char)'\"'>(int)", "", "a" * 9000, "(1/2): 100% - 7 passes", "名前"]
)
def test_names_are_whatever_the_program_chose(name: str) -> None:
    state = ProgressReader(clock=Clock()).feed(
        f'==PROF== Profiling "{name}" - 12 (3/5): 0%....50%....100% - 3 passes\n'
    )
    assert state == Progress("profiling", 13, 5, 3, name, 100, None)


def test_half_lines() -> None:
    whole = '==PROF== Profiling "k" - 0: 0%....50%....100% - 1 pass'
    reader = ProgressReader(clock=Clock())
    for end in range(len(whole)):
        reader.feed(whole[:end])
        assert reader.state.kernels_done == 0
    assert reader.state.percent == 100
    reader.feed(whole)
    assert reader.state.kernels_done == 1
    for start in range(1, len(whole)):
        assert ProgressReader().feed(whole[start:]) is None


def test_words_of_the_program_before_and_an_interrupt_behind() -> None:
    reader = ProgressReader(clock=Clock())
    assert reader.feed('tok 1 tok 2==PROF== Profiling "k" - 4: 0%....50%....100% - 2 passes') is not None
    # seen with older versions: the signal's message lands in the middle of a line
    spliced = reader.feed('==PROF== Profiling "k" - 5: 0%..==PROF== Received signal')
    assert spliced is not None
    assert (spliced.kernels_done, spliced.percent) == (5, 0)


def test_the_same_line_again_changes_nothing() -> None:
    reader = ProgressReader(clock=Clock())
    assert reader.feed("Collecting data...") is not None
    assert reader.feed("Collecting data...") is None


def test_nothing_is_read_from_a_program_s_own_words() -> None:
    for line in ("", "\n", "100%", "[1/2]", "Profiling", "==PROF==", "epoch [1/3] loss 0.4", "x" * 10**6, "9" * 10_000):
        assert ProgressReader().feed(line) is None


FRAGMENTS = st.sampled_from(
    ["==PROF== ", 'Profiling "', '" - ', "12", "(3/5)", ": ", "0%....50%....100%", " - 3 passes", "[1/1] [", "=71% ]", "Application replay pass 2", "\r", "\x1b[1m", "9" * 30, "Creating report", "==PROF== Report: /x"]
)  # fmt: skip


@given(st.lists(st.one_of(st.lists(FRAGMENTS, max_size=9).map("".join), st.text()), max_size=30))
def test_garbage_never_breaks_it(lines: list[str]) -> None:
    reader = ProgressReader(clock=Clock())
    for line in lines:
        state = reader.feed(line)
        assert state is None or state is reader.state
        now = reader.state
        assert now.kernels_done >= 0
        assert now.percent is None or 0 <= now.percent <= 10**12
        assert now.seconds_left is None or now.seconds_left >= 0
