"""`report.html`: one file, no network, every name escaped.

The answer, the stages, all tables and the diagnostics are text in the page and need no script. The script
draws the charts from a block of JSON and writes names only as text. A policy in the page lets nothing else
run: no other script, no other style, no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tomllib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from attrs import define
from markupsafe import Markup, escape

from llm_perf_opt.regions.libraries import library_regions
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.accounting import accounts
from llm_perf_opt.report.cards import Card, cards
from llm_perf_opt.report.closing import following_of
from llm_perf_opt.report.collective_rows import HEAD as COLLECTIVE_HEAD
from llm_perf_opt.report.collective_rows import WORDS, collective_table
from llm_perf_opt.report.identity import dated, identity, notices, program_name, tab_title
from llm_perf_opt.report.line_rows import LineRow, known_words, line_tables, measured_columns
from llm_perf_opt.report.page_data import counter_unit, page_data, page_regions
from llm_perf_opt.report.provenance import provenance
from llm_perf_opt.report.rank_rows import TEXTS as RANK_TEXTS
from llm_perf_opt.report.rank_rows import imbalance_sentences, rank_links, rank_matrix, rank_sentence, rank_table
from llm_perf_opt.report.region_table import shown_columns, shown_rows
from llm_perf_opt.report.renderers import File, Renderer
from llm_perf_opt.report.stages import WAITING_BOUNDS
from llm_perf_opt.report.step_rows import HEAD as STEP_HEAD
from llm_perf_opt.report.step_rows import step_rows, step_sentence
from llm_perf_opt.report.text import (
    counted,
    duration,
    full_label,
    gpu_time,
    interesting_metrics,
    percent,
    quantity,
    share,
    trust,
    verified_rows,
    work_count,
)
from llm_perf_opt.report.view import View
from llm_perf_opt.version import __version__

_TABLE_REGIONS = 400
_STAGES = 8
_SCOPES, _SCOPE_STAGES = 64, 4
_COUNTER_REGIONS = 12
_LINES = 25
_LINES_FIRST = 10  # shown without a click
# In the order they are run: each file uses what those before it define.
_SCRIPTS = (
    "base",
    "state",
    "families",
    "icicle",
    "region",
    "strip",
    "instances",
    "roofline",
    "kernels",
    "ranks",
    "main",
)


@cache
def template() -> jinja2.Template:
    """The page without its contents; to compile it takes as long as to fill it."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"duration": duration, "visible": visible, "tone": _tone, "coded": _coded}
    used = (gpu_time, work_count, full_label, share, quantity, trust, counted, percent, counter_unit)
    environment.globals |= {function.__name__: function for function in used}
    return environment.from_string(_text("templates/report.html"))


def render_html(view: View) -> str:
    style = _asset("report.css")
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(f"{name}.js") for name in _SCRIPTS) + "})();\n"
    report, scope, host_only = view.report, view.scope, view.host_only
    regions = page_regions(view)
    place = {region.key: number for number, region in enumerate(regions)}
    stages = cards(view, place)
    rows = shown_rows(scope, _TABLE_REGIONS) if scope else []
    libraries = library_regions(view.regions, report.stages)
    page = template().render(
        report=report,
        title=program_name(report),
        tab=tab_title(view),
        identity=identity(view),
        notices=notices(view),
        dated=dated(report),
        gpus=sorted({visible(str(name)) for name in report.environment.get("gpus", {}).values()}),
        recordings=[str(one.get("path", "")) for one in report.inputs if one.get("kind") != "measured"],
        several_stages=len({found.fix.stage for found in view.answer.fixes}) > 1,
        scope=scope,
        regions=regions,
        columns=shown_columns(report),
        rows=[row for row in rows if row.region.key not in libraries],
        library_rows=[row for row in rows if row.region.key in libraries],
        place=place,
        hidden=max(len(scope.regions) - _TABLE_REGIONS, 0) if scope else 0,
        stages=stages[:_STAGES],
        more_stages=len(stages[_STAGES:]),
        accounts=accounts(view),
        answer=view.answer,
        following=following_of(report),
        scopes=_scopes(view),
        scope_stages=[full_label(region) for region in view.stages[:_SCOPE_STAGES]],
        lines=_lines(view),
        steps=step_rows(view),
        step_head=STEP_HEAD,
        step_sentence=step_sentence(view),
        collective_head=COLLECTIVE_HEAD,
        collective_words=WORDS,
        collectives=collective_table(view),
        rank_table=rank_table(view),
        rank_texts=RANK_TEXTS,
        rank_sentence=rank_sentence(view),
        imbalance=imbalance_sentences(view),
        rank_links=set(rank_links(view).values()),
        rank_measures=list((rank_matrix(view) or {"measures": {}})["measures"]),
        counters=_counters(stages),
        verified=verified_rows(report),
        no_counters=_no_counters(report),
        provenance=provenance(report),
        sections=_sections(view),
        interactive=bool(regions),
        host_only=host_only,
        glossary=[] if host_only else _glossary(report, stages),
        top=view.top,
        version=__version__,
        style=_ours(style),
        style_hash=_hash(style),
        script=_ours(script),
        script_hash=_hash(script),
        data=script_json(page_data(view, regions)),
    )
    return page.lstrip()


