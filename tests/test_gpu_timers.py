"""What the timers do on a GPU: events are recorded, never waited for, and left alone while a graph is captured.

There is no GPU where these tests run: the calls they may make are those of a stand-in that knows their rules.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.inject.environment import INJECTED
from llm_perf_opt.readers.measured import collect, read_measured
from llm_perf_opt.regions.columns import UNKNOWN_HERE, Timeline

sys.path.insert(0, str(INJECTED))
from _llm_perf_annotate import timers as timers_module
from _llm_perf_annotate.current_stream import Events
from _llm_perf_annotate.timers import Timers

LATE_NS = 40_000_000  # the GPU is this far behind the host


class Gpu:
    """A GPU that reaches an event some time after it was recorded, and whose events cost the host `cost_s`."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.capturing = self.waited = False
        self.made = self.broken = 0
        self.cost_s = cost_s
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                gpu.made += 1
                self.at: int | None = None

            def record(self, stream: object = None) -> None:
                gpu.broken += gpu.capturing
                time.sleep(gpu.cost_s)
                self.at = time.monotonic_ns() + LATE_NS

            def query(self) -> bool:
                gpu.broken += gpu.capturing
                return self.at is not None and time.monotonic_ns() >= self.at

            def synchronize(self) -> None:
                gpu.waited = True
                while not self.query():
                    time.sleep(0.001)

            def elapsed_time(self, other: Any) -> float:
                assert self.query()
                assert other.query(), "an event was read before it was reached"
                return float(np.float32((other.at - self.at) / 1e6))

        class CUDAGraph:
            def capture_begin(self) -> None:
                gpu.capturing = True

            def capture_end(self) -> None:
                gpu.capturing = False

        stats = {"allocated_bytes": {"all": {"current": 5, "peak": 7}}}
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(
                Event=Event,
                CUDAGraph=CUDAGraph,
                is_initialized=lambda: True,
                is_current_stream_capturing=lambda: gpu.capturing,
                current_device=lambda: 0,
                get_device_properties=lambda device: SimpleNamespace(uuid="1-2"),
            ),
            _C=SimpleNamespace(
                _cuda_memoryStats=lambda device: stats,
                _cuda_resetPeakMemoryStats=lambda device: None,
                _cuda_getDevice=lambda: 0,
            ),
        )


@pytest.fixture
def finders() -> Iterator[None]:
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before


def timed(gpu: Gpu, folder: Path) -> Timers:
    return Timers(str(folder), gpu.torch)


def found(timers: Timers, folder: Path) -> Timeline:
    timers.finish()
    collect([folder], folder / "run.json")
    return read_measured(folder / "run.json")


def run(timers: Timers, name: str, seconds: float) -> None:
    timers.begin("LLM", name)
    time.sleep(seconds)
    timers.end("LLM")


@pytest.mark.usefixtures("finders")
def test_a_range_takes_what_lies_between_its_events(tmp_path: Path) -> None:
    gpu = Gpu()
    timers = timed(gpu, tmp_path)
    for _ in range(5):
        run(timers, "step", 0.01)
    assert not gpu.waited, "nothing waits for the GPU before the program has ended"
    ranges = found(timers, tmp_path).ranges
    assert ranges.gpu_start is not None
    assert ranges.took is not None
    behind = ranges.gpu_start - ranges.start
    assert (np.abs(behind - behind[0]) < 5e6).all(), "on the clock of the host"
    assert (ranges.took >= 0.01e9).all()


