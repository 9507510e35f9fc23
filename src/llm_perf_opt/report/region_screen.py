"""One region for the terminal: the sentences first, then small tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.region_detail import counter_rows, kernel_rows, line_rows
from llm_perf_opt.report.terminal import console, labelled
from llm_perf_opt.report.text import (
    NOT_MEASURED,
    duration,
    evaluated_times,
    full_label,
    gpu_time,
    label,
    percent,
    place_words,
    quantity,
    share,
    trust,
    weight,
    work_count,
)

if TYPE_CHECKING:
    from rich.console import Console


def show_region(report: NCUProfileRegionReport, region: NCUProfileRegion, top: int) -> None:
    """Times, verdict, idle causes, fixes, kernels, lines and counters, as far as they are known."""
    out, known = console(), region.performance
    labelled(out, [("Region:", full_label(region)), *_sentences(region)])
    fixes = report.answer.fixes_of(region.key)
    labelled(
        out,
        [
            (
                f"fix {n}",
                f"{fix.action.rstrip('.')}: up to {duration(fix.gain_ns)} ({percent(fix.gain_share)}). {fix.because}",
            )
            for n, fix in enumerate(fixes[:top], 1)
        ],
    )
    regions = report.main_scope.regions if report.main_scope else []
    inside = sorted((other for other in regions if other.parent == region.key), key=weight, reverse=True)
    children = [
        (
            label(other), f"{other.instances or 0:,}", duration(other.wall_ns), share(other.wall_ns, region.wall_ns),
            duration(gpu_time(other.inclusive)),
        )
        for other in inside
    ]  # fmt: skip
    _table(out, ("region inside", ">instances", ">wall", ">of it", ">GPU time"), children, top)
    if known and known.idle:
        causes = [
            (duration(one.time_ns), f"{one.gaps:,}", one.cause, visible(one.what, 60) if one.what else "")
            for one in known.idle.causes
        ]
        _table(out, ("GPU idle", ">gaps", "cause", "what the host did"), causes, top)
    kernels = [
        (
            row["kernel"], f"{row['calls']:,}", duration(_ns(row["total_ms"])), duration(_ns(row["mean_ms"])),
            percent(row["share"]), row["bound"] or NOT_MEASURED, row["operator"] or ", ".join(row["lines"]),
        )
        for row in kernel_rows(region.kernels, known)
    ]  # fmt: skip
    _table(out, ("kernel", ">calls", ">time", ">mean", ">share", "bound", "launched by"), kernels, top)
    lines = [
        (
            place_words(row["file"], row["line"], row["function"]),
            f"{row['calls']:,}",
            duration(row["time_ns"]),
            duration(row["idle_ns"]),
        )
        for row in line_rows(known)
    ]
    _table(out, ("line", ">launches", ">kernel time", ">GPU idle"), lines, top)
    metrics = region.inclusive.metrics
    counters = [
        (row["title"], quantity(row["value"], row["unit"]), trust(metrics[row["counter"]]))
        for row in counter_rows(region)
    ]
    _table(out, ("counter", ">value", "how it is known"), counters, top)


def _sentences(region: NCUProfileRegion) -> list[tuple[str, str]]:
    known, timing = region.performance, region.timing
    wall, idle = evaluated_times(region)
    found = []
    if timing is not None and timing.steady.instances:
        steady = timing.steady
        text = f"median {duration(steady.median_ns)} (p10 {duration(steady.p10_ns)}, p90 {duration(steady.p90_ns)}), "
        text += f"{steady.instances:,} steady of {timing.instances:,} instances, {timing.source}"
        if timing.warmup.instances or timing.warmup.total_ns:
            text += f"; warm-up {duration(timing.warmup.total_ns)} ({timing.warmup.why or 'other'})"
        found.append(("Time:", text))
    elif region.wall_ns is not None:
        found.append(("Time:", duration(region.wall_ns)))
    if gpu_time(region.inclusive) is not None:
        work = f"{work_count(region.inclusive)} kernels, {duration(gpu_time(region.inclusive))} of GPU time"
        found.append(("Work:", f"{work}, GPU idle {share(idle, wall)} of the wall time" if wall else work))
    if known is not None and known.verdict.bound != "unknown":
        found.append(
            ("Why:", f"{_capital(known.verdict.title)}. {known.verdict.text} Confidence: {known.verdict.confidence}.")
        )
    if known is not None and known.gpu_verdict.bound != "unknown":
        found.append(("Kernels:", f"{_capital(known.gpu_verdict.title)}. {known.gpu_verdict.text}"))
    return found


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def _ns(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds * 1e6


def _table(out: Console, head: Sequence[str], rows: Sequence[Sequence[Any]], top: int) -> None:
    """`>` in front of a title: a column of numbers."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in head:
        number = title.startswith(">")
        table.add_column(title.lstrip(">"), justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows[:top]:
        table.add_row(*(Text(visible(str(cell), 160) if cell else "") for cell in row))
    out.print()
    out.print(table)
    if len(rows) > top:
        out.print(f"{len(rows) - top:,} more: --top {len(rows)}", markup=False)
