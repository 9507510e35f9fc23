"""A trace for ui.perfetto.dev: ranges per thread, launches, GPU work per stream, idle gaps, and how busy the GPU was.

Written in Chrome's trace event format, as the PyTorch profiler writes it, one event at a time: memory stays
flat, and `llm-perf report` reads it like any PyTorch trace.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from attrs import Factory, define

from llm_perf_opt.analysis.gaps import CAUSES, find_gaps
from llm_perf_opt.analysis.verdicts.idle_causes import idle_words
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.budget import in_rows
from llm_perf_opt.regions.columns import CALL, UNKNOWN, CodeSpans, Int32s, Int64s, Timeline, Work
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.operator_calls import operator_spans
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.report.files import make_folder, replaced
from llm_perf_opt.report.renderers import Exporter, ExportSource
from llm_perf_opt.untrusted import read_head

_GPU_PIDS = 1_000_000_000  # above any process id: the GPU's tracks of each process
_IDLE_TRACK = 1_000_000
_LANE = 10_000_000  # between a track and the one for what overlaps on it
_DOMAIN = 100_000  # between a thread's track and that of a further domain on it
_BUSY_STEPS = 2_000  # of a GPU …
_ALL_BUSY_STEPS = 100_000  # … and of all, one of each at least
_CODE_TRACK, _CALLED = 50_000, 10_000  # between a thread's track and those of its code
_MOST_LANES = 64  # tracks for what overlaps on one; the last takes the rest

# The names of ranges hold their domains, which our own reader takes apart again.
_HEAD = (
    b'{"displayTimeUnit":"ns","llm_perf_ranges":"domain@name","otherData":{"written_by":"llm-perf"},"traceEvents":[\n'
)

Event = dict[str, Any]


def _export(source: ExportSource, path: Path) -> list[Path]:
    """Write the trace; compressed where the name ends in `.gz`. A failure leaves no half of a file."""
    assert source.timeline is not None
    make_folder(path.parent)
    trace = _Trace(source.timeline, source.attribution())
    with replaced(path) as raw:
        if path.name.endswith(".gz"):
            # Without a time in the header the same recording gives the same file.
            with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=6, filename="") as packed:
                _write(trace, packed)
        else:
            _write(trace, raw)
    return [path]


def _is_ours(path: Path) -> bool:
    try:
        packed = read_head(path, 2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as content:
            return content.read(len(_HEAD)) == _HEAD
    except (OSError, EOFError, zlib.error):
        return False


EXPORTER = Exporter(
    _export,
    lambda path: [path],
    _is_ours,
    needs_timeline=True,
    note="Open the trace in https://ui.perfetto.dev (Open trace file): it stays on your machine.",
)


def _write(trace: _Trace, out: IO[bytes] | gzip.GzipFile) -> None:
    buffer = io.BytesIO()
    buffer.write(_HEAD)
    first = True
    for event in trace.events():
        buffer.write(b"" if first else b",\n")
        first = False
        buffer.write(orjson.dumps(event))
        if buffer.tell() > 1 << 20:
            out.write(buffer.getvalue())
            buffer = io.BytesIO()
    buffer.write(b"\n]}\n")
    out.write(buffer.getvalue())


def _text(name: str) -> str:
    """UTF-8 has no form for half of a surrogate pair: it is shown as an escape."""
    return name.encode("utf-8", "backslashreplace").decode()


def _texts(texts: list[str], numbers: Int32s | Int64s) -> list[str]:
    return [_text(text) for text in in_rows(texts, numbers)]


@define(eq=False)
class _Trace:
    """Turns columns into events."""

    timeline: Timeline
    attribution: Attribution
    _origin: int = 0
    _end: int = 0
    _pids: list[int] = Factory(list)  # of each process; of two hosts' equal ones the second has another
    _tids: list[int] = Factory(list)  # of each thread: they are numbered within their process, from 1
    # As they are written: of regions, ranges and domains.
    _keys: list[str] = Factory(list)
    _names: list[str] = Factory(list)
    _domains: list[str] = Factory(list)

    def __attrs_post_init__(self) -> None:
        self._origin, self._end = _extent(self.timeline)
        ranges = self.timeline.ranges
        self._keys = _texts(self.attribution.table.keys(), self.attribution.range_region)
        self._names = _texts(self.timeline.strings, ranges.recorded_name)
        self._domains = _texts(self.timeline.domains, ranges.domain)
        known: set[int] = set()
        for number, process in enumerate(self.timeline.processes):
            self._pids.append(900_000_000 + number if process.pid in known else process.pid)
            known.add(process.pid)
        seen: dict[int, int] = {}
        for owner in self.timeline.threads:
            seen[owner] = seen.get(owner, 0) + 1
            self._tids.append(seen[owner])

    def events(self) -> Iterator[Event]:
        timeline = self.timeline
        for process, about in enumerate(timeline.processes):
            name = _text(about.name) or "process"
            rank = f"rank {about.rank} · " if about.rank is not None else ""
            yield from _about_process(self._pids[process], f"{rank}{name}", process)
        yield from self._ranges()
        yield from self._code("line", timeline.code, timeline.strings, _CODE_TRACK)
        yield from self._code("operator", *operator_spans(timeline), _CODE_TRACK + _CALLED)
        yield from self._calls()
        yield from self._work("kernel", timeline.kernels)
        yield from self._work("gpu_memcpy", timeline.copies)
        yield from self._work("cuda_graph", timeline.graphs)
        yield from self._idle()

    def _gpu_pid(self, process: int, device: int) -> int:
        return _GPU_PIDS + 1000 * process + device

    def _span(self, start: int, end: int) -> dict[str, float]:
        return {"ts": (start - self._origin) / 1000, "dur": (end - start) / 1000}

    # -- ranges and launches --------------------------------------------------------------------

    def _ranges(self) -> Iterator[Event]:
        ranges = self.timeline.ranges
        for thread, on_thread in group_by(ranges.thread):
            pid, tid = self._pids[int(ranges.process[on_thread[0]])], self._tids[thread]
            yield _about_thread(pid, tid, f"thread {tid}")
            marked = on_thread[ranges.start_end[on_thread]]
            yield from self._start_end_ranges(marked, pid, tid)
            pushed = on_thread[~ranges.start_end[on_thread]]
            by_use = sorted(group_by(ranges.domain[pushed]), key=lambda found: -len(found[1]))
            for place, (domain, part) in enumerate(by_use):
                track = tid + place * _DOMAIN
                if place:
                    yield _about_thread(pid, track, f"thread {tid} · {self._domains[domain]}")
                yield from self._nested_ranges(pushed[part], pid, track)

    def _code(self, what: str, spans: CodeSpans, texts: list[str], offset: int) -> Iterator[Event]:
        """Lines of the program, or operators, that each thread was in; on tracks beside those of the ranges."""
        names = _texts(texts, spans.place)
        for thread, mine in group_by(spans.thread):
            pid, tid = self._pids[int(spans.process[mine[0]])], self._tids[thread]
            yield _about_thread(pid, tid + offset, f"thread {tid} · {what}")
            for at in mine[np.argsort(spans.start[mine], kind="stable")].tolist():
                span = self._span(int(spans.start[at]), int(spans.end[at]))
                name = names[int(spans.place[at])]
                yield {"ph": "X", "cat": what, "name": name, "pid": pid, "tid": tid + offset, **span}

    def _calls(self) -> Iterator[Event]:
        """Calls of CUDA that the host spends time in: what waits, copies, allocates or loads; where the threads' ranges are."""
        host, names = self.timeline.host, _texts(self.timeline.strings, self.timeline.host.name)
        for at in np.flatnonzero((host.kind == CALL) & (host.thread != UNKNOWN)).tolist():
            track = {"pid": self._pids[int(host.process[at])], "tid": self._tids[int(host.thread[at])]}
            span = self._span(int(host.start[at]), int(host.end[at]))
            yield {"ph": "X", "cat": "cuda_runtime", "name": names[int(host.name[at])], **track, **span}

    def _nested_ranges(self, mine: Int64s, pid: int, track: int) -> Iterator[Event]:
        ranges = self.timeline.ranges
        mine = mine[np.lexsort((-ranges.end[mine], ranges.start[mine]))]
        lanes = nested_lanes(ranges.start[mine], ranges.end[mine])
        for lane in sorted(set(lanes) - {0}):
            yield _about_thread(pid, track + lane * _LANE, f"thread {track} · overlapping")
        for at, lane in zip(mine.tolist(), lanes, strict=True):
            yield {
                "ph": "X",
                "cat": "user_annotation",
                "name": self._range_name(at),
                "pid": pid,
                "tid": track + lane * _LANE,
                **self._span(int(ranges.start[at]), int(ranges.end[at])),
                "args": self._range_args(at),
            }

    def _start_end_ranges(self, mine: Int64s, pid: int, tid: int) -> Iterator[Event]:
        """They may overlap in any way: each is an asynchronous slice of its own."""
        ranges = self.timeline.ranges
        for at in mine.tolist():
            common = {"cat": "start_end", "name": self._range_name(at), "id": at, "pid": pid, "tid": tid}
            start, end = int(ranges.start[at]) - self._origin, int(ranges.end[at]) - self._origin
            yield {"ph": "b", **common, "ts": start / 1000, "args": self._range_args(at)}
            yield {"ph": "e", **common, "ts": end / 1000}

    def _range_name(self, at: int) -> str:
        name = self._names[int(self.timeline.ranges.recorded_name[at])]
        domain = self._domains[int(self.timeline.ranges.domain[at])]
        return f"{domain}@{name}" if domain else name

    def _range_args(self, at: int) -> dict[str, str]:
        region = int(self.attribution.range_region[at])
        domain = self._domains[int(self.timeline.ranges.domain[at])]
        args = {"region": self._keys[region]} if region != UNKNOWN else {}
        return args | ({"domain": domain} if domain else {})

    # -- GPU work -------------------------------------------------------------------------------

    def _work(self, category: str, work: Work) -> Iterator[Event]:
        stream = work.stream if work.stream is not None else np.zeros(len(work), dtype=np.int32)
        names = _texts(self.timeline.strings, work.name)
        short = {number: short_kernel_name(names[number]) for number in np.unique(work.name).tolist()}
        first = {"kernel": 0, "gpu_memcpy": 1, "cuda_graph": 2}[category] * 2**40
        for process, device, number, mine in _by_track(work, stream):
            gpu = self._gpu_pid(process, device)
            lanes = nested_lanes(work.start[mine], work.end[mine])
            for lane in sorted(set(lanes)):
                name = f"stream {number}" if work.stream is not None and number != UNKNOWN else "GPU work"
                yield _about_thread(gpu, number + 1 + lane * _LANE, name + (" · beside" if lane else ""))
            for at, lane in zip(mine.tolist(), lanes, strict=True):
                args: dict[str, Any] = {"device": device, "correlation": first + at}
                if number != UNKNOWN and work.stream is not None:
                    args["stream"] = number
                if int(work.graph_node[at]) != UNKNOWN:
                    args["graph node id"] = int(work.graph_node[at]) + 1
                if work.bytes is not None:
                    args["bytes"] = int(work.bytes[at])
                yield {
                    "ph": "X",
                    "cat": category,
                    # Kernels by their full name, so that a report of this trace is the same report.
                    "name": names[int(work.name[at])],
                    "pid": gpu,
                    "tid": number + 1 + lane * _LANE,
                    **self._span(int(work.start[at]), int(work.end[at])),
                    "args": args | ({"short": short[int(work.name[at])]} if category == "kernel" else {}),
                }
                if int(work.host_time[at]) != UNKNOWN and int(work.thread[at]) != UNKNOWN:
                    yield {
                        "ph": "X",
                        "cat": "cuda_runtime",
                        "name": "launch",
                        "pid": self._pids[process],
                        "tid": self._tids[int(work.thread[at])],
                        **self._span(int(work.host_time[at]), int(work.host_time[at])),
                        "args": {"correlation": first + at},
                    }

    def _idle(self) -> Iterator[Event]:
        """Of each process and GPU, gaps in which it ran nothing of the process, and how busy it was over time."""
        works = (self.timeline.kernels, self.timeline.copies, self.timeline.graphs)
        start, end, process_of, device_of = (
            np.concatenate([getattr(work, name) for work in works]).astype(np.int64)
            for name in ("start", "end", "process", "device")
        )
        lowest = int(device_of.min(initial=0))
        tracks = group_by(process_of * (int(device_of.max(initial=0)) - lowest + 1) + device_of - lowest)
        edges = self._edges(len(tracks))
        for _, mine in tracks:
            process, device = int(process_of[mine[0]]), int(device_of[mine[0]])
            busy = BusyTime.of(start[mine], end[mine])
            gpu = self._gpu_pid(process, device)
            product = _text(self.timeline.devices.get(device, "GPU"))
            yield from _about_process(gpu, f"GPU {device} · {product} · of process {self._pids[process]}", 1000 + gpu)
            yield _about_thread(gpu, _IDLE_TRACK, "idle")
            owners = self._owners_of_gaps(process)
            for since, until in zip(busy.ends[:-1].tolist(), busy.starts[1:].tolist(), strict=True):
                idle = {"ph": "X", "cat": "idle", "name": "idle", "pid": gpu, "tid": _IDLE_TRACK}
                yield idle | self._span(since, until) | owners.get((since, until), {})
            inside = busy.within(edges[:-1], edges[1:])
            for at, part, length in zip(edges[:-1].tolist(), inside.tolist(), np.diff(edges).tolist(), strict=True):
                yield {
                    "ph": "C",
                    "name": "GPU busy",
                    "pid": gpu,
                    "ts": (at - self._origin) / 1000,
                    "args": {"percent": round(100 * part / max(length, 1), 1)},
                }

    def _owners_of_gaps(self, process: int) -> dict[tuple[int, int], Event]:
        """By begin and end of a long gap of a process, why the GPU waits, and what the host is in."""
        timeline = self.timeline
        gaps = find_gaps(timeline, process, np.zeros(len(timeline.ranges), dtype=np.bool_))
        around = np.append(timeline.ranges.name.astype(np.int64), UNKNOWN)[gaps.range]
        name = np.where(gaps.event != UNKNOWN, gaps.event, around)
        found = {}
        for at, what in zip(gaps.named.tolist(), name.tolist(), strict=True):
            cause = CAUSES[gaps.cause[at]]
            words = idle_words()[cause]
            if words.rule and not words.between_graphs:  # else it depends on the region which rule it is
                cause = words.rule
            args = {"cause": cause} | ({"host": _text(timeline.strings[what])} if what != UNKNOWN else {})
            title = f"idle: {cause}" + (f", {args['host']}" if what != UNKNOWN else "")
            found[int(gaps.start[at]), int(gaps.end[at])] = {"name": title, "args": args}
        return found

    def _edges(self, tracks: int) -> Int64s:
        """Between which the busy time of every GPU is added up."""
        steps = max(min(_BUSY_STEPS, _ALL_BUSY_STEPS // max(tracks, 1)), 1)
        return np.linspace(self._origin, self._end, steps + 1).astype(np.int64)


def nested_lanes(start: Int64s, end: Int64s) -> list[int]:
    """A lane for each interval, given in order of start, so that on every lane intervals nest or stand apart."""
    lanes: list[list[int]] = [[]]  # of each lane the ends of the open intervals, innermost last
    result = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        lane = next((n for n, open_ends in enumerate(lanes) if _fits(open_ends, begin, finish)), len(lanes))
        if lane == _MOST_LANES:
            result.append(lane - 1)
            continue
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(finish)
        result.append(lane)
    return result


def _fits(open_ends: list[int], begin: int, finish: int) -> bool:
    while open_ends and open_ends[-1] <= begin:
        open_ends.pop()
    return not open_ends or finish <= open_ends[-1]


def _by_track(work: Work, stream: Int32s) -> Iterator[tuple[int, int, int, Int64s]]:
    """Process, device and stream, and the work on each in order of start."""
    if len(work) == 0:
        return
    order = np.lexsort((work.start, stream, work.device, work.process))
    keys = np.stack([work.process[order], work.device[order], stream[order]], axis=1)
    cuts = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    for part in np.split(order, cuts):
        at = int(part[0])
        yield int(work.process[at]), int(work.device[at]), int(stream[at]), part


def _extent(timeline: Timeline) -> tuple[int, int]:
    columns = (timeline.ranges, timeline.kernels, timeline.copies, timeline.graphs)
    starts = [int(c.start.min()) for c in columns if len(c)]
    known = [w.host_time[w.host_time != UNKNOWN] for w in (timeline.kernels, timeline.copies, timeline.graphs)]
    starts += [int(times.min()) for times in known if len(times)]
    called = timeline.host.start[(timeline.host.kind == CALL) & (timeline.host.thread != UNKNOWN)]
    starts += [int(called.min())] if len(called) else []
    ends = [int(c.end.max()) for c in columns if len(c)]
    return min(starts, default=0), max(ends, default=0)


def _about_process(pid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": order}}


def _about_thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
