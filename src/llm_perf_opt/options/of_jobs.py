"""Options of jobs with one llm-perf for each rank: see `capture/rank_job.py`."""

from __future__ import annotations

from llm_perf_opt.options.option import Option

CHOSEN_RANKS: Option[str] = Option(
    flag="--ranks", default="all", metavar="WHICH", verbs=("measure", "profile"),
    help="For jobs with one llm-perf per rank: the ranks to profile: all, one-per-node, or numbers such as 0,7 or 0-3; the others run undisturbed.",
)  # fmt: skip
COUNTER_RANK: Option[str | None] = Option(
    flag="--counter-rank", metavar="N", verbs=("profile",),
    help="For jobs with one llm-perf per rank: the rank to run under ncu, without its collectives, while the others are recorded; all: every rank in lockstep, if ncu supports it (--communicator).",
)  # fmt: skip
