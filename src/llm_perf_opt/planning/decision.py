"""The one decision on counters: which captures ncu makes for a run, or why it makes none.

Pure: the timeline, its report, the request, facts of the machine and what was counted inside the program go in, a plan
comes out; the same arguments give the same plan. Where the user chose launches, sections or a replay mode, those hold
(`by_hand.py`); else the timeline decides which launches are worth their cost (`samples.py`).
"""

from __future__ import annotations

import attrs
import numpy as np

from llm_perf_opt.analysis.sampled_traffic import moved_by_others
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.inject import RangesSeen
from llm_perf_opt.metrics.groups import groups_for
from llm_perf_opt.nsight.ncu.replay_modes import RANGE_MODES
from llm_perf_opt.planning import by_hand
from llm_perf_opt.planning.candidates import Candidate, Fit, Search
from llm_perf_opt.planning.chosen_regions import (
    excluded,
    outermost,
    raw_expressions,
    selectable_regions,
    talks_between_processes,
)
from llm_perf_opt.planning.costs import RunFacts
from llm_perf_opt.planning.launch_table import LaunchTable, describe_launches
from llm_perf_opt.planning.notes import notes
from llm_perf_opt.planning.plan import CounterPlan, PlannedCapture
from llm_perf_opt.planning.sample_table import sample_table
from llm_perf_opt.planning.samples import choose_samples, choose_windows
from llm_perf_opt.planning.windows import FROM_START_OFF, known_ranges
from llm_perf_opt.readers.marker_ranges import without_marker_ranges
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.regions.prepared import prepare_timeline
from llm_perf_opt.regions.traffic import ROLES
from llm_perf_opt.regions.whole_recording import covered
from llm_perf_opt.request import ProfileRequest


def decide(
    request: ProfileRequest,
    report: NCUProfileRegionReport | None,
    timeline: Timeline | None,
    facts: RunFacts,
    ranges_seen: RangesSeen | None = None,
) -> CounterPlan:
    """The counters of a run. `report`, `timeline`: None where none was taken.

    `timeline`: with launch configurations and marker ranges. `ranges_seen`: what the processes of its run counted.
    """
    if report is None:
        return by_hand.without_timeline(request)
    if talks_between_processes(report):
        reason = "ncu runs kernels one at a time over all processes, so that collectives would deadlock"
        return CounterPlan(
            skipped=f"the processes talk to each other with NCCL: {reason}. For those of one rank, start one llm-perf for each: torchrun --no-python … llm-perf profile --counter-rank 0 -- python …"
        )
    mode = request.counters.options.replay_mode
    if mode in RANGE_MODES and any(r.is_whole_recording for r in outermost(report)):
        kernel = attrs.evolve(request.counters.options, replay_mode="kernel")
        by_kernel = attrs.evolve(request, counters=attrs.evolve(request.counters, options=kernel))
        plan = decide(by_kernel, report, timeline, facts, ranges_seen)
        return attrs.evolve(plan, diagnostics=[diagnose("NO_RANGE_TO_REPLAY", mode=mode), *plan.diagnostics])
    if not chooses_launches(request):
        plan = _counted(_by_hand(request, report, ranges_seen or {}), request, report, timeline)
        return by_hand.add_prices(plan, report, facts)
    regions = _selectable(report)
    if isinstance(regions, CounterPlan):
        return regions
    launches = None if timeline is None else launches_of(timeline, report, request)
    if launches is None or timeline is None or not len(launches):
        return CounterPlan(skipped="the plan has no captures: no launch lies in a chosen region")
    groups, unknown_chip = groups_for(facts.capability(report))
    asked = request.counters
    search = Search(launches, groups, asked, facts.costs, facts.seconds(report), asked.budget_s)
    plan = choose(search, request, timeline, ranges_seen or {})
    return attrs.evolve(plan, diagnostics=[*unknown_chip, *facts.diagnostics, *plan.diagnostics])


