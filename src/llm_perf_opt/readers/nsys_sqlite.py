"""Nsight Systems' SQLite export, every schema from 2020 on, as a `Timeline`.

`nsys_export` opens the file, `nsys_work`, `nsys_ranges`, `nsys_facts` and `nsys_traffic` read its parts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from llm_perf_opt.readers.marker_ranges import without_marker_ranges
from llm_perf_opt.readers.memory import refuse_if_too_large
from llm_perf_opt.readers.nsys_export import THREAD_BITS, Export, Progress, places_of
from llm_perf_opt.readers.nsys_facts import gpu_facts, list_processes, note_missing, read_environment
from llm_perf_opt.readers.nsys_host import build_host, telling_calls, with_code, with_system_calls
from llm_perf_opt.readers.nsys_lines import read_code
from llm_perf_opt.readers.nsys_messages import read_messages
from llm_perf_opt.readers.nsys_once import build_once, once_columns
from llm_perf_opt.readers.nsys_ranges import build_ranges, name_domains, range_columns
from llm_perf_opt.readers.nsys_schema import GRAPHS, KERNELS, MEMCPY, MEMSET, NVTX, RUNTIME
from llm_perf_opt.readers.nsys_traffic import read_traffic
from llm_perf_opt.readers.nsys_work import (
    build_work,
    copy_columns,
    join_launches,
    kernel_columns,
    know_process,
    launch_columns,
    node_columns,
    sorted_together,
    work_columns,
)
from llm_perf_opt.readers.plausible import plausible_facts, refuse_implausible
from llm_perf_opt.readers.sandbox import Notes
from llm_perf_opt.regions.columns import UNKNOWN, GraphNodes, Timeline
from llm_perf_opt.regions.distinct import distinct

# Bytes of memory from the file to the finished report, measured (benchmarks/results/load.md).
_BASE, _ROW = 150_000_000, 90


def read_here(
    path: str, source: str, launch_config: bool, streams: bool, marker_ranges: bool, *, notes: Notes
) -> Timeline:
    """Read an export, in this process (see `sandbox`)."""

    def begin(rows: int) -> None:
        refuse_if_too_large(source, _BASE + rows * _ROW, f"{rows:,} rows")
        notes("begin", rows)

    def progress(rows: int) -> None:
        notes("rows", rows)

    timeline = read_nsys_sqlite(
        Path(path), source, launch_config=launch_config, streams=streams, begin=begin, progress=progress
    )
    timeline.gpu_facts = plausible_facts(timeline.gpu_facts)
    refuse_implausible(timeline)
    return timeline if marker_ranges else without_marker_ranges(timeline)


def read_nsys_sqlite(
    path: Path,
    source: str,
    *,
    launch_config: bool = False,
    streams: bool = False,
    begin: Progress | None = None,
    progress: Progress | None = None,
) -> Timeline:
    """Read an export. `launch_config`: also what is needed to join counters; `streams`: also the stream of all work.

    `begin` is told about how many rows there are, `progress` how many were read since it was last called.
    """
    with Export.open(path, source) as export:
        export.streams = streams
        if begin is not None:
            begin(sum(export.size(table) for table in (KERNELS, RUNTIME, NVTX)))  # cheap: no table is scanned
        return _timeline(export, launch_config, progress)


def _timeline(export: Export, launch_config: bool, progress: Progress | None) -> Timeline:
    # The two large tables are read side by side: the driver works outside Python's lock.
    with ThreadPoolExecutor(max_workers=1) as worker:
        pending = worker.submit(launch_columns, export, progress)
        kernels = kernel_columns(export, launch_config, progress)
        launches = pending.result()
    once = once_columns(export, launches)
    calls = telling_calls(export, launches)
    copies = [copy_columns(export, table) for table in (MEMCPY, MEMSET)]
    graphs = work_columns(export, GRAPHS, {})
    nodes = node_columns(export)
    ranges, domain_rows = range_columns(export, progress)

    columns = [kernels, *copies, graphs]
    for work in columns:
        know_process(work, launches)
    process_ids = distinct(*(c["pid"] for c in columns), ranges["tid"] & ~THREAD_BITS, nodes["tid"] & ~THREAD_BITS)
    joined = [join_launches(c, launches, process_ids) for c in columns]
    del launches
    launching = distinct(*(tid for _, tid in joined))
    thread_ids = distinct(*(tid for _, tid in joined), ranges["tid"], nodes["tid"])
    thread_ids = thread_ids[thread_ids != UNKNOWN]

    works = []
    for c, (host_time, tid) in zip(columns, joined, strict=True):
        works.append(build_work(export, c, host_time, tid, process_ids, thread_ids, nodes))
    facts = gpu_facts(export)
    devices = {number: str(known["name"]) for number, known in facts.items() if "name" in known}
    domains, domain_of_range = name_domains(export, ranges, domain_rows)
    kernel_work, memcpy, memset, graph_work = works
    last = max((int(moments.max()) for moments in (*(w.end for w in works), calls["end"]) if len(moments)), default=0)
    code, named, compiled = read_code(export, process_ids, thread_ids, last)
    host = build_host(calls, process_ids, thread_ids)
    host = with_system_calls(export, host, launching[launching != UNKNOWN], thread_ids)
    timeline = Timeline(
        source=export.source,
        kind="nsys-sqlite",
        strings=export.strings,
        domains=domains,
        processes=list_processes(export, process_ids),
        threads=places_of(process_ids, thread_ids & ~THREAD_BITS).tolist(),
        kernels=kernel_work,
        copies=sorted_together(memcpy, memset),
        graphs=graph_work,
        ranges=build_ranges(export, ranges, domain_of_range, process_ids, thread_ids, works),
        graph_nodes=GraphNodes(nodes["time"], places_of(thread_ids, nodes["tid"]).astype(np.int32)),
        host=with_code(export, with_code(export, host, code), named),
        code=code,
        compiled=compiled,
        devices=devices,
        environment=read_environment(export, devices),
        diagnostics=export.diagnostics,
        gpu_facts=facts,
        traffic=read_traffic(export),
        only_once=build_once(once, process_ids),
        messages=read_messages(export, kernel_work, thread_ids),
    )
    note_missing(export, timeline)
    return timeline
