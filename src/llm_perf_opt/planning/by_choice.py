"""Which captures give the counters: regions of the timeline become filters that ncu understands.

Pure: a report of the timeline and the request go in, ncu's options come out. Nothing is run here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs
from attrs import Factory, define

from llm_perf_opt.api.inputs import VERIFY
from llm_perf_opt.errors import UserError
from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.metrics import groups_for, types_in_use
from llm_perf_opt.nsight.ncu.argv import DEFAULT_METRICS, NcuOptions, build_ncu_cmd
from llm_perf_opt.nsight.ncu.replay_modes import RANGE_MODES
from llm_perf_opt.regions.model import KernelRecord, NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.request import CounterRequest, ProfileRequest
from llm_perf_opt.spelling import nearest

# Of nested matching ranges ncu's range modes measure the outermost only, so a region that merely holds others
# is replaced by them where they hold nearly all of its kernels.
_HELD_BELOW = 0.99


@define(frozen=True)
class PlannedCapture:
    """One run of ncu."""

    name: str  # its report file, without the ending
    options: NcuOptions
    expressions: tuple[str, ...] = ()  # for --nvtx-include; none: everything
    expected: int | None = None  # results the timeline lets expect
    seconds: float | None = None  # what it will take, where that was planned
    # The region of which some instances are taken whole, and their numbers; None: not chosen in this way.
    instances: tuple[NCUProfileRegion | None, tuple[int, ...]] = (None, ())
    windows: CaptureWindows | None = None  # the program switches ncu on in these only
    alternatives: tuple[PlannedCapture, ...] = ()  # what to do where the windows give nothing

    def argv(self, command: Sequence[str], ncu: str = "ncu") -> list[str]:
        """The command, as it would be run in the run directory."""
        return build_ncu_cmd(
            f"ncu/{self.name}", list(command), ncu=ncu, options=self.options, nvtx_expr=list(self.expressions)
        )


@define(frozen=True)
class CounterPlan:
    """All captures of a run, or why there are none."""

    captures: list[PlannedCapture] = Factory(list)
    skipped: str = ""  # the reason, where there is nothing to capture
    nothing_matched: bool = False  # the reason is a name that no kernel has


def plan_counters(seen: NCUProfileRegionReport | None, request: ProfileRequest) -> CounterPlan:
    """The captures for a request; `seen`: the report of its timeline, None where none was taken."""
    asked = request.counters
    if seen is None:
        return CounterPlan([PlannedCapture("run", _options(request, launches=False), _untried(request))])
    request = _with_metrics(request, seen)
    asked = request.counters
    if talks_between_processes(seen):
        reason = "ncu runs kernels one at a time over all processes, and collectives would wait for each other for ever"
        return CounterPlan(
            skipped=f"the processes talk to each other with NCCL: {reason}. Profile one rank alone for counters"
        )
    if raw := raw_expressions(request.report.include):
        # ncu's own expressions go to ncu as they are; what they select only ncu knows.
        outer_too = [r for r in outermost(seen) if r.nvtx_include] if len(raw) < len(request.report.include) else []
        return CounterPlan([PlannedCapture("run", _options(request), (*_expressions(outer_too), *raw))])
    if not asked.gating_nvtx:
        everything = seen.main_scope.kernels if seen.main_scope else []
        if (wrong := _no_such_launch(everything, asked.options)) is not None:
            return CounterPlan(skipped=wrong, nothing_matched=True)
        expected = _picked(everything, asked.options)
        return CounterPlan([PlannedCapture("run", _options(request), expected=expected)])
    outer = [r for r in outermost(seen) if r.inclusive.kernel_count]
    if not outer:
        typo = next((d for d in seen.diagnostics if d.code == "NO_MATCHING_REGIONS"), None)
        reason = f"{typo.message} {typo.fix}".rstrip(".") if typo else "no region with kernels was found to profile"
        return CounterPlan(skipped=reason, nothing_matched=typo is not None)
    inside = [kernel for region in outer for kernel in region.kernels]
    if (wrong := _no_such_launch(inside, asked.options)) is not None:
        return CounterPlan(skipped=wrong, nothing_matched=True)
    if blind := [r for r in outer if not r.nvtx_include]:
        outer = [r for r in outer if r.nvtx_include]
        if not outer:
            return CounterPlan(skipped=f"ncu cannot select {blind[0].key!r}: it is known through a graph capture only")
    if asked.sample != "all":
        return CounterPlan(_sampled(outer, seen, request))
    regions = cut(outer, seen, repeated=False) if asked.options.replay_mode in RANGE_MODES else outer
    options = _options(request, process_scope=any(r.adopted_kernels for r in regions))
    expected = _least(regions, options) or _picked(inside, options)
    return CounterPlan([PlannedCapture("run", options, _expressions(regions), expected)])


def _with_metrics(request: ProfileRequest, seen: NCUProfileRegionReport) -> ProfileRequest:
    """Where nothing was said about what to measure: the metrics of the level, for the types this program computes in."""
    given = request.counters.options
    if request.counters.strategy == "as_given" or given.set or given.sections or given.metrics:
        return request
    capability = next((gpu.compute_capability for gpu in seen.hardware if gpu.compute_capability), None)
    kernels = seen.main_scope.kernels if seen.main_scope else []
    types = types_in_use((k.kernel_name, round(1e6 * (k.total_ms or 0.0))) for k in kernels).types
    metrics = tuple(m.name for m in groups_for(capability)[0].of_level(request.counters.level, types))
    options = attrs.evolve(given, metrics=metrics)
    return attrs.evolve(request, counters=attrs.evolve(request.counters, options=options))


def for_mode(
    capture: PlannedCapture, mode: str, seen: NCUProfileRegionReport | None, request: ProfileRequest
) -> PlannedCapture:
    """The same capture in another replay mode: kernel by kernel it needs a bound, or it takes hours."""
    options = attrs.evolve(capture.options, replay_mode=mode)
    if mode == "kernel" and request.counters.strategy == "auto" and not request.picks_launches:
        options = _bounded(options, request.counters)
    name = f"run-{mode}" if capture.name == "run" else f"{capture.name}-{mode}"
    expected = None
    if seen is not None and mode == "kernel" and request.counters.sample == "all":
        expected = _least([r for r in outermost(seen) if r.inclusive.kernel_count], options)
    return attrs.evolve(capture, name=name, options=options, expected=expected)


def plan_verification(
    seen: NCUProfileRegionReport, request: ProfileRequest, captures: Sequence[PlannedCapture]
) -> PlannedCapture | str:
    """The capture that measures the regions of others as wholes, with the same counters; or why there is none."""
    if any(capture.options.replay_mode in RANGE_MODES for capture in captures):
        return "the regions were measured as wholes already"
    if request.report.kernel_include or request.report.kernel_exclude:
        return "kernels were chosen, and a region is measured with all of its kernels"
    regions = cut([r for r in outermost(seen) if r.inclusive.kernel_count and r.nvtx_include], seen, repeated=False)
    if not regions:
        return "there is no region that ncu can select"
    used = [capture.options for capture in captures]
    options = attrs.evolve(
        request.counters.options,
        replay_mode="app-range",
        set=next((o.set for o in used if o.set), None),
        sections=tuple(dict.fromkeys(s for o in used for s in o.sections)),
        metrics=tuple(dict.fromkeys(m for o in used for m in o.metrics)),
        nvtx_push_pop_scope="process" if any(r.adopted_kernels for r in regions) else None,
        **dict.fromkeys(_CHOOSE_LAUNCHES),
    )
    return PlannedCapture(VERIFY, options, _expressions(regions), _least(regions, options))


# What says which launches, and means nothing for a region as a whole.
_CHOOSE_LAUNCHES = (
    *("range_filter", "kernel_name", "kernel_name_base", "kernel_id"),
    *("launch_skip", "launch_count", "filter_mode", "graph_profiling"),
)


def outermost(seen: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    """The chosen regions that lie in no other chosen one."""
    scope = seen.main_scope
    regions = scope.regions if scope else []
    chosen = {r.key for r in regions}
    return [r for r in regions if r.parent not in chosen]


def cut(regions: Sequence[NCUProfileRegion], seen: NCUProfileRegionReport, *, repeated: bool) -> list[NCUProfileRegion]:
    """Replace regions that only hold others by those; `repeated`: also by ranges that repeat inside them."""
    scope = seen.main_scope
    below: dict[str, list[NCUProfileRegion]] = {}
    for region in scope.regions if scope else []:
        if region.parent is not None:
            below.setdefault(region.parent, []).append(region)
    result: list[NCUProfileRegion] = []
    todo = list(regions)
    while todo:
        region = todo.pop(0)
        children = [c for c in below.get(region.key, []) if c.inclusive.kernel_count and c.nvtx_include]
        held = sum(c.inclusive.kernel_count for c in children)
        once = all(c.instances == region.instances for c in children)
        many = len(children) == 1 and (children[0].instances or 0) > (region.instances or 0)
        if children and held >= _HELD_BELOW * region.inclusive.kernel_count and (many if repeated else once):
            todo = [*children, *todo]
        else:
            result.append(region)
    return result


def instances_to_take(sample: str, instances: int) -> list[int]:
    """The instances of a repeated range that `sample` names, counted from 1."""
    if sample == "all":
        return list(range(1, instances + 1))
    if sample in ("first", "middle", "last"):
        return [{"first": 1, "middle": (instances + 1) // 2, "last": instances}[sample]]
    found = re.fullmatch(r"every:([1-9]\d*)", sample)
    if not found:
        raise UserError(
            f"pipeline.ncu.sample={sample!r} names no instances.",
            "Allowed values: all, first, middle, last, every:N (as in every:4).",
        )
    return list(range(1, instances + 1, int(found[1])))


def talks_between_processes(report: NCUProfileRegionReport) -> bool:
    """Several processes with collectives: under ncu they would dead-lock."""
    processes = [scope for scope in report.scopes if scope.scope.startswith("process:")]
    return len(processes) > 1 and any("nccl" in k.kernel_name.lower() for s in processes for k in s.kernels)


def _no_such_launch(kernels: Sequence[KernelRecord], options: NcuOptions) -> str | None:
    """Why ncu would find no launch of this name and number; None where it would, or where the timeline cannot tell."""
    named = _named(kernels, options)
    if named is None:
        return None
    wanted = options.kernel_name
    if not named:
        plain = (wanted or "").removeprefix("regex:").strip(".*")
        close = nearest(plain, {short_kernel_name(k.kernel_name) for k in kernels}, 3)
        return f"none of the {len({k.kernel_name for k in kernels})} kernels there is called {wanted!r}; nearest: {', '.join(close)}"
    there, skipped = sum(kernel.calls for kernel in named), options.launch_skip or 0
    if skipped < there or not _counts_globally(options):
        return None
    what = f"kernels called {wanted!r} are" if wanted else "kernels are"
    return f"{what} launched {there:,} times there, and launch {skipped + 1:,} was asked for; give a number up to {there:,}"


def _picked(kernels: Sequence[KernelRecord], options: NcuOptions) -> int | None:
    """How many launches a name and numbers given by hand select; None where the timeline cannot tell."""
    named = _named(kernels, options)
    if not named or not _counts_globally(options) or options.replay_mode in RANGE_MODES:
        return None
    left = sum(kernel.calls for kernel in named) - (options.launch_skip or 0)
    return left if options.launch_count is None else min(left, options.launch_count)


def _counts_globally(options: NcuOptions) -> bool:
    """Does ncu number all matching launches together?"""
    return options.filter_mode in (None, "global") and options.range_filter is None and options.kernel_id is None


def _named(kernels: Sequence[KernelRecord], options: NcuOptions) -> list[KernelRecord] | None:
    """The kernels a name of the user selects, all of them without one; None where the timeline cannot tell."""
    wanted = options.kernel_name
    if not kernels or options.kernel_name_base == "mangled":
        return None
    if wanted is None:
        return list(kernels)
    base = short_kernel_name if options.kernel_name_base in (None, "function") else str
    if wanted.startswith("regex:"):
        try:
            pattern = re.compile(wanted.removeprefix("regex:"))
        except re.error:
            return None  # ncu's grammar is not Python's; it will say what is wrong with it
        # The short names here are not exactly ncu's, so a pattern may also match the full one.
        return [k for k in kernels if pattern.search(k.kernel_name) or pattern.search(base(k.kernel_name))]
    # The name of a function stands in front of its templates and arguments.
    inside = re.compile(rf"(?:^|[:\s]){re.escape(wanted)}(?:[<(]|$)")
    return [
        k
        for k in kernels
        if wanted in (k.kernel_name, base(k.kernel_name)) or (base is not str and inside.search(k.kernel_name))
    ]


def _sampled(
    outer: Sequence[NCUProfileRegion], seen: NCUProfileRegionReport, request: ProfileRequest
) -> list[PlannedCapture]:
    """One capture for each region: ncu numbers the instances of all matching ranges together."""
    captures = []
    # A range that only holds the repeated ones is one instance itself: those inside it are meant.
    stages = cut(outer, seen, repeated=False)
    for number, region in enumerate(cut(stages, seen, repeated=True)):
        count = region.instances or 1
        taken = instances_to_take(request.counters.sample, count)
        options = _options(request, launches=False, process_scope=bool(region.adopted_kernels))
        if len(taken) < count:
            options = attrs.evolve(options, range_filter="::" + "|".join(map(str, taken)))
        expected = round(region.inclusive.kernel_count * len(taken) / count)
        name = f"run-{number}"
        captures.append(
            PlannedCapture(name, options, (region.nvtx_include,), expected, instances=(region, tuple(taken)))
        )
    return captures


def _untried(request: ProfileRequest) -> tuple[str, ...]:
    """Expressions of the patterns alone: nothing is known of the program's ranges."""
    if not request.counters.gating_nvtx:
        return ()
    patterns = RegionFilter.of(request.report.include).include
    return tuple(expression for pattern in patterns for expression in pattern.ncu_expressions())


