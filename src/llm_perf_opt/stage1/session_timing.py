"""Times a session: warm-up first, then passes over the inputs, and the numbers people ask for from them.

Every number comes with its count and spread. Inputs are prepared outside of everything that is timed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from attrs import Factory, define

from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.device import forget_peak, peak_memory, waiter
from llm_perf_opt.workloads.marks import paused
from llm_perf_opt.workloads.model_session import Output, Session
from llm_perf_opt.workloads.watch import MarkingWatch, Timed, TimingWatch

_KEPT = 8  # batches whose tensors stay on the device between passes, and batches a warm-up round runs


@define(frozen=True)
class Spread:
    """A number that was measured several times."""

    count: int
    mean: float
    std: float | None  # None for a single measurement, which has no spread
    min: float
    median: float
    max: float


def spread(values: Sequence[float]) -> Spread | None:
    """None where nothing was measured."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(len(values), statistics.fmean(values), std, min(values), statistics.median(values), max(values))


@define(frozen=True)
class StageTime:
    """A stage or a range inside one."""

    name: str
    path: str  # names from the outermost range on
    milliseconds: Spread


@define
class Timing:
    """What the timed passes gave. What does not apply, such as tokens of a classifier, is None."""

    clock: str
    repeats: int
    batches: int  # a pass
    runs: int = 0
    new_tokens: int = 0
    prompt_tokens: int = 0
    stages: list[StageTime] = Factory(list)
    time_to_first_token_ms: Spread | None = None
    time_per_output_token_ms: Spread | None = None
    tokens_per_second: Spread | None = None  # new tokens of a batch over its whole time
    prefill_tokens_per_second: Spread | None = None
    decode_tokens_per_second: Spread | None = None
    memory: dict[str, int | str] = Factory(dict)


class Batches:
    """The inputs in batches, prepared when they are needed; a few stay prepared."""

    def __init__(self, session: Session[Any], batches: Sequence[Sequence[Item]]) -> None:
        self._session = session
        self._batches = batches
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def prepared(self, number: int) -> Any:
        if number in self._kept:
            return self._kept[number]
        prepared = self._session.prepare(self._batches[number])
        if len(self) <= _KEPT:
            self._kept[number] = prepared
        return prepared


def warm_up(session: Session[Any], batches: Batches, rounds: int) -> None:
    """Untimed and unmarked: libraries load, kernels are chosen, memory is taken from the system."""
    watch = MarkingWatch(session.device)
    with paused():
        for _ in range(rounds):
            for number in range(min(len(batches), _KEPT)):
                session.run(batches.prepared(number), watch)


def time_passes(session: Session[Any], batches: Batches, repeats: int) -> Timing:
    """Run all batches `repeats` times."""
    watch, wait = TimingWatch(session.device), waiter(session.device)
    timing = Timing(watch.clock, repeats, len(batches))
    runs: list[tuple[list[Timed], Output]] = []
    forgot = forget_peak(session.device)
    for _ in range(repeats):
        for number in range(len(batches)):
            prepared = batches.prepared(number)
            wait()
            output = session.run(prepared, watch)
            runs.append((watch.times(), output))
    timing.memory = peak_memory(session.device, forgot=forgot)
    _summarise(timing, runs, session.whole)
    return timing


def _summarise(timing: Timing, runs: Sequence[tuple[list[Timed], Output]], whole: str) -> None:
    by_path: dict[str, list[float]] = {}
    found: dict[str, list[float]] = defaultdict(list)  # by field of the timing
    for times, output in runs:
        here = {timed.path: timed for timed in times}
        for timed in sorted(times, key=lambda t: t.path.count("/")):
            by_path.setdefault(timed.path, []).append(1000 * timed.seconds)
        new = sum(len(row) for row in output.tokens)
        timing.new_tokens += new
        if new and whole in here:
            found["tokens_per_second"].append(new / here[whole].seconds)
        prompt = output.facts.get("prefill", {}).get("tokens", 0)
        if (stage := here.get(f"{whole}/prefill")) is not None:
            found["time_to_first_token_ms"].append(1000 * stage.end_s)
            timing.prompt_tokens += prompt
            if prompt:
                found["prefill_tokens_per_second"].append(prompt / stage.seconds)
        steps = output.facts.get("decode", {}).get("steps", 0)
        if steps and (stage := here.get(f"{whole}/decode")) is not None:
            found["time_per_output_token_ms"].append(1000 * stage.seconds / steps)
            # The first token of every sequence was prefill's; what follows the end of a sequence is none.
            found["decode_tokens_per_second"].append((new - len(output.tokens)) / stage.seconds)
    timing.runs = len(runs)
    timing.stages = [
        StageTime(path.rpartition("/")[2], path, measured)
        for path, values in _in_order(by_path, runs)
        if (measured := spread(values)) is not None
    ]
    for name, values in found.items():
        setattr(timing, name, spread(values))


def _in_order(
    by_path: dict[str, list[float]], runs: Sequence[tuple[list[Timed], Output]]
) -> Iterable[tuple[str, list[float]]]:
    """Outer ranges before what is inside them, side by side in the order they ran."""
    begin: dict[str, float] = {}
    for times, _ in runs:
        for timed in times:
            begin.setdefault(timed.path, timed.end_s - timed.seconds)
    return sorted(by_path.items(), key=lambda item: [begin.get(p, 0.0) for p in accumulate(item[0].split("/"), _below)])


def _below(path: str, name: str) -> str:
    return f"{path}/{name}"
