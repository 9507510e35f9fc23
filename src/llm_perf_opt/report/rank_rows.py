"""The ranks of a job as a table, and as what the page draws its matrix of ranks by steps from."""

from __future__ import annotations

import re
from statistics import median
from typing import Any

from llm_perf_opt.metrics.quantity import percent
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.rank_skew import RankSteps
from llm_perf_opt.report.text import counted, duration, quantity
from llm_perf_opt.report.view import View

_HEAD = ("rank", "median step", "computing in it", "waiting in it", "transfer in it", "clock", "memory peak", "energy a step", "what is different", "its own report")  # fmt: skip
TEXTS = ("what is different", "its own report")  # columns of words
_NOTHING = "–"
_MOST_LISTED = 16
_OF_JOB = re.compile(r"rank-(\d+)/")


def rank_table(view: View) -> list[list[str]]:
    """The titles, then one row a rank; nothing where there are no ranks, or none that repeat the same region."""
    steps = view.report.rank_steps
    if steps is None:
        return []
    skew = view.report.ranks
    clocks = {rank.rank: rank for rank in skew.ranks} if skew is not None else {}
    links = rank_links(view)
    rows = []
    for row in steps.ranks:
        clock = clocks.get(row.rank)
        rows.append(
            [
                str(row.rank),
                duration(row.median_ns),
                duration(row.computing_ns),
                duration(_steady(row.waiting_ns, steps)),
                duration(_steady(row.transfer_ns, steps)),
                _NOTHING if clock is None else _clock(clock.clock_offset_ns, clock.clock_drift_ppm),
                _NOTHING if row.memory_peak_bytes is None else quantity(row.memory_peak_bytes, "byte"),
                _NOTHING if row.energy_j is None else quantity(row.energy_j, "J"),
                visible(row.why, 200) if row.why else _NOTHING,
                links.get(row.rank, _NOTHING),
            ]
        )
    used = [n for n in range(len(_HEAD)) if any(row[n] != _NOTHING for row in rows)]
    return [[row[n] for n in used] for row in ([*_HEAD], *rows)]


def rank_links(view: View) -> dict[int, str]:
    """The report of each rank of a job, from the folder of the job; none where a run is of a node, with several in it."""
    steps = view.report.rank_steps
    paths = (str(one.get("path", "")) for one in view.report.inputs)
    in_job = {int(found[1]) for path in paths if (found := _OF_JOB.match(path))}
    if steps is None or in_job != {row.rank for row in steps.ranks}:
        return {}
    return {rank: f"ranks/rank-{rank}/report.html" for rank in sorted(in_job)}


def rank_sentence(view: View) -> str:
    """What a step takes on all together, and how well the clocks agree."""
    steps, skew = view.report.rank_steps, view.report.ranks
    if steps is None:
        return ""
    shown = f"; the first {len(steps.common_ns):,} are listed" if steps.all_steps > len(steps.common_ns) else ""
    clocks = "" if skew is None else f" Clocks agree within {duration(skew.residual_ns)} once they are aligned."
    return (
        f"{counted(steps.all_steps, 'step')} ({visible(steps.region, 80)}){shown}. Common time of a steady step "
        f"(that of its slowest rank): {duration(steps.common_median_ns)}.{clocks}"
    )


def rank_matrix(view: View) -> dict[str, Any] | None:
    """Columns for the page; None where there is no matrix."""
    steps = view.report.rank_steps
    if steps is None:
        return None
    measures: dict[str, list[list[int] | None]] = {
        "time": [row.times_ns for row in steps.ranks],
        "waiting": [row.waiting_ns for row in steps.ranks],
        "transfer": [row.transfer_ns for row in steps.ranks],
    }
    known = {name: rows for name, rows in measures.items() if all(row is not None for row in rows)}
    links = rank_links(view)
    return {
        "labels": [row.label for row in steps.ranks],
        "stories": [visible(row.why, 200) if row.why else "" for row in steps.ranks],
        "links": [links.get(row.rank, "") for row in steps.ranks],
        "warmup": steps.warmup,
        "measures": known,
    }


def imbalance_sentences(view: View) -> list[str]:
    """Each rank's part of what all wait for."""
    what = {
        "experts": "Experts, between the all-to-alls around them",
        "stages": "Stages of a pipeline, computing in a step",
    }
    return [
        f"{what[one.kind]}: all together {duration(one.common_ns)}; "
        + ", ".join(f"{visible(load.label, 80)} {duration(load.time_ns)}" for load in one.ranks[:_MOST_LISTED])
        + ("" if len(one.ranks) <= _MOST_LISTED else f" and {len(one.ranks) - _MOST_LISTED} more")
        + f". {percent(one.lost_share, '.0')} of the GPUs' time meanwhile is not used."
        for one in view.report.imbalance
    ]


def _steady(values: list[int] | None, steps: RankSteps) -> float | None:
    return median(values[steps.warmup :]) if values else None


def _clock(offset_ns: int, drift: float) -> str:
    told = f"{'+' if offset_ns > 0 else '−' if offset_ns < 0 else ''}{duration(abs(offset_ns))}"
    return told + (f", {drift:+.3g} ppm" if drift else "")
