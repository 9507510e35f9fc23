"""A PyTorch profile of one batch: operators, kernels, and the trace that `llm-perf report` reads.

Profilers' own tables are easily added up wrong: an operator's total holds those it calls, and every kernel
appears beside the operator that launched it. Here operators have their own time only, kernels a table of
their own, and the sum of what is shown is checked against the time that passed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import Factory, define

from llm_perf_opt.stage1.settings import TorchProfilerOptions
from llm_perf_opt.workloads.device import import_torch
from llm_perf_opt.workloads.marks import DOMAIN, paused
from llm_perf_opt.workloads.model_session import Session
from llm_perf_opt.workloads.watch import MarkingWatch

TRACE = "trace.json.gz"
_COPIES = ("Memcpy", "Memset")
# Since torch 2.13 libkineto prints two lines (`USDT:… profiler_start`) about every recording, as its most severe kind of
# message: what silences them silences all it says. Where that would be missed, a note says how to see it.
_LOG_LEVEL = ("KINETO_LOG_LEVEL", "7")


@define
class OperatorRow:
    """Everything of one name on the host, without what it calls."""

    name: str
    calls: int = 0
    self_cpu_ms: float = 0.0
    self_device_ms: float = 0.0  # of the kernels it launched itself
    self_cpu_bytes: int = 0  # allocated less freed
    self_device_bytes: int = 0


@define
class KernelRow:
    """Everything of one name on the device."""

    name: str
    device: int
    calls: int = 0
    total_ms: float = 0.0

    @property
    def mean_ms(self) -> float:
        return self.total_ms / self.calls


@define
class RangeRow:
    """A marked range: its time, and the part of it in no operator, which is Python."""

    name: str
    calls: int = 0
    total_cpu_ms: float = 0.0
    self_cpu_ms: float = 0.0


@define
class Profile:
    """What the profiler saw of one batch. All sums count everything once."""

    activities: list[str]
    operators: list[OperatorRow] = Factory(list)
    ranges: list[RangeRow] = Factory(list)
    kernels: list[KernelRow] = Factory(list)
    copies: list[KernelRow] = Factory(list)
    span_ms: float = 0.0  # the outermost range
    accounted_ms: float = 0.0  # own times of everything inside it on its thread; equals the span but for rounding
    python_ms: float = 0.0  # the part of it in no operator
    other_threads_ms: float = 0.0  # own times on other threads, beside the span
    kernels_ms: float = 0.0
    copies_ms: float = 0.0
    notes: list[str] = Factory(list)


def take_profile(session: Session[Any], prepared: Any, options: TorchProfilerOptions, folder: Path) -> Profile:
    """Profile one batch after the profiler's own warm-up; writes the trace."""
    torch = import_torch()
    notes = []
    wanted = list(options.activities)
    if "cuda" in wanted and session.device.type != "cuda":
        wanted.remove("cuda")
        notes.append(f"The model runs on {session.device}: there are no kernels to record.")
    kinds = {"cpu": torch.profiler.ProfilerActivity.CPU, "cuda": torch.profiler.ProfilerActivity.CUDA}
    settings: dict[str, Any] = {
        "activities": [kinds[name] for name in wanted],
        "record_shapes": options.record_shapes,
        "profile_memory": options.profile_memory,
        "with_stack": options.with_stack,
    }
    os.environ.setdefault(*_LOG_LEVEL)
    watch = MarkingWatch(session.device)
    for _ in range(options.warmup_rounds):
        # The first recording of a process pays for starting CUPTI: it is thrown away.
        with paused(), torch.profiler.profile(**settings):
            session.run(prepared, watch)
    with torch.profiler.profile(**settings) as profiler:
        profiler.add_metadata_json("llm_perf_ranges", '"domain@name"')
        session.run(prepared, watch)
    profiler.export_chrome_trace(str(folder / TRACE))
    profile = tabulate(profiler.events(), f"{DOMAIN}@{session.whole}")
    profile.activities = wanted
    if "cuda" in wanted and not profile.kernels:
        notes.append(
            "The PyTorch profiler recorded no kernels. KINETO_LOG_LEVEL=0 in the environment shows what it says."
        )
    profile.notes = notes + profile.notes
    return profile


def tabulate(events: Iterable[Any], outermost: str) -> Profile:
    """The tables, from the profiler's events. On the thread of the outermost range only what is inside it counts."""
    cpu = import_torch().autograd.DeviceType.CPU
    events = list(events)
    whole = [event for event in events if event.name == outermost and event.device_type == cpu]
    profile = Profile([])
    operators: dict[str, OperatorRow] = {}
    ranges: dict[str, RangeRow] = {}
    kernels: dict[tuple[str, int], KernelRow] = {}
    copies: dict[tuple[str, int], KernelRow] = {}
    for event in events:
        if event.device_type != cpu:
            if not event.is_user_annotation:  # ranges are repeated on the device's side
                table = copies if event.name.startswith(_COPIES) else kernels
                kernel = table.setdefault((event.name, event.device_index), KernelRow(event.name, event.device_index))
                kernel.calls += 1
                kernel.total_ms += event.time_range.elapsed_us() / 1000
            continue
        if event.is_async:
            continue  # spans threads, and what runs inside it is there as well
        own = event.self_cpu_time_total / 1000
        if not any(event.thread == around.thread for around in whole):
            profile.other_threads_ms += own
        elif not any(_inside(event, around) for around in whole):
            continue
        else:
            profile.accounted_ms += own
        if getattr(event, "is_python_function", False):  # with_stack: frames are no operators
            profile.python_ms += own
            continue
        if event.is_user_annotation:
            profile.python_ms += own
            marked = ranges.setdefault(event.name, RangeRow(event.name))
            marked.calls += 1
            marked.total_cpu_ms += event.cpu_time_total / 1000
            marked.self_cpu_ms += own
            continue
        operator = operators.setdefault(event.name, OperatorRow(event.name))
        operator.calls += 1
        operator.self_cpu_ms += own
        operator.self_device_ms += event.self_device_time_total / 1000
        operator.self_cpu_bytes += event.self_cpu_memory_usage
        operator.self_device_bytes += event.self_device_memory_usage
    profile.operators = sorted(operators.values(), key=lambda o: (-o.self_device_ms, -o.self_cpu_ms))
    profile.ranges = list(ranges.values())
    profile.kernels = sorted(kernels.values(), key=lambda k: -k.total_ms)
    profile.copies = sorted(copies.values(), key=lambda k: -k.total_ms)
    profile.kernels_ms = sum(k.total_ms for k in profile.kernels)
    profile.copies_ms = sum(k.total_ms for k in profile.copies)
    profile.span_ms = sum(event.cpu_time_total for event in whole) / 1000
    if profile.span_ms and abs(profile.accounted_ms / profile.span_ms - 1) > 0.02:
        profile.notes.append(
            f"Own times add up to {profile.accounted_ms:.2f} ms, and {profile.span_ms:.2f} ms passed: "
            "the profiler lost events, or recorded some that overlap (Python frames do, with_stack=true)."
        )
    return profile


def _inside(event: Any, around: Any) -> bool:
    return bool(
        event.thread == around.thread
        and around.time_range.start <= event.time_range.start
        and event.time_range.end <= around.time_range.end
    )
