"""What the script of `report.html` draws from: columns with names pooled, small whatever the size of the recording.

Limits keep a page of a very large run under 8 MB. Whatever a limit leaves out is counted, so that the page
can say so; the whole is in `report.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.regions.detail import TimelineDetail
from llm_perf_opt.regions.model import KernelRecord, MetricValue, NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.names import short_kernel_name, visible
from llm_perf_opt.regions.table import ROOT
from llm_perf_opt.report.text import full_label, gpu_time, heaviest, interesting_metrics, label, trust

MOST_REGIONS = 2_000
MOST_ROWS = 50_000  # kernel rows of all regions together
MOST_NAME_CHARACTERS = 2_000_000  # of all kernel names together
_NAME_LENGTHS = (2_000, 600, 240, 120)  # tried in turn until the names fit
_WHOLE = -1  # region number of rows that count the whole recording


def page_regions(report: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    """The regions the page shows: all, or the heaviest with those around them."""
    scope = report.main_scope
    return heaviest(scope.regions, MOST_REGIONS) if scope else []


def page_data(report: NCUProfileRegionReport, regions: list[NCUProfileRegion]) -> dict[str, Any]:
    """Everything the script needs, as plain lists and numbers."""
    scope = report.main_scope
    if scope is None:
        return {}
    place = {region.key: number for number, region in enumerate(regions)}
    detail: TimelineDetail | None = report.detail(set(place)) if report.detail else None
    names = _Names()
    rows, omitted = _kernel_rows(scope, regions, names, detail)
    strip = _strip(detail, place, names) if detail else None
    return {
        "total": _totals(scope),
        "regions": _region_columns(regions, place, omitted),
        "rows": rows,
        "counters": [_counters(region.inclusive.metrics) for region in regions],
        "strip": strip,
        "stripMissing": "" if strip else _why_no_strip(report),
        "names": names.columns(),
    }


@define
class _Names:
    """Kernel names, each once."""

    number: dict[str, int] = Factory(dict)
    short: list[str] = Factory(list)

    def of(self, name: str, short: str) -> int:
        if name not in self.number:
            self.number[name] = len(self.short)
            self.short.append(short or visible(name, 80))
        return self.number[name]

    def columns(self) -> dict[str, Any]:
        full = list(self.number)
        for longest in _NAME_LENGTHS:
            if sum(min(len(name), longest) for name in full) <= MOST_NAME_CHARACTERS:
                break
        return {"short": self.short, "full": [visible(name, longest) for name in full]}


def _totals(scope: Scope) -> dict[str, Any]:
    totals = scope.totals
    return {
        "gpu": gpu_time(totals),
        "kernels": totals.kernel_count,
        "busy": totals.gpu_busy_ns,
        "span": totals.span_ns,
        "outside": totals.unattributed_gpu_time_ns,
        "outsideKernels": totals.unattributed_kernel_count,
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
        "nvtx": [visible(r.nvtx_include, 400) if r.nvtx_include else "" for r in regions],
        "omitted": omitted,
    }


def _kernel_rows(
    scope: Scope, regions: list[NCUProfileRegion], names: _Names, detail: TimelineDetail | None
) -> tuple[dict[str, list[Any]], list[int]]:
    """One row per region, kernel and device; how many rows each region has to leave out."""
    most = max((len(r.kernels) for r in regions), default=0)
    while most > 1 and sum(min(len(r.kernels), most) for r in regions) > MOST_ROWS:
        most = most * 3 // 4
    numbers = {detail.table.key(n): n for n in range(len(detail.table))} if detail else {}
    columns: dict[str, list[Any]] = {
        key: [] for key in ("region", "name", "device", "calls", "total", "min", "max", "trend")
    }

    def add(region: int, kernels: Iterable[KernelRecord], trends: dict[str, str]) -> None:
        for k in kernels:
            columns["region"].append(region)
            columns["name"].append(names.of(k.kernel_name, k.short_name))
            columns["device"].append(k.device)
            columns["calls"].append(k.calls)
            columns["total"].append(_ns(k.total_ms))
            columns["min"].append(_ns(k.min_ms))
            columns["max"].append(_ns(k.max_ms))
            columns["trend"].append(trends.get(k.kernel_name, ""))

    add(_WHOLE, scope.kernels[:MOST_ROWS], detail.trends.get(ROOT, {}) if detail else {})
    for number, region in enumerate(regions):
        known = numbers.get(region.key)
        add(number, region.kernels[:most], detail.trends.get(known, {}) if detail and known is not None else {})
    return columns, [max(len(r.kernels) - most, 0) + r.kernels_omitted for r in regions]


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * 1e6)


def _counters(metrics: dict[str, MetricValue]) -> list[list[Any]]:
    """The counters to show first, each with what is needed to judge it."""
    return [
        [title, name, float(f"{v.value:.6g}"), v.unit, trust(v), v.spread, v.coverage]
        for name, title, v in interesting_metrics(metrics)
    ]


def _why_no_strip(report: NCUProfileRegionReport) -> str:
    if report.detail is None and any(str(i.get("kind", "")) in ("nsys-sqlite", "kineto") for i in report.inputs):
        return (
            "This page was made from report.json alone, and single launches are only in the recording. "
            "Make it again from the recording: llm-perf report INPUT --format html"
        )
    if report.detail is None:
        return (
            "Counters say nothing about when things ran. Record a timeline beside them: "
            "nsys profile -t cuda,nvtx -s none -o OUT CMD"
        )
    return "No GPU work was recorded inside the regions, so there is nothing to lay out in time."


def _strip(detail: TimelineDetail, place: dict[str, int], names: _Names) -> dict[str, Any] | None:
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
    used = {
        number: names.of(detail.strings[number], short_kernel_name(detail.strings[number]))
        for number in np.unique(launches.name).tolist()
    }
    return {
        "windows": [
            {"length": w.end - w.start, "cut": w.cut, "launches": int((launches.window == i).sum())}
            for i, w in enumerate(detail.windows)
        ],
        # Each start is told as the step from the one before: short numbers in a long list.
        "step": np.diff(start, prepend=0).tolist(),
        "length": (launches.end - launches.start).tolist(),
        "name": [used[n] for n in launches.name.tolist()],
        "device": launches.device.tolist(),
        "kind": launches.kind.tolist(),
        "region": [region(n) for n in launches.region.tolist()],
        "instances": {
            "window": instances.window.tolist(),
            "region": [region(n) for n in instances.region.tolist()],
            "number": instances.number.tolist(),
            "start": (instances.start - begin[instances.window]).tolist(),
            "length": (instances.end - instances.start).tolist(),
        },
    }
