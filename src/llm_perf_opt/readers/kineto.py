"""Reads traces of the PyTorch profiler (Kineto): Chrome's trace format, as JSON or gzipped JSON.

It exists because many people have such a trace and no nsys: `record_function` ranges take the place of
NVTX ranges, and kernels, copies and launching calls are recorded by the same CUPTI.

`kineto_json` walks the text, `kineto_events` turns events into columns, and the timeline is made of those here.
"""

from __future__ import annotations

import gc
import gzip
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.metrics.source_owner import is_users
from llm_perf_opt.readers.kineto_chunks import Chunks, is_gzipped, unpacked_parts
from llm_perf_opt.readers.kineto_code import GRAPH, NOTHING
from llm_perf_opt.readers.kineto_columns import LARGEST_SIZE, Rows
from llm_perf_opt.readers.kineto_events import NoEvents, Trace
from llm_perf_opt.readers.kineto_helper import Helper, helper_for
from llm_perf_opt.readers.kineto_json import Damaged, JsonText
from llm_perf_opt.readers.kineto_operators import engine_threads, is_of_pytorch, operator_ranges, outermost_calls
from llm_perf_opt.readers.marker_ranges import without_marker_ranges
from llm_perf_opt.readers.memory import refuse_if_too_large
from llm_perf_opt.readers.nsys_schema import AXES
from llm_perf_opt.readers.plausible import refuse_implausible, shortened
from llm_perf_opt.readers.sandbox import Notes
from llm_perf_opt.regions.code import innermost, parse_place
from llm_perf_opt.regions.collective_messages import Messages
from llm_perf_opt.regions.columns import (
    OPERATOR,
    SHORTEST_EVENT,
    UNKNOWN,
    CodeSpans,
    GraphNodes,
    HostEvents,
    Int32s,
    Int64s,
    LaunchConfig,
    OperatorCalls,
    Process,
    Ranges,
    Timeline,
    Work,
)

_EXPECTED = "Expected a trace of the PyTorch profiler (a JSON object with `traceEvents`, or a list of events), or a report.json."
_TOOL = "PyTorch profiler (Kineto)"
_QUEUED = 1_000_000  # ns from a launch to its work: something else was before it
_ROUNDED = 1_000  # ns
_THREADS = 1_000  # whose ranges are looked at so closely
_FEWEST_OF_A_GRAPH = 4  # kernels with one correlation id; merged traces of several processes share some too


# --- from columns to a timeline ----------------------------------------------------------------------------


def _launch_of(wanted: Int64s, moment: Int64s, launches: Rows) -> Int64s:
    """Index of the launching call of each piece of work, by its correlation id; UNKNOWN where it was not recorded.

    One correlation id may stand for several calls: processes merged into one file count alike. Then it is
    the last call that began before the work did, or, should the clocks disagree, the first of them.
    """
    correlation, start = launches.column("correlation", np.int64), launches.column("start", np.int64)
    order = np.lexsort((start, correlation))
    first = np.searchsorted(correlation[order], wanted)
    exists = np.zeros(len(wanted), dtype=np.bool_)
    inside = first < len(order)
    exists[inside] = correlation[order[first[inside]]] == wanted[inside]
    exists &= wanted != UNKNOWN
    before = _calls_before(correlation[order], start[order], wanted, moment)
    chosen = np.full(len(wanted), UNKNOWN, dtype=np.int64)
    chosen[exists] = order[np.maximum(first, before)[exists]]
    return chosen


def _calls_before(correlation: Int64s, start: Int64s, wanted: Int64s, moment: Int64s) -> Int64s:
    """For each piece of work the last of the sorted calls whose id and time are not beyond its own."""
    calls = len(correlation)
    is_work = np.repeat([0, 1], [calls, len(wanted)])
    merged = np.lexsort((is_work, np.concatenate([start, moment]), np.concatenate([correlation, wanted])))
    last_call = np.maximum.accumulate(np.where(merged < calls, merged, -1))
    before = np.full(len(wanted), -1, dtype=np.int64)
    of_work = merged >= calls
    before[merged[of_work] - calls] = last_call[of_work]
    return before


