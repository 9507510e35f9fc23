"""From the evaluated stages to one answer: the stage to look at, why it takes its time, what to do first, all fixes.

A pure function of the report, so that a selection of regions, or a report of an older version, gets its own. All three
lines are of one stage, and the fixes that go with its verdict come before others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve

from llm_perf_opt.analysis.rules.all_rules import fix_words
from llm_perf_opt.analysis.verdicts.alike import alike, common_name, together
from llm_perf_opt.analysis.verdicts.rules import UNKNOWN, verdict_rules
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.fixes import AlsoIn, Answer, CodeLine, Fix
from llm_perf_opt.regions.labels import full_label, host_sentence, once_note, steadily, subject
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Opportunity, Verdict
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.rank_skew import RankSteps, differing_ranks
from llm_perf_opt.regions.ranking import (
    all_steady_time,
    evaluated_instances,
    is_host_only,
    roofs_known,
    stage_regions,
    stage_time,
    weight,
)

_WORTH = 0.1  # of the time of all stages: a gain that makes a stage worth looking at before a longer one
_ADVISES = ("gpu", "sm", "cuda_core")  # verdicts whose advice is worth more than a small gain elsewhere
_FIRST = 0.05  # of its stage: a smaller gain is not what to do first where a measurement would tell more
_OTHERS_NAMED = 2
_LINES = 10  # of a fix
_PROFILE = "llm-perf profile -- CMD"
_OF_SERVERS = "serve."  # rules
_LONGER = 1.01  # than the time of a stage: what a fix is a part of is not that
_NEARLY_ALL = 0.9
_APART = 0.02  # of the median: the mean is another time


def conclude(report: NCUProfileRegionReport) -> Answer:
    """The answer of a report whose regions have been evaluated."""
    stages, scope = stage_regions(report), report.main_scope
    if scope is None or not stages or stages[0].performance is None:
        return _nothing(report)
    if is_host_only(report):
        return _on_the_host(report, scope.regions)
    fixes = {stage.key: _fixes(stage, report.opportunities) for stage in stages}
    stage = _worst(stages, fixes)
    verdict = _verdict(stage)
    own = _answering(verdict, fixes.pop(stage.key))
    # What is wrong with steps of a server is told of them also where the whole recording is the stage.
    steps = [region for region in scope.regions if _is_step(region)] if stage.is_whole_recording else []
    fixes |= {one.key: [fix for fix in _fixes(one, ()) if fix.rule.startswith(_OF_SERVERS)] for one in steps}
    lengths = {other.key: _instances(other) for other in (*stages, *steps)}
    # Nobody looks at another stage for less, nor begins with it.
    least = (verdict_rules().thresholds["least_opportunity"] if own else _FIRST) * together(stages)
    worth = {id(f): f.gain_ns * lengths[f.stage] for found in fixes.values() for f in found}
    rest = sorted((f for found in fixes.values() for f in found if worth[id(f)] >= least), key=lambda f: -worth[id(f)])
    return Answer(
        stage=stage.key,
        verdict=verdict.bound,
        confidence=verdict.confidence or "low",
        where=_where(stage, stages) + once_note(stage, scope.regions),
        why=_why(stage, verdict) + _waited_for(report, stage, verdict),
        do_first=_first(stage, verdict, own),
        fixes=one_for_each_cause([*own, *rest]),
    )


def _is_step(region: NCUProfileRegion) -> bool:
    return region.timing is not None and region.timing.steps is not None and region.performance is not None


# -- which stage -------------------------------------------------------------------------------------


def _worst(stages: Sequence[NCUProfileRegion], fixes: dict[str, list[Fix]]) -> NCUProfileRegion:
    """The longest; where next to nothing could be won there, the one that promises most.

    Also where the longest may wait for launches only because a profiler looks on, of those of which that is not so.
    """
    whole = together(stages)

    def gain(stage: NCUProfileRegion) -> float:
        return sum(fix.gain_share for fix in fixes[stage.key]) * (all_steady_time(stage) or 0)

    longest, certain = stages[0], [stage for stage in stages if not _may_be_the_profiler(stage)]
    doubted = bool(certain) and _may_be_the_profiler(longest)
    best = max(certain if doubted else stages, key=gain)
    little = doubted or gain(longest) < _WORTH * whole
    return best if little and _WORTH * whole <= gain(best) else longest


def _may_be_the_profiler(stage: NCUProfileRegion) -> bool:
    verdict = stage.performance.verdict if stage.performance is not None else None
    return verdict is not None and (verdict.bound, verdict.confidence) == ("launch", "low")


def _instances(stage: NCUProfileRegion) -> int:
    return evaluated_instances(stage) or 1


# -- fixes -------------------------------------------------------------------------------------------


def _fixes(stage: NCUProfileRegion, opportunities: Iterable[Opportunity]) -> list[Fix]:
    """One for each cause, the largest gain first; together they never promise more than the stage takes."""
    causes: dict[str, list[Opportunity]] = {}
    own = [found for found in opportunities if found.region == stage.key]
    if not own and stage.performance is not None:  # a region that was selected, and is no stage of the report
        own = stage.performance.opportunities
    for found in own:
        causes.setdefault(found.rule or found.kind, []).append(found)  # reports of older versions have no ids
    made, left = [], 1.0
    for group in sorted(causes.values(), key=lambda group: -_share(group)):
        gain = min(_share(group), left)
        left -= gain
        if gain > 0:
            made.append(_fix(stage, group, gain))
    return made


def one_for_each_cause(fixes: Iterable[Fix]) -> list[Fix]:
    """What is one cause in several stages becomes one fix: of the first of them, which names the others.

    The stage of the answer comes first, so that its lines and its fixes stay together; then it is where most is won.
    """
    made: list[Fix] = []
    for fix in fixes:
        same = next((number for number, other in enumerate(made) if _is_one_cause(fix, other)), None)
        if same is None:
            made.append(fix)
            continue
        there = AlsoIn(fix.stage, fix.gain_ns, fix.gain_share, fix.because, fix.gain_interval_ns, fix.lines)
        made[same] = evolve(made[same], also=[*made[same].also, there])
    return made


def _is_one_cause(fix: Fix, other: Fix) -> bool:
    """Is the same to be done in both, in the same place? Of lines, because each names only those with most time."""
    if (fix.rule, fix.action) != (other.rule, other.action) or fix.stage == other.stage:
        return False
    known = {(line.file, line.line) for line in other.lines}
    times = {(line.file, line.line): line.time_ns or 0.0 for line in fix.lines}
    return not known or not times or sum(times[at] for at in times.keys() & known) > sum(times.values()) / 2


def _share(group: Iterable[Opportunity]) -> float:
    return sum((o.recoverable / o.of).of("ratio") for o in group if o.of.value)


def _fix(stage: NCUProfileRegion, found: Sequence[Opportunity], share: float) -> Fix:
    first = found[0]
    because = "; ".join(_once([(o.because or o.text) + _named(o.kernels) for o in found]))
    return Fix(
        rule=first.rule or first.kind,
        stage=stage.key,
        gain_ns=share * first.of.of("ns") / _instances(stage),
        gain_share=share,
        action=_sentence(first.advice),
        because=_sentence(because),
        lines=_lines(stage, found),
        gain_interval_ns=_interval(found, share / _share(found) / _instances(stage)),
    )


def _once(texts: Sequence[str]) -> list[str]:
    """Each once, and none that another one begins with."""
    distinct = list(dict.fromkeys(texts))
    return [one for one in distinct if not any(other != one and other.startswith(one) for other in distinct)]


def _lines(stage: NCUProfileRegion, found: Iterable[Opportunity]) -> list[CodeLine]:
    """Lines of the program that a fix is about, and what each takes of an instance."""
    times: dict[tuple[str, int, str], float] = {}
    for line in (line for one in found for line in one.lines):
        place = (line.file, line.line, line.function)
        times[place] = times.get(place, 0.0) + (line.time_ns or 0.0) / _instances(stage)
    ordered = sorted(times.items(), key=lambda item: -item[1])[:_LINES]
    return [CodeLine(*at, time) for at, time in ordered]


def _interval(found: Sequence[Opportunity], scale: float) -> list[float] | None:
    """The sums of the lower and of the upper ends; None where one of them has none."""
    if any(o.interval is None for o in found):
        return None
    return [scale * sum(o.interval[end].of("ns") for o in found if o.interval) for end in (0, 1)]


def _named(kernels: Sequence[str]) -> str:
    return f" ({', '.join(visible(name, 80) for name in kernels)})" if kernels else ""


def _answering(verdict: Verdict, fixes: list[Fix]) -> list[Fix]:
    """Those against what the verdict says come first: nobody acts on a reason and another advice.

    Warm-up is nothing to act on: where it is not the reason itself, it stands among the others.
    """
    prefixes = tuple(verdict_rules().fixes_of.get(verdict.bound, ()))
    against = [fix for fix in fixes if prefixes and fix.rule.startswith(prefixes)]
    against = [fix for fix in against if fix is against[0] or fix.rule != "warmup"]
    return [*against, *(fix for fix in fixes if fix not in against)]


# -- the three lines ---------------------------------------------------------------------------------


def _verdict(stage: NCUProfileRegion) -> Verdict:
    """Of the stage; of its kernels where counters are all there is."""
    assert stage.performance is not None
    whole, kernels = stage.performance.verdict, stage.performance.gpu_verdict
    return kernels if whole.bound == UNKNOWN and stage.time_source == "ncu" else whole


def _where(stage: NCUProfileRegion, stages: Sequence[NCUProfileRegion]) -> str:
    took, recorded = all_steady_time(stage), stage_time(stage)
    if took is None:
        return f"How long {full_label(stage)} takes is not known."
    takes = f"{subject(stage)} takes {_time(took)}{steadily(stage)}"
    if stage.is_whole_recording and _instances(stage) > 1:  # side by side
        took = recorded = took / _instances(stage)
        takes = f"{subject(stage)} takes {_time(took)} in each of {_instances(stage)} processes"
    part = "" if took == recorded else f" Of that, {_time(recorded)} were recorded: what follows is about those."
    if len(stages) == 1:
        return f"{takes}.{part}"
    like, whole = alike(stage, stages), together(stages)
    others = [other for other in stages if other not in like]
    if len(like) > 1:
        took = together(like)
        takes += f"; the {len(like)} stages {common_name(stage)}, which are alike, take {_time(took)}"
    share = shown(nanoseconds(took) / nanoseconds(whole)) if whole else "–"
    if not others:
        return f"{takes}.{part}"
    named = ", ".join(f"{full_label(other)} {_time(all_steady_time(other))}" for other in others[:_OTHERS_NAMED])
    rest = f", and {len(others) - _OTHERS_NAMED} more" if len(others) > _OTHERS_NAMED else ""
    return f"{takes}, {share} of the time of all stages ({named}{rest}).{part}"


def _why(stage: NCUProfileRegion, verdict: Verdict) -> str:
    title, text = verdict.title, verdict.text
    why = text if text.lower().startswith(title.lower()) else f"{_sentence(title)}. {text}"
    if stage.time_source == "ncu" and verdict.bound != UNKNOWN:
        why += f" To find out, run: {_PROFILE}"
    return why


def _waited_for(report: NCUProfileRegionReport, stage: NCUProfileRegion, verdict: Verdict) -> str:
    """Of several ranks, the one that the others wait for, and what it does differently, where the verdict does not say."""
    skew, steps, took = report.ranks, report.rank_steps, stage_time(stage)
    if skew is None or steps is None or not took:
        return ""
    why = next((row.why for row in steps.ranks if row.label == skew.late), "")
    waits = max(skew.ranks, key=lambda rank: rank.waiting_ns)
    if not why or why in verdict.text or waits.waiting_ns < _WORTH * took:
        return ""  # where no rank differs, it is another one each time
    differs = f"What {skew.late} does differently: {why}{_in_few_steps(steps)}."
    if f"for {skew.late}" in verdict.text:
        return f" {differs}"
    longest = f"{waits.label} longest, {_time(waits.waiting_ns)} in all"
    return f" In collectives, the other ranks wait for {skew.late}, {longest}. {differs}"


def _in_few_steps(steps: RankSteps) -> str:
    """Where ranks wait in some steps alone, as for one that writes a checkpoint."""
    waits = [max(each) for each in zip(*(row.waiting_ns for row in steps.ranks if row.waiting_ns), strict=True)]
    ordered, total = sorted(waits, reverse=True), sum(waits)
    few = next((n for n in range(1, len(ordered) // 3 + 1) if sum(ordered[:n]) >= _NEARLY_ALL * total > 0), 0)
    return f"; {_NEARLY_ALL:.0%} of the waiting is in {few} of {len(waits)} steps".replace("%", " %") if few else ""


def _first(stage: NCUProfileRegion, verdict: Verdict, own: Sequence[Fix]) -> str:
    best = own[0] if own else None
    prefixes = tuple(verdict_rules().fixes_of.get(verdict.bound, ()))
    if best is not None and prefixes and not best.rule.startswith(prefixes) and verdict.advice:
        return verdict.advice  # what was found is about something else
    if best is not None and (best.gain_share >= _FIRST or not (verdict.next_step or verdict.bound in _ADVISES)):
        return _gain(stage, best)
    if verdict.next_step:
        tell = "To find out, run" if verdict.bound == UNKNOWN else (verdict.advice or "Measure more").rstrip(".")
        return f"{tell}: {verdict.next_step}"
    return verdict.advice or "Nothing that was measured stands out."


def _gain(stage: NCUProfileRegion, fix: Fix) -> str:
    runs = _instances(stage)
    takes, each = fix.gain_ns / fix.gain_share, "each " if runs > 1 else "the " if stage.is_whole_recording else ""
    own = (stage_time(stage) or takes * runs) / runs
    of_work = "the GPU work of " if takes > _LONGER * own else ""  # some of it runs after the range has ended
    takes = takes if of_work else max(min(takes, own), fix.gain_ns)
    words = fix_words().get(fix.rule)
    saves = "this is about" if words is not None and words.looks else "that can save up to"
    of_it = "process" if runs > 1 and stage.is_whole_recording else full_label(stage)
    text = (
        f"{fix.action.rstrip('.')}: {saves} {_time(fix.gain_ns)} of the {_time(takes)} "
        f"of {of_work}{each}{of_it}{_on_average(stage, takes)}."
    )
    light = stage.performance.speed_of_light if stage.performance else None
    if light is not None and light.limit.value > 0 and stage.time_source == "timeline":
        work = (light.limit + light.above_roof) / runs
        if not roofs_known(light) and fix.gain_ns > takes - work.value:
            return text  # the gain is a part of that work: the two would seem to contradict each other
        text += f" Its GPU work alone takes {shown(work)}"
        text += f"; at the limit of the GPU it would be {shown(light.limit / runs)}." if roofs_known(light) else "."
    return text


def _on_average(stage: NCUProfileRegion, takes: float) -> str:
    """Where the median, which is said before, is another time."""
    median = stage.timing.steady.median_ns if stage.timing is not None else None
    return ", on average" if _instances(stage) > 1 and median and abs(takes / median - 1) > _APART else ""


def _time(nanosecs: float | None) -> str:
    return shown(None if nanosecs is None else nanoseconds(nanosecs))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- where nothing could be evaluated ----------------------------------------------------------------


def _on_the_host(report: NCUProfileRegionReport, regions: Sequence[NCUProfileRegion]) -> Answer:
    """Times of ranges are all there is: of a model on a CPU, or of a program timed without a profiler."""
    keys = {region.key for region in regions}
    outermost = [region for region in regions if region.parent not in keys]
    longest, *others = sorted(
        outermost, key=lambda region: (all_steady_time(region) or 0, *weight(region)), reverse=True
    )
    measured = all(given.get("kind") == "measured" for given in report.inputs)
    if measured:
        why = "the program ran without a profiler: nothing shows what the host and the GPU did"
    else:
        why = "no GPU work is in the recording: these are times of ranges on the host"
    first = f"To find out, run{'' if measured else ' on a machine with a GPU'}: {_PROFILE}"
    unseen = next((d for d in report.diagnostics if d.code == "NO_KERNELS" and d.severity == "warning"), None)
    if unseen is not None:  # it knows whether the GPU had work that was not recorded, and how to record it
        why = f"{visible(unseen.message, 500).rstrip('.')}; these are times of ranges on the host"
        first = visible(unseen.fix, 500)
    steps = report.rank_steps
    if steps is not None and (named := differing_ranks(steps)):
        first = f"Look at how ranks differ in {visible(steps.region, 120)}: {named}. {first}"
    return Answer(
        stage=longest.key,
        where=host_sentence(longest, regions) + _beside(others),
        why=f"Cannot tell, because {why}.",
        do_first=first,
    )


def _beside(others: Sequence[NCUProfileRegion]) -> str:
    if not others:
        return ""
    named = ", ".join(f"{full_label(other)} {_time(all_steady_time(other))}" for other in others[:_OTHERS_NAMED])
    rest = f", and {len(others) - _OTHERS_NAMED} more" if len(others) > _OTHERS_NAMED else ""
    return f" Besides: {named}{rest}."


def _nothing(report: NCUProfileRegionReport) -> Answer:
    scope, cause = report.main_scope, _cause(report.diagnostics)
    if report.available_ranges:
        where, reason = "No matching regions.", "the patterns select none of the regions"
        tell = f"Choose one of those that exist: {visible(report.available_ranges[0], 120)}"
    elif stages := stage_regions(report):
        where, reason = _where(stages[0], stages), "it is one of the many regions that are too small to be evaluated"
        tell = "To find out, run: llm-perf report INPUT --include REGION"
    elif scope is not None and (scope.totals.kernel_count or scope.totals.graph_launches):
        where, reason = "The recording has GPU work, and no region holds any of it.", "there is no region to evaluate"
        tell = f"To find out, run: {_PROFILE}"
    else:
        where, reason = "There is nothing in the recording to report.", "it holds neither ranges nor GPU work"
        tell = f"To find out, run: {_PROFILE}"
    if cause is not None and not (scope and scope.regions):
        reason, tell = visible(cause.message, 500).rstrip("."), visible(cause.fix, 500) or tell
        reason = reason[:1].lower() + reason[1:] if reason[1:2].islower() else reason
    return Answer(where=where, why=f"Cannot tell, because {reason}.", do_first=tell)


def _cause(diagnostics: Iterable[Diagnosis]) -> Diagnosis | None:
    """The first thing that is said about why there is so little."""
    return next((d for d in diagnostics if d.severity in ("error", "warning")), None)
