"""The time is warm-up"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.rules.waiting import idle_of

RULE = Rule(
    id="warmup",
    title="The time is warm-up",
    costs=(
        "First uses load code, compile, and measure variants of kernels. A program that runs for long does not notice."
    ),
    seen="Gaps of the GPU while the host compiles, or loads modules.",
    words=Words(
        because="the GPU waits {time} of {now} for what only the first use needs ({what})",
        action="nothing to mend where the program runs for long; else warm up before the part that counts, or keep compiled code in a cache",
    ),
    find=idle_of("warmup"),
)
