"""Several timelines as one: the ranks of a job, each recorded into a file of its own.

Attribution and busy time never cross processes, so clocks of different hosts need not agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from attrs import evolve, fields
from numpy.typing import NDArray

from llm_perf_opt.regions.collective_messages import Messages
from llm_perf_opt.regions.columns import (
    UNKNOWN,
    CodeSpans,
    GraphNodes,
    HostEvents,
    Int32s,
    LaunchConfig,
    OnlyOnce,
    OperatorCalls,
    Ranges,
    Timeline,
    Work,
)
from llm_perf_opt.regions.traffic import SampledGpu
from llm_perf_opt.regions.used_gpus import UsedGpus

_WORK_COLUMNS = ("start", "end", "process", "device", "name", "host_time", "thread", "graph_node")  # that all have
_Shift = Callable[[NDArray[Any]], NDArray[Any]]
Columns = TypeVar("Columns", Ranges, GraphNodes, HostEvents, CodeSpans, OperatorCalls, OnlyOnce, LaunchConfig, Messages)


def merge_timelines(timelines: list[Timeline]) -> Timeline:
    """One timeline with the processes of all; a single one is returned as it is."""
    if len(timelines) == 1:
        return timelines[0]
    strings: dict[str, int] = {}
    domains: list[str] = [""]
    shifted = [_moved(timeline, strings, domains, timelines[:i]) for i, timeline in enumerate(timelines)]
    first = timelines[0]
    return Timeline(
        source=" + ".join(t.source for t in timelines),
        kind=first.kind,
        strings=list(strings),
        domains=domains,
        processes=[process for t in timelines for process in t.processes],
        threads=[thread for t in shifted for thread in t.threads],
        kernels=_joined_work([t.kernels for t in shifted]),
        copies=_joined_work([t.copies for t in shifted]),
        graphs=_joined_work([t.graphs for t in shifted]),
        ranges=_joined([t.ranges for t in shifted]),
        graph_nodes=_joined([t.graph_nodes for t in shifted]),
        host=_joined([t.host for t in shifted]),
        code=_joined([t.code for t in shifted]),
        compiled=_joined([t.compiled for t in shifted]),
        lines_are_functions=any(t.lines_are_functions for t in timelines),
        calls=_joined([t.calls for t in shifted]),
        only_once=_joined([t.only_once for t in shifted]),
        messages=_joined([t.messages for t in shifted]),
        traffic_of_parts=_traffic(timelines),
        devices={device: name for t in timelines for device, name in t.devices.items()},
        environment=first.environment,
        diagnostics=[diagnosis for t in timelines for diagnosis in t.diagnostics],
        operators=sorted({name for t in timelines for name in t.operators}),
        engine_threads=[thread for t in shifted for thread in t.engine_threads],
        pools={name: pool for t in timelines for name, pool in t.pools.items()},
    )


def _traffic(timelines: list[Timeline]) -> list[SampledGpu]:
    """Each GPU with the processes of its own recording; none that ranks share."""
    found, before = [], 0
    used = [UsedGpus.of(timeline) for timeline in timelines]
    for timeline, own in zip(timelines, used, strict=True):
        for gpu in timeline.sampled_gpus if not own.shares_with(used) else ():
            first, end = before + gpu.first_process, before + gpu.end_process
            found.append(evolve(gpu, first_process=first, end_process=end))
        before += len(timeline.processes)
    return found


def _joined(parts: list[Columns]) -> Columns:
    columns = {column.name: [getattr(part, column.name) for part in parts] for column in fields(type(parts[0]))}
    known = {name: np.concatenate(found) for name, found in columns.items() if all(x is not None for x in found)}
    return type(parts[0])(**known)


def _joined_work(works: list[Work]) -> Work:
    columns = {name: np.concatenate([getattr(work, name) for work in works]) for name in _WORK_COLUMNS}
    sizes = [work.bytes if work.bytes is not None else np.zeros(len(work), dtype=np.int64) for work in works]
    configs = [work.config for work in works if len(work)]
    known = [config for config in configs if config is not None]
    streams = [work.stream for work in works if work.stream is not None]
    pageable = [work.pageable for work in works if work.pageable is not None]
    return Work(
        **columns,
        bytes=np.concatenate(sizes) if any(work.bytes is not None for work in works) else None,
        config=_joined(known) if known and len(known) == len(configs) else None,
        stream=np.concatenate(streams) if len(streams) == len(works) else None,
        pageable=np.concatenate(pageable) if len(pageable) == len(works) else None,
    )


def _moved(timeline: Timeline, strings: dict[str, int], domains: list[str], before: list[Timeline]) -> Timeline:
    """The same timeline with its indices shifted behind those of the timelines before it; equal names are one."""
    processes = sum(len(t.processes) for t in before)
    threads = sum(len(t.threads) for t in before)
    nodes = sum(len(t.graph_nodes.host_time) for t in before)
    numbers = [strings.setdefault(text, len(strings)) for text in timeline.strings]
    new = np.array([*numbers, UNKNOWN], dtype=np.int32)  # UNKNOWN is the last
    for domain in timeline.domains:
        if domain not in domains:
            domains.append(domain)
    domain_numbers = np.array([domains.index(d) for d in timeline.domains], dtype=np.int32)

    def names(values: Int32s) -> Int32s:
        return new[values].astype(values.dtype)

    def work(old: Work) -> Work:
        config = old.config
        if config is not None:
            config = evolve(config, mangled=names(config.mangled), short=names(config.short))
        return evolve(
            old,
            process=_offset(processes)(old.process),
            name=names(old.name),
            thread=_offset(threads)(old.thread),
            graph_node=_offset(nodes)(old.graph_node),
            config=config,
        )

    def spans(old: CodeSpans) -> CodeSpans:
        process, thread = _offset(processes)(old.process), _offset(threads)(old.thread)
        return evolve(old, process=process, thread=thread, place=names(old.place), caller=names(old.caller))

    ranges, host, calls = timeline.ranges, timeline.host, timeline.calls
    return evolve(
        timeline,
        threads=[owner + processes for owner in timeline.threads],
        engine_threads=[thread + threads for thread in timeline.engine_threads],
        kernels=work(timeline.kernels),
        copies=work(timeline.copies),
        graphs=work(timeline.graphs),
        ranges=evolve(
            ranges,
            process=_offset(processes)(ranges.process),
            thread=_offset(threads)(ranges.thread),
            domain=domain_numbers[ranges.domain] if len(ranges) else ranges.domain,
            name=names(ranges.name),
            recorded=None if ranges.recorded is None else names(ranges.recorded),
        ),
        graph_nodes=evolve(timeline.graph_nodes, thread=_offset(threads)(timeline.graph_nodes.thread)),
        host=evolve(
            host, process=_offset(processes)(host.process), thread=_offset(threads)(host.thread), name=names(host.name)
        ),
        code=spans(timeline.code),
        compiled=spans(timeline.compiled),
        calls=evolve(calls, thread=_offset(threads)(calls.thread), name=names(calls.name), inputs=names(calls.inputs)),
        only_once=evolve(timeline.only_once, process=_offset(processes)(timeline.only_once.process)),
        messages=evolve(
            timeline.messages,
            kernel=timeline.messages.kernel + sum(len(t.kernels) for t in before),
            what=names(timeline.messages.what),
            group=names(timeline.messages.group),
        ),
    )


def _offset(by: int) -> _Shift:
    """Add to indices, leaving UNKNOWN as it is."""
    return lambda values: np.where(values == UNKNOWN, UNKNOWN, values + by).astype(values.dtype)
