"""The finished result: plain attrs classes whose fields are the JSON other programs rely on.

Everything here is built once, by `analysis`, and only read afterwards. Times are integer nanoseconds
unless the field's name says `_ms`; a value that was not measured is `None`, never zero.
"""

from __future__ import annotations

from typing import Any

from attrs import Factory, define

SCHEMA_VERSION = "1.0"


@define
class Diagnosis:
    """Something the reader must know about a result: what, how bad, why, and the next thing to do."""

    code: str
    severity: str  # "info" | "warning" | "error"
    message: str
    fix: str = ""


@define
class KernelRecord:
    """All launches of one kernel on one device inside one region."""

    kernel_name: str
    device: int | None
    total_ms: float | None  # None: counters without a duration, and no timeline
    calls: int
    mean_ms: float | None
    min_ms: float | None
    max_ms: float | None
    short_name: str = ""


@define
class MetricValue:
    """One counter of one region, with what is needed to judge it."""

    value: float
    unit: str
    rollup: str  # "sum" | "mean" (weighted by time) | "max" | "min"
    source: str  # "kernel replay" | "range replay" | "graph replay" | "extrapolated"
    samples: int  # results it was computed from
    launches: int | None = None  # launches it stands for; None where no timeline says
    coverage: float | None = None  # share of the region's GPU time those launches are; None where unknown
    spread: float | None = None  # relative standard error between samples; None where it cannot be known


@define
class MemoryWork:
    """Copies and fills: GPU work that is not a kernel."""

    count: int = 0
    time_ns: int = 0
    bytes: int = 0


@define
class RegionStats:
    """Inclusive or exclusive values of a region."""

    gpu_time_ns: int | None  # sum of kernel durations; None where none was measured
    kernel_count: int
    metrics: dict[str, MetricValue] = Factory(dict)
    memory: MemoryWork = Factory(MemoryWork)
    graph_launches: int = 0  # whole CUDA graphs traced as one block: their kernels are not in kernel_count
    graph_time_ns: int = 0


@define
class RuleFinding:
    """What ncu's own rule says of a kernel, weighted by the time that kernel takes in the region."""

    kernel_name: str
    rule: str
    title: str
    message: str
    estimated_speedup_percent: float | None
    share_of_gpu_time: float | None


@define
class NCUProfileRegion:
    """One NVTX region: a domain and a path of names, all its instances pooled."""

    name: str
    domain: str  # "" is NVTX's default domain
    path: list[str]  # outermost first
    parent: str | None  # key of the parent region in the same scope
    depth: int
    device: int | None  # None: more than one
    process_id: int | None  # None: more than one, or not recorded
    instances: int | None  # None: the recording has no instances to count
    inclusive: RegionStats
    exclusive: RegionStats
    key: str = ""  # unique in its scope, stable between runs: "domain@a/b" with `/`, `@`, `\` escaped
    range_kind: str = "push_pop"  # "push_pop" | "start_end"
    time_source: str = "timeline"  # "timeline" | "ncu"
    wall_ns: int | None = None  # summed duration of the instances on the host
    gpu_busy_ns: int | None = None  # union of the region's own GPU work
    gpu_idle_ns: int | None = None  # part of wall_ns in which the GPU ran nothing of this process
    adopted_kernels: int = 0  # launched by a thread with no range open, counted to the process's ranges
    graph_kernels: int = 0  # of kernel_count, those that ran inside CUDA graphs
    nvtx_include: str = ""  # the ncu expression that selects this region
    folder: str = ""  # its folder below `regions/`, empty where none was written
    sections: dict[str, Any] = Factory(dict)
    rules: list[RuleFinding] = Factory(list)
    kernels: list[KernelRecord] = Factory(list)
    kernels_omitted: int = 0
    selection: dict[str, list[str]] = Factory(dict)


@define
class ScopeTotals:
    """All GPU work of a scope, inside regions or not."""

    gpu_time_ns: int | None
    kernel_count: int
    unattributed_kernel_count: int = 0  # in no range at all
    unattributed_gpu_time_ns: int | None = 0
    unknown_launch_count: int = 0  # of those, kernels whose launching call is not in the recording
    adopted_kernel_count: int = 0
    graph_kernel_count: int = 0
    graph_launches: int = 0
    graph_time_ns: int = 0
    memory: MemoryWork = Factory(MemoryWork)
    gpu_busy_ns: int | None = None
    span_ns: int | None = None  # first to last event of the recording


@define
class Scope:
    """Regions of one process, one device, one rank, or all of them together."""

    scope: str  # "process:<pid>" | "device:<id>" | "rank:<n>" | "aggregate"
    totals: ScopeTotals
    regions: list[NCUProfileRegion]
    kernels: list[KernelRecord] = Factory(list)  # all kernels of the scope, in regions or not


@define
class Coverage:
    """How far the counters of one input reach into the timeline it was joined to."""

    signatures: int = 0
    signatures_matched: int = 0
    launches: int = 0
    launches_matched: int = 0
    gpu_time_ns: int = 0
    gpu_time_matched_ns: int = 0
    results: int = 0
    results_unmatched: int = 0
    unmatched_signatures: list[str] = Factory(list)  # worst first, cut at 20
    unmatched_results: list[str] = Factory(list)


@define
class LaunchCounter:
    """One counter of one launch."""

    value: float
    unit: str


@define
class ProfiledLaunch:
    """One launch that was picked by hand, with its kernel's place in the timeline."""

    kernel_name: str
    short_name: str
    grid: list[int]
    block: list[int]
    device: int | None
    regions: list[str]  # keys of the innermost ranges open at the launch
    rank: int | None  # 1: no kernel of the program takes more GPU time; None: there is no timeline
    kernels_ranked: int
    share_of_gpu_time: float | None
    calls: int | None  # in the timeline
    total_ms: float | None
    mean_ms: float | None
    passes: int | None
    metrics: dict[str, LaunchCounter] = Factory(dict)


@define
class NCUProfileRegionReport:
    """What `report.json` holds."""

    schema_version: str
    generated_at: str
    config_fingerprint: str
    inputs: list[dict[str, Any]]
    environment: dict[str, Any]
    diagnostics: list[Diagnosis]
    scopes: list[Scope]
    attribution: str = "auto"
    selection: dict[str, list[str]] = Factory(dict)
    available_ranges: list[str] = Factory(list)  # filled where nothing matched: what could have been asked for
    coverage: Coverage | None = None
    launches: list[ProfiledLaunch] = Factory(list)  # filled where ncu was asked for a few launches only

    def scope(self, name: str) -> Scope:
        """The scope called `name`; `KeyError` names the ones that exist."""
        for scope in self.scopes:
            if scope.scope == name:
                return scope
        raise KeyError(f"no scope {name!r}; this report has {[s.scope for s in self.scopes]}")

    @property
    def main_scope(self) -> Scope | None:
        """The aggregate where there is one, otherwise the first scope."""
        for scope in self.scopes:
            if scope.scope == "aggregate":
                return scope
        return self.scopes[0] if self.scopes else None
