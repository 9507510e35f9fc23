"""The answer in a few sentences: what the numbers of this report say first. Shared by Markdown, HTML and terminal."""

from __future__ import annotations

from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.report.text import duration, full_label, idle_share, share

_WAITING = 0.5  # idle share above which the GPU is said to wait for the host
_SENTENCES = 6


def answer(report: NCUProfileRegionReport) -> list[str]:
    """Plain sentences, most important first. Names in them are already safe to show."""
    scope = report.main_scope
    if scope is None:
        return ["There is nothing in the recording to report."]
    if not scope.regions:
        words = "No matching regions." if report.available_ranges else "The recording has no NVTX ranges."
        return [words, *_whole(scope)]
    # Counted twice otherwise: every domain is a tree of its own over the same kernels.
    reported = {region.key for region in scope.regions}
    outer = sorted((r for r in scope.regions if r.parent not in reported), key=_weight, reverse=True)
    sentences = [_sentence(region) for region in outer[:_SENTENCES]]
    if len(outer) > _SENTENCES:
        sentences.append(f"{len(outer) - _SENTENCES} more outermost regions follow in the table.")
    return [*sentences, *_whole(scope)]


def _weight(region: NCUProfileRegion) -> int:
    return region.wall_ns or region.inclusive.gpu_time_ns or 0


def _sentence(region: NCUProfileRegion) -> str:
    name = full_label(region)
    count = region.inclusive.kernel_count
    kernels = f"{count:,} kernel{'s' if count != 1 else ''}"
    idle = idle_share(region)
    if idle is None:
        return f"{name}: {duration(region.inclusive.gpu_time_ns)} of GPU time in {kernels}."
    busy = (region.wall_ns or 0) - (region.gpu_idle_ns or 0)
    text = f"{name}: {duration(region.wall_ns)} wall time, GPU working {share(busy, region.wall_ns)} of it ({kernels})."
    if idle > _WAITING and region.inclusive.kernel_count:
        text += f" The GPU waits for the host: {duration(region.gpu_idle_ns)} idle."
    return text


def _whole(scope: Scope) -> list[str]:
    totals = scope.totals
    if not totals.kernel_count:
        return []
    text = f"In all: {totals.kernel_count:,} kernels, {duration(totals.gpu_time_ns)} of GPU time"
    if totals.unattributed_kernel_count:
        text += (
            f"; {totals.unattributed_kernel_count:,} of them "
            f"({share(totals.unattributed_gpu_time_ns, totals.gpu_time_ns)} of the time) outside every range"
        )
    sentences = [text + "."]
    if totals.adopted_kernel_count:
        sentences.append(
            f"{totals.adopted_kernel_count:,} kernels were launched by threads with no range open (autograd, workers) "
            "and are counted to the ranges of their process."
        )
    return sentences
