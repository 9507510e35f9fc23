"""What readers hand over: columns of a timeline, and the results of a counter run.

A timeline of ten million kernels is a handful of NumPy arrays; objects begin at the region. A counter
run has thousands of results at the most, so those are objects from the start. Names stay as recorded:
making them safe to show is the reporters' work.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import Factory, define, field, fields
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.metrics.catalogue import TIME
from llm_perf_opt.regions.collective_messages import Messages
from llm_perf_opt.regions.gpu_samples import GpuSamples
from llm_perf_opt.regions.traffic import SampledGpu, Traffic

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]

UNKNOWN = -1  # in an index or time column: the recording does not say
UNKNOWN_HERE = -(1 << 62)  # in a column that may be negative


@define(eq=False)
class LaunchConfig:
    """What makes a signature besides the name. Read only where counters are to be joined."""

    mangled: Int32s  # index into Timeline.strings
    short: Int32s
    grid: Int32s  # shape (n, 3)
    block: Int32s  # shape (n, 3)
    shared_memory: Int32s  # static plus dynamic, bytes


@define(eq=False)
class Work:
    """GPU work of one kind, one element per launch, in the order of `start`."""

    start: Int64s
    end: Int64s
    process: Int32s  # index into Timeline.processes
    device: Int32s  # device id as recorded
    name: Int32s  # index into Timeline.strings
    host_time: Int64s  # when the launching call began; UNKNOWN where it was not recorded
    thread: Int32s  # index into Timeline.threads of the launching thread
    graph_node: Int32s  # index into Timeline.graph_nodes; UNKNOWN for work outside CUDA graphs
    bytes: Int64s | None = None  # copies and fills only
    pageable: Bools | None = None  # copies and fills only: from or to memory of the host that is not pinned
    config: LaunchConfig | None = None  # kernels only
    stream: Int32s | None = None  # as recorded; read only where it is asked for

    def __len__(self) -> int:
        return len(self.start)

    @staticmethod
    def empty() -> Work:
        times, numbers = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        none = np.zeros(0, dtype=np.bool_)
        return Work(times, times, numbers, numbers, numbers, times, numbers, numbers, bytes=times, pageable=none)


@define(eq=False)
class Ranges:
    """NVTX range instances (or user annotations of a PyTorch trace)."""

    start: Int64s
    end: Int64s  # the end of the recording where a range was never closed
    process: Int32s
    thread: Int32s
    domain: Int32s  # index into Timeline.domains
    name: Int32s  # index into Timeline.strings
    start_end: Bools  # True: start/end range, False: push/pop
    took: Int64s | None = None  # what each takes, where that is known better than from begin and end
    # Of a program that was measured by itself; UNKNOWN_HERE where an instance has none.
    gpu_start: Int64s | None = None  # when the GPU got to it; `took` is then the GPU's time
    memory_peak: Int64s | None = None  # bytes of PyTorch's allocator, the most while it was open
    memory_growth: Int64s | None = None  # at its end, against its beginning
    recorded: Int32s | None = None  # the names as recorded, where `name` stands for several of them

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Int64s:
        return self.end - self.start if self.took is None else self.took

    @property
    def recorded_name(self) -> Int32s:
        return self.name if self.recorded is None else self.recorded

    def followed_by(self, more: Ranges) -> Ranges:
        """These and others, which take what begin and end say and are called as recorded."""
        both: dict[str, Any] = {}
        for name in (f.name for f in fields(Ranges)):
            mine, theirs = getattr(self, name), getattr(more, name)
            if mine is not None:
                usual = {"took": more.duration, "recorded": more.name}.get(name)
                missing = np.full(len(more), UNKNOWN_HERE) if usual is None else usual
                both[name] = np.concatenate([mine, missing if theirs is None else theirs])
        return Ranges(**both)

    def chosen(self, which: Bools) -> Ranges:
        """Those that `which` is true for."""
        columns: list[Any] = [getattr(self, column.name) for column in fields(Ranges)]
        chosen: list[Any] = [None if column is None else column[which] for column in columns]
        return Ranges(*chosen)

    @staticmethod
    def empty() -> Ranges:
        times, numbers = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        return Ranges(times, times, numbers, numbers, numbers, numbers, np.zeros(0, dtype=np.bool_))


@define(frozen=True)
class NumberRange:
    """A number that varies in the names of a region's instances."""

    min: int
    max: int
    mean: float  # over the instances


