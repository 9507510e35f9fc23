"""Reads traces of the PyTorch profiler (Kineto): Chrome's trace format, as JSON or gzipped JSON.

It exists because many people have such a trace and no nsys: `record_function` ranges take the place of
NVTX ranges, and kernels, copies and launching calls are recorded by the same CUPTI.

A trace of a gigabyte is mostly events this project has no use for (operators, Python frames, arrows). So
events are decoded one at a time and go straight into columns; the text is held once, the events never.
Times are decimal microseconds around 4e12, more digits than a float keeps after sums: they are converted
to integer nanoseconds from their digits.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from array import array
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, BinaryIO, TypeGuard, TypeVar

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.plausible import shortened
from llm_perf_opt.regions.columns import (
    UNKNOWN,
    GraphNodes,
    Int32s,
    Int64s,
    LaunchConfig,
    Process,
    Ranges,
    Timeline,
    Work,
)

_EXPECTED = "Expected a trace of the PyTorch profiler: a JSON object with `traceEvents`, or a list of events."
_TOOL = "PyTorch profiler (Kineto)"

# Categories in lower case: traces of 2020 and 2021 write `Kernel`, `Memcpy`, `Runtime`, `Operator`.
# `gpu_user_annotation` is missing on purpose: it repeats the ranges on the GPU's side, shifted.
_KERNELS = frozenset({"kernel"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver"})
_RANGES = frozenset({"user_annotation"})
_OPERATORS = frozenset({"operator", "cpu_op"})

_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
_LARGEST = 2**63 - 1
_LARGEST_SIZE = 2**31 - 1

K = TypeVar("K")


class _Malformed(Exception):
    """An event lacks what it needs, or has something else in its place."""


# --- times -------------------------------------------------------------------------------------------------


class DecimalText(str):
    """A JSON number with a fraction or an exponent, as it was written; no JSON string ever is one."""

    __slots__ = ()


_MICROSECONDS = re.compile(r"(\d{1,16})\.(\d{1,3})")


def nanoseconds(microseconds: object) -> int:
    """Exact nanoseconds from a JSON number of microseconds; more than three decimals are rounded.

    Raises `ValueError` for what is no number, is negative, or has no place in 64 bits.
    """
    if isinstance(microseconds, DecimalText):
        usual = _MICROSECONDS.fullmatch(microseconds)
        if usual is not None:
            whole, fraction = usual.groups()
            return int(whole) * 1000 + int(fraction.ljust(3, "0"))
        value = _rounded(microseconds)
    elif isinstance(microseconds, int) and not isinstance(microseconds, bool):
        value = microseconds * 1000
    else:
        raise ValueError(f"not a number: {microseconds!r}")
    if not 0 <= value <= _LARGEST:
        raise ValueError("a time must be positive and fit into 64 bits")
    return value


def _rounded(text: DecimalText) -> int:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"not a number: {text}") from None
    if number.is_zero():
        return 0
    if number.adjusted() > 18:  # before `int` builds a number of a million digits
        raise ValueError("a time must fit into 64 bits")
    return int((number * 1000).to_integral_value()) if number.adjusted() > -9 else 0


# --- JSON --------------------------------------------------------------------------------------------------

_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


def _constant(name: str) -> None:
    """NaN and infinities, which Kineto writes and JSON does not know, are no values."""


def _short_integer(text: str) -> int | None:
    # Python refuses to convert thousands of digits, with an error that would cost the whole file.
    return int(text) if len(text) < 40 else None


class _Damaged(Exception):
    """The text is not JSON from `at` on."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class _Json:
    """Walks a JSON text member by member, so that the list of events is never in memory as a whole."""

    def __init__(self, text: str) -> None:
        self.text = text
        # strict=False: names of kernels and files come with raw control characters.
        self._usual = json.JSONDecoder(parse_float=DecimalText, parse_constant=_constant, strict=False)
        self._careful = json.JSONDecoder(
            parse_float=DecimalText, parse_constant=_constant, parse_int=_short_integer, strict=False
        )

    def skip(self, at: int) -> int:
        """The next place that is no white space."""
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def value(self, at: int) -> tuple[Any, int]:
        """The value at `at`, and where it ends."""
        try:
            try:
                return self._usual.raw_decode(self.text, at)
            except json.JSONDecodeError:
                raise
            except ValueError:  # an integer of thousands of digits
                return self._careful.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            # The decoder points at where a cut string began; what matters is that it has no end.
            raise _Damaged(len(self.text) if error.msg.startswith("Unterminated") else error.pos) from None
        except RecursionError:
            raise _Damaged(at) from None

    def object(self, at: int, member: Callable[[str, int], int]) -> int:
        """Gives `member` each key and the place of its value, and is told where the value ends."""
        at = self.skip(at + 1)
        while not self.text.startswith("}", at):
            key, at = self.value(at)
            at = self.skip(at)
            if not isinstance(key, str) or isinstance(key, DecimalText) or not self.text.startswith(":", at):
                raise _Damaged(at)
            at = self._next(member(key, self.skip(at + 1)), "}")
        return at + 1

    def list(self, at: int, element: Callable[[Any], None]) -> int:
        """Gives `element` one element after the other; returns where the list ends."""
        at = self.skip(at + 1)
        while not self.text.startswith("]", at):
            value, at = self.value(at)
            element(value)
            at = self._next(at, "]")
        return at + 1

    def _next(self, at: int, close: str) -> int:
        """Behind the comma, or at the closing bracket. A comma before the bracket is forgiven."""
        comma = _COMMA.match(self.text, at)
        if comma is not None:
            return comma.end()
        at = self.skip(at)
        if self.text.startswith(close, at):
            return at
        raise _Damaged(at)


