"""A host with several threads, processes and GPUs on paper, and the export of Nsight Systems that it leaves.

For programs that are not PyTorch: several processes, threads of the operating system's calls, unified memory, copies
between GPUs, memsets, whole graphs, calls of the driver, and the schemas of several versions. Made from NVIDIA's schemas
alone; nothing of the product is used. Times in µs.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Program = Callable[[Path], list[Path]]  # writes its recordings into a folder


class Programs(dict[str, Program]):
    """The programs of a module, by the names of their functions."""

    def add(self, make: Program) -> Program:
        self[make.__name__] = make
        return make

    def simulate(self, name: str, folder: Path) -> list[Path]:
        return self[name](folder)


KIND = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10, "UVM_HTOD": 11, "UVM_DTOH": 12}
LABELS = {
    **{1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"},
    **{11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device"},
}
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
PAGEABLE, PINNED, DEVICE, MANAGED = 0, 1, 2, 4
GPUS = {  # name: SMs, bytes/s, Hz, capability
    "NVIDIA H100 80GB HBM3": (132, 3_352_320_000_000, 1_980_000_000, (9, 0)),
    "NVIDIA A100-SXM4-80GB": (108, 2_039_000_000_000, 1_410_000_000, (8, 0)),
    "NVIDIA GeForce RTX 4090": (128, 1_008_096_000_000, 2_520_000_000, (8, 9)),
    "NVIDIA GeForce RTX 3090": (82, 936_096_000_000, 1_695_000_000, (8, 6)),
    "NVIDIA L40S": (142, 864_096_000_000, 2_520_000_000, (8, 9)),
    "Tesla T4": (40, 320_064_000_000, 1_590_000_000, (7, 5)),
    "Tesla V100-SXM2-16GB": (80, 898_048_000_000, 1_530_000_000, (7, 0)),
}
_WORK = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
TABLES: dict[str, tuple[str, ...]] = {
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *_WORK,
        *("demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory"),
        *("localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *(*_WORK, "bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "migrationCause"),
        *("graphNodeId", "virtualAddress"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_WORK, "value", "bytes", "graphNodeId", "memKind"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_WORK, "graphId", "graphExecId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        *("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"),
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*_WORK, "syncType", "eventId"),
    "OSRT_API": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "nestingLevel"),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": (
        *("start", "end", "globalPid", "deviceId", "address", "numberOfPageFaults", "faultAccessType"),
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "endGlobalTid", "textId", "domainId"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "ThreadNames": ("nameId", "priority", "globalTid"),
    "TARGET_INFO_GPU": (
        *("vmId", "id", "name", "memoryBandwidth", "clockRate", "smCount", "computeMajor", "computeMinor", "cuDevice"),
    ),
    "TARGET_INFO_CUDA_GPU": (
        *("id", "deviceId", "name", "numMultiprocessors", "coreClockRate", "globalMemoryBandwidth"),
        *("computeCapabilityMajor", "computeCapabilityMinor"),
    ),
    "META_DATA_EXPORT": ("name", "value"),
    "ENUM_CUDA_MEMCPY_OPER": ("id", "name", "label"),
    "ENUM_CUDA_MEM_KIND": ("id", "name", "label"),
}


class Paper:
    """What was recorded: rows for the tables, in any order."""

    def __init__(self, seed: int, *gpus: str) -> None:
        self.gpus = gpus or ("NVIDIA H100 80GB HBM3",)
        self.random = random.Random(seed)
        self.rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        self.names: dict[str, int] = {}
        self.free: dict[tuple[int, int, int], float] = {}  # process, device, stream -> when it is done
        self.engine: dict[tuple[int, str], float] = {}  # copy engines, and the GPU of one process at a time
        self.processes: dict[int, str] = {}
        self.number = 1000
        self.begins, self.ends = 0.0, float("inf")

    def text(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names) + 1)

    def near(self, time: float, spread: float = 0.05) -> float:
        return time * (1 + self.random.uniform(-spread, spread))

    def thread(self, pid: int = 4711, tid: int | None = None, at: float = 1e6, name: str = "main") -> Thread:
        self.processes.setdefault(pid, name)
        return Thread(self, pid, tid or pid, at)

    def add(self, table: str, start: float, end: float, **row: Any) -> dict[str, Any]:
        made = {"start": round(start * 1e3), "end": round(end * 1e3), **row}
        self.rows[table].append(made)
        return made

    def window(self, begins: float = 0.0, ends: float = float("inf")) -> None:
        """The profiler was on between these times alone."""
        for table in TABLES:
            if table.startswith(("CUPTI", "OSRT", "NVTX", "CUDA_UM")):
                mine = [r for r in self.rows[table] if r["start"] >= begins * 1e3 and r["start"] < ends * 1e3]
                self.rows[table] = [r for r in mine if (r["end"] or 0) <= ends * 1e3]

    def write(self, path: Path, schema: str = "2025", without: Sequence[str] = ()) -> Path:
        """`schema`: 2025, 2022, or 2020 (before the enums; GPUs as CUPTI has them)."""
        rows = self.rows
        for pid, name in self.processes.items():
            rows["PROCESSES"].append({"globalPid": pid << 24, "pid": pid, "name": name})
            rows["ThreadNames"].append({"nameId": self.text(name), "priority": 20, "globalTid": (pid << 24) | pid})
        for number, gpu in enumerate(self.gpus):
            sms, bandwidth, clock, (major, minor) = GPUS[gpu]
            new = {"id": number, "name": gpu, "memoryBandwidth": bandwidth, "clockRate": clock, "smCount": sms}
            rows["TARGET_INFO_GPU"].append(
                {**new, "vmId": 0, "computeMajor": major, "computeMinor": minor, "cuDevice": number}
            )
            old = {
                "id": number,
                "deviceId": number,
                "name": gpu,
                "numMultiprocessors": sms,
                "coreClockRate": clock // 1000,
            }
            capability = {"computeCapabilityMajor": major, "computeCapabilityMinor": minor}
            rows["TARGET_INFO_CUDA_GPU"].append({**old, "globalMemoryBandwidth": bandwidth // 1000, **capability})
        version = {"2025": "3.20.1", "2022": "2.7.1", "2020": "1.1.0"}[schema]
        rows["META_DATA_EXPORT"] = [{"name": "EXPORT_SCHEMA_VERSION", "value": version}]
        rows["ENUM_CUDA_MEMCPY_OPER"] = [{"id": n, "name": label, "label": label} for n, label in LABELS.items()]
        rows["ENUM_CUDA_MEM_KIND"] = [{"id": n, "name": label, "label": label} for n, label in MEMORY.items()]
        dropped = {"TARGET_INFO_CUDA_GPU"}
        columns = dict(TABLES)
        if schema == "2020":
            dropped = {"TARGET_INFO_GPU", "ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND", "META_DATA_EXPORT"}
            gone = {"mangledName", "graphNodeId", "sharedMemoryExecuted"}
            for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
                columns[table] = tuple(column for column in columns[table] if column not in gone)
        rows["StringIds"] = [{"id": number, "value": name} for name, number in self.names.items()]
        with sqlite3.connect(path) as file:
            for table, own in columns.items():
                if table in dropped or table in without or (not rows[table] and table != "NVTX_EVENTS"):
                    continue  # as nsys: no table where there is nothing
                file.execute(f"CREATE TABLE {table} ({', '.join(own)})")
                marks = ", ".join("?" * len(own))
                content = [[row.get(column) for column in own] for row in rows[table]]
                file.executemany(f"INSERT INTO {table} VALUES ({marks})", content)
        file.close()
        return path


class Thread:
    """A thread of the host with a clock of its own."""

    def __init__(self, paper: Paper, pid: int, tid: int, at: float) -> None:
        self.paper, self.pid, self.now = paper, pid, at
        self.process = pid << 24
        self.id = self.process | tid
        self.device, self.stream = 0, 7

    def works(self, time: float) -> None:
        self.now += self.paper.near(time)

    def waits_until(self, time: float) -> None:
        self.now = max(self.now, time)

    def os(self, name: str, time: float) -> None:
        """A call of the operating system's library."""
        took = self.paper.near(time)
        own = {
            "eventClass": 27,
            "globalTid": self.id,
            "nameId": self.paper.text(name),
            "returnValue": 0,
            "nestingLevel": 0,
        }
        self.paper.add("OSRT_API", self.now, self.now + took, **own)
        self.now += took

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = self.now
        yield
        own = {"eventType": 59, "text": name, "globalTid": self.id, "domainId": 0}
        self.paper.add("NVTX_EVENTS", start, self.now, **own)

    def api(self, name: str, time: float, near: float = 0.1) -> int:
        self.paper.number += 1
        took = self.paper.near(time, near)
        version = {"cu": ""}.get(name[:2] if name[2:3].isupper() else "", "_v11060")
        own = {"eventClass": 1 if not version else 0, "globalTid": self.id, "correlationId": self.paper.number}
        self.paper.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            self.now,
            self.now + took,
            **own,
            nameId=self.paper.text(name + version),
            returnValue=0,
        )
        self.now += took
        return self.paper.number

    def kernel(
        self,
        name: str,
        time: float,
        *,
        stream: int | None = None,
        device: int | None = None,
        grid: int | tuple[int, int, int] = 264,
        block: int = 256,
        launch: float = 4.5,
        call: str = "cudaLaunchKernel",
        registers: int = 40,
        shared: int = 0,
        after: float = 0.0,
        spread: float = 0.04,
        exclusive: bool = False,
    ) -> float:
        """`exclusive`: another process's kernels and this one's take turns on the GPU."""
        number = self.api(call, launch, 0.2)
        return self._kernel(
            name, time, stream, device, grid, block, registers, shared, after, spread, number, None, exclusive
        )

    def _kernel(
        self,
        name: str,
        time: float,
        stream: int | None,
        device: int | None,
        grid: int | tuple[int, int, int],
        block: int,
        registers: int,
        shared: int,
        after: float,
        spread: float,
        number: int,
        node: int | None,
        exclusive: bool = False,
    ) -> float:
        paper = self.paper
        text = paper.text(name)
        short = paper.text(
            name.replace("<unnamed>::", "").removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1]
        )
        shape = grid if isinstance(grid, tuple) else (grid, 1, 1)
        sizes = dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (*shape, block, 1, 1), strict=True))
        own = {"demangledName": text, "shortName": short, "mangledName": text, "launchType": 1, "cacheConfig": 1}
        kinds = {
            "registersPerThread": registers,
            "staticSharedMemory": 0,
            "dynamicSharedMemory": shared,
            "gridId": number,
        }
        zero = {"localMemoryPerThread": 0, "localMemoryTotal": 0, "sharedMemoryExecuted": 32768, "graphNodeId": node}
        took = paper.near(time, spread)
        gpu = self.device if device is None else device
        start = self._starts(stream, gpu, after, "gpu" if exclusive else None)
        paper.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start,
            start + took,
            **self._place(stream, gpu, number),
            **own,
            **sizes,
            **kinds,
            **zero,
        )
        return self._done(stream, gpu, start + took, "gpu" if exclusive else None)

    def graph(
        self,
        kernels: Sequence[tuple[str, float]],
        *,
        stream: int | None = None,
        gap: float = 0.9,
        whole: bool = False,
        launch: float = 25.0,
        **shape: Any,
    ) -> float:
        """One launch of a CUDA graph; `whole`: recorded as one block (nsys's default)."""
        paper = self.paper
        number = self.api("cudaGraphLaunch", launch, 0.2)
        if whole:
            took = sum(paper.near(time) + gap for _, time in kernels)
            start = self._starts(stream, self.device, 0.0, None)
            paper.add(
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                start,
                start + took,
                **self._place(stream, self.device, number),
                graphId=1,
                graphExecId=2,
            )
            return self._done(stream, self.device, start + took, None)
        done = 0.0
        for node, (name, time) in enumerate(kernels, 1):
            done = self._kernel(
                name,
                time,
                stream,
                None,
                shape.get("grid", 132),
                shape.get("block", 128),
                64,
                0,
                0.0,
                0.04,
                number,
                (1 << 32) | node,
            )
            paper.free[self._key(stream, self.device)] += gap
        return done

    def copy(
        self,
        kind: str,
        size: float,
        gbps: float,
        *,
        pinned: bool = False,
        stream: int | None = None,
        call: str = "cudaMemcpyAsync",
        after: float = 0.0,
        to: int = 0,
    ) -> float:
        """The host waits for one from or to pageable memory, and for a plain cudaMemcpy."""
        began = self.now
        number = self.api(call, 6, 0.2)
        host = PINNED if pinned else PAGEABLE
        ends = {"HtoD": (host, DEVICE), "DtoH": (DEVICE, host)}.get(kind, (DEVICE, DEVICE))
        start = self._starts(stream, self.device, after, kind)
        end = start + size / gbps / 1e3
        where = {"srcDeviceId": self.device, "dstDeviceId": to} if kind == "PtoP" else {}
        own = {"bytes": int(size), "copyKind": KIND[kind], "srcKind": ends[0], "dstKind": ends[1], **where}
        self.paper.add("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, **self._place(stream, self.device, number), **own)
        done = self._done(stream, self.device, end, kind)
        if kind in ("HtoD", "DtoH") and (not pinned or call == "cudaMemcpy"):
            self.now = max(self.now, done + 2)
            self.paper.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["end"] = round(self.now * 1e3)
        assert began <= self.now
        return done

    def memset(self, size: float, gbps: float = 2000.0, *, stream: int | None = None) -> float:
        number = self.api("cudaMemsetAsync", 3.5, 0.2)
        start = self._starts(stream, self.device, 0.0, None)
        end = start + max(size / gbps / 1e3, 1.2)
        own = {"value": 0, "bytes": int(size), "memKind": DEVICE}
        self.paper.add("CUPTI_ACTIVITY_KIND_MEMSET", start, end, **self._place(stream, self.device, number), **own)
        return self._done(stream, self.device, end, None)

    def migrates(self, kind: str, start: float, size: float, gbps: float) -> float:
        """Unified memory moves: no call of the host belongs to it."""
        end = start + size / gbps / 1e3
        ends = (PAGEABLE, DEVICE) if kind == "UVM_HTOD" else (DEVICE, PAGEABLE)
        place = {
            "deviceId": self.device,
            "contextId": 0,
            "streamId": 0,
            "correlationId": None,
            "globalPid": self.process,
        }
        own = {
            "bytes": int(size),
            "copyKind": KIND[kind],
            "srcKind": ends[0],
            "dstKind": ends[1],
            "migrationCause": 2 if kind == "UVM_DTOH" else 1,
        }
        self.paper.add("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, **place, **own, virtualAddress=140_000_000_000_000)
        return end

    def faults(self, start: float, end: float, count: int) -> None:
        own = {"globalPid": self.process, "deviceId": self.device, "address": 140_000_000_000_000}
        self.paper.add("CUDA_UM_GPU_PAGE_FAULT_EVENTS", start, end, **own, numberOfPageFaults=count, faultAccessType=1)

    def sync(self, call: str = "cudaStreamSynchronize", stream: int | None = None, device: int | None = None) -> None:
        gpu = self.device if device is None else device
        if call in ("cudaDeviceSynchronize", "cuCtxSynchronize"):
            mine = [end for (pid, dev, _), end in self.paper.free.items() if pid == self.pid and dev == gpu]
            done = max(mine, default=0.0)
        else:
            done = self.paper.free.get(self._key(stream, gpu), 0.0)
        self.api(call, max(done - self.now, 0.0) + 2.0, 0.0)

    def done(self, stream: int | None = None) -> float:
        return self.paper.free.get(self._key(stream, self.device), 0.0)

    def _key(self, stream: int | None, device: int) -> tuple[int, int, int]:
        return (self.pid, device, self.stream if stream is None else stream)

    def _starts(self, stream: int | None, device: int, after: float, engine: str | None) -> float:
        free = self.paper.free.get(self._key(stream, device), 0.0)
        busy = self.paper.engine.get((device, engine), 0.0) if engine else 0.0
        return max(self.now + 2.5, free, after, busy)

    def _done(self, stream: int | None, device: int, end: float, engine: str | None) -> float:
        self.paper.free[self._key(stream, device)] = end + 0.5
        if engine:
            self.paper.engine[(device, engine)] = end + 0.5
        return end

    def _place(self, stream: int | None, device: int, number: int) -> dict[str, Any]:
        own = self.stream if stream is None else stream
        place = {"deviceId": device, "contextId": 1 + device, "streamId": own}
        return {**place, "correlationId": number, "globalPid": self.process}
