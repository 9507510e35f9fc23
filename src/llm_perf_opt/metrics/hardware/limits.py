"""The limits of one GPU, as a report states them."""

from __future__ import annotations

from attrs import Factory, define

from llm_perf_opt.metrics.quantity import Quantity


@define
class GpuHardware:
    """What one GPU of the report can do at most: the denominators, and where each comes from."""

    device: int | None
    name: str  # as recorded
    model: str  # the entry of the hardware data it was found as; "" where it is not in the data
    basis: str  # "datasheet" | "computed" | "given" | "unknown"
    source: str  # of the figures, in words
    compute_capability: str = ""
    sm_count: int | None = None
    clock: Quantity | None = None  # boost
    memory: Quantity | None = None
    l2_cache: Quantity | None = None
    bandwidth: Quantity | None = None  # of the memory
    l2_bandwidth: Quantity | None = None
    peaks: dict[str, Quantity] = Factory(dict)  # "tensor_bf16" … : dense operations per second, never sparse
    calibrated_bandwidth: Quantity | None = None
    calibrated_peaks: dict[str, Quantity] = Factory(dict)
    calibration: str = ""  # when and with what it was measured; "" where it was not
    notes: list[str] = Factory(list)
