"""Sizes of a batch that no CUDA graph was captured for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.labels import counted
from llm_perf_opt.regions.timing import StepGroup

_LEAST = 0.02  # of the stage
_IDLE = ("launch.graph", "host.graphs", "host.python", "host.unknown", "host.sync")  # what a graph does away with


def _find(of: Evaluated) -> Iterator[Found]:
    groups: Sequence[StepGroup] = of.steps.groups if of.steps is not None else ()
    replayed = [group for group in groups if group.in_graph]
    without = [group for group in groups if group.in_graph is False]
    whole = sum(group.total_ns for group in groups)
    if not replayed or not without or not whole:
        return
    extra = sum(max(group.median_ns - _in_graph(group, replayed), 0.0) * group.instances for group in without)
    now = of.light.now.of("ns")
    if extra / whole < _LEAST:
        return
    taken = of.free.take_idle(_IDLE, extra / whole * now)
    won = sum(part.time_ns for part in taken)
    if won < _LEAST * now:
        return
    interval = [nanoseconds(sum(part.interval[end] for part in taken)) for end in (0, 1)]
    count, time = sum(group.instances for group in without), sum(group.total_ns for group in without)
    words = {
        "steps": counted(count, "step"),
        "sizes": ", ".join(_size(group) for group in without),
        "graphs": ", ".join(_size(group) for group in replayed),
        "median": shown(nanoseconds(max(group.median_ns for group in without))),
        "grouped_by": of.steps.grouped_by if of.steps is not None else "",
    }
    takes = nanoseconds(time / whole * now)
    yield Found(
        "serve.graph", "waiting", takes, nanoseconds(won), words=words, interval=(interval[0], interval[1]), idle=taken
    )


def _in_graph(group: StepGroup, replayed: Sequence[StepGroup]) -> float:
    """What such a step would take, padded to the next size that has a graph."""
    larger = [other for other in replayed if other.largest >= group.largest]
    near = min(larger or replayed, key=lambda other: abs(other.largest - group.largest))
    return near.median_ns * max(group.tokens_per_step / near.tokens_per_step, 1.0)


def _size(group: StepGroup) -> str:
    return f"{group.smallest:,}" + (f" to {group.largest:,}" if group.largest != group.smallest else "")


RULE = Rule(
    id="serve.graph",
    title="Some batch sizes have no CUDA graph",
    costs="An engine replays CUDA graphs for the sizes it captured. Steps of other sizes are launched kernel by kernel, and the GPU waits.",
    seen="Some batch sizes of a server replay CUDA graphs; others do not, and take longer than the next size that does.",
    words=Words(
        because="{steps} with {grouped_by} {sizes} replay no CUDA graph and take {time} of {now} (median up to {median}); those with {graphs} do",
        action="let the engine capture these sizes, too (vLLM: cudagraph_capture_sizes of --compilation-config, SGLang: --cuda-graph-max-bs), or keep batches within those it has",
    ),
    find=_find,
    gain="What those steps take beyond steps of the next size with a graph, but no more than the GPU is idle.",
    before="python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs 8",
    after="python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs 32",
    unless="Memory does not allow more graphs, or such batches are rare.",
)
