"""Captures whose launches the user chose: regions of the timeline become filters that ncu understands.

Replay modes, sections, instances, kernel names and ncu's own expressions hold as they were given; only what they leave
open is filled in. The verification capture and the fallback to another replay mode are made of the same parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import attrs

from llm_perf_opt.api.inputs import VERIFY
from llm_perf_opt.errors import UserError
from llm_perf_opt.inject import CaptureWindows, Named, RangesSeen
from llm_perf_opt.metrics.data_types import types_in_use
from llm_perf_opt.metrics.groups import MetricGroups, PassCount, groups_for
from llm_perf_opt.nsight.ncu.argv import DEFAULT_METRICS, NcuOptions
from llm_perf_opt.nsight.ncu.replay_modes import RANGE_MODES
from llm_perf_opt.planning.chosen_regions import cut, excluded, outermost
from llm_perf_opt.planning.costs import RunFacts, passes_of_sets, take_time_only
from llm_perf_opt.planning.plan import CounterPlan, PlannedCapture
from llm_perf_opt.planning.windows import FROM_START_OFF
from llm_perf_opt.regions.model import KernelRecord, NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.request import CounterRequest, ProfileRequest
from llm_perf_opt.spelling import nearest


def without_timeline(request: ProfileRequest) -> CounterPlan:
    """Expressions of the patterns alone: nothing is known of the program's ranges."""
    patterns = RegionFilter.of(request.report.include).include if request.counters.gating_nvtx else ()
    expressions = tuple(expression for pattern in patterns for expression in pattern.ncu_expressions())
    return CounterPlan([PlannedCapture("run", _options(request, launches=False), expressions)])


def of_expressions(report: NCUProfileRegionReport, request: ProfileRequest, raw: tuple[str, ...]) -> CounterPlan:
    """ncu's own expressions go to ncu as they are; what they select only ncu knows."""
    outer = [r for r in outermost(report) if r.nvtx_include] if len(raw) < len(request.report.include) else []
    return CounterPlan([PlannedCapture("run", _options(request), (*_expressions(outer), *raw))])


def of_whole_program(report: NCUProfileRegionReport, request: ProfileRequest) -> CounterPlan:
    """No region is chosen: every launch that the options select."""
    everything = report.main_scope.kernels if report.main_scope else []
    if (wrong := no_such_launch(everything, request.counters.options)) is not None:
        return CounterPlan(skipped=wrong, nothing_matched=True)
    options = _options(request)
    expected = _of_each(everything, options) or picked(everything, options)
    return CounterPlan([PlannedCapture("run", options, expected=expected)])


def of_regions(
    regions: Sequence[NCUProfileRegion],
    report: NCUProfileRegionReport,
    request: ProfileRequest,
    ranges_seen: RangesSeen,
) -> CounterPlan:
    """The chosen regions: the outermost ones with kernels that ncu can select."""
    inside = [kernel for region in regions for kernel in region.kernels]
    if (wrong := no_such_launch(inside, request.counters.options)) is not None:
        return CounterPlan(skipped=wrong, nothing_matched=True)
    if request.counters.sample != "all":
        return CounterPlan(_sampled(regions, report, request, ranges_seen))
    by_range = request.counters.options.replay_mode in RANGE_MODES
    regions = cut(regions, report, repeated=False) if by_range else regions
    options = _options(request, process_scope=any(r.adopted_kernels for r in regions))
    expected = _least(regions, options) or picked(inside, options)
    return CounterPlan([PlannedCapture("run", options, _expressions(regions), expected)])


def with_metrics(request: ProfileRequest, report: NCUProfileRegionReport) -> ProfileRequest:
    """Where nothing was said about what to measure: the metrics of the level, for the types this program computes in."""
    given = request.counters.options
    if request.counters.strategy == "as_given" or given.set or given.sections or given.metrics:
        return request
    capability = next((gpu.compute_capability for gpu in report.hardware if gpu.compute_capability), None)
    kernels = report.main_scope.kernels if report.main_scope else []
    types = types_in_use((k.kernel_name, round(1e6 * (k.total_ms or 0.0))) for k in kernels).types
    groups, level = groups_for(capability)[0], request.counters.level
    metrics = tuple(m.name for m in groups.of_level(level, types))
    if request.serving.is_asked:
        metrics = _in_one_pass(groups, level, types)
    options = attrs.evolve(given, metrics=metrics)
    return attrs.evolve(request, counters=attrs.evolve(request.counters, options=options))


