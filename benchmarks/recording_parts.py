"""Parts of recordings, as recordings of their own: one step of a trace, one GPU of two, what is left without some layer.

A part poses a question that nobody tuned for: another stage matters, or what told the cause is missing. `cut` writes
it to a folder of the caller's; the recording itself stays as it is.

    device     work on this GPU alone
    window     seconds after the first GPU activity: from, to
    within     a range (its name begins so): what lies inside its first instance
    instance   the one after so many
    without    categories of a PyTorch trace, or tables of an export, that were not recorded
"""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
_WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def cut(path: Path, part: Mapping[str, Any], folder: Path) -> Path:
    """The part of a recording as a file in the folder."""
    content = _content(path)
    if content.startswith(b"SQLite"):
        target = folder / "part.sqlite"
        target.write_bytes(content)
        _cut_export(target, part)
        return target
    target = folder / "part.json"
    target.write_text(json.dumps(_cut_trace(json.loads(content), part)), encoding="utf-8")
    return target


def _content(path: Path) -> bytes:
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rb") as file:
        return bytes(file.read())


# -- PyTorch traces -----------------------------------------------------------------------------------


def _cut_trace(trace: Any, part: Mapping[str, Any]) -> Any:
    head = trace if isinstance(trace, dict) else {}
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    timed = [event for event in events if event.get("ph") == "X"]
    begin, end = _trace_window(timed, part)
    without = set(part.get("without", ()))
    kept = [event for event in events if _stays(event, part, begin, end, without)]
    return {**head, "traceEvents": kept}


def _stays(event: Mapping[str, Any], part: Mapping[str, Any], begin: float, end: float, without: set[str]) -> bool:
    if event.get("cat") in without:
        return False
    if event.get("cat") in _GPU and part.get("device", _device(event)) != _device(event):
        return False
    if event.get("ph") == "M":
        return True
    at = float(event.get("ts", begin))
    return begin <= at and at + float(event.get("dur", 0)) <= end


def _device(event: Mapping[str, Any]) -> object:
    return event.get("args", {}).get("device", event.get("pid"))


def _trace_window(timed: Sequence[Mapping[str, Any]], part: Mapping[str, Any]) -> tuple[float, float]:
    if "within" in part:
        named = [event for event in timed if str(event.get("name", "")).startswith(part["within"])]
        chosen = sorted((e for e in named if e.get("cat") not in _GPU), key=lambda e: float(e["ts"]))
        one = chosen[part.get("instance", 0)]
        return float(one["ts"]), float(one["ts"]) + float(one["dur"])
    if "window" in part:
        first = min(float(event["ts"]) for event in timed if event.get("cat") in _GPU)
        return first + part["window"][0] * 1e6, first + part["window"][1] * 1e6
    return float("-inf"), float("inf")


# -- exports of nsys ----------------------------------------------------------------------------------


def _cut_export(path: Path, part: Mapping[str, Any]) -> None:
    with closing(sqlite3.connect(path)) as base:
        tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in part.get("without", ()):
            base.execute(f'DROP TABLE IF EXISTS "{table}"')
            tables.discard(table)
        work = [table for table in _WORK if table in tables]
        if "device" in part:
            for table in work:
                base.execute(f'DELETE FROM "{table}" WHERE deviceId != ?', (part["device"],))
        window = _export_window(base, work, part)
        if window is not None:
            begin, end = window
            for table in tables:
                columns = {row[1] for row in base.execute(f'PRAGMA table_info("{table}")')}
                if {"start", "end"} <= columns:
                    base.execute(f'DELETE FROM "{table}" WHERE start < ? OR end > ?', (begin, end))
        base.commit()
        base.execute("VACUUM")


def _export_window(base: sqlite3.Connection, work: Sequence[str], part: Mapping[str, Any]) -> tuple[int, int] | None:
    if "within" in part:
        query = """SELECT start, end FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = NVTX_EVENTS.textId
            WHERE substr(coalesce(text, value), 1, ?) = ? AND end IS NOT NULL ORDER BY start LIMIT 1 OFFSET ?"""
        name = part["within"]
        begin, end = base.execute(query, (len(name), name, part.get("instance", 0))).fetchone()
        return int(begin), int(end)
    if "window" in part:
        first = min(base.execute(f'SELECT min(start) FROM "{table}"').fetchone()[0] for table in work)
        return int(first + part["window"][0] * 1e9), int(first + part["window"][1] * 1e9)
    return None
