"""What a trial leaves: `try.json` and `try.html` in the run directory, three sentences on the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_perf_opt.regions.names import printable, visible
from llm_perf_opt.report.files import write_text
from llm_perf_opt.report.identity import script_name
from llm_perf_opt.report.plain_page import plain_page
from llm_perf_opt.report.tried_words import VERDICT_WORDS, factor
from llm_perf_opt.trying.attempts import Attempt, Trial
from llm_perf_opt.trying.words import lever_line, outputs_in_words, three_sentences

_TONES = {"better": "work", "worse": "wait", "refused": "wait", "failed": "wait"}


def write_trial(trial: Trial, folder: Path) -> list[Path]:
    return [
        write_text(folder / "try.json", json.dumps(trial.as_json(), indent=1, allow_nan=False) + "\n"),
        write_text(folder / "try.html", render_trial(trial)),
    ]


def render_trial(trial: Trial) -> str:
    """The page: one file, no script, every name escaped."""
    attempts = [*trial.attempts, *([trial.together] if trial.together else [])]
    longest = max((max(s.before_ns or 0, s.after_ns or 0) for a in attempts if (s := a.stage)), default=1) or 1
    page = plain_page("llm_perf_opt.trying", "try.html").render(
        title=visible(script_name(trial.command), 80),
        sentences=three_sentences(trial),
        rows=[_row(attempt, longest) for attempt in attempts],
        patches=[_row(attempt, longest) for attempt in attempts if attempt.won],
        notes=trial.notes,
    )
    return page.lstrip()


def show_trial(trial: Trial, folder: Path, *, quiet: bool = False) -> None:
    from llm_perf_opt.report.closing import print_closing
    from llm_perf_opt.report.terminal import console

    result, outputs, following = three_sentences(trial)
    lines = [result, outputs, following]
    if not quiet:
        attempts = [*trial.attempts, *([trial.together] if trial.together else [])]
        lines = [*(lever_line(attempt) for attempt in attempts), *trial.notes]
    for line in lines:
        console().print(printable(line), markup=False, soft_wrap=True)
    if not quiet:
        print_closing(f"{result} {outputs}", folder / "try.html", following)


def _row(attempt: Attempt, longest: float) -> dict[str, Any]:
    stage = attempt.stage
    before, after = (stage.before_ns or 0, stage.after_ns or 0) if stage else (0, 0)
    return {
        "attempt": attempt,
        "word": VERDICT_WORDS[attempt.verdict],
        "tone": _TONES.get(attempt.verdict, ""),
        "stage": stage,
        "bars": [100 * before / longest, 100 * after / longest],
        "gain": factor(attempt.gain),
        "predicted": factor(attempt.predicted_gain),
        "interval": " to ".join(f"{edge:.3g}" for edge in attempt.interval) if attempt.interval else "–",
        "outputs": outputs_in_words(attempt),
        "warmup": f"{attempt.warmup_s:.3g} s" if attempt.warmup_s else "–",
        "patches": [lever.patch for lever in attempt.levers if lever.patch],
    }
