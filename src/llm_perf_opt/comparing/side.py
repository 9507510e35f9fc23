"""One side of a comparison: what a run takes, region by region, whatever it was read from.

Recordings, measured runs, reports and stored baselines all become a `Side`; nothing behind it knows which. Values are
per steady instance of a region, so that a run of 60 steps can be compared with one of 50.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import Factory, define, field
from numpy.typing import NDArray

from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.regions.names import short_kernel_name

Floats = NDArray[np.float64]

UNDISTURBED, TIMELINE, GPU, COUNTERS = "undisturbed", "timeline", "GPU side of the timeline", "counters"
# Where both sides have several, the first of these that both have is compared.
SOURCES = (UNDISTURBED, GPU, TIMELINE, COUNTERS)
RECORDERS = {"nsys-sqlite": "Nsight Systems", "kineto": "the PyTorch profiler"}

# What is counted, not timed: two runs of one program agree to the last one. In the order of outputs.
LAUNCHES, KERNELS, SYNCS, REPLAYS = "launches", "kernels", "synchronisations", "graph replays"
COPIES, COPIED, TENSOR, DRAM = "copies", "copied bytes", "tensor operations", "DRAM bytes"
RECOMPILATIONS, PEAK_MEMORY = "recompilations", "peak memory"
COUNTED = (LAUNCHES, KERNELS, REPLAYS, SYNCS, COPIES, COPIED, TENSOR, DRAM, RECOMPILATIONS, PEAK_MEMORY)
BYTES = (COPIED, DRAM, PEAK_MEMORY)
_EARLY = 0.1  # of the time on the host, GPU work after the end of a range
REST = "(other kernels)"  # stands for those that a side does not list one by one


@define(frozen=True, eq=False)
class Times:
    """How long the steady instances of a region took, run by run, in the order they began."""

    runs: tuple[Floats, ...]  # ns; one run where the program was run once
    spread: float | None = None  # relative, between instances, where only a summary of them is known
    instances: int = 0
    # Only the host's clock was read, in a program that uses a GPU: that says how long launching took.
    by_host: bool = False

    @staticmethod
    def of(runs: Sequence[NDArray[np.generic]], *, by_host: bool = False) -> Times:
        arrays = tuple(np.maximum(np.asarray(run, dtype=np.float64), 1.0) for run in runs if len(run))
        return Times(arrays, instances=sum(len(run) for run in arrays), by_host=by_host)

    @property
    def medians(self) -> Floats:
        """Of each run."""
        return np.array([float(np.median(run)) for run in self.runs])

    @property
    def typical(self) -> float:
        """What an instance takes: the geometric mean of the runs' medians, ns."""
        return float(np.exp(np.log(self.medians).mean()))


SignatureKey = tuple[str, tuple[int, ...], tuple[int, ...]]  # name, grid, block
# By signature: lines of the program that launch it, `file.py:12`, each with how often, per instance.
LaunchLines = Mapping[SignatureKey, Mapping[str, float]]


@define(frozen=True)
class KernelUse:
    """Launches of one signature in a region, per instance of it. Copies and whole graphs are in here, too."""

    name: str
    calls: float
    time_ns: float  # of all its calls
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    flops: float | None = None  # of one launch, as the next
    tensor: float | None = None
    dram: float | None = None
    kind: str = "kernel"  # "kernel" | "copy" | "graph" | "rest"

    @property
    def short(self) -> str:
        return short_kernel_name(self.name) if self.kind == "kernel" else self.name

    @property
    def family(self) -> str:
        return family_of(self.name) if self.kind == "kernel" else self.kind

    @property
    def signature(self) -> SignatureKey:
        return self.name, self.grid, self.block

    @property
    def blocks(self) -> int:
        return int(np.prod(self.grid)) if self.grid else 0


