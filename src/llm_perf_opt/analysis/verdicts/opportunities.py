"""What could be won back in a region, by cause, most first: what the fix rules (`analysis/rules`) find, in words."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from llm_perf_opt.analysis.rules.all_rules import RULES, fix_words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.metrics.quantity import shown
from llm_perf_opt.regions.code import Place
from llm_perf_opt.regions.fixes import CodeLine
from llm_perf_opt.regions.model import Opportunity
from llm_perf_opt.regions.names import visible

_MOST_LINES = 20


def opportunities(of: Evaluated) -> list[Opportunity]:
    """All that are worth a line, ranked."""
    least = of.light.now * verdict_rules().thresholds["least_opportunity"]
    known = of.launched.has_operators
    rules = (rule for rule in RULES if known or not rule.operators)
    found = [one for rule in rules for one in rule.find(of) if one.recoverable >= least]
    return ranked(_opportunity(of, one) for one in found)


def ranked(found: Iterable[Opportunity]) -> list[Opportunity]:
    return sorted(found, key=lambda o: -o.recoverable.of("ns"))


def _within(of: Evaluated, found: Found) -> Found:
    """The same with no part larger than the whole: times of kernels that run side by side add up to more than it takes."""
    now = of.light.now
    time = found.time if found.time <= now else min(found.time * overlap_scale(of.split), now)
    won = min(found.recoverable, time)
    interval = None if found.interval is None else (min(found.interval[0], won), min(found.interval[1], now))
    return evolve(found, time=time, recoverable=won, interval=interval)


def _opportunity(of: Evaluated, found: Found) -> Opportunity:
    lines, whole = _lines(of, found), found.time
    texts, now, found = fix_words()[found.texts or found.rule], of.light.now, _within(of, found)
    if found.time < whole:
        part = (found.time / whole).of("ratio")
        lines = [evolve(line, time_ns=(line.time_ns or 0.0) * part) for line in lines]
    amounts = {"now": now, "time": found.time, "recoverable": found.recoverable}
    words = of.facts.words | {name: shown(amount) for name, amount in amounts.items()} | found.words
    because, action = (text.format_map(words) for text in (texts.because, texts.action_in(of.torch)))
    return Opportunity(
        region=of.region.key,
        kind=found.kind,
        family=found.family,
        text=f"{visible('/'.join(of.region.path), 60)}: {because}: {action}",
        time=found.time,
        recoverable=found.recoverable,
        of=now,
        advice=action,
        kernels=list(found.kernels),
        rule=found.rule,
        because=because,
        interval=None if found.interval is None else list(found.interval),
        lines=lines,
    )


def _lines(of: Evaluated, found: Found) -> list[CodeLine]:
    """The lines that what was found comes from: of the very launches, waits and copies that the rule took."""
    times: dict[Place, float] = {}

    def add(place: Place, time_ns: float) -> None:
        times[place] = times.get(place, 0.0) + time_ns

    for line in (line for part in found.idle for line in part.lines):
        add(Place(line.file, line.line, line.function), line.time_ns)
    in_kernels = found.time.of("ns") - found.copies_ns - sum(part.time_ns for part in found.idle)
    whole = of.launched.time(found.rows) if found.rows is not None else 0.0
    for place, time in of.launched.lines(found.rows).items() if found.rows is not None and whole else ():
        add(place, time * in_kernels / whole)  # of collectives, it is about those that nothing hides
    copies = of.region.inclusive.memory.host_time_ns  # as recorded, like `copied`; `split` may be at another pace
    for place, time in of.copied.items() if found.copies_ns and copies else ():
        add(place, time * found.copies_ns / copies)
    ordered = sorted(times.items(), key=lambda item: -item[1])[:_MOST_LINES]
    return [CodeLine(place.file, place.line, place.function, time) for place, time in ordered if time > 0]
