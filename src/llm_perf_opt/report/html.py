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
from importlib.resources import files
from typing import Any

import jinja2
from attrs import Factory, define
from markupsafe import Markup

from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.answer import answer
from llm_perf_opt.report.page_data import page_data, page_regions
from llm_perf_opt.report.text import (
    counted,
    duration,
    full_label,
    gpu_time,
    idle_share,
    interesting_metrics,
    quantity,
    rows,
    share,
    trust,
    weight,
    work_count,
)
from llm_perf_opt.version import __version__

_KERNELS = 30  # in the table shown without a script
_STAGES = 8
_COUNTER_REGIONS = 12
# In the order they are run: each file uses what those before it define.
_SCRIPTS = ("base.js", "state.js", "icicle.js", "strip.js", "kernels.js", "main.js")


def render_html(report: NCUProfileRegionReport, top: int = _KERNELS) -> str:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"duration": duration, "visible": visible}
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
    }
    style = _asset("report.css")
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    regions = page_regions(report)
    stages = _stages(report, regions)
    scope = report.main_scope
    page = environment.from_string(_text("templates/report.html")).render(
        report=report,
        title=_title(report),
        gpus=sorted({visible(str(name)) for name in report.environment.get("gpus", {}).values()}),
        scope=scope,
        regions=regions,
        hidden=len(scope.regions) - len(regions) if scope else 0,
        stages=stages[:_STAGES],
        more_stages=len(stages[_STAGES:]),
        answer=answer(report),
        counters=_counters(regions),
        no_counters=_no_counters(report),
        provenance=_provenance(report),
        sections=_sections(scope, regions),
        interactive=bool(regions),
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


def _sections(scope: Scope | None, regions: list[NCUProfileRegion]) -> list[tuple[str, str]]:
    found = [("answer", "Answer")]
    found += [("regions", "Regions"), ("timeline", "Timeline")] if regions else []
    found += [("kernels", "Kernels")] if scope and scope.kernels else []
    return [*found, ("trust", "Counters"), ("diagnostics", "Diagnostics"), ("provenance", "Provenance")]


# -- stages ----------------------------------------------------------------------------------------


@define
class Fact:
    """One line of a card: a value, or why there is none."""

    name: str
    text: str
    missing: bool = False


@define
class Stage:
    """One card."""

    region: NCUProfileRegion
    place: int  # number of the region on the page
    time: float | None
    time_name: str
    busy: float | None
    busy_missing: str = ""
    verdict: str = ""
    tone: str = ""
    facts: list[Fact] = Factory(list)


def _stages(report: NCUProfileRegionReport, regions: list[NCUProfileRegion]) -> list[Stage]:
    place = {region.key: number for number, region in enumerate(regions)}
    outer = sorted((r for r in regions if r.parent not in place), key=weight, reverse=True)
    return [_stage(report, region, place[region.key]) for region in outer]


def _stage(report: NCUProfileRegionReport, region: NCUProfileRegion, place: int) -> Stage:
    idle = idle_share(region)
    timed = region.wall_ns is not None
    stage = Stage(
        region,
        place,
        region.wall_ns if timed else gpu_time(region.inclusive),
        "wall time" if timed else "GPU time",
        None if idle is None else 1 - idle,
        "" if idle is not None else ("the recording has no GPU work" if timed else "needs a timeline"),
    )
    values = region.inclusive
    time = gpu_time(values)
    if time is not None:
        stage.facts.append(Fact("GPU time", duration(time)))
    if values.kernel_count:
        mean = f" · {duration(time / values.kernel_count)} each" if time else ""
        stage.facts.append(Fact("kernels", work_count(values) + mean))
    if values.memory.count:
        stage.facts.append(Fact("copies and fills", f"{values.memory.count:,} · {quantity(values.memory.bytes, 'B')}"))
    return stage


def _counters(regions: list[NCUProfileRegion]) -> list[tuple[NCUProfileRegion, list[Any]]]:
    shown = [(r, interesting_metrics(r.inclusive.metrics)) for r in regions if r.inclusive.metrics]
    outer = sorted((pair for pair in shown if pair[1]), key=lambda pair: (pair[0].depth, -weight(pair[0])[0]))
    return outer[:_COUNTER_REGIONS]


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
    cards.append(_report_card(report))
    return cards


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


def _run_card(run: dict[str, Any]) -> ProvenanceCard:
    card = ProvenanceCard("The run")
    for name in ("started_at", "finished_at", "state"):
        if run.get(name):
            card.facts.append((name.replace("_", " "), visible(str(run[name]))))
    for name, version in (run.get("tools") or {}).items():
        card.facts.append((visible(str(name)), visible(str(version))))
    for gpu in run.get("gpus_before") or []:
        card.facts.append((f"GPU {visible(str(gpu.get('index', '')))}", visible(_plain(gpu), 400)))
    if run.get("command"):
        card.commands.append(("the workload", visible(shlex.join(map(str, run["command"])), 4000)))
    for step in run.get("steps") or []:
        if step.get("argv"):
            card.commands.append((str(step.get("name", "command")), visible(shlex.join(map(str, step["argv"])), 4000)))
    return card


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