@pytest.mark.usefixtures("finders")
def test_while_a_graph_is_captured_no_event_is_recorded_or_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "_FLUSH_ROWS", 2)
    monkeypatch.setattr(timers_module, "_FLUSH_NUMBERS", 8)
    gpu = Gpu()
    timers = timed(gpu, tmp_path)
    graph = gpu.torch.cuda.CUDAGraph()
    run(timers, "step", 0)
    timers.begin("LLM", "around")
    graph.capture_begin()
    for _ in range(5):
        run(timers, "captured", 0.001)
    thread = threading.Thread(target=run, args=(timers, "elsewhere", 0.001))
    thread.start()
    thread.join()
    graph.capture_end()
    timers.end("LLM")
    assert gpu.broken == 0
    timeline = found(timers, tmp_path)
    names = np.array([timeline.strings[number] for number in timeline.ranges.name.tolist()])
    assert timeline.ranges.gpu_start is not None
    has_events = timeline.ranges.gpu_start != UNKNOWN_HERE
    assert dict(zip(names.tolist(), has_events.tolist(), strict=True)) == {
        "step": True,
        "captured": False,
        "elsewhere": False,
        "around": True,
    }
    assert len(timeline.only_once.what) == 1


@pytest.mark.usefixtures("finders")
def test_events_are_used_again_and_dear_ones_are_rationed(tmp_path: Path) -> None:
    gpu = Gpu(cost_s=0.002)
    timers = timed(gpu, tmp_path)
    timers.begin("LLM", "outer")
    timers.begin("LLM", "decode")
    for _ in range(200):
        run(timers, "layer", 0)
    timers.end("LLM")
    timers.end("LLM")
    ranges = found(timers, tmp_path).ranges
    assert len(ranges) == 202
    assert ranges.gpu_start is not None
    assert 1 <= (ranges.gpu_start != UNKNOWN_HERE).sum() < 30
    again = Gpu()
    timers = timed(again, tmp_path / "again")
    (tmp_path / "again").mkdir()
    for _ in range(40):
        run(timers, "step", 0.003)
        timers._local.of.read = 0  # as if long ago
        timers._flush(timers._local.of)
    assert again.made < 60  # of 80 that were recorded


@pytest.mark.usefixtures("finders")
def test_memory_of_ranges_is_in_their_rows(tmp_path: Path) -> None:
    timers = timed(Gpu(), tmp_path)
    for _ in range(3):
        run(timers, "step", 0.001)
    ranges = found(timers, tmp_path).ranges
    assert ranges.memory_peak is not None
    assert ranges.memory_growth is not None
    known = ranges.memory_peak != UNKNOWN_HERE  # not of the first: it is looked at for other things
    assert known.sum() == 2
    assert ranges.memory_peak[known].tolist() == [7, 7]
    assert ranges.memory_growth[known].tolist() == [0, 0]


@pytest.mark.usefixtures("finders")
def test_a_gpu_that_fails_costs_its_times_and_nothing_else(tmp_path: Path) -> None:
    gpu = Gpu()
    timers = timed(gpu, tmp_path)
    run(timers, "step", 0.001)

    def fails(now: int) -> int:
        raise RuntimeError("CUDA error: device-side assert")

    timers._events.record = fails
    run(timers, "step", 0.001)
    assert len(found(timers, tmp_path).ranges) == 2


@pytest.mark.usefixtures("finders")
def test_who_leaves_at_once_does_not_wait_for_the_gpu(tmp_path: Path) -> None:
    gpu = Gpu()
    timers = timed(gpu, tmp_path)
    run(timers, "step", 2 * LATE_NS / 1e9)
    run(timers, "step", 0.001)
    timers.leave()
    assert not gpu.waited
    collect([tmp_path], tmp_path / "run.json")
    ranges = read_measured(tmp_path / "run.json").ranges
    assert len(ranges) == 2  # of the last, the end on the GPU is not known
    gpu.waited = False
    timers.finish()
    assert not gpu.waited, "nothing is left to be waited for"


@pytest.mark.usefixtures("finders")
def test_a_gpu_that_hangs_keeps_nobody_from_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "_LEAVE_S", 0.01)
    timers = timed(Gpu(), tmp_path)
    run(timers, "step", 0.001)
    with timers._lock:  # as the end of the program has it meanwhile
        watchdog = threading.Thread(target=timers.leave, daemon=True)
        watchdog.start()
        watchdog.join(5)
        assert not watchdog.is_alive()


