"""All time accounted for: how much of a recording lies in its stages, and what the rest is.

A stage table alone hides what no stage holds: loading, set-up, ranges that nobody asked about.
"""

from __future__ import annotations

from attrs import define

from llm_perf_opt.regions.libraries import is_library_range
from llm_perf_opt.regions.model import Scope
from llm_perf_opt.report.text import counted, duration, full_label, percent
from llm_perf_opt.report.view import View

_NAMED = 2  # regions outside the stages that are called by their names
_LEAST = 0.0005  # a part of less is shown as 0.0 %: left out
_FEW = 0.05  # of the time of all stages, that says little
_OVERLAP = 1.001  # stages that hold more than all ranges together run side by side


@define(frozen=True)
class TimePart:
    """A part of the recorded time, or of the kernel time."""

    kind: str  # "stages" | "warmup" | "other" | "none": its colour on the page
    name: str
    share: float
    begin: float


@define(frozen=True)
class Account:
    """One whole and what it divides into."""

    whole: str
    parts: list[TimePart]

    @property
    def sentence(self) -> str:
        told = [f"{percent(part.share)} is {part.name}" for part in self.parts]
        words = ", ".join(told[:-1]) + (" and " if len(told) > 1 else "") + told[-1]
        return f"Of {self.whole}, {words}."


def accounts(view: View) -> list[Account]:
    """Of the recorded time, then of the kernel time; nothing of a whole that the stages fill alone."""
    if view.scope is None or not view.stages or any(region.is_whole_recording for region in view.stages):
        return []
    return [account for account in (_recorded(view), _kernels(view)) if account is not None]


def account_line(view: View) -> str:
    """The same in one line of text; empty where there is nothing to say."""
    return " ".join(account.sentence for account in accounts(view))


def _recorded(view: View) -> Account | None:
    rank = _only_rank(view)
    scope = rank or view.scope
    totals = scope.totals if scope else None
    if totals is None or not totals.recorded_ns or totals.outside_ranges_ns is None:
        return None
    late = [r.wall_ns or 0 for r in view.stages if r.performance and r.performance.time.basis == "gpu"]
    if sum(late) > _FEW * sum(region.wall_ns or 0 for region in view.stages):
        return None  # their ranges are closed before their work is done: what they hold says nothing
    in_ranges = totals.recorded_ns - totals.outside_ranges_ns
    stages = {region.key for region in view.stages}
    ranks = [] if rank else [each for each in view.report.scopes if each.scope.startswith("rank:")]
    # Of ranks side by side, a stage has the time of the one that took longest: all of theirs fill the whole.
    held = [region for each in ranks for region in each.regions if region.key in stages] or view.stages
    staged = sum(region.wall_ns or 0 for region in held)
    several = "" if totals.recorded_ns == totals.span_ns else " in all processes together"
    if rank is not None:
        several = f" on {rank.scope.replace(':', ' ')}, whose times these are"
    outside = ("none", "in no range", totals.outside_ranges_ns)
    if staged > _OVERLAP * in_ranges:
        parts = [("stages", "in ranges", in_ranges), outside]
    else:
        warmup = sum(
            min(r.timing.warmup.total_ns, r.wall_ns or 0)
            for r in view.stages
            if r.timing is not None and r.timing.source == "timeline"
        )
        parts = [
            ("stages", "in the stages", staged - warmup),
            ("warmup", "warm-up of the stages", warmup),
            ("other", f"in other ranges{_others(view)}", in_ranges - staged),
            outside,
        ]
    return _account(f"the {duration(totals.recorded_ns)} recorded{several}", parts, totals.recorded_ns)


def _only_rank(view: View) -> Scope | None:
    """Of ranks side by side, the one whose times the stages have: see `analysis.ranks.common_times`."""
    if view.scope is None or view.scope.scope != "aggregate":
        return None
    for scope in view.report.scopes:
        if scope.scope.startswith("rank:"):
            own = {region.key: (region.wall_ns, region.instances) for region in scope.regions}
            if all(own.get(stage.key) == (stage.wall_ns, stage.instances) for stage in view.stages):
                return scope
    return None


def _kernels(view: View) -> Account | None:
    totals = view.scope.totals if view.scope else None
    if totals is None or not totals.gpu_time_ns:
        return None
    staged = sum(region.inclusive.gpu_time_ns or 0 for region in view.stages)
    outside = totals.unattributed_gpu_time_ns or 0
    parts = [
        ("stages", "in the stages", staged),
        ("other", "in other ranges", totals.gpu_time_ns - staged - outside),
        ("none", f"in no range ({counted(totals.unattributed_kernel_count, 'kernel')})", outside),
    ]
    return _account(f"the {duration(totals.gpu_time_ns)} of kernel time", parts, totals.gpu_time_ns)


def _account(whole: str, parts: list[tuple[str, str, int]], total: int) -> Account | None:
    """None where there is but one part."""
    found: list[TimePart] = []
    for kind, name, time in parts:
        begin = found[-1].begin + found[-1].share if found else 0.0
        if time / total >= _LEAST:
            found.append(TimePart(kind, name, time / total, begin))
    return Account(whole, found) if len(found) > 1 else None


def _others(view: View) -> str:
    """The longest outermost regions that are no stage: ` (save, rest of epoch)`."""
    parents = {region.key: region.parent for region in view.regions}
    stages = {region.key for region in view.stages}
    around: set[str | None] = set()  # what holds a stage
    for region in view.stages:
        at = region.parent
        while at is not None and at not in around:
            around.add(at)
            at = parents.get(at)
    outermost = [r for r in view.regions if r.parent not in parents and r.key not in stages and r.wall_ns]
    own = sorted((r for r in outermost if not is_library_range(r)), key=lambda r: r.wall_ns or 0, reverse=True)
    names = [f"{'rest of ' if r.key in around else ''}{full_label(r)}" for r in own[:_NAMED]]
    more = [f"{len(own) - _NAMED:,} more"] if len(own) > _NAMED else []
    return f" ({', '.join(names + more)})" if names else ""
