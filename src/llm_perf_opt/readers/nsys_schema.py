"""Which tables and columns of an nsys export are read. Nothing else of it is looked at, and nothing else is shared.

The reader sees an export through this list, and `llm-perf scrub` rebuilds an export from it: what is not here (the
whole environment, the command line, what the program printed, all other processes) never gets into a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
OSRT = "OSRT_API"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GRAPH_NODES = "CUDA_GRAPH_NODE_EVENTS"
NVTX = "NVTX_EVENTS"
PAYLOAD_FIELDS = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
STRINGS = "StringIds"
SAMPLES = "GPU_METRICS"
SAMPLE_NAMES = "TARGET_INFO_GPU_METRICS"

PUSH_POP = (59, 70)  # NvtxPushPopRange, NvtxtPushPopRange
START_END = (60, 71)  # NvtxStartEndRange, NvtxtStartEndRange
DOMAIN = 75  # NvtxDomainCreate
MARK = 34  # NvtxMark
AXES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
KERNEL_NAMES = ("demangledName", "shortName", "mangledName")
# Rows of the tables of facts; the rest of them holds the whole environment.
EXPORT_FACTS = {"EXPORT_PRODUCT_VERSION": "tool_version", "EXPORT_SCHEMA_VERSION": "schema_version"}
SYSTEM_FACTS = {"NvDriverVersion": "driver", "CpuDescription": "cpu", "OsVersion": "os"}

_WORK = ("start", "end", "deviceId", "correlationId", "globalPid", "graphNodeId", "streamId")


@define(frozen=True)
class Table:
    """What is read of a table."""

    numbers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # ids of StringIds: names of kernels and ranges
    texts: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()  # never shared
    rows: tuple[str, tuple[int | str, ...]] | None = None  # only those with one of these values in a column
    is_event: bool = False  # rows of the timeline itself

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.numbers, *self.names, *self.texts)


TABLES: Mapping[str, Table] = {
    KERNELS: Table((*_WORK, *AXES, "staticSharedMemory", "dynamicSharedMemory"), names=KERNEL_NAMES, is_event=True),
    MEMCPY: Table((*_WORK, "bytes", "copyKind", "srcKind", "dstKind", "migrationCause"), is_event=True),
    MEMSET: Table((*_WORK, "bytes", "copyKind"), is_event=True),
    GRAPHS: Table(_WORK, is_event=True),
    RUNTIME: Table(("start", "end", "globalTid", "correlationId"), names=("nameId",), is_event=True),
    OSRT: Table(("start", "end", "globalTid"), names=("nameId",), is_event=True),
    GRAPH_NODES: Table(("start", "globalTid", "graphNodeId", "originalGraphNodeId"), is_event=True),
    NVTX: Table(
        ("start", "end", "eventType", "globalTid", "domainId"),
        names=("textId",),
        texts=("text",),
        blobs=("binaryData",),
        rows=("eventType", (*PUSH_POP, *START_END, DOMAIN, MARK)),
        is_event=True,
    ),
    PAYLOAD_FIELDS: Table(("schemaId", "offset"), blobs=("name",)),  # of use with payloads alone
    STRINGS: Table(("id",), texts=("value",)),
    SAMPLES: Table(("timestamp", "typeId", "metricId", "value"), is_event=True),
    SAMPLE_NAMES: Table(("typeId", "metricId"), texts=("metricName",)),
    "ENUM_CUDA_MEMCPY_OPER": Table(("id",), texts=("label",)),
    "ENUM_CUDA_MEM_KIND": Table(("id",), texts=("label",)),
    "PROCESSES": Table(("globalPid",), texts=("name",)),
    "TARGET_INFO_GPU": Table(
        (
            *("id", "cuDevice", "smCount", "clockRate", "totalMemory", "l2CacheSize", "memoryBandwidth"),
            *("computeMajor", "computeMinor"),
        ),
        texts=("name", "uuid"),
    ),
    "TARGET_INFO_CUDA_GPU": Table(
        (
            *("id", "deviceId", "numMultiprocessors", "coreClockRate", "globalMemorySize", "globalMemoryBandwidth"),
            *("l2CacheSize", "computeCapabilityMajor", "computeCapabilityMinor"),
        ),
        texts=("name",),
    ),
    "TARGET_INFO_CUDA_DEVICE": Table(("gpuId", "cudaId")),
    "TARGET_INFO_SESSION_START_TIME": Table(texts=("utcTime",)),
    "META_DATA_EXPORT": Table(texts=("name", "value"), rows=("name", tuple(EXPORT_FACTS))),
    "TARGET_INFO_SYSTEM_ENV": Table(texts=("name", "value"), rows=("name", tuple(SYSTEM_FACTS))),
}
