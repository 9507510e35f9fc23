"""The time is warm-up"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="warmup",
    title="The time is warm-up",
    costs="First uses load code, compile, and try out variants of kernels. A program that runs for long does not notice.",
    seen="Gaps while the host compiles or loads modules; in a recording without ranges, also what the host does before a hundredth of the kernels have run.",
    words=Words(
        because="the GPU waits {time} of {now} for what is done only once, at the start or at a first use ({what})",
        action="warm up before the part that counts, or cache compiled code (nothing to fix if the program runs for long)",
    ),
    find=idle_of("warmup"),
    before="began = time.perf_counter()\nmodel(x)  # loads kernels, compiles, allocates",
    after="model(x)\ntorch.cuda.synchronize()\nbegan = time.perf_counter()\nmodel(x)",
    unless="The program runs only once and briefly, so that its start is what it takes: then cache compiled code (TORCHINDUCTOR_CACHE_DIR), or load less.",
)
