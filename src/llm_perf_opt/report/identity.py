"""What the first lines of the page say: which program this is, how fast it is, and what makes the numbers doubtful."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from attrs import define

from llm_perf_opt.analysis.verdicts.times import is_token_step
from llm_perf_opt.regions.labels import token_unit
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.stages import each_ns, rate, stage_time
from llm_perf_opt.report.text import counted, duration
from llm_perf_opt.report.view import View

_ENDINGS = (".gz", ".xz", ".sqlite", ".nsys-rep", ".ncu-rep", ".json", ".csv")
_STATES = {"failed": "The run failed", "interrupted": "The run was interrupted", "running": "The run did not finish"}
_MOST_ERRORS = 3


@define(frozen=True)
class Notice:
    """Something to know before reading any number."""

    severity: str  # "error" | "warning"
    text: str
    fix: str = ""


def program_name(report: NCUProfileRegionReport) -> str:
    """The script or module that was run; of recordings without a run, the name of the first."""
    words = _run(report).get("workload")
    if isinstance(words, list) and (name := script_name([str(word) for word in words])):
        return visible(name, 60)
    name = str(report.inputs[0].get("path", "")) if report.inputs else ""
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return visible(name.rsplit("/", 1)[-1], 60) if name else "Region report"


def tab_title(view: View) -> str:
    """`generate.py: 15.7 ms per token`, so that tabs of several runs can be told apart."""
    speed = _speed(view)
    return f"{program_name(view.report)}: {speed[0]}" if speed else program_name(view.report)


def identity(view: View) -> list[str]:
    """Model, batch and speed, as far as they are known."""
    settings = _run(view.report).get("settings")
    model = settings.get("model") if isinstance(settings, dict) else None
    name = model.get("name") if isinstance(model, dict) else model
    return [*([f"model {visible(name, 60)}"] if isinstance(name, str) and name else []), *_batch(view), *_speed(view)]


def notices(view: View) -> list[Notice]:
    """A run that did not come to its end, errors, ranks that hold up the others, low confidence; warnings are counted."""
    report, found = view.report, list[Notice]()
    if state := _STATES.get(str(_run(report).get("state", ""))):
        found.append(Notice("error", f"{state}. The numbers cover what was recorded until then."))
    errors = [d for d in report.diagnostics if d.severity == "error"]
    found += [
        Notice("error", visible(d.message, 600), visible(d.fix, 600) if d.fix else "") for d in errors[:_MOST_ERRORS]
    ]
    found += [Notice("warning", visible(d.message, 600)) for d in report.diagnostics if d.code == "RANKS_DIFFER"]
    if reason := _doubt(view):
        found.append(Notice("warning", f"Low confidence: {reason}."))
    warnings = [d for d in report.diagnostics if d.severity == "warning"]
    more = len(warnings) + len(errors[_MOST_ERRORS:])
    if more == 1 and warnings:
        found.append(Notice("warning", visible(warnings[0].message, 600)))
    elif more:
        found.append(Notice("warning", f"{counted(more, 'more note' if found else 'note')} about this recording:"))
    return found


def dated(report: NCUProfileRegionReport) -> str:
    """When the run or the first recording was made; where neither says so, when the report was."""
    recordings = report.environment.get("recordings") or []
    told = [one.get("recorded_at") for one in recordings if isinstance(one, dict)]
    if at := next(filter(None, [_run(report).get("started_at"), *told]), None):
        return f"recorded {date_words(str(at))}"
    return f"report made {date_words(report.generated_at)}"


def date_words(stamp: str) -> str:
    """`16 November 2026, 23:25 UTC`; what is no date stays as it is."""
    try:
        at = datetime.fromisoformat(stamp).astimezone(UTC)
    except ValueError:
        return visible(stamp, 60)
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


def _doubt(view: View) -> str:
    """Why the answer is not certain; nothing where there is a verdict that is, or none at all."""
    stage = next((r for r in view.stages if r.key == view.report.answer.stage), None)
    if stage is None or stage.performance is None or view.host_only:
        return ""
    verdict = stage.performance.verdict
    return verdict.confidence_reasons[-1] if verdict.confidence == "low" and verdict.confidence_reasons else ""


def _run(report: NCUProfileRegionReport) -> dict[str, Any]:
    run = report.environment.get("run")
    return run if isinstance(run, dict) else {}


def script_name(words: list[str]) -> str:
    """`generate.py` of `python -u src/generate.py --n 3`, the module of `python -m`, or else the first word."""
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words):
            return words[at + 1].rsplit(".", 1)[-1]
        if word.endswith(".py"):
            return word.rsplit("/", 1)[-1]
    return words[0].rsplit("/", 1)[-1] if words else ""


def _decoding(view: View) -> NCUProfileRegion | None:
    """The stage that makes tokens one after another; that of the answer first."""
    made = [r for r in view.stages if r.performance and r.performance.tokens and r.performance.tokens.now.value]
    steps = {r.key for r in view.regions if is_token_step(r)}
    holds = [r for r in made if r.key in steps or any(key.startswith(f"{r.key}/") for key in steps)]
    return min(holds, key=lambda r: (r.key != view.report.answer.stage, -(stage_time(r) or 0)), default=None)


def _batch(view: View) -> list[str]:
    """Sequences of a step, where a server's engine says how many."""
    region = _decoding(view)
    steps = region.timing.steps if region and region.timing else None
    if steps is None or steps.grouped_by != "batch" or not steps.groups:
        return []
    low, high = min(g.smallest for g in steps.groups), max(g.largest for g in steps.groups)
    return [f"batch {low:,}" + (f" to {high:,}" if high != low else "")]


def _speed(view: View) -> list[str]:
    """Time of a token, as one sequence waits for it, and tokens per second of all; of other programs, of a step."""
    region = _decoding(view)
    tokens = region.performance.tokens if region and region.performance else None
    if region is not None and tokens is not None:
        several = region.timing.steady.median_ns if region.timing and region.timing.steps else None
        each = several or 1e9 / tokens.now.of("token/s")
        return [f"{duration(each)} per token", f"{rate(tokens.now.of('token/s'))} {token_unit(tokens)}"]
    # Where only ranges were timed, it is the outermost of them, which holds the stages.
    stage = next((r for r in (*view.stages, *view.regions) if r.key == view.report.answer.stage), None)
    if stage is None or stage.is_whole_recording or (median := each_ns(stage)) is None:
        return []
    return [f"{duration(median)} per {stage.name.strip('# ')}"]
