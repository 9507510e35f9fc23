"""What an Nsight Systems export says of processes, GPUs and the machine, and what it lacks.

Only a few facts are taken over: the rest of the recording holds the whole environment of the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.readers.nsys_export import Export
from llm_perf_opt.readers.nsys_schema import EXPORT_FACTS, RUNTIME, SYSTEM_FACTS
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Process, Timeline


def list_processes(export: Export, process_ids: Int64s) -> list[Process]:
    names: dict[int, str] = {}
    if export.has("PROCESSES", "globalPid", "name"):
        for gid, name in export.rows("SELECT globalPid, name FROM PROCESSES"):
            names[gid] = Path(str(name)).name if name else ""
    return [Process(pid=(gid >> 24) & 0xFFFFFF, name=names.get(gid, "")) for gid in process_ids.tolist()]


_GPU_FACTS = {
    "name": "name",
    "smCount": "sm_count",
    "clockRate": "clock_hz",
    "totalMemory": "memory_bytes",
    "l2CacheSize": "l2_bytes",
    "memoryBandwidth": "bandwidth_bytes_per_s",
    "uuid": "uuid",
    "computeMajor": "major",
    "computeMinor": "minor",
}


# Until spring 2021 the table held CUPTI's record of the device, with its names and units.
_CUPTI_FACTS = {
    "name": "name",
    "numMultiprocessors": "sm_count",
    "coreClockRate": "clock_hz",
    "globalMemorySize": "memory_bytes",
    "l2CacheSize": "l2_bytes",
    "globalMemoryBandwidth": "bandwidth_bytes_per_s",
    "computeCapabilityMajor": "major",
    "computeCapabilityMinor": "minor",
}
_THOUSANDS = ("clock_hz", "bandwidth_bytes_per_s")  # of CUPTI: kHz and kB/s


def gpu_facts(export: Export) -> dict[int, dict[str, Any]]:
    """Attributes of the GPUs, under the names that the hardware data uses."""
    if export.has("TARGET_INFO_GPU", "id", "name"):
        number = "COALESCE(cuDevice, id)" if export.has("TARGET_INFO_GPU", "cuDevice") else "id"
        return _gpu_facts(export, "TARGET_INFO_GPU", number, _GPU_FACTS)
    if not export.has("TARGET_INFO_CUDA_GPU", "name"):
        return {}
    number = "deviceId" if export.has("TARGET_INFO_CUDA_GPU", "deviceId") else "id"
    if not export.has("TARGET_INFO_CUDA_GPU", number):
        return {}
    facts = _gpu_facts(export, "TARGET_INFO_CUDA_GPU", number, _CUPTI_FACTS)
    for own in facts.values():
        own |= {fact: own[fact] * 1000 for fact in _THOUSANDS if isinstance(own.get(fact), int)}
    return facts


def _gpu_facts(export: Export, table: str, number: str, names: dict[str, str]) -> dict[int, dict[str, Any]]:
    columns = [column for column in names if export.has(table, column)]
    query = f"SELECT {number}, {', '.join(columns)} FROM {table}"  # noqa: S608 - from the lists above
    facts: dict[int, dict[str, Any]] = {}
    for device, *values in export.rows(query):
        if isinstance(device, int):
            own = {names[column]: value for column, value in zip(columns, values, strict=True) if value}
            major, minor = own.pop("major", None), own.pop("minor", 0)
            facts[device] = own | ({"compute_capability": f"{major}.{minor}"} if major else {})
    return facts


def read_environment(export: Export, devices: dict[int, str]) -> dict[str, Any]:
    environment: dict[str, Any] = {"tool": "Nsight Systems", "gpus": devices}
    for table, wanted in (("META_DATA_EXPORT", EXPORT_FACTS), ("TARGET_INFO_SYSTEM_ENV", SYSTEM_FACTS)):
        if export.has(table, "name", "value"):
            for name, value in export.rows(f"SELECT name, value FROM {table}"):  # noqa: S608 - one of two names
                if name in wanted:
                    environment[wanted[name]] = str(value)
    if export.has("TARGET_INFO_SESSION_START_TIME", "utcTime"):
        for (value,) in export.rows("SELECT utcTime FROM TARGET_INFO_SESSION_START_TIME"):
            environment["recorded_at"] = str(value)
    return environment


def note_missing(export: Export, timeline: Timeline) -> None:
    """Name what is missing, so that an empty table is never the only answer."""
    kernels, graphs, notes = timeline.kernels, timeline.graphs, export.diagnostics
    if len(kernels) == 0 and len(graphs) == 0:
        calls = 0 if len(timeline.copies) else export.size(RUNTIME)
        called = diagnose("NO_KERNELS.called", source=export.source, calls=calls)
        notes.append(called if calls else diagnose("NO_KERNELS", source=export.source))
    if len(timeline.ranges) and (lost := int((kernels.host_time == UNKNOWN).sum())):
        name = "UNKNOWN_LAUNCHES" if export.has(RUNTIME) else "UNKNOWN_LAUNCHES.no_calls"
        notes.append(diagnose(name, lost=lost, kernels=len(kernels)))
    if len(graphs):
        notes.append(diagnose("WHOLE_GRAPHS", graphs=len(graphs)))
