"""The finished result: plain attrs classes whose fields are the JSON other programs rely on.

Everything here is built once, by `analysis`, and only read afterwards: a report with something added is another
report (`attrs.evolve`). Regions and their numbers are filled in step by step while they are built, so that only the
classes around and below are frozen. Times are integer nanoseconds; a value that was not measured is `None`, never zero.
"""

from __future__ import annotations

from typing import Any

from attrs import Factory, define, field

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.columns import NumberRange
from llm_perf_opt.regions.copy_work import MemoryWork
from llm_perf_opt.regions.fixes import Answer, CodeLine, KernelSource, LineRecord
from llm_perf_opt.regions.idle import GpuSide, IdleTime
from llm_perf_opt.regions.launch_records import ProfiledLaunch
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.rank_skew import CollectiveUse, Imbalance, RankSkew, RankSteps
from llm_perf_opt.regions.timing import Timing

SCHEMA_VERSION = "1.2"
NOT_IN_JSON = {"in_json": False}  # for fields that exist only while the recording is at hand


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
    family: str = ""  # what kind of work it is: "gemm", "attention", "elementwise" …; "other" where no rule fits


@define
class MetricValue:
    """One counter of one region, with what is needed to rate it."""

    value: float
    unit: str
    rollup: str  # "sum" | "mean" (weighted by time) | "max" | "min"
    source: str  # "kernel replay" | "range replay" | "graph replay" | "GPU sampling" (nsys, with the timeline) | "extrapolated"
    samples: int  # results it was computed from
    launches: int | None = None  # launches it stands for; None where no timeline says
    coverage: float | None = None  # share of the region's GPU time those launches are; None where unknown
    # Relative standard error, between samples and of what is known of such counters; None where it cannot be known.
    spread: float | None = None


@define
class RegionStats:
    """Inclusive or exclusive values of a region."""

    gpu_time_ns: int | None  # sum of kernel durations; None where none was measured
    kernel_count: int
    metrics: dict[str, MetricValue] = field(factory=dict, repr=False)
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
class RegionWork:
    """FLOPs and bytes of a region."""

    flops: Quantity | None = None  # tensor and CUDA cores together, as far as counted
    tensor: dict[str, Quantity] = Factory(dict)  # by data type: "tensor_bf16" …
    cuda_core: dict[str, Quantity] = Factory(dict)  # "cuda_fp32" …; empty where those counters were not collected
    formula: Quantity | None = None  # from the model's shapes, where a static analysis is in the run
    torch_counter: Quantity | None = None  # the same by torch's FLOP counter, which knows no masks
    counted_over_formula: float | None = None
    formula_note: str = ""  # what the ratio means
    dram_read: Quantity | None = None
    dram_written: Quantity | None = None
    dram: Quantity | None = None  # kernels and copies
    copied: Quantity | None = None  # of that, memory traffic of copies and fills, from their sizes in the timeline
    l2: Quantity | None = None
    coverage: float | None = None  # share of the GPU time the counters speak for
    spread: float | None = None  # relative standard error of the worst of them
    missing: list[str] = Factory(list)  # what was not counted, and how to get it


@define
class TimeSplit:
    """Where the time of a region goes, all instances together."""

    # Of the program alone where that was timed, else under the profiler; from the GPU's side where `basis` says so.
    wall: Quantity | None = None
    profiled_wall: Quantity | None = None  # under the profiler, where `wall` is that of the program alone
    busy: Quantity | None = None  # union of the region's GPU work
    idle: Quantity | None = None  # of the wall time, the GPU ran nothing of the process
    kernels: Quantity | None = None  # sum of kernel durations
    copies: Quantity | None = None  # sum of copies and fills
    host_copies: Quantity | None = None  # of those, copies between host and device
    graphs: Quantity | None = None  # CUDA graphs recorded as one block
    overlap: Quantity | None = None  # work that ran together with other work of the region: sums minus union
    collectives: Quantity | None = None  # union of the collectives between GPUs
    exposed_collectives: Quantity | None = None  # of that, no other kernel ran on their GPU
    after_return: Quantity | None = None  # GPU work after the range was closed on the host
    launches: int = 0
    gap_per_launch: Quantity | None = None  # idle time over launches: what a launch costs beyond its kernel
    mean_kernel: Quantity | None = None
    exposed_copies: Quantity | None = None  # of the copies between host and device, nothing else ran meanwhile
    basis: str = "host"  # "host" | "gpu": the ranges end before their work does, `wall` and `idle` are the GPU's


