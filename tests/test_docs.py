"""What the documentation says is true: its commands run, its links lead somewhere, its codes exist."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli.main import main
from llm_perf_opt.diagnosis import catalogue
from llm_perf_opt.nsight.messages import RULES, STATES

ROOT = Path(__file__).parents[1]
RECORDINGS = Path(__file__).parent / "recordings"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    """Lines of shell blocks that call llm-perf."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            found += [line for line in block.splitlines() if line.startswith("llm-perf ")]
    return list(dict.fromkeys(found))


# Files the documentation speaks of, besides those of `tools/gallery.py`.
UNPACKED = {
    **dict.fromkeys(
        ("run.sqlite", "before.sqlite", "after.sqlite"), "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite.xz"
    ),
    "counters.ncu-rep": "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config.ncu-rep.xz",
    **dict.fromkeys(("rank0.sqlite", "rank1.sqlite"), "nsys-2025.3.1-h200-train.sqlite.gz"),
}
TRACE = "trace.json.gz"


def lay_out(words: list[str], folder: Path) -> None:
    """Those that a command names, where an earlier one has not left them."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import gallery
    finally:
        sys.path.pop(0)
    for word in words:
        if word in UNPACKED:
            packed = (RECORDINGS / UNPACKED[word]).read_bytes()
            (folder / word).write_bytes((lzma if UNPACKED[word].endswith("xz") else gzip).decompress(packed))
        elif word in gallery.FILES:
            gallery.lay_out(word, folder)
        elif word == TRACE and "--perfetto" not in words:  # a trace of PyTorch's under that name would not be replaced
            (folder / word).write_bytes((RECORDINGS / "kineto-torch2.11-h200-2layers.json.gz").read_bytes())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # `compare --learn` must not reach other tests
    return tmp_path


def test_there_are_commands_to_check() -> None:
    assert len(commands()) >= 10


@pytest.mark.process
@pytest.mark.parametrize("command", commands())
def test_every_command_in_the_documentation_runs(command: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(shlex.split(command), desk)
    assert main(shlex.split(command)[1:]) == 0
    assert "No matching regions" not in capsys.readouterr().out


def sessions(page: Path) -> list[tuple[str, list[str]]]:
    """Commands of `console` blocks, each with the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line != "…":
                found[-1][1].append(line)
    return found


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if sessions(page)], ids=lambda p: p.stem)
def test_what_a_page_shows_is_what_its_commands_print(
    page: Path, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, lines in sessions(page):
        lay_out(shlex.split(command), desk)
        code = main(shlex.split(command)[1:])
        printed = iter([*map(str.rstrip, capsys.readouterr().out.splitlines()), f"exit code {code}"])
        missing = [line for line in lines if line not in printed]  # in this order
        assert (missing, code) == ([], code if f"exit code {code}" in lines else 0), command


def test_gains_in_the_tutorials_are_the_measured_ones() -> None:
    page = (ROOT / "docs" / "tutorial-training.md").read_text(encoding="utf-8")
    rows = {row["rule"]: row for row in result("rules-h200")["rules"]}
    shown = re.findall(
        r"^\| \[`([\w.]+)`\].*?\| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+) ms \|$", page, re.M
    )
    assert len(shown) == 4
    for rule, *numbers in shown:
        names = ("before_ms", "after_ms", "measured_ms", "predicted_ms")
        assert numbers == [f"{rows[rule][name]:.2f}" for name in names]


def test_other_numbers_of_the_tutorials_and_the_faq_are_the_measured_ones() -> None:
    rules = {row["rule"]: row for row in result("rules-h200")["rules"]}
    replan, again = rules["attention.replan"], rules["compile.again"]
    compared, http = result("compare-h200"), result("serving-h200")["parts"]["http"]
    (compiled,) = (
        c
        for c in result("true-time-h200")["parts"]["compiled"]["checks"]
        if c["what"].startswith("a step with its ranges timed")
    )
    waits = [row for row in result("lines-h200")["waits"].values() if isinstance(row, dict)]
    assert max(abs(row["off"]) for row in waits) <= 0.05
    joined = [row for row in result("join-accuracy")["rows"] if row["counter"] == "tensor operations"]
    planted = [
        f"+{(row['true_after_ns'] - row['true_before_ns']) / 1e3:,.1f} µs | "
        f"{(row['found_after_ns'] - row['found_before_ns']) / 1e3:+,.1f} µs |"
        for row in compared["planted"]
    ]
    pairs = compared["pairs"]
    alarms = (
        f"In {len(pairs['alike'])} more pairs nothing had changed, and five runs per side raised {pairs['alarms']} alarms. "
        f"One run per side raised {pairs['one_run_alarms']} in {pairs['one_run_pairs']} pairs"
    )
    latencies = []
    for name, key, factor, unit, digits in (
        ("time to the first token", "ttft_s", 1e3, "ms", 0),
        ("time per output token", "tpot_s", 1e3, "ms", 0),
        ("whole answer", "e2e_s", 1, "s", 1),
    ):
        times = [f"{factor * http['load'][key][part]:.{digits}f} {unit}" for part in ("p50", "p90", "p99")]
        latencies.append(f"| {name} | {' | '.join(times)} |")
    phases = http["phases"]
    said = {
        "docs/tutorial-generate.md": [
            f"from {replan['before_ms']:.2f} to {replan['after_ms']:.2f} ms]",
            f"the predicted gain was {replan['predicted_ms']:.2f} ms",
        ],
        "docs/tutorial-first-token.md": [f"[from {again['before_ms']:.2f} to {again['after_ms']:.2f} ms]"],
        "docs/tutorial-regression.md": [*planted[:4], alarms],
        "docs/tutorial-server.md": [
            *latencies,
            f"{phases['decode_step']} decode steps, {phases['mixed_step']} mixed steps and one prefill",
        ],
        "docs/faq.md": [f"{compiled['true']:.1f} ms became {100 * compiled['off']:.1f} % slower"],
        "README.md": [f"launches stand for {sum(row['launches'] for row in joined):,}:"],
    }
    for file, texts in said.items():
        page = (ROOT / file).read_text(encoding="utf-8")
        assert [text for text in texts if text not in page] == [], file


def test_the_answer_quoted_in_the_readme_is_what_the_demo_says(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"])
    shown = capsys.readouterr().out.splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    quoted = [line for line in readme if line.startswith(("Where: ", "Why: ", "Do first: "))]
    assert len(quoted) == 3
    assert {line.rstrip() for line in quoted} <= {line.rstrip() for line in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_tables_of_diagnoses_are_those_of_the_catalogues() -> None:
    """Otherwise: python tools/document_diagnoses.py"""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import document_diagnoses
    finally:
        sys.path.pop(0)
    page = document_diagnoses.PAGE.read_text(encoding="utf-8")
    assert document_diagnoses.page(page) == page
    codes = {wording.code for wording in catalogue().values()} | {rule.code for rule in (*RULES, *STATES.values())}
    assert {code for code in codes if f"| `{code}` |" not in page} == set()


def test_the_page_of_fix_rules_is_up_to_date() -> None:
    """Otherwise: python tools/document_rules.py"""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import document_rules
    finally:
        sys.path.pop(0)
    assert document_rules.PAGE.read_text(encoding="utf-8") == document_rules.page()


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def told_ratios(text: str) -> dict[tuple[str, str], str]:
    """A table of `| counter | prefill | decode |` as (region, counter) and what it says."""
    rows = re.findall(r"^\| ([A-Za-z2 ]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    stages = ("LLM@prefill", "LLM@decode")
    return {(stage, name): ratio for name, *pair in rows for stage, ratio in zip(stages, pair, strict=True)}


def test_the_accuracy_in_the_documentation_is_the_measured_one() -> None:
    page = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    small, large = page.split("A decoder of 3.2 billion parameters", 1)
    measured = result("join-accuracy")["rows"]
    assert told_ratios(small) == {(row["region"], row["counter"]): f"{row['ratio']:.3f}" for row in measured}
    parts = result("bridge-h200")["parts"]
    names = {"DRAM bytes": "DRAM read and written", "L2 bytes": "L2 traffic", "DRAM written": "DRAM written alone"}
    rows = [row for row in parts["truth"]["figures"]["rows"] if row["counter"] != "DRAM read"]
    assert told_ratios(large) == {
        (row["stage"], names.get(row["counter"], row["counter"])): f"{row['ratio']:.3f}" for row in rows
    }


def off_by(rows: list[dict[str, Any]], counter: str) -> str:
    """The largest deviation of a counter over all stages, in per cent."""
    return f"{max(100 * abs(row['ratio'] - 1) for row in rows if row['counter'] == counter):.1f}"


def test_the_accuracy_in_the_readme_is_the_measured_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    joined = result("join-accuracy")["rows"]
    worst = max(100 * abs(row["ratio"] - 1) for row in joined)
    assert off_by(joined, "tensor operations") in ("0.0", "0.1")
    assert (
        f"DRAM bytes read within {off_by(joined, 'DRAM read')} %, L2 bytes within {off_by(joined, 'L2 traffic')} % "
        f"(all counters, including the one that is off by {worst:.1f} %:"
    ) in readme


def test_the_cost_of_annotation_is_the_measured_one() -> None:
    page = (ROOT / "docs" / "annotate.md").read_text(encoding="utf-8")
    costs = result("annotate-cost-cpu")
    stages, modules = costs["stages"], costs["modules"]
    shares = [f"{100 * part['computed_share']:.2f} %" for part in (stages, modules)]
    off, low, high = (f"{100 * (stages[name] - 1):.1f} %" for name in ("ratio", "ratio_low", "ratio_high"))
    for text in (
        f"{costs['stage_us']:.1f} µs per step for stages, about {costs['module_range_us']:.1f} µs for each module range]",
        f"which is {shares[0]} and (with {modules['named_modules']:.0f} module ranges) {shares[1]} of a decode step of "
        f"{stages['off_ms']:.0f} ms.",
        f"stages cost {off}, with half of the pairs between {low} and {high}.",
    ):
        assert text in page, text


def test_the_numbers_of_the_readme_are_the_measured_ones() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    speed, html, answers = result("report-speed"), result("html-page")["pages"]["decoder, repeated"], result("answers")
    unseen = [case["first_look"] for case in result("unseen-answers")["cases"]]
    assert result("unseen-answers")["wrong"] == 0
    programs = ("eager", "graph", "train", "long")
    ours, fetching = (speed["figures"][name] for name in ("llm-perf report", "sqlite3 fetchall"))
    trace, loaded = (speed["trace"]["figures"][name] for name in ("llm-perf report", "json.load"))
    assert 0.08 < trace["peak_rss_mb"] / loaded["peak_rss_mb"] < 0.12  # a tenth
    tried = {row["program"]: row for row in result("try-levers-h200")["rows"]}
    graph, tokens = tried["generate_warm"]["levers"][0], 60
    low, high = graph["interval"]
    whole, lines = result("bridge-h200")["parts"]["measured"]["figures"], result("lines-h200")
    rules, compared, served = result("rules-h200"), result("compare-h200"), result("serving-h200")["parts"]["http"]
    assert served["wrong"] == 0
    assert abs(served["rate_off"]) < 0.001
    for text in (
        f"[{speed['timeline']['kernels'] / 1e6:.2f} million kernels]",
        f"in {ours['wall_s'] / fetching['wall_s']:.2f} times what Python's `sqlite3` needs just to fetch their rows, with "
        f"{ours['peak_rss_mb'] / fetching['peak_rss_mb']:.2f} times the memory",
        f"in {trace['wall_s'] / loaded['wall_s']:.2f} times `json.load`, with a tenth of its memory",
        f"| as it is | {graph['before'] / 1e6:.0f} ms | {graph['before'] / 1e6 / tokens:.1f} ms |",
        f"| {graph['after'] / 1e6:.0f} ms | {graph['after'] / 1e6 / tokens:.1f} ms | the same to the bit, in all 102 calls",
        f"**{graph['gain']:.2f} times as fast** ({low:.2f} to {high:.2f})",
        f"predicted from the recording: {graph['predicted_gain']:.2f} times",
        f"`llm-perf try -- python tried.py generate_warm`, {tried['generate_warm']['took_s']:.0f} seconds later",
        f"[{tried['moe']['levers'][0]['gain']:.2f} times as fast](benchmarks/results/try-levers-h200.md)",
        f"[{whole['profile_s']:.0f} s instead of {whole['alone_after_s']:.0f} s](benchmarks/results/bridge-h200.md)",
        f"[{answers['right']} of {len(answers['cases'])} recordings](benchmarks/results/answers.md) and is wrong for none.",
        f"Of [{len(unseen)} cases](benchmarks/results/unseen-answers.md) that nobody tuned for, {unseen.count('wrong')} got a "
        "wrong answer at the first look, none now.",
        f"[{rules['recognised']} of {rules['programs']}](benchmarks/results/rules-h200.md) planted problems recognised, "
        f"the gain within a factor of 1.5 for {rules['within_factor']}; no fix proposed for {len(rules['tuned'])} well-tuned",
        f"[{100 * min(lines[name]['table_share'] for name in programs):.1f} % of the GPU time](benchmarks/results/lines",
        f"launch by launch, {100 * min(lines[name]['right_share_of_time'] for name in programs):.0f} % in all four programs",
        f"[{len(compared['planted'])} of {len(compared['planted'])}](benchmarks/results/compare-h200.md) planted changes",
        f"[{served['recorded']} of {served['steps']}](benchmarks/results/serving-h200.md) steps",
        f"{html['bytes'] / 1e6:.1f} MB, painted after {html['first_paint_ms']} ms",
    ):
        assert text in page, text
    assert (answers["wrong"], rules["tuned_with_fixes"]) == (0, 0)


def test_how_good_comparing_is_is_the_measured_one() -> None:
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    alone, pairs, planted = (
        result("compare-recordings"),
        result("compare-h200")["pairs"],
        result("compare-h200")["planted"],
    )
    noise, cost = alone["noise"], alone["cost"]["ratios"]
    assert all(row["named"] and row["causes_off"] <= 0.001 for row in alone["planted"])
    assert len(alone["planted"]) == 12
    assert (noise["alarms"], pairs["alarms"], len(pairs["alike"]), len(planted)) == (0, 0, 20, 6)
    assert max(abs(row["size_error"]) for row in planted) <= 0.2
    for text in (
        f"from {noise['distributions']} distributions of real recordings",
        f"({noise['alarms_of_1000']} in 1,000), one run per side {noise['one_run_alarms']} in 20 "
        f"({noise['one_run_alarms_of_1000']} in 1,000)",
        f"was found in {noise['found_of_100']} of 100",
        f"took {cost['cpu_s']:.2f} times the processor time and {cost['peak_mb']:.2f} times the memory of one report",
        f"one run per side {pairs['one_run_alarms']} in {pairs['one_run_pairs']} (",
        f"was found in {pairs['slower_found']} of {len(pairs['slower'])}.",
    ):
        assert text in page, text


def test_the_accuracy_for_the_ocr_model_is_the_measured_one() -> None:
    page = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    parts = result("bridge-h200")["parts"]
    names = {"tensor operations": "tensor operations", "DRAM bytes": "DRAM read and written", "L2 bytes": "L2 traffic"}
    for counter, name in names.items():
        ratios = [row["ratio"] for row in parts["ocr_truth"]["figures"]["rows"] if row["counter"] == counter]
        assert f"| {name} | {' | '.join(f'{ratio:.3f}' for ratio in ratios)} |" in page
    ocr = parts["ocr"]["figures"]
    assert f"{ocr['results']} of {ocr['launches']:,} launches sampled in 52 windows" in page
    assert f"alone takes {ocr['alone_s']:.1f} s, the whole command {ocr['profile_s']:.0f} s" in page


def test_the_costs_in_the_documentation_are_the_measured_ones() -> None:
    parts = result("bridge-h200")["parts"]
    figures = {name: part["figures"] for name, part in parts.items()}
    profile, steps, measured = figures["profile"], figures["steps64"], figures["measured"]
    page = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    hours = figures["recipe"]["recipe_in_all_s"] / 3600
    for text in (
        f"| default | {figures['alone']['alone_s']:.1f} s | {measured['timeline_s']:.1f} s | "
        f"{measured['counters_s']:.1f} s | {measured['profile_s']:.0f} s |",
        f"It takes {measured['times_alone']:.2f} times the program alone",
        f"| `--no-measure` | {profile['alone_after_s']:.1f} s | {profile['timeline_s']:.1f} s | "
        f"{profile['counters_s']:.1f} s | {profile['profile_s']:.0f} s |",
        f"With `--no-measure` it takes {profile['times_alone']:.2f} times the program alone",
        f"takes {figures['recipe']['per_kernel_by_progress_s']:.2f} s per kernel: {hours:.1f} hours for both stages.",
        f"the counters take {steps['counters_s']:.1f} s,",
        f"With `--run-to-end` they take {steps['counters_s_run_to_end']:.1f} s",
    ):
        assert text in page
    comparison = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert f"[the whole command took {measured['profile_s']:.0f} s](../benchmarks/results/bridge-h200.md)" in comparison
    assert f"the program alone {figures['alone']['alone_s']:.1f} s." in comparison
