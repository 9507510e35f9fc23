"""Which replay mode to try next, and what a mode cannot measure.

Range replay depends on every CUDA call inside the range, so it often fails on real models. A run that was
asked for it shall still end in data: application-range replay gives the same numbers at the price of more
launches of the program, kernel replay gives them kernel by kernel. What is lost on the way is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.nsight.messages import GROUPS, STATES
from llm_perf_opt.nsight.outcome import Outcome, of_rule

NEXT_MODE = {"range": "app-range", "app-range": "kernel", "application": "kernel"}
RANGE_MODES = frozenset({"range", "app-range"})

# Counts of single instructions need instrumented kernels, one by one; ncu refuses them for a whole range.
_PER_INSTRUCTION = re.compile(r"__sass_|^regex:.*sass")


@define(frozen=True)
class MetricSplit:
    """The metrics a mode takes and the ones it cannot, both in the order asked for."""

    taken: list[str]
    left_out: list[str]


def next_mode(mode: str, outcome: Outcome, *, enabled: bool = True) -> str | None:
    """The mode to try after `mode` gave this outcome, or None where no other mode would help."""
    stopped = outcome.exit_code in (ExitCode.TIMED_OUT, ExitCode.INTERRUPTED)
    if not enabled or stopped or outcome.status != "nothing":
        return None
    # the first diagnosis is the cause; later ones may be remarks
    causes = [d.code for d in outcome.diagnoses if d.severity == "error"]
    if causes and causes[0] == "SASS_IN_RANGE":
        return "kernel"  # both range modes refuse the same metrics
    return NEXT_MODE.get(mode) if causes and causes[0] in GROUPS["mode_trouble"] else None


def split_metrics(mode: str, metrics: Iterable[str]) -> MetricSplit:
    """Parts the metrics for `mode`; each name once, comma lists taken apart."""
    names = list(dict.fromkeys(part.strip() for entry in metrics for part in entry.split(",") if part.strip()))
    refused = [name for name in names if mode in RANGE_MODES and _PER_INSTRUCTION.search(name)]
    return MetricSplit([name for name in names if name not in refused], refused)


def left_out(mode: str, names: Iterable[str]) -> Diagnosis | None:
    """Names the metrics that were left out for the sake of the mode."""
    named = list(names)
    return of_rule(STATES["METRICS_LEFT_OUT"], mode=mode, names=", ".join(named)) if named else None


def fell_back(mode: str, used: str, outcome: Outcome) -> Diagnosis:
    """Says which mode gave the numbers and why not the one asked for."""
    diagnosis = of_rule(STATES["REPLAY_FELL_BACK"], mode=mode, names=used)
    causes = [d for d in outcome.diagnoses if d.severity == "error"]
    if causes:
        diagnosis.message = f"{diagnosis.message} {causes[0].message}"
    return diagnosis
