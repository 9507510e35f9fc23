"""What a recorded program did only once, from its CUDA calls: modules loaded, memory taken, graphs made."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.readers.nsys_export import THREAD_BITS, Export, places_of
from llm_perf_opt.readers.nsys_schema import STRINGS
from llm_perf_opt.regions.columns import FIRST_USE, GRAPH_CAPTURE, ONCE, UNKNOWN, Int64s, OnlyOnce
from llm_perf_opt.regions.distinct import is_one_of

# Calls by how their names begin: nsys adds the version of the interface to some.
_CALLS = {
    "cuLibraryLoad": FIRST_USE,
    "cuModuleLoad": FIRST_USE,
    "cudaMalloc_": FIRST_USE,
    "cuMemAlloc_": FIRST_USE,
    "cudaGraphInstantiate": GRAPH_CAPTURE,
    "cuGraphInstantiate": GRAPH_CAPTURE,
}
_MOST = 1_000_000  # a program that allocates in every step is told so elsewhere


def once_columns(export: Export, calls: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Those of all `calls` of the CUDA API, with what each is. None where their names were not recorded."""
    names: dict[int, str] = {}
    if len(calls["name"]) and export.has(STRINGS, "id", "value"):
        begins = " OR ".join("value >= ? AND value < ?" for _ in _CALLS)  # functions of SQL are not allowed
        query = f"SELECT id, value FROM {STRINGS} WHERE {begins}"  # noqa: S608 - constants
        found = export.rows(query, [edge for begin in _CALLS for edge in (begin, f"{begin}\x7f")])
        names = {int(number): str(text) for number, text in found if isinstance(number, int)}
    chosen = np.flatnonzero(is_one_of(calls["name"], names))[:_MOST]
    what = {number: ONCE.index(_CALLS[next(b for b in _CALLS if text.startswith(b))]) for number, text in names.items()}
    kinds = np.array([what[number] for number in calls["name"][chosen].tolist()], dtype=np.int32)
    return {key: calls[key][chosen] for key in ("start", "end", "tid")} | {"kind": kinds}


def build_once(columns: dict[str, NDArray[Any]], process_ids: Int64s) -> OnlyOnce:
    process = places_of(process_ids, columns["tid"] & ~THREAD_BITS)
    start, end = columns["start"], columns["end"]
    good = (process != UNKNOWN) & (end >= start) & (start >= 0) & (end < 2**61)
    return OnlyOnce(columns["kind"][good], process[good].astype(np.int32), start[good], end[good])
