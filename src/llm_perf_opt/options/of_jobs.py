"""Options of jobs with one llm-perf for each rank: see `capture/rank_job.py`."""

from __future__ import annotations

from llm_perf_opt.options.option import Option

CHOSEN_RANKS: Option[str] = Option(
    flag="--ranks", default="all", metavar="WHICH", verbs=("measure", "profile"),
    help="Of a job with one llm-perf for each rank: which are profiled: all, one-per-node, or numbers, as in 0,7 or 0-3; the others run undisturbed.",
)  # fmt: skip
