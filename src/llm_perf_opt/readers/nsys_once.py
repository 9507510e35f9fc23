"""What a recorded program did only once, from its CUDA calls: modules loaded, memory taken, graphs made."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.readers.nsys_export import THREAD_BITS, Export, places_of
from llm_perf_opt.readers.nsys_schema import RUNTIME, STRINGS
from llm_perf_opt.regions.columns import FIRST_USE, GRAPH_CAPTURE, ONCE, UNKNOWN, Int64s, OnlyOnce

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


def read_once(export: Export, process_ids: Int64s) -> OnlyOnce:
    """Empty where the calls, or their names, were not recorded."""
    wanted = ("start", "end", "globalTid", "nameId")
    if not export.has(RUNTIME, *wanted) or not export.has(STRINGS, "id", "value"):
        return OnlyOnce.empty()
    begins = " OR ".join("value >= ? AND value < ?" for _ in _CALLS)  # functions of SQL are not allowed
    query = f"SELECT id, value FROM {STRINGS} WHERE {begins}"  # noqa: S608 - constants
    found = export.rows(query, [edge for begin in _CALLS for edge in (begin, f"{begin}\x7f")])
    names = {int(number): str(text) for number, text in found if isinstance(number, int)}
    if not names:
        return OnlyOnce.empty()
    marks = ",".join("?" * len(names))
    query = f"SELECT {', '.join(wanted)} FROM {RUNTIME} WHERE nameId IN ({marks}) LIMIT {_MOST}"  # noqa: S608
    rows = [row for row in export.rows(query, names) if all(isinstance(value, int) for value in row)]
    start, end, thread, name = np.array(rows, dtype=np.int64).reshape(-1, len(wanted)).T
    what = {number: ONCE.index(_CALLS[next(b for b in _CALLS if text.startswith(b))]) for number, text in names.items()}
    process = places_of(process_ids, thread & ~THREAD_BITS)
    good = (process != UNKNOWN) & (end >= start) & (start >= 0) & (end < 2**61)
    kinds = np.array([what[number] for number in name.tolist()], dtype=np.int32)
    return OnlyOnce(kinds[good], process[good].astype(np.int32), start[good], end[good])
