"""What a profiling run is asked for: the one form in which both front ends hand it on."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from attrs import Factory, define

from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics import DEFAULT_LEVEL
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.nsight.nsys.argv import NsysOptions
from llm_perf_opt.nsight.nsys.gpu_metrics import DEFAULT_HZ

Strategy = Literal["auto", "as_given"]
# Kernels of a CUDA graph one by one: as one block they would belong to no module and have no signature.
LIGHT_TIMELINE = NsysOptions(cuda_graph_trace="node")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@define(frozen=True, kw_only=True)
class TimelineRequest:
    """The timeline nsys takes."""

    enable: bool = True
    options: NsysOptions = LIGHT_TIMELINE
    timeout_s: float | None = None
    max_bytes: int = 2 * 10**9  # a recording that grows beyond is ended; 0: no limit
    traffic_hz: int = DEFAULT_HZ  # samples a second of what the GPUs move, where counters are taken; 0: none


@define(frozen=True, kw_only=True)
class CounterRequest:
    """The counters ncu takes. Region patterns are those of the report: what is shown is what is measured."""

    enable: bool = True
    options: NcuOptions = Factory(
        NcuOptions
    )  # as the user gave them; `nvtx_include` stays empty, patterns go in the report's
    # auto: the timeline decides which launches are worth their cost; as_given: ncu gets the options and nothing else.
    strategy: Strategy = "auto"
    gating_nvtx: bool = True  # profile inside the chosen regions only
    sample: str = "all"  # instances of a repeated range: all | first | middle | last | every:N
    level: str = DEFAULT_LEVEL  # of the metrics: time | roofline | bound | stalls | full
    budget_s: float | None = None  # for all captures together; None: what a good result takes
    launches: int = 3  # of each kernel and launch configuration, where the strategy is auto
    top_n_kernels: int | None = None  # the heaviest kernels of the chosen regions; None: all
    fallback: bool = True  # where the program does not allow a replay mode, try the next
    windows: bool = True  # have the program switch ncu on around the planned launches only, where it can
    run_to_end: bool = False  # let the program go on under ncu when all planned samples are in
    verify: bool = False  # measure the regions as wholes too, and hold the estimates against that
    timeout_s: float | None = None


@define(frozen=True, kw_only=True)
class AnnotateRequest:
    """Ranges for a Python program that has none of its own."""

    mode: str = "off"  # "off" | "stages" | "modules"
    depth: int = 3  # levels of modules below the model


@define(frozen=True, kw_only=True)
class ProfileRequest:
    """A whole run."""

    command: list[str]
    report: ReportOptions = Factory(ReportOptions)
    timeline: TimelineRequest = Factory(TimelineRequest)
    counters: CounterRequest = Factory(CounterRequest)
    annotate: AnnotateRequest = Factory(AnnotateRequest)
    # Run first, without a profiler: the built-in workload times its stages. A program that fails here costs little.
    timings: list[str] = Factory(list)
    strict: bool = False
    by_keys: bool = False  # asked for by configuration keys: advice names those instead of options
    # What makes two runs the same where the command has paths of its own run in it; empty: the command.
    known_as: list[str] = Factory(list)

    @property
    def picks_launches(self) -> bool:
        """Did the user say which launches, so that no plan of ours may narrow or widen it?"""
        given = self.counters.options
        chosen = (given.kernel_name, given.kernel_id, given.launch_skip, given.launch_count, given.filter_mode)
        return any(value is not None for value in chosen)


def bytes_of(size: Any) -> int:
    """`2GB`, `500 MB` or a plain number as bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", str(size).strip(), re.IGNORECASE)
    number = float(found[1]) * _UNITS[found[2].lower()] if found else math.inf
    if number == math.inf:  # hundreds of digits, too
        raise UserError(f"{str(size)[:40]!r} is not a size.", "Write it as in 2GB or 500MB, or 0 for no limit.")
    return int(number)
