"""How every verb that leaves a page ends: what was found, where to look, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.inject.lever_rules import rules_with_levers
from llm_perf_opt.options.serving import SERVING
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.names import printable, visible
from llm_perf_opt.regions.ranking import is_host_only, stage_regions
from llm_perf_opt.report.answer import answer_of
from llm_perf_opt.report.text import full_label
from llm_perf_opt.rundir.command_lines import HIDDEN

_LOGS = ("measure/workload.log", "workload.log", "stage1.log")  # what the program printed
_LONGEST_COMMAND = 200  # characters; one that was cut could not be typed
_LONGEST_SHOWN = 2 * _LONGEST_COMMAND
_OF_THE_PROGRAM = "WORKLOAD_"  # how the codes begin that say the program itself failed
_UNEXPLAINED = "host.unknown"  # a fix that asks for another recording
_AS_BEFORE = "in place of llm-perf measure, under the same launcher"
_ELSEWHERE = "on a machine with an NVIDIA GPU"
_OF_RUNNERS = "--resolved"  # a built-in model is started with a file of its run, gone by now: nobody can type that


def print_closing(result: str, page: Path | None, following: str, *, leaves_page: bool = True) -> None:
    """The three sentences; `page` is None where none was written. A line each: paths and commands are copied.

    Verbs that never leave a page say what was found, and what to type next.
    """
    from llm_perf_opt.report.terminal import console

    shown = str(page) if page else "none was written" if leaves_page else ""
    lines = [("Result:", result), ("Page:", shown), ("Next:", following)]
    for label, text in lines:
        if text:
            console().print(f"{label} {printable(text)}", markup=False, soft_wrap=True)


def result_of(report: NCUProfileRegionReport) -> str:
    """The stage, what holds it back, and what the first fix could win."""
    found = report.answer
    if error := _failure(report):
        return f"{error.rstrip('.')}. {'Recorded until then: ' if found.where else ''}{found.where}".rstrip()
    if is_host_only(report) and (differ := next((d for d in report.diagnostics if d.code == "RANKS_DIFFER"), None)):
        return differ.message
    stage = next((region for region in stage_regions(report) if region.key == found.stage), None)
    if stage is None or stage.performance is None or found.verdict == "unknown":
        return found.where or next((note.message for note in report.diagnostics), "")
    title = stage.performance.verdict.title
    is_so = (
        f" {title}" if title.startswith("waits ") else f": {title}" if title.startswith("unsure") else f" is {title}"
    )
    text = f"{full_label(stage)}{is_so}"
    first = next((one for one in answer_of(report).fixes if one.fix.stage == found.stage), None)
    if first is None:
        return f"{text}; no known fix would save much."
    action = first.fix.action.rstrip(".")
    # Where a measurement would tell more than the fix would win, that is what to do first.
    return f"{text}. {action}: {first.gain}." if found.do_first.startswith(action) else f"{text}. {found.do_first}"


def next_of(report: NCUProfileRegionReport, out: Path) -> str:
    """The command that leads on from a report; empty where there is none."""
    place, stage = shlex.quote(str(out)), shlex.quote(report.answer.stage)
    if _failure(report):
        return after_failure(report.diagnostics, _run_facts(report).get("command"), out)
    if not report.answer.stage:
        return ""
    program, serving, marked = _program(report), _serving(report), _marked(report)
    if program and is_host_only(report):
        command = shlex.join(["llm-perf", "profile", *marked, *serving, "--"]) + f" {program}"
        if _each_had_its_own(report):
            return f"{_AS_BEFORE}: {command}"
        return f"{_ELSEWHERE}: {command}" if _had_no_gpu(report) else command
    if program and not serving and report.answer.fixes and not any(fix.tried for fix in report.answer.fixes):
        return shlex.join(["llm-perf", "try", *marked, "--"]) + f" {program}"
    if program:
        return f"change the program, run it again, then: llm-perf compare {place} NEW_RUN"
    return f"llm-perf show {place} {stage}" if (out / "report.json").is_file() else ""


@define(frozen=True)
class Following:
    """A command to type next, and what it does."""

    command: str
    why: str


def following_of(report: NCUProfileRegionReport) -> Following | None:
    """What leads on for somebody who has the page alone: a command that needs no file of the run."""
    answer = report.answer
    stage = next((region for region in stage_regions(report) if region.key == answer.stage), None)
    ranks = report.rank_steps is not None
    if _failure(report) or (not is_host_only(report) and (stage is None or ranks)):
        return None
    program, options = _program(report) or "CMD", [*_marked(report), *_serving(report)]
    asks = stage.performance.verdict.next_step if stage is not None and stage.performance is not None else ""
    verb, why = "profile", "once the program is changed; llm-perf compare then says whether it helped"
    if is_host_only(report):
        why = "shows what limits each stage, and what to fix first"
        why += f"; {_AS_BEFORE}" if _each_had_its_own(report) else ""
        why += f"; {_ELSEWHERE}" if _had_no_gpu(report) else ""
    elif stage is not None and _can_be_tried(report, stage):
        verb, why = "try", "tries the known fixes without changing the program, and compares the outputs"
    elif not answer.fixes or answer.fixes[0].rule == _UNEXPLAINED:
        why = "records the source lines and the counters"
    elif asks and not asks.startswith("llm-perf profile"):
        return Following(visible(asks, _LONGEST_SHOWN), "tells more.")
    said = " (CMD: the command that starts the program)" if program == "CMD" else ""
    command = " ".join(["llm-perf", verb, shlex.join([*options, "--"]), program])
    return Following(visible(command, _LONGEST_SHOWN), f"{why}{said}.")


def _each_had_its_own(report: NCUProfileRegionReport) -> bool:
    """Each rank an llm-perf: alone, the program would wait for the other ranks. Under ours, torchrun starts them all."""
    return report.rank_steps is not None and len(report.inputs) > 1


def _had_no_gpu(report: NCUProfileRegionReport) -> bool:
    """The machine that measured it: `profile` would only say so."""
    facts = _run_facts(report)
    return facts.get("gpus_before") == facts.get("gpus_after") == [] and not report.environment.get("gpus")


def _can_be_tried(report: NCUProfileRegionReport, stage: NCUProfileRegion) -> bool:
    """The first fix, by a lever, on a program that ends by itself; kernels recorded alone may be of any language."""
    fixes, served = report.answer.fixes, bool(_serving(report)) or bool(stage.timing and stage.timing.steps)
    if not fixes or served or stage.wall_ns is None or any(fix.tried for fix in fixes):
        return False
    return fixes[0].rule != _UNEXPLAINED and fixes[0].rule in rules_with_levers()


def print_failure(diagnostics: Sequence[Diagnosis], command: object, out: Path) -> None:
    """The three sentences of a run that left nothing to report."""
    reason = next((note.message for note in diagnostics if note.severity == "error"), "The run failed.")
    print_closing(reason, None, after_failure(diagnostics, command, out))


def after_failure(diagnostics: Sequence[Diagnosis], command: object, out: Path) -> str:
    """What the program printed, where it failed; else the run again, from where it failed. `command`: what was typed."""
    error = next((note for note in diagnostics if note.severity == "error"), None)
    first = error.code if error else ""
    if error and first == "NOTHING_TIMED":  # its output says nothing of that
        return error.fix
    if not first.startswith(_OF_THE_PROGRAM) and isinstance(command, list) and command[1:2] == ["profile"]:
        return f"llm-perf profile --resume {shlex.quote(str(out))}"
    log = next((out / name for name in _LOGS if (out / name).is_file()), None)
    return f"less {shlex.quote(str(log))}" if log else ""


def _failure(report: NCUProfileRegionReport) -> str:
    """Why the run failed; empty where it did not."""
    if _run_facts(report).get("state") != "failed":
        return ""
    return next((note.message for note in report.diagnostics if note.severity == "error"), "")


def _program(report: NCUProfileRegionReport) -> str:
    """The command that was run; one that is long, or of which something is hidden, is left for the reader to fill in."""
    facts = _run_facts(report)
    words = facts.get("workload") or facts.get("command")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return ""
    if _OF_RUNNERS in words:
        return ""
    text = shlex.join(words)
    return "CMD" if len(text) > _LONGEST_COMMAND or HIDDEN.search(text) else text


def _marked(report: NCUProfileRegionReport) -> list[str]:
    """The option that gave the program its ranges: without it the next run would have others."""
    settings = _run_facts(report).get("settings")
    mode = settings.get("annotate") if isinstance(settings, dict) else None
    return ["--annotate", mode] if mode in ("stages", "modules") else []


def _serving(report: NCUProfileRegionReport) -> list[str]:
    """The options without which a server would never end; none of a program that ends by itself."""
    settings = _run_facts(report).get("settings")
    words: list[str] = []
    for option in SERVING:
        value = settings.get(option.dest) if isinstance(settings, dict) else None
        if value not in (None, option.default):
            shown = option.metavar if HIDDEN.search(str(value)) else str(value)
            words += [option.flag] if option.kind == "switch" else [option.flag, shown]
    return words


def _run_facts(report: NCUProfileRegionReport) -> dict[str, Any]:
    facts = report.environment.get("run")
    return facts if isinstance(facts, dict) else {}