@define(frozen=True)
class PooledName:
    """Recorded names that stand for one region (`pooled_names`)."""

    expression: str  # a regular expression for all of them, as ncu takes it
    numbers: list[NumberRange] = Factory(list)  # one for each star of the name


@define(eq=False)
class GraphNodes:
    """Nodes of CUDA graphs, each with the moment and thread of its capture (UNKNOWN where not recorded)."""

    host_time: Int64s
    thread: Int32s

    @staticmethod
    def empty() -> GraphNodes:
        return GraphNodes(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))


# What a program does only once, in the order in which it explains a warm-up.
COMPILATION, GRAPH_CAPTURE, FIRST_USE = ONCE = ("compilation", "graph capture", "first use")


@define(eq=False)
class OnlyOnce:
    """When a program did what comes only once: compiled, captured a graph, loaded a module, took memory."""

    what: Int32s  # index into ONCE
    process: Int32s
    start: Int64s
    end: Int64s

    @staticmethod
    def empty() -> OnlyOnce:
        times, numbers = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        return OnlyOnce(numbers, numbers, times, times)


CALL, OPERATOR, PYTHON, SYSTEM = 0, 1, 2, 3  # kinds of host events
SHORTEST_EVENT = 50_000  # ns: one that is shorter explains no gap worth a name


@define(eq=False)
class HostEvents:
    """What threads did on the host, as far as it can explain why a GPU waits; in no order.

    Calls of the CUDA API, operators and Python functions of `SHORTEST_EVENT` or more; synchronising and copying calls
    whatever their length.
    """

    start: Int64s
    end: Int64s
    process: Int32s
    thread: Int32s  # UNKNOWN for one that neither launches anything nor has ranges
    name: Int32s
    kind: Int32s  # CALL | OPERATOR | PYTHON | SYSTEM: of the operating system

    def __len__(self) -> int:
        return len(self.start)

    @staticmethod
    def empty() -> HostEvents:
        times, numbers = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        return HostEvents(times, times, numbers, numbers, numbers, numbers)


@define(eq=False)
class CodeSpans:
    """In which line of the program's own code a thread was, and when; spans of one thread do not overlap. In no order."""

    start: Int64s
    end: Int64s
    process: Int32s
    thread: Int32s
    place: Int32s  # index into Timeline.strings: `/path/to/file.py(12): function`, see `regions.code`
    # The same of the user's own line that led there, where `place` is in a model of a library; UNKNOWN elsewhere.
    caller: Int32s = Factory(lambda self: np.full(len(self.start), UNKNOWN, dtype=np.int32), takes_self=True)
    # Stands for the time around a sample: right on the whole, and not for any one launch.
    sampled: Bools = Factory(lambda self: np.zeros(len(self.start), dtype=np.bool_), takes_self=True)

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, which: Bools) -> CodeSpans:
        return CodeSpans(*(getattr(self, column.name)[which] for column in fields(CodeSpans)))

    @staticmethod
    def empty() -> CodeSpans:
        times, numbers = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        return CodeSpans(times, times, numbers, numbers, numbers)


@define(eq=False)
class OperatorCalls:
    """Operators of a PyTorch trace, those inside others too; in no order."""

    start: Int64s
    end: Int64s
    thread: Int32s
    name: Int32s
    inputs: Int32s  # what they were given, as `tensors` reads it: an index into Timeline.strings; UNKNOWN: not recorded

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, which: Bools) -> OperatorCalls:
        times, numbers = (self.start[which], self.end[which]), (self.thread[which], self.name[which])
        return OperatorCalls(*times, *numbers, self.inputs[which])

    @staticmethod
    def empty() -> OperatorCalls:
        times, numbers = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        return OperatorCalls(times, times, numbers, numbers, numbers)


@define
class Process:
    """A recorded process. `rank` is set only where the recording or its file name says it."""

    pid: int
    name: str = ""
    rank: int | None = None
    run: int = 0  # which run of the program, where it was run several times
    warm: bool = False  # it was warm before its first range opened
    cpu_wait: float | None = None  # part of the time in which its threads could run that others had the CPU
    range_cost_ns: tuple[int, int] | None = (
        None  # of a measured one, to time a range: at least, and where it comes seldom
    )