# --- columns -----------------------------------------------------------------------------------------------


def _longs() -> array[int]:
    return array("q")


def _int64(values: array[int]) -> Int64s:
    return np.array(values, dtype=np.int64)


def _int32(values: array[int]) -> Int32s:
    return np.array(values, dtype=np.int32)


@define
class _WorkColumns:
    """Kernels, or copies and fills, in the order of the file."""

    start: array[int] = Factory(_longs)
    end: array[int] = Factory(_longs)
    device: array[int] = Factory(_longs)
    name: array[int] = Factory(_longs)
    correlation: array[int] = Factory(_longs)
    in_graph: array[int] = Factory(_longs)
    stream: array[int] = Factory(_longs)
    bytes: array[int] = Factory(_longs)
    shared: array[int] = Factory(_longs)
    sizes: array[int] = Factory(_longs)  # six a kernel: grid and block
    any_grid: bool = False


@define
class _LaunchColumns:
    """Calls of the CUDA API that have a correlation id."""

    correlation: array[int] = Factory(_longs)
    start: array[int] = Factory(_longs)
    thread: array[int] = Factory(_longs)
    of_graph: array[int] = Factory(_longs)


@define
class _RangeColumns:
    start: array[int] = Factory(_longs)
    end: array[int] = Factory(_longs)
    thread: array[int] = Factory(_longs)
    name: array[int] = Factory(_longs)


def _number_of(thing: K, numbers: dict[K, int]) -> int:
    """The number of a thing: they are numbered in the order they first appear."""
    return numbers.setdefault(thing, len(numbers))


