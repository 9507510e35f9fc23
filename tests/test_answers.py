"""Recordings get the answer that an expert would give: stage, verdict and first fix; `answers.toml` has the table.

What is known to be wrong is in the table too. Such a case must fail, so that nobody mends it unnoticed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conftest import report
from llm_perf_opt.analysis.rules.all_rules import fix_words
from llm_perf_opt.analysis.verdicts.conclusion import one_for_each_cause
from llm_perf_opt.api.result import Report
from llm_perf_opt.cli.main import main
from llm_perf_opt.regions.fixes import Answer, CodeLine, Fix
from llm_perf_opt.report.answer import answer_of
from llm_perf_opt.report.json_report import as_json, read_report
from llm_perf_opt.report.text import duration, percent
from llm_perf_opt.report.write import write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import answers

CASES = answers.cases()


def check(case: answers.Case) -> None:
    answer = report(*case.paths()).answer
    outcome = answers.rate(case, answer)
    fixes = [fix.rule for fix in answer.fixes[:3]]
    said = f"{outcome}: {answer.stage}, {answer.verdict}, {fixes}; {case.reason}"
    if case.not_yet:
        assert outcome != "right", f"this has become right: remove its `not_yet` from answers.toml. {said}"
    else:
        assert outcome == "right" or (case.unsure and outcome == "unsure"), said


@pytest.mark.parametrize("case", [c for c in CASES if not c.shared], ids=lambda case: case.name)
def test_the_answer_is_that_of_an_expert(case: answers.Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("case", [c for c in CASES if c.shared], ids=lambda case: case.name)
def test_the_answer_about_a_public_recording_is_that_of_an_expert(case: answers.Case) -> None:
    if not all(path.exists() for path in case.paths()):
        pytest.skip("the recordings beside the repository are not here")
    check(case)


@pytest.mark.parametrize("case", [c for c in CASES if not c.shared], ids=lambda case: case.name)
def test_gains_are_of_one_instance_and_never_add_up_to_more_than_it(case: answers.Case) -> None:
    found = report(*case.paths())
    assert found.main_scope
    regions = {region.key: region for region in found.main_scope.regions}
    whole: dict[str, float] = {}
    for fix in found.answer.stage_fixes:
        assert fix.rule in fix_words()
        assert 0 < fix.gain_share <= 1
        assert fix.gain_interval_ns is not None
        low, high = fix.gain_interval_ns
        assert 0 <= low <= fix.gain_ns * (1 + 1e-9)
        assert fix.gain_ns <= high * (1 + 1e-9)
        assert low < high
        whole[fix.stage] = whole.get(fix.stage, 0.0) + fix.gain_share
        timing, performance = regions[fix.stage].timing, regions[fix.stage].performance
        assert performance
        assert performance.speed_of_light
        steady = (timing.steady.instances if timing else 0) or regions[fix.stage].instances or 1
        assert fix.gain_ns == pytest.approx(fix.gain_share * performance.speed_of_light.now.of("ns") / steady)
    assert max(whole.values(), default=0.0) <= 1 + 1e-9


@pytest.mark.parametrize("case", [c for c in CASES if not c.shared], ids=lambda case: case.name)
def test_the_three_lines_are_of_one_stage(case: answers.Case) -> None:
    """What to do first is about the stage that was named, and the first fix is the one that is told."""
    answer = report(*case.paths()).answer
    assert answer.where
    assert answer.why
    assert answer.do_first
    own = [fix for fix in answer.fixes if fix.stage == answer.stage]
    assert answer.fixes[: len(own)] == own
    told = [fix for fix in answer.fixes if answer.do_first.startswith(fix.action.rstrip(".") + ": that can")]
    assert all(fix.action == own[0].action for fix in told)
    if answer.verdict == "unknown":
        assert answer.confidence == "low"
        assert "Cannot tell" in answer.why


def test_the_fields_are_those_of_the_contract() -> None:
    written = as_json(report("nsys-*-train.sqlite"))["answer"]
    assert set(written) == {"stage", "verdict", "confidence", "where", "why", "do_first", "fixes"}
    for fix in written["fixes"]:
        assert set(fix) == {
            "rule",
            "stage",
            "gain_ns",
            "gain_share",
            "action",
            "because",
            "lines",
            "tried",
            "gain_interval_ns",
            "also",
        }
        assert (fix["lines"], fix["tried"]) == ([], None)


def _fix(stage: str, gain: float, lines: dict[int, float] | None = None, *, rule: str = "attention.replan") -> Fix:
    at = [CodeLine("model.py", line, "forward", time) for line, time in (lines or {}).items()]
    return Fix(rule, stage, gain, gain / 100, "Do it", f"because of {stage}", lines=at)


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ([("prefill", {7: 9.0})], 1),
        ([("prefill", {7: 5.0, 8: 4.0}), ("vision", None)], 1),  # where the lines of one are not known
        ([("prefill", {7: 4.0, 8: 5.0})], 2),  # mostly elsewhere
        ([("prefill", {8: 9.0}), ("vision", {8: 9.0})], 2),
    ],
)
def test_one_cause_in_several_stages_is_one_fix(others: list[tuple[str, dict[int, float] | None]], kept: int) -> None:
    given = [_fix("decode", 50, {7: 40.0, 9: 1.0}), *(_fix(stage, 9, lines) for stage, lines in others)]
    made = Answer("decode", fixes=one_for_each_cause(given))
    assert len(made.fixes) == kept
    assert made.fixes[0].stage == "decode"
    assert sorted(made.stage_fixes, key=given.index) == given  # nothing is lost
    assert all(made.fixes_of(fix.stage) == [fix] for fix in given)
    of_another_rule = [*given, _fix("prefill", 8, {7: 9.0}, rule="copy.layout")]
    assert len(one_for_each_cause(of_another_rule)) == kept + 1


def test_every_output_names_the_stages_that_share_a_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report("nsys-*-decoder-8layers-warm.sqlite")
    shared = next(fix for fix in found.answer.fixes if fix.also)
    causes = [(fix.rule, fix.action) for fix in found.answer.fixes if not fix.lines]
    assert len(causes) == len(set(causes))
    (shown,) = [one for one in answer_of(found).fixes if one.fix is shared]
    assert shown.also == (
        f"Also in {shared.also[0].stage}: up to {duration(shared.also[0].gain_ns)} ({percent(shared.also[0].gain_share)})."
    )
    write_report(found, tmp_path, ["json", "md", "html"])
    for name in ("report.md", "report.html", "stakeholder_summary.md"):
        assert f"up to {duration(shared.also[0].gain_ns)}" in (tmp_path / name).read_text().partition("Also in ")[2]
    assert read_report(tmp_path).answer == found.answer
    capsys.readouterr()
    for stage in (shared.stage, shared.also[0].stage):  # each finds it
        assert main(["show", str(tmp_path), stage, "--json"]) == 0
        (of_stage,) = [fix for fix in json.loads(capsys.readouterr().out)["fixes"] if fix["rule"] == shared.rule]
        assert (of_stage["stage"], of_stage["also"]) == (stage, [])


def test_a_report_of_an_older_version_gets_an_answer(tmp_path: Path) -> None:
    found = report("nsys-*-train.sqlite")
    written = as_json(found)
    del written["answer"]
    (tmp_path / "report.json").write_text(json.dumps(written))
    assert read_report(tmp_path).answer == found.answer


def test_a_selection_answers_for_itself() -> None:
    found = Report(report("nsys-*-decoder-8layers-warm.sqlite"))
    chosen = found.select("LLM@prefill").answer
    assert (found.answer.stage, chosen.stage) == ("LLM@decode", "LLM@prefill")
    assert {fix.stage for fix in chosen.fixes} == {"LLM@prefill"}
    inside = found.select("LLM@prefill/layer0").answer
    assert inside.stage == "LLM@prefill/layer0"
    assert inside.fixes


@pytest.mark.parametrize(
    "name", ["lines-*-train.sqlite", "lines-*-waits.sqlite", "serving-*-continuous-batching.sqlite"]
)
def test_lines_of_waiting_add_up_to_no_more_than_the_waiting(name: str) -> None:
    """The same wait is no reason for two fixes: of a step that could be a graph, short gaps are of launches."""
    found = [fix for fix in report(name).answer.fixes if fix.rule.startswith("host.") and fix.lines]
    assert found
    for fix in found:
        assert sum(line.time_ns for line in fix.lines) <= fix.gain_ns * 1.001


def test_a_fill_is_no_kernel_to_look_at() -> None:
    assert not [fix for fix in report("lines-*-graph.sqlite").answer.fixes if "memset" in fix.because]


def test_a_kernel_for_this_gpu_is_not_to_be_replaced_by_a_newer_one() -> None:
    fixes = report("ncu-*-decoder-8layers-per-launch-config.ncu-rep").answer.fixes
    told = {fix.stage: fix for fix in fixes if fix.rule == "attention.kernel"}
    assert "sm90" in told["LLM@prefill"].because
    assert told["LLM@prefill"].action.startswith("Give each launch of attention more to do")
    assert "sm80" in told["LLM@decode"].because
    assert told["LLM@decode"].action.startswith("Use a newer attention kernel")


def test_of_a_chain_that_is_fused_one_kernel_is_left() -> None:
    """Counters say that such short kernels reach no roof at all; the timeline of the same says what a chain leaves."""
    recorded, counted = (
        report(name).answer for name in ("nsys-*-graph_node.sqlite", "ncu-*-graph-nodes-kernel-replay.ncu-rep")
    )
    by_name, by_counters = (
        next(fix for fix in found.fixes if (fix.rule, fix.stage) == ("fuse.elementwise", "LLM@replay_all"))
        for found in (recorded, counted)
    )
    assert by_counters.gain_interval_ns
    assert by_counters.gain_interval_ns[0] <= by_name.gain_ns <= by_counters.gain_interval_ns[1]


def test_what_only_finds_the_cause_is_not_said_to_save() -> None:
    answer = report("nsys-*-graph_whole.sqlite").answer
    assert "that can save up to" in answer.do_first
    chosen = Report(report("nsys-*-graph_whole.sqlite")).select("LLM@replay_all").answer
    assert chosen.do_first.startswith("Find out what that is")
    assert "this is about" in chosen.do_first


def test_a_single_kernel_is_never_to_be_fused() -> None:
    for name in ("ncu-*-basic-details-french.csv", "ncu-*-basic-details-german.csv", "ncu-*-live-details.csv"):
        answer = report(name).answer
        assert "fuse" not in str(answer).lower()
        assert [fix for fix in answer.fixes if fix.rule == "fuse.elementwise"] == []


# -- how answers are rated ----------------------------------------------------------------------------


def case(**others: object) -> answers.Case:
    wanted = {"stage": "step", "verdict": "launch", "first": ["launch.graph", "host.*"], "reason": ""}
    return answers.Case(**({"name": "one", "files": "one.sqlite"} | wanted | others))  # type: ignore[arg-type]


def said(rule: str, stage: str = "step", verdict: str = "launch") -> Answer:
    fixes = [Fix(rule, stage, 1.0, 0.1, "Do it", "Because")] if rule else []
    return Answer(stage="step", verdict=verdict, confidence="high", where="step", why="so", do_first="it", fixes=fixes)


def test_an_answer_is_right_unsure_or_wrong() -> None:
    assert answers.rate(case(), said("launch.graph")) == "right"
    assert answers.rate(case(), said("host.data")) == "right"
    assert answers.rate(case(), said("copy.host")) == "wrong"
    assert answers.rate(case(), said("launch.graph", verdict="host")) == "wrong"
    assert answers.rate(case(), said("launch.graph", stage="another")) == "wrong"
    assert answers.rate(case(), said("host.unknown")) == "unsure"
    assert answers.rate(case(), said("", verdict="unknown")) == "unsure"
    assert answers.rate(case(verdict="unknown", first="none"), said("", verdict="unknown")) == "right"
    assert answers.rate(case(confidence="low"), said("launch.graph")) == "wrong"
    assert answers.rate(case(why="TP-2"), said("launch.graph")) == "wrong"
    assert answers.rate(case(stage="!st*"), said("launch.graph")) == "wrong"
    assert answers.rate(case(stage="!other*"), said("launch.graph")) == "right"