def chooses_launches(request: ProfileRequest) -> bool:
    """Is it ours to decide which launches are profiled?"""
    asked = request.counters
    given = asked.options
    return (
        asked.strategy == "auto"
        and not request.serving.is_asked  # no two runs of a server have the same steps
        and asked.gating_nvtx
        and asked.sample == "all"
        and not request.picks_launches
        and not (given.set or given.sections)
        and given.replay_mode in (None, "kernel")
        and given.range_filter is None
        and not raw_expressions(request.report.include)
    )


def _by_hand(request: ProfileRequest, report: NCUProfileRegionReport, ranges_seen: RangesSeen) -> CounterPlan:
    request = by_hand.with_metrics(request, report)
    if raw := raw_expressions(request.report.include):
        return by_hand.of_expressions(report, request, raw)
    if not request.counters.gating_nvtx:
        return by_hand.of_whole_program(report, request)
    regions = _steps(report) if request.serving.is_asked else _selectable(report)
    if isinstance(regions, CounterPlan):
        return regions
    if regions[0].is_whole_recording:  # no range to filter by, to replay, or to take instances of
        return by_hand.of_whole_program(report, request)
    return by_hand.of_regions(regions, report, request, ranges_seen)


def _steps(report: NCUProfileRegionReport) -> list[NCUProfileRegion] | CounterPlan:
    """The steps of a server, wherever they are."""
    regions = report.main_scope.regions if report.main_scope is not None else []
    steps = [region for region in regions if region.timing is not None and region.timing.steps is not None]
    found = [region for region in steps if region.inclusive.kernel_count and region.nvtx_include]
    return found or CounterPlan(skipped="the recording shows no step of the server with kernels")


def _counted(
    plan: CounterPlan, request: ProfileRequest, report: NCUProfileRegionReport, timeline: Timeline | None
) -> CounterPlan:
    """With as many launches of each signature as the timeline has in the chosen regions, where the plan takes some of each."""
    asked = request.counters
    of_regions = asked.gating_nvtx and asked.sample == "all" and not raw_expressions(request.report.include)
    if timeline is None or timeline.kernels.config is None or not of_regions or len(plan.captures) != 1:
        return plan
    (capture,) = plan.captures
    launches = launches_of(timeline, report, request) if by_hand.is_bounded(capture.options) else None
    if launches is None or not len(launches):
        return plan
    of_each = np.bincount(launches.by_signature[1])
    expected = int(np.minimum(of_each, capture.options.launch_count or 0).sum())
    return attrs.evolve(plan, captures=[attrs.evolve(capture, expected=expected)])


def _selectable(report: NCUProfileRegionReport) -> list[NCUProfileRegion] | CounterPlan:
    """The outermost chosen regions that ncu can select; or why there are none."""
    outer = [r for r in outermost(report) if r.inclusive.kernel_count]
    if not outer:
        typo = next((d for d in report.diagnostics if d.code == "NO_MATCHING_REGIONS"), None)
        reason = f"{typo.message} {typo.fix}".rstrip(".") if typo else "no region with kernels was found to profile"
        return CounterPlan(skipped=reason, nothing_matched=typo is not None)
    if not any(r.is_selectable for r in outer):
        return CounterPlan(skipped=f"ncu cannot select {outer[0].key!r}: it is known through a graph capture only")
    return [r for r in outer if r.is_selectable]


# -- launches chosen from the timeline -------------------------------------------------------------


def launches_of(timeline: Timeline, report: NCUProfileRegionReport, request: ProfileRequest) -> LaunchTable | None:
    """The launches in the chosen regions; None where the report has no scope."""
    if report.main_scope is None:
        return None
    chosen_by_user = RegionFilter.of(request.report.include, request.report.exclude)
    timeline = prepare_timeline(without_marker_ranges(timeline), chosen_by_user)
    expressions, chosen = selectable_regions(report.main_scope)
    attribution = attribute(timeline, request.report.attribution)
    if any(r.is_whole_recording for r in outermost(report)):
        timeline, attribution = covered(timeline, attribution)
    launches = describe_launches(timeline, attribution, expressions, chosen)
    # Other levels ask for more than bytes and operations, and metrics chosen by hand for nobody knows what.
    bytes_suffice = request.counters.level in ("time", "roofline") and not request.counters.options.metrics
    launches.bytes_are_known = bytes_suffice and _all_sampled(timeline)
    return launches