@define
class _Trace:
    """What the events of one file have said so far."""

    strings: dict[str, int] = Factory(dict)
    pids: dict[int, int] = Factory(dict)
    threads: dict[tuple[int, str], int] = Factory(dict)
    thread_process: list[int] = Factory(list)
    kernels: _WorkColumns = Factory(_WorkColumns)
    copies: _WorkColumns = Factory(_WorkColumns)
    launches: _LaunchColumns = Factory(_LaunchColumns)
    ranges: _RangeColumns = Factory(_RangeColumns)
    process_names: dict[int, str] = Factory(dict)
    host_pids: set[int] = Factory(set)  # labelled CPU by Kineto, events or not
    events: int = 0  # that are JSON objects with a phase: what makes a list a trace
    malformed: int = 0

    def add(self, event: object) -> None:
        """Takes one event; what is damaged is counted and left out."""
        try:
            if not isinstance(event, dict):
                raise _Malformed
            self.events += "ph" in event
            take = self._taker(event)
            if take is not None:
                take(event)
        except (_Malformed, ValueError, OverflowError):
            self.malformed += 1

    def _taker(self, event: dict[str, Any]) -> Callable[[dict[str, Any]], None] | None:
        phase, category = event.get("ph"), event.get("cat")
        if phase == "M":
            return self._add_metadata
        if phase != "X" or not isinstance(category, str):
            return None
        category = category.lower()
        if category in _OPERATORS:
            # Until 2021 every annotation was an `Operator`. Only the profiler's own step is certain.
            step = str(event.get("name", "")).startswith("ProfilerStep#")
            return self._add_range if step else None
        if category in _LAUNCHES:
            return self._add_launch
        if category in _KERNELS:
            return self._add_kernel
        if category in _COPIES:
            return self._add_copy
        return self._add_range if category in _RANGES else None

    # -- events --------------------------------------------------------------------------------------------

    def _add_range(self, event: dict[str, Any]) -> None:
        start, end = _span(event)
        name = _name(event)
        # Every step has its number in its name; without it the steps are instances of one region.
        name = "ProfilerStep" if _PROFILER_STEP.fullmatch(name) else name
        thread = self._thread(event)
        self.ranges.start.append(start)
        self.ranges.end.append(end)
        self.ranges.thread.append(thread)
        self.ranges.name.append(_number_of(name, self.strings))

    def _add_launch(self, event: dict[str, Any]) -> None:
        correlation = _optional_integer(_args(event).get("correlation"))
        if correlation == UNKNOWN:
            return
        start, name = nanoseconds(event.get("ts")), _name(event)
        thread = self._thread(event)
        self.launches.correlation.append(correlation)
        self.launches.start.append(start)
        self.launches.thread.append(thread)
        self.launches.of_graph.append(name.startswith(_GRAPH_LAUNCHES))

    def _add_kernel(self, event: dict[str, Any]) -> None:
        self._add_work(event, self.kernels)
        args = _args(event)
        grid, block = _sizes(args.get("grid")), _sizes(args.get("block"))
        self.kernels.any_grid = self.kernels.any_grid or bool(grid)
        self.kernels.sizes.extend((*(grid or (0, 0, 0)), *(block or (0, 0, 0))))
        shared = _optional_integer(args.get("shared memory"))
        self.kernels.shared.append(shared if shared <= _LARGEST_SIZE else UNKNOWN)

    def _add_copy(self, event: dict[str, Any]) -> None:
        self._add_work(event, self.copies)
        self.copies.bytes.append(max(0, _optional_integer(_args(event).get("bytes"))))

    def _add_work(self, event: dict[str, Any], work: _WorkColumns) -> None:
        start, end = _span(event)
        args = _args(event)
        # Copies between GPUs name three devices; the one that worked is `inDevice`.
        device = _integer(args.get("device", args.get("inDevice", event.get("pid"))))
        if not 0 <= device <= _LARGEST_SIZE:
            raise _Malformed
        name = _number_of(_name(event), self.strings)
        work.start.append(start)
        work.end.append(end)
        work.device.append(device)
        work.name.append(name)
        work.correlation.append(_optional_integer(args.get("correlation")))
        stream = _optional_integer(args.get("stream"))
        work.stream.append(stream if 0 <= stream <= _LARGEST_SIZE else UNKNOWN)
        work.in_graph.append(_optional_integer(args.get("graph node id")) > 0)

    def _add_metadata(self, event: dict[str, Any]) -> None:
        pid, args = event.get("pid"), event.get("args")
        if not isinstance(pid, int) or not isinstance(args, dict):
            return
        if event.get("name") == "process_name" and isinstance(args.get("name"), str):
            self.process_names.setdefault(pid, args["name"])
        if event.get("name") == "process_labels" and args.get("labels") == "CPU":
            self.host_pids.add(pid)

    def _thread(self, event: dict[str, Any]) -> int:
        pid, tid = _integer(event.get("pid")), event.get("tid")
        if not isinstance(tid, int | str):
            raise _Malformed
        # Old traces write the same thread as 123 and as "123".
        thread = _number_of((pid, str(tid)), self.threads)
        if thread == len(self.thread_process):
            self.thread_process.append(_number_of(pid, self.pids))
        return thread


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _span(event: dict[str, Any]) -> tuple[int, int]:
    start = nanoseconds(event.get("ts"))
    end = start + nanoseconds(event.get("dur"))
    if end > _LARGEST:
        raise _Malformed
    return start, end


def _name(event: dict[str, Any]) -> str:
    name = event.get("name")
    if not isinstance(name, str) or isinstance(name, DecimalText):
        raise _Malformed
    return name


def _integer(value: object) -> int:
    if isinstance(value, str) and not isinstance(value, DecimalText) and value.isascii() and value.isdigit():
        value = int(value) if len(value) < 19 else None
    if not isinstance(value, int) or isinstance(value, bool) or not -_LARGEST <= value <= _LARGEST:
        raise _Malformed
    return value


