"""Many small launches without a CUDA graph"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.metrics.quantity import nanoseconds

_IN_A_GRAPH = 1_000  # ns between two kernels of a CUDA graph
_LEAST = 0.8  # of what is won, where all instances are alike


def _find(of: Evaluated) -> Iterator[Found]:
    """A graph leaves short gaps between its kernels."""
    left = nanoseconds(_IN_A_GRAPH * of.split.launches)
    for found in idle_of("launch.graph")(of):
        part = _without_profiler(of, found.recoverable.of("ns"))
        if (won := found.recoverable * part - left).value > 0 and found.interval is not None:
            low, high = found.interval
            least = min(max(low * part - left, nanoseconds(0)), won * _LEAST)
            yield evolve(found, recoverable=won, interval=(least, high))


def _without_profiler(of: Evaluated, waiting: float) -> float:
    """What becomes of the waiting where PyTorch's profiler does not write down every operator with its shapes.

    Shorter waiting is a part of a shorter time: a step that waits for launches alone keeps about the same share.
    Behind a GPU that is busy most of what it adds is hidden.
    """
    launched, now = of.launched, of.light.now.of("ns")
    written = sum(launched.annotations.values()) if any(kind.tensors for kind in launched.kinds) else 0
    if not written or not waiting or of.split.profiled_wall is not None or of.verdict.bound not in ("launch", "host"):
        return 1.0
    thresholds = verdict_rules().thresholds
    added, least = written * thresholds["torch_us_per_operator"], of.split.launches * thresholds["host_us_per_launch"]
    alone = min(max(now - added * 1e3, now - waiting, least * 1e3), now)
    return (1 - (now - waiting) / alone) * now / waiting


RULE = Rule(
    id="launch.graph",
    title="Many small launches without a CUDA graph",
    costs="Each launch takes the host some microseconds. Kernels that are shorter than that leave the GPU waiting for the next one.",
    seen="Gaps of the length of a launch between kernels that do not come from CUDA graphs, in ten launches or more.",
    words=Words(
        because="the GPU waits {time} of {now} for launches ({launches}, {each} each)",
        action='capture the step in a CUDA graph (torch.compile with mode="reduce-overhead", or torch.cuda.graph)',
        elsewhere="capture the step in a CUDA graph (cudaStreamBeginCapture, cudaGraphLaunch, or the program's own option for it)",
    ),
    find=_find,
    gain="The idle time between launches, minus a microsecond for each kernel, which remains inside a graph. In a PyTorch trace with shapes, if the GPU waits for the host, also minus what the profiler adds to every operator.",
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
