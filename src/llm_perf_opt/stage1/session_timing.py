"""Times a session: warm-up first, then passes over the inputs, and the numbers people ask for from them.

The times are those of a measured program, taken by the same timers and kept in the same file. Every number comes with
its count and spread. Inputs are prepared outside of everything that is timed.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.inject.own_timers import own_timers
from llm_perf_opt.readers.measured import collect, read_measured
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import UNKNOWN, UNKNOWN_HERE, Timeline
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.device import forget_peak, import_torch, peak_memory, waiter
from llm_perf_opt.workloads.marks import paused
from llm_perf_opt.workloads.model_session import Output, Session
from llm_perf_opt.workloads.watch import MarkingWatch, TimingWatch

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
class Timed:
    """One range instance: how long it took and, for the time to the first token, when it ended."""

    path: str  # names from the outermost range on, as in `generate/decode/decode_step`
    seconds: float
    end_s: float  # since the outermost range began


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


def time_passes(session: Session[Any], batches: Batches, repeats: int, keep: Path | None, *, warm: bool) -> Timing:
    """Run all batches `repeats` times. `keep`: gets the time of every instance, a pass as a run of a measured program.

    `warm`: there was a warm-up before.
    """
    wait, outputs, passes = waiter(session.device), list[Output](), list[Path]()
    torch = import_torch() if session.device.type == "cuda" else None  # else by the host clock, whoever uses a GPU
    forgot = forget_peak(session.device)
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as folder:
        for number in range(repeats):
            passes.append(Path(folder) / str(number))
            passes[-1].mkdir()
            timers = own_timers(passes[-1], torch)
            watch = TimingWatch(session.device, timers)
            for batch in range(len(batches)):
                prepared = batches.prepared(batch)
                wait()
                outputs.append(session.run(prepared, watch))
            timers.finish()
        memory = peak_memory(session.device, forgot=forgot)
        file = keep or Path(folder) / "run.json"
        collect(passes, file, warm=warm)
        measured = read_measured(file)
    assert measured.ranges.gpu_start is not None
    clock = "CUDA events" if (measured.ranges.gpu_start != UNKNOWN_HERE).any() else "host clock"
    timing = Timing(clock, repeats, len(batches), memory=memory)
    _summarise(timing, list(zip(timed_runs(measured), outputs, strict=True)), session.whole)
    return timing


def timed_runs(measured: Timeline) -> list[list[Timed]]:
    """The ranges of each run, which are those inside one outermost range."""
    ranges, found = measured.ranges, attribute(measured)
    assert ranges.gpu_start is not None
    paths = ["/".join(found.table.path(region)) for region in range(len(found.table))]
    root = list(range(len(ranges)))
    runs: dict[int, list[Timed]] = {}
    for number in np.argsort(ranges.start, kind="stable").tolist():  # whatever is around a range began before it
        parent = int(found.range_parent[number])
        outermost = root[number] = number if parent == UNKNOWN else root[parent]
        both = [number, outermost]
        starts = ranges.start if (ranges.gpu_start[both] == UNKNOWN_HERE).any() else ranges.gpu_start
        took = int(ranges.duration[number])
        end = int(starts[number] - starts[outermost]) + took
        runs.setdefault(outermost, []).append(Timed(paths[found.range_region[number]], took / 1e9, end / 1e9))
    return list(runs.values())


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
