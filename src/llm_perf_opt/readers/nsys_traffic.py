"""What GPUs moved while nsys recorded: the samples of our own set of GPU metrics (`nsight/nsys/gpu_metrics.py`).

`GPU_METRICS` has a row for every sample and metric. Its time is the begin of the interval that the value is of: in
recordings of an H200 the bytes follow the kernels that run in the time after it. The last byte of its type is the
number of the GPU as nsys counts them, which a process may know under another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.memory import free_bytes
from llm_perf_opt.readers.nsys_export import Export
from llm_perf_opt.readers.nsys_schema import SAMPLE_NAMES, SAMPLES
from llm_perf_opt.readers.plausible import MOST_DEVICES
from llm_perf_opt.readers.sqlite_columns import Column
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.traffic import COUNTERS, Traffic

UNIT = "byte"  # nsys writes it behind the name: `dram__bytes_read.sum [byte]`
_GPU_BITS = 0xFF
_MOST_METRICS = 64  # of one GPU; ours are a few
_MOST = 2**61  # bytes, or ns: sums of more would overflow
_BYTES_OF_A_ROW = 100  # of memory, at the most, while they are read


def read_traffic(export: Export) -> dict[int, Traffic]:
    """By device, as the program numbers them; empty where nothing was sampled, or it cannot be used."""
    if not export.has(SAMPLES, "timestamp", "typeId", "metricId", "value"):
        return {}
    counters = _counters(export)
    if not counters or _too_many(export):
        return {}
    devices = _devices(export)
    if devices is None:
        _not_read(export, "the processes number their GPUs differently, so that nobody knows whose samples are whose")
        return {}
    wanted = {"time": Column("timestamp"), "type": Column("typeId"), "metric": Column("metricId", -1, np.int32)}
    try:
        table = export.columns(SAMPLES, {**wanted, "value": Column("value", -1)})
    except UnreadableInput as error:  # the timeline is whole, and is worth more
        _not_read(export, f"their table is damaged ({error.message})")
        return {}
    found = {}
    for kind, names in counters.items():
        gpu = kind & _GPU_BITS
        if devices and gpu not in devices:
            continue  # a GPU of the machine that the program did not use
        of_kind = table["type"] == kind
        columns = {name: _series(table, of_kind & (table["metric"] == metric)) for metric, name in names.items()}
        if isinstance(traffic := _together(columns), str):
            _not_read(export, traffic)
        else:
            found[devices.get(gpu, gpu)] = traffic
    return found


def _not_read(export: Export, why: str) -> None:
    export.diagnostics.append(diagnose("TRAFFIC_NOT_READ", why=why))


def _too_many(export: Export) -> bool:
    """Is there no memory for them? The timeline is worth more: it is read without them, and says so."""
    rows, free = export.size(SAMPLES), free_bytes()
    if free is None or rows * _BYTES_OF_A_ROW <= free:
        return False
    needed = f"{rows * _BYTES_OF_A_ROW / 1e9:.1f} GB of memory, but only {free / 1e9:.1f} GB are free"
    _not_read(export, f"{rows:,} rows need about {needed}")
    return True


def _counters(export: Export) -> dict[int, dict[int, str]]:
    """Metrics that are ours, by type; none where there are more types than a machine has GPUs."""
    if not export.has(SAMPLE_NAMES, "typeId", "metricId", "metricName"):
        return {}
    wanted = {f"{name} [{UNIT}]": name for name in COUNTERS}
    found: dict[int, dict[int, str]] = {}
    for kind, metric, name in export.rows(f"SELECT typeId, metricId, metricName FROM {SAMPLE_NAMES}"):  # noqa: S608 - a constant
        if isinstance(kind, int) and isinstance(metric, int) and name in wanted:
            found.setdefault(kind, {})[metric] = wanted[name]
        # All samples are gone through for each of them: a small file could name a hundred thousand.
        if len(found) > MOST_DEVICES or len(found.get(kind, ())) > _MOST_METRICS:
            return {}
    return found


def _devices(export: Export) -> dict[int, int] | None:
    """The program's number of each GPU of nsys; None where processes disagree about that."""
    if not export.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"):
        return {}
    pairs = {
        (gpu, device)
        for gpu, device in export.rows("SELECT gpuId, cudaId FROM TARGET_INFO_CUDA_DEVICE")
        if isinstance(gpu, int) and isinstance(device, int)
    }
    gpus, devices = {gpu for gpu, _ in pairs}, {device for _, device in pairs}
    return dict(pairs) if len(gpus) == len(devices) == len(pairs) else None


def _series(table: Mapping[str, NDArray[Any]], chosen: NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
    time, value = table["time"][chosen], table["value"][chosen]
    if (time[1:] < time[:-1]).any():
        order = np.argsort(time, kind="stable")
        time, value = time[order], value[order]
    return time, value


def _together(columns: Mapping[str, tuple[Int64s, Int64s]]) -> Traffic | str:
    """The counters of one GPU, which were sampled at the same moments; or what cannot be about them."""
    times = [time for time, _ in columns.values()]
    if len(times[0]) < 2:
        return "there are too few"
    if not all(np.array_equal(time, times[0]) for time in times[1:]):
        return "the counters were not sampled at the same moments"
    if abs(int(times[0][0])) >= _MOST or abs(int(times[0][-1])) >= _MOST:
        return "their times are impossible"
    for _, value in columns.values():
        if int(value.min()) < 0 or float(value.sum(dtype=np.float64)) >= _MOST:
            return "some of them are impossible"
    return Traffic(times[0], {name: value for name, (_, value) in columns.items()})
