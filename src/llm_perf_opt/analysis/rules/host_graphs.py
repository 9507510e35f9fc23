"""CUDA graphs, and a host that is slow between them"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.graphs",
    title="The host is slow between CUDA graphs",
    costs="A graph is launched in microseconds; whatever the host does before the next one keeps the GPU waiting.",
    seen="Most kernels come from CUDA graphs, and the GPU is idle between them while the host computes.",
    words=Words(
        because="the GPU waits {time} of {now} for the host ({what})",
        action="shorten what the host does between the launches of the CUDA graphs, or do it while the next graph runs (handle the tokens of one step during the next)",
    ),
    find=idle_of("host.graphs"),
    before="""\
graph.replay()
handle(tokens.tolist())
""",
    after="""\
graph.replay()
handle(tokens_of_the_last_step)
""",
    unless="The next step depends on what the host computes from this one.",
)
