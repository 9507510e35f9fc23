"""What GPUs moved while nsys recorded: the samples of our own set of GPU metrics (`profiling.traffic`).

`GPU_METRICS` has a row for every sample and metric. Its time is the begin of the interval that the value is of: in
recordings of an H200 the bytes follow the kernels that run in the time after it. The last byte of its type is the
number of the GPU as nsys counts them, which a process may know under another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.readers.plausible import MOST_DEVICES
from llm_perf_opt.readers.sqlite_columns import Column
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.traffic import COUNTERS, Traffic

SAMPLES = "GPU_METRICS"
NAMES = "TARGET_INFO_GPU_METRICS"
UNIT = "byte"  # nsys writes it behind the name: `dram__bytes_read.sum [byte]`
_GPU_BITS = 0xFF
_MOST_METRICS = 64  # of one GPU; ours are a few
_MOST = 2**61  # bytes, or ns: sums of more would overflow


class Export(Protocol):
    """What is needed of an open export."""

    def has(self, table: str, *columns: str) -> bool: ...

    def rows(self, query: str) -> Iterable[Any]: ...

    def columns(self, table: str, wanted: Mapping[str, Column]) -> dict[str, NDArray[Any]]: ...


def read_traffic(export: Export) -> dict[int, Traffic]:
    """By device, as the program numbers them; empty where nothing was sampled, or nobody knows on which."""
    if not export.has(SAMPLES, "timestamp", "typeId", "metricId", "value"):
        return {}
    counters = _counters(export)
    devices = _devices(export)
    if not counters or devices is None:
        return {}
    wanted = {"time": Column("timestamp"), "type": Column("typeId"), "metric": Column("metricId", -1)}
    table = export.columns(SAMPLES, {**wanted, "value": Column("value", -1)})
    found = {}
    for kind, names in counters.items():
        device = devices.get(kind & _GPU_BITS, kind & _GPU_BITS)
        of_kind = table["type"] == kind
        columns = {name: _series(table, of_kind & (table["metric"] == metric)) for metric, name in names.items()}
        if (traffic := _together(columns)) is not None:
            found[device] = traffic
    return found


def _counters(export: Export) -> dict[int, dict[int, str]]:
    """Metrics that are ours, by type; none where there are more types than a machine has GPUs."""
    if not export.has(NAMES, "typeId", "metricId", "metricName"):
        return {}
    wanted = {f"{name} [{UNIT}]": name for name in COUNTERS}
    found: dict[int, dict[int, str]] = {}
    for kind, metric, name in export.rows(f"SELECT typeId, metricId, metricName FROM {NAMES}"):  # noqa: S608 - a constant
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


def _together(columns: Mapping[str, tuple[Int64s, Int64s]]) -> Traffic | None:
    """The counters of one GPU, which were sampled at the same moments; None where that, or a value, cannot be."""
    if not columns:
        return None
    times = [time for time, _ in columns.values()]
    if len(times[0]) < 2 or not all(np.array_equal(time, times[0]) for time in times[1:]):
        return None
    if abs(int(times[0][0])) >= _MOST or abs(int(times[0][-1])) >= _MOST:
        return None
    for _, value in columns.values():
        if int(value.min()) < 0 or float(value.sum(dtype=np.float64)) >= _MOST:
            return None
    return Traffic(times[0], {name: value for name, (_, value) in columns.items()})
