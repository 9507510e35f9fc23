"""The cards of the stages on the page: the stage table again, each row with its time as a bar and its verdict in words."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from llm_perf_opt.regions.model import NCUProfileRegion, Verdict
from llm_perf_opt.regions.ranking import evaluated_instances
from llm_perf_opt.report.region_table import mean_ns
from llm_perf_opt.report.stages import stage_columns, stage_time, time_parts
from llm_perf_opt.report.text import NOT_MEASURED, duration, evaluated_times, without_profiler
from llm_perf_opt.report.view import View

_OF_TIMES = ("each_ns", "warmup_ns", "tokens_per_s")
_MEDIAN = "median"
_IN_THE_HEAD = ("verdict", "instances", "time_ns")  # columns that a card shows in another way


@define(frozen=True)
class Fact:
    """One line of a card: a value, or why there is none."""

    name: str
    text: str
    hint: str = ""
    missing: bool = False


@define(frozen=True)
class Part:
    """One stretch of the bar of a card."""

    kind: str  # "light" | "above" | "busy" | "idle" | "others": its colour
    name: str
    share: float
    begin: float
    text: str


@define(frozen=True)
class Card:
    """One stage."""

    region: NCUProfileRegion
    place: int  # number of the region on the page
    time: float | None
    time_name: str
    instances: int | None  # that the time is of
    verdict: Verdict | None
    parts: list[Part]
    parts_missing: str
    facts: list[Fact]
    advice: str = ""  # what to do about it, in the words of the answer where that has a fix for the stage


def cards(view: View, place: dict[str, int]) -> list[Card]:
    """`place`: key -> number of the region on the page."""
    shown = [region for region in view.stages if region.key in place]
    if view.host_only:
        return [_host_card(region, place[region.key]) for region in shown]
    fixes = view.report.answer.fixes_of
    return [_card(region, place[region.key], [fix.action for fix in fixes(region.key)]) for region in shown]


def _host_card(region: NCUProfileRegion, place: int) -> Card:
    """Of a run without a GPU: times of its steady instances, and tokens where they are known."""
    facts = [fact for fact in _facts(region, _OF_TIMES) if not fact.missing]
    if not any(fact.name == _MEDIAN for fact in facts) and region.instances and region.instances > 1:
        facts.insert(0, Fact("each instance", duration(mean_ns(region))))
    wall, _ = evaluated_times(region)
    return Card(region, place, wall, "wall time", evaluated_instances(region), None, [], "", facts)


def _card(region: NCUProfileRegion, place: int, fixes: Sequence[str]) -> Card:
    verdict = region.performance.verdict if region.performance else None
    wall, _ = evaluated_times(region)
    timed = wall is not None
    parts = _parts(region)
    missing = "the recording has no GPU work" if timed else "needs a timeline"
    return Card(
        region,
        place,
        stage_time(region),
        f"wall time{without_profiler(region)}" if timed else "GPU time",
        evaluated_instances(region),
        verdict,
        parts,
        "" if parts else missing,
        _facts(region),
        _advice(verdict, fixes),
    )


def _advice(verdict: Verdict | None, fixes: Sequence[str]) -> str:
    """To measure more (`next_step`) is not what to do first where a fix is known."""
    if verdict is None:
        return ""
    return f"{fixes[0].rstrip('.')}." if verdict.next_step and fixes else verdict.advice


def _parts(region: NCUProfileRegion) -> list[Part]:
    parts: list[Part] = []
    found = time_parts(region)
    light = region.performance.speed_of_light if region.performance else None
    whole = light.now.of("ns") if light else sum(time for *_, time in found)
    for kind, name, time in found:
        begin = parts[-1].begin + parts[-1].share if parts else 0.0
        parts.append(Part(kind, name, min(time / whole if whole else 0.0, 1 - begin), begin, duration(time)))
    return parts


def _facts(region: NCUProfileRegion, names: Sequence[str] = ()) -> list[Fact]:
    """`names`: of these columns alone."""
    facts = []
    for column in stage_columns():
        if column.name in _IN_THE_HEAD or (names and column.name not in names):
            continue
        text = column.text(region)
        if text != NOT_MEASURED:
            hint = "; ".join(words for words in (column.hint, column.detail(region)) if words)
            facts.append(Fact(column.title, text, hint))
        elif reason := column.missing(region):
            facts.append(Fact(column.title, reason, column.hint, missing=True))
    return facts
