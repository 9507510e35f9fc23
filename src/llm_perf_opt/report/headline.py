"""The answer in three lines: which stage is the problem, why, and what to do first."""

from __future__ import annotations

from attrs import define

from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, SpeedOfLight
from llm_perf_opt.report.host_only import is_host_only, sentences
from llm_perf_opt.report.text import duration, full_label, gpu_time, judged_times, share, weight

_MOST_OF_THE_WORK = 0.5


@define
class Line:
    """One line of the answer: what it is about, and what it says."""

    name: str
    text: str
    lead: str = ""  # what the text begins with and the eye should find first


def stage_regions(report: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    """The stages the analysis found, else the outermost regions; the longest first."""
    scope = report.main_scope
    regions = scope.regions if scope else []
    keys, stages = {region.key for region in regions}, set(report.stages)
    chosen = [r for r in regions if (r.key in stages if stages else r.parent not in keys)]
    return sorted(chosen, key=weight, reverse=True)


def roofs_known(light: SpeedOfLight) -> bool:
    """Whether the limit is one: without counters of most of the work it is the work as measured."""
    return light.analysed_share >= _MOST_OF_THE_WORK


def attainable(light: SpeedOfLight) -> Quantity:
    """The time without waiting: kernels at their roofs, or, where those are not known, as measured."""
    return light.limit if roofs_known(light) else light.limit + light.above_roof


def light_parts(light: SpeedOfLight) -> list[tuple[str, str, float]]:
    """What the time of a stage consists of: kind, name, nanoseconds. `now` is their sum; parts of nothing are left out."""
    limit, above = light.limit.of("ns"), light.above_roof.of("ns")
    work = [("light", "at the GPU's limit", limit), ("above", "slower than that", above)]
    parts = [
        *(work if roofs_known(light) else [("busy", "GPU work", limit + above)]),
        ("idle", "GPU waiting", light.waiting.of("ns")),
        ("others", "other regions' work", light.other_work.of("ns")),
    ]
    return [part for part in parts if part[2] > 0]


def headline(report: NCUProfileRegionReport) -> list[Line]:
    """Three lines; none where no stage could be judged."""
    stages = stage_regions(report)
    if not stages or stages[0].performance is None:
        return []
    if is_host_only(report):
        first, *_, last = sentences(report)
        return [Line("Where", first), Line("Not here", last)]
    worst = stages[0]
    title = worst.performance.verdict.title if worst.performance else ""
    return [
        _line("Where", _where(stages), full_label(worst)),
        _line("Why", _why(worst), f"{title}."),
        _line("Do first", _first(report, worst), _best_advice(report)),
    ]


def _line(name: str, text: str, lead: str) -> Line:
    """The lead counts only where the text really begins with it."""
    found = text[: len(lead)]
    return Line(name, text, found if lead and found.lower() == lead.lower() else "")


def _best_advice(report: NCUProfileRegionReport) -> str:
    return report.opportunities[0].advice.rstrip(".") if report.opportunities else ""


def _time(region: NCUProfileRegion) -> float:
    wall, _ = judged_times(region)
    return wall if wall is not None else gpu_time(region.inclusive) or 0


def _where(stages: list[NCUProfileRegion]) -> str:
    worst, whole = stages[0], sum(map(_time, stages))
    if len(stages) == 1:
        return f"{full_label(worst)} takes {duration(_time(worst))}."
    others = ", ".join(f"{full_label(r)} {duration(_time(r))}" for r in stages[1:3])
    rest = f", and {len(stages) - 3} more" if len(stages) > 3 else ""
    return (
        f"{full_label(worst)} takes {duration(_time(worst))}, {share(_time(worst), whole)} of the time of all stages"
        f" ({others}{rest})."
    )


def _why(region: NCUProfileRegion) -> str:
    judged = region.performance
    assert judged is not None
    title, text = judged.verdict.title, judged.verdict.text
    return text if text.lower().startswith(title.lower()) else f"{title[:1].upper()}{title[1:]}. {text}"


def _first(report: NCUProfileRegionReport, worst: NCUProfileRegion) -> str:
    judged = worst.performance
    assert judged is not None
    if judged.verdict.bound == "unknown" and judged.verdict.next_step:
        return f"Find out more: {judged.verdict.next_step}"
    best = next(iter(report.opportunities), None)
    if best is None:
        return judged.verdict.advice or "Nothing that was measured stands out."
    advice = best.advice[:1].upper() + best.advice[1:]
    region = next((r for r in stage_regions(report) if r.key == best.region), worst)
    text = (
        f"{advice.rstrip('.')}: that can win back up to {duration(best.recoverable.of('ns'))} of the "
        f"{duration(best.of.of('ns'))} of {full_label(region)}."
    )
    light = region.performance.speed_of_light if region.performance else None
    if light is not None and light.limit.value > 0:
        busy = light.limit + light.above_roof
        text += f" Its GPU work alone takes {duration(busy.of('ns'))}"
        text += (
            f"; at the limit of the GPU it would be {duration(light.limit.of('ns'))}." if roofs_known(light) else "."
        )
    return text