def raw_expressions(patterns: Sequence[str]) -> tuple[str, ...]:
    """The `ncu:` patterns among some, without the prefix."""
    return tuple(p.removeprefix("ncu:") for p in patterns if p.startswith("ncu:"))


def excluded(request: ProfileRequest) -> tuple[str, ...]:
    """Regions left out, as ncu's expressions; a `regex:` over paths it cannot have, the report leaves out alone."""
    patterns = [p for p in RegionFilter.of(include=request.report.exclude).include if not p.text.startswith("regex:")]
    return tuple(expression for pattern in patterns for expression in pattern.ncu_expressions())


def _expressions(regions: Sequence[NCUProfileRegion]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(region.nvtx_include for region in regions))


def _options(request: ProfileRequest, *, launches: bool = True, process_scope: bool = False) -> NcuOptions:
    """The user's options, completed where they leave something open and the strategy is ours to choose."""
    asked = request.counters
    options = attrs.evolve(asked.options, nvtx_exclude=(*asked.options.nvtx_exclude, *excluded(request)))
    if asked.strategy == "as_given":
        return options
    if not (options.set or options.sections or options.metrics):
        options = attrs.evolve(options, metrics=DEFAULT_METRICS)
    if process_scope and options.nvtx_push_pop_scope is None:
        options = attrs.evolve(options, nvtx_push_pop_scope="process")
    by_kernel = options.replay_mode in (None, "kernel", "application")
    return _bounded(options, asked) if launches and by_kernel and not request.picks_launches else options


def _bounded(options: NcuOptions, asked: CounterRequest) -> NcuOptions:
    """The first launches of each signature instead of all."""
    # Without the mangled name all templates of a function count as one kernel, and most are never sampled.
    return attrs.evolve(
        options, filter_mode="per-launch-config", kernel_name_base="mangled", launch_count=asked.launches
    )


def _least(regions: Sequence[NCUProfileRegion], options: NcuOptions) -> int | None:
    """A kernel has at least one launch configuration: this is the least to expect."""
    if options.replay_mode in RANGE_MODES:
        return sum(region.instances or 1 for region in regions)
    if options.filter_mode != "per-launch-config" or options.launch_count is None:
        return None
    return len({k.kernel_name for region in regions for k in region.kernels}) * options.launch_count
