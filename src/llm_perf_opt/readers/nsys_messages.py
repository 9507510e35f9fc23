"""Messages of collectives in an Nsight Systems export: what NCCL notes with the ranges around its calls (NVTX payloads).

A payload is a header of 32 bytes (the number of its schema as u32 at byte 8, its length as u64 at byte 16), then the
fields of the schema. They are there where nsys was asked for blobs, as llm-perf does. A kernel takes the messages that
its thread has noted since the one before: those of a group are launched together, when the group ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from attrs import define

from llm_perf_opt.metrics.collective_kinds import EXCHANGE, OF_ALL_RANKS, kind_of
from llm_perf_opt.metrics.families import COLLECTIVE, family_of
from llm_perf_opt.readers.nsys_export import THREAD_BITS, Export, places_of
from llm_perf_opt.readers.nsys_schema import NVTX, PAYLOAD_FIELDS, PUSH_POP
from llm_perf_opt.regions.collective_messages import LARGEST_MESSAGE, MOST_RANKS, Messages
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Work
from llm_perf_opt.regions.distinct import distinct

_HEADER, _SCHEMA_AT, _LENGTH_AT, _LONGEST = 32, 8, 16, 4096
_MOST = 4_000_000  # payloads that are looked at
_SIZE, _RANKS, _COMMUNICATOR = "Message size [bytes]", "No. of ranks", "NCCL communicator ID"
_WIDE = {_SIZE: "<Q", _RANKS: "<I", _COMMUNICATOR: "<Q"}  # how each is stored
_Fields = Mapping[str, int]


@define(frozen=True)
class _Call:
    """A call of NCCL that says what it sends."""

    start: int
    thread: int
    name: str
    bytes: int
    ranks: int
    group: int  # number of the communicator, the same on all of its ranks; 0: not known


def read_messages(export: Export, kernels: Work, thread_ids: Int64s) -> Messages:
    """Of the collective kernels whose calls were noted; none where the export has no payloads."""
    if not export.has(PAYLOAD_FIELDS, "schemaId", "name") or not export.has(NVTX, "binaryData", "globalTid"):
        return Messages.empty()
    calls = sorted(_calls(export, thread_ids), key=lambda call: (call.thread, call.start))
    if not calls:
        return Messages.empty()
    names = [n for n in distinct(kernels.name).tolist() if n != UNKNOWN and family_of(export.strings[n]) == COLLECTIVE]
    collective = np.flatnonzero(np.isin(kernels.name, names) & (kernels.host_time != UNKNOWN))
    order = collective[np.lexsort((kernels.host_time[collective], kernels.thread[collective]))]
    rows, at = [], 0
    for kernel, thread, launched in zip(
        order.tolist(), kernels.thread[order].tolist(), kernels.host_time[order].tolist(), strict=True
    ):
        while at < len(calls) and calls[at].thread < thread:
            at += 1
        mine = []
        while at < len(calls) and calls[at].thread == thread and calls[at].start <= launched:
            mine.append(calls[at])
            at += 1
        if mine:
            ranks, group = max((call.ranks, call.group) for call in mine)
            name = export.intern_text(f"{group:#x}") if group else UNKNOWN
            rows.append((kernel, _together(mine), ranks, export.intern_text(mine[0].name), name))
    return Messages.of(rows)


def _together(calls: list[_Call]) -> int:
    """Bytes of a group. What is sent and what is received are the same links in two directions."""
    sent = sum(call.bytes for call in calls if "recv" not in call.name.lower())
    return min(max(sent, sum(call.bytes for call in calls) - sent), LARGEST_MESSAGE)


def _calls(export: Export, thread_ids: Int64s) -> Iterator[_Call]:
    layouts = _layouts(export)
    text, text_id = (name if export.has(NVTX, name) else "NULL" for name in ("text", "textId"))
    query = (
        f"SELECT start, globalTid, {text}, {text_id}, binaryData FROM {NVTX} WHERE binaryData IS NOT NULL "  # noqa: S608 - constants
        f"AND eventType IN ({', '.join(map(str, PUSH_POP))}) ORDER BY start LIMIT {_MOST}"
    )
    rows = [row for row in export.rows(query) if all(isinstance(value, int) for value in row[:2])]
    named = export.texts({row[3] for row in rows if row[2] is None and isinstance(row[3], int)})
    threads = places_of(thread_ids, np.array([row[1] for row in rows], dtype=np.int64)).tolist()
    size_of: dict[tuple[int, int], int] = {}  # by process and communicator
    for (start, tid, own, number, data), thread in zip(rows, threads, strict=True):
        found = _decoded(data, layouts)
        group = (tid & ~THREAD_BITS, found.get(_COMMUNICATOR, 0))
        if 0 < found.get(_RANKS, 0) <= MOST_RANKS:
            size_of[group] = found[_RANKS]
        if 0 < found.get(_SIZE, 0) <= LARGEST_MESSAGE and thread != UNKNOWN:
            name = str(own) if own is not None else named.get(number, "")
            ranks, kind = size_of.get(group, UNKNOWN), kind_of(name)
            if kind in OF_ALL_RANKS and ranks == UNKNOWN:
                continue  # how large it is in all is not known
            whole = found[_SIZE] * (ranks if kind in OF_ALL_RANKS else 1)
            size = 2 if kind == EXCHANGE else ranks
            yield _Call(start, thread, name, min(whole, LARGEST_MESSAGE), size, group[1])


def _layouts(export: Export) -> dict[int, dict[str, int]]:
    """Of each schema, where the fields that matter are."""
    offset = "offset" if export.has(PAYLOAD_FIELDS, "offset") else "NULL"
    found: dict[int, dict[str, int]] = {}
    for schema, name, at in export.rows(f"SELECT schemaId, name, {offset} FROM {PAYLOAD_FIELDS} LIMIT 100000"):  # noqa: S608 - constants
        if isinstance(schema, int) and name in _WIDE and (at is None or (isinstance(at, int) and 0 <= at < _LONGEST)):
            found.setdefault(schema, {})[name] = at or 0
    return found


def _decoded(data: Any, layouts: Mapping[int, _Fields]) -> dict[str, int]:
    """The fields of one payload; none where it is something else."""
    if not isinstance(data, bytes) or not _HEADER <= len(data) <= _LONGEST:
        return {}
    (schema,), (length,) = struct.unpack_from("<I", data, _SCHEMA_AT), struct.unpack_from("<Q", data, _LENGTH_AT)
    end = min(_HEADER + length, len(data))
    fields = layouts.get(schema, {})
    return {
        name: struct.unpack_from(_WIDE[name], data, _HEADER + at)[0]
        for name, at in fields.items()
        if _HEADER + at + struct.calcsize(_WIDE[name]) <= end
    }
