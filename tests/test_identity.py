"""The first lines of the page: which program, how fast, and what makes the numbers doubtful."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from conftest import report as build
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.inject.lever_rules import rules_with_levers
from llm_perf_opt.readers.open import MEASURED
from llm_perf_opt.regions.columns import UNKNOWN_HERE
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.closing import following_of
from llm_perf_opt.report.html import render_html
from llm_perf_opt.report.identity import date_words, dated, identity, notices, program_name, tab_title
from llm_perf_opt.report.view import view_of
from llm_perf_opt.trying.levers import all_levers

report = partial(build, launch_detail=True)


@pytest.fixture(scope="module")
def trace() -> NCUProfileRegionReport:
    return report("kineto-*.json")


def of_run(found: NCUProfileRegionReport, **facts: Any) -> NCUProfileRegionReport:
    return evolve(found, environment=found.environment | {"run": facts})


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["/venv/bin/python", "-u", "src/generate.py", "--n", "3"], "generate.py"),
        (["python", "-m", "shop.serve", "--port", "80"], "serve"),
        (["torchrun", "--nproc-per-node", "8", "train.py"], "train.py"),
        (["vllm", "serve", "MODEL"], "vllm"),
        ([], "kineto-torch2.11-h200-2layers"),
    ],
)
def test_a_page_is_named_after_the_program(trace: NCUProfileRegionReport, words: list[str], name: str) -> None:
    assert program_name(of_run(trace, workload=words)) == name


def test_the_tab_says_what_a_token_takes(trace: NCUProfileRegionReport) -> None:
    """Three steps of decode take 83.0 ms."""
    view = view_of(of_run(trace, workload=["python", "generate.py"], settings={"model": {"name": "tiny_llm"}}))
    assert tab_title(view) == "generate.py: 27.7 ms per token"
    assert identity(view) == ["model tiny_llm", "27.7 ms per token", "36.14 tokens/s per sequence"]
    assert "<title>generate.py: 27.7 ms per token · llm-perf</title>" in render_html(view)


def test_a_server_says_its_batch_and_what_a_request_waits_for_a_token() -> None:
    view = view_of(report("serving-*.sqlite"))
    assert identity(view)[:2] == ["batch 64", "118 ms per token"]


def test_a_run_that_failed_says_so_before_any_number(trace: NCUProfileRegionReport) -> None:
    error = Diagnosis("WORKLOAD_FAILED", "error", "The program failed <b>.", "Look at its log.")
    failed = evolve(of_run(trace, state="failed", workload=["a.py"]), diagnostics=[error])
    assert [(n.severity, n.fix) for n in notices(view_of(failed))] == [("error", ""), ("error", "Look at its log.")]
    page = render_html(view_of(failed))
    assert page.index("The run failed.") < page.index("The program failed &lt;b&gt;.") < page.index('class="headline"')
    assert not notices(view_of(evolve(of_run(trace, state="done"), diagnostics=[])))


def test_the_page_alone_says_what_to_type(trace: NCUProfileRegionReport) -> None:
    """`try` only where a lever answers the first fix of a program that ends by itself."""
    assert rules_with_levers() == {rule for lever in all_levers().values() for rule in lever.rules}
    found = report("nsys-*-decoder-8layers-warm.sqlite")
    ran = of_run(found, workload=["python", "generate.py", "--n", "<3>"], settings={"annotate": "stages"})

    def typed(of: NCUProfileRegionReport, rule: str = "launch.graph") -> str:
        fixes = [evolve(fix, rule=rule) for fix in of.answer.fixes]
        following = following_of(evolve(of, answer=evolve(of.answer, fixes=fixes)))
        return following.command if following else ""

    assert typed(found) == "llm-perf try -- CMD"
    assert typed(ran) == "llm-perf try --annotate stages -- python generate.py --n '<3>'"
    assert "<code>llm-perf try --annotate stages -- python generate.py --n &#39;&lt;3&gt;&#39;</code>" in render_html(
        view_of(ran)
    )
    assert typed(found, "host.unknown") == typed(found, "comm.skew") == "llm-perf profile -- CMD"
    assert typed(report("serving-*.sqlite")) == "llm-perf profile -- CMD"
    assert typed(report("ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")) == "llm-perf profile -- CMD"
    assert not typed(of_run(evolve(trace, diagnostics=[Diagnosis("X", "error", "No.", "")]), state="failed"))


def test_the_page_of_times_alone_says_what_to_type(tmp_path: Path) -> None:
    """The stage of the answer, generate(), holds the stages."""
    names = [["LLM", name] for name in ("generate", "prefill", "decode", "decode_step")]
    unknown, times = [UNKNOWN_HERE] * 4, [(0, 0, 900), (1, 10, 200), (2, 210, 890), (3, 220, 880)]
    process = {"run": 0, "pid": 1, "names": names, "once": [], "uuids": []}
    process["rows"] = [[name, 1, begin * 10**6, end * 10**6, *unknown] for name, begin, end in times]
    (tmp_path / "run.json").write_text(
        f'{MEASURED} "version": 2, "gpus": [[]], "processes": {json.dumps([process])}}}\n'
    )
    measured = make_report([str(tmp_path / "run.json")], ReportOptions(), quiet=True)
    ran = of_run(evolve(measured, diagnostics=[]), workload=["python", "generate.py"], state="done")
    assert (found := following_of(ran)) is not None
    assert found.command == "llm-perf profile -- python generate.py"
    assert "<b>LLM@generate</b> takes" in render_html(view_of(ran))


def test_a_page_says_when_its_numbers_were_recorded_or_that_it_does_not_know(trace: NCUProfileRegionReport) -> None:
    assert dated(of_run(trace, started_at="2026-11-06T01:02:03+00:00")) == "recorded 6 November 2026, 01:02 UTC"
    assert dated(trace).startswith("report made ")


def test_a_date_is_one_that_people_read() -> None:
    assert date_words("2026-11-06T01:02:03+02:00") == "5 November 2026, 23:02 UTC"
    assert date_words("<yesterday>") == "<yesterday>"


def test_one_warning_is_said_itself_and_several_are_counted(trace: NCUProfileRegionReport) -> None:
    warnings = [Diagnosis("NO_KERNELS", "warning", f"Recording {n} has no kernels.", "") for n in range(3)]
    (one,) = notices(view_of(evolve(trace, diagnostics=warnings[:1])))
    assert one.text == "Recording 0 has no kernels."
    (several,) = notices(view_of(evolve(trace, diagnostics=warnings)))
    assert several.text == "3 notes about this recording:"


def test_tokens_a_second_are_a_plain_number_and_a_whole_recording_is_no_step() -> None:
    assert identity(view_of(report("nsys-*-ranks.sqlite"))) == ["60.8 µs per token", "16,446 tokens/s per sequence"]
    unmarked = view_of(report("names.sqlite"))
    whole = [evolve(r, key="whole", range_kind="recording") for r in unmarked.stages[:1]]
    shown = evolve(
        unmarked, stages=whole, report=evolve(unmarked.report, answer=evolve(unmarked.report.answer, stage="whole"))
    )
    assert identity(shown) == []
