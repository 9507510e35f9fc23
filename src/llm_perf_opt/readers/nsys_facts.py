"""What an Nsight Systems export says of processes, GPUs and the machine, and what it lacks.

Only a few facts are taken over: the rest of the recording holds the whole environment of the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.readers.nsys_export import Export
from llm_perf_opt.readers.nsys_schema import EXPORT_FACTS, RUNTIME, SYSTEM_FACTS
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Process, Timeline


def list_processes(export: Export, process_ids: Int64s) -> list[Process]:
    names: dict[int, str] = {}
    if export.has("PROCESSES", "globalPid", "name"):
        for gid, name in export.rows("SELECT globalPid, name FROM PROCESSES"):
            names[gid] = Path(str(name)).name if name else ""
    return [Process(pid=(gid >> 24) & 0xFFFFFF, name=names.get(gid, "")) for gid in process_ids.tolist()]


def list_devices(export: Export) -> dict[int, str]:
    if not export.has("TARGET_INFO_GPU", "id", "name"):
        return {}
    column = "cuDevice" if export.has("TARGET_INFO_GPU", "cuDevice") else "id"
    query = f"SELECT COALESCE({column}, id), name FROM TARGET_INFO_GPU"  # noqa: S608 - one of two names
    return {int(i): str(name) for i, name in export.rows(query) if isinstance(i, int) and name}


def gpu_facts(export: Export) -> dict[int, dict[str, Any]]:
    """Attributes of the GPUs, under the names that the hardware data uses."""
    if not export.has("TARGET_INFO_GPU", "id", "name"):
        return {}
    wanted = {
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
    columns = [column for column in wanted if export.has("TARGET_INFO_GPU", column)]
    number = "cuDevice" if export.has("TARGET_INFO_GPU", "cuDevice") else "id"
    query = f"SELECT COALESCE({number}, id), {', '.join(columns)} FROM TARGET_INFO_GPU"  # noqa: S608 - from the list above
    facts: dict[int, dict[str, Any]] = {}
    for device, *values in export.rows(query):
        if isinstance(device, int):
            own = {wanted[column]: value for column, value in zip(columns, values, strict=True) if value}
            major = own.pop("major", None)
            minor = own.pop("minor", 0)
            if major:
                own["compute_capability"] = f"{major}.{minor}"
            facts[device] = own
    return facts


def read_environment(export: Export) -> dict[str, Any]:
    environment: dict[str, Any] = {"tool": "Nsight Systems", "gpus": list_devices(export)}
    if export.has("META_DATA_EXPORT", "name", "value"):
        for name, value in export.rows("SELECT name, value FROM META_DATA_EXPORT"):
            if name in EXPORT_FACTS:
                environment[EXPORT_FACTS[name]] = str(value)
    if export.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        for name, value in export.rows("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"):
            if name in SYSTEM_FACTS:
                environment[SYSTEM_FACTS[name]] = str(value)
    if export.has("TARGET_INFO_SESSION_START_TIME", "utcTime"):
        for (value,) in export.rows("SELECT utcTime FROM TARGET_INFO_SESSION_START_TIME"):
            environment["recorded_at"] = str(value)
    return environment


def diagnose(export: Export, timeline: Timeline) -> None:
    """Name what is missing, so that an empty table is never the only answer."""
    say = export.diagnostics.append
    kernels = timeline.kernels
    if len(kernels) == 0 and len(timeline.graphs) == 0:
        say(
            Diagnosis(
                "NO_KERNELS",
                "warning",
                f"{export.source} holds no GPU kernels: CUDA was not traced, or nothing was launched while recording.",
                "Record with: nsys profile -t cuda,nvtx -s none -o OUT CMD",
            )
        )
    if len(timeline.ranges) == 0:
        say(
            Diagnosis(
                "NO_RANGES",
                "warning",
                f"{export.source} holds no NVTX ranges, so there are no regions to report; kernels are listed as a whole.",
                "Mark stages with torch.cuda.nvtx.range or nvtx.annotate and record with -t cuda,nvtx.",
            )
        )
    lost = int((kernels.host_time == UNKNOWN).sum())
    if lost:
        cause = (
            "the recording has no CUDA API calls"
            if not export.has(RUNTIME)
            else "their launching calls are not in the recording"
        )
        say(
            Diagnosis(
                "UNKNOWN_LAUNCHES",
                "warning",
                f"{lost:,} of {len(kernels):,} kernels belong to no region because {cause}.",
                "Record from the start of the program, or make the capture range wider.",
            )
        )
    if len(timeline.graphs):
        say(
            Diagnosis(
                "WHOLE_GRAPHS",
                "info",
                f"{len(timeline.graphs):,} CUDA graph launches were traced as one block each: their time is counted "
                "to the region around the launch, their kernels were not recorded.",
                "Record with --cuda-graph-trace=node to see the kernels inside graphs.",
            )
        )
