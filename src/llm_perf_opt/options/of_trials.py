"""Options of trials: see `trying/`."""

from __future__ import annotations

from llm_perf_opt.options.option import Option

LEVER_NAMES: Option[str] = Option(
    flag="--levers", default="auto", metavar="NAMES", verbs=("try",),
    help="What to try, separated by commas: names of levers, or files of your own; auto: the levers for the fixes of the answer.",
)  # fmt: skip
TRIAL_RUNS: Option[int] = Option(
    flag="--runs", kind="count", default=3, metavar="N", verbs=("try",),
    help="How many times to time each lever, alternating with the unchanged program.",
)  # fmt: skip
TRIAL_BUDGET: Option[float | None] = Option(
    flag="--budget", kind="duration", metavar="TIME", verbs=("try",),
    help="Start no run that would end after this time, such as 10m (default: no limit).",
)  # fmt: skip
TRIAL_OUTPUT: Option[str | None] = Option(
    flag="--output", metavar="FILE", verbs=("try",),
    help="Where the results of the program are: a text file it writes, or stdout (default: detected).",
)  # fmt: skip
TRIAL_BATCH: Option[str | None] = Option(
    flag="--batch-option", metavar="NAME", verbs=("try",),
    help="The program's option for its batch size, as in --batch-option=--batch-size; twice and four times the value are tried.",
)  # fmt: skip
TRY: Option[bool] = Option(
    flag="--try", kind="switch", default=False, verbs=("profile",), help="Then try the fixes, like llm-perf try."
)
