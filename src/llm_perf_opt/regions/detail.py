"""What a picture of a timeline needs and a report does not: launches of a few chosen stretches, instances, trends.

It is bounded whatever the size of the recording, and it is no part of `report.json`: it is made with the report
where an output draws it.
"""

from __future__ import annotations

from attrs import define

from llm_perf_opt.regions.columns import Bools, Int32s, Int64s
from llm_perf_opt.regions.table import RegionTable

KERNEL, COPY, GRAPH = 0, 1, 2
MOST_REGIONS = 2_000  # whose launches and trends are kept: the heaviest, with those around them

# Levels of a trend, least first; `NO_LAUNCH` where a kernel did not run.
TREND_LEVELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
NO_LAUNCH = "."


@define
class Window:
    """A stretch of one process's time that is kept launch by launch."""

    process: int
    start: int
    end: int
    cut: bool = False  # the instance it was made for goes on after its end


@define(eq=False)
class Launches:
    """GPU work in the windows: window by window, each in order of start."""

    window: Int32s
    kind: Int32s  # KERNEL | COPY | GRAPH
    name: Int32s  # index into the timeline's strings
    device: Int32s
    start: Int64s
    end: Int64s
    host_time: Int64s  # when the launching call began; UNKNOWN where it was not recorded
    region: Int64s  # innermost region, or ROOT


@define(eq=False)
class Instances:
    """Range instances with a part in the windows: window by window, outer before inner."""

    window: Int32s
    region: Int64s
    number: Int32s  # which instance of its region, from 0
    start: Int64s
    end: Int64s


@define(eq=False)
class HostCode:
    """What launching threads were in, window by window: lines, or else operators and calls; of many the longest."""

    window: Int32s
    place: Int32s  # index into the timeline's strings
    start: Int64s
    end: Int64s


@define(eq=False)
class InstanceStrip:
    """How long the instances of a region took, in the order they began. Of many, a bar stands for several.

    The first `alone` bars are of one instance each; the others share the remaining instances evenly.
    """

    instances: int
    alone: int
    shortest: Int64s  # one element a bar, as what follows
    median: Int64s
    longest: Int64s
    warmup: Bools  # an instance of the bar is warm-up, or inside one
    steady: tuple[int, int, int] | None  # the 10 %, 50 % and 90 % quantile of the steady ones; None: there are none


@define(eq=False)
class TimelineDetail:
    """Chosen windows of a timeline, how long every instance of a region took, and how kernels change over them."""

    windows: list[Window]
    launches: Launches
    instances: Instances
    strings: list[str]
    table: RegionTable
    profiled: bool  # the timeline is of a program under a profiler
    code: HostCode
    strips: dict[int, InstanceStrip]  # region number -> all its instances, where there are several
    trends: dict[int, dict[str, str]]  # region number (ROOT: everything) -> kernel name -> one level per group
