"""Many small launches without a CUDA graph"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.rules.waiting import idle_of

RULE = Rule(
    id="launch.graph",
    title="Many small launches without a CUDA graph",
    costs=(
        "The host takes some microseconds for each launch. Kernels that are shorter leave the GPU waiting for "
        "the next one."
    ),
    seen="Gaps of the length of a launch between kernels that do not come from CUDA graphs, ten launches or more.",
    words=Words(
        because="the GPU waits {time} of {now} for launches ({launches}, {each} each)",
        action='capture the step in a CUDA graph (torch.compile with mode="reduce-overhead", or torch.cuda.graph)',
    ),
    find=idle_of("launch.graph"),
    before="""\
for layer in layers:
    x = layer(x)  # 200 launches of 3 µs
""",
    after="""\
with torch.cuda.graph(graph):
    y = model(static_x)
…
graph.replay()
""",
    unless="Shapes or control flow change with every step, and cannot be padded to a few cases.",
)
