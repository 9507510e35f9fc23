"""Nsight Systems' SQLite export, every schema from 2020 on.

What the years changed: tables that are missing when they would be empty, columns that came later
(`mangledName`, `graphNodeId`, `endGlobalTid`), names as text or as ids into `StringIds`. Nothing here
asks for a version: a column is used where it exists.

Identifiers: `globalTid` packs host, process and thread, `globalPid` is the same with the thread bits
zero. A kernel finds its launch by correlation id *and* process: ids start anew in every process.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.nsys_schema import (
    AXES,
    DOMAIN,
    EXPORT_FACTS,
    GRAPH_NODES,
    GRAPHS,
    KERNEL_NAMES,
    KERNELS,
    MEMCPY,
    MEMSET,
    NVTX,
    PUSH_POP,
    RUNTIME,
    START_END,
    SYSTEM_FACTS,
    TABLES,
)
from llm_perf_opt.readers.nsys_traffic import read_traffic
from llm_perf_opt.readers.plausible import shortened
from llm_perf_opt.readers.sqlite_columns import ROWID, Column, quoted, read_columns, sqlite_uri
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

# One of these is in every export of nsys; none is in another program's database.
_SIGNS_OF_NSYS = (
    "StringIds",
    KERNELS,
    RUNTIME,
    NVTX,
    "META_DATA_EXPORT",
    "ANALYSIS_DETAILS",
    "TARGET_INFO_GPU",
)

_THREAD_BITS = 0xFFFFFF
_NEVER = -(2**63)  # stands for the missing end of a range that was never closed

# The second: SQLite's own message quotes the bytes it stumbled over, and Python cannot decode them.
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)

_LONGEST_CHAIN = 64  # nodes from an instantiated to a captured one; one step was ever seen

Progress = Callable[[int], None]


def looks_like_sqlite(head: bytes) -> bool:
    return head.startswith(b"SQLite format 3\x00")


def read_nsys_sqlite(
    path: Path, source: str, *, launch_config: bool = False, streams: bool = False, progress: Progress | None = None
) -> Timeline:
    """Read an export. `launch_config`: also what is needed to join counters; `streams`: also the stream of all work.

    `progress` is called with the number of rows as they are read; `count_rows` says how many there are.
    """
    with _Export.open(path, source) as export:
        export.streams = streams
        return export.timeline(launch_config, progress)


def count_rows(path: Path, source: str) -> int:
    """About how many rows a read will report to its progress callback. Cheap: no table is scanned."""
    with _Export.open(path, source) as export:
        return sum(export.size(table) for table in (KERNELS, RUNTIME, NVTX))


@define(eq=False)
class _Launches:
    """The runtime calls that launched something: sorted nothing, joined by correlation id and process."""

    start: Int64s
    thread: Int64s  # globalTid
    correlation: Int64s


@define(eq=False)
class _Export:
    """An open export: which tables and columns it has, and how to read them."""

    path: Path
    source: str
    plain: sqlite3.Connection
    schema: dict[str, set[str]]
    strings: list[str] = field(factory=list)
    _string_of_id: dict[int, int] = field(factory=dict)
    _string_of_text: dict[str, int] = field(factory=dict)
    diagnostics: list[Diagnosis] = field(factory=list)
    streams: bool = False

    @staticmethod
    def open(path: Path, source: str) -> _Export:
        refuse_truncated(path, source)
        try:
            plain = _connect(path)
            # Views are left out on purpose: nsys writes tables, and a view of a stranger's file is code.
            tables = [name for (name,) in plain.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            schema = {
                table: {row[1] for row in plain.execute(f"PRAGMA table_info({quoted(table)})")} & {*known.columns}
                for table, known in TABLES.items()
                if table in tables
            }
        except _DAMAGE as error:
            raise UnreadableInput(
                f"{source} is a damaged SQLite file ({error}); an Nsight Systems export was expected.",
                "Export it again: nsys export --type sqlite -o OUT.sqlite IN.nsys-rep",
            ) from error
        if not any(table in tables for table in _SIGNS_OF_NSYS):
            plain.close()
            raise UnreadableInput(
                f"{source} is an SQLite database of another program (tables: {', '.join(sorted(tables)[:5]) or 'none'}); "
                "an Nsight Systems export was expected.",
                "Make one with: nsys export --type sqlite -o OUT.sqlite IN.nsys-rep",
            )
        return _Export(path, source, plain, schema)

    def __enter__(self) -> _Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.plain.close()

    # -- small helpers --------------------------------------------------------------------------

    def has(self, table: str, *columns: str) -> bool:
        return table in self.schema and all(column in self.schema[table] for column in columns)

    def size(self, table: str) -> int:
        """An upper bound of the rows, read from the end of the table."""
        if not self.has(table):
            return 0
        ((last,),) = self.rows(f"SELECT MAX(rowid) FROM {quoted(table)}")  # noqa: S608 - a table of the file
        # A row takes at least a few bytes: a larger number is not a row count.
        return min(int(last or 0), self.path.stat().st_size // 8)

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> Iterable[Any]:
        try:
            yield from self.plain.execute(query, tuple(parameters))
        except _DAMAGE as error:
            raise _damaged(self.source, error) from error

    def columns(
        self, table: str, wanted: Mapping[str, Column], progress: Progress | None = None
    ) -> dict[str, NDArray[Any]]:
        """Columns of a table; one that this schema does not have is filled with its stand-in for NULL."""
        known = {key: c for key, c in wanted.items() if c.name == ROWID or self.has(table, c.name)}
        try:
            # A connection of its own: tables are read in threads, side by side.
            with contextlib.closing(_connect(self.path)) as connection:
                found = read_columns(self.path, connection, table, known, progress)
        except _DAMAGE as error:
            raise _damaged(self.source, error) from error
        rows = len(next(iter(found.values())))
        return {
            key: found[key] if key in found else np.full(rows, column.null, dtype=column.dtype)
            for key, column in wanted.items()
        }

    # -- strings --------------------------------------------------------------------------------

    def intern_text(self, text: str) -> int:
        text = shortened(text)
        number = self._string_of_text.get(text)
        if number is None:
            number = self._string_of_text[text] = len(self.strings)
            self.strings.append(text)
        return number

    def intern_ids(self, ids: Int64s) -> Int32s:
        """Indices into `strings` for a column of `StringIds` ids. Only the strings in use are read."""
        if len(ids) == 0:
            return np.zeros(0, dtype=np.int32)
        low, high = int(ids.min()), int(ids.max())
        dense = high - low <= 4 * len(ids) + 65536
        used = np.flatnonzero(np.bincount(ids - low)) + low if dense else np.unique(ids)
        missing = [int(i) for i in used if int(i) not in self._string_of_id]
        if self.has("StringIds", "id", "value"):
            for begin in range(0, len(missing), 500):
                part = missing[begin : begin + 500]
                marks = ",".join("?" * len(part))
                query = f"SELECT id, value FROM StringIds WHERE id IN ({marks})"  # noqa: S608 - only marks
                for number, value in self.rows(query, part):
                    self._string_of_id[number] = self.intern_text(str(value))
        unknown = [i for i in missing if i not in self._string_of_id]
        for number in unknown:
            self._string_of_id[number] = self.intern_text(f"(name {number} is not in the recording)")
        index = np.array([self._string_of_id[int(i)] for i in used], dtype=np.int32)
        return index[np.searchsorted(used, ids)]

    # -- the timeline ---------------------------------------------------------------------------

    def timeline(self, launch_config: bool, progress: Progress | None) -> Timeline:
        # The two large tables are read side by side: the driver works outside Python's lock.
        with ThreadPoolExecutor(max_workers=1) as worker:
            pending = worker.submit(self._launches, progress)
            kernels = self._kernel_columns(launch_config, progress)
            launches = pending.result()
        copies = [self._copy_columns(table) for table in (MEMCPY, MEMSET)]
        graphs = self._work_columns(GRAPHS, {})
        nodes = self._node_columns()
        ranges, domain_rows = self._range_columns(progress)

        columns = [kernels, *copies, graphs]
        process_ids = _distinct(
            *(c["pid"] for c in columns), ranges["tid"] & ~_THREAD_BITS, nodes["tid"] & ~_THREAD_BITS
        )
        joined = [_join(c, launches, process_ids) for c in columns]
        del launches
        thread_ids = _distinct(*(tid for _, tid in joined), ranges["tid"], nodes["tid"])
        thread_ids = thread_ids[thread_ids != UNKNOWN]

        works = []
        for c, (host_time, tid) in zip(columns, joined, strict=True):
            works.append(self._work(c, host_time, tid, process_ids, thread_ids, nodes))
        domains, domain_of_range = self._domains(ranges, domain_rows)
        kernel_work, memcpy, memset, graph_work = works
        timeline = Timeline(
            source=self.source,
            kind="nsys-sqlite",
            strings=self.strings,
            domains=domains,
            processes=self._processes(process_ids),
            threads=_places(process_ids, thread_ids & ~_THREAD_BITS).tolist(),
            kernels=kernel_work,
            copies=_sorted_together(memcpy, memset),
            graphs=graph_work,
            ranges=self._ranges(ranges, domain_of_range, process_ids, thread_ids, works),
            graph_nodes=GraphNodes(nodes["time"], _places(thread_ids, nodes["tid"]).astype(np.int32)),
            devices=self._devices(),
            environment=self._environment(),
            diagnostics=self.diagnostics,
            gpu_facts=self._gpu_facts(),
            traffic=read_traffic(self) if launch_config else {},
        )
        self._diagnose(timeline)
        return timeline

    def _kernel_columns(self, launch_config: bool, progress: Progress | None) -> dict[str, NDArray[Any]]:
        name = next((c for c in KERNEL_NAMES if self.has(KERNELS, c)), "demangledName")
        extra = {"name": Column(name, UNKNOWN)}
        if launch_config and self.has(KERNELS, "gridX", "blockX"):
            extra |= {axis: Column(axis, 1, np.int32) for axis in AXES}
            extra |= {"static": Column("staticSharedMemory", 0, np.int32)}
            extra |= {"dynamic": Column("dynamicSharedMemory", 0, np.int32)}
            extra |= {"mangled": Column("mangledName", UNKNOWN), "short": Column("shortName", UNKNOWN)}
        columns = self._work_columns(KERNELS, extra, progress)
        for key in ("name", "mangled", "short"):
            if key in columns:
                columns[key] = self.intern_ids(columns[key])
        return columns

    def _copy_columns(self, table: str) -> dict[str, NDArray[Any]]:
        columns = self._work_columns(table, {"bytes": Column("bytes"), "kind": Column("copyKind", UNKNOWN)})
        label = "memcpy" if table == MEMCPY else "memset"
        directions = {}
        if table == MEMCPY and self.has("ENUM_CUDA_MEMCPY_OPER", "id", "label"):
            directions = dict(self.rows("SELECT id, label FROM ENUM_CUDA_MEMCPY_OPER"))
        kinds = columns.pop("kind")
        names = {
            k: self.intern_text(f"[{label} {directions[k]}]" if k in directions else f"[{label}]")
            for k in np.unique(kinds).tolist()
        }
        columns["name"] = np.array([names[k] for k in kinds.tolist()], dtype=np.int32)
        return columns

    def _work_columns(
        self, table: str, extra: Mapping[str, Column], progress: Progress | None = None
    ) -> dict[str, NDArray[Any]]:
        """The columns every kind of GPU work has, in order of start."""
        wanted = {
            "start": Column("start"),
            "end": Column("end"),
            "device": Column("deviceId"),
            "correlation": Column("correlationId", UNKNOWN),
            "pid": Column("globalPid"),
            "node": Column("graphNodeId", UNKNOWN),
            **({"stream": Column("streamId", UNKNOWN, np.int32)} if self.streams else {}),
            **extra,
        }
        if not self.has(table, "start", "end"):
            if self.has(table):
                self.diagnostics.append(
                    Diagnosis(
                        "UNKNOWN_SCHEMA",
                        "warning",
                        f"The table {table} of {self.source} has no start and end columns and was not read.",
                    )
                )
            return {key: np.zeros(0, dtype=column.dtype) for key, column in wanted.items()}
        columns = self.columns(table, wanted, progress)
        if (columns["start"][1:] < columns["start"][:-1]).any():
            order = np.argsort(columns["start"], kind="stable")
            columns = {key: values[order] for key, values in columns.items()}
        _refuse_impossible(self.source, table, columns["start"], columns["end"])
        if len(columns["device"]) and not 0 <= int(columns["device"].min()) <= int(columns["device"].max()) < 2**31:
            raise _damaged(self.source, ValueError(f"{table} names impossible devices"))
        columns["device"] = columns["device"].astype(np.int32)
        backwards = int((columns["end"] < columns["start"]).sum())
        if backwards:
            raise UnreadableInput(
                f"{self.source} is damaged: {backwards} rows of {table} end before they start.",
                "Export it again: nsys export --type sqlite -o OUT.sqlite IN.nsys-rep",
            )
        return columns

    def _launches(self, progress: Progress | None) -> _Launches:
        if not self.has(RUNTIME, "start", "globalTid", "correlationId"):
            empty = np.zeros(0, dtype=np.int64)
            return _Launches(empty, empty, empty)
        columns = self.columns(
            RUNTIME,
            {"start": Column("start"), "tid": Column("globalTid"), "correlation": Column("correlationId", UNKNOWN)},
            progress,
        )
        return _Launches(columns["start"], columns["tid"], columns["correlation"])

    def _node_columns(self) -> dict[str, NDArray[Any]]:
        """Graph nodes with the moment they were captured; an instantiated node points to the captured one."""
        if not self.has(GRAPH_NODES, "start", "graphNodeId"):
            empty = np.zeros(0, dtype=np.int64)
            return {"id": empty, "time": empty, "tid": empty, "pid": empty}
        rows = self.columns(
            GRAPH_NODES,
            {
                "time": Column("start"),
                "tid": Column("globalTid", UNKNOWN),
                "id": Column("graphNodeId"),
                "original": Column("originalGraphNodeId", UNKNOWN),
            },
        )
        process = rows["tid"] & ~_THREAD_BITS
        keys = list(zip(process.tolist(), rows["id"].tolist(), strict=True))
        original = rows["original"]
        row_of: dict[tuple[int, int], int] = {}
        for row, key in enumerate(keys):
            # An instantiated node has two rows: one for its creation, and one that names its original.
            if key not in row_of or (original[row] != UNKNOWN and original[row_of[key]] == UNKNOWN):
                row_of[key] = row
        captured = []
        for key in keys:
            at = row_of[key]
            seen = {at}
            while original[at] != UNKNOWN and len(seen) < _LONGEST_CHAIN:
                following = row_of.get((int(process[at]), int(original[at])))
                if following is None or following in seen:
                    break
                seen.add(following)
                at = following
            captured.append(at)
        at_capture = np.array(captured, dtype=np.int64)
        return {
            "id": rows["id"],
            "time": rows["time"][at_capture],
            "tid": rows["tid"][at_capture],
            "pid": process,
        }

    def _work(
        self,
        columns: dict[str, NDArray[Any]],
        host_time: Int64s,
        tid: Int64s,
        process_ids: Int64s,
        thread_ids: Int64s,
        nodes: dict[str, NDArray[Any]],
    ) -> Work:
        config = None
        if "gridX" in columns:
            config = LaunchConfig(
                mangled=columns["mangled"],
                short=columns["short"],
                grid=np.stack([columns["gridX"], columns["gridY"], columns["gridZ"]], axis=1),
                block=np.stack([columns["blockX"], columns["blockY"], columns["blockZ"]], axis=1),
                shared_memory=columns["static"] + columns["dynamic"],
            )
        count = len(columns["start"])
        return Work(
            start=columns["start"],
            end=columns["end"],
            process=_places(process_ids, columns["pid"]).astype(np.int32),
            device=columns["device"],
            name=columns.get("name", np.full(count, self._graph_name() if count else 0, dtype=np.int32)),
            host_time=host_time,
            thread=_places(thread_ids, tid).astype(np.int32),
            graph_node=_graph_nodes(columns, nodes),
            bytes=columns.get("bytes"),
            config=config,
            stream=columns.get("stream"),
        )

    def _graph_name(self) -> int:
        return self.intern_text("[CUDA graph]")

    # -- ranges ---------------------------------------------------------------------------------

    def _range_columns(self, progress: Progress | None) -> tuple[dict[str, NDArray[Any]], list[Any]]:
        """Push/pop and start/end ranges, and the rows that name domains."""
        wanted = {
            "start": Column("start"),
            "end": Column("end", _NEVER),
            "type": Column("eventType", 0, np.int32),
            "tid": Column("globalTid", UNKNOWN),
            "domain": Column("domainId"),
            "text_id": Column("textId", UNKNOWN),
            "row": Column(ROWID),
        }
        if not self.has(NVTX, "start", "end", "eventType"):
            empty: dict[str, NDArray[Any]] = {key: np.zeros(0, dtype=c.dtype) for key, c in wanted.items()}
            return empty | {"name": np.zeros(0, dtype=np.int32)}, []
        kinds = (*PUSH_POP, *START_END)
        columns = self.columns(NVTX, wanted, progress)
        chosen = np.isin(columns["type"], kinds)
        columns = {key: values[chosen] for key, values in columns.items()}
        columns["name"] = self._range_names(columns)
        name = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"
        if not self.has(NVTX, "text"):
            name = "(SELECT value FROM StringIds WHERE id = textId)"
        elif not self.has(NVTX, "textId") or not self.has("StringIds", "id", "value"):
            name = "text"
        domain_rows: list[Any] = []
        if self.has(NVTX, "domainId", "globalTid"):
            domain_rows = list(
                self.rows(f"SELECT globalTid, domainId, {name} FROM {NVTX} WHERE eventType = {DOMAIN}")  # noqa: S608
            )
        return columns, domain_rows

    def _range_names(self, columns: dict[str, NDArray[Any]]) -> Int32s:
        """Names of ranges: registered strings by id, others as text in the row itself."""
        names = np.full(len(columns["start"]), UNKNOWN, dtype=np.int32)
        registered = columns["text_id"] != UNKNOWN
        names[registered] = self.intern_ids(columns["text_id"][registered])
        if self.has(NVTX, "text"):
            place = {row: at for at, row in enumerate(columns["row"].tolist())}
            for row, text in self.rows(f"SELECT rowid, text FROM {NVTX} WHERE text IS NOT NULL"):  # noqa: S608 - a constant
                if row in place:
                    names[place[row]] = self.intern_text(_as_text(text))
        nameless = names == UNKNOWN
        if nameless.any():
            names[nameless] = self.intern_text("(unnamed)")
        return names

    def _domains(self, ranges: dict[str, NDArray[Any]], domain_rows: list[Any]) -> tuple[list[str], Int32s]:
        """Names of domains. Ids are per process; the same name in two processes is one domain."""
        name_of: dict[tuple[int, int], str] = {}
        for tid, domain, name in domain_rows:
            if isinstance(tid, int) and isinstance(domain, int) and name is not None:
                name_of[tid & ~_THREAD_BITS, domain] = str(name)
        numbered: dict[str, int] = {"": 0}
        keys = np.stack([ranges["tid"] & ~_THREAD_BITS, ranges["domain"]], axis=1)
        result = np.zeros(len(keys), dtype=np.int32)
        if len(keys) == 0:
            return list(numbered), result
        distinct, which = np.unique(keys, axis=0, return_inverse=True)
        numbers = []
        for process, domain in distinct.tolist():
            # Id 0 is the default domain; other ids without a name row keep their number as a name.
            name = name_of.get((process, domain), "" if domain == 0 else f"domain {domain}")
            numbers.append(numbered.setdefault(name, len(numbered)))
        return list(numbered), np.array(numbers, dtype=np.int32)[which.reshape(-1)]

    def _ranges(
        self,
        columns: dict[str, NDArray[Any]],
        domain: Int32s,
        process_ids: Int64s,
        thread_ids: Int64s,
        works: list[Work],
    ) -> Ranges:
        end = columns["end"]
        never_closed = end == _NEVER
        if (end[~never_closed] < columns["start"][~never_closed]).any():
            raise _damaged(self.source, ValueError(f"ranges of {NVTX} end before they start"))
        _refuse_impossible(self.source, NVTX, columns["start"][~never_closed], end[~never_closed])
        _refuse_impossible(self.source, NVTX, columns["start"][never_closed], columns["start"][never_closed])
        if never_closed.any():
            last = max(
                [int(columns["start"].max()), int(end.max())] + [int(work.end.max()) for work in works if len(work)]
            )
            end = np.where(never_closed, last, end)
            self.diagnostics.append(
                Diagnosis(
                    "OPEN_RANGES",
                    "warning",
                    f"{int(never_closed.sum())} ranges were never closed in the recording; they count until its end.",
                    "Close every range (pop or end) before the capture stops, or capture longer.",
                )
            )
        return Ranges(
            start=columns["start"],
            end=end,
            process=_places(process_ids, columns["tid"] & ~_THREAD_BITS).astype(np.int32),
            thread=_places(thread_ids, columns["tid"]).astype(np.int32),
            domain=domain,
            name=columns["name"],
            start_end=np.isin(columns["type"], START_END),
        )

    # -- who and where --------------------------------------------------------------------------

    def _processes(self, process_ids: Int64s) -> list[Process]:
        names: dict[int, str] = {}
        if self.has("PROCESSES", "globalPid", "name"):
            for gid, name in self.rows("SELECT globalPid, name FROM PROCESSES"):
                names[gid] = Path(str(name)).name if name else ""
        return [Process(pid=(gid >> 24) & 0xFFFFFF, name=names.get(gid, "")) for gid in process_ids.tolist()]

    def _devices(self) -> dict[int, str]:
        if not self.has("TARGET_INFO_GPU", "id", "name"):
            return {}
        column = "cuDevice" if self.has("TARGET_INFO_GPU", "cuDevice") else "id"
        query = f"SELECT COALESCE({column}, id), name FROM TARGET_INFO_GPU"  # noqa: S608 - one of two names
        return {int(i): str(name) for i, name in self.rows(query) if isinstance(i, int) and name}

    def _gpu_facts(self) -> dict[int, dict[str, Any]]:
        """Attributes of the GPUs, under the names that the hardware data uses."""
        if not self.has("TARGET_INFO_GPU", "id", "name"):
            return {}
        wanted = {
            "name": "name",
            "smCount": "sm_count",
            "clockRate": "clock_hz",
            "totalMemory": "memory_bytes",
            "l2CacheSize": "l2_bytes",
            "memoryBandwidth": "bandwidth_bytes_per_s",
            "uuid": "uuid",
            "computeMajor": "major",
            "computeMinor": "minor",
        }
        columns = [column for column in wanted if self.has("TARGET_INFO_GPU", column)]
        number = "cuDevice" if self.has("TARGET_INFO_GPU", "cuDevice") else "id"
        query = f"SELECT COALESCE({number}, id), {', '.join(columns)} FROM TARGET_INFO_GPU"  # noqa: S608 - from the list above
        facts: dict[int, dict[str, Any]] = {}
        for device, *values in self.rows(query):
            if isinstance(device, int):
                own = {wanted[column]: value for column, value in zip(columns, values, strict=True) if value}
                major = own.pop("major", None)
                minor = own.pop("minor", 0)
                if major:
                    own["compute_capability"] = f"{major}.{minor}"
                facts[device] = own
        return facts

    def _environment(self) -> dict[str, Any]:
        environment: dict[str, Any] = {"tool": "Nsight Systems", "gpus": self._devices()}
        if self.has("META_DATA_EXPORT", "name", "value"):
            for name, value in self.rows("SELECT name, value FROM META_DATA_EXPORT"):
                if name in EXPORT_FACTS:
                    environment[EXPORT_FACTS[name]] = str(value)
        if self.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
            for name, value in self.rows("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"):
                if name in SYSTEM_FACTS:
                    environment[SYSTEM_FACTS[name]] = str(value)
        if self.has("TARGET_INFO_SESSION_START_TIME", "utcTime"):
            for (value,) in self.rows("SELECT utcTime FROM TARGET_INFO_SESSION_START_TIME"):
                environment["recorded_at"] = str(value)
        return environment

    def _diagnose(self, timeline: Timeline) -> None:
        """Name what is missing, so that an empty table is never the only answer."""
        say = self.diagnostics.append
        kernels = timeline.kernels
        if len(kernels) == 0 and len(timeline.graphs) == 0:
            say(
                Diagnosis(
                    "NO_KERNELS",
                    "warning",
                    f"{self.source} holds no GPU kernels: CUDA was not traced, or nothing was launched while recording.",
                    "Record with: nsys profile -t cuda,nvtx -s none -o OUT CMD",
                )
            )
        if len(timeline.ranges) == 0:
            say(
                Diagnosis(
                    "NO_RANGES",
                    "warning",
                    f"{self.source} holds no NVTX ranges, so there are no regions to report; kernels are listed as a whole.",
                    "Mark stages with torch.cuda.nvtx.range or nvtx.annotate and record with -t cuda,nvtx.",
                )
            )
        lost = int((kernels.host_time == UNKNOWN).sum())
        if lost:
            cause = (
                "the recording has no CUDA API calls"
                if not self.has(RUNTIME)
                else "their launching calls are not in the recording"
            )
            say(
                Diagnosis(
                    "UNKNOWN_LAUNCHES",
                    "warning",
                    f"{lost:,} of {len(kernels):,} kernels belong to no region because {cause}.",
                    "Record from the start of the program, or make the capture range wider.",
                )
            )
        if len(timeline.graphs):
            say(
                Diagnosis(
                    "WHOLE_GRAPHS",
                    "info",
                    f"{len(timeline.graphs):,} CUDA graph launches were traced as one block each: their time is counted "
                    "to the region around the launch, their kernels were not recorded.",
                    "Record with --cuda-graph-trace=node to see the kernels inside graphs.",
                )
            )


def _as_text(value: object) -> str:
    """Names may be stored as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(sqlite_uri(path), uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def _damaged(source: str, error: Exception) -> UnreadableInput:
    return UnreadableInput(
        f"{source} is a damaged Nsight Systems export ({error}).",
        "Export it again: nsys export --type sqlite -o OUT.sqlite IN.nsys-rep",
    )


def _refuse_impossible(source: str, table: str, start: Int64s, end: Int64s) -> None:
    """Times so large that sums or differences of them would overflow are damage, or malice."""
    for column in (start, end):
        if len(column) and (int(column.min()) <= -(2**61) or int(column.max()) >= 2**61):
            raise _damaged(source, ValueError(f"{table} holds impossible times"))
    if len(start) and float(end.sum(dtype=np.float64) - start.sum(dtype=np.float64)) >= 2**61:
        raise _damaged(source, ValueError(f"{table} holds impossible durations"))


def refuse_truncated(path: Path, source: str) -> None:
    """SQLite reads what is there of a cut file without a word; its header says how long it should be."""
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100:
        raise UnreadableInput(f"{source} is cut off: {len(head)} bytes are not even an SQLite header.")
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    # The page count in the header is valid when these two counters agree (SQLite file format, 1.3.7).
    if head[24:28] == head[92:96] and page * pages > path.stat().st_size:
        raise UnreadableInput(
            f"{source} is cut off: {path.stat().st_size:,} of {page * pages:,} bytes are there.",
            "Copy or export the file again.",
        )


def _distinct(*columns: Int64s) -> Int64s:
    """Sorted distinct values of several columns, most of which hold one value only."""
    found: set[int] = set()
    for values in columns:
        if len(values) == 0:
            continue
        if (values == values[0]).all():
            found.add(int(values[0]))
        else:
            found.update(np.unique(values).tolist())
    return np.array(sorted(found), dtype=np.int64)


def _places(ids: Int64s, values: Int64s) -> Int64s:
    """Position of each value in the sorted `ids`; UNKNOWN for values that are not there."""
    if len(ids) == 0 or len(values) == 0:
        return np.full(len(values), UNKNOWN, dtype=np.int64)
    if len(ids) == 1:
        return np.where(values == ids[0], 0, UNKNOWN)
    at = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
    return np.where(ids[at] == values, at, UNKNOWN)


def _join(columns: dict[str, NDArray[Any]], launches: _Launches, process_ids: Int64s) -> tuple[Int64s, Int64s]:
    """Launch time and thread of each piece of work, by correlation id within its process."""
    correlation = columns.pop("correlation")
    time = np.full(len(correlation), UNKNOWN, dtype=np.int64)
    thread = np.full(len(correlation), UNKNOWN, dtype=np.int64)
    if len(correlation) == 0 or len(launches.start) == 0:
        return time, thread
    callers = launches.thread & ~_THREAD_BITS
    # Exports of 2020 have no process column: then there is one process, and the ids suffice.
    anonymous = (columns["pid"] == 0).all() and not (callers == 0).any()
    if anonymous:
        columns["pid"] = np.full(len(correlation), callers[0], dtype=np.int64)
    for process in _distinct(columns["pid"]).tolist():
        calls = np.flatnonzero(callers == process) if len(process_ids) > 1 else np.arange(len(callers))
        work = np.flatnonzero(columns["pid"] == process) if len(process_ids) > 1 else slice(None)
        row = _lookup(launches.correlation[calls], correlation[work])
        found = row >= 0
        rows = calls[np.maximum(row, 0)] if len(calls) else np.zeros(len(row), dtype=np.int64)
        if len(calls) == 0:
            continue
        time[work] = np.where(found, launches.start[rows], UNKNOWN)
        thread[work] = np.where(found, launches.thread[rows], UNKNOWN)
    return time, thread


def _lookup(keys: Int64s, wanted: Int64s) -> Int64s:
    """Position in `keys` of each wanted key, the first where several are equal; UNKNOWN where none is."""
    if len(keys) == 0:
        return np.full(len(wanted), UNKNOWN, dtype=np.int64)
    high = int(keys.max())
    if 0 <= high <= 8 * len(keys) + 2**20 and keys.min() >= UNKNOWN:
        # Correlation ids count up from 1: an array indexed by id is the fastest table there is.
        table = np.full(high + 2, UNKNOWN, dtype=np.int32 if len(keys) < 2**31 else np.int64)
        table[keys[::-1]] = np.arange(len(keys) - 1, -1, -1, dtype=table.dtype)
        inside = (wanted >= 0) & (wanted <= high)
        return np.where(inside, table[np.where(inside, wanted, 0)], UNKNOWN)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.minimum(np.searchsorted(ordered, wanted), len(keys) - 1)
    return np.where((ordered[at] == wanted) & (wanted >= 0), order[at], UNKNOWN)


def _graph_nodes(columns: dict[str, NDArray[Any]], nodes: dict[str, NDArray[Any]]) -> Int32s:
    """Row of each piece's graph node; one node with unknown capture stands for those that have no row."""
    count = len(columns["start"])
    if "node" not in columns or not (columns["node"] != UNKNOWN).any():
        return np.full(count, UNKNOWN, dtype=np.int32)
    result = np.full(count, UNKNOWN, dtype=np.int32)
    inside = columns["node"] != UNKNOWN
    row_of: dict[tuple[int, int], int] = {}
    for row, key in enumerate(zip(nodes["pid"].tolist(), nodes["id"].tolist(), strict=True)):
        row_of.setdefault(key, row)
    pairs = np.stack([columns["pid"][inside], columns["node"][inside]], axis=1)
    distinct, which = np.unique(pairs, axis=0, return_inverse=True)
    rows = []
    for pid, node in distinct.tolist():
        known = row_of.get((pid, node))
        rows.append(_unknown_node(nodes) if known is None else known)
    result[inside] = np.array(rows, dtype=np.int32)[which.reshape(-1)]
    return result


def _unknown_node(nodes: dict[str, NDArray[Any]]) -> int:
    """Row of the node that stands for all whose capture was not recorded; added when first needed."""
    if len(nodes["id"]) == 0 or nodes["id"][-1] != UNKNOWN:
        for key in nodes:
            nodes[key] = np.append(nodes[key], UNKNOWN)
    return len(nodes["id"]) - 1


def _sorted_together(first: Work, second: Work) -> Work:
    """Two columns of copies and fills as one, in order of start."""
    fields = ["start", "end", "process", "device", "name", "host_time", "thread", "graph_node", "bytes"]
    fields += ["stream"] if first.stream is not None and second.stream is not None else []
    merged = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in fields}
    order = np.argsort(merged["start"], kind="stable")
    ordered: dict[str, Any] = {name: values[order] for name, values in merged.items()}
    return Work(**ordered)
