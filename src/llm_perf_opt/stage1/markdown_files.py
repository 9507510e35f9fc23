"""Stage 1 in files for people: `report.md` with the stages, `operators.md` with what PyTorch's profiler saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.text import duration, quantity, share
from llm_perf_opt.stage1.session_timing import Spread, Timing
from llm_perf_opt.stage1.torch_profile import KernelRow, OperatorRow, Profile

_TOP = 15
_ALL = 200
_MS = 1e6  # nanoseconds


def _table(header: list[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [*table(header, rows, numbers=len(header) - 1), ""]


def milliseconds(value: float | None) -> str:
    return duration(None if value is None else value * _MS)


def spread_cells(found: Spread) -> list[str]:
    """Count, mean, spread, least, median, most: of milliseconds."""
    return [f"{found.count:,}", *(milliseconds(v) for v in (found.mean, found.std, found.min, found.median, found.max))]


def headline(timing: Timing) -> list[tuple[str, str]]:
    """The few numbers people ask for first, where they apply."""
    found = [
        ("time to first token", timing.time_to_first_token_ms, milliseconds),
        ("time per output token", timing.time_per_output_token_ms, milliseconds),
        ("new tokens per second, whole run", timing.tokens_per_second, _rate),
        ("new tokens per second, decode", timing.decode_tokens_per_second, _rate),
        ("prompt tokens per second, prefill", timing.prefill_tokens_per_second, _rate),
    ]
    rows = [
        (name, show(value.mean) if value.std is None else f"{show(value.mean)} ± {show(value.std)}")
        for name, value, show in found
        if value is not None
    ]
    for key, value in timing.memory.items():
        if isinstance(value, int):
            rows.append((key.removesuffix("_bytes").replace("_", " ") + " memory", quantity(value, "byte")))
    return rows


def _rate(value: float) -> str:
    return f"{value:,.1f} tokens/s" if value < 1000 else f"{value:,.0f} tokens/s"


def render_report(metrics: Mapping[str, Any], timing: Timing, profile: Profile | None, notes: Sequence[str]) -> str:
    """`report.md`."""
    model, versions = metrics["model"], metrics["versions"]
    size = model["facts"].get("parameters")
    about = [
        f"Model {code(model['name'])}" + (f" ({quantity(size, '')} parameters, {model['dtype']})" if size else ""),
        f"on {code(metrics['device']['name'])}",
        f"with torch {plain(versions['torch'])}",
    ]
    lines = ["# Stage 1", "", ", ".join(about) + ".", ""]
    lines += [
        f"Timed passes: {timing.repeats} over {metrics['inputs_run']}, in batches of {metrics['infer']['batch_size']}, "
        f"after {metrics['timing']['warmup']} of warm-up. Clock: {timing.clock}. ± is the standard deviation.",
        "",
    ]
    lines += _table(["", "mean"], [[name, value] for name, value in headline(timing)])
    lines += ["## Stages", ""]
    lines += _table(
        ["stage", "count", "mean", "±", "min", "median", "max"],
        [["&nbsp;&nbsp;" * s.path.count("/") + code(s.name), *spread_cells(s.milliseconds)] for s in timing.stages],
    )
    static = metrics["static_analysis"]
    done = static["status"] == "done"
    about_it = "See `static_analysis/static_compute.md`." if done else f"Not done: {plain(static['reason'])}"
    lines += ["## Static analysis", "", about_it, ""]
    lines += ["## PyTorch profiler", ""]
    if profile is None:
        lines += [f"Off: {plain(metrics['torch_profiler']['reason'])}", ""]
    else:
        lines += _profile_summary(profile)
    if notes:
        lines += ["## Notes", "", *(f"- {plain(note)}" for note in notes), ""]
    return "\n".join(lines)


def _profile_summary(profile: Profile) -> list[str]:
    lines = [
        f"One batch, apart from the timed passes: {milliseconds(profile.span_ms)} under the profiler. "
        "All operators and kernels are in `operators.md`; "
        "`llm-perf report torch_profiler/trace.json.gz` shows the same batch by region.",
        "",
    ]
    if profile.kernels:
        lines += ["Kernels that take most of the GPU:", ""]
        lines += _kernels(profile.kernels[:_TOP], profile.kernels_ms)
    lines += ["Operators that take most, without what they call:", ""]
    lines += _operators(profile.operators[:_TOP], profile)
    return lines


def render_operators(profile: Profile) -> str:
    """`operators.md`."""
    accounted = share(profile.accounted_ms, profile.span_ms)
    lines = [
        "# Operators",
        "",
        "Own times: what an operator calls is not in its time, so the columns can be added up. "
        f"On the main thread everything adds up to {milliseconds(profile.accounted_ms)}, {accounted} of the "
        f"{milliseconds(profile.span_ms)} that passed; {milliseconds(profile.python_ms)} of it is Python between operators"
        + (f"; other threads have {milliseconds(profile.other_threads_ms)}." if profile.other_threads_ms else "."),
        "",
        *(f"- {plain(note)}" for note in profile.notes),
        "",
    ]
    lines += _operators(profile.operators[:_ALL], profile)
    if len(profile.operators) > _ALL:
        lines += [f"{len(profile.operators) - _ALL} more are in `metrics.json`.", ""]
    lines += ["## Ranges", "", "What a range has of its own is Python code between operators.", ""]
    lines += _table(
        ["range", "calls", "total", "own"],
        [
            [code(r.name), f"{r.calls:,}", milliseconds(r.total_cpu_ms), milliseconds(r.self_cpu_ms)]
            for r in profile.ranges
        ],
    )
    lines += ["## Kernels", ""]
    if profile.kernels:
        lines += [
            f"{milliseconds(profile.kernels_ms)} in all.",
            "",
            *_kernels(profile.kernels[:_ALL], profile.kernels_ms),
        ]
    else:
        lines += ["None were recorded." if "cuda" in profile.activities else "No GPU was recorded.", ""]
    if profile.copies:
        lines += ["## Copies and fills", "", *_kernels(profile.copies[:_ALL], profile.copies_ms)]
    return "\n".join(lines)


def _operators(rows: Sequence[OperatorRow], profile: Profile) -> list[str]:
    on_device = bool(profile.kernels or profile.copies)
    with_bytes = any(o.self_cpu_bytes or o.self_device_bytes for o in rows)
    total = sum(o.self_cpu_ms for o in profile.operators)
    header = ["operator", "calls", *(["own GPU time"] if on_device else []), "own CPU time", "of all CPU time"]
    header += ["memory"] if with_bytes else []
    cells = []
    for o in rows:
        cell = [code(o.name), f"{o.calls:,}"]
        cell += [milliseconds(o.self_device_ms)] if on_device else []
        cell += [milliseconds(o.self_cpu_ms), share(o.self_cpu_ms, total)]
        cell += [quantity(o.self_device_bytes or o.self_cpu_bytes, "byte")] if with_bytes else []
        cells.append(cell)
    return _table(header, cells)


def _kernels(rows: Sequence[KernelRow], total: float) -> list[str]:
    return _table(
        ["kernel", "calls", "total", "mean", "of all"],
        [
            [code(k.name), f"{k.calls:,}", milliseconds(k.total_ms), milliseconds(k.mean_ms), share(k.total_ms, total)]
            for k in rows
        ],
    )


def show_summary(timing: Timing, metrics: Mapping[str, Any], folder: Path) -> None:
    """The compact answer in the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    out = Console(highlight=False)
    model = metrics["model"]
    out.print(f"[bold]{escape(model['name'])}[/] on {escape(metrics['device']['name'])}, {model['dtype']}")
    out.print(f"  ran: {metrics['inputs_run']}")
    for name, value in headline(timing):
        out.print(f"  {name}: {escape(value)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    for name in ("count", "mean", "±", "min", "max"):
        table.add_column(name, justify="right")
    for stage in timing.stages:
        count, mean, std, least, _, most = spread_cells(stage.milliseconds)
        table.add_row("  " * stage.path.count("/") + escape(stage.name), count, mean, std, least, most)
    out.print(table)
    for note in metrics["notes"]:
        out.print(f"  • {escape(note)}", soft_wrap=True)
    out.print(f"Written to {escape(str(folder))}", soft_wrap=True)
