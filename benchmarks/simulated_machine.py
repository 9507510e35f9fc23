"""A host and a GPU on paper: a program is described call by call, and what a profiler would have recorded comes out.

Made from the two formats' schemas alone; nothing of the product is used. A thread of the host has a clock; a stream
runs its work in order, each piece after it was launched and after what it waits for. Times in µs. Written as a PyTorch
trace (`write_trace`) or as an export of Nsight Systems (`write_sqlite`).
"""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PID = 4711
_LAUNCH = 4.5  # what a launch costs the host
_ARRIVES = 3.0  # from the call to the GPU
_COPIES = {"HtoD": (1, "Pageable", "Device"), "DtoH": (2, "Device", "Pageable"), "DtoD": (8, "Device", "Device")}
_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2}

KERNEL_COLUMNS = (
    *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"),
    *("mangledName", "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId"),
    "graphNodeId",
)
TABLES = {
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL_COLUMNS,
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes", "copyKind"),
        *("srcKind", "dstKind", "srcDeviceId", "srcContextId", "dstDeviceId", "dstContextId", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        *("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"),
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "endGlobalTid", "textId", "domainId"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "ThreadNames": ("nameId", "priority", "globalTid"),
    "TARGET_INFO_GPU": (
        "vmId",
        "id",
        "name",
        "memoryBandwidth",
        "clockRate",
        "smCount",
        "computeMajor",
        "computeMinor",
    ),
    "META_DATA_EXPORT": ("name", "value"),
    "ENUM_CUDA_MEMCPY_OPER": ("id", "name", "label"),
    "ENUM_CUDA_MEM_KIND": ("id", "name", "label"),
}


class Machine:
    """What happened, in order."""

    def __init__(self, seed: int, gpu: str = "NVIDIA H100 80GB HBM3", sms: int = 132) -> None:
        self.gpu, self.sms = gpu, sms
        self._major = 8 if "A100" in gpu else 9
        self.device, self.launch, self.launches_by = 0, _LAUNCH, "cudaLaunchKernel"  # of what is launched from now on
        self.ends = float("inf")  # when the recording stops
        self.random = random.Random(seed)
        self.now = 1_000_000.0
        self.thread = PID
        self.free: dict[int, float] = {}  # when each stream is done
        self.events: list[dict[str, Any]] = []
        self._number = 100

    # -- the host ----------------------------------------------------------------------------------

    def about(self, time: float, spread: float = 0.05) -> float:
        return time * (1 + self.random.uniform(-spread, spread))

    def works(self, time: float) -> None:
        """The host computes, which nothing records."""
        self.now += self.about(time)

    @contextmanager
    def span(self, kind: str, name: str, **args: Any) -> Iterator[None]:
        """`kind`: user_annotation, cpu_op or python_function."""
        start, thread = self.now, self.thread
        yield
        self._event(kind, name, start, self.now - start, thread, args)

    def call(self, name: str, time: float) -> int:
        """A call of CUDA."""
        self._number += 1
        self._event("cuda_runtime", name, self.now, time, self.thread, {"correlation": self._number})
        self.now += time
        return self._number

    def other_thread(self, kind: str, name: str, start: float, end: float, thread: int) -> None:
        self._event(kind, name, start, end - start, thread, {})

    # -- the GPU -----------------------------------------------------------------------------------

    def kernel(
        self,
        name: str,
        time: float,
        stream: int = 7,
        grid: int = 264,
        block: int = 256,
        after: float = 0.0,
        spread: float = 0.04,
    ) -> float:
        """Launch it; returns when it is done. `after`: another stream's work that it waits for."""
        number = self.call(self.launches_by, self.about(self.launch, 0.2))
        args = {"grid": [grid, 1, 1], "block": [block, 1, 1], "registers per thread": 64, "shared memory": 0}
        return self._run("kernel", name, self.about(time, spread), stream, number, after, args)

    def graph(self, kernels: Sequence[tuple[str, float]], stream: int = 7, gap: float = 0.9) -> float:
        """One launch of a CUDA graph, whose nodes are recorded."""
        number, done = self.call("cudaGraphLaunch", self.about(25, 0.2)), 0.0
        for node, (name, time) in enumerate(kernels, 1):
            args = {
                "grid": [132, 1, 1],
                "block": [128, 1, 1],
                "registers per thread": 96,
                "shared memory": 0,
                "graph node id": node,
            }
            done = self._run("kernel", name, self.about(time), stream, number, 0.0, args)
            self.free[stream] += gap
        return done

    def copy(
        self, way: str, bytes_: float, gbps: float, stream: int = 7, pinned: bool = False, after: float = 0.0
    ) -> float:
        """A copy; from or to pageable memory the host waits for it."""
        number = self.call("cudaMemcpyAsync", self.about(6, 0.2))
        source, target = (place.replace("Pageable", "Pinned") if pinned else place for place in _COPIES[way][1:])
        done = self._run(
            "gpu_memcpy",
            f"Memcpy {way} ({source} -> {target})",
            bytes_ / gbps / 1e3,
            stream,
            number,
            after,
            {"bytes": int(bytes_)},
        )
        if not pinned and way != "DtoD":
            self.events[-2]["dur"] += max(done - self.now, 0.0)
            self.now = max(self.now, done)
        return done

    def waits(self, name: str = "cudaStreamSynchronize", stream: int | None = 7) -> None:
        done = max(self.free.values(), default=0.0) if stream is None else self.free.get(stream, 0.0)
        self.call(name, max(done - self.now, 0.0) + 2.0)

    def _run(
        self, kind: str, name: str, time: float, stream: int, number: int, after: float, args: dict[str, Any]
    ) -> float:
        start = max(self.now + _ARRIVES, self.free.get(stream, 0.0), after)
        own = {"device": self.device, "context": 1 + self.device, "stream": stream, "correlation": number}
        self._event(kind, name, start, time, stream, {**own, **args})
        self.free[stream] = start + time + 0.4
        return start + time

    def _event(self, kind: str, name: str, start: float, time: float, thread: int, args: dict[str, Any]) -> None:
        self.events.append({"cat": kind, "name": name, "ts": start, "dur": time, "tid": thread, "args": args})

    def recorded(self, begin: float = 0.0, ends: float = float("inf")) -> None:
        """The profiler runs between these times alone; what began before is not seen, what is open at the end is cut."""
        self.events = [one for one in self.events if begin <= one["ts"] < ends]
        self.ends = ends

    # -- what a profiler writes --------------------------------------------------------------------

    def write_trace(self, path: Path, **more: Any) -> Path:
        """As PyTorch's profiler. `more`: of the whole."""
        events: list[dict[str, Any]] = []
        for one in self._in_order():
            on_gpu = one["cat"] in ("kernel", "gpu_memcpy")
            start, end = _nanoseconds(one)
            if end / 1e3 > self.ends:  # open at the end: PyTorch's profiler cuts what the host does, and drops the rest
                if on_gpu:
                    continue
                end = round(self.ends * 1e3)
            place = one["args"].get("device", 0) if on_gpu else PID
            events.append({"ph": "X", **one, "ts": start / 1e3, "dur": (end - start) / 1e3, "pid": place})
        devices = [
            {"id": number, "name": self.gpu, "computeMajor": self._major, "computeMinor": 0, "numSms": self.sms}
            for number in self._devices()
        ]
        content = {
            "schemaVersion": 1,
            "deviceProperties": devices,
            **more,
            "traceEvents": events,
            "traceName": path.name,
        }
        with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
            json.dump(content, file)
        return path

    def write_sqlite(self, path: Path, old: bool = False) -> Path:
        """As `nsys export --type sqlite`: annotations are NVTX ranges; operators and Python are not recorded."""
        names: dict[str, int] = {}
        rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        process = 0x1000000 * PID

        def text(name: str) -> int:
            return names.setdefault(name, len(names))

        for one in self._in_order():
            start, end = _nanoseconds(one)
            args, thread = one["args"], process + one["tid"]
            is_open = end / 1e3 > self.ends
            if is_open and one["cat"] != "user_annotation":
                continue
            device = args.get("device", 0)
            gpu = {
                **{"start": start, "end": end, "deviceId": device, "contextId": 1 + device},
                "streamId": args.get("stream"),
                **{
                    "correlationId": args.get("correlation"),
                    "globalPid": process,
                    "graphNodeId": args.get("graph node id"),
                },
            }
            if one["cat"] == "user_annotation":
                row = {
                    "start": start,
                    "end": None if is_open else end,
                    "eventType": 59,
                    "text": one["name"],
                    "globalTid": thread,
                    "domainId": 0,
                }
                rows["NVTX_EVENTS"].append(row)
            elif one["cat"] == "cuda_runtime":
                call = {"eventClass": 0, "globalTid": thread, "nameId": text(f"{one['name']}_v7000"), "returnValue": 0}
                rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
                    {"start": start, "end": end, "correlationId": args["correlation"], **call}
                )
            elif one["cat"] == "gpu_memcpy":
                kind = _COPIES[one["name"].split()[1]][0]
                source, target = one["name"].split("(")[1].rstrip(")").split(" -> ")
                places = {"copyKind": kind, "srcKind": _KINDS[source], "dstKind": _KINDS[target]}
                rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append({**gpu, "bytes": args["bytes"], **places})
            elif one["cat"] == "kernel":
                short = one["name"].removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1]
                sizes = dict(
                    zip(
                        ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
                        (*args["grid"], *args["block"]),
                        strict=True,
                    )
                )
                called = {
                    "demangledName": text(one["name"]),
                    "shortName": text(short),
                    "mangledName": text(one["name"]),
                }
                zeros = dict.fromkeys(KERNEL_COLUMNS[17:22], 0)
                rows["CUPTI_ACTIVITY_KIND_KERNEL"].append({**gpu, **called, **sizes, "registersPerThread": 64, **zeros})
        rows["PROCESSES"].append({"globalPid": process, "pid": PID, "name": "python3"})
        rows["ThreadNames"].append({"nameId": text("python3"), "priority": 20, "globalTid": process + PID})
        rows["TARGET_INFO_GPU"] = [
            {"vmId": 0, "id": number, "name": self.gpu, "memoryBandwidth": 3_352_320_000_000}
            | {"clockRate": 1_980_000_000, "smCount": self.sms, "computeMajor": self._major, "computeMinor": 0}
            for number in self._devices()
        ]
        versions = {
            "EXPORT_SCHEMA_VERSION": "3.20.1",
            "EXPORT_SCHEMA_VERSION_MAJOR": "3",
            "EXPORT_SCHEMA_VERSION_MINOR": "20",
        }
        rows["META_DATA_EXPORT"] = [{"name": name, "value": value} for name, value in versions.items()]
        ways = {"HtoD": "Host-to-Device", "DtoH": "Device-to-Host", "DtoD": "Device-to-Device"}
        rows["ENUM_CUDA_MEMCPY_OPER"] = [{"id": _COPIES[way][0], "name": way, "label": ways[way]} for way in ways]
        rows["ENUM_CUDA_MEM_KIND"] = [{"id": number, "name": kind, "label": kind} for kind, number in _KINDS.items()]
        rows["StringIds"] = [{"id": number, "value": name} for name, number in names.items()]
        with sqlite3.connect(path) as file:
            for table, columns in TABLES.items():
                if old and table.startswith("ENUM_"):
                    continue
                file.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                marks = ", ".join("?" * len(columns))
                file.executemany(
                    f"INSERT INTO {table} VALUES ({marks})", [[row.get(c) for c in columns] for row in rows[table]]
                )
        file.close()
        return path

    def _in_order(self) -> list[dict[str, Any]]:
        """As they began; of two that began together, the outer one, which is noted when it ends, first."""
        numbered = sorted(enumerate(self.events), key=lambda pair: (pair[1]["ts"], -pair[0]))
        return [one for _, one in numbered]

    def _devices(self) -> list[int]:
        return sorted({one["args"].get("device", 0) for one in self.events} | {0})


def _nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    return round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
