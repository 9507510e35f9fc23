"""A trial in words: three sentences, and one line a lever."""

from __future__ import annotations

import re

from llm_perf_opt.comparing.comparison import SAME, UNSURE, WORSE
from llm_perf_opt.report.text import counted, duration
from llm_perf_opt.report.tried_words import VERDICT_WORDS, factor
from llm_perf_opt.trying.attempts import Attempt, Trial
from llm_perf_opt.trying.output_comparison import DIFFERENT, NOT_COMPARED
from llm_perf_opt.trying.output_comparison import SAME as SAME_OUTPUTS

_RUNS_ASKED = re.compile(r"--runs (\d+)")  # in the reason of a verdict
_SAYS_NOTHING = 20.0  # an interval that is wider


def three_sentences(trial: Trial) -> list[str]:
    """What helps and by how much, what the outputs say, and what to write."""
    best = trial.best
    if best is None:
        return _nothing_helps(trial)
    stage = best.stage
    took = f"{stage.label} {duration(stage.before_ns)} → {duration(stage.after_ns)}, " if stage else ""
    first = f"{best.title}: {took}{factor(best.gain)} as fast{_between(best)}{_predicted(best)}.{_warmup(best)}"
    return [first, f"Outputs: {outputs_in_words(best)}.", f"Write: {patch_in_words(best)}"]


def _nothing_helps(trial: Trial) -> list[str]:
    if not trial.attempts:
        return ["No lever fits this program.", "Nothing was compared.", "See what there is: llm-perf try --list"]
    timed = [a for a in trial.attempts if a.runs]
    if not timed:
        first = "No lever could be timed"
        last = "See why in the page, or name other levers: llm-perf try --list"
    elif any(a.verdict == UNSURE for a in timed):  # not known is not "no"
        first = "Cannot tell whether anything that was tried makes it faster"
        asked = [int(found[1]) for a in timed if a.verdict == UNSURE and (found := _RUNS_ASKED.search(a.reason))]
        more = min(asked, default=max(5, 2 * max(a.runs for a in timed)))
        last = f"llm-perf try --runs {more} -- CMD, with nothing else running on this machine"
    else:
        first = "Nothing that was tried makes it faster"
        last = "Leave the program as it is, or name other levers: llm-perf try --list"
    first = f"{first} ({len(timed):,} of {counted(len(trial.attempts), 'lever')} timed)."
    told = "; ".join(f"{a.title}: {VERDICT_WORDS[a.verdict]}{_why(a)}" for a in trial.attempts[:4])
    return [first, f"{told}.", last]


def _why(attempt: Attempt) -> str:
    if attempt.verdict in (WORSE, SAME):
        return f" ({factor(attempt.gain)})"
    return f" ({attempt.reason})" if attempt.reason else ""


def _between(attempt: Attempt) -> str:
    found = attempt.interval
    return "" if found is None or found[1] > _SAYS_NOTHING * found[0] else f" ({found[0]:.3g} to {found[1]:.3g})"


def _predicted(attempt: Attempt) -> str:
    return "" if attempt.predicted_gain is None else f", predicted {factor(attempt.predicted_gain)}"


def _warmup(attempt: Attempt) -> str:
    if attempt.warmup_s is None or attempt.warmup_s < 0.1 or attempt.pays_off_after is None:
        return ""
    return f" Its warm-up takes {attempt.warmup_s:.3g} s more, which pays off after {attempt.pays_off_after:,} calls."


def outputs_in_words(attempt: Attempt) -> str:
    found = attempt.outputs
    if found.state == NOT_COMPARED:
        return f"not compared, {found.detail}" if found.detail else "not compared"
    if found.state == SAME_OUTPUTS:
        return f"the same ({found.detail})"
    return f"{'different' if found.state == DIFFERENT else 'within noise'} ({found.detail})"


def patch_in_words(attempt: Attempt) -> str:
    text = " and ".join(lever.patch.splitlines()[0] for lever in attempt.levers if lever.patch) or "(see its file)"
    return f"{text} at {attempt.place}" if attempt.place else text


def lever_line(attempt: Attempt) -> str:
    """For the terminal."""
    text = f"{attempt.title}: {VERDICT_WORDS[attempt.verdict]}"
    if attempt.gain is not None:
        text += f", {factor(attempt.gain)}{_between(attempt)}{_predicted(attempt)}, outputs {attempt.outputs.state}"
    return f"{text} ({attempt.reason})" if attempt.reason else text
