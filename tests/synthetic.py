"""A small nsys export made row by row, for what no recording on hand contains."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

PROCESS = 7 << 24
MAIN_THREAD = PROCESS | 1

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
    staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
    globalTid INTEGER, textId INTEGER, domainId INTEGER);
"""


def make_export(
    path: Path, ranges: Iterable[tuple[str, int, int]], kernels: Iterable[tuple[str, int, int, int]]
) -> Path:
    """Ranges are (name, start, end); kernels are (name, launch time, start, end); one thread, default domain."""
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    strings: dict[str, int] = {}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    connection.executemany(
        "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL, 0)",
        ((start, end, name, MAIN_THREAD) for name, start, end in ranges),
    )
    for number, (name, launch, start, end) in enumerate(kernels, start=1):
        connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
            (launch, launch + 1, MAIN_THREAD, number, string("cudaLaunchKernel")),
        )
        connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,7,?,?,?,?,?,1,1,1,32,1,1,0,0,NULL)",
            (start, end, number, PROCESS, string(name), string(name), string(name)),
        )
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", ((number, text) for text, number in strings.items()))
    connection.commit()
    connection.close()
    return path
