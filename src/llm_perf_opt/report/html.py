"""`report.html`: one file, no network, every name escaped.

The answer, the stages, all tables and the diagnostics are text in the page and need no script. The script
draws the charts from a block of JSON and writes names only as text. A policy in the page lets nothing else
run: no other script, no other style, no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from attrs import Factory, define
from markupsafe import Markup

from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.regions.model import (
    NCUProfileRegion,
    NCUProfileRegionReport,
    Opportunity,
    RegionPerformance,
    Scope,
    SpeedOfLight,
    Verdict,
)
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.answer import answer
from llm_perf_opt.report.glossary import glossary
from llm_perf_opt.report.headline import headline, light_parts, roofs_known, stage_regions
from llm_perf_opt.report.host_only import is_host_only, mean_ns
from llm_perf_opt.report.page_data import counter_unit, page_data, page_regions, peaks_used
from llm_perf_opt.report.text import (
    counted,
    duration,
    full_label,
    gpu_time,
    heaviest,
    idle_share,
    interesting_metrics,
    judged_times,
    quantity,
    rows,
    share,
    trust,
    verified_rows,
    without_profiler,
    work_count,
)
from llm_perf_opt.version import __version__

_KERNELS = 30  # in the table shown without a script
_TABLE_REGIONS = 400
_STAGES = 8
_SCOPES, _SCOPE_STAGES = 64, 4
_COUNTER_REGIONS = 12
# In the order they are run: each file uses what those before it define.
_SCRIPTS = (
    "base.js",
    "state.js",
    "families.js",
    "icicle.js",
    "region.js",
    "strip.js",
    "roofline.js",
    "kernels.js",
    "main.js",
)


@cache
def template() -> jinja2.Template:
    """The page without its contents; to compile it takes as long as to fill it."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "duration": duration,
        "visible": visible,
        "tone": _tone,
        "reason": _reason,
        "sentence": _sentence,
    }
    environment.globals |= {
        "rows": rows,
        "gpu_time": gpu_time,
        "work_count": work_count,
        "full_label": full_label,
        "share": share,
        "idle_share": idle_share,
        "quantity": quantity,
        "trust": trust,
        "counted": counted,
        "percent": percent,
        "counter_unit": counter_unit,
        "mean_ns": mean_ns,
    }
    return environment.from_string(_text("templates/report.html"))


def render_html(report: NCUProfileRegionReport, top: int = _KERNELS) -> str:
    style = _asset("report.css")
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    regions = page_regions(report)
    host_only = is_host_only(report)
    stages = _stages(report, regions)
    place = {region.key: number for number, region in enumerate(regions)}
    scope = report.main_scope
    page = template().render(
        report=report,
        title=_title(report),
        gpus=sorted({visible(str(name)) for name in report.environment.get("gpus", {}).values()}),
        scope=scope,
        regions=regions,
        table_regions=heaviest(regions, _TABLE_REGIONS),
        place=place,
        most_recoverable=max((o.recoverable.of("ns") for o in report.opportunities), default=0.0),
        hidden=max(len(scope.regions) - _TABLE_REGIONS, 0) if scope else 0,
        stages=stages[:_STAGES],
        more_stages=len(stages[_STAGES:]),
        headline=headline(report),
        answer=answer(report),
        scopes=_scopes(report),
        scope_stages=[full_label(region) for region in stage_regions(report)[:_SCOPE_STAGES]],
        counters=_counters(stages),
        verified=verified_rows(report),
        no_counters=_no_counters(report),
        provenance=_provenance(report),
        sections=_sections(report, scope, regions),
        interactive=bool(regions),
        host_only=host_only,
        glossary=[] if host_only else _glossary(report, stages),
        top=top,
        version=__version__,
        style=_ours(style),
        style_hash=_hash(style),
        script=_ours(script),
        script_hash=_hash(script),
        data=script_json(page_data(report, regions)),
    )
    return page.lstrip()


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _reason(found: Opportunity) -> str:
    """An opportunity's sentence alone: where it is and what to do stand in columns of their own."""
    text = found.text.removesuffix(f": {found.advice}")
    _, colon, rest = text.partition(": ")
    return rest[:1].upper() + rest[1:] if colon else text


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tone(bound: str) -> str:
    """The colour of a verdict: waiting, working, or neither."""
    if bound in ("launch", "host", "other_work", "communication"):
        return "wait"
    return "" if bound in ("unknown", "balanced") else "work"