def _launched_together(device: Int32s, correlation: Int64s) -> NDArray[np.bool_]:
    """Which work of a GPU has the correlation id of much other work: only the launch of a graph starts so many."""
    _, which, count = np.unique(
        np.stack((device.astype(np.int64), correlation)), axis=1, return_inverse=True, return_counts=True
    )
    together: NDArray[np.bool_] = (count[which.reshape(-1)] >= _FEWEST_OF_A_GRAPH) & (correlation > 0)
    return together


def _taken(values: NDArray[Any], chosen: Int64s) -> NDArray[Any]:
    """Values at the chosen places, UNKNOWN where nothing was chosen."""
    if len(values) == 0:
        return np.full(len(chosen), UNKNOWN, dtype=values.dtype)
    return np.where(chosen == UNKNOWN, UNKNOWN, values[chosen]).astype(values.dtype)


def _adopting_process(process: Int32s, device: Int32s) -> Int32s:
    """Work whose launch is older than the trace belongs to who else used its device, or to the first."""
    known = process != UNKNOWN
    if known.all():
        return process
    result = np.where(known, process, 0).astype(np.int32)
    for number in np.unique(device[~known]).tolist():
        users = process[known & (device == number)]
        if len(users):
            result[~known & (device == number)] = int(np.argmax(np.bincount(users)))
    return result


def _work(rows: Rows, trace: Trace) -> Work:
    launches = trace.launches
    order = np.argsort(rows.column("start", np.int64), kind="stable")

    def column(name: str, dtype: type[np.integer[Any]] = np.int32) -> NDArray[Any]:
        return rows.column(name, dtype)[order]

    start, device, name = column("start", np.int64), column("device"), column("name")
    correlation = column("correlation", np.int64)
    chosen = _launch_of(correlation, start, launches)
    thread = _taken(launches.column("thread"), chosen)
    in_graph = (column("in_graph") > 0) | (_taken(launches.column("launches"), chosen) == GRAPH)
    in_graph |= (chosen == UNKNOWN) & _launched_together(device, correlation)
    process = _taken(np.array(trace.thread_process, dtype=np.int32), thread.astype(np.int64))
    work = Work(
        start=start,
        end=column("end", np.int64),
        process=_adopting_process(process, device),
        device=device,
        name=name,
        host_time=_taken(launches.column("start", np.int64), chosen),
        thread=thread,
        graph_node=np.where(in_graph, 0, UNKNOWN).astype(np.int32),
        stream=column("stream"),
    )
    if rows is trace.copies:
        work.bytes = column("bytes", np.int64)
        work.pageable = _pageable(name, list(trace.strings))
        return work
    sizes = np.stack([column(axis) for axis in AXES], axis=1)
    if sizes[:, :3].any():
        # Kineto records one form of the name, the demangled one.
        work.config = LaunchConfig(name, name, sizes[:, :3], sizes[:, 3:], shared_memory=column("shared"))
    return work


def _pageable(name: Int32s, strings: list[str]) -> NDArray[np.bool_] | None:
    """`Memcpy HtoD (Pageable -> Device)`; None where the names do not say what memory it was."""
    used = np.unique(name).tolist()
    told = all("->" in strings[number] for number in used if "memcpy" in strings[number].lower())
    return np.isin(name, [number for number in used if "pageable" in strings[number].lower()]) if told else None


