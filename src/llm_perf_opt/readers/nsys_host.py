"""What the host did, from the calls of the CUDA API in an Nsight Systems export: those that can explain a waiting GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.metrics.host_calls import WAITING_CALLS, call_kind, code_kind
from llm_perf_opt.readers.nsys_export import THREAD_BITS, Export, places_of
from llm_perf_opt.readers.nsys_schema import OSRT
from llm_perf_opt.readers.sqlite_columns import Column
from llm_perf_opt.regions.blocks import blocks
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.columns import (
    CALL,
    PYTHON,
    SHORTEST_EVENT,
    SYSTEM,
    UNKNOWN,
    Bools,
    CodeSpans,
    HostEvents,
    Int32s,
    Int64s,
)
from llm_perf_opt.regions.distinct import distinct, is_one_of
from llm_perf_opt.regions.intervals import BusyTime

_LATEST = 2**61


def telling_calls(export: Export, calls: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Of all calls those that are long, synchronise or copy; takes the columns that only they need out of `calls`."""
    end, names = calls.pop("end"), calls.pop("name")
    texts = export.texts(set(distinct(names).tolist()) - {UNKNOWN})
    waiting = [number for number, text in texts.items() if call_kind(text) in WAITING_CALLS]
    parts = [np.zeros(0, dtype=np.int64)]
    for part in blocks(len(names)):
        mine = end[part] - calls["start"][part] >= SHORTEST_EVENT
        mine |= is_one_of(names[part], waiting)
        mine &= names[part] != UNKNOWN
        parts.append(np.flatnonzero(mine) + part.start)
    chosen = np.concatenate(parts)
    for moments in (calls["start"], end):  # times that no clock has: sums of them would overflow
        chosen = chosen[np.abs(moments[chosen]) < _LATEST]
    found = {"start": calls["start"][chosen], "end": end[chosen], "tid": calls["tid"][chosen]}
    return found | {"name": export.intern_ids(names[chosen].astype(np.int64))}


def build_host(calls: dict[str, NDArray[Any]], process_ids: Int64s, thread_ids: Int64s) -> HostEvents:
    """Calls of processes that used the GPU or have ranges."""
    process = places_of(process_ids, calls["tid"] & ~THREAD_BITS).astype(np.int32)
    mine = process != UNKNOWN
    thread = places_of(thread_ids, calls["tid"]).astype(np.int32)
    start, end = calls["start"][mine], calls["end"][mine]
    return HostEvents(
        start=start,
        end=np.maximum(start, end),
        process=process[mine],
        thread=thread[mine],
        name=calls["name"][mine],
        kind=np.full(len(start), CALL, dtype=np.int32),
    )


_PAUSE = 0.1  # of a call, and `SHORTEST_EVENT`: what a loop may do between it and the next


def with_system_calls(export: Export, host: HostEvents, launching: Int64s, thread_ids: Int64s) -> HostEvents:
    """The same with what threads that launch did in the operating system: read a file, wait for another thread.

    `launching`: those threads. A loop of short calls counts as one. Inside a call of CUDA, they are its own affair.
    """
    if not export.has(OSRT, "start", "end", "globalTid", "nameId") or not len(launching):
        return host
    wanted = {"start": Column("start"), "end": Column("end"), "tid": Column("globalTid"), "name": Column("nameId")}
    rows = export.columns(OSRT, wanted)
    texts = export.texts(set(distinct(rows["name"]).tolist()))
    telling = [number for number, text in texts.items() if code_kind(f"{text}()")]
    possible = (rows["end"] >= rows["start"]) & (np.abs(rows["start"]) < _LATEST) & (np.abs(rows["end"]) < _LATEST)
    chosen = np.flatnonzero(possible & is_one_of(rows["name"], telling) & np.isin(rows["tid"], launching))
    chosen = chosen[np.lexsort((rows["start"][chosen], rows["tid"][chosen]))]
    start, end, tid, name = (rows[key][chosen] for key in ("start", "end", "tid", "name"))
    if not len(start):
        return host
    other = (tid[1:] != tid[:-1]) | (name[1:] != name[:-1])
    other |= start[1:] - end[:-1] > np.minimum(_PAUSE * (end - start)[:-1], SHORTEST_EVENT)
    first = np.append(0, np.flatnonzero(other) + 1)
    last = np.append(first[1:] - 1, len(start) - 1)
    start, end, tid, name = start[first], end[last], tid[first], name[first]
    thread = places_of(thread_ids, tid).astype(np.int32)
    long = np.flatnonzero((end - start >= SHORTEST_EVENT) & ~_inside_calls(start, end, thread, host))
    names = {number: export.intern_text(f"{texts[number]}()") for number in distinct(name[long]).tolist()}
    process_of = dict(zip(host.thread.tolist(), host.process.tolist(), strict=True))
    process = np.array([process_of.get(one, UNKNOWN) for one in thread[long].tolist()], dtype=np.int32)
    kind = np.full(len(long), SYSTEM, dtype=np.int32)
    name = np.array([names[number] for number in name[long].tolist()], dtype=np.int32)
    own = (start[long], end[long], process, thread[long], name, kind)
    theirs = (host.start, host.end, host.process, host.thread, host.name, host.kind)
    return HostEvents(*(np.concatenate([a, b]) for a, b in zip(theirs, own, strict=True)))


def _inside_calls(start: Int64s, end: Int64s, thread: Int32s, host: HostEvents) -> Bools:
    """Which events lie, for the most part, inside calls of CUDA of their thread."""
    found = np.zeros(len(start), dtype=np.bool_)
    for one in distinct(thread).tolist():
        mine, calls = np.flatnonzero(thread == one), np.flatnonzero(host.thread == one)
        inside = BusyTime.of(host.start[calls], host.end[calls]).within(start[mine], end[mine])
        found[mine] = 2 * inside > end[mine] - start[mine]
    return found


def with_code(export: Export, host: HostEvents, code: CodeSpans) -> HostEvents:
    """The same with the lines of the program, or the functions, that a thread was in for long. A file by its name alone."""
    long = np.flatnonzero(code.end - code.start >= SHORTEST_EVENT)
    if not len(long):
        return host
    used, which = np.unique(code.place[long], return_inverse=True)
    places = [parse_place(export.strings[number]) for number in used.tolist()]
    texts = [export.strings[number] for number in used.tolist()]
    names = [
        export.intern_text(text if p is None else f"{p.name}({p.line}): {p.function}")
        for p, text in zip(places, texts, strict=True)
    ]
    name = np.array(names, dtype=np.int32)[which.reshape(-1)]
    kind = np.full(len(long), PYTHON, dtype=np.int32)
    own = (code.start[long], code.end[long], code.process[long], code.thread[long], name, kind)
    theirs = (host.start, host.end, host.process, host.thread, host.name, host.kind)
    return HostEvents(*(np.concatenate([a, b]) for a, b in zip(theirs, own, strict=True)))