def _optional_integer(value: object) -> int:
    """A value the event is still good without."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        return UNKNOWN
    return value


def _sizes(value: object) -> tuple[int, int, int] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (_optional_integer(size) for size in value)
    return (x, y, z) if all(0 < size <= _LARGEST_SIZE for size in (x, y, z)) else None


# --- from columns to a timeline ----------------------------------------------------------------------------


def _launch_of(work: _WorkColumns, launches: _LaunchColumns) -> Int64s:
    """Index of the launching call of each piece of work, UNKNOWN where it was not recorded.

    One correlation id may stand for several calls: processes merged into one file count alike. Then it is
    the last call that began before the work did, or, should the clocks disagree, the first of them.
    """
    correlation, start = _int64(launches.correlation), _int64(launches.start)
    wanted, moment = _int64(work.correlation), _int64(work.start)
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


def _work(columns: _WorkColumns, trace: _Trace) -> Work:
    launches = trace.launches
    chosen = _launch_of(columns, launches)
    thread = _taken(_int32(launches.thread), chosen)
    in_graph = (_int32(columns.in_graph) > 0) | (_taken(_int32(launches.of_graph), chosen) > 0)
    device = _int32(columns.device)
    process = _taken(np.array(trace.thread_process, dtype=np.int32), thread.astype(np.int64))
    work = Work(
        start=_int64(columns.start),
        end=_int64(columns.end),
        process=_adopting_process(process, device),
        device=device,
        name=_int32(columns.name),
        host_time=_taken(_int64(launches.start), chosen),
        thread=thread,
        graph_node=np.where(in_graph, 0, UNKNOWN).astype(np.int32),
        stream=_int32(columns.stream),
    )
    if columns is trace.copies:
        work.bytes = _int64(columns.bytes)
    elif columns.any_grid:
        sizes = _int32(columns.sizes).reshape(-1, 6)
        # Kineto records one form of the name, the demangled one.
        work.config = LaunchConfig(
            mangled=work.name,
            short=work.name,
            grid=sizes[:, :3],
            block=sizes[:, 3:],
            shared_memory=_int32(columns.shared),
        )
    return _in_order(work)


def _in_order(work: Work) -> Work:
    order = np.argsort(work.start, kind="stable")
    for column in ("start", "end", "process", "device", "name", "host_time", "thread", "graph_node"):
        setattr(work, column, getattr(work, column)[order])
    if work.bytes is not None:
        work.bytes = work.bytes[order]
    if work.stream is not None:
        work.stream = work.stream[order]
    if work.config is not None:
        for column in ("mangled", "short", "grid", "block", "shared_memory"):
            setattr(work.config, column, getattr(work.config, column)[order])
    return work


def _ranges(trace: _Trace) -> Ranges:
    columns = trace.ranges
    start, end, thread = _int64(columns.start), _int64(columns.end), _int32(columns.thread)
    order = np.lexsort((-end, start))  # of ranges that begin together the outer one comes first
    threads = np.array(trace.thread_process, dtype=np.int32)
    return Ranges(
        start=start[order],
        end=end[order],
        process=threads[thread[order]],
        thread=thread[order],
        domain=np.zeros(len(order), dtype=np.int32),
        name=_int32(columns.name)[order],
        start_end=np.zeros(len(order), dtype=np.bool_),
    )


def _processes(trace: _Trace, rank: object) -> list[Process]:
    # A trace of the GPU alone has no events of the host; its kernels still need a process.
    pids = list(trace.pids) or [min(trace.host_pids, default=UNKNOWN)]
    processes = [Process(pid=pid, name=_printable(trace.process_names.get(pid, ""))) for pid in pids]
    if len(processes) == 1 and isinstance(rank, int) and not isinstance(rank, bool):
        processes[0].rank = rank
    return processes


def _devices(properties: object) -> dict[int, str]:
    found: dict[int, str] = {}
    for device in properties if isinstance(properties, list) else []:
        if not isinstance(device, dict):
            continue
        number, name = device.get("id"), device.get("name")
        if _is_device(number) and isinstance(name, str) and not isinstance(name, DecimalText):
            found[number] = _printable(name)
    return found


def _is_device(number: object) -> TypeGuard[int]:
    """JSON's true is a number to Python."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _LARGEST_SIZE


_FACTS = {"totalGlobalMem": "memory_bytes", "numSms": "sm_count"}


def _gpu_facts(properties: object) -> dict[int, dict[str, Any]]:
    """Attributes of the GPUs, under the names that the hardware data uses."""
    facts: dict[int, dict[str, Any]] = {}
    devices = _devices(properties)
    for device in properties if isinstance(properties, list) else []:
        if isinstance(device, dict) and _is_device(device.get("id")) and device["id"] in devices:
            number = int(device["id"])
            facts[number] = {"name": devices[number]}
            facts[number] |= {fact: device[key] for key, fact in _FACTS.items() if isinstance(device.get(key), int)}
            major, minor = device.get("computeMajor"), device.get("computeMinor")
            if isinstance(major, int) and isinstance(minor, int):
                facts[number]["compute_capability"] = f"{major}.{minor}"
    return facts