@pytest.mark.usefixtures("finders")
def test_start_end_ranges_have_events_too(tmp_path: Path) -> None:
    timers = timed(Gpu(), tmp_path)
    for number in range(3):
        assert timers.open("LLM", "request", number)
        assert timers.open("LLM", "request", -1 - number)
        time.sleep(0.002)
        timers.close(number)
        timers.close(-1 - number)
    timers.close("never started")
    ranges = found(timers, tmp_path).ranges
    assert ranges.start_end.tolist() == [True] * 6
    assert ranges.gpu_start is not None
    assert (ranges.gpu_start != UNKNOWN_HERE).sum() == 6


@pytest.mark.usefixtures("finders")
def test_while_nothing_may_be_spent_a_range_costs_two_looks_at_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu()
    timers = timed(gpu, tmp_path)
    timers._memory = None
    run(timers, "step", 0)
    later = time.monotonic_ns() + 3_600_000_000_000
    timers._outer.next_at = timers._inner.next_at = later
    run(timers, "step", 0)  # finds that there is nothing left
    monkeypatch.setattr(timers, "_begin_on_gpu", None)  # to call it fails
    before = gpu.made
    for _ in range(5):
        run(timers, "step", 0)
    assert gpu.made == before
    assert len(found(timers, tmp_path).ranges) == 7


def test_events_are_recorded_on_the_stream_in_use_and_stay_with_their_device() -> None:
    """As torch has it: streams by the number of the driver, and a class in C that records without looking for one."""
    state, recorded = {"device": 0, "stream": 7}, []

    class Base:
        def record(self, stream: object = None) -> None:
            recorded.append(stream)

    class Event(Base):
        def __init__(self, enable_timing: bool) -> None: ...

        def record(self, stream: object = None) -> None:
            recorded.append("in Python")

    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            Event=Event,
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: False,
            current_device=lambda: 0,
            current_stream=lambda device: f"stream {state['stream']} of {device}",
            get_device_properties=lambda device: SimpleNamespace(uuid=f"GPU-{device}"),
        ),
        _C=SimpleNamespace(
            _CudaEventBase=Base,
            _cuda_getDevice=lambda: state["device"],
            _cuda_getCurrentRawStream=lambda device: state["stream"],
        ),
    )
    notes: list[object] = []
    events = Events(torch, lambda **facts: notes.append(facts))
    first, device, base = events.record(1)
    assert base is device.base is not None
    state["stream"] = 9
    events.record(2)
    state["device"] = 1
    other = events.record(3)
    assert recorded == [*("in Python", "stream 7 of 0"), "stream 9 of 0", *("in Python", "stream 9 of 1")]
    assert notes == [{"uuid": "GPU-0"}, {"uuid": "GPU-1"}]
    assert other[1] is not device
    device.spare.append(first)
    assert events.record(4)[0] is not first
    state["device"] = 0
    assert events.record(5)[0] is first


def test_instances_without_events_are_estimated_from_those_of_their_own_region(tmp_path: Path) -> None:
    """Attention of a prefill takes a hundred times that of a decode step: one must not lend its time to the other."""
    folder, rows, at = tmp_path / "run", [], 1_000_000_000
    folder.mkdir()
    names = ("prefill", "decode", "attention")
    (folder / "7-1.names").write_text("".join(f'{{"name": [{n}, "", "{name}"]}}\n' for n, name in enumerate(names)))
    for number in range(8):
        for outer, gpu in ((0, 10_000_000), (1, 100_000)):
            known = number < 4
            gpu_times = (at, at + gpu) if known else (UNKNOWN_HERE, UNKNOWN_HERE)
            rows.append((outer, 7, at, at + 20_000, *gpu_times, UNKNOWN_HERE, UNKNOWN_HERE))
            rows.append((2, 7, at + 1, at + 10_001, *gpu_times, UNKNOWN_HERE, UNKNOWN_HERE))
            at += 20_000_000
    (folder / "7-1.rows").write_bytes(np.array(rows, dtype="<i8").tobytes())
    collect([folder], tmp_path / "run.json")
    took = read_measured(tmp_path / "run.json").ranges.took
    assert took is not None
    assert took.tolist() == [10_000_000, 10_000_000, 100_000, 100_000] * 8