def _host(trace: Trace) -> HostEvents:
    """Operators that take long are among the calls."""
    code = trace.code
    threads = [trace.threads.get(key, UNKNOWN) for key in code.threads]
    processes = [trace.pids.get(pid, UNKNOWN) for pid, _ in code.threads]
    long = code.calls.column("end", np.int64) - code.calls.column("start", np.int64) >= SHORTEST_EVENT

    def column(name: str, dtype: type[np.integer[Any]] = np.int32) -> NDArray[Any]:
        return np.concatenate((code.events.column(name, dtype), code.calls.column(name, dtype)[long]))

    which = column("thread", np.int64)
    kind = np.append(code.events.column("kind"), np.full(long.sum(), OPERATOR, dtype=np.int32))
    process = np.array([*processes, UNKNOWN], dtype=np.int32)[which]
    mine = process != UNKNOWN
    return HostEvents(
        start=column("start", np.int64)[mine],
        end=column("end", np.int64)[mine],
        process=process[mine],
        thread=np.array([*threads, UNKNOWN], dtype=np.int32)[which][mine],
        name=column("name")[mine],
        kind=kind[mine],
    )


def _in_threads(rows: Rows, trace: Trace) -> tuple[Int64s, Int64s, Int32s, Int32s, NDArray[np.bool_]]:
    """Start, end, thread and name of host code, in threads that launch something or have ranges; and which rows."""
    threads = [trace.threads.get(key, UNKNOWN) for key in trace.code.threads]
    thread = np.array([*threads, UNKNOWN], dtype=np.int32)[rows.column("thread", np.int64)]
    mine = thread != UNKNOWN
    start, end = (rows.column(side, np.int64)[mine] for side in ("start", "end"))
    return start, end, thread[mine], rows.column("name")[mine], mine


def _calls(trace: Trace) -> OperatorCalls:
    start, end, thread, name, mine = _in_threads(trace.code.calls, trace)
    return OperatorCalls(start, end, thread, name, inputs=trace.code.calls.column("inputs")[mine])


def _functions(trace: Trace) -> CodeSpans:
    start, end, thread, name, _ = _in_threads(trace.code.functions, trace)
    strings = list(trace.code.strings)
    places = {number: parse_place(strings[number]) for number in np.unique(name).tolist()}
    users = [number for number, place in places.items() if place is not None and is_users(place.file)]
    return innermost(start, end, thread, name.astype(np.int64), trace.thread_process, np.isin(name, users))


def _without_touching(start: Int64s, end: Int64s) -> Int64s:
    """Ends of ranges, moved to where the next begins if that is before by no more than times are rounded to.

    Traces have times in µs; written anew by other programs, a step may end after the following one has begun.
    """
    if len(start) < 2:
        return end
    order = np.argsort(start, kind="stable")
    following = np.searchsorted(start[order], end - _ROUNDED, side="left")
    following = order[np.minimum(following, len(order) - 1)]
    touches = (start[following] > start) & (start[following] < end) & (end[following] > end)
    return np.where(touches & (end - start[following] <= _ROUNDED), start[following], end)


def _ranges(rows: Rows, thread_process: list[int]) -> Ranges:
    start, end, thread = rows.column("start", np.int64), rows.column("end", np.int64), rows.column("thread")
    by_thread = np.argsort(thread, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(thread[by_thread])) + 1).tolist(), len(thread)]
    for low, high in pairwise(bounds[:_THREADS]):
        mine = by_thread[low:high]
        end[mine] = _without_touching(start[mine], end[mine])
    order = np.lexsort((-end, start))  # of ranges that begin together the outer one comes first
    return Ranges(
        start=start[order],
        end=end[order],
        process=np.array(thread_process, dtype=np.int32)[thread[order]],
        thread=thread[order],
        domain=np.zeros(len(order), dtype=np.int32),
        name=rows.column("name")[order],
        start_end=np.zeros(len(order), dtype=np.bool_),
    )


