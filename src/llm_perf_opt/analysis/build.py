"""From recordings to the finished report.

Three cases, one result: a timeline alone (times), counters alone (what ncu measured, regions from the
NVTX stack of each result), or both, joined by signature: time and counts from the timeline, counters
from the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from attrs import Factory, define, evolve

from llm_perf_opt.analysis.counter_report import counter_scopes
from llm_perf_opt.analysis.gpu_condition import held_down_clock
from llm_perf_opt.analysis.imbalance import busier_rank, uneven, uneven_stages
from llm_perf_opt.analysis.level_changes import level_changes
from llm_perf_opt.analysis.measured_times import MeasuredTimes
from llm_perf_opt.analysis.profiled_launches import measured_kernels, profiled_launches
from llm_perf_opt.analysis.rank_comparison import RankComparison
from llm_perf_opt.analysis.rank_steps import steps_compared
from llm_perf_opt.analysis.ranks import compared_ranks
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.analysis.sample_matrix import Samples, impossible_rates
from llm_perf_opt.analysis.timeline_detail import timeline_detail
from llm_perf_opt.analysis.timeline_report import TimelineReport, names_in
from llm_perf_opt.analysis.timeline_stream import TimelineStream
from llm_perf_opt.analysis.verdicts.attach import attach
from llm_perf_opt.analysis.verdicts.conclusion import conclude
from llm_perf_opt.analysis.verdicts.counted_work import usable, with_totals
from llm_perf_opt.analysis.verdicts.launches import KindList, Launches, of_results
from llm_perf_opt.analysis.verdicts.performance import CodeFacts, Inputs, SteadyRegion, WaitingFacts
from llm_perf_opt.analysis.verification import verify
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.hardware import parse_overrides
from llm_perf_opt.metrics.hardware.ncu_peaks import peaks_of
from llm_perf_opt.regions.columns import CounterSet, Recording, Timeline
from llm_perf_opt.regions.detail import MOST_REGIONS, TimelineDetail
from llm_perf_opt.regions.merge import merge_timelines
from llm_perf_opt.regions.model import SCHEMA_VERSION, Coverage, NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter
from llm_perf_opt.regions.prepared import prepare
from llm_perf_opt.regions.ranking import heaviest
from llm_perf_opt.regions.table import WHOLE
from llm_perf_opt.regions.traffic import COUNTERS
from llm_perf_opt.spelling import nearest
from llm_perf_opt.version import __version__

__all__ = ["ReportOptions", "build_report", "build_streamed_report", "matched_anything", "with_ranks"]

_MOST_KERNEL_RECORDS = 300_000  # in one report: beyond that regions list their first kernels only
_LISTED_RANGES = 200


@define(eq=False)
class _Found:
    """What recordings add up to, before it is evaluated."""

    scopes: list[Scope]
    existing: list[str]  # keys of all regions
    kernel_names: set[str]
    diagnostics: list[Diagnosis]
    coverage: Coverage | None = None
    detail: Callable[[Collection[str]], TimelineDetail] | None = None  # of the regions with these keys
    launches_of: Callable[[str, NCUProfileRegion], Launches | None] | None = None  # see `Inputs`
    steady: dict[str, dict[str, SteadyRegion]] = Factory(dict)  # see `Inputs`
    waiting: Mapping[str, WaitingFacts] = Factory(dict)  # see `Inputs`
    code: Mapping[str, CodeFacts] = Factory(dict)  # see `Inputs`
    ranks: RankComparison = Factory(RankComparison)


def build_report(
    recordings: Sequence[Recording],
    options: ReportOptions,
    inputs: list[dict[str, Any]] | None = None,
    truth: CounterSet | None = None,
    measured: Sequence[Timeline] = (),
) -> NCUProfileRegionReport:
    """The whole report of one or more recordings. `truth`: range results that its estimates are held against.

    `measured`: runs of the same program without a profiler.
    """
    whole = partial(build_report, recordings, inputs=inputs, measured=measured)
    region_filter, kernel_filter = _filters(options)
    prepared = prepare([*recordings, *measured, *([truth] if truth else [])], region_filter)
    if truth is not None:
        *prepared, found_truth = prepared
        truth = found_truth if isinstance(found_truth, CounterSet) else None
    measured = [r for r in prepared[len(recordings) :] if isinstance(r, Timeline)]
    recordings = prepared[: len(recordings)]
    timelines = [r for r in recordings if isinstance(r, Timeline)]
    counter_sets = with_totals([r for r in recordings if isinstance(r, CounterSet)])
    if len(timelines) > 1 and not counter_sets:
        return build_streamed_report(lambda: timelines, options, inputs, measured)
    if timelines:
        found = _with_timeline(timelines, counter_sets, options, region_filter, kernel_filter)
    else:
        found = _counters_alone(counter_sets, options, region_filter, kernel_filter)
    found.diagnostics.extend(impossible_rates(counter_sets))
    return _finished(found, recordings, counter_sets, options, inputs, whole, truth if timelines else None, measured)


def build_streamed_report(
    read: Callable[[], Iterable[Timeline]],
    options: ReportOptions,
    inputs: list[dict[str, Any]] | None = None,
    measured: Sequence[Timeline] = (),
) -> NCUProfileRegionReport:
    """The report of timelines that come one by one: none but the first is kept.

    `read` gives them from the first on; where kernels are chosen, it is asked twice.
    `inputs` may still be empty when this is called, and be filled as the timelines are read.
    """
    stream = TimelineStream(options, *_filters(options))
    for timeline in read():
        stream.add(timeline)
    assert stream.first is not None, "somebody has to give a timeline"
    scopes = stream.scopes()
    diagnostics = [*_compare_timelines(stream.facts, stream.range_names), *stream.diagnostics]
    if len(stream.facts) > 1 and stream.kernel_names:
        recordings = len(stream.facts)
        diagnostics.append(diagnose("LAUNCHES_OF_ONE", source=stream.facts[0].source, recordings=recordings))
    found = _Found(
        scopes,
        stream.existing,
        stream.kernel_names,
        diagnostics,
        detail=partial(timeline_detail, *stream.first),
        steady=stream.steady,
        waiting=stream.waiting,
        code=stream.code,
        ranks=stream.ranks,
    )
    again = partial(build_streamed_report, read, measured=measured)
    return _finished(found, stream.facts, [], options, inputs, again, measured=measured)


def _filters(options: ReportOptions) -> tuple[RegionFilter, NameFilter]:
    regions = RegionFilter.of(options.include, options.exclude)
    return regions, NameFilter.of(options.kernel_include, options.kernel_exclude)


def _with_timeline(
    timelines: list[Timeline],
    counter_sets: list[CounterSet],
    options: ReportOptions,
    region_filter: RegionFilter,
    kernel_filter: NameFilter,
) -> _Found:
    names = [names_in(t, t.ranges.name) for t in timelines]
    builder = TimelineReport(merge_timelines(timelines), counter_sets, options, region_filter, kernel_filter)
    scopes = builder.scopes()
    return _Found(
        scopes,
        builder.existing,
        names_in(builder.timeline, builder.timeline.kernels.name),
        [*_compare_timelines(timelines, names), *builder.diagnostics],
        builder.coverage,
        partial(timeline_detail, builder.timeline, builder.attribution, builder.warmth.instances),
        builder.launches_of if builder.launches else None,
        builder.steady,
        builder.waiting,
        builder.code,
        builder.ranks,
    )


def _counters_alone(
    counter_sets: list[CounterSet], options: ReportOptions, region_filter: RegionFilter, kernel_filter: NameFilter
) -> _Found:
    scopes, table, rows_of = counter_scopes(counter_sets, options, region_filter, kernel_filter)
    good, kinds = usable(rows_of.samples.info)[0], KindList()

    def launches_of(scope: str, region: NCUProfileRegion) -> Launches:
        return of_results(rows_of.samples, rows_of.rows.get((scope, region.key), []), good, kinds)

    return _Found(
        scopes,
        [table.key(number) for number in table.in_tree_order()],
        {a.name for c in counter_sets for a in c.actions if a.kind == "kernel"},
        [diagnose("NO_TIMELINE"), *_missing_durations(rows_of.samples)],
        launches_of=launches_of,
    )


def _missing_durations(samples: Samples) -> list[Diagnosis]:
    missing = samples.without_duration()
    return [diagnose("DURATIONS_MISSING", missing=missing, results=len(samples.actions))] if missing else []


def _finished(
    found: _Found,
    recordings: Sequence[Recording],
    counter_sets: list[CounterSet],
    options: ReportOptions,
    inputs: list[dict[str, Any]] | None,
    whole: Callable[[ReportOptions], NCUProfileRegionReport],
    truth: CounterSet | None = None,
    measured: Sequence[Timeline] = (),
) -> NCUProfileRegionReport:
    """Evaluate what was found, and say what is missing. `whole`: the same report with other options."""
    region_filter, kernel_filter = _filters(options)
    timelines = [r for r in recordings if isinstance(r, Timeline)]
    times = _times_of(measured, timelines, found.scopes, options) if measured else None
    has_timeline, ranks = bool(timelines), found.ranks
    report = NCUProfileRegionReport(
        schema_version=SCHEMA_VERSION,
        generated_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config_fingerprint=options.fingerprint(),
        inputs=inputs or [{"path": r.source, "kind": r.kind} for r in recordings],
        environment=_environment(recordings),
        diagnostics=[d for r in recordings for d in r.diagnostics]
        + found.diagnostics
        + ranks.diagnostics
        + compared_ranks(ranks.skew, ranks.common)
        + steps_compared(ranks.steps)
        + uneven(ranks.imbalance, ranks.steps.region if ranks.steps is not None else ""),
        scopes=found.scopes,
        attribution=options.attribution,
        selection=region_filter.as_json()
        | {"kernel_include": list(options.kernel_include), "kernel_exclude": list(options.kernel_exclude)},
        coverage=found.coverage,
        ranks=ranks.skew,
        rank_steps=ranks.steps,
        collectives=ranks.collectives,
        imbalance=ranks.imbalance,
    )
    main = report.main_scope
    info = {name: info for c in counter_sets for name, info in c.metric_info.items()}
    good, odd = usable(info)
    good |= {name for name in COUNTERS if name not in info}  # of samples, whose unit we asked for
    report = attach(
        evolve(
            report,
            launches=profiled_launches(counter_sets, main.kernels if main and has_timeline else []),
            measured=measured_kernels(counter_sets, kernel_filter),
            counter_units={name: info.unit for c in counter_sets for name, info in sorted(c.metric_info.items())},
        ),
        Inputs(
            options=options,
            gpu_facts=_gpu_facts(recordings, of_ncu=parse_overrides(options.hardware).from_ncu),
            good=good,
            odd=odd,
            has_counters=any(c.actions for c in counter_sets),
            launches_of=found.launches_of,
            steady=found.steady,
            undisturbed=times.each_of(found.scopes) if times is not None else {},
            timed_on_gpu=times.on_gpu if times is not None else (),
            waiting=found.waiting,
            code=found.code,
            slowest=ranks.common.slowest,
            rank_waiting=ranks.common.waiting,
            uneven_stages=uneven_stages(ranks.imbalance, ranks.steps) or busier_rank(ranks.skew, ranks.steps),
            odd_collectives=ranks.odd,
            clock=held_down_clock([*measured, *timelines]),
        ),
    )
    if times is not None:
        times.set_token_rates(found.scopes)
        of_parts = any(timeline.kind != "kineto" for timeline in timelines)  # such a trace is of a few steps by intent
        told = [*times.conditions, *(times.diagnoses() if of_parts else ())]
        report = evolve(report, diagnostics=[*report.diagnostics, *told])
    if kernel_filter:
        every = evolve(options, kernel_include=[], kernel_exclude=[], launch_detail=False)
        report = _evaluated_by_all_kernels(report, whole(every), kernel_filter)
    diagnoses = _limit_kernels(report, options.top)
    if truth is not None and not kernel_filter:  # a range was measured with all its kernels
        verification, differing = verify(report, truth)
        report = evolve(report, verification=verification)
        chosen = bool(options.include or options.exclude)  # the measured regions may not be among those shown
        diagnoses += [d for d in differing if not (chosen and d.code == "NOTHING_VERIFIED")]
    diagnoses += level_changes(main.regions if main is not None else [])
    diagnoses += _explain_no_kernels(found.kernel_names, kernel_filter, options)
    available: list[str] = []
    if not any(scope.regions for scope in found.scopes):
        available, reasons = _explain_no_match(report, found.existing, options)
        diagnoses += reasons
    detail = None
    if options.launch_detail and found.detail is not None and main is not None:
        detail = found.detail({region.key for region in heaviest(main.regions, MOST_REGIONS)})
    diagnoses = [*report.diagnostics, *diagnoses]
    report = evolve(report, diagnostics=diagnoses, available_ranges=available, timeline_detail=detail)
    return evolve(report, answer=conclude(report)) if options.verdicts else report


def _times_of(
    measured: Sequence[Timeline], timelines: list[Timeline], scopes: list[Scope], options: ReportOptions
) -> MeasuredTimes:
    """The times of the program by itself, which the regions of the scopes get, too."""
    every = evolve(options, include=[], exclude=[], kernel_include=[], kernel_exclude=[], aggregate=True)
    times = MeasuredTimes.of(measured, timelines, lambda one: build_report([one], evolve(every, launch_detail=False)))
    times.set_timings(scopes)
    return times


def _explain_no_kernels(names: set[str], kernel_filter: NameFilter, options: ReportOptions) -> list[Diagnosis]:
    """What to say where the kernel patterns let nothing through."""
    if not (kernel_filter and names) or any(kernel_filter.keeps(n, short_kernel_name(n)) for n in names):
        return []
    wanted = (options.kernel_include or options.kernel_exclude)[0]
    close = nearest(wanted, {short_kernel_name(n) for n in names}, 5)
    nearest_names = ", ".join(close)
    return [
        diagnose(
            "NO_MATCHING_KERNELS",
            kernels=len(names),
            nearest=nearest_names,
            wanted=wanted.removeprefix("regex:").strip("*"),
        )
    ]


def _evaluated_by_all_kernels(
    report: NCUProfileRegionReport, whole: NCUProfileRegionReport, kernel_filter: NameFilter
) -> NCUProfileRegionReport:
    """Verdicts are of regions, not of the kernels somebody wants to look at: a filter must not change them."""
    evaluated = {(s.scope, r.key): r.performance for s in whole.scopes for r in s.regions}
    for scope in report.scopes:
        for region in scope.regions:
            found = evaluated.get((scope.scope, region.key))
            if found is not None:
                kept = [s for s in found.signatures if kernel_filter.keeps(s.kernel_name, s.short_name)]
                found = evolve(found, signatures=kept)
            region.performance = found
    has_verdicts = any(r.performance is not None for s in report.scopes for r in s.regions)
    return evolve(
        report,
        stages=whole.stages,
        opportunities=whole.opportunities,
        hardware=whole.hardware,
        unclassified_share=whole.unclassified_share,
        diagnostics=[*report.diagnostics, *([diagnose("KERNELS_CHOSEN")] if has_verdicts else [])],
    )


def _gpu_facts(recordings: Iterable[Recording], *, of_ncu: bool) -> dict[int, dict[str, Any]]:
    """Attributes of the GPUs; where several recordings tell of one, the first to say a fact is believed.

    `of_ncu`: also what ncu's roofline metrics say of them.
    """
    facts: dict[int, dict[str, Any]] = {}
    for recording in recordings:
        for device, own in recording.gpu_facts.items():
            known = facts.setdefault(device, {})
            # Another GPU under the same number: a rank on another machine. Its facts do not mix.
            if known.get("name", own.get("name")) == own.get("name"):
                facts[device] = {**own, **known}
    results = [a for r in recordings if of_ncu and isinstance(r, CounterSet) for a in r.actions]
    for device in {a.device for a in results if a.device is not None}:
        facts.setdefault(device, {})["ncu_peaks"] = peaks_of(a.metrics for a in results if a.device == device)
    return facts


def _compare_timelines(timelines: list[Timeline], names: list[set[str]]) -> Iterator[Diagnosis]:
    """Timelines given together should be parts of one job: its ranks, with the same ranges. `names`: of those."""
    if len({t.kind for t in timelines}) > 1:
        yield diagnose("MIXED_TIMELINES")
    known = [own - {WHOLE} for own in names]
    unrelated = [t.source for t, own in zip(timelines[1:], known[1:], strict=True) if own and not own & known[0]]
    if unrelated and known[0]:
        yield diagnose("UNRELATED_TIMELINES", unrelated=", ".join(unrelated), first=timelines[0].source)
    of_rank: dict[int, list[str]] = {}
    for timeline in timelines:
        for rank in {process.rank for process in timeline.processes if process.rank is not None}:
            of_rank.setdefault(rank, []).append(timeline.source)
    twice = next(((rank, sources) for rank, sources in sorted(of_rank.items()) if len(sources) > 1), None)
    if twice is not None:
        yield diagnose("RANK_GIVEN_TWICE", rank=twice[0], sources=", ".join(twice[1][:4]))


def matched_anything(report: NCUProfileRegionReport) -> bool:
    """Did the patterns of the user select something?"""
    return any(scope.regions for scope in report.scopes) and not any(
        d.code == "NO_MATCHING_KERNELS" for d in report.diagnostics
    )


def _environment(recordings: Iterable[Recording]) -> dict[str, Any]:
    """Facts about where the recordings come from, one entry per input."""
    gpus = {str(d): name for r in recordings for d, name in r.environment.get("gpus", {}).items()}
    facts = [{"input": r.source} | {k: v for k, v in r.environment.items() if k != "gpus"} for r in recordings]
    return {"llm_perf_opt": __version__, "gpus": gpus, "recordings": facts}


def _explain_no_match(
    report: NCUProfileRegionReport, keys: list[str], options: ReportOptions
) -> tuple[list[str], list[Diagnosis]]:
    """The ranges that could have been asked for, nearest first, and what to say."""
    if not keys:
        if any(diagnosis.code == "NO_RANGES" for diagnosis in report.diagnostics):
            return [], []  # it has been said
        return [], [diagnose("NO_REGIONS")]
    wanted = options.include[0] if options.include else ""
    close = nearest(wanted, keys, 5)
    chosen = ", ".join(map(repr, options.include)) or "every region"
    if options.exclude:
        chosen += f" without {', '.join(map(repr, options.exclude))}"
    available = close + [k for k in keys if k not in close][: _LISTED_RANGES - len(close)]
    return available, [diagnose("NO_MATCHING_REGIONS", chosen=chosen, regions=len(keys), nearest=", ".join(close))]


def _limit_kernels(report: NCUProfileRegionReport, top: int) -> list[Diagnosis]:
    """Cut the lists of a report that would be too large, before it is finished."""
    total = sum(len(region.kernels) for scope in report.scopes for region in scope.regions)
    if total <= _MOST_KERNEL_RECORDS:
        return []
    for scope in report.scopes:
        for region in scope.regions:
            region.kernels_omitted += max(len(region.kernels) - top, 0)
            region.kernels = region.kernels[:top]
    return [diagnose("KERNEL_LISTS_CUT", rows=total, top=top)]


def with_ranks(timeline: Timeline, rank: int | None, noted: Mapping[int, int] = MappingProxyType({})) -> Timeline:
    """The same timeline, its processes known to be of this rank; or, where they noted theirs by process id, of those."""
    known = {p.pid for p in timeline.processes} & noted.keys()
    ranks = {p.pid: noted.get(p.pid) if known else rank for p in timeline.processes}
    return evolve(
        timeline, processes=[evolve(p, rank=ranks[p.pid]) if p.rank is None else p for p in timeline.processes]
    )
