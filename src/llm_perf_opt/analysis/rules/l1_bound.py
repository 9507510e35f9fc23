"""Kernels at the limit of L1 and shared memory"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.counter_limits import limits_found
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="l1.bound",
    title="Kernels at the limit of L1 and shared memory",
    costs="Loads that are not coalesced, or bank conflicts, make L1 the limit long before memory.",
    seen="L1 or shared memory is near its peak, and nearer than any other unit. Needs counters.",
    words=Words(
        because="kernels near the peak of L1 and shared memory{l1_words}, {time} of {now}, up to {recoverable} of it avoidable{ncu_says}",
        action="reduce L1 traffic: wider (vector) loads, shared-memory layouts without bank conflicts, values kept in registers",
    ),
    find=limits_found("l1.bound"),
    gain="What it would save to load only the bytes that are used, down to the next roof; if these were not counted, what it would save to make half the requests. That is the best case, so the interval begins at half of it.",
    before="x = source[row * columns + thread];  // each thread a row: 32 lines of memory for one warp",
    after="x = source[column * rows + thread];  // neighbouring threads read neighbouring values",
    unless="The kernel has to read at random, as a gather of single values does.",
    variants={
        "coalesce": Words(
            because="kernels near the peak of L1 and shared memory{l1_words}, {time} of {now}, up to {recoverable} of it avoidable{ncu_says}",
            action="coalesce the global loads, which use only {sector_use_share} of the bytes they fetch: let neighbouring threads read neighbouring addresses, in vectors of 16 bytes",
        )
    },
)
