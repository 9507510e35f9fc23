"""The steps of a server by phase and size, as a table: a median over batches of 1 and of 64 is the time of neither."""

from __future__ import annotations

from llm_perf_opt.metrics.quantity import percent
from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.step_numbers import DECODE, MIXED
from llm_perf_opt.regions.timing import StepGroup
from llm_perf_opt.report.text import NOT_MEASURED, duration, full_label, quantity, share
from llm_perf_opt.report.view import View

HEAD = ("steps of", "size", "CUDA graph", "steps", "median", "p90", "tokens/step", "tokens/s", "of all steps")


def step_rows(view: View) -> list[list[str]]:
    """A row for each group, phase by phase; the last column adds up to all the time in steps."""
    found = [(region, region.timing.steps) for region in view.regions if region.timing and region.timing.steps]
    whole = sum(group.total_ns for _, steps in found for group in steps.groups)
    return [
        [
            full_label(region),
            f"{steps.grouped_by} {_span(group)}",
            _graph(group),
            f"{group.instances:,}",
            *_times(region, group),
            f"{group.tokens_per_step:,.4g}",
            _rate(region, group),
            share(group.total_ns, whole),
        ]
        for region, steps in found
        for group in steps.groups
    ]


def step_sentence(view: View) -> str:
    """What requests that decode wait for where others read their prompts meanwhile; nothing where no step is mixed."""
    found = {r.timing.steps.phase: r.timing.steps for r in view.regions if r.timing and r.timing.steps}
    decode, mixed = found.get(DECODE), found.get(MIXED)
    if decode is None or mixed is None:
        return ""
    share = mixed.instances / (mixed.instances + decode.instances)
    return (
        f"A request that decodes gets its token after {duration(decode.median_ns)} in a decode step and after "
        f"{duration(mixed.median_ns)} in a mixed one (medians); {percent(share, '.0')} of these steps are mixed."
    )


def _times(region: NCUProfileRegion, group: StepGroup) -> tuple[str, str]:
    """Median and 90th percentile. Where the host runs ahead, its ranges are shorter than their work: from step to step."""
    if not _runs_ahead(region):
        return duration(group.median_ns), duration(group.p90_ns)
    side = region.performance.gpu_side if region.performance and _is_all(region, group) else None
    return duration(side.step_ns if side else None), NOT_MEASURED


def _rate(region: NCUProfileRegion, group: StepGroup) -> str:
    if not _runs_ahead(region):
        return quantity(1e9 * group.tokens_per_step * group.instances / max(group.total_ns, 1), "")
    tokens = region.performance.tokens if region.performance and _is_all(region, group) else None
    return quantity(tokens.now.of("token/s"), "") if tokens and tokens.now else NOT_MEASURED


def _runs_ahead(region: NCUProfileRegion) -> bool:
    return region.performance is not None and region.performance.time.basis == "gpu"


def _is_all(region: NCUProfileRegion, group: StepGroup) -> bool:
    return bool(region.timing and region.timing.steps and region.timing.steps.groups == [group])


def _span(group: StepGroup) -> str:
    return f"{group.smallest:,}" + (f" to {group.largest:,}" if group.largest != group.smallest else "")


def _graph(group: StepGroup) -> str:
    if group.in_graph is None:
        return "–"
    return "no" if not group.in_graph else "yes" if group.graphs is None else f"{group.graphs:,}"