@define(frozen=True)
class Utilisation:
    """Part of a peak that was reached: on which time, against which peak."""

    metric: str  # "mfu" | "mbu"
    time_basis: str  # "wall" | "busy"
    peak_basis: str  # "datasheet" | "computed" | "calibrated"
    value: float  # 0.42 is 42 %
    work: Quantity
    time: Quantity
    peaks: dict[str, Quantity] = Factory(dict)  # the denominators


@define
class FamilyTime:
    """Kernels of one family in a region."""

    family: str
    calls: int
    time: Quantity
    share: float | None  # of the time of kernels and copies
    analysed: Quantity | None = None  # of that time, kernels with counters
    time_at_roof: Quantity | None = None  # of the analysed kernels
    recoverable: Quantity | None = None
    flops: Quantity | None = None
    dram: Quantity | None = None


@define
class SignatureRecord:
    """Launches of one kernel with one launch configuration in a region, against the roofs of the GPU."""

    kernel_name: str
    short_name: str
    family: str
    device: int | None
    grid: list[int]
    block: list[int]
    calls: int
    time: Quantity  # all calls together
    share: float | None  # of the kernel time of the region
    samples: int = 0  # launches whose counters were taken; 0: none, and nothing below is known
    flops: Quantity | None = None
    dram: Quantity | None = None
    l2: Quantity | None = None
    intensity: Quantity | None = None  # FLOP/B of DRAM traffic
    flop_rate: Quantity | None = None
    dram_rate: Quantity | None = None
    shares: dict[str, float] = Factory(dict)  # of each roof, the part that was reached: "tensor", "dram" …
    roof: str = ""  # the one that limits it: "tensor" | "cuda_core" | "dram" | "l2" | "l1" | "sm"
    time_at_roof: Quantity | None = None
    recoverable: Quantity | None = None
    bound: str = ""  # the roof it runs near, or "latency"; "" where it cannot be told
    operator: str = ""  # of PyTorch, with M×N×K of a product; "" where the recording does not say
    lines: list[CodeLine] = Factory(list)  # of the program that launch it, most time first


@define(frozen=True)
class SpeedOfLight:
    """The time a region would take with every kernel at its roof: now = limit + above_roof + waiting + other_work."""

    now: Quantity  # wall time, or the GPU's busy time where that is longer
    limit: Quantity  # kernels at their roofs; copies and kernels without counters as measured
    above_roof: Quantity  # recoverable in kernels
    waiting: Quantity | None  # the GPU runs nothing; None where ranges end before their work, and nothing else tells
    other_work: Quantity | None  # the GPU runs work of other regions; None likewise
    analysed_share: float  # of the kernel time, kernels with counters
    limit_over_now: float

    @property
    def waiting_ns(self) -> float:
        """0 also where it is not known."""
        return 0.0 if self.waiting is None else self.waiting.of("ns")


@define
class TokenRate:
    """Tokens per second, from the instances of steps: of one sequence, or of all where the name tells how many."""

    tokens: Quantity
    now: Quantity
    gpu_only: Quantity | None = None  # without waiting, kernels as they are
    limit: Quantity | None = None  # every kernel at its roof
    source: str = ""


@define(frozen=True)
class Evidence:
    """One number a verdict rests on."""

    text: str
    fact: str
    value: float
    threshold: float | None = None


@define(frozen=True)
class Verdict:
    """What holds a region back."""

    bound: str  # "launch" | "host" | "other_work" | "gpu" | "dram" | "l2" | "l1" | "sm" | "tensor" | "cuda_core" | "latency" | "communication" | "balanced" | "unknown"
    title: str  # "launch-bound"
    text: str  # one sentence with this region's numbers
    confidence: str = ""  # "high" | "medium" | "low"; "" for "unknown"
    confidence_reasons: list[str] = Factory(list)
    evidence: list[Evidence] = Factory(list)
    advice: str = ""
    missing: list[str] = Factory(list)  # facts that were not measured and could change it
    next_step: str = ""  # the command that would tell


@define(frozen=True)
class Opportunity:
    """Time that could be won back, at most."""

    region: str  # key
    kind: str  # "waiting" | "fusion" | "kernels" | "host copies"
    family: str
    text: str
    time: Quantity  # what it takes now
    recoverable: Quantity
    of: Quantity  # the region's time now
    advice: str = ""
    kernels: list[str] = Factory(list)  # the short names that take most of it
    rule: str = ""  # id of the cause: "launch.graph", "copy.host" …
    because: str = ""  # what of the numbers says so
    interval: list[Quantity] | None = None  # that `recoverable` lies in; None: in a report of an older version
    lines: list[CodeLine] = Factory(list)  # that it comes from, most of `time` first; of all instances


