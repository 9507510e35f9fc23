"""Plots of a sweep: what each swept key does to tokens a second, time and energy a token. Jobs alike but for the key are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define

from llm_perf_opt.comparing.sweep import Sweep, SweepJob, described
from llm_perf_opt.regions.names import visible

_WIDTH, _HEIGHT = 260.0, 120.0
_MOST_KEYS, _MOST_VALUES, _MOST_BOUNDS = 4, 24, 4  # colours
_MEASURES: tuple[tuple[str, Callable[[SweepJob], float | None]], ...] = (
    ("tokens/s", lambda job: job.tokens_per_s),
    ("ms/token", lambda job: 1e3 / job.tokens_per_s if job.tokens_per_s else None),
    ("J/token", lambda job: job.energy_per_token_j),
)


@define(frozen=True)
class Dot:
    """One job."""

    x: float
    y: float
    bound: int  # number in `SweepPlots.bounds`; more than there are: any other
    title: str


@define(frozen=True)
class Plot:
    """One measure over one key."""

    key: str
    measure: str
    top: str  # what the upper edge is
    ticks: list[tuple[float, str]]
    lines: list[str]  # points of each
    dots: list[Dot]


@define(frozen=True)
class SweepPlots:
    """All of them, and what their colours mean."""

    bounds: list[str]
    plots: list[Plot]


def sweep_plots(sweep: Sweep) -> SweepPlots:
    """Of the jobs with the stage that is compared; a measure that fewer than two of them have has no plot."""
    compared = {job.stage for job in sweep.jobs if job.on_front}
    jobs = [job for job in sweep.jobs if job.stage in compared and not job.problem]
    bounds = list(dict.fromkeys(visible(job.bound, 60) for job in jobs if job.bound))[:_MOST_BOUNDS]
    found = []
    for key in sweep.keys[:_MOST_KEYS]:
        values = _in_order({job.values[key] for job in jobs})
        if 1 < len(values) <= _MOST_VALUES:
            made = (_plot(key, values, jobs, bounds, name, measure) for name, measure in _MEASURES)
            found += [plot for plot in made if plot is not None]
    return SweepPlots(bounds, found)


def rate_of(value: float, unit: str) -> str:
    """As an edge of a plot has it."""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _in_order(values: set[str]) -> list[str]:
    """Numbers by size, words by the alphabet."""
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _plot(
    key: str,
    values: Sequence[str],
    jobs: Sequence[SweepJob],
    bounds: list[str],
    name: str,
    measure: Callable[[SweepJob], float | None],
) -> Plot | None:
    known = [(job, value) for job in jobs if (value := measure(job)) is not None]
    if len(known) < 2 or not (top := max(value for _, value in known) * 1.05):
        return None
    place = {value: round(_WIDTH * (n + 0.5) / len(values), 1) for n, value in enumerate(values)}
    dots, lines = [], dict[tuple[str, ...], list[tuple[float, float]]]()
    for job, value in known:
        x, y = place[job.values[key]], round(_HEIGHT * (1 - value / top), 1)
        bound = visible(job.bound, 60)
        words = f"{described(job)}: {value:,.4g} {name}" + (f", {bound}" if bound else "")
        dots.append(Dot(x, y, bounds.index(bound) if bound in bounds else len(bounds), visible(words, 240)))
        lines.setdefault(tuple(v for k, v in job.values.items() if k != key), []).append((x, y))
    return Plot(
        key=visible(key, 60),
        measure=name,
        top=rate_of(top, name),
        ticks=[(place[value], visible(value, 14)) for value in values],
        lines=[" ".join(f"{x},{y}" for x, y in sorted(line)) for line in lines.values() if len(line) > 1],
        dots=dots,
    )
