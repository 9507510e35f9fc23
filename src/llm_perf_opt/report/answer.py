"""The answer in a few sentences: what the numbers of this report say first. Shared by Markdown, HTML and terminal."""

from __future__ import annotations

from llm_perf_opt.metrics.catalogue import with_roles
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.report.host_only import is_host_only, sentences
from llm_perf_opt.report.text import (
    counted,
    duration,
    full_label,
    gpu_time,
    judged_times,
    quantity,
    share,
    weight,
    without_profiler,
)

_WAITING = 0.5  # idle share above which the GPU is said to wait for the host
_LATE = 0.1  # GPU work after the end of the range, as a share of its wall time, above which it returns early
_REGIONS = 6


def answer(report: NCUProfileRegionReport) -> list[str]:
    """Plain sentences, most important first. Names in them are already safe to show."""
    scope = report.main_scope
    if scope is None:
        return ["There is nothing in the recording to report."]
    if not scope.regions:
        words = "No matching regions." if report.available_ranges else "The recording has no NVTX ranges."
        return [words, *_whole(scope)]
    if is_host_only(report):
        return sentences(report)
    reported = {region.key for region in scope.regions}
    outer = sorted((r for r in scope.regions if r.parent not in reported), key=weight, reverse=True)
    told = [_sentence(region) for region in outer[:_REGIONS]]
    if len(outer) > _REGIONS:
        told.append(f"{len(outer) - _REGIONS:,} more outermost regions are in the report.")
    return [*told, *_whole(scope)]


def _sentence(region: NCUProfileRegion) -> str:
    return f"{full_label(region)}: {_verdict(region)}{_time(region)}{_rates(region)}"


def _verdict(region: NCUProfileRegion) -> str:
    judged = region.performance
    if judged is None or judged.verdict.bound == "unknown":
        return ""
    return f"{judged.verdict.title}. "


def _time(region: NCUProfileRegion) -> str:
    """Where the time of a region goes."""
    work = _work(region)
    wall, idle = judged_times(region)
    if not wall or idle is None:
        time = gpu_time(region.inclusive)
        if region.wall_ns is not None and time is None:
            return f"{duration(region.wall_ns)} wall time; what the GPU did is not in the recording."
        return f"{work}." if time is None else f"{duration(time)} of GPU time in {work}."
    inside = wall - idle
    text = f"{duration(wall)} wall time{without_profiler(region)}, GPU working {share(inside, wall)} of it ({work})."
    if region.gpu_busy_ns and region.gpu_busy_ns - inside > _LATE * wall:
        # The range launches and returns: idle time inside it says little about the stage.
        return (
            f"{duration(wall)} wall time, launches {duration(region.gpu_busy_ns)} of GPU work ({work}) "
            "and returns before it is done; look at the range around it, or synchronise."
        )
    if idle > _WAITING * wall and region.gpu_busy_ns:
        text += f" The GPU waits for the host: {duration(idle)} idle."
    return text


def _work(region: NCUProfileRegion) -> str:
    values = region.inclusive
    parts = [counted(values.kernel_count, "kernel")]
    if values.gpu_time_ns and values.kernel_count:
        parts[0] += f" of {duration(values.gpu_time_ns / values.kernel_count)} on average"
    if values.memory.count:
        parts.append(f"{values.memory.count:,} copies and fills")
    if values.graph_launches:
        parts.append(counted(values.graph_launches, "CUDA graph"))
    return ", ".join(parts)


def _rates(region: NCUProfileRegion) -> str:
    """Bytes and FLOPs, and how fast they went while kernels ran."""
    metrics, time = region.inclusive.metrics, region.inclusive.gpu_time_ns
    found = []
    moved = [metrics[c.name].value for c in with_roles(metrics, ("dram_read", "dram_write"))]
    if moved:
        found.append((sum(moved), "B", "DRAM traffic"))
    flops = [metrics[c.name].value for c in with_roles(metrics, ("tensor_ops",))]
    if any(flops):
        found.append((sum(flops), "FLOP", "tensor work"))
    words = []
    for value, unit, what in found:
        rate = f" ({quantity(value / time * 1e9, unit + '/s')} while kernels run)" if time else ""
        words.append(f"{quantity(value, unit)} of {what}{rate}")
    return f" {', '.join(words)}." if words else ""


def _whole(scope: Scope) -> list[str]:
    totals = scope.totals
    sentences = []
    if totals.kernel_count or totals.graph_launches:
        graphs = f" and {counted(totals.graph_launches, 'CUDA graph')}" if totals.graph_launches else ""
        text = f"In all: {counted(totals.kernel_count, 'kernel')}{graphs}"
        text += f", {duration(gpu_time(totals))} of GPU time" if totals.gpu_time_ns is not None else ""
        if totals.unattributed_kernel_count:
            outside = share(totals.unattributed_gpu_time_ns, gpu_time(totals))
            text += (
                f"; {counted(totals.unattributed_kernel_count, 'kernel')} ({outside} of the time) outside every range"
            )
        sentences.append(text + ".")
    if totals.memory.count:
        sentences.append(
            f"Copies and fills: {totals.memory.count:,}, {duration(totals.memory.time_ns)} "
            f"({share(totals.memory.time_ns, totals.gpu_busy_ns)} of the GPU's busy time), {quantity(totals.memory.bytes, 'B')}."
        )
    if totals.adopted_kernel_count:
        sentences.append(
            f"{counted(totals.adopted_kernel_count, 'kernel')} came from threads with no range open (autograd, workers) "
            "and count to the ranges of their process."
        )
    return sentences