@define(frozen=True)
class RuleSummary:
    """One of ncu's rules over all kernels of a region, weighted by their time."""

    rule: str
    title: str
    kernels: int
    share_of_gpu_time: float | None
    weighted_speedup_percent: float | None  # estimated speed-up of each kernel times its share of the time
    message: str = ""  # of the kernel that takes longest


@define(frozen=True)
class RegionPerformance:
    """How far a region is from what the GPU can do, and what holds it back."""

    work: RegionWork
    time: TimeSplit
    verdict: Verdict  # of the region as a whole
    gpu_verdict: Verdict  # of its kernels while they run
    utilisation: list[Utilisation] = Factory(list)
    intensity: Quantity | None = None  # FLOP/B
    ridge: Quantity | None = None  # intensity above which the tensor peak, not the memory, is the roof
    bound_time: dict[str, Quantity] = Factory(dict)  # kernel time by what bounds the kernels; "" is unknown
    families: list[FamilyTime] = Factory(list)
    unclassified_share: float | None = None  # of the kernel time, kernels of no known family
    speed_of_light: SpeedOfLight | None = None
    tokens: TokenRate | None = None
    opportunities: list[Opportunity] = Factory(list)
    signatures: list[SignatureRecord] = Factory(list)  # longest first
    signatures_omitted: int = 0
    ncu_rules: list[RuleSummary] = Factory(list)
    idle: IdleTime | None = None  # why the GPU waits; None where there is no timeline, or next to no waiting
    gpu_side: GpuSide | None = None  # where the region's ranges end before their GPU work does
    lines: list[LineRecord] = Factory(list)  # of the program's own source, most time first
    sources: list[KernelSource] = Factory(list)  # what launches the kernels that take most time
    lines_known: float | None = None  # part of the kernel time whose line is known; None: the recording says nothing
    lines_are_functions: bool = False  # the recording has functions only: the line is where each begins
    # Of the steady instances, as all of the above; None where the region has no warm-up.
    steady: RegionStats | None = field(default=None, eq=False, repr=False, metadata=NOT_IN_JSON)
    instances: int | None = field(default=None, eq=False, repr=False, metadata=NOT_IN_JSON)  # that all this is of


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
    numbers: list[NumberRange] = Factory(list)  # one for each `*` of the name, which stands for a number that varies
    range_kind: str = "push_pop"  # "push_pop" | "start_end" | "recording" (all its work) | "operator" (of a trace)
    time_source: str = "timeline"  # "timeline" | "ncu"
    wall_ns: int | None = None  # summed duration of the instances on the host
    gpu_busy_ns: int | None = None  # union of the region's own GPU work
    gpu_idle_ns: int | None = None  # part of wall_ns in which the GPU ran nothing of this process
    collective_ns: int | None = None  # a collective of the region runs (a union on each device)
    exposed_collective_ns: int | None = None  # of that, no other kernel of the scope runs on the device
    adopted_kernels: int = 0  # launched by a thread with no range open, counted to the process's ranges
    graph_kernels: int = 0  # of kernel_count, those that ran inside CUDA graphs
    graph_replays: int = 0  # launches of the graphs those kernels belong to
    nvtx_include: str = ""  # the ncu expression that selects this region
    folder: str = ""  # its folder below `regions/`, empty where none was written
    sections: dict[str, Any] = field(factory=dict, repr=False)
    rules: list[RuleFinding] = field(factory=list, repr=False)
    kernels: list[KernelRecord] = field(factory=list, repr=False)
    kernels_omitted: int = 0
    selection: dict[str, list[str]] = Factory(dict)
    timing: Timing | None = None  # None: it has no instances
    # Of the steady instances. None: one of the many regions that are too small to be evaluated
    performance: RegionPerformance | None = field(default=None, repr=False)

    @property
    def is_whole_recording(self) -> bool:
        """The recording has no ranges: all its work is in here, and ncu needs no filter to get it."""
        return self.range_kind == "recording"

    @property
    def is_selectable(self) -> bool:
        """Can ncu be made to profile this region's launches?"""
        return bool(self.nvtx_include) or self.is_whole_recording


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
    recorded_ns: int | None = None  # the same of each process, added up
    outside_ranges_ns: int | None = None  # of that, the process had no range open


