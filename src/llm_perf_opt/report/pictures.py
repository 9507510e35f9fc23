"""Pictures for `report.md`: stages, longest kernels and the roofline as SVG files.

Drawn by hand rather than with a plotting library: three charts do not justify forty megabytes in a bundle for
machines without a network. The same report gives the same bytes; text stays text; both themes are in the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from xml.etree import ElementTree

from attrs import define, evolve

from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.regions.model import KernelRecord, NCUProfileRegion, SignatureRecord
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.page_data import peaks_used
from llm_perf_opt.report.palette import OTHER, family_colour
from llm_perf_opt.report.stages import time_parts
from llm_perf_opt.report.text import duration, full_label, gpu_time, quantity, share
from llm_perf_opt.report.view import View

_WIDTH = 900
_STAGES, _KERNELS, _POINTS = 8, 12, 200
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
_STYLE = f"""
text {{ font: 12px {_FONT}; fill: #1b1e23; }}
.dim {{ fill: #545b65; }} .title {{ font-weight: 600; font-size: 13px; }} .page {{ fill: #ffffff; }}
.grid {{ stroke: #e2e2de; }} .roof {{ stroke: #1b1e23; fill: none; stroke-width: 1.5; }} .measured {{ stroke-dasharray: 5 4; }}
.light {{ fill: #117a55; }} .above, .busy {{ fill: #2f6fc4; }} .idle {{ fill: #e0912f; }} .others {{ fill: #a2a6ab; }} .collectives {{ fill: #b3261e; }}
"""
_DARK = """
text { fill: #e7e9ec; } .dim { fill: #a4acb6; } .page { fill: #181b1f; } .grid { stroke: #2c3137; }
.roof { stroke: #e7e9ec; } .light { fill: #54c796; } .above, .busy { fill: #5b97e6; } .idle { fill: #c9822c; } .others { fill: #757b83; } .collectives { fill: #f08f86; }
"""
# Characters XML has no form for, that `visible` lets through.
_NOT_XML = re.compile("[\ufffe\uffff]")


@define
class Picture:
    """One file."""

    name: str
    title: str
    svg: str


def pictures(view: View) -> list[Picture]:
    """Those that the report has the numbers for."""
    drawn = (
        ("stages.svg", "Where the time of each stage goes", _stages(view)),
        ("kernels.svg", "Kernels with the most GPU time", _kernels(view)),
        ("roofline.svg", "Roofline", _roofline(view)),
    )
    return [Picture(name, title, svg) for name, title, svg in drawn if svg]


# -- drawing ---------------------------------------------------------------------------------------


class _Canvas:
    """An SVG that grows by elements; numbers short, text escaped by the XML writer."""

    def __init__(self, height: float, label: str, families: Iterable[str] = ()) -> None:
        self._root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {_WIDTH} {_short(height)}",
                "width": str(_WIDTH),
                "height": _short(height),
                "role": "img",
                "aria-label": label,
            },
        )
        self._classes = {family: f"f{number}" for number, family in enumerate(sorted(set(families)))}
        colours = {self._classes[family]: family_colour(family) for family in self._classes}
        light = "".join(f".{name} {{ fill: {pair[0]}; }} " for name, pair in colours.items())
        dark = "".join(f".{name} {{ fill: {pair[1]}; }} " for name, pair in colours.items())
        style = ElementTree.SubElement(self._root, "style")
        style.text = f"{_STYLE}{light}\n@media (prefers-color-scheme: dark) {{{_DARK}{dark}}}\n"
        self.add("rect", "page", width=_WIDTH, height=height, rx=8)

    def add(self, tag: str, kind: str = "", /, text: str | None = None, **attributes: float | str) -> None:
        values = {
            name.replace("_", "-"): value if isinstance(value, str) else _short(value)
            for name, value in attributes.items()
        }
        element = ElementTree.SubElement(self._root, tag, ({"class": kind} if kind else {}) | values)
        if text is not None:
            element.text = _NOT_XML.sub("\ufffd", text)

    def legend(self, entries: Iterable[tuple[str, str, float]], tag: str = "rect") -> None:
        """A mark and a name for each: class, name, width of the name."""
        at = 16.0
        for kind, name, width in entries:
            if tag == "rect":
                self.add(tag, kind, x=at, y=36, width=10, height=10, rx=2)
            else:
                self.add(tag, kind, cx=at + 5, cy=41, r=5)
            self.add("text", "dim", text=name, x=at + 15, y=45)
            at += 15 + width

    def legend_of_families(self, families: Iterable[str], tag: str = "rect") -> None:
        shown = [(self.family(f), visible(f, 30), max(7 * len(f), 40) + 16) for f in dict.fromkeys(families)]
        self.legend(shown, tag)

    def family(self, family: str) -> str:
        """The class that has the colour of a family."""
        return self._classes[family]

    def done(self) -> str:
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


# -- stages ----------------------------------------------------------------------------------------


def _parts(region: NCUProfileRegion) -> list[tuple[str, str, float]]:
    """What the time of a stage consists of: class, name, nanoseconds."""
    time = gpu_time(region.inclusive)
    return time_parts(region) or ([("busy", "GPU time", float(time))] if time else [])


def _stages(view: View) -> str:
    shown = [(region, parts) for region in view.stages[:_STAGES] if (parts := _parts(region))]
    if not shown:
        return ""
    left, right, row, top = 210, 130, 40, 60
    canvas = _Canvas(top + row * len(shown) + 14, "Where the time of each stage goes")
    canvas.add("text", "title", text="Where the time of each stage goes", x=16, y=24)
    seen = dict.fromkeys((kind, name) for _, parts in shown for kind, name, _ in parts)
    canvas.legend((kind, name, 7 * len(name) + 18) for kind, name in seen)
    longest = max(sum(time for *_, time in parts) for _, parts in shown) or 1.0
    for number, (region, parts) in enumerate(shown):
        y = top + row * number
        whole = sum(time for *_, time in parts)
        canvas.add("text", text=_cut(full_label(region), 30), x=left - 10, y=y + 20, text_anchor="end")
        x = float(left)
        for kind, _, time in parts:
            wide = max(time, 0.0) / longest * (_WIDTH - left - right)
            canvas.add("rect", kind, x=x, y=y + 6, width=max(wide, 0.5), height=22, rx=2)
            x += wide
        verdict = region.performance.verdict.title if region.performance else ""
        canvas.add("text", text=duration(whole), x=x + 8, y=y + 15)
        canvas.add("text", "dim", text=_cut(verdict or share(parts[-1][2], whole) + " waiting", 22), x=x + 8, y=y + 30)
    return canvas.done()


# -- kernels ---------------------------------------------------------------------------------------


def _stage_kernels(view: View) -> tuple[list[KernelRecord], str]:
    """The longest kernels of the stages; without stages, of the whole recording."""
    scope = view.scope
    stages = [region for region in view.stages[:_STAGES] if region.kernels]
    if scope is None or not stages:
        return (list(scope.kernels) if scope else []), "whole recording"
    added: dict[tuple[str, int | None], KernelRecord] = {}
    for kernel in (kernel for region in stages for kernel in region.kernels):
        key = kernel.kernel_name, kernel.device
        if key in added and kernel.total_ms is not None:
            old = added[key]
            total = kernel.total_ms + (old.total_ms or 0.0)
            added[key] = evolve(old, total_ms=total, calls=old.calls + kernel.calls)
        else:
            added.setdefault(key, kernel)
    return sorted(added.values(), key=lambda k: -(k.total_ms or 0.0)), "all stages"


def _kernels(view: View) -> str:
    kernels, where = _stage_kernels(view)
    shown = [kernel for kernel in kernels if kernel.total_ms][:_KERNELS]
    if not shown:
        return ""
    whole = sum(kernel.total_ms or 0.0 for kernel in kernels) * 1e6
    left, right, row, top = 400, 170, 26, 60
    families = {kernel.family or OTHER for kernel in shown}
    canvas = _Canvas(top + row * len(shown) + 14, "Kernels with the most GPU time", families)
    canvas.add("text", "title", text=f"Kernels with the most GPU time, {where}", x=16, y=24)
    canvas.legend_of_families(kernel.family or OTHER for kernel in shown)
    longest = max(kernel.total_ms or 0.0 for kernel in shown)
    for number, kernel in enumerate(shown):
        y, time = top + row * number, (kernel.total_ms or 0.0) * 1e6
        wide = (kernel.total_ms or 0.0) / longest * (_WIDTH - left - right)
        name = _cut(kernel.short_name or visible(kernel.kernel_name), 54)
        canvas.add("text", text=name, x=left - 10, y=y + 16, text_anchor="end")
        canvas.add("rect", canvas.family(kernel.family or OTHER), x=left, y=y + 4, width=wide, height=17, rx=2)
        text = f"{duration(time)} · {share(time, whole)} · {kernel.calls:,}×"
        canvas.add("text", "dim", text=text, x=left + wide + 8, y=y + 16)
    return canvas.done()


# -- roofline --------------------------------------------------------------------------------------


def _log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = math.log10(high) - math.log10(low)
    return lambda value: start + (math.log10(value) - math.log10(low)) / span * (end - start)


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def _roofline(view: View) -> str:
    points = [
        point
        for region in view.stages[:_STAGES]
        if region.performance
        for point in region.performance.signatures
        if point.intensity and point.intensity.value > 0 and point.flop_rate and point.flop_rate.value > 0
    ]
    points = sorted(points, key=lambda p: -p.time.of("ns"))[:_POINTS]
    gpu = _gpu_of(view, points)
    if gpu is None or gpu.bandwidth is None or not points:
        return ""
    used = peaks_used(view.stages[:_STAGES])
    chosen = {n: p for n, p in gpu.peaks.items() if n in used} or dict(list(gpu.peaks.items())[:1])
    peaks = {n: p.of("FLOP/s") for n, p in chosen.items()}
    if not peaks:
        return ""
    return _draw_roofline(points, gpu, gpu.bandwidth.of("B/s"), peaks)


def _gpu_of(view: View, points: list[SignatureRecord]) -> GpuHardware | None:
    devices = {point.device for point in points}
    fitting = [gpu for gpu in view.report.hardware if gpu.device in devices]
    return next(iter(fitting or view.report.hardware), None)


def _draw_roofline(points: list[SignatureRecord], gpu: GpuHardware, bandwidth: float, peaks: dict[str, float]) -> str:
    height, left, right, top, bottom = 480, 96, 30, 76, 52
    places = [(p.intensity.value, p.flop_rate.of("FLOP/s"), p) for p in points if p.intensity and p.flop_rate]
    best = max(*peaks.values(), *(rate for _, rate, _ in places))
    low_x = 10 ** math.floor(math.log10(min(0.1, *(x for x, *_ in places))))
    high_x = 10 ** math.ceil(math.log10(max(best / bandwidth * 8, *(x * 1.5 for x, *_ in places))))
    low_y = 10 ** math.floor(math.log10(min(best / 1e4, *(rate for _, rate, _ in places))))
    high_y = 10 ** math.ceil(math.log10(best * 1.3))
    x = _log_scale(low_x, high_x, left, _WIDTH - right)
    y = _log_scale(low_y, high_y, height - bottom, top)
    canvas = _Canvas(height, f"Roofline of {visible(gpu.name, 60)}", {p.family or OTHER for p in points})
    title = f"Roofline, {visible(gpu.name, 60)}: kernels of the stages, size is time"
    canvas.add("text", "title", text=title, x=16, y=24)
    canvas.legend_of_families((p.family or OTHER for p in points), "circle")
    for tick in _decades(low_x, high_x):
        canvas.add("line", "grid", x1=x(tick), x2=x(tick), y1=top, y2=height - bottom)
        canvas.add("text", "dim", text=f"{tick:g}", x=x(tick), y=height - bottom + 18, text_anchor="middle")
    for tick in _decades(low_y, high_y):
        canvas.add("line", "grid", x1=left, x2=_WIDTH - right, y1=y(tick), y2=y(tick))
        canvas.add("text", "dim", text=quantity(tick, "FLOP/s"), x=left - 8, y=y(tick) + 4, text_anchor="end")
    axis = "arithmetic intensity, FLOP per byte of DRAM traffic"
    canvas.add("text", "dim", text=axis, x=(left + _WIDTH - right) / 2, y=height - 14, text_anchor="middle")

    def roof(kind: str, memory: float, peak: float) -> None:
        start = max(low_x, low_y / memory)
        corners = ((start, start * memory), (peak / memory, peak), (high_x, peak))
        line = " L".join(f"{_short(x(a))} {_short(y(b))}" for a, b in corners)
        canvas.add("path", kind, d=f"M{line}")

    for name, peak in peaks.items():
        roof("roof", bandwidth, peak)
        label = f"{visible(name, 30).replace('_', ' ')} {quantity(peak, 'FLOP/s')} ({gpu.basis})"
        canvas.add("text", "dim", text=label, x=_WIDTH - right - 4, y=y(peak) - 6, text_anchor="end")
        measured = gpu.calibrated_peaks.get(name)
        if measured is not None and gpu.calibrated_bandwidth is not None:
            roof("roof measured", gpu.calibrated_bandwidth.of("B/s"), measured.of("FLOP/s"))
    start = max(low_x, low_y / bandwidth) * 3
    angle = math.degrees(math.atan2(y(10 * start * bandwidth) - y(start * bandwidth), x(10 * start) - x(start)))
    place = f"translate({_short(x(start))} {_short(y(start * bandwidth) - 7)}) rotate({_short(angle)})"
    canvas.add("text", "dim", text=f"DRAM {quantity(bandwidth, 'B/s')} ({gpu.basis})", transform=place)

    whole = sum(point.time.of("ns") for point in points) or 1.0
    for intensity, rate, point in places:
        size = max(3.0, 26 * math.sqrt(point.time.of("ns") / whole))
        kind = canvas.family(point.family or OTHER)
        canvas.add("circle", kind, cx=x(intensity), cy=y(rate), r=size, fill_opacity="0.72")
    return canvas.done()
