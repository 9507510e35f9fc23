"""GPU work of an Nsight Systems export: kernels, copies and graphs, each with the call that launched it.

A kernel finds its launch by correlation id *and* process: ids start anew in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.nsys_export import (
    EXPORT_AGAIN,
    THREAD_BITS,
    Export,
    Progress,
    damaged,
    places_of,
    refuse_impossible,
)
from llm_perf_opt.readers.nsys_schema import AXES, GRAPH_NODES, KERNEL_NAMES, KERNELS, MEMCPY, RUNTIME
from llm_perf_opt.readers.sqlite_columns import Column
from llm_perf_opt.regions.blocks import blocks_of
from llm_perf_opt.regions.columns import UNKNOWN, Int32s, Int64s, LaunchConfig, Work
from llm_perf_opt.regions.distinct import distinct

# CUPTI's numbers, of exports that have no table of them.
_PREFETCH = 3  # why a page of unified memory moved: it was asked for, and nothing waits for it
_PREFETCHED = 1 << 20  # on top of a kind
_DIRECTIONS = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}


def kernel_columns(export: Export, launch_config: bool, progress: Progress | None) -> dict[str, NDArray[Any]]:
    name = next((c for c in KERNEL_NAMES if export.has(KERNELS, c)), "demangledName")
    extra = {"name": Column(name, UNKNOWN)}
    if launch_config and export.has(KERNELS, "gridX", "blockX"):
        extra |= {axis: Column(axis, 1, np.int32) for axis in AXES}
        extra |= {"static": Column("staticSharedMemory", 0, np.int32)}
        extra |= {"dynamic": Column("dynamicSharedMemory", 0, np.int32)}
        extra |= {"mangled": Column("mangledName", UNKNOWN), "short": Column("shortName", UNKNOWN)}
    columns = work_columns(export, KERNELS, extra, progress)
    for key in ("name", "mangled", "short"):
        if key in columns:
            columns[key] = export.intern_ids(columns[key])
    return columns


def copy_columns(export: Export, table: str) -> dict[str, NDArray[Any]]:
    extra = {"bytes": Column("bytes"), "kind": Column("copyKind", UNKNOWN)}
    sides = ("srcKind", "dstKind") if table == MEMCPY else ()
    if table == MEMCPY and export.has(MEMCPY, "migrationCause"):
        extra |= {"cause": Column("migrationCause", UNKNOWN)}
    columns = work_columns(export, table, extra | {side: Column(side, UNKNOWN, np.int32) for side in sides})
    label = "memcpy" if table == MEMCPY else "memset"
    directions = _DIRECTIONS if table == MEMCPY else {}
    if table == MEMCPY and export.has("ENUM_CUDA_MEMCPY_OPER", "id", "label"):
        directions = dict(export.rows("SELECT id, label FROM ENUM_CUDA_MEMCPY_OPER"))
    kinds = columns.pop("kind")
    directions |= {k + _PREFETCHED: f"{direction}, prefetch" for k, direction in directions.items()}
    if "cause" in columns:
        kinds = np.where(columns.pop("cause") == _PREFETCH, kinds + _PREFETCHED, kinds)
    names = {
        k: export.intern_text(f"[{label} {directions[k]}]" if k in directions else f"[{label}]")
        for k in distinct(kinds).tolist()
    }
    columns["name"] = np.array([names[k] for k in kinds.tolist()], dtype=np.int32)
    host_sides = [columns.pop(side) for side in sides]
    pageable = _pageable(export) if sides else UNKNOWN
    if pageable is not None:
        columns["pageable"] = np.logical_or.reduce(
            [np.zeros(len(kinds), dtype=np.bool_), *(s == pageable for s in host_sides)]
        )
    return columns


def _pageable(export: Export) -> int | None:
    """The number that stands for memory of the host that is not pinned; None where the export does not say."""
    if not export.has("ENUM_CUDA_MEM_KIND", "id", "label") or not export.has(MEMCPY, "srcKind", "dstKind"):
        return None
    return next(
        (number for number, label in export.rows("SELECT id, label FROM ENUM_CUDA_MEM_KIND") if label == "Pageable"),
        None,
    )


def work_columns(
    export: Export, table: str, extra: Mapping[str, Column], progress: Progress | None = None
) -> dict[str, NDArray[Any]]:
    """The columns every kind of GPU work has, in order of start."""
    wanted = {
        "start": Column("start"),
        "end": Column("end"),
        "device": Column("deviceId"),
        "correlation": Column("correlationId", UNKNOWN),
        "pid": Column("globalPid"),
        "node": Column("graphNodeId", UNKNOWN),
        **({"stream": Column("streamId", UNKNOWN, np.int32)} if export.streams else {}),
        **extra,
    }
    if not export.has(table, "start", "end"):
        if export.has(table):
            export.diagnostics.append(diagnose("UNKNOWN_SCHEMA", table=table, source=export.source))
        return {key: np.zeros(0, dtype=column.dtype) for key, column in wanted.items()}
    columns = export.columns(table, wanted, progress)
    if (columns["start"][1:] < columns["start"][:-1]).any():
        order = np.argsort(columns["start"], kind="stable")
        columns = {key: values[order] for key, values in columns.items()}
    refuse_impossible(export.source, table, columns["start"], columns["end"])
    if len(columns["device"]) and not 0 <= int(columns["device"].min()) <= int(columns["device"].max()) < 2**31:
        raise damaged(export.source, ValueError(f"{table} names impossible devices"))
    columns["device"] = columns["device"].astype(np.int32)
    backwards = int((columns["end"] < columns["start"]).sum())
    if backwards:
        raise UnreadableInput(
            f"{export.source} is damaged: {backwards} rows of {table} end before they start.", EXPORT_AGAIN
        )
    return columns


def launch_columns(export: Export, progress: Progress | None) -> dict[str, NDArray[Any]]:
    """All calls of the CUDA API, not sorted."""
    wanted = {"start": Column("start"), "tid": Column("globalTid"), "correlation": Column("correlationId", UNKNOWN)}
    wanted |= {"end": Column("end"), "name": Column("nameId", UNKNOWN, np.int32)}
    if not export.has(RUNTIME, "start", "globalTid", "correlationId"):
        return {key: np.zeros(0, dtype=np.int64) for key in wanted}
    return export.columns(RUNTIME, wanted, progress)


def node_columns(export: Export) -> dict[str, NDArray[Any]]:
    """Graph nodes with the moment they were captured; an instantiated node points to the captured one."""
    if not export.has(GRAPH_NODES, "start", "graphNodeId"):
        return {key: np.zeros(0, dtype=np.int64) for key in ("id", "time", "tid", "pid")}
    wanted = {"time": Column("start"), "tid": Column("globalTid", UNKNOWN)}
    wanted |= {"id": Column("graphNodeId"), "original": Column("originalGraphNodeId", UNKNOWN)}
    rows = export.columns(GRAPH_NODES, wanted)
    process = rows["tid"] & ~THREAD_BITS
    keys = list(zip(process.tolist(), rows["id"].tolist(), strict=True))
    original = rows["original"]
    row_of: dict[tuple[int, int], int] = {}
    for row, key in enumerate(keys):
        # An instantiated node has two rows: one for its creation, and one that names its original.
        if key not in row_of or (original[row] != UNKNOWN and original[row_of[key]] == UNKNOWN):
            row_of[key] = row
    next_of = list(zip(process.tolist(), original.tolist(), strict=True))
    end_of: dict[int, int] = {}  # of each row the one its chain ends at; every chain is walked once
    for key in keys:
        at, walked = row_of[key], []
        while at not in end_of:
            walked.append(at)
            end_of[at] = at
            at = row_of.get(next_of[at], at) if next_of[at][1] != UNKNOWN else at
        end_of.update(dict.fromkeys(walked, end_of[at]))
    at_capture = np.array([end_of[row_of[key]] for key in keys], dtype=np.int64)
    return {"id": rows["id"], "time": rows["time"][at_capture], "tid": rows["tid"][at_capture], "pid": process}


def build_work(
    export: Export,
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
            grid=np.stack([columns[axis] for axis in AXES[:3]], axis=1),
            block=np.stack([columns[axis] for axis in AXES[3:]], axis=1),
            shared_memory=columns["static"] + columns["dynamic"],
        )
    count = len(columns["start"])
    return Work(
        start=columns["start"],
        end=columns["end"],
        process=places_of(process_ids, columns["pid"]).astype(np.int32),
        device=columns["device"],
        name=columns.get("name", np.full(count, export.intern_text("[CUDA graph]") if count else 0, dtype=np.int32)),
        host_time=host_time,
        thread=places_of(thread_ids, tid).astype(np.int32),
        graph_node=_graph_nodes(columns, nodes),
        bytes=columns.get("bytes"),
        pageable=columns.get("pageable"),
        config=config,
        stream=columns.get("stream"),
    )


def know_process(columns: dict[str, NDArray[Any]], launches: Mapping[str, NDArray[Any]]) -> None:
    """Exports of 2020 have no process column: then there is one process, that of the calls."""
    if not len(columns["pid"]) or not len(launches["tid"]) or columns["pid"].any():
        return
    callers = launches["tid"] & ~THREAD_BITS
    if not (callers == 0).any():
        columns["pid"] = np.full(len(columns["pid"]), callers[0], dtype=np.int64)


def join_launches(
    columns: dict[str, NDArray[Any]], launches: dict[str, NDArray[Any]], process_ids: Int64s
) -> tuple[Int64s, Int64s]:
    """Launch time and thread of each piece of work, by correlation id within its process."""
    correlation = columns.pop("correlation")
    time = np.full(len(correlation), UNKNOWN, dtype=np.int64)
    thread = np.full(len(correlation), UNKNOWN, dtype=np.int64)
    if len(correlation) == 0 or len(launches["start"]) == 0:
        return time, thread
    for process in distinct(columns["pid"]).tolist():
        several = len(process_ids) > 1
        calls = np.flatnonzero(launches["tid"] & ~THREAD_BITS == process) if several else None
        work = np.flatnonzero(columns["pid"] == process) if several else np.arange(len(correlation))
        keys = launches["correlation"] if calls is None else launches["correlation"][calls]
        if not len(keys):
            continue
        row_of = _lookup(keys)
        for which in blocks_of(work, len(correlation)):
            row = row_of(correlation[which])
            missing = row < 0
            rows = row if calls is None else calls[row]
            for result, known in ((time, launches["start"]), (thread, launches["tid"])):
                found = known[rows]
                found[missing] = UNKNOWN
                result[which] = found
    return time, thread


def _lookup(keys: Int64s) -> Callable[[Int64s], Int64s]:
    """For wanted keys the position of each in `keys`, the first where several are equal; UNKNOWN where none is."""
    order = None
    if (keys[1:] < keys[:-1]).any():  # ids count up, and so do the calls of one thread
        order = np.argsort(keys, kind="stable")
        keys = keys[order]

    def row_of(wanted: Int64s) -> Int64s:
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where((keys[at] == wanted) & (wanted >= 0), at if order is None else order[at], UNKNOWN)

    return row_of


def _graph_nodes(columns: dict[str, NDArray[Any]], nodes: dict[str, NDArray[Any]]) -> Int32s:
    """Row of each piece's graph node; one node with unknown capture stands for those that have no row."""
    result = np.full(len(columns["start"]), UNKNOWN, dtype=np.int32)
    inside = columns["node"] != UNKNOWN
    if not inside.any():
        return result
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


def sorted_together(first: Work, second: Work) -> Work:
    """Two columns of copies and fills as one, in order of start."""
    fields = ["start", "end", "process", "device", "name", "host_time", "thread", "graph_node", "bytes"]
    optional = ("stream", "pageable")
    fields += [name for name in optional if getattr(first, name) is not None and getattr(second, name) is not None]
    merged = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in fields}
    order = np.argsort(merged["start"], kind="stable")
    ordered: dict[str, Any] = {name: values[order] for name, values in merged.items()}
    return Work(**ordered)
