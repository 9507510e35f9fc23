"""The answer of a report: the one stage to look at, why, what to do first, and all fixes with what each would gain.

Part of the finished result (`model.py`); `analysis/verdicts/conclusion.py` makes it, and every output shows it first.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from attrs import Factory, asdict, define, evolve

from llm_perf_opt.metrics.quantity import Quantity


@define(frozen=True)
class CodeLine:
    """A line of the program that a fix is about."""

    file: str
    line: int
    function: str
    time_ns: float | None


@define(frozen=True)
class IdleLine:
    """A line of the program in which the host was while the GPU was idle."""

    file: str
    line: int
    function: str
    cause: str  # as of `IdleCause`
    time_ns: int


@define(frozen=True)
class KernelSource:
    """What launches a kernel, whatever its launch configuration."""

    kernel_name: str
    operator: str  # of PyTorch, with M×N×K of a product; the one that takes most time, "" where none is known
    lines: list[CodeLine] = Factory(list)  # of the program, most time first


@define(frozen=True)
class LineRecord:
    """A line of the program's own source: what it launched, and how long the GPU was idle while the host was in it."""

    file: str
    line: int
    function: str
    calls: int
    time: Quantity  # of the kernels
    share: float | None  # of the kernel time of the region
    kernels: list[str] = Factory(list)  # short names, those that take most time first
    operators: list[str] = Factory(list)  # of PyTorch, with M×N×K of products, where the recording has them
    flops: Quantity | None = None  # by the join, of the launches whose signature was sampled
    dram: Quantity | None = None
    of_roof: float | None = None  # time at the roof over time, of those launches
    idle: Quantity | None = None  # the GPU waited meanwhile
    called_from: CodeLine | None = None  # the user's own line that leads there, where this one is in a library
    text: str = ""  # the line itself, where the report was built on the machine of the run


@define(frozen=True)
class AlsoIn:
    """The cause of a fix in another stage: what it is there."""

    stage: str  # key
    gain_ns: float  # of one steady instance of that stage
    gain_share: float
    because: str
    gain_interval_ns: list[float] | None = None
    lines: list[CodeLine] = Factory(list)


@define(frozen=True)
class Fix:
    """One thing to do, and what it would gain at most in one steady instance of its stage."""

    rule: str  # id of the cause: "launch.graph", "copy.host" …
    stage: str  # key
    gain_ns: float
    gain_share: float  # of the time of the instance; the gains of a stage never add up to more than 1
    action: str
    because: str
    gain_interval_ns: list[float] | None = None  # None: in a report of an older version
    lines: list[CodeLine] = Factory(list)
    tried: dict[str, Any] | None = None  # what happened when it was tried; None: it was not
    also: list[AlsoIn] = Factory(list)  # other stages that the same thing gains in, most in all first

    def of_each_stage(self) -> Iterator[Fix]:
        """It as a fix of each of its stages."""
        yield evolve(self, also=[])
        for one in self.also:
            yield evolve(self, **asdict(one, recurse=False), also=[])


@define(frozen=True)
class Answer:
    """What every output shows first. `where`, `why` and `do_first` speak of one stage."""

    stage: str = ""  # key; empty where nothing could be evaluated
    verdict: str = "unknown"  # what holds it back: "launch", "dram", "tensor" …
    confidence: str = "low"  # "high" | "medium" | "low"
    where: str = ""
    why: str = ""
    do_first: str = ""
    fixes: list[Fix] = Factory(list)  # those of the stage first, the largest gain first; one for a cause in several

    @property
    def stage_fixes(self) -> list[Fix]:
        """Those of each stage: a cause that several have is there for each of them."""
        return [each for fix in self.fixes for each in fix.of_each_stage()]

    def fixes_of(self, stage: str) -> list[Fix]:
        """Those of one stage, by its key, in the order of this answer or the largest gain first."""
        found = [fix for fix in self.stage_fixes if fix.stage == stage]
        return found if stage == self.stage else sorted(found, key=lambda fix: -fix.gain_ns)

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The three lines with their names."""
        named = (("Where", self.where), ("Why", self.why), ("Do first", self.do_first))
        return [(name, text) for name, text in named if text]

    def __str__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.lines)

    def _repr_html_(self) -> str:
        shown = (f"<dt><b>{name}</b></dt><dd>{escape(text)}</dd>" for name, text in self.lines)
        return f"<dl>{''.join(shown)}</dl>"
