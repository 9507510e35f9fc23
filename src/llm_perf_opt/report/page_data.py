"""What the script of `report.html` draws from: columns with names pooled, small whatever the size of the recording.

Limits keep a page of a very large run under 8 MB. Whatever a limit leaves out is counted, so that the page
can say so; the whole is in `report.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.metrics.catalogue import is_tensor_work
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import Quantity, Unit
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.columns import UNKNOWN, Int64s
from llm_perf_opt.regions.detail import COPY, GRAPH, MOST_REGIONS, TimelineDetail
from llm_perf_opt.regions.libraries import library_regions
from llm_perf_opt.regions.model import (
    KernelRecord,
    MetricValue,
    NCUProfileRegion,
    NCUProfileRegionReport,
    RegionPerformance,
    Scope,
    SignatureRecord,
)
from llm_perf_opt.regions.names import short_kernel_name, visible
from llm_perf_opt.regions.shell import ncu_options, shell_line
from llm_perf_opt.regions.table import ROOT
from llm_perf_opt.report.instance_columns import strip_columns, timing_columns
from llm_perf_opt.report.line_rows import launched_by
from llm_perf_opt.report.palette import OTHER, family_colour
from llm_perf_opt.report.rank_rows import rank_matrix
from llm_perf_opt.report.stages import attainable, counted_use, roofs_known
from llm_perf_opt.report.text import full_label, gpu_time, heaviest, interesting_metrics, label, trust
from llm_perf_opt.report.view import View

MOST_ROWS = 40_000  # kernel rows of all regions together
MOST_KERNELS = 8_000  # different kernels: those with the most time
MOST_SIGNATURES = 20_000  # points of the rooflines of all regions together
MOST_NAME_CHARACTERS = 1_500_000  # of all kernel names together
_NAME_LENGTHS = (2_000, 600, 240, 120)  # tried in turn until the names fit
_KIND_FAMILIES = {COPY: "memcpy", GRAPH: "graph"}
_WHOLE = -1  # region number of rows that count the whole recording


def page_regions(view: View) -> list[NCUProfileRegion]:
    """The regions the page shows: all, or the heaviest with those around them."""
    return heaviest(view.regions, MOST_REGIONS)


def page_data(view: View, regions: list[NCUProfileRegion]) -> dict[str, Any]:
    """Everything the script needs, as plain lists and numbers."""
    report, scope = view.report, view.scope
    if scope is None:
        return {}
    place = {region.key: number for number, region in enumerate(regions)}
    detail: TimelineDetail | None = report.timeline_detail
    names = _Names({kernel.kernel_name: kernel.family or OTHER for kernel in scope.kernels})
    rows, omitted = _kernel_rows(scope, regions, names, detail)
    short = {kernel.kernel_name: kernel.short_name for kernel in scope.kernels}
    strip = _strip(detail, place, names, short) if detail else None
    return {
        "hostOnly": view.host_only,
        "total": _totals(view, scope),
        "regions": _region_columns(regions, place, omitted),
        "rows": rows,
        "counters": [_counters(region.inclusive.metrics) for region in regions],
        "evaluated": [_evaluated(region.performance, names) for region in regions],
        "points": _points(regions, names),
        "roofs": [_roofs(gpu) for gpu in report.hardware],
        "peaksUsed": peaks_used(regions),
        "stages": [place[key] for key in report.stages if key in place],
        "whole": next((place[r.key] for r in regions if r.is_whole_recording and len(regions) > 1), _WHOLE),
        "main": place.get(report.answer.stage, _WHOLE),
        "strip": strip,
        "timing": timing_columns(regions),
        "instancesProfiled": detail is not None and detail.profiled,
        "instances": strip_columns(detail, regions) if detail else [],
        "libraries": sorted(place[key] for key in library_regions(regions, report.stages)),
        "stripOf": _strip_of(report),
        "stripMissing": "" if strip else _why_no_strip(report),
        "names": names.columns(),
        "ranks": rank_matrix(view),
    }


@define
class _Names:
    """Kernel names, each once, with the family it belongs to."""

    family_of: dict[str, str]
    number: dict[str, int] = Factory(dict)
    short: list[str] = Factory(list)
    families: dict[str, int] = Factory(dict)  # name -> number
    family: list[int] = Factory(list)
    listed: list[bool] = Factory(list)

    def of(self, name: str, short: str, family: str = "", *, listed: bool = True) -> int:
        """The number of a name. One that is not `listed` in a table needs no full form."""
        if name not in self.number:
            self.number[name] = len(self.short)
            self.short.append(short or visible(name, 80))
            self.listed.append(listed)
            told = family or self.family_of.get(name, OTHER)
            self.family.append(self.families.setdefault(told, len(self.families)))
        return self.number[name]

    def columns(self) -> dict[str, Any]:
        full = [name if listed else "" for name, listed in zip(self.number, self.listed, strict=True)]
        for longest in _NAME_LENGTHS:
            if sum(min(len(name), longest) for name in full) <= MOST_NAME_CHARACTERS:
                break
        # The page takes the short form where there is no other.
        shown = [visible(name, longest) if name else "" for name in full]
        return {
            "short": self.short,
            "full": ["" if name == short else name for name, short in zip(shown, self.short, strict=True)],
            "family": self.family,
            "families": [[visible(name, 40), *family_colour(name)] for name in self.families],
        }


def _totals(view: View, scope: Scope) -> dict[str, Any]:
    totals = scope.totals
    return {
        "regions": len(view.regions),
        "gpus": sum(part.scope.startswith("device:") for part in view.report.scopes),
        "gpu": gpu_time(totals),
        "kernels": totals.kernel_count,
        "busy": totals.gpu_busy_ns,
        "span": totals.span_ns,
        "outside": totals.unattributed_gpu_time_ns,
        "outsideKernels": totals.unattributed_kernel_count,
        "omitted": max(len(scope.kernels) - MOST_KERNELS, 0),
    }


def _region_columns(regions: list[NCUProfileRegion], place: dict[str, int], omitted: list[int]) -> dict[str, list[Any]]:
    return {
        "key": [visible(r.key, 400) for r in regions],
        "label": [label(r) if r.parent in place else full_label(r) for r in regions],
        "full": [full_label(r) for r in regions],
        "parent": [place.get(r.parent, -1) if r.parent is not None else -1 for r in regions],
        "instances": [r.instances for r in regions],
        "wall": [r.wall_ns for r in regions],
        "busy": [r.gpu_busy_ns for r in regions],
        "idle": [r.gpu_idle_ns for r in regions],
        "gpu": [gpu_time(r.inclusive) for r in regions],
        "own": [gpu_time(r.exclusive) for r in regions],
        "kernels": [r.inclusive.kernel_count for r in regions],
        "ownKernels": [r.exclusive.kernel_count for r in regions],
        "copies": [r.inclusive.memory.count for r in regions],
        "copied": [r.inclusive.memory.bytes for r in regions],
        "graphs": [r.inclusive.graph_launches for r in regions],
        "adopted": [r.adopted_kernels for r in regions],
        "nvtx": [shell_line(ncu_options(r)) for r in regions],  # whole, or it would select something else
        "omitted": omitted,
    }


def _kernel_rows(
    scope: Scope, regions: list[NCUProfileRegion], names: _Names, detail: TimelineDetail | None
) -> tuple[dict[str, list[Any]], list[int]]:
    """One row per region, kernel and device; how many rows each region has to leave out."""
    known_kernels = {kernel.kernel_name for kernel in scope.kernels[:MOST_KERNELS]}
    lists = [[kernel for kernel in region.kernels if kernel.kernel_name in known_kernels] for region in regions]
    most = _most_each(lists, MOST_ROWS)
    numbers = {detail.table.key(n): n for n in range(len(detail.table))} if detail else {}
    columns: dict[str, list[Any]] = {
        key: [] for key in ("region", "name", "device", "calls", "total", "min", "max", "trend")
    }

    def add(region: int, kernels: Iterable[KernelRecord], trends: dict[str, str]) -> None:
        for k in kernels:
            columns["region"].append(region)
            columns["name"].append(names.of(k.kernel_name, k.short_name, k.family))
            columns["device"].append(k.device)
            columns["calls"].append(k.calls)
            columns["total"].append(_ns(k.total_ms))
            columns["min"].append(_ns(k.min_ms))
            columns["max"].append(_ns(k.max_ms))
            columns["trend"].append(trends.get(k.kernel_name, ""))

    add(_WHOLE, scope.kernels[:MOST_KERNELS], detail.trends.get(ROOT, {}) if detail else {})
    for number, region in enumerate(regions):
        known = numbers.get(region.key)
        add(number, lists[number][:most], detail.trends.get(known, {}) if detail and known is not None else {})
    shown = [min(len(kernels), most) for kernels in lists]
    return columns, [len(r.kernels) - n + r.kernels_omitted for r, n in zip(regions, shown, strict=True)]


def _most_each(lists: Sequence[Sequence[Any]], limit: int) -> int:
    """How many of each list can be shown so that all together stay within the limit."""
    most = max(map(len, lists), default=0)
    while most > 1 and sum(min(len(one), most) for one in lists) > limit:
        most = most * 3 // 4
    return most


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * 1e6)


def counter_unit(name: str, value: MetricValue) -> str:
    """ncu counts tensor operations without a unit."""
    return value.unit or ("FLOP" if is_tensor_work(name) else "")


def _counters(metrics: dict[str, MetricValue]) -> list[list[Any]]:
    """The counters to show first, each with what is needed to trust it."""
    return [
        [title, name, float(f"{v.value:.6g}"), counter_unit(name, v), trust(v), v.spread, v.coverage]
        for name, title, v in interesting_metrics(metrics)
    ]


# -- verdicts and rooflines ------------------------------------------------------------------------


def _in(quantity: Quantity | None, unit: Unit) -> float | None:
    return None if quantity is None else float(f"{quantity.of(unit):.6g}")


def _evaluated(performance: RegionPerformance | None, names: _Names) -> dict[str, Any] | None:
    """What the page says of a chosen region beyond its times."""
    if performance is None:
        return None
    light, tokens = performance.speed_of_light, performance.tokens
    known = [source for source in performance.sources if source.kernel_name in names.number]
    return {
        "verdict": [performance.verdict.title, performance.verdict.text, performance.verdict.confidence],
        "gpuVerdict": [performance.gpu_verdict.title, performance.gpu_verdict.text, performance.gpu_verdict.confidence],
        "ahead": performance.time.basis == "gpu",
        "advice": performance.verdict.advice,
        "evidence": [evidence.text for evidence in performance.verdict.evidence],
        "next": performance.verdict.next_step,
        "utilisation": [
            [u.metric, u.time_basis, u.peak_basis, float(f"{u.value:.6g}")] for u in counted_use(performance)
        ],
        "missing": performance.work.missing,
        "flops": _in(performance.work.flops, "FLOP"),
        "dram": _in(performance.work.dram, "B"),
        "intensity": _in(performance.intensity, "FLOP/B"),
        "light": light
        and [
            _in(part, "ns")
            for part in (light.now, attainable(light), light.above_roof, light.waiting, light.other_work)
        ]
        + [roofs_known(light)],
        "tokens": tokens and [_in(rate, "token/s") for rate in (tokens.now, tokens.gpu_only, tokens.limit)],
        "pointsOmitted": performance.signatures_omitted,
        "sources": [[names.number[s.kernel_name], visible(launched_by(s), 200)] for s in known],
    }


def _points(regions: list[NCUProfileRegion], names: _Names) -> dict[str, list[Any]]:
    """Kernels by launch configuration: where each stands under the roofs."""
    lists = [region.performance.signatures if region.performance else [] for region in regions]
    most = _most_each(lists, MOST_SIGNATURES)
    rows = [(number, s) for number, signatures in enumerate(lists) for s in signatures[:most]]

    def column(value: Callable[[SignatureRecord], Any]) -> list[Any]:
        return [value(signature) for _, signature in rows]

    return {
        "region": [number for number, _ in rows],
        "name": column(lambda s: names.of(s.kernel_name, s.short_name, s.family)),
        "device": column(lambda s: s.device),
        "grid": column(lambda s: "×".join(map(str, s.grid))),
        "block": column(lambda s: "×".join(map(str, s.block))),
        "calls": column(lambda s: s.calls),
        "time": column(lambda s: _in(s.time, "ns")),
        "samples": column(lambda s: s.samples),
        "flops": column(lambda s: _in(s.flops, "FLOP")),
        "dram": column(lambda s: _in(s.dram, "B")),
        "intensity": column(lambda s: _in(s.intensity, "FLOP/B")),
        "flopRate": column(lambda s: _in(s.flop_rate, "FLOP/s")),
        "dramRate": column(lambda s: _in(s.dram_rate, "B/s")),
        "roof": column(lambda s: s.roof),
        "bound": column(lambda s: s.bound),
        "recoverable": column(lambda s: _in(s.recoverable, "ns")),
    }


def peaks_used(regions: list[NCUProfileRegion]) -> list[str]:
    """The peaks that were worked against: roofs of other data types would only be in the way."""
    used: set[str] = set()
    for region in regions:
        if region.performance is not None:
            work = region.performance.work
            used |= {name for name, amount in (work.tensor | work.cuda_core).items() if amount.value > 0}
    return sorted(used)


def _roofs(gpu: GpuHardware) -> dict[str, Any]:
    def peaks(known: dict[str, Quantity]) -> dict[str, float | None]:
        return {visible(name, 40): _in(peak, "FLOP/s") for name, peak in known.items()}

    return {
        "device": gpu.device,
        "name": visible(gpu.name, 80),
        "basis": gpu.basis,
        "bandwidth": _in(gpu.bandwidth, "B/s"),
        "peaks": peaks(gpu.peaks),
        "measuredBandwidth": _in(gpu.calibrated_bandwidth, "B/s"),
        "measuredPeaks": peaks(gpu.calibrated_peaks),
    }


# -- the timeline strip ----------------------------------------------------------------------------


def _why_no_strip(report: NCUProfileRegionReport) -> str:
    if report.timeline_detail is None and any(
        str(i.get("kind", "")) in ("nsys-sqlite", "kineto") for i in report.inputs
    ):
        return (
            "This page was made from report.json alone, and single launches are only in the recording. "
            "Make it again from the recording: llm-perf report INPUT --format html"
        )
    if report.timeline_detail is None:
        return (
            "Counters do not say when anything ran. Record both with: llm-perf profile -- CMD, "
            "or a timeline alone: nsys profile -t cuda,nvtx -s none -o OUT CMD"
        )
    return "No GPU work was recorded inside the regions, so there is nothing to lay out in time."


def _strip_of(report: NCUProfileRegionReport) -> str:
    """The recording that the launches are of, where there are several and only one is kept launch by launch."""
    if len(report.inputs) < 2 or all(d.code != "LAUNCHES_OF_ONE" for d in report.diagnostics):
        return ""
    return visible(str(report.inputs[0].get("path", "")), 120)


def _strip(
    detail: TimelineDetail, place: dict[str, int], names: _Names, short: dict[str, str]
) -> dict[str, Any] | None:
    """Windows with their launches and range instances; times count from the start of the window."""
    if not detail.windows:
        return None
    launches, instances = detail.launches, detail.instances
    begin = np.array([w.start for w in detail.windows], dtype=np.int64)
    shown: dict[int, int] = {}

    def region(number: int) -> int:
        """The innermost region on the page around this one."""
        if number not in shown:
            at = number
            while at != ROOT and detail.table.key(at) not in place:
                at = detail.table.parent[at]
            shown[number] = place[detail.table.key(at)] if at != ROOT else -1
        return shown[number]

    start = launches.start - begin[launches.window]
    pairs = set(zip(launches.name.tolist(), launches.kind.tolist(), strict=True))
    used = {
        number: names.of(
            detail.strings[number],
            short.get(detail.strings[number]) or short_kernel_name(detail.strings[number]),
            _KIND_FAMILIES.get(kind, ""),
            listed=False,
        )
        for number, kind in sorted(pairs)
    }
    return {
        "windows": [
            {"length": w.end - w.start, "cut": w.cut, "launches": int((launches.window == i).sum())}
            for i, w in enumerate(detail.windows)
        ],
        # Each start is told as the step from the one before: short numbers in a long list.
        "step": np.diff(start, prepend=0).tolist(),
        "length": (launches.end - launches.start).tolist(),
        # How long before its start it was launched; -1 where that is not recorded.
        "lead": np.where(launches.host_time == UNKNOWN, -1, launches.start - launches.host_time).tolist(),
        "name": [used[n] for n in launches.name.tolist()],
        "device": launches.device.tolist(),
        "kind": launches.kind.tolist(),
        "region": [region(n) for n in launches.region.tolist()],
        "code": _code(detail, begin),
        "instances": {
            "window": instances.window.tolist(),
            "region": [region(n) for n in instances.region.tolist()],
            "number": instances.number.tolist(),
            "start": (instances.start - begin[instances.window]).tolist(),
            "length": (instances.end - instances.start).tolist(),
        },
    }


def _code(detail: TimelineDetail, begin: Int64s) -> dict[str, Any]:
    """What the launching thread was in: lines, or else operators and calls."""
    code = detail.code
    used, place = np.unique(code.place, return_inverse=True)
    names = [detail.strings[number] for number in used.tolist()]
    known = [(name, parse_place(name)) for name in names]
    return {
        "places": [
            visible(name, 60) if p is None else f"{visible(p.name, 60)}:{p.line} {visible(p.function, 60)}"
            for name, p in known
        ],
        "place": place.reshape(-1).tolist(),
        "window": code.window.tolist(),
        "start": (code.start - begin[code.window]).tolist(),
        "length": (code.end - code.start).tolist(),
    }