def _in_one_pass(groups: MetricGroups, level: str, types: Sequence[str]) -> tuple[str, ...]:
    """As many metrics of a level as one pass takes: of all types, of those with most time, of none; else times alone."""
    kept = [groups.of_level(level, types[:count]) for count in range(len(types), -1, -1)]
    for metrics in (*kept, groups.of_level("roofline"), groups.of_level("time")):
        names = tuple(metric.name for metric in metrics)
        if groups.passes_of(names).passes == 1:
            break
    return names


def in_replay_mode(
    capture: PlannedCapture, mode: str, report: NCUProfileRegionReport | None, request: ProfileRequest
) -> PlannedCapture:
    """The same capture in another replay mode: kernel by kernel it needs a bound, or it takes hours."""
    options = attrs.evolve(capture.options, replay_mode=mode)
    if mode == "kernel" and request.counters.strategy == "auto" and not request.picks_launches:
        options = _bounded(options, request.counters)
    name = f"run-{mode}" if capture.name == "run" else f"{capture.name}-{mode}"
    expected = None
    if report is not None and mode == "kernel" and request.counters.sample == "all":
        expected = _least([r for r in outermost(report) if r.inclusive.kernel_count], options)
    return attrs.evolve(capture, name=name, options=options, expected=expected)


def plan_verification(
    report: NCUProfileRegionReport, request: ProfileRequest, captures: Sequence[PlannedCapture]
) -> PlannedCapture | str:
    """The capture that measures the regions of others as wholes, with the same counters; or why there is none."""
    if any(capture.options.replay_mode in RANGE_MODES for capture in captures):
        return "the regions were measured as wholes already"
    if request.report.kernel_include or request.report.kernel_exclude:
        return "kernels were chosen, and a region is measured with all of its kernels"
    regions = cut([r for r in outermost(report) if r.inclusive.kernel_count and r.nvtx_include], report, repeated=False)
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