def _add_operators(trace: Trace, calls: OperatorCalls, outermost: Int64s) -> list[str]:
    """Operators and modules as ranges, where the program has none of its own; their names."""
    names = list(trace.strings)
    if not all(is_of_pytorch(names[number]) for number in np.unique(trace.ranges.column("name")).tolist()):
        return []
    start, end, thread, name, _ = _in_threads(trace.code.modules, trace)
    found = operator_ranges(calls, outermost, np.stack((start, end, thread, name), axis=1).astype(np.int64))
    found = found[found[:, 1] > _gpu_recorded_since(trace)]
    trace.ranges.add_rows(found)
    return sorted(names[number] for number in np.unique(found[:, 3]).tolist())


def _gpu_recorded_since(trace: Trace) -> int:
    """Until when only the host was recorded, ns: the profiler began while the GPU had work from before.

    That is so where launches left no work before the first that did, or where that had to wait for long.
    """
    work = [rows for rows in (trace.kernels, trace.copies) if len(rows)]
    if not work:
        return 0
    correlation, start = (trace.launches.column(name, np.int64) for name in ("correlation", "start"))
    began, of_call = (
        np.concatenate([rows.column(name, np.int64) for rows in work]) for name in ("start", "correlation")
    )
    first = int(began.min())
    call = start[np.isin(correlation, of_call[began == first])]
    if len(call) and first - int(call.max()) >= _QUEUED:
        return first
    lost = (trace.launches.column("launches") != NOTHING) & (start < first) & ~np.isin(correlation, of_call)
    return int(start[lost].max()) if lost.any() else 0


def _processes(trace: Trace, rank: object) -> list[Process]:
    # A trace of the GPU alone has no events of the host; its kernels still need a process.
    pids = list(trace.pids) or [min(trace.host_pids, default=UNKNOWN)]
    processes = [Process(pid=pid, name=_printable(trace.process_names.get(pid, ""))) for pid in pids]
    if len(processes) == 1 and _is_number(rank):
        processes[0].rank = rank
    return processes


def _is_number(value: object) -> TypeGuard[int]:
    """JSON's true is a number to Python."""
    return isinstance(value, int) and not isinstance(value, bool)


# `multiProcessorCount`, `major` and `minor` are what the first traces of 2021 have.
_FACTS = {"totalGlobalMem": "memory_bytes", "numSms": "sm_count", "multiProcessorCount": "sm_count"}


def _gpu_facts(properties: object) -> dict[int, dict[str, Any]]:
    """Attributes of the GPUs, under the names that the hardware data uses; of all that have a number and a name."""
    facts: dict[int, dict[str, Any]] = {}
    for device in properties if isinstance(properties, list) else []:
        number, name = (device.get("id"), device.get("name")) if isinstance(device, dict) else (None, None)
        if not (_is_number(number) and 0 <= number <= LARGEST_SIZE and type(name) is str):
            continue
        facts[number] = {"name": _printable(name)}
        facts[number] |= {fact: device[key] for key, fact in _FACTS.items() if isinstance(device.get(key), int)}
        major, minor = (device.get(f"compute{part}", device.get(part.lower())) for part in ("Major", "Minor"))
        if isinstance(major, int) and isinstance(minor, int):
            facts[number]["compute_capability"] = f"{major}.{minor}"
    return facts


def _printable(name: str) -> str:
    """JSON can spell half of a character, which nothing later could write."""
    return shortened(name.encode("utf-8", "replace").decode("utf-8"))


def _diagnostics(trace: Trace, source: str) -> list[Diagnosis]:
    found = []
    if not trace.kernels:
        calls = 0 if trace.copies else len(trace.launches)
        called = diagnose("NO_KERNELS.called", source=source, calls=calls)
        found.append(called if calls else diagnose("NO_KERNELS.in_trace", source=source))
    if trace.malformed:
        found.append(diagnose("MALFORMED_EVENTS", events=trace.malformed, source=source))
    return found


