"""`report.html` as a file: what is in it without a script, what a script may do, and how large it gets."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from conftest import recording
from conftest import report as build
from llm_perf_opt import load
from llm_perf_opt.analysis.timeline_detail import MOST_IN_WINDOW, MOST_LAUNCHES, timeline_detail
from llm_perf_opt.cli.main import main
from llm_perf_opt.metrics.quantity import nanoseconds
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.detail import COPY, KERNEL, NO_LAUNCH, TREND_LEVELS, TimelineDetail
from llm_perf_opt.regions.instances import find_instances
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.cards import cards
from llm_perf_opt.report.html import _coded, render_html, script_json
from llm_perf_opt.report.line_rows import line_tables, measured_columns
from llm_perf_opt.report.palette import family_colours
from llm_perf_opt.report.provenance import provenance
from llm_perf_opt.report.stages import stage_regions, time_parts
from llm_perf_opt.report.view import view_of
from llm_perf_opt.rundir.scrub.private import Private
from performance import evaluate
from synthetic import make_export

report = partial(build, launch_detail=True)  # a page draws launches
DECODER = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")


def page_of(found: NCUProfileRegionReport) -> tuple[str, dict[str, Any]]:
    """The page, and the data block in it."""
    page = render_html(view_of(found))
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block
    return page, json.loads(block[1])


# -- what is allowed ---------------------------------------------------------------------------------


def test_the_policy_names_the_one_script_and_the_one_style_of_the_page() -> None:
    page = render_html(view_of(report(*DECODER)))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for name, text in (("style-src", style), ("script-src", script)):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_nothing_in_the_page_needs_more_than_the_policy_allows() -> None:
    page = render_html(view_of(evaluate(report(*DECODER))))
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    assert not re.findall(r"\sstyle=", markup)  # a style attribute would be blocked
    assert not re.findall(r"\son\w+=", markup)
    assert not re.findall(r'(?:src|href)="(?!#)', markup)
    assert "http" not in re.sub(r"http-equiv", "", markup)


def test_json_in_a_script_cannot_end_it() -> None:
    nasty = ["</script><script>alert(1)</script>", "<!--", "]]>", "&amp;", "\u2028\u2029", "\ud800", 'quote" \\']
    text = str(script_json(nasty))
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == nasty


# -- what is in it without a script ------------------------------------------------------------------


def test_answer_stages_and_diagnostics_need_no_script() -> None:
    found = evaluate(report(*DECODER))
    page = re.sub(r"<script[^>]*>.*?</script>", "", render_html(view_of(found)), flags=re.DOTALL)
    assert page.count('class="panel card"') == len(found.stages)
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page[: page.index('class="glossary"')]))
    assert (facts["MFU"], facts["bandwidth, busy"], facts["tokens/s"]) == ("12.5 %", "25.0 %", "64")
    assert "bandwidth" not in facts  # it is known for the busy time only, which is no reason to ask for more
    for text in ("launch-bound", "speed of light", "at the limit"):
        assert text in page
    assert "Capture it in a CUDA graph." in page
    assert found.main_scope
    for region in found.main_scope.regions:
        assert region.name in page
    assert "NVIDIA H200" in page
    assert "989 TFLOP/s" in page or "990 TFLOP/s" in page  # the denominators are told


def test_the_first_lines_say_where_why_and_what_to_do() -> None:
    found = report(*DECODER)
    lines = dict(found.answer.lines)
    assert list(lines) == ["Where", "Why", "Do first"]
    worst = stage_regions(found)[0]
    assert worst.name == "decode"
    assert worst.performance
    assert "decode takes" in lines["Where"]
    assert worst.performance.verdict.title in lines["Why"].lower()
    assert found.opportunities[0].advice.lower() in lines["Do first"].lower()
    nothing = report("nsys-*-decoder-8layers-warm.sqlite", include=["nothing"]).answer
    assert (nothing.stage, nothing.verdict, nothing.confidence, nothing.fixes) == ("", "unknown", "low", [])
    assert nothing.where == "No matching regions."
    assert nothing.why.startswith("Cannot tell, because ")


def test_what_was_not_measured_is_told_with_the_next_command() -> None:
    page, data = page_of(build("nsys-*-decoder-8layers-warm.sqlite"))
    assert "No counters were recorded" in page
    assert "at the roof" not in page  # roofs need counters
    assert page.count("needs ncu counters") >= 3  # MFU, bandwidth and speed of light
    assert "llm-perf profile -- CMD" in page
    assert data["strip"] is None
    assert "llm-perf report INPUT --format html" in data["stripMissing"]
    counters_alone, told = page_of(report("ncu-*-decoder-2layers-basic.ncu-rep"))
    counters_alone = re.sub(r"<script[^>]*>.*?</script>", "", counters_alone, flags=re.DOTALL)
    assert "there is no timeline" in counters_alone
    assert "GPU waiting" not in counters_alone  # not known, and not told as zero
    assert "nsys profile" in told["stripMissing"]


def test_a_page_can_be_made_from_report_json_alone(tmp_path: Path) -> None:
    from llm_perf_opt.report.write import write_report

    write_report(evaluate(report(*DECODER)), tmp_path, ["json"])
    page, data = page_of(load(tmp_path).data)
    assert "launch-bound" in page
    assert data["strip"] is None
    assert "report.json alone" in data["stripMissing"]
    assert len(data["points"]["name"]) > 0


def test_no_matching_region_still_makes_a_page() -> None:
    page, data = page_of(report("nsys-*-decoder-8layers-warm.sqlite", include=["nothing-of-this-name"]))
    assert "Ranges that exist" in page
    assert data["regions"]["key"] == []


def test_a_run_directory_tells_how_it_came_about(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "nsys").mkdir(parents=True)
    (run / "nsys" / "run.sqlite.xz").write_bytes(recording(DECODER[0]).read_bytes())
    manifest = {
        "command": ["python", "train.py", "--name", "two words"],
        "state": "done",
        "tools": {"nsys": "2025.3.1"},
        "gpus_before": [{"index": "0", "name": "NVIDIA H200", "clocks.sm": "1980 MHz", "driver_version": "570.1"}],
        "steps": [{"name": "nsys", "argv": ["nsys", "profile", "<b>"], "exit_code": 0, "seconds": 12.34}],
    }
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "config.yaml").write_text("model:\n  name: tiny\n  hub_token: hf_abcdefghijklmnop\n")
    assert main(["report", str(run), "--format", "html,json", "--json"]) == 0
    page = (run / "report.html").read_text()
    for text in (
        "python train.py --name &#34;$NAME&#34;",
        "2025.3.1",
        "1980 MHz",
        "570.1",
        "nsys, 12.3 s, exit code 0",
    ):
        assert text in page
    assert "&lt;b&gt;" in page
    assert "name: tiny" in page
    assert "hf_abcdef" not in page + (run / "report.json").read_text()


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{", '{"steps": 7, "tools": [], "command": 1, "gpus_before": "x", "settings": 3}']
)
def test_a_strange_manifest_does_no_harm(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "nsys").mkdir()
    (tmp_path / "nsys" / "run.sqlite.xz").write_bytes(recording(DECODER[0]).read_bytes())
    (tmp_path / "manifest.json").write_text(manifest)
    assert main(["report", str(tmp_path), "--format", "html", "--json"]) == 0


def test_processes_and_ranks_stand_beside_each_other() -> None:
    found = report("nsys-*-ranks.sqlite")
    page = render_html(view_of(found))
    several = [s.scope for s in found.scopes if s.scope.startswith("process:")]
    assert len(several) > 1
    table = page[page.index('id="scopes"') :]
    for scope in several:
        assert scope in table
    assert 'id="scopes"' not in render_html(view_of(report(DECODER[0])))  # one process, one device: nothing to compare


# -- the data of the charts --------------------------------------------------------------------------


def test_rows_and_regions_are_those_of_the_report() -> None:
    found = evaluate(report(*DECODER))
    scope = found.main_scope
    assert scope
    _, data = page_of(found)
    assert data["regions"]["full"] == [
        "/".join(map(visible, r.path)) if not r.domain else f"{visible(r.domain)}@{'/'.join(map(visible, r.path))}"
        for r in scope.regions
    ]
    rows = data["rows"]
    for number, region in [(-1, scope), *enumerate(scope.regions)]:
        mine = [i for i, r in enumerate(rows["region"]) if r == number]
        assert [rows["calls"][i] for i in mine] == [k.calls for k in region.kernels]
        assert sum(rows["total"][i] for i in mine) == pytest.approx(
            sum(k.total_ms * 1e6 for k in region.kernels if k.total_ms is not None), abs=len(mine)
        )
    families = data["names"]["families"]
    assert {family for family, *_ in families} >= {"gemm", "elementwise"}
    assert all(re.fullmatch(r"#[0-9a-f]{6}", colour) for _, *pair in families for colour in pair)


def test_every_family_has_a_colour_of_its_own() -> None:
    for theme in (0, 1):
        colours = [pair[theme] for pair in family_colours().values()]
        assert len(set(colours)) == len(colours)


def detail_of(name: str) -> tuple[TimelineDetail, Timeline]:
    from conftest import timeline

    found = timeline(name)
    attribution = attribute(found)
    keys = {attribution.table.key(n) for n in range(len(attribution.table))}
    return timeline_detail(found, attribution, find_instances(found, attribution), keys), found


def test_windows_hold_every_launch_that_runs_in_them() -> None:
    detail, found = detail_of("decoder-8layers-warm")
    assert detail.windows
    for number, window in enumerate(detail.windows):
        mine = detail.launches.window == number
        for kind, work in ((KERNEL, found.kernels), (COPY, found.copies)):
            running = (work.process == window.process) & (work.start < window.end) & (work.end > window.start)
            kept = detail.launches.start[mine & (detail.launches.kind == kind)]
            assert set(work.start[running].tolist()) <= set(kept.tolist())
    assert len(detail.launches.start) <= MOST_LAUNCHES


def test_windows_are_bounded_whatever_the_length_of_a_range(tmp_path: Path) -> None:
    count = 3 * MOST_IN_WINDOW
    ranges = [("one long range", 0, 10 * count)]
    kernels = ((f"k{i % 3}", 10 * i + 1, 10 * i + 2, 10 * i + 7) for i in range(count))
    found = report(make_export(tmp_path / "run.sqlite", ranges, kernels))
    detail = found.timeline_detail
    assert isinstance(detail, TimelineDetail)
    (window,) = detail.windows
    assert window.cut
    assert len(detail.launches.start) == MOST_IN_WINDOW


def test_a_long_stage_is_shown_by_the_regions_inside_it(tmp_path: Path) -> None:
    steps, each = 40, MOST_IN_WINDOW // 10
    length = 10 * each
    ranges = [
        ("all", 0, steps * length),
        *((("even", "odd")[i % 2], i * length, (i + 1) * length) for i in range(steps)),
    ]
    kernels = ((f"k{i % 3}", 10 * i + 1, 10 * i + 2, 10 * i + 7) for i in range(steps * each))
    found = report(make_export(tmp_path / "run.sqlite", ranges, kernels))
    detail = found.timeline_detail
    assert isinstance(detail, TimelineDetail)
    assert len(detail.windows) == 6  # middle, first and last of both
    assert all(not window.cut for window in detail.windows)
    step = next(n for n in range(len(detail.table)) if detail.table.key(n) == "all/even")
    numbers = detail.instances.number[detail.instances.region == step]
    assert sorted(numbers.tolist()) == [0, 10, 19]


def test_a_trend_follows_the_mean_time_over_the_instances(tmp_path: Path) -> None:
    """Four steps; kernel `grows` takes 100, 200, 300, 400 ns, kernel `once` runs in the second only."""
    ranges = [("step", 10_000 * i, 10_000 * i + 9_000) for i in range(4)]
    kernels = []
    for i in range(4):
        at = 10_000 * i
        kernels += [("grows", at + 1, at + 100, at + 200 + 100 * i), ("grows", at + 2, at + 1000, at + 1100 + 100 * i)]
    kernels.append(("once", 10_500, 15_000, 15_100))
    found = report(make_export(tmp_path / "run.sqlite", ranges, kernels))
    detail = found.timeline_detail
    assert isinstance(detail, TimelineDetail)
    number = next(n for n in range(len(detail.table)) if detail.table.key(n) == "step")
    levels = [TREND_LEVELS.index(character) for character in detail.trends[number]["grows"]]
    assert np.allclose(np.array(levels) / 63, [0.25, 0.5, 0.75, 1.0], atol=0.01)
    assert detail.trends[number]["once"] == f"{NO_LAUNCH}_{NO_LAUNCH}{NO_LAUNCH}"


# -- size --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_thousand_kernels_fit(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from make_timeline import make

    counts = make(recording("nsys-*-decoder-36layers.sqlite"), tmp_path / "run.sqlite", kernels=100_000)
    assert counts["CUPTI_ACTIVITY_KIND_KERNEL"] >= 100_000
    assert (
        main(["report", str(tmp_path / "run.sqlite"), "--out", str(tmp_path / "out"), "--format", "html", "--json"])
        == 0
    )
    assert (tmp_path / "out" / "report.html").stat().st_size < 8_000_000


@pytest.mark.slow
def test_very_many_kernels_with_long_names_fit(tmp_path: Path) -> None:
    """More names than a page lists, of a family that is told quickly; benchmarks/bench_html.py has a hundred thousand."""
    count = 40_000
    ranges = [(f"layer {i}", 1000 * i, 1000 * i + 999) for i in range(count // 100)]
    kernels = ((f"nccl_{i % 20_000}_{'x' * 300}", 10 * i + 1, 10 * i + 2, 10 * i + 7) for i in range(count))
    found = report(make_export(tmp_path / "run.sqlite", ranges, kernels))
    page, data = page_of(found)
    assert len(page) < 8_000_000
    assert sum(data["regions"]["omitted"]) > 0  # and the page says so


# -- sharing -----------------------------------------------------------------------------------------


def test_a_scrubbed_page_still_runs() -> None:
    """A host may be called like a word of the script; the policy names the script by its hash."""
    private = Private()
    private.learn_host("node")
    private.learn_environment({"MY_TOKEN": "se<cr>et & 'quoted' 12345"})
    found = report(*DECODER)
    run = {"command": ["run.py", "--on", "node"], "settings": {"label": "se<cr>et & 'quoted' 12345"}}
    found = evolve(found, environment={**found.environment, "run": run})
    before = render_html(view_of(found))
    after = private.page(before)
    assert re.findall(r"<script>(.*?)</script>", after, re.DOTALL) == re.findall(
        r"<script>(.*?)</script>", before, re.DOTALL
    )
    assert "--on node" in before
    assert "--on node" not in after
    assert private.found_in(before.encode())
    assert not private.found_in(after.encode())


# -- for somebody who has never seen the page ------------------------------------------------------


def test_every_verdict_is_explained_in_plain_words() -> None:
    from llm_perf_opt.analysis.verdicts.rules import verdict_rules
    from llm_perf_opt.report.html import explained, glossary

    assert {rule.title for rule in verdict_rules().rules} <= explained()
    shown = [word for word, _ in glossary({"launch-bound"}, timeline=True, counters=False)]
    assert shown == ["launch-bound", "wall time", "GPU waiting"]


def test_the_page_begins_with_stage_cause_and_what_to_do() -> None:
    inputs = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")
    page, _ = page_of(report(*inputs))
    lines = re.findall(r"<dt>(Where|Why|Do first)</dt><dd><b>([^<]*)</b>([^<]*)</dd>", page)
    assert [name for name, _, _ in lines] == ["Where", "Why", "Do first"]
    (_, stage, where), (_, verdict, why), (_, advice, gain) = lines
    assert stage == "LLM@decode"
    assert "87.0 % of the time" in where
    assert verdict == "Launch-bound."
    assert "GPU sits idle for 91.0 %" in why
    assert advice.startswith("Capture the step in a CUDA graph")
    assert "up to 110 ms of the 125 ms" in gain
    assert "What these words mean" in page
    # what to do stands before its reason, and the stage is not told twice
    row = page[page.index('id="opportunities"') :]
    row = row[row.index("<tbody>") : row.index("</tr>", row.index("<tbody>"))]
    cells = re.findall(r'<td class="text[^"]*">(.*?)</td>', row, re.DOTALL)
    assert cells[1].startswith("Capture the step")
    assert cells[2].startswith("The GPU waits 114 ms of 125 ms for launches")


# -- what a card says, and what it leaves out --------------------------------------------------------


def test_copies_without_a_kernel_say_nothing_of_the_memory() -> None:
    """`update` of a server copies 5 kB and launches nothing: "0.0 %" would be a number nobody counted."""
    view = view_of(report("serving-*.sqlite"))
    (update,) = [
        card for card in cards(view, {r.key: n for n, r in enumerate(view.regions)}) if card.region.name == "update"
    ]
    told = {fact.name: fact.text for fact in update.facts}
    assert told["bandwidth"] == told["MFU"] == told["at the limit"] == "not measured: no kernels"
    assert "bandwidth, busy" not in told


def test_collectives_beside_no_other_work_are_a_part_of_their_own() -> None:
    (region, *_) = view_of(evaluate(report(*DECODER))).stages
    assert region.performance
    before = {kind: time for kind, _, time in time_parts(region)}
    time = evolve(region.performance.time, exposed_collectives=nanoseconds(1e6))
    after = {
        kind: time for kind, _, time in time_parts(evolve(region, performance=evolve(region.performance, time=time)))
    }
    assert after["collectives"] == 1e6
    assert sum(after.values()) == pytest.approx(sum(before.values()))


def test_a_table_by_line_has_no_column_without_a_value() -> None:
    view = view_of(report("lines-*-train.sqlite"))
    ((_, _, rows),) = line_tables(view, 5)
    head, cells = measured_columns(rows)
    assert head == ["launches", "time", "share", "GPU idle"]
    assert all(len(row) == 4 for row in cells)


def test_of_the_settings_only_those_that_were_chosen_are_shown() -> None:
    chosen = {"launches": 5, "concurrency": 8, "url": "http://127.0.0.1:8000", "annotate_depth": 3}
    run = {"command": ["llm-perf", "profile", "--launches", "5", "--", "a.py"], "settings": chosen}
    (card, *_) = provenance(evolve(report("threads.sqlite"), environment={"run": run}))
    assert card.facts == [("launches", "5")]


def test_what_stands_between_backquotes_is_code() -> None:
    assert _coded("Use `<a>`, or `b`.") == "Use <code>&lt;a&gt;</code>, or <code>b</code>."
    assert _coded("one ` alone") == "one ` alone"
