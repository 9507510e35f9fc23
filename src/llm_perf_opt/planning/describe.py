"""A plan in words, for `llm-perf plan`, and as JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import attrs

from llm_perf_opt.planning.budget import spoken_seconds
from llm_perf_opt.planning.model import Capture, Plan, PlannedSignature
from llm_perf_opt.regions.names import short_kernel_name, visible

_LISTED = 15  # signatures, in text
_LONGEST_NAME = 70
_LONGEST_COMMAND = 1 << 20  # never cut: it is there to be copied


def describe(plan: Plan, command: Sequence[str], *, ncu: str = "ncu", folder: str = "ncu") -> str:
    """What will be captured, what it costs, the exact commands, and what is left out."""
    lines = _summary(plan)
    for number, capture in enumerate(plan.captures, 1):
        lines += ["", *_capture(number, capture, len(plan.captures))]
        argv = capture.argv(command, ncu=ncu, out=f"{folder}/{capture.name}")
        lines.append("  " + visible(shlex.join(argv), _LONGEST_COMMAND))
    if plan.captures:
        lines += ["", *_table(plan)]
    for text in plan.assumptions:
        lines += ["", f"not tried yet: {text}."]
    for diagnosis in plan.diagnostics:
        lines += ["", f"{diagnosis.severity}: {diagnosis.message}"]
        if diagnosis.fix:
            lines.append(f"  → {diagnosis.fix}")
    return "\n".join(lines) + "\n"


def as_json(plan: Plan, command: Sequence[str], *, ncu: str = "ncu", folder: str = "ncu") -> dict[str, Any]:
    """The plan as plain values."""
    return {
        "level": plan.level,
        "asked_level": plan.asked_level,
        "data_types": list(plan.data_types),
        "budget_s": plan.budget_s,
        "program_s": plan.program_s,
        "predicted": {
            "seconds": round(plan.seconds, 1),
            "results": plan.results,
            "coverage": plan.coverage,
            "error": plan.error,
            "least_budget_s": plan.least_budget_s,
        },
        "costs": attrs.asdict(plan.costs),
        "regions": {"launches": plan.launches, "gpu_time_ns": plan.time_ns, "signatures": len(plan.signatures)},
        "captures": [
            {
                "name": c.name,
                "why": c.why,
                "launches": c.launches,
                "passes": c.passes.passes,
                "passes_source": c.passes.source,
                "seconds": round(c.seconds, 1),
                "metrics": list(c.metrics),
                "argv": c.argv(command, ncu=ncu, out=f"{folder}/{c.name}"),
            }
            for c in plan.captures
        ],
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
            for s in plan.signatures
        ],
        "assumptions": list(plan.assumptions),
        "diagnostics": [attrs.asdict(d) for d in plan.diagnostics],
    }


def _summary(plan: Plan) -> list[str]:
    where = f"{plan.launches:,} launches, {len(plan.signatures)} signatures, {plan.time_ns / 1e6:,.1f} ms of GPU time"
    if not plan.captures:
        return [f"no counters: nothing of {where} will be profiled."]
    level = f"level {plan.level}" if plan.level else f"{len(plan.captures[0].metrics)} metrics chosen by hand"
    types = f" ({', '.join(plan.data_types)})" if plan.data_types and plan.level not in (None, "time") else ""
    runs = "one capture" if len(plan.captures) == 1 else f"{len(plan.captures)} captures"
    budget = f" of {spoken_seconds(plan.budget_s)}" if plan.budget_s is not None else ""
    error = f", expected error {plan.error:.1%}" if plan.error is not None else ""
    return [
        f"counters: {level}{types}, {runs}, {plan.results:,} results in about {spoken_seconds(plan.seconds)}{budget}",
        f"  from {where}",
        f"  covers {plan.coverage:.1%} of the GPU time{error}; costs {plan.costs.source}",
    ]


def _capture(number: int, capture: Capture, of: int) -> list[str]:
    title = f"capture {number} of {of}" if of > 1 else "capture"
    count = capture.filter.launch_count
    each = f"up to {count} of each signature" if count else "chosen invocations of each signature"
    return [
        f"{title}: {visible(capture.why)}",
        f"  {capture.launches:,} launches ({each}), {capture.passes}, about {spoken_seconds(capture.seconds)}",
    ]


def _table(plan: Plan) -> list[str]:
    lines = ["  GPU time  launches  sampled  varies  kernel"]
    lines += [_row(s) for s in plan.signatures[:_LISTED]]
    rest = plan.signatures[_LISTED:]
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