@define(frozen=True)
class Scope:
    """Regions of one process, one device, one rank, or all of them together."""

    scope: str  # "process:<pid>" | "device:<id>" | "rank:<n>" | "aggregate"
    totals: ScopeTotals
    regions: list[NCUProfileRegion] = field(repr=False)
    kernels: list[KernelRecord] = field(factory=list, repr=False)  # all kernels of the scope, in regions or not


@define(frozen=True)
class Coverage:
    """How far the counters of one input reach into the timeline it was joined to."""

    signatures: int = 0
    signatures_matched: int = 0
    launches: int = 0
    launches_matched: int = 0
    gpu_time_ns: int = 0
    gpu_time_matched_ns: int = 0
    # Of the matched: without a sample of their own, from the same kernel on a grid of nearly the same size.
    signatures_scaled: int = 0
    gpu_time_scaled_ns: int = 0
    results: int = 0
    results_unmatched: int = 0
    unmatched_signatures: list[str] = Factory(list)  # worst first, cut at 20
    unmatched_results: list[str] = Factory(list)


@define(frozen=True)
class VerifiedCounter:
    """One counter of one region: extrapolated from samples, and measured by replaying the region as a whole."""

    region: str  # key
    metric: str
    unit: str
    estimate: float
    truth: float
    ratio: float | None  # estimate over truth; None where the truth is 0
    stated_error: float  # relative: how far apart the estimate lets expect them to be at most
    agrees: bool


@define(frozen=True)
class MeasuredKernel:
    """All results of ncu that are alike: of one kernel with one launch configuration, of one range, of one CUDA graph."""

    kernel_name: str
    short_name: str
    kind: str  # "kernel" | "range" | "graph"
    device: int | None
    grid: list[int]  # empty where it is not one kernel, or where kernels of several sizes are pooled
    block: list[int]
    results: int  # how many; those of all entries together are all that were read
    # Of one launch: sums as the mean over the results, all else as in regions. Units are in `counter_units`.
    metrics: dict[str, float] = field(factory=dict, repr=False)
    rules: list[RuleFinding] = field(factory=list, repr=False)  # what ncu's rules say of them


@define(frozen=True, repr=False)
class NCUProfileRegionReport:
    """What `report.json` holds."""

    schema_version: str
    generation: str = field(default="", kw_only=True)  # an id that all files of one written report carry
    answer: Answer = field(factory=Answer, kw_only=True)
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
    measured: list[MeasuredKernel] = Factory(list)  # every result of ncu, whether or not it is in a region
    counter_units: dict[str, str] = Factory(dict)  # of the counters in `measured`
    verification: list[VerifiedCounter] = Factory(list)  # filled where the run was asked to verify its estimates
    hardware: list[GpuHardware] = Factory(list)  # one per device
    stages: list[str] = Factory(list)  # keys of the regions of the main scope that make up the run, none inside another
    opportunities: list[Opportunity] = Factory(list)  # of the stages, most recoverable time first
    unclassified_share: float | None = None  # of all kernel time, kernels of no known family
    ranks: RankSkew | None = None  # None: one rank, or none with collectives in common
    rank_steps: RankSteps | None = None  # None: one rank, or none with a region in common
    collectives: list[CollectiveUse] = Factory(list)  # by region and kind
    imbalance: list[Imbalance] = Factory(list)  # of experts, of stages of a pipeline
    # A `TimelineDetail` (launches and trends) for pictures; None without a timeline, or where nothing draws it.
    timeline_detail: Any = field(default=None, eq=False, repr=False, metadata=NOT_IN_JSON)

    def __repr__(self) -> str:
        """One line: a report has megabytes, and its `repr` ends up in logs and assertion messages."""
        scopes = ", ".join(scope.scope for scope in self.scopes[:4]) + (", …" if len(self.scopes) > 4 else "")
        main = self.main_scope
        regions = f"{len(main.regions):,} regions, {main.totals.kernel_count:,} kernels" if main else "nothing"
        inputs = ", ".join(visible(str(i.get("path", "?")), 80) for i in self.inputs[:3]) + (
            ", …" if len(self.inputs) > 3 else ""
        )
        return f"<{type(self).__name__} of {ascii(inputs)[1:-1]}: {regions}; scopes: {ascii(scopes)[1:-1]}>"

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