@define(eq=False)
class Timeline:
    """One recording of a program over time: nsys SQLite, or a PyTorch/Kineto trace."""

    source: str
    kind: str  # "nsys-sqlite" | "kineto"
    strings: list[str]
    domains: list[str]  # "" is the default domain
    processes: list[Process]
    threads: list[int]  # index of the process each thread belongs to
    kernels: Work
    copies: Work
    graphs: Work  # whole-graph launches: their kernels were not recorded one by one
    ranges: Ranges
    graph_nodes: GraphNodes = field(factory=GraphNodes.empty)
    host: HostEvents = field(factory=HostEvents.empty)
    code: CodeSpans = field(factory=CodeSpans.empty)
    compiled: CodeSpans = field(factory=CodeSpans.empty)  # `place`: operators of the kernel that compiled code launches
    lines_are_functions: bool = False  # lines of `code` are those where functions begin, as PyTorch's profiler has them
    calls: OperatorCalls = field(factory=OperatorCalls.empty)
    devices: dict[int, str] = Factory(dict)  # id -> product name
    environment: dict[str, Any] = Factory(dict)
    diagnostics: list[Diagnosis] = Factory(list)
    gpu_facts: dict[int, dict[str, Any]] = Factory(dict)  # device id -> attributes, as `metrics.hardware` names them
    traffic: dict[int, Traffic] = Factory(dict)  # device id -> what it moved; empty where nsys did not sample that
    traffic_of_parts: list[SampledGpu] = Factory(list)  # the same of several recordings as one
    only_once: OnlyOnce = field(factory=OnlyOnce.empty)
    messages: Messages = field(factory=Messages.empty)  # of collectives; none where the recording does not say
    gpus: list[GpuSamples] = Factory(list)  # of a program that was measured by itself; those it used
    operators: list[str] = Factory(list)  # names of ranges that are operators or modules of a PyTorch trace
    engine_threads: list[int] = Factory(list)  # of PyTorch's autograd engine, where more than ranges tell them
    pools: dict[str, PooledName] = Factory(dict)  # names of ranges that stand for several recorded ones
    merged: dict[int, Any] = field(factory=dict, init=False, repr=False)  # by process, once asked for (`merged_work`)

    @property
    def work(self) -> tuple[Work, Work, Work]:
        """All that the GPU did: kernels, copies, whole graphs."""
        return self.kernels, self.copies, self.graphs

    @property
    def sampled_gpus(self) -> list[SampledGpu]:
        own = [SampledGpu(device, 0, len(self.processes), traffic) for device, traffic in self.traffic.items()]
        return own + self.traffic_of_parts


@define
class MetricInfo:
    """How one counter is called, measured and rolled up over launches."""

    unit: str  # base unit: "byte", "ns", "%", "" …
    rollup: str  # "sum" | "mean" | "max" | "min"


@define
class Rule:
    """One rule result of ncu."""

    rule: str
    title: str
    message: str
    estimated_speedup_percent: float | None


@define(eq=False)
class Action:
    """One result of ncu: a kernel launch, a range, or a whole CUDA graph."""

    kind: str  # "kernel" | "range" | "graph"
    name: str  # as a person should see it; demangled where known
    demangled: str | None = None
    mangled: str | None = None
    short: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    shared_memory: int | None = None
    device: int | None = None
    process: int | None = None  # pid
    push_pop: dict[str, list[str]] = Factory(dict)  # domain -> stack, outermost first
    start_end: dict[str, list[str]] = Factory(dict)  # domain -> open start/end ranges
    metrics: dict[str, float] = Factory(dict)
    passes: int | None = None
    rules: list[Rule] = Factory(list)
    sections: list[str] = Factory(list)
    kernels_inside: int | None = None  # for a range or graph: the kernels it holds
    fill: dict[str, float] = Factory(dict)  # how it fills an SM: `waves`, and blocks that fit by `registers`, `warps` …

    def time_ns(self) -> float | None:
        """Duration as ncu measured it; not the time the kernel takes in the undisturbed program."""
        found = self.metrics.get(TIME)
        return None if found is None or math.isnan(found) else found


@define(eq=False)
class CounterSet:
    """One counter recording: an `.ncu-rep`, or ncu's CSV."""

    source: str
    kind: str  # "ncu-rep" | "ncu-csv"
    actions: list[Action]
    metric_info: dict[str, MetricInfo] = Factory(dict)
    section_metrics: dict[str, list[str]] = Factory(dict)  # section -> counters shown in it
    environment: dict[str, Any] = Factory(dict)
    diagnostics: list[Diagnosis] = Factory(list)
    simplified_names: bool = False  # names as ncu prints them: they join by the printed form only
    gpu_facts: dict[int, dict[str, Any]] = Factory(dict)  # as of a timeline
    pools: dict[str, PooledName] = Factory(dict)  # as of a timeline


Recording = Timeline | CounterSet
