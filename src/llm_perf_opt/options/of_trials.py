"""Options of trials: see `trying/`."""

from __future__ import annotations

from llm_perf_opt.options.option import Option

LEVER_NAMES: Option[str] = Option(
    flag="--levers", default="auto", metavar="NAMES", verbs=("try",),
    help="What to try, separated by commas: names of levers, and files of your own; auto: what the fixes of the answer ask for.",
)  # fmt: skip
TRIAL_RUNS: Option[int] = Option(
    flag="--runs", kind="count", default=3, metavar="N", verbs=("try",),
    help="How often each is timed, in turns with the program as it is.",
)  # fmt: skip
TRIAL_BUDGET: Option[float | None] = Option(
    flag="--budget", kind="duration", metavar="TIME", verbs=("try",),
    help="Begin no run that would end later, as in 10m (default: no limit).",
)  # fmt: skip
TRIAL_OUTPUT: Option[str | None] = Option(
    flag="--output", metavar="FILE", verbs=("try",),
    help="What the program computes: a text file it writes, or stdout (default: found by itself).",
)  # fmt: skip
TRIAL_BATCH: Option[str | None] = Option(
    flag="--batch-option", metavar="NAME", verbs=("try",),
    help="The option of the program that sets its batch size, as in --batch-option=--batch-size: twice and four times are tried.",
)  # fmt: skip
TRY: Option[bool] = Option(
    flag="--try", kind="switch", default=False, verbs=("profile",), help="Then try the fixes, as llm-perf try does."
)
