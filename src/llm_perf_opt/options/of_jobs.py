"""Options of jobs with one llm-perf for each rank: see `capture/rank_job.py`."""

from __future__ import annotations

from llm_perf_opt.options.option import Option

CHOSEN_RANKS: Option[str] = Option(
    flag="--ranks", default="all", metavar="WHICH", verbs=("measure", "profile"),
    help="Of a job with one llm-perf for each rank: which are profiled: all, one-per-node, or numbers, as in 0,7 or 0-3; the others run undisturbed.",
)  # fmt: skip
COUNTER_RANK: Option[str | None] = Option(
    flag="--counter-rank", metavar="N", verbs=("profile",),
    help="Of a job with one llm-perf for each rank: the rank that runs under ncu, without its collectives, while the others are recorded; all: every rank, in step, where ncu can (--communicator).",
)  # fmt: skip
