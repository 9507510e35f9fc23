"""Why the GPU waits in a region, and how its steps look from the GPU's side: part of the finished result (`model.py`)."""

from __future__ import annotations

from attrs import Factory, define

from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.fixes import IdleLine

_FILLED = 0.9  # of the time from step to step, from which on nothing else is said to lie in it


@define(frozen=True)
class GapSize:
    """Gaps of one size: from `at_least_ns` up to the next larger size."""

    at_least_ns: int
    gaps: int
    time_ns: int
    share: float  # of the idle time


@define(frozen=True)
class IdleCause:
    """Idle time with one cause: what the host did meanwhile."""

    # "data" | "sync" | "alloc" | "module" | "copy" | "launch" | "python" | "thread" | "unseen" | "replan" | "compile"
    # | "gpu" | "end" | "startup"
    cause: str
    what: str  # the range, operator, function or call that covers most of each gap; "" where none has a name
    gaps: int
    time_ns: int


@define(frozen=True)
class IdleTime:
    """The gaps between the GPU work of a process while a region runs, all steady instances together."""

    total_ns: int
    gaps: int
    sizes: list[GapSize] = Factory(list)  # largest first
    causes: list[IdleCause] = Factory(list)  # most time first
    lines: list[IdleLine] = Factory(list)  # where the host was meanwhile, most time first; empty where nothing tells
    # By cause, "" of all together: the 10th and the 90th percentile of the steady instances as parts of their mean, which
    # lies between them; empty where there is one instance.
    spread: dict[str, list[float]] = Factory(dict)

    def by_cause(self) -> dict[str, int]:
        """Time of each cause, most first."""
        found: dict[str, int] = {}
        for one in self.causes:
            found[one.cause] = found.get(one.cause, 0) + one.time_ns
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@define(frozen=True)
class GpuSide:
    """The instances of a region from the GPU's side: each from the first start to the last end of its work.

    A program that runs ahead of the GPU closes its ranges before their work has begun; their host times say nothing.
    """

    instances: int  # with GPU work
    time_ns: int  # all of them, and the short pauses between them
    idle_ns: int  # of that, the GPU ran nothing of the process
    idle_between_ns: int  # of that, between the end of one instance and the start of the next
    step_ns: int | None  # from start to start, median; None where there is but one

    @property
    def each(self) -> str:
        """How long one takes: from step to step, if little else lies between two, or else its own time on average."""
        if self.step_ns is None:
            return ""
        mean = self.time_ns / self.instances
        return (
            f"one every {shown(nanoseconds(self.step_ns))}"
            if self.fills_steps
            else f"{shown(nanoseconds(mean))} each on average"
        )

    @property
    def fills_steps(self) -> bool:
        """Little else lies between two: what one takes is the time from step to step."""
        return self.step_ns is not None and self.time_ns >= _FILLED * self.step_ns * self.instances
