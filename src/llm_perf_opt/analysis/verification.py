"""Estimates against the truth: counters extrapolated from samples, and the same regions measured as wholes.

Range replay measures a region without taking its kernels apart, so nothing of what can be wrong with sampling is
in it. Its results are kept out of the report's own values: what is verified is what is reported.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.join import Place, measured_range
from llm_perf_opt.analysis.sample_matrix import TIME, Samples, add_up_results
from llm_perf_opt.analysis.verdicts.counted_work import with_totals
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.quantity import percent
from llm_perf_opt.regions.columns import CounterSet
from llm_perf_opt.regions.model import MetricValue, NCUProfileRegion, NCUProfileRegionReport, VerifiedCounter

# Two standard errors, and what two runs of one program differ by anyway.
_STANDARD_ERRORS = 2.0
_LEAST_ERROR = 0.01
_NAMED = 5


def verify(report: NCUProfileRegionReport, truth: CounterSet) -> tuple[list[VerifiedCounter], list[Diagnosis]]:
    """Compare the regions of a report with range results of the same program; the counters, and what to know."""
    scope = report.main_scope
    regions = {_place(region): region for region in (scope.regions if scope else [])}
    samples = Samples.of(with_totals([truth]))
    rows: dict[Place, list[int]] = {}

    def kernels_per_instance(place: Place) -> float | None:
        region = regions.get(place)
        return None if region is None else region.inclusive.kernel_count / max(region.instances or 1, 1)

    for row in samples.wholes:
        place = measured_range(samples.actions[row], kernels_per_instance)
        if place is not None:
            rows.setdefault(place, []).append(row)
    counters: list[VerifiedCounter] = []
    partial = []
    for place, found in rows.items():
        region = regions[place]
        if region.instances is not None and len(found) != region.instances:
            partial.append(f"{region.key} ({len(found)} of {region.instances} instances)")
            continue
        counters += _compared(region, add_up_results(samples, found))
    return counters, list(_diagnoses(counters, partial))


def _compared(region: NCUProfileRegion, truth: dict[str, MetricValue]) -> list[VerifiedCounter]:
    compared = []
    for name, measured in sorted(truth.items()):
        estimate = region.inclusive.metrics.get(name)
        if estimate is None or measured.rollup != "sum" or name == TIME:
            continue  # the time of a replayed range holds gaps and the cost of replay
        uncovered = 0.0 if estimate.coverage is None else 1.0 - estimate.coverage
        stated = max(_STANDARD_ERRORS * (estimate.spread or 0.0), _LEAST_ERROR) + uncovered
        off = abs(estimate.value - measured.value)
        compared.append(
            VerifiedCounter(
                region=region.key,
                metric=name,
                unit=measured.unit,
                estimate=estimate.value,
                truth=measured.value,
                ratio=estimate.value / measured.value if measured.value else None,
                stated_error=stated,
                agrees=off <= stated * max(abs(estimate.value), abs(measured.value)),
            )
        )
    return compared


def _diagnoses(counters: list[VerifiedCounter], partial: list[str]) -> Iterator[Diagnosis]:
    if partial:
        yield diagnose("VERIFIED_IN_PART", regions=", ".join(partial[:_NAMED]))
    wrong = sorted((c for c in counters if not c.agrees), key=lambda c: -abs((c.ratio or 0.0) - 1))
    regions = len({c.region for c in counters})
    if not counters:
        yield diagnose("NOTHING_VERIFIED")
    elif not wrong:
        yield diagnose("VERIFIED", counters=len(counters), regions=regions)
    else:
        named = "; ".join(_named(c) for c in wrong[:_NAMED])
        yield diagnose("ESTIMATE_OFF", wrong=len(wrong), counters=len(counters), named=named)


def _named(counter: VerifiedCounter) -> str:
    ratio = "measured as 0" if counter.ratio is None else f"{counter.ratio:.2f} times the truth"
    return f"{counter.metric} of {counter.region} {ratio}, stated ± {percent(counter.stated_error, '.0')}"


def _place(region: NCUProfileRegion) -> Place:
    return region.domain, region.range_kind == "start_end", tuple(region.path)