RENDERER = Renderer(
    "`report.html`: the page to look at, one file, no network",
    lambda view: [File("report.html", render_html(view))],
    needs_launches=True,
)


def _coded(text: str) -> Markup:
    """What stands between backquotes as code; text in which they do not pair stays as it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    shown = (Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in enumerate(parts))
    return Markup("").join(shown)


def _tone(bound: str) -> str:
    """The colour of a verdict: waiting, working, or neither."""
    if bound in WAITING_BOUNDS:
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


@define(frozen=True)
class _LineTable:
    """The lines of one stage; the first of them are shown at once, the others on demand."""

    region: NCUProfileRegion
    known: str
    head: list[str]
    first: list[tuple[LineRow, list[str]]]
    others: list[tuple[LineRow, list[str]]]


def _lines(view: View) -> list[_LineTable]:
    found = []
    for region, performance, rows in line_tables(view, _LINES):
        head, cells = measured_columns(rows)
        both = list(zip(rows, cells, strict=True))
        cut = _LINES_FIRST if len(both) > _LINES_FIRST + 1 else len(both)
        found.append(_LineTable(region, known_words(performance), head, both[:cut], both[cut:]))
    return found


def _sections(view: View) -> list[tuple[str, str]]:
    last = [("diagnostics", "Diagnostics"), ("provenance", "Provenance")]
    steps = [("steps", "Steps")] if step_rows(view) else []
    steps += [("ranks", "Ranks")] if view.report.rank_steps is not None else []
    steps += [("collectives", "Collectives")] if view.report.collectives else []
    if view.host_only:
        return [("answer", "Answer"), ("regions", "Regions"), *steps, *last]
    found = [("answer", "Answer")]
    found += [("opportunities", "Fix first")] if view.answer.fixes else []
    found += [("regions", "Regions"), ("timeline", "Timeline"), ("roofline", "Roofline")] if view.regions else []
    found += steps
    found += [("lines", "By line")] if next(line_tables(view, 1), None) else []
    found += [("kernels", "Kernels")] if view.scope and view.scope.kernels else []
    return [*found, ("trust", "Counters"), *last]


def _scopes(view: View) -> list[tuple[Scope, list[NCUProfileRegion | None]]]:
    """Processes, devices and ranks with their stages, where there is more than one of a kind."""
    scopes = view.report.scopes
    kinds = [scope.scope.partition(":")[0] for scope in scopes]
    shown = [s for s, kind in zip(scopes, kinds, strict=True) if kind != "aggregate" and kinds.count(kind) > 1]
    stages = [region.key for region in view.stages[:_SCOPE_STAGES]]
    found = []
    for scope in shown[:_SCOPES]:
        by_key = {region.key: region for region in scope.regions}
        found.append((scope, [by_key.get(key) for key in stages]))
    return found


@cache
def _words() -> tuple[dict[str, Any], ...]:
    """The words a newcomer may not know, with what they mean and where they are shown."""
    return tuple(tomllib.loads(_text("glossary.toml"))["word"])


def explained() -> set[str]:
    """All words that have an explanation."""
    return {word["name"] for word in _words()}


def glossary(verdicts: Collection[str], *, timeline: bool, counters: bool) -> list[tuple[str, str]]:
    """The words of a page with these verdicts; others only where there is a timeline, or there are counters."""
    return [
        (word["name"], word["means"])
        for word in _words()
        if word["name"] in verdicts or (timeline and word.get("timeline")) or (counters and word.get("counters"))
    ]


def _glossary(report: NCUProfileRegionReport, stages: list[Card]) -> list[tuple[str, str]]:
    titles = [stage.verdict.title for stage in stages if stage.verdict]
    timeline = any(stage.region.wall_ns is not None for stage in stages)
    return glossary(titles, timeline=timeline, counters=report.coverage is not None)


def _counters(stages: list[Card]) -> list[tuple[NCUProfileRegion, list[Any]]]:
    """The headline counters of the stages; those of any other region are shown when it is chosen."""
    shown = [(stage.region, interesting_metrics(stage.region.inclusive.metrics)) for stage in stages]
    return [pair for pair in shown if pair[1]][:_COUNTER_REGIONS]


def _no_counters(report: NCUProfileRegionReport) -> str:
    if any(i.get("kind", "").startswith("ncu") for i in report.inputs):
        return (
            "There is no timeline to say how many launches each result stands for. Record both with: "
            "llm-perf profile -- CMD, or give an nsys timeline with the counters."
        )
    return (
        "No counters were recorded: times are complete, bytes and FLOPs are not known. "
        "Record them with: llm-perf profile -- CMD, or give an .ncu-rep of the same program along with the timeline."
    )
