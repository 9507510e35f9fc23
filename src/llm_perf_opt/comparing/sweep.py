"""The jobs of a sweep side by side: what each configuration reaches, which are worth having, and the best.

Of several wishes (many tokens a second, short steps, little energy) no one configuration may be the best: the Pareto
front are those that no other beats in one without losing in another. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
from attrs import Factory, define

from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.ranking import stage_regions

# What is wished for: a field of a job, whether more of it is better, and its words.
WISHES = (
    ("tokens_per_s", True, "most tokens a second"),
    ("time_ns", False, "shortest time"),
    ("energy_per_token_j", False, "least energy a token"),
)
_MOST_KEYS = 8  # columns of a table


@define(frozen=True)
class SweepJob:
    """One job: its configuration, and its main stage."""

    name: str
    values: dict[str, str] = Factory(dict)  # of the swept keys
    stage: str = ""
    time_ns: float | None = None  # of a steady instance: the median
    tokens_per_s: float | None = None
    energy_per_token_j: float | None = None
    bound: str = ""  # title of the verdict
    problem: str = ""  # why nothing is known of it
    on_front: bool = False


@define(frozen=True)
class Sweep:
    """All jobs, in their order."""

    keys: list[str]
    jobs: list[SweepJob]
    best: dict[str, str] = Factory(dict)  # wish -> name of a job

    def as_json(self) -> dict[str, Any]:
        return attrs.asdict(self)

    def job(self, name: str) -> SweepJob:
        return next(job for job in self.jobs if job.name == name)

    @property
    def sentences(self) -> list[str]:
        """The best configurations in words."""
        named = {field: text for field, _, text in WISHES}
        by_job: dict[str, list[str]] = {}
        for wish, name in self.best.items():
            by_job.setdefault(name, []).append(named[wish])
        told = ((" and ".join(wishes), self.job(name)) for name, wishes in by_job.items())
        return [f"{words[:1].upper()}{words[1:]}: {described(job)} (job {job.name})" for words, job in told]


def described(job: SweepJob) -> str:
    return ", ".join(f"{key}={value}" for key, value in job.values.items()) or f"job {job.name}"


def compare_jobs(
    configurations: Mapping[str, Mapping[str, object]],
    reports: Mapping[str, NCUProfileRegionReport],
    problems: Mapping[str, str],
    *,
    typed: Sequence[str] = (),
    made: Mapping[str, float] = MappingProxyType({}),
) -> Sweep:
    """By name of the job: its flat configuration, its report, or why there is none. `typed`: keys with several values.

    `made`: the tokens of one batch, which ranges do not tell: of a batch they show as many steps as of one sequence.
    """
    keys = _swept(configurations, typed)
    stage = _common_stage(reports)
    jobs = []
    for name, configuration in configurations.items():
        values = {key: _shown(configuration.get(key)) for key in keys}
        if name not in reports:
            jobs.append(SweepJob(name, values, problem=problems.get(name, "There is no report.")))
            continue
        jobs.append(_job(name, values, reports[name], stage, made.get(name)))
    comparable = [job for job in jobs if job.stage == stage]  # the time of another stage is no better or worse
    front = _front(comparable)
    best = {}
    for wish, more, _ in WISHES:
        known = [job for job in comparable if getattr(job, wish) is not None]
        if len(known) > 1:
            best[wish] = (max if more else min)(known, key=lambda job: getattr(job, wish)).name
    return Sweep(keys, [attrs.evolve(job, on_front=job.name in front) for job in jobs], best)


def _swept(configurations: Mapping[str, Mapping[str, object]], typed: Sequence[str]) -> list[str]:
    """Keys whose values differ; of those, the ones that were typed with several values, where that is known."""
    all_keys = dict.fromkeys(key for values in configurations.values() for key in values)
    differing = [key for key in all_keys if len({_shown(v.get(key)) for v in configurations.values()}) > 1]
    chosen = []
    for key in typed:
        below = [one for one in differing if one == key or one.startswith(f"{key}.")]
        named = [one for one in below if one in (key, f"{key}.name")]  # a whole group is known by its name
        chosen += (named or below)[:1]
    return (list(dict.fromkeys(chosen)) or differing)[:_MOST_KEYS]


def _common_stage(reports: Mapping[str, NCUProfileRegionReport]) -> str:
    """The stage that most jobs have as a region; of those, one with tokens, and the longest.

    What the stages of a report are depends on where its time goes: of one job it may be a part of what it is of another.
    """
    stages = dict.fromkeys(region.key for report in reports.values() for region in stage_regions(report))
    found = {key: [r for report in reports.values() if (r := _region(report, key)) is not None] for key in stages}

    def worth(key: str) -> tuple[int, int, int]:
        regions = found[key]
        return len(regions), sum(_tokens(r) is not None for r in regions), sum(r.wall_ns or 0 for r in regions)

    return max(found, key=worth, default="")


def _region(report: NCUProfileRegionReport, key: str) -> NCUProfileRegion | None:
    scope = report.main_scope
    return next((r for r in scope.regions if r.key == key), None) if scope is not None else None


def _job(name: str, values: dict[str, str], report: NCUProfileRegionReport, stage: str, made: float | None) -> SweepJob:
    stages = stage_regions(report)
    region = _region(report, stage) or (stages[0] if stages else None)
    if region is None:
        return SweepJob(name, values, problem="Its report has no stages.")
    steady = region.timing.steady if region.timing is not None else None
    tokens, energy = _tokens(region), region.timing.energy_j if region.timing is not None else None
    if tokens is not None and steady is not None and steady.median_ns:
        of_instance = made or tokens * steady.median_ns / 1e9
        tokens = of_instance / steady.median_ns * 1e9
        per_token = energy / of_instance if energy is not None and of_instance else None
    else:
        per_token = None
    verdict = region.performance.verdict if region.performance is not None else None
    return SweepJob(
        name,
        values,
        stage=region.key,
        time_ns=steady.median_ns if steady is not None else None,
        tokens_per_s=tokens,
        energy_per_token_j=per_token,
        bound=verdict.title if verdict is not None else "",
    )


def _tokens(region: NCUProfileRegion) -> float | None:
    rate = region.performance.tokens if region.performance is not None else None
    return rate.now.value if rate is not None else None


def _front(jobs: Sequence[SweepJob]) -> set[str]:
    """Jobs that no other is at least as good as in all that is known of both, and better in something."""
    known = [
        (job, {wish: _sign(more) * getattr(job, wish) for wish, more, _ in WISHES if getattr(job, wish) is not None})
        for job in jobs
        if not job.problem
    ]
    names = max((wishes.keys() for _, wishes in known), key=len, default={}.keys())
    complete = [(job, [wishes[name] for name in names]) for job, wishes in known if names and names <= wishes.keys()]
    return {
        job.name
        for job, mine in complete
        if not any(all(a >= b for a, b in zip(other, mine, strict=True)) and other != mine for _, other in complete)
    }


def _sign(more: bool) -> int:
    return 1 if more else -1


def _shown(value: object) -> str:
    """As it is typed."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_shown, value))
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