def _printable(name: str) -> str:
    """JSON can spell half of a character, which nothing later could write."""
    return shortened(name.encode("utf-8", "replace").decode("utf-8"))


def _diagnostics(trace: _Trace, source: str) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    if not trace.kernels.start:
        found.append(
            Diagnosis(
                "NO_KERNELS",
                "warning",
                f"{source} has no GPU kernels.",
                "Record again with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and with no "
                "other profiler (nsys, ncu, DCGM) on the GPU.",
            )
        )
    if not trace.ranges.start:
        found.append(
            Diagnosis(
                "NO_RANGES",
                "warning",
                f"{source} has no user annotations, so there are no regions to report on.",
                "Put `with torch.profiler.record_function('prefill'):` around the stages, and record with "
                "ProfilerActivity.CPU.",
            )
        )
    if trace.malformed:
        found.append(
            Diagnosis(
                "MALFORMED_EVENTS",
                "warning",
                f"{trace.malformed} events of {source} are malformed and were left out.",
                "Record again, or check the program that rewrote the trace.",
            )
        )
    return found


def _timeline(trace: _Trace, about: dict[str, Any], source: str) -> Timeline:
    distributed, version = about.get("distributedInfo"), about.get("schemaVersion")
    devices = _devices(about.get("deviceProperties"))
    kernels, copies = _work(trace.kernels, trace), _work(trace.copies, trace)
    timeline = Timeline(
        source=source,
        kind="kineto",
        strings=[_printable(name) for name in trace.strings],
        domains=[""],
        processes=_processes(trace, distributed.get("rank") if isinstance(distributed, dict) else None),
        threads=trace.thread_process,
        kernels=kernels,
        copies=copies,
        graphs=Work.empty(),
        ranges=_ranges(trace),
        devices=devices,
        # Nothing else of the metadata: it is free text of the program and may hold secrets.
        environment={
            "tool": _TOOL,
            "schema_version": version if isinstance(version, int) else None,
            "gpus": devices,
        },
        diagnostics=_diagnostics(trace, source),
        gpu_facts=_gpu_facts(about.get("deviceProperties")),
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
_ABOUT = frozenset({"schemaVersion", "deviceProperties", "distributedInfo", _OWN_RANGES})


def _text(stream: BinaryIO, source: str) -> str:
    try:
        data = stream.read()
        if data.startswith(b"\x1f\x8b"):  # the profiler itself writes .json.gz
            data = gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UnreadableInput(
            f"{source} is a gzip file that is cut off or damaged.", "Copy or record it again."
        ) from None
    encoding = json.detect_encoding(data)
    # Names of kernels may hold any bytes; what is no text must not cost the trace.
    return data.decode(encoding, "replace")


class _NotATrace(Exception):
    """JSON, but of another kind; the text says which."""


def _read_object(json_text: _Json, at: int, trace: _Trace, about: dict[str, Any]) -> int:
    """Reads the events into `trace` and the few other members that matter into `about`."""
    keys: list[str] = []

    def member(key: str, value_at: int) -> int:
        keys.append(key)
        if key == "traceEvents":
            if value_at == len(json_text.text):
                raise _Damaged(value_at)
            if not json_text.text.startswith("[", value_at):
                raise _NotATrace("is JSON whose `traceEvents` is no list")
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


def _read_list(json_text: _Json, at: int, trace: _Trace) -> int:
    """Chrome's older format is the list of events alone."""
    end = json_text.list(at, trace.add)
    if trace.malformed and not trace.events:
        raise _NotATrace("is a JSON list of something else than events")
    return end


def _read(json_text: _Json, trace: _Trace) -> dict[str, Any]:
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
        raise _Damaged(json_text.skip(end))
    return about


def read_kineto(stream: BinaryIO, source: str) -> Timeline:
    """Reads a trace, plain or gzipped. Raises `UnreadableInput` for what is no trace, or not a whole one."""
    json_text = _Json(_text(stream, source))
    trace = _Trace()
    try:
        about = _read(json_text, trace)
    except _NotATrace as what:
        raise UnreadableInput(f"{source} {what}.", _EXPECTED) from None
    except _Damaged as damage:
        # A cut literal (`tru`, `\\u12`, `-`) is found a few characters before the end.
        if damage.at >= len(json_text.text.rstrip()) - len("\\u123"):
            what_it_is = "is truncated: its JSON ends in the middle"
        else:
            what_it_is = f"is not valid JSON (from character {damage.at} on)"
        raise UnreadableInput(f"{source} {what_it_is}.", "Copy or record the trace again, whole.") from None
    return _timeline(trace, about, source)