def _timeline(trace: Trace, about: dict[str, Any], source: str) -> Timeline:
    distributed, version = about.get("distributedInfo"), about.get("schemaVersion")
    facts = _gpu_facts(about.get("deviceProperties", about.get("computeProperties")))
    devices = {number: known["name"] for number, known in facts.items()}
    if not (trace.kernels or trace.copies or trace.launches):
        trace.know_all_threads()
    calls = _calls(trace)
    outermost = outermost_calls(calls)
    operators = _add_operators(trace, calls, outermost)
    kernels, copies = _work(trace.kernels, trace), _work(trace.copies, trace)
    sorted_row = np.argsort(np.argsort(trace.kernels.column("start", np.int64), kind="stable"), kind="stable").tolist()
    timeline = Timeline(
        source=source,
        kind="kineto",
        strings=[_printable(name) for name in trace.strings],
        domains=[""],
        processes=_processes(trace, distributed.get("rank") if isinstance(distributed, dict) else None),
        threads=trace.thread_process,
        kernels=kernels,
        copies=copies,
        messages=Messages.of([(sorted_row[row], *rest) for row, *rest in trace.messages]),
        graphs=Work.empty(),
        ranges=_ranges(trace.ranges, trace.thread_process),
        host=_host(trace),
        code=_functions(trace),
        lines_are_functions=True,
        calls=calls,
        devices=devices,
        # Nothing else of the metadata: it is free text of the program and may hold secrets.
        environment={"tool": _TOOL, "schema_version": version if isinstance(version, int) else None, "gpus": devices},
        diagnostics=_diagnostics(trace, source),
        gpu_facts=facts,
        engine_threads=engine_threads(calls, outermost, list(trace.strings)),
        operators=operators,
    )
    if (kernels.graph_node != UNKNOWN).any() or (copies.graph_node != UNKNOWN).any():
        # Kineto does not record captures: one node of unknown origin stands for all of them.
        unknown = np.full(1, UNKNOWN)
        timeline.graph_nodes = GraphNodes(unknown.astype(np.int64), unknown.astype(np.int32))
    if about.get(_OWN_RANGES) == "domain@name":
        _split_domains(timeline)
    return timeline


def _split_domains(timeline: Timeline) -> None:
    """Kineto has no domains. Where the writer says that names hold them, the regions are those of NVTX."""
    ranges = timeline.ranges
    domains = {name: number for number, name in enumerate(timeline.domains)}
    used, which = np.unique(ranges.name, return_inverse=True)
    names, of_domain = used.astype(np.int32), np.zeros(len(used), dtype=np.int32)
    for place, number in enumerate(used.tolist()):
        domain, at, name = timeline.strings[number].partition("@")
        if at and domain and name:
            of_domain[place] = domains.setdefault(domain, len(domains))
            names[place] = len(timeline.strings)
            timeline.strings.append(name)
    timeline.domains[:] = domains
    ranges.name[:], ranges.domain[:] = names[which.reshape(-1)], of_domain[which.reshape(-1)]


# --- the file ----------------------------------------------------------------------------------------------

_OWN_RANGES = "llm_perf_ranges"  # written by stage 1, whose ranges are called DOMAIN@NAME
_ABOUT = frozenset({"schemaVersion", "deviceProperties", "computeProperties", "distributedInfo", _OWN_RANGES})


def _remaining_text(stream: BinaryIO, trace: Trace, source: str, helper: Helper | None) -> tuple[str, int]:
    """Give `trace` all events that can be read in chunks. The text without them, and how many bytes they were."""
    try:
        chunks = Chunks(unpacked_parts(stream, source), trace.add_all, trace.code, helper)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UnreadableInput(
            f"{source} is a gzip file that is truncated or damaged.", "Copy or record it again."
        ) from None
    trace.events += chunks.dropped
    encoding = json.detect_encoding(chunks.rest)
    # Names of kernels may hold any bytes; what is no text must not cost the trace.
    return chunks.rest.decode(encoding, "replace"), chunks.taken