def shortened(uses: Sequence[KernelUse], most: int) -> list[KernelUse]:
    """The longest, and the rest as one, so that the sum stays what it is."""
    if len(uses) <= most:
        return list(uses)
    ordered = sorted(uses, key=lambda use: -use.time_ns)
    kept = [use for use in ordered[:most] if use.kind != "rest"]
    left = [*(use for use in ordered[:most] if use.kind == "rest"), *ordered[most:]]
    return [*kept, rest_of(sum(u.calls for u in left), sum(u.time_ns for u in left))]


def rest_of(calls: float, time_ns: float) -> KernelUse:
    """What a side does not list one by one."""
    return KernelUse(REST, float(calls), float(time_ns), kind="rest")


@define(eq=False)
class RegionSide:
    """One region of one side."""

    key: str
    path: tuple[str, ...]
    parent: str | None
    times: dict[str, Times] = Factory(dict)  # by source
    instances: int = 0  # steady ones
    weight_ns: float = 0.0  # all of them together
    busy_ns: float | None = None  # union of the GPU work of an instance; None: nothing was recorded of it
    early: float = 0.0  # GPU work after the range was closed on the host, as a part of its time there
    counts: dict[str, float] = Factory(dict)  # of COUNTED, per instance
    recorded: int = 0  # instances whose GPU work was recorded: what the counts are of
    numbers: tuple[float, ...] = ()  # means of the numbers that stars of its name stand for
    _kernels: Callable[[], list[KernelUse]] | list[KernelUse] = Factory(list)
    # Signatures in the order of their launches, of one instance; empty where it is not known.
    _order: Callable[[], list[SignatureKey]] | None = None
    _lines: Callable[[], LaunchLines] | None = None  # None: the recording tells of no code
    _idle: Callable[[], dict[str, float]] | None = None  # None: the gaps of its GPU are not known
    _shares: dict[str, float] | None = None

    @property
    def kernels(self) -> list[KernelUse]:
        """All GPU work; worked out when somebody asks."""
        if callable(self._kernels):
            self._kernels = self._kernels()
        return self._kernels

    def time_shares(self) -> dict[str, float]:
        """By name of a kernel: its part of the GPU time."""
        if self._shares is None:
            found: dict[str, float] = {}
            for use in self.kernels:
                found[use.name] = found.get(use.name, 0.0) + use.time_ns
            total = sum(found.values())
            self._shares = {name: time / total for name, time in found.items()} if total else {}
        return self._shares

    def launch_order(self) -> list[SignatureKey]:
        return self._order() if self._order is not None else []

    def launch_lines(self) -> LaunchLines:
        return self._lines() if self._lines is not None else {}

    def idle_by_cause(self) -> dict[str, float] | None:
        """What the host did while the GPU waited, ns of an instance; None where no recording tells."""
        return self._idle() if self._idle is not None else None

    @property
    def has_work(self) -> bool:
        return self.busy_ns is not None

    @property
    def ends_early(self) -> bool:
        """Its ranges end before their GPU work: how long they are on the host says little."""
        return self.early > _EARLY

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else self.key


def sources_of(regions: Sequence[RegionSide]) -> list[str]:
    """Which times of a region to compare, best first; those of the GPU's side only where a range ends early."""
    early = any(region.ends_early or set(region.times) == {GPU} for region in regions)
    return [source for source in SOURCES if source != GPU or early]


@define(eq=False)
class Side:
    """One run, or several runs of the same program."""

    label: str
    regions: dict[str, RegionSide] = Factory(dict)  # in the order of the tree
    gpus: tuple[str, ...] = ()
    command: tuple[str, ...] = ()  # of the program, secrets removed
    inputs: str = ""  # what the program read, where it is known
    clock_mhz: float | None = None  # median of the SM clock while it was measured
    recorders: tuple[str, ...] = ()  # what took its timelines, as readers call it: each slows the host in its own way
    cpu_wait: float | None = None  # part of the time in which its threads could run that they waited for a CPU
    made_at: str = ""
    left_out_ns: float = 0.0  # of a baseline: regions that took less are not in it
    diagnostics: list[str] = field(factory=list)
    accepted: list[dict[str, str]] = Factory(list)  # of a baseline: changes that somebody let pass
