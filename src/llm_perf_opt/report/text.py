"""Numbers and names as people read them, shared by all reporters that write for people."""

from __future__ import annotations

from llm_perf_opt.metrics.catalogue import counter_of, with_roles
from llm_perf_opt.metrics.quantity import percent as _percent
from llm_perf_opt.metrics.quantity import three_digits
from llm_perf_opt.regions.labels import counted as counted  # for all who write for people, from one place
from llm_perf_opt.regions.labels import full_label as full_label
from llm_perf_opt.regions.labels import label as label
from llm_perf_opt.regions.labels import warmup_note as warmup_note
from llm_perf_opt.regions.labels import without_profiler as without_profiler
from llm_perf_opt.regions.launch_records import ProfiledLaunch
from llm_perf_opt.regions.model import MetricValue, NCUProfileRegion, NCUProfileRegionReport, RegionStats, ScopeTotals
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.ranking import evaluated_instances as evaluated_instances
from llm_perf_opt.regions.ranking import evaluated_times as evaluated_times
from llm_perf_opt.regions.ranking import evaluated_work as evaluated_work
from llm_perf_opt.regions.ranking import gpu_time as gpu_time
from llm_perf_opt.regions.ranking import heaviest as heaviest
from llm_perf_opt.regions.ranking import weight as weight

_TIME_STEPS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_SI_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
NOT_MEASURED = "–"

# What matters first when a region has hundreds of counters.
_TRAFFIC = ("dram_read", "dram_write", "l2")
_THROUGHPUT = ("sm_throughput", "memory_throughput", "occupancy")
# Of one launch, where everything was taken.
LAUNCH_ROLES = ("time", "sm_throughput", "memory_throughput", "dram_throughput", "occupancy", *_TRAFFIC)


def duration(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return NOT_MEASURED
    for step, unit in _TIME_STEPS:
        if abs(nanoseconds) >= step:
            return f"{three_digits(nanoseconds / step)} {unit}"
    return f"{nanoseconds:.0f} ns"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, scaled: `18.5 GB`, `14.1 T`, `37.5 %`."""
    if value is None:
        return NOT_MEASURED
    if unit == "%":
        return f"{value:.1f} %"
    if unit == "ns":
        return duration(value)
    unit = {"byte": "B", "byte/s": "B/s", "hz": "Hz"}.get(unit, unit)
    for step, prefix in _SI_STEPS:
        if abs(value) >= step:
            return f"{three_digits(value / step)} {prefix}{unit}".rstrip()
    return f"{value:.4g} {unit}".rstrip()


def share(part: float | None, whole: float | None) -> str:
    if part is None or not whole:
        return NOT_MEASURED
    return _percent(part / whole)


def percent(value: float | None) -> str:
    return share(value, 1.0)


def bar(part: float | None, whole: float | None, width: int = 12) -> str:
    """A bar of block characters, eighths included."""
    if part is None or not whole:
        return ""
    eighths = round(8 * width * max(0.0, min(1.0, part / whole)))
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def idle_share(region: NCUProfileRegion) -> float | None:
    """Part of the wall time in which the GPU had nothing to do."""
    if region.gpu_idle_ns is None or not region.wall_ns:
        return None
    return region.gpu_idle_ns / region.wall_ns


def trust(value: MetricValue) -> str:
    """How a counter came about, in few words."""
    if value.source != "extrapolated":
        return f"measured ({value.source})"
    words = [counted(value.samples, "sample") + (f" for {counted(value.launches, 'launch')}" if value.launches else "")]
    if value.spread is not None:
        words.append(f"± {100 * value.spread:.1f} %")
    if value.coverage is not None and value.coverage < 0.995:
        words.append(f"covers {100 * value.coverage:.0f} % of the GPU time")
    return ", ".join(words)


def work_count(values: RegionStats | ScopeTotals) -> str:
    """Kernels, and graphs whose kernels were not recorded: `69 + 6 graphs`."""
    graphs = f" + {counted(values.graph_launches, 'graph')}" if values.graph_time_ns else ""
    return f"{values.kernel_count:,}{graphs}"


def rows(regions: list[NCUProfileRegion]) -> list[tuple[int, str, NCUProfileRegion]]:
    """Lines of a tree: indentation, text and region. One whose parent is not shown gets its whole path."""
    indent: dict[str, int] = {}
    lines = []
    for region in regions:
        inside = region.parent is not None and region.parent in indent
        indent[region.key] = indent[region.parent] + 1 if inside and region.parent else 0
        lines.append((indent[region.key], label(region) if inside else full_label(region), region))
    return lines


def counter_title(name: str) -> str:
    """A counter's name for people, where it has one."""
    counter = counter_of(name)
    return counter.title if counter is not None else visible(name, 80)


def verified_rows(report: NCUProfileRegionReport) -> list[tuple[str, str, str, str, str, str, bool]]:
    """Estimate against truth: region, counter, both values, their ratio, the stated error, and whether they agree."""
    return [
        (
            visible(c.region, 120),
            counter_title(c.metric),
            quantity(c.estimate, c.unit),
            quantity(c.truth, c.unit),
            NOT_MEASURED if c.ratio is None else f"{c.ratio:.3f}",
            f"± {100 * c.stated_error:.1f} %",
            c.agrees,
        )
        for c in report.verification
    ]


def interesting_metrics(metrics: dict[str, MetricValue]) -> list[tuple[str, str, MetricValue]]:
    """The few counters to show first: bytes, tensor operations, throughput; with names for people."""
    first = with_roles(metrics, _TRAFFIC)
    tensor = [counter for counter in with_roles(metrics, ("tensor_ops",)) if metrics[counter.name].value]
    shown = [*first, *sorted(tensor, key=lambda counter: counter.name), *with_roles(metrics, _THROUGHPUT)]
    return [(counter.name, counter.title, metrics[counter.name]) for counter in shown]


def launch_place(launch: ProfiledLaunch) -> str:
    """Where a picked launch stands among all kernels: `rank 3 of 41, 8.2 % of the GPU time, 126 launches of 14.1 µs`."""
    if launch.rank is None:
        unranked = "no timeline, so its share of the time is not known"
        return "not among the kernels of the timeline" if launch.kernels_ranked else unranked
    mean = duration(None if launch.mean_ms is None else launch.mean_ms * 1e6)
    return (
        f"rank {launch.rank} of {launch.kernels_ranked}, {share(launch.share_of_gpu_time, 1.0)} of the GPU time, "
        f"{counted(launch.calls or 0, 'launch')} of {mean}"
    )


def launch_headline(launch: ProfiledLaunch) -> list[tuple[str, str]]:
    """The counters to look at first, as far as they were taken."""
    found = [(counter.title, launch.metrics[counter.name]) for counter in with_roles(launch.metrics, LAUNCH_ROLES)]
    return [(title, quantity(value.value, value.unit)) for title, value in found]


def place_words(file: str, line: int, function: str = "") -> str:
    """`train.py:33 step`: the folders of a file are seldom needed."""
    name = visible(file.replace("\\", "/").rpartition("/")[2], 60)
    return f"{name}:{line} {visible(function, 60)}" if function else f"{name}:{line}"
