"""The one region table: `regions.csv`, data frames, and the tables of regions that people read.

A row is a region of a scope. Columns with a `name` are for programs, unscaled, units in the name; those with a
`title` for people. docs/export.md says what each of the former is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import define

from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionPerformance, Scope
from llm_perf_opt.regions.ranking import is_host_only
from llm_perf_opt.report.columns import Column, count
from llm_perf_opt.report.stages import in_unit, of_performance, used
from llm_perf_opt.report.text import duration, gpu_time, heaviest, idle_share, percent, quantity, rows, work_count

# Which recordings have something to show in a column: all, those without and with GPU work, with a timeline, with both.
ON_HOST, ON_GPU, TIMED, GPU_TIMED = "host", "gpu", "timeline", "gpu and timeline"
# Those of programs that were measured by themselves on a GPU.
WITH_ENERGY, WITH_MEMORY = "energy", "memory"


@define
class RegionRow:
    """A region with what its row needs beside it."""

    scope: Scope
    region: NCUProfileRegion
    around: NCUProfileRegion | None = None  # its parent
    indent: int = 0
    text: str = ""  # its name, or its path where the parent is not shown


def mean_ns(region: NCUProfileRegion) -> float | None:
    """How long one instance takes, once the program is warm."""
    if region.timing is not None and region.timing.steady.median_ns is not None:
        return region.timing.steady.median_ns
    return region.wall_ns / region.instances if region.wall_ns is not None and region.instances else None


def _of(value: Callable[[NCUProfileRegion], Any]) -> Callable[[RegionRow], Any]:
    return lambda row: value(row.region)


def _evaluated(value: Callable[[RegionPerformance], Any]) -> Callable[[RegionRow], Any]:
    return _of(of_performance(value))


def _time(region: NCUProfileRegion) -> float | None:
    return gpu_time(region.inclusive)


def _own_time(region: NCUProfileRegion) -> float | None:
    return gpu_time(region.exclusive)


def _share_of_all(row: RegionRow) -> float | None:
    time, total = gpu_time(row.region.inclusive), gpu_time(row.scope.totals)
    return time / total if time is not None and total else None


def _share_around(row: RegionRow) -> float | None:
    wall, whole = row.region.wall_ns, row.around.wall_ns if row.around is not None else None
    return wall / whole if wall is not None and whole else None


def _used(name: str, unit: str) -> Callable[[NCUProfileRegion], str]:
    """Energy or memory of one steady instance, in words."""
    return lambda region: quantity(getattr(region.timing, name, None), unit)


_WALL = "from start to end of the range on the host, all instances"
_IDLE = "part of the wall time in which the GPU ran nothing of this process"
_NESTED = "sum of kernel durations, nested regions included"
_C = Column[RegionRow]

REGION_COLUMNS: tuple[_C, ...] = (
    _C("scope", lambda row: row.scope.scope),
    _C("region", _of(lambda r: r.key)),
    _C("name", _of(lambda r: r.name)),
    _C("domain", _of(lambda r: r.domain)),
    _C("parent", _of(lambda r: r.parent)),
    _C("depth", _of(lambda r: r.depth)),
    _C("range_kind", _of(lambda r: r.range_kind)),
    _C("instances", _of(lambda r: r.instances), "inst.", count, "how often the range was opened", from_width=72),
    _C("wall_ns", _of(lambda r: r.wall_ns), "wall", duration, _WALL, from_width=0, where=TIMED),
    _C("", _of(mean_ns), "each", duration, "the wall time of one instance", from_width=0, where=ON_HOST),
    _C("", _share_around, "of the region around", percent, from_width=0, where=ON_HOST),
    _C("", _of(_used("energy_j", "J")), "energy", str, "of one instance", from_width=84, where=WITH_ENERGY),
    _C(
        "",
        _of(_used("memory_peak_bytes", "byte")),
        "memory",
        str,
        "the peak while it is open",
        from_width=96,
        where=WITH_MEMORY,
    ),
    _C(
        "",
        _of(_used("memory_growth_bytes", "byte")),
        "growth",
        str,
        "of memory, in one instance",
        from_width=108,
        where=WITH_MEMORY,
    ),
    _C("gpu_busy_ns", _of(lambda r: r.gpu_busy_ns)),
    _C("gpu_idle_ns", _of(lambda r: r.gpu_idle_ns)),
    _C("", _of(idle_share), "GPU idle", percent, _IDLE, from_width=0, where=GPU_TIMED),
    _C("idle", _of(idle_share), from_width=92, is_bar=True, where=GPU_TIMED),
    _C("kernels", _of(lambda r: r.inclusive.kernel_count)),
    _C("own_kernels", _of(lambda r: r.exclusive.kernel_count)),
    _C("", _of(lambda r: r.inclusive), "kernels", work_count, from_width=62, where=ON_GPU),
    _C("gpu_time_ns", _of(_time), "GPU time", duration, _NESTED, from_width=0, where=ON_GPU),
    _C("own_gpu_time_ns", _of(_own_time), "own", duration, "without nested regions", from_width=100, where=ON_GPU),
    _C("", _share_of_all, "of all", percent, "share of all GPU time of the recording", from_width=82, where=ON_GPU),
    _C("busy", _share_of_all, is_bar=True, where=ON_GPU),
    _C("copies", _of(lambda r: r.inclusive.memory.count)),
    _C("copy_time_ns", _of(lambda r: r.inclusive.memory.time_ns)),
    _C("copied_bytes", _of(lambda r: r.inclusive.memory.bytes)),
    _C("graph_launches", _of(lambda r: r.inclusive.graph_launches)),
    _C("graph_time_ns", _of(lambda r: r.inclusive.graph_time_ns)),
    _C("adopted_kernels", _of(lambda r: r.adopted_kernels)),
    _C("graph_kernels", _of(lambda r: r.graph_kernels)),
    _C("verdict", _evaluated(lambda p: p.verdict.bound)),
    _C("verdict_title", _evaluated(lambda p: p.verdict.title)),
    _C("confidence", _evaluated(lambda p: p.verdict.confidence)),
    _C("kernel_verdict", _evaluated(lambda p: p.gpu_verdict.bound)),
    _C("flops", _evaluated(lambda p: in_unit(p.work.flops, "FLOP"))),
    _C("dram_bytes", _evaluated(lambda p: in_unit(p.work.dram, "B"))),
    _C("intensity_flop_per_byte", _evaluated(lambda p: in_unit(p.intensity, "FLOP/B"))),
    _C("mfu_wall", _evaluated(used("mfu", "wall"))),
    _C("mfu_busy", _evaluated(used("mfu", "busy"))),
    _C("mbu_wall", _evaluated(used("mbu", "wall"))),
    _C("mbu_busy", _evaluated(used("mbu", "busy"))),
    _C("speed_of_light_ns", _evaluated(lambda p: in_unit(p.speed_of_light.limit, "ns") if p.speed_of_light else None)),
    _C("time_source", _of(lambda r: r.time_source)),
    _C("nvtx_include", _of(lambda r: r.nvtx_include)),
    # The same values under the names of report.json, for programs that know those.
    _C("path", _of(lambda r: r.key)),
    _C("kernel_count", _of(lambda r: r.inclusive.kernel_count)),
    _C("exclusive_kernel_count", _of(lambda r: r.exclusive.kernel_count)),
    _C("exclusive_gpu_time_ns", _of(_own_time)),
    _C("memory_count", _of(lambda r: r.inclusive.memory.count)),
    _C("memory_time_ns", _of(lambda r: r.inclusive.memory.time_ns)),
    _C("memory_bytes", _of(lambda r: r.inclusive.memory.bytes)),
)

# A bar's name is its colour on the page; all other names are for programs.
PROGRAM_COLUMNS = tuple(c for c in REGION_COLUMNS if c.name and not c.is_bar)


def shown_columns(report: NCUProfileRegionReport) -> list[_C]:
    """The columns that this report has something to show in."""
    scope = report.main_scope
    host_only = is_host_only(report)
    has = {"", ON_HOST if host_only else ON_GPU}
    if scope is not None and any(r.wall_ns is not None for r in scope.regions):
        has |= {TIMED} if host_only else {TIMED, GPU_TIMED}
    timings = [region.timing for region in scope.regions if region.timing is not None] if scope is not None else []
    has |= {WITH_ENERGY} if any(timing.energy_j is not None for timing in timings) else set()
    has |= {WITH_MEMORY} if any(timing.memory_peak_bytes is not None for timing in timings) else set()
    return [c for c in REGION_COLUMNS if c.for_people and c.where in has]


def shown_rows(scope: Scope, most: int) -> list[RegionRow]:
    """The heaviest regions as lines of a tree. One whose parent is not shown gets its whole path."""
    by_key = {region.key: region for region in scope.regions}
    return [
        RegionRow(scope, region, by_key.get(region.parent) if region.parent is not None else None, indent, text)
        for indent, text, region in rows(heaviest(scope.regions, most))
    ]


def all_rows(report: NCUProfileRegionReport) -> Iterator[RegionRow]:
    """One row per scope and region."""
    return (RegionRow(scope, region) for scope in report.scopes for region in scope.regions)
