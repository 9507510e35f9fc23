"""A plan in words, for `llm-perf plan`, and as JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import attrs

from llm_perf_opt.planning.plan import CounterPlan, PlannedCapture, PlannedSignature, SampleTable
from llm_perf_opt.regions.names import short_kernel_name, visible

_LISTED = 15  # signatures, in text
_LONGEST_NAME = 70
_LONGEST_COMMAND = 1 << 20  # never cut: it is there to be copied


def describe(plan: CounterPlan, command: Sequence[str], *, ncu: str = "ncu", folder: str = "ncu") -> str:
    """What will be captured, what it costs, the exact commands, and what is left out."""
    if plan.table is None:
        return _by_hand(plan, command, ncu, folder)
    lines = _summary(plan, plan.table)
    for number, capture in enumerate(plan.captures, 1):
        lines += ["", *_capture(number, capture, len(plan.captures)), _command(capture, command, ncu, folder)]
    if plan.captures:
        lines += ["", *_table(plan.table)]
    for text in plan.table.assumptions:
        lines += ["", f"not tried yet: {text}."]
    return "\n".join([*lines, *_diagnostics(plan)]) + "\n"


def _diagnostics(plan: CounterPlan) -> list[str]:
    lines = []
    for diagnosis in plan.diagnostics:
        lines += ["", f"{diagnosis.severity}: {diagnosis.message}"]
        if diagnosis.fix:
            lines.append(f"  → {diagnosis.fix}")
    return lines


def _by_hand(plan: CounterPlan, command: Sequence[str], ncu: str, folder: str) -> str:
    """Captures the user chose by hand: the commands, and what is known of their price."""
    if not plan.captures:
        return "\n".join([f"No counters: {plan.skipped}.", *_diagnostics(plan)]) + "\n"
    lines = []
    for capture in plan.captures:
        launches = "launches: not known" if capture.expected is None else f"launches: {capture.expected:,}"
        passes = f"passes of each: {capture.passes or 'not known'}"
        seconds = "time: not known" if capture.seconds is None else f"about {spoken_seconds(capture.seconds)}"
        lines += [f"capture {capture.name} ({launches}; {passes}; {seconds}):", _command(capture, command, ncu, folder)]
    return "\n".join([*lines, *_diagnostics(plan)]) + "\n"


def _command(capture: PlannedCapture, command: Sequence[str], ncu: str, folder: str) -> str:
    return "  " + visible(shlex.join(capture.argv(command, ncu, folder)), _LONGEST_COMMAND)


def as_json(plan: CounterPlan, command: Sequence[str], *, ncu: str = "ncu") -> dict[str, Any]:
    """The plan as plain values."""
    captures = [
        {
            "name": c.name,
            "why": c.why,
            "launches": c.expected,
            "passes": c.passes.passes if c.passes else None,
            "passes_source": c.passes.source if c.passes else None,
            "seconds": None if c.seconds is None else round(c.seconds, 1),
            "metrics": list(c.options.metrics),
            "argv": c.argv(command, ncu),
        }
        for c in plan.captures
    ]
    if (table := plan.table) is None:
        return {"captures": captures, "diagnostics": [attrs.asdict(d) for d in plan.diagnostics]}
    return {
        "level": table.level,
        "asked_level": table.asked_level,
        "data_types": list(table.data_types),
        "budget_s": table.budget_s,
        "program_s": table.program_s,
        "predicted": {
            "seconds": round(plan.seconds, 1),
            "results": plan.results,
            "coverage": table.coverage,
            "error": table.error,
            "least_budget_s": table.least_budget_s,
        },
        "costs": attrs.asdict(table.costs),
        "regions": {"launches": table.launches, "gpu_time_ns": table.time_ns, "signatures": len(table.signatures)},
        "captures": captures,
        "signatures": [
            {
                "kernel": s.signature.shown or s.signature.name,
                "mangled": s.signature.name,
                "grid": s.signature.grid,
                "block": s.signature.block,
                "shared_memory": s.signature.shared_memory,
                "launches": s.launches,
                "gpu_time_ns": s.time_ns,
                "share": s.share,
                "variation": s.variation,
                "planned": s.planned,
                "wanted": s.wanted,
                "turns": list(s.turns),
                "reason": s.reason,
            }
            for s in table.signatures
        ],
        "assumptions": list(table.assumptions),
        "diagnostics": [attrs.asdict(d) for d in plan.diagnostics],
    }


def _summary(plan: CounterPlan, table: SampleTable) -> list[str]:
    where = (
        f"{table.launches:,} launches, {len(table.signatures)} signatures, {table.time_ns / 1e6:,.1f} ms of GPU time"
    )
    if not plan.captures:
        return [f"no counters: nothing of {where} will be profiled."]
    level = f"level {table.level}" if table.level else f"{len(plan.captures[0].options.metrics)} metrics chosen by hand"
    types = f" ({', '.join(table.data_types)})" if table.data_types and table.level not in (None, "time") else ""
    runs = "one capture" if len(plan.captures) == 1 else f"{len(plan.captures)} captures"
    budget = f" of {spoken_seconds(table.budget_s)}" if table.budget_s is not None else ""
    error = f", expected error {table.error:.1%}" if table.error is not None else ""
    return [
        f"counters: {level}{types}, {runs}, {plan.results:,} results in about {spoken_seconds(plan.seconds)}{budget}",
        f"  from {where}",
        f"  covers {table.coverage:.1%} of the GPU time{error}; costs {table.costs.source}",
    ]


def _capture(number: int, capture: PlannedCapture, of: int) -> list[str]:
    title = f"capture {number} of {of}" if of > 1 else "capture"
    each = f"up to {capture.options.launch_count} of each signature"
    return [
        f"{title}: {visible(capture.why)}",
        f"  {capture.expected:,} launches ({each}), {capture.passes}, about {spoken_seconds(capture.seconds or 0.0)}",
    ]


def _table(table: SampleTable) -> list[str]:
    lines = ["  GPU time  launches  sampled  varies  kernel"]
    lines += [_row(s) for s in table.signatures[:_LISTED]]
    rest = table.signatures[_LISTED:]
    if rest:
        share = sum(s.share for s in rest)
        sampled = sum(s.planned for s in rest)
        lines.append(f"  {share:8.1%}  {sum(s.launches for s in rest):8,}  {sampled:7,}          {len(rest)} more")
    hidden = [s for s in rest if not s.planned]
    if hidden:
        lines.append(f"  of these, not sampled: {len(hidden)}, {sum(s.share for s in hidden):.1%} of the GPU time")
        lines += [f"    {_name(s)}: {s.reason}" for s in hidden[:_LISTED]]
        if len(hidden) > _LISTED:
            lines.append(f"    … {len(hidden) - _LISTED} more: see --json")
    return lines


def _row(s: PlannedSignature) -> str:
    note = f"  ({s.reason})" if s.reason else f"  ({', '.join(visible(t) for t in s.turns)})" if s.turns else ""
    return f"  {s.share:8.1%}  {s.launches:8,}  {s.planned:7,}  {s.variation:6.0%}  {_name(s)}{note}"


def _name(s: PlannedSignature) -> str:
    shown = visible(short_kernel_name(s.signature.shown or s.signature.name), _LONGEST_NAME)
    grid = "×".join(map(str, s.signature.grid)) if s.signature.grid else ""
    return f"{shown} [{grid}]" if grid else shown


def spoken_seconds(seconds: float) -> str:
    """A duration as a person says it: `8 s`, `1 min 30 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, rest = divmod(rounded, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
