"""A sweep as Markdown and as a page: a table and plots over the swept keys, a picture of the Pareto front. No script, no network."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.comparing.comparison_md import MARK
from llm_perf_opt.comparing.sweep import Sweep, SweepJob, described
from llm_perf_opt.comparing.sweep_plots import rate_of, sweep_plots
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.plain_page import plain_page
from llm_perf_opt.report.text import duration, quantity

_WIDTH, _HEIGHT = 600.0, 260.0
_MISSING = "–"
_COLUMNS = ("stage", "time", "tokens/s", "ms/token", "J/token", "bound", "Pareto front")


def _cells(job: SweepJob) -> list[str]:
    """What stands behind the values of the swept keys."""
    if job.problem:
        return [visible(job.problem, 120), *[_MISSING] * (len(_COLUMNS) - 1)]
    tokens = job.tokens_per_s
    return [
        visible(job.stage, 80),
        duration(job.time_ns),
        _MISSING if tokens is None else f"{tokens:,.4g}",
        _MISSING if not tokens else f"{1e3 / tokens:,.4g}",
        _MISSING if job.energy_per_token_j is None else quantity(job.energy_per_token_j, "J"),
        job.bound or _MISSING,
        "yes" if job.on_front else _MISSING,
    ]


def rows(sweep: Sweep) -> list[list[str]]:
    """Titles first, then one row a job."""
    head = ["job", *(visible(key, 60) for key in sweep.keys), *_COLUMNS]
    return [
        head,
        *([visible(j.name, 40), *(visible(v, 60) for v in j.values.values()), *_cells(j)] for j in sweep.jobs),
    ]


def render_sweep_md(sweep: Sweep) -> str:
    head, *body = rows(sweep)
    lines = [MARK, "# Sweep", "", *(f"- {plain(sentence)}" for sentence in sweep.sentences), ""]
    words = 1 + len(sweep.keys)
    lines += table(head, ([*map(code, row[:words]), *map(plain, row[words:])] for row in body))
    return "\n".join(lines) + "\n"


def render_sweep_html(sweep: Sweep) -> str:
    head, *body = rows(sweep)
    sentences = [visible(sentence, 300) for sentence in sweep.sentences]
    page = plain_page("llm_perf_opt.comparing", "sweep.html")
    plots = sweep_plots(sweep)
    return page.render(head=head, rows=body, sentences=sentences, picture=_picture(sweep), plots=plots).lstrip()


def _picture(sweep: Sweep) -> dict[str, Any] | None:
    """Tokens a second over the time of a step: up and to the left is better. None where there are not two such jobs."""
    compared = {job.stage for job in sweep.jobs if job.on_front}
    known = [job for job in sweep.jobs if job.time_ns and job.tokens_per_s and job.stage in compared]
    if len(known) < 2:
        return None
    right = max(job.time_ns or 0 for job in known) * 1.05
    top = max(job.tokens_per_s or 0 for job in known) * 1.05
    places = {
        job.name: (
            round(_WIDTH * (job.time_ns or 0) / right, 1),
            round(_HEIGHT * (1 - (job.tokens_per_s or 0) / top), 1),
        )
        for job in known
    }
    front = sorted(places[job.name] for job in known if job.on_front)
    return {
        "front": " ".join(f"{x},{y}" for x, y in front),
        "dots": [
            {"x": places[j.name][0], "y": places[j.name][1], "on": j.on_front, "title": visible(described(j), 200)}
            for j in known
        ],
        "right": duration(right),
        "top": rate_of(top, "tokens/s"),
    }
