"""From recordings to the finished report.

Three cases, one result: a timeline alone (times), counters alone (what ncu measured, regions from the
NVTX stack of each result), or both, joined by signature: time and counts from the timeline, counters
from the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from attrs import evolve

from llm_perf_opt.analysis.counter_report import CounterRows, counter_scopes
from llm_perf_opt.analysis.hardware import parse_overrides
from llm_perf_opt.analysis.launches import profiled_launches
from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.analysis.timeline_detail import timeline_detail
from llm_perf_opt.analysis.timeline_report import TimelineReport
from llm_perf_opt.analysis.verdicts import Inputs, attach
from llm_perf_opt.analysis.verdicts.attach import LaunchesOf
from llm_perf_opt.analysis.verdicts.counters import usable, with_totals
from llm_perf_opt.analysis.verdicts.launches import KindList, Launches, of_results
from llm_perf_opt.regions.columns import CounterSet, Recording, Timeline
from llm_perf_opt.regions.detail import TimelineDetail
from llm_perf_opt.regions.merge import merge_timelines
from llm_perf_opt.regions.model import SCHEMA_VERSION, Diagnosis, NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter, nearest
from llm_perf_opt.version import __version__

__all__ = ["ReportOptions", "build_report", "matched_anything", "with_ranks"]

_MOST_KERNEL_RECORDS = 300_000  # in one report: beyond that regions list their first kernels only
_LISTED_RANGES = 200


def build_report(
    recordings: Sequence[Recording], options: ReportOptions, inputs: list[dict[str, Any]] | None = None
) -> NCUProfileRegionReport:
    """The whole report of one or more recordings."""
    timelines = [r for r in recordings if isinstance(r, Timeline)]
    counter_sets = with_totals([r for r in recordings if isinstance(r, CounterSet)])
    region_filter = RegionFilter.of(options.include, options.exclude)
    kernel_filter = NameFilter.of(options.kernel_include, options.kernel_exclude)
    diagnostics = [d for r in recordings for d in r.diagnostics]
    coverage = None
    detail: Callable[[Collection[str]], TimelineDetail] | None = None
    overrides = parse_overrides(options.hardware)
    launches_of: LaunchesOf | None = None
    if timelines:
        if len({t.kind for t in timelines}) > 1:
            diagnostics.append(
                Diagnosis(
                    "MIXED_TIMELINES",
                    "warning",
                    "Timelines of different tools were given together; if they are of the same run, its work counts twice in the aggregate.",
                    "Give one timeline of each process.",
                )
            )
        diagnostics += _compare_timelines(timelines)
        builder = TimelineReport(merge_timelines(timelines), counter_sets, options, region_filter, kernel_filter)
        scopes = builder.scopes()
        existing = builder.existing
        kernel_names = {builder.timeline.strings[n] for n in np.unique(builder.timeline.kernels.name).tolist()}
        coverage = builder.coverage
        diagnostics += builder.diagnostics
        detail = partial(timeline_detail, builder.timeline, builder.attribution)
        if builder.launches:
            launches_of = partial(_of_timeline, builder.launches)
    else:
        scopes, table, rows_of = counter_scopes(counter_sets, options, region_filter, kernel_filter)
        launches_of = partial(_of_results, rows_of, KindList())
        existing = [table.key(number) for number in table.in_tree_order()]
        kernel_names = {a.name for c in counter_sets for a in c.actions if a.kind == "kernel"}
        diagnostics.append(
            Diagnosis(
                "NO_TIMELINE",
                "info",
                "There is no timeline: kernel times are ncu's, taken with kernels one after another; ranges and graphs measured as a whole have no GPU time; wall and idle time are not known.",
                "Record one with: nsys profile -t cuda,nvtx -s none -o OUT CMD  and give OUT.sqlite beside the counters.",
            )
        )
    report = NCUProfileRegionReport(
        schema_version=SCHEMA_VERSION,
        generated_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config_fingerprint=options.fingerprint(),
        inputs=inputs or [{"path": r.source, "kind": r.kind} for r in recordings],
        environment=_environment(recordings),
        diagnostics=diagnostics,
        scopes=scopes,
        attribution=options.attribution,
        selection=region_filter.as_json()
        | {"kernel_include": list(options.kernel_include), "kernel_exclude": list(options.kernel_exclude)},
        coverage=coverage,
        detail=detail,
    )
    main = report.main_scope
    report.launches = profiled_launches(counter_sets, main.kernels if main and timelines else [])
    good, odd = usable({name: info for c in counter_sets for name, info in c.metric_info.items()})
    attach(
        report,
        Inputs(
            gpu_facts=_gpu_facts(recordings),
            overrides=overrides,
            calibrations=options.calibrations,
            formula=options.formula,
            alone=options.alone,
            good=good,
            odd=odd,
            has_counters=any(c.actions for c in counter_sets),
            launches_of=launches_of,
            signatures=options.top,
        ),
    )
    _limit_kernels(report, options.top)
    if kernel_filter and kernel_names and not any(kernel_filter.keeps(n, short_kernel_name(n)) for n in kernel_names):
        wanted = (options.kernel_include or options.kernel_exclude)[0]
        close = nearest(wanted, {short_kernel_name(n) for n in kernel_names}, 5)
        report.diagnostics.append(
            Diagnosis(
                "NO_MATCHING_KERNELS",
                "warning",
                f"The kernel patterns let none of the {len(kernel_names)} kernels through: counts and times are of nothing.",
                f"Nearest: {', '.join(close)}. A pattern is a glob over the whole name (*{wanted.strip('*')}*) or regex:…",
            )
        )
    if not any(scope.regions for scope in scopes):
        _explain_no_match(report, existing, options)
    return report


def _of_timeline(launches: dict[str, dict[str, Launches]], scope: str, region: NCUProfileRegion) -> Launches | None:
    return launches.get(scope, {}).get(region.key)


def _of_results(rows_of: CounterRows, kinds: KindList, scope: str, region: NCUProfileRegion) -> Launches:
    samples = rows_of.samples
    return of_results(samples, rows_of.rows.get((scope, region.key), []), usable(samples.info)[0], kinds)


def _gpu_facts(recordings: Iterable[Recording]) -> dict[int, dict[str, Any]]:
    """Attributes of the GPUs; where several recordings tell of one, the first to say a fact is believed."""
    facts: dict[int, dict[str, Any]] = {}
    for recording in recordings:
        for device, own in recording.gpu_facts.items():
            known = facts.setdefault(device, {})
            # Another GPU under the same number: a rank on another machine. Its facts do not mix.
            if known.get("name", own.get("name")) == own.get("name"):
                facts[device] = {**own, **known}
    return facts


def _compare_timelines(timelines: list[Timeline]) -> list[Diagnosis]:
    """Timelines given together should be parts of one job: its ranks, with the same ranges."""
    names = [{t.strings[n] for n in np.unique(t.ranges.name).tolist()} for t in timelines]
    strangers = [t.source for t, own in zip(timelines[1:], names[1:], strict=True) if own and not own & names[0]]
    if not strangers or not names[0]:
        return []
    return [
        Diagnosis(
            "UNRELATED_TIMELINES",
            "warning",
            f"{', '.join(strangers)} has no range in common with {timelines[0].source}: the aggregate adds up different programs.",
            "Give timelines of one job together, others one by one.",
        )
    ]


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


def _explain_no_match(report: NCUProfileRegionReport, keys: list[str], options: ReportOptions) -> None:
    if not keys:
        if any(diagnosis.code == "NO_RANGES" for diagnosis in report.diagnostics):
            return  # the reader has said so
        report.diagnostics.append(
            Diagnosis(
                "NO_REGIONS",
                "warning",
                "The recording has no NVTX ranges, so there is no region to report; kernels are listed for the whole scope.",
                "Mark stages with torch.cuda.nvtx.range or nvtx.annotate and record with -t cuda,nvtx.",
            )
        )
        return
    wanted = options.include[0] if options.include else ""
    close = nearest(wanted, keys, 5)
    report.available_ranges = close + [k for k in keys if k not in close][: _LISTED_RANGES - len(close)]
    report.diagnostics.append(
        Diagnosis(
            "NO_MATCHING_REGIONS",
            "warning",
            f"No matching regions: {', '.join(map(repr, options.include)) or 'every region'}"
            + (f" without {', '.join(map(repr, options.exclude))}" if options.exclude else "")
            + f" matches none of the {len(keys)} that exist.",
            f"Nearest: {', '.join(close)}. List all with: llm-perf ranges INPUT",
        )
    )


def _limit_kernels(report: NCUProfileRegionReport, top: int) -> None:
    total = sum(len(region.kernels) for scope in report.scopes for region in scope.regions)
    if total <= _MOST_KERNEL_RECORDS:
        return
    for scope in report.scopes:
        for region in scope.regions:
            region.kernels_omitted = max(len(region.kernels) - top, 0)
            region.kernels = region.kernels[:top]
    report.diagnostics.append(
        Diagnosis(
            "KERNEL_LISTS_CUT",
            "info",
            f"The regions have {total:,} kernel rows together; each lists its {top} longest.",
            "Choose regions with --include, or a longer list with --top.",
        )
    )


def with_ranks(timeline: Timeline, rank: int) -> Timeline:
    """The same timeline, its processes known to be of this rank."""
    return evolve(timeline, processes=[evolve(p, rank=rank) if p.rank is None else p for p in timeline.processes])