def _all_sampled(timeline: Timeline) -> bool:
    """Did nsys sample all counters of all devices that were used, with nobody else on them?"""
    used = set(np.unique(timeline.kernels.device).tolist())
    whole = {device for device, traffic in timeline.traffic.items() if len(traffic.bytes) == len(ROLES)}
    return bool(used) and used <= whole and not moved_by_others(timeline)


def choose(
    search: Search, request: ProfileRequest, timeline: Timeline | None = None, ranges_seen: RangesSeen | None = None
) -> CounterPlan:
    """The captures for the launches of a search, in windows where the program can act on its ranges."""
    search, fit = choose_samples(search)
    if fit is None:
        found = notes(search, None)
        skipped = f"the plan has no captures: {found[0].message}"
        return CounterPlan(skipped=skipped, table=sample_table(search, None), diagnostics=found)
    stop, final = not request.counters.run_to_end, fit
    if timeline is not None and search.launches.kernels is not None and request.counters.windows:
        known = known_ranges(timeline, search.launches.kernels, ranges_seen or {})
        final = choose_windows(search, fit, known, stop=stop)
    return CounterPlan(
        _captures(search, request, fit, final, timeline),
        table=sample_table(search, fit, final),
        diagnostics=notes(search, fit, final),
    )


def _captures(
    search: Search, request: ProfileRequest, fit: Fit, final: Fit, timeline: Timeline | None
) -> list[PlannedCapture]:
    """As ncu is asked for them; those in windows with what to do where the windows give nothing."""
    plain = [_capture(c, fit, number, request) for number, c in enumerate(fit.captures, 1)]
    one_for_all = len(final.captures) < len(fit.captures)
    found = []
    for number, candidate in enumerate(final.captures, 1):
        alternatives = plain if one_for_all else plain[number - 1 : number]
        capture = _capture(candidate, final, number, request)
        if (windows := candidate.windows) is None:
            # One that is there for windows alone has nothing to fall back to.
            found.append(attrs.evolve((*alternatives, capture)[0], no_windows=candidate.no_windows))
            continue
        capture = attrs.evolve(
            capture,
            options=attrs.evolve(capture.options, extra_args=(*capture.options.extra_args, *FROM_START_OFF)),
            # One filter less: what ncu is asked for is then known before the regions are (`likely.py`).
            expressions=() if candidate.windows_suffice else capture.expressions,
            windows=windows,
            alternatives=tuple(alternatives),
            program_s=_until_last(search, candidate, timeline) if windows.stop else None,
        )
        found.append(capture)
    return found


def _capture(candidate: Candidate, fit: Fit, number: int, request: ProfileRequest) -> PlannedCapture:
    options = candidate.filter.options(fit.ask.metrics, request.counters.options)
    return PlannedCapture(
        name="run" if len(fit.captures) == 1 else f"run-{number}",
        options=attrs.evolve(options, nvtx_exclude=(*options.nvtx_exclude, *excluded(request))),
        expressions=candidate.filter.expressions,
        expected=int(candidate.taken.sum()),
        seconds=candidate.seconds,
        passes=fit.ask.passes,
        why=candidate.why,
    )


def _until_last(search: Search, candidate: Candidate, timeline: Timeline | None) -> float | None:
    """How long the program runs until the last sampled launch: without what the timeline has after that."""
    kernels = search.launches.kernels
    if timeline is None or kernels is None or not candidate.taken.any():
        return None
    host_time = timeline.kernels.host_time
    after_ns = int(timeline.kernels.end.max()) - int(host_time[kernels[candidate.taken]].max())
    return max(search.program_s - after_ns / 1e9, 0.0)