def script_json(data: Any) -> Markup:
    """JSON that cannot end the script element it stands in: no `<`, no `&`, nothing but ASCII."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704  escaped above, for the one place it is used in


def _ours(text: str) -> Markup:
    """A file of this package, to be put into the page as it is."""
    return Markup(text)  # noqa: S704  no part of it comes from a recording


def _text(name: str) -> str:
    return files("llm_perf_opt.report").joinpath(name).read_text(encoding="utf-8")


def _asset(name: str) -> str:
    return _text(f"assets/{name}")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _title(report: NCUProfileRegionReport) -> str:
    name = str(report.inputs[0].get("path", "")) if report.inputs else ""
    for ending in (".gz", ".xz", ".sqlite", ".nsys-rep", ".ncu-rep", ".json", ".csv"):
        name = name.removesuffix(ending)
    return visible(name.rsplit("/", 1)[-1], 60) if name else "Region report"


def _sections(
    report: NCUProfileRegionReport, scope: Scope | None, regions: list[NCUProfileRegion]
) -> list[tuple[str, str]]:
    if is_host_only(report):
        return [
            ("answer", "Answer"),
            ("regions", "Regions"),
            ("diagnostics", "Diagnostics"),
            ("provenance", "Provenance"),
        ]
    found = [("answer", "Answer")]
    found += [("opportunities", "Fix first")] if report.opportunities else []
    found += [("regions", "Regions"), ("timeline", "Timeline"), ("roofline", "Roofline")] if regions else []
    found += [("kernels", "Kernels")] if scope and scope.kernels else []
    return [*found, ("trust", "Counters"), ("diagnostics", "Diagnostics"), ("provenance", "Provenance")]


# -- stages ----------------------------------------------------------------------------------------


@define
class Fact:
    """One line of a card: a value, or why there is none."""

    name: str
    text: str
    hint: str = ""
    missing: bool = False


@define
class Part:
    """One stretch of the bar of a card."""

    kind: str  # "light" | "above" | "busy" | "idle" | "others": its colour
    name: str
    share: float
    begin: float
    text: str


@define
class Stage:
    """One card."""

    region: NCUProfileRegion
    place: int  # number of the region on the page
    time: float | None
    time_name: str
    verdict: Verdict | None
    parts: list[Part] = Factory(list)
    parts_missing: str = ""
    facts: list[Fact] = Factory(list)


def _stages(report: NCUProfileRegionReport, regions: list[NCUProfileRegion]) -> list[Stage]:
    place = {region.key: number for number, region in enumerate(regions)}
    make = _host_stage if is_host_only(report) else _stage
    return [make(region, place[region.key]) for region in stage_regions(report) if region.key in place]


def _host_stage(region: NCUProfileRegion, place: int) -> Stage:
    """Of a run without a GPU: times, and tokens where they are known."""
    stage = Stage(region, place, region.wall_ns, "wall time", None)
    if region.instances and region.instances > 1:
        stage.facts.append(Fact("each instance", duration(mean_ns(region))))
    if region.performance and region.performance.tokens:
        tokens = region.performance.tokens
        stage.facts.append(Fact("tokens", quantity(tokens.now.value, "tok/s"), tokens.source))
    return stage


def _stage(region: NCUProfileRegion, place: int) -> Stage:
    performance = region.performance
    wall, _ = judged_times(region)
    timed = wall is not None
    stage = Stage(
        region,
        place,
        wall if timed else gpu_time(region.inclusive),
        f"wall time{without_profiler(region)}" if timed else "GPU time",
        performance.verdict if performance else None,
    )
    stage.parts = _light_parts(performance.speed_of_light) if performance and performance.speed_of_light else []
    stage.parts = stage.parts or _busy_parts(region)
    if not stage.parts:
        stage.parts_missing = "the recording holds no GPU work" if timed else "needs a timeline"
    stage.facts = [*_time_facts(region), *(_rate_facts(performance) if performance else [])]
    return stage


def _light_parts(light: SpeedOfLight) -> list[Part]:
    """now = limit + kernels above their roofs + waiting + work of other regions."""
    now = light.now.of("ns")
    parts: list[Part] = []
    for kind, name, amount in light_parts(light):
        share_of_now = amount / now if now else 0.0
        begin = parts[-1].begin + parts[-1].share if parts else 0.0
        parts.append(Part(kind, name, min(share_of_now, 1 - begin), begin, duration(amount)))
    return parts


def _busy_parts(region: NCUProfileRegion) -> list[Part]:
    idle = idle_share(region)
    if idle is None or region.wall_ns is None or region.gpu_idle_ns is None:
        return []
    busy = region.wall_ns - region.gpu_idle_ns
    return [
        Part("busy", "GPU busy", 1 - idle, 0.0, duration(busy)),
        Part("idle", "GPU waiting", idle, 1 - idle, duration(region.gpu_idle_ns)),
    ]


def _time_facts(region: NCUProfileRegion) -> list[Fact]:
    values = region.inclusive
    time, (wall, idle) = gpu_time(values), judged_times(region)
    facts = []
    if idle is not None and wall:
        facts.append(
            Fact("GPU busy", percent(1 - idle / wall), "of the wall time, the GPU ran something of this process")
        )
    if values.kernel_count or values.graph_launches:
        mean = f" · {duration(time / values.kernel_count)} each" if time and values.kernel_count else ""
        facts.append(Fact("kernels", work_count(values) + mean, "launches, and how long one takes on average"))
    return facts


_METRICS = (
    ("mfu", "MFU", "FLOPs over what the peak allows in that time"),
    ("mbu", "bandwidth", "DRAM bytes over what the memory can move in that time"),
)


def _rate_facts(performance: RegionPerformance) -> list[Fact]:
    facts = []
    counted_at_all = bool(performance.work.flops or performance.work.dram or performance.work.l2)
    for metric, name, hint in _METRICS:
        found = {(u.time_basis, u.peak_basis): u for u in performance.utilisation if u.metric == metric}
        main = [u for u in found.values() if u.peak_basis != "calibrated"]
        words = [
            f"{percent(u.value)} {'of wall time' if u.time_basis == 'wall' else 'while busy'}"
            for u in sorted(main, key=lambda u: u.time_basis != "wall")
        ]
        if not words:
            reason = next(iter(performance.work.missing), "" if counted_at_all else "needs counters of ncu")
            reason = reason or "the counters it needs were not collected"
            facts.append(Fact(name, reason, hint, missing=True))
            continue
        against = ", ".join(f"{peak} {quantity(p.value, p.unit)}" for peak, p in main[0].peaks.items())
        facts.append(Fact(name, " · ".join(words), f"{hint}; {main[0].peak_basis}: {against}"))
        measured = found.get(("busy", "calibrated")) or found.get(("wall", "calibrated"))
        if measured is not None:
            text = f"{percent(measured.value)} {'while busy' if measured.time_basis == 'busy' else 'of wall time'}"
            facts.append(Fact(f"{name}, measured peak", text, "against the peak measured on this GPU"))
    light, tokens = performance.speed_of_light, performance.tokens
    if light is not None and roofs_known(light):
        limit, now = light.limit.of("ns"), light.now.of("ns")
        times = f" · {_times(now / limit)} faster" if limit else ""
        hint = f"every kernel at its roof; counters speak for {percent(light.analysed_share)} of the kernel time"
        facts.append(Fact("speed of light", f"{duration(limit)}{times}", hint))
    else:
        facts.append(Fact("speed of light", "needs counters of ncu and the GPU's peaks", missing=True))
    if tokens is not None:
        limit_rate = f" · {quantity(tokens.limit.value, 'tok/s')} at the limit" if tokens.limit else ""
        facts.append(Fact("tokens", f"{quantity(tokens.now.value, 'tok/s')}{limit_rate}", tokens.source))
    return facts


def _times(factor: float) -> str:
    return f"{factor:,.0f}×" if factor >= 100 else f"{factor:.3g}×"


def _scopes(report: NCUProfileRegionReport) -> list[tuple[Scope, list[NCUProfileRegion | None]]]:
    """Processes, devices and ranks with their stages, where there is more than one of a kind."""
    kinds = [scope.scope.partition(":")[0] for scope in report.scopes]
    shown = [s for s, kind in zip(report.scopes, kinds, strict=True) if kind != "aggregate" and kinds.count(kind) > 1]
    stages = [region.key for region in stage_regions(report)[:_SCOPE_STAGES]]
    found = []
    for scope in shown[:_SCOPES]:
        by_key = {region.key: region for region in scope.regions}
        found.append((scope, [by_key.get(key) for key in stages]))
    return found


def _glossary(report: NCUProfileRegionReport, stages: list[Stage]) -> list[tuple[str, str]]:
    judged = [stage.verdict.title for stage in stages if stage.verdict]
    timeline = any(stage.region.wall_ns is not None for stage in stages)
    return glossary(judged, timeline=timeline, counters=report.coverage is not None)


def _counters(stages: list[Stage]) -> list[tuple[NCUProfileRegion, list[Any]]]:
    """The headline counters of the stages; those of any other region are shown when it is chosen."""
    shown = [(stage.region, interesting_metrics(stage.region.inclusive.metrics)) for stage in stages]
    return [pair for pair in shown if pair[1]][:_COUNTER_REGIONS]


def _no_counters(report: NCUProfileRegionReport) -> str:
    if any(i.get("kind", "").startswith("ncu") for i in report.inputs):
        return (
            "There is no timeline to say how many launches each result stands for: record one with "
            "nsys profile -t cuda,nvtx -s none -o OUT CMD and give it beside the counters."
        )
    return (
        "No counters were recorded: times are complete, bytes and FLOPs are not known. "
        "Record them with: llm-perf profile -- CMD, or give an .ncu-rep of the same program beside the timeline."
    )


# -- provenance ------------------------------------------------------------------------------------


@define
class ProvenanceCard:
    """Facts about one thing that took part, and commands worth copying."""

    title: str
    facts: list[tuple[str, str]] = Factory(list)
    commands: list[tuple[str, str]] = Factory(list)
    configuration: str = ""
    more: list[tuple[str, str]] = Factory(list)  # peaks of other data types


def _provenance(report: NCUProfileRegionReport) -> list[ProvenanceCard]:
    cards = []
    run = report.environment.get("run")
    if isinstance(run, dict):
        cards.append(_run_card(run))
    facts = {str(f.get("input")): f for f in report.environment.get("recordings", []) if isinstance(f, dict)}
    for source in report.inputs:
        card = ProvenanceCard(visible(str(source.get("path", "recording"))))
        card.facts.append(("kind", visible(str(source.get("kind", "")))))
        if isinstance(source.get("bytes"), int):
            card.facts.append(("size", quantity(source["bytes"], "B")))
        for name, value in facts.get(str(source.get("path")), {}).items():
            if name != "input" and value not in (None, "", {}, []):
                card.facts.append((visible(str(name)).replace("_", " "), visible(_plain(value), 300)))
        cards.append(card)
    scope = report.main_scope
    used = peaks_used(scope.regions if scope else [])
    cards += [_gpu_card(gpu, used) for gpu in report.hardware]
    cards.append(_report_card(report))
    return cards


def _gpu_card(gpu: GpuHardware, used: list[str]) -> ProvenanceCard:
    """The denominators of every percentage on the page; peaks that were not `used` stand apart."""
    card = ProvenanceCard(visible(gpu.name) + (f" · device {gpu.device}" if gpu.device is not None else ""))
    card.facts.append(("figures", f"{gpu.basis}: {visible(gpu.source, 300)}"))
    for name, amount in (
        ("memory bandwidth", gpu.bandwidth),
        ("measured bandwidth", gpu.calibrated_bandwidth),
        ("L2 bandwidth", gpu.l2_bandwidth),
        ("memory", gpu.memory),
        ("L2 cache", gpu.l2_cache),
        ("clock", gpu.clock),
    ):
        if amount is not None:
            card.facts.append((name, quantity(amount.value, amount.unit)))
    for name, peak in gpu.peaks.items():
        measured = gpu.calibrated_peaks.get(name)
        beside = f" · measured {quantity(measured.value, measured.unit)}" if measured else ""
        fact = visible(name).replace("_", " "), quantity(peak.value, peak.unit) + beside
        (card.facts if name in used else card.more).append(fact)
    card.facts += [("calibration", visible(gpu.calibration, 300))] if gpu.calibration else []
    card.facts += [("note", visible(note, 300)) for note in gpu.notes]
    return card


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


_CLOCKS = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "pstate")


def _run_card(run: dict[str, Any]) -> ProvenanceCard:
    """Who ran what, with which tools, at which clocks. The manifest may be of any version: nothing is taken for granted."""
    card = ProvenanceCard("The run")
    for name in ("started_at", "finished_at", "state"):
        if run.get(name):
            card.facts.append((name.replace("_", " "), visible(str(run[name]))))
    card.facts += [(visible(str(k)), visible(_plain(v), 200)) for k, v in _pairs(run.get("tools"))]
    for when, gpus in (("before", run.get("gpus_before")), ("after", run.get("gpus_after"))):
        for gpu in gpus if isinstance(gpus, list) else []:
            facts = [f"{name} {gpu[name]}" for name in _CLOCKS if isinstance(gpu, dict) and gpu.get(name)]
            card.facts.append((f"GPU {when}", visible(", ".join(facts), 300)))
    # Nested settings are in the configuration below, where they can be read.
    nested = (dict,) if run.get("configuration") else ()
    card.facts += [
        (visible(str(k)), visible(_plain(v), 200))
        for k, v in _pairs(run.get("settings"))
        if v not in (None, [], "", False) and not isinstance(v, nested)
    ]
    if isinstance(run.get("command"), list):
        card.commands.append(("the workload", visible(shlex.join(map(str, run["command"])), 4000)))
    steps = run.get("steps")
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and isinstance(step.get("argv"), list):
            seconds = f", {step['seconds']:.1f} s" if isinstance(step.get("seconds"), float) else ""
            code = f", exit code {step['exit_code']}" if isinstance(step.get("exit_code"), int) else ""
            title = visible(f"{step.get('name', 'step')}{seconds}{code}")
            card.commands.append((title, visible(shlex.join(map(str, step["argv"])), 4000)))
    card.configuration = visible_lines(str(run.get("configuration") or ""))
    return card


def _pairs(value: object) -> list[tuple[object, object]]:
    return list(value.items()) if isinstance(value, dict) else []


def visible_lines(text: str) -> str:
    return "\n".join(visible(line, 400) if line else "" for line in text.splitlines())


def _report_card(report: NCUProfileRegionReport) -> ProvenanceCard:
    card = ProvenanceCard("This report")
    card.facts = [
        ("made", report.generated_at),
        ("llm-perf", str(report.environment.get("llm_perf_opt", __version__))),
        ("attribution", report.attribution),
        ("settings", report.config_fingerprint),
    ]
    for name, patterns in report.selection.items():
        if patterns:
            card.facts.append((visible(name).replace("_", " "), visible(", ".join(patterns), 300)))
    paths = [str(i.get("path", "")) for i in report.inputs]
    card.commands.append(("the command", visible("llm-perf report " + shlex.join(paths), 4000)))
    return card