class _NotATrace(Exception):
    """JSON, but of another kind; the text says which."""


def _read_object(json_text: JsonText, at: int, trace: Trace, about: dict[str, Any]) -> int:
    """Reads the events into `trace` and the few other members that matter into `about`."""
    keys: list[str] = []

    def member(key: str, value_at: int) -> int:
        keys.append(key)
        if key == "traceEvents":
            if value_at == len(json_text.text):
                raise Damaged(value_at)
            if not json_text.text.startswith("[", value_at):
                raise _NotATrace("is JSON whose `traceEvents` is not a list")
            return json_text.list(value_at, trace.add)
        value, end = json_text.value(value_at)
        if key in _ABOUT:
            about[key] = value
        return end

    end = json_text.object(at, member)
    if "traceEvents" not in keys:
        named = ", ".join(repr(key[:40]) for key in keys[:5]) or "none"
        raise _NotATrace(f"is JSON without `traceEvents` (its first keys: {named})")
    return end


def _read_list(json_text: JsonText, at: int, trace: Trace) -> int:
    """Chrome's older format is the list of events alone."""
    end = json_text.list(at, trace.add)
    if trace.malformed and not trace.events:
        raise _NotATrace("is a JSON list of something other than events")
    return end


def _read(json_text: JsonText, trace: Trace) -> dict[str, Any]:
    about: dict[str, Any] = {}
    text, at = json_text.text, json_text.skip(0)
    if text.startswith("{", at):
        end = _read_object(json_text, at, trace, about)
    elif text.startswith("[", at):
        end = _read_list(json_text, at, trace)
    elif at == len(text):
        raise _NotATrace("is empty")
    else:
        raise _NotATrace("is not JSON, or JSON that is neither an object nor a list")
    if json_text.skip(end) != len(text):
        raise Damaged(json_text.skip(end))
    return about


def read_kineto(stream: BinaryIO, source: str, helper: Helper | None = None) -> Timeline:
    """Reads a trace, plain or gzipped. Raises `UnreadableInput` for what is no trace, or not a whole one."""
    trace = Trace()
    try:
        text, before = _remaining_text(stream, trace, source, helper)
        json_text = JsonText(text)
        about = _read(json_text, trace)
    except _NotATrace as what:
        raise UnreadableInput(f"{source} {what}.", _EXPECTED) from None
    except NoEvents:
        raise UnreadableInput(f"{source} is a JSON list of something other than events.", _EXPECTED) from None
    except Damaged as damage:
        # A cut literal (`tru`, `\\u12`, `-`) is found a few characters before the end.
        if damage.at >= len(json_text.text.rstrip()) - len("\\u123"):
            what_it_is = "is truncated: its JSON ends in the middle"
        else:
            what_it_is = f"is not valid JSON (from character {before + damage.at} on)"
        raise UnreadableInput(f"{source} {what_it_is}.", "Copy or record the trace again, whole.") from None
    return _timeline(trace, about, source)


_MEMORY_PER_BYTE = 0.5  # of JSON, measured: most of it is never in memory at the same time
_PACKED = 13  # times as large as gzipped: usual for such JSON


def read_here(
    path: str, source: str, launch_config: bool, streams: bool, marker_ranges: bool, *, notes: Notes
) -> Timeline:
    """Read a trace, in this process (see `sandbox`); it always has all columns."""
    notes("begin", None)
    gc.disable()  # millions of events are made and dropped, none of them in a circle
    with Path(path).open("rb") as file:
        size = Path(path).stat().st_size * (_PACKED if is_gzipped(file) else 1)
        refuse_if_too_large(source, int(size * _MEMORY_PER_BYTE), f"{size / 1e9:.1f} GB of JSON")
        with helper_for(size) as helper:
            timeline = read_kineto(file, source, helper)
    refuse_implausible(timeline)
    return timeline if marker_ranges else without_marker_ranges(timeline)