def instances_to_take(sample: str, instances: int) -> list[int]:
    """The instances of a repeated range that `sample` names, counted from 1."""
    if sample == "all":
        return list(range(1, instances + 1))
    if sample in ("first", "middle", "last"):
        return [{"first": 1, "middle": (instances + 1) // 2, "last": instances}[sample]]
    found = re.fullmatch(r"every:([1-9]\d*)", sample)
    if not found:
        raise UserError(
            f"--sample (pipeline.ncu.sample): {sample!r} names no instances.",
            "Allowed values: all, first, middle, last, every:N (as in every:4).",
        )
    return list(range(1, instances + 1, int(found[1])))


def _sampled(
    outer: Sequence[NCUProfileRegion], report: NCUProfileRegionReport, request: ProfileRequest, ranges_seen: RangesSeen
) -> list[PlannedCapture]:
    """One capture for each region: ncu numbers the instances of all matching ranges together.

    One for all of them where the program can switch ncu on and off around the chosen instances.
    """
    captures: list[PlannedCapture] = []
    chosen: list[tuple[NCUProfileRegion, list[int]]] = []
    # A range that only holds the repeated ones is one instance itself: those inside it are meant.
    stages = cut(outer, report, repeated=False)
    for number, region in enumerate(cut(stages, report, repeated=True)):
        count = region.instances or 1
        taken = instances_to_take(request.counters.sample, count)
        options = _options(request, launches=False, process_scope=bool(region.adopted_kernels))
        if len(taken) < count:
            options = attrs.evolve(options, range_filter="::" + "|".join(map(str, taken)))
        expected = round(region.inclusive.kernel_count * len(taken) / count)
        captures.append(PlannedCapture(f"run-{number}", options, (region.nvtx_include,), expected))
        chosen.append((region, taken))
    stop = not request.counters.run_to_end
    windows = _instance_windows(chosen, ranges_seen, stop=stop) if request.counters.windows else None
    one_scope = len({capture.options.nvtx_push_pop_scope for capture in captures}) == 1
    if windows is None or not one_scope or not (stop or len(captures) > 1):
        return captures
    options = captures[0].options
    together = PlannedCapture(
        "run",
        attrs.evolve(options, range_filter=None, extra_args=(*options.extra_args, *FROM_START_OFF)),
        tuple(dict.fromkeys(e for capture in captures for e in capture.expressions)),
        sum(capture.expected or 0 for capture in captures),
        windows=windows,
        alternatives=tuple(captures),
    )
    return [together]


def _instance_windows(
    chosen: Sequence[tuple[NCUProfileRegion, list[int]]], ranges_seen: RangesSeen, *, stop: bool
) -> CaptureWindows | None:
    """Windows around some instances of ranges; None where the program did not open all of them as the timeline says."""
    if len(ranges_seen) != 1:
        return None
    (counted,) = ranges_seen.values()
    windows: dict[Named, tuple[int, ...]] = {}
    for region, taken in chosen:
        named = (region.domain, region.name)
        if counted.get(named) != region.instances:
            return None
        windows[named] = tuple(sorted({*windows.get(named, ()), *taken}))
    return CaptureWindows(windows, stop)


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
    """The least results to expect of regions; None where the options leave it open."""
    if options.replay_mode in RANGE_MODES:
        return sum(region.instances or 1 for region in regions)
    return _of_each([kernel for region in regions for kernel in region.kernels], options)


def _of_each(kernels: Sequence[KernelRecord], options: NcuOptions) -> int | None:
    """Launches of a bounded capture. A kernel has at least one launch configuration: this is the least to expect."""
    if not is_bounded(options) or options.launch_count is None:
        return None
    calls = Counter[str]()
    for kernel in kernels:
        calls[kernel.kernel_name] += kernel.calls
    return sum(min(count, options.launch_count) for count in calls.values())


def is_bounded(options: NcuOptions) -> bool:
    """Some launches of every signature, and no other choice among launches."""
    chosen = (options.kernel_name, options.kernel_id, options.range_filter, options.launch_skip)
    return options.filter_mode == "per-launch-config" and options.launch_count is not None and not any(chosen)


# -- launches by name and number -------------------------------------------------------------------


def no_such_launch(kernels: Sequence[KernelRecord], options: NcuOptions) -> str | None:
    """Why ncu would find no launch of this name and number; None where it would, or where the timeline cannot tell."""
    named = _named(kernels, options)
    if named is None:
        return None
    wanted = options.kernel_name
    if not named:
        plain = (wanted or "").removeprefix("regex:").strip(".*")
        close = nearest(plain, sorted({short_kernel_name(k.kernel_name) for k in kernels}), 3)
        full = options.kernel_name_base == "demangled" and wanted == plain
        hint = f" (names are compared in full: regex:{plain} takes a part)" if full else ""
        count = len({k.kernel_name for k in kernels})
        matches = f"matches {wanted!r}" if wanted != plain else f"is called {wanted!r}"
        return f"none of the {count} kernels in these regions {matches}{hint}; nearest: {', '.join(close)}"
    there, skipped = sum(kernel.calls for kernel in named), options.launch_skip or 0
    if skipped < there or not _counts_globally(options):
        return None
    what = f"kernels called {wanted!r} are" if wanted else "kernels are"
    return f"{what} launched {there:,} times there, and launch {skipped + 1:,} was asked for; give a number up to {there:,}"


def picked(kernels: Sequence[KernelRecord], options: NcuOptions) -> int | None:
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
    base = short_kernel_name if options.kernel_name_base == "function" else str
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


# -- what they cost --------------------------------------------------------------------------------

_ONE_LAUNCH_A_PASS = ("application", "app-range")  # of the whole program


def add_prices(plan: CounterPlan, report: NCUProfileRegionReport, facts: RunFacts) -> CounterPlan:
    """The same captures with their passes and seconds, as far as those are known."""
    groups, _ = groups_for(facts.capability(report))
    priced = [_with_price(capture, groups, facts, facts.seconds(report)) for capture in plan.captures]
    return attrs.evolve(plan, captures=priced)


def _with_price(capture: PlannedCapture, groups: MetricGroups, facts: RunFacts, program_s: float) -> PlannedCapture:
    options, launches = capture.options, capture.expected
    passes = passes_of(options, groups)
    if passes is None or launches is None:
        return attrs.evolve(capture, passes=passes)
    time_only = take_time_only(options.metrics) and not (options.set or options.sections)
    runs, each = (passes.passes, 1) if options.replay_mode in _ONE_LAUNCH_A_PASS else (1, passes.passes)
    seconds = runs * facts.costs.capture_s(program_s, launches, each, time_only=time_only)
    return attrs.evolve(capture, passes=passes, seconds=seconds)


def passes_of(options: NcuOptions, groups: MetricGroups) -> PassCount | None:
    """Passes of each launch; None where sections are asked for whose passes nobody has counted."""
    if options.sections:
        return None
    of_set = passes_of_sets().get(options.set or "", 0)
    if options.set and not of_set:
        return None
    if not options.metrics:
        return PassCount(of_set, "measured") if of_set else None
    of_metrics = groups.passes_of(options.metrics)
    return PassCount(of_set + of_metrics.passes, "estimated") if of_set else of_metrics
