"""NVTX ranges of an Nsight Systems export: their names, their domains, and those that were never closed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.readers.nsys_export import THREAD_BITS, Export, Progress, damaged, places_of, refuse_impossible
from llm_perf_opt.readers.nsys_schema import DOMAIN, NVTX, PUSH_POP, START_END
from llm_perf_opt.readers.plausible import shortened
from llm_perf_opt.readers.sqlite_columns import ROWID, Column
from llm_perf_opt.regions.columns import UNKNOWN, Int32s, Int64s, Ranges, Work
from llm_perf_opt.regions.distinct import distinct

_NEVER = -(2**63)  # stands for the missing end of a range that was never closed


def range_columns(export: Export, progress: Progress | None) -> tuple[dict[str, NDArray[Any]], list[Any]]:
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
    if not export.has(NVTX, "start", "end", "eventType"):
        empty: dict[str, NDArray[Any]] = {key: np.zeros(0, dtype=c.dtype) for key, c in wanted.items()}
        return empty | {"name": np.zeros(0, dtype=np.int32)}, []
    columns = export.columns(NVTX, wanted, progress)
    chosen = np.isin(columns["type"], (*PUSH_POP, *START_END))
    columns = {key: values[chosen] for key, values in columns.items()}
    columns["name"] = _range_names(export, columns)
    return columns, _domain_rows(export)


def _domain_rows(export: Export) -> list[tuple[Any, Any, str | None]]:
    """Thread, id and name of every domain that was named."""
    if not export.has(NVTX, "domainId", "globalTid"):
        return []
    text, text_id = (name if export.has(NVTX, name) else "NULL" for name in ("text", "textId"))
    query = f"SELECT globalTid, domainId, {text}, {text_id} FROM {NVTX} WHERE eventType = {DOMAIN}"  # noqa: S608 - constants
    rows = list(export.rows(query))
    names = export.texts({row[3] for row in rows if row[2] is None and isinstance(row[3], int)})
    return [(tid, domain, names.get(number) if text is None else text) for tid, domain, text, number in rows]


def _range_names(export: Export, columns: dict[str, NDArray[Any]]) -> Int32s:
    """Names of ranges: registered strings by id, others as text in the row itself."""
    names = np.full(len(columns["start"]), UNKNOWN, dtype=np.int32)
    registered = columns["text_id"] != UNKNOWN
    names[registered] = export.intern_ids(columns["text_id"][registered])
    if export.has(NVTX, "text"):
        own = list(export.rows(f"SELECT rowid, text FROM {NVTX} WHERE text IS NOT NULL"))  # noqa: S608 - a constant
        place = {row: at for at, row in enumerate(columns["row"].tolist())} if own else {}
        for row, text in own:
            if row in place:
                names[place[row]] = export.intern_text(_as_text(text))
    nameless = names == UNKNOWN
    if nameless.any():
        names[nameless] = export.intern_text("(unnamed)")
    return names


def name_domains(export: Export, ranges: dict[str, NDArray[Any]], domain_rows: list[Any]) -> tuple[list[str], Int32s]:
    """Names of domains. Ids are per process; the same name in two processes is one domain."""
    name_of: dict[tuple[int, int], str] = {}
    for tid, domain, name in domain_rows:
        if isinstance(tid, int) and isinstance(domain, int) and name is not None:
            name_of[tid & ~THREAD_BITS, domain] = shortened(str(name))
    numbered: dict[str, int] = {"": 0}
    process_of = ranges["tid"] & ~THREAD_BITS
    processes, domains = distinct(process_of), distinct(ranges["domain"])
    if len(process_of) == 0:
        return list(numbered), np.zeros(0, dtype=np.int32)
    pairs = places_of(processes, process_of) * len(domains) + places_of(domains, ranges["domain"])
    used = distinct(pairs)
    numbers = []
    for pair in used.tolist():
        process, domain = int(processes[pair // len(domains)]), int(domains[pair % len(domains)])
        # Id 0 is the default domain; other ids without a name row keep their number as a name.
        name = name_of.get((process, domain), "" if domain == 0 else f"domain {domain}")
        numbers.append(numbered.setdefault(name, len(numbered)))
    return list(numbered), np.array(numbers, dtype=np.int32)[places_of(used, pairs)]


def build_ranges(
    export: Export,
    columns: dict[str, NDArray[Any]],
    domain: Int32s,
    process_ids: Int64s,
    thread_ids: Int64s,
    works: list[Work],
) -> Ranges:
    end = columns["end"]
    never_closed = end == _NEVER
    if (end[~never_closed] < columns["start"][~never_closed]).any():
        raise damaged(export.source, ValueError(f"ranges of {NVTX} end before they start"))
    refuse_impossible(export.source, NVTX, columns["start"][~never_closed], end[~never_closed])
    refuse_impossible(export.source, NVTX, columns["start"][never_closed], columns["start"][never_closed])
    if never_closed.any():
        last = max([int(columns["start"].max()), int(end.max())] + [int(work.end.max()) for work in works if len(work)])
        end = np.where(never_closed, last, end)
        export.diagnostics.append(diagnose("OPEN_RANGES", ranges=int(never_closed.sum())))
    return Ranges(
        start=columns["start"],
        end=end,
        process=places_of(process_ids, columns["tid"] & ~THREAD_BITS).astype(np.int32),
        thread=places_of(thread_ids, columns["tid"]).astype(np.int32),
        domain=domain,
        name=columns["name"],
        start_end=np.isin(columns["type"], START_END),
    )


def _as_text(value: object) -> str:
    """Names may be stored as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
