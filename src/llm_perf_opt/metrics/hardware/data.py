"""`gpus.toml` as objects, and the one formula behind every computed peak."""

from __future__ import annotations

import re
from functools import cache

from attrs import define

from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.package_data import read_toml

PEAKS = {
    "tensor_fp64": "tensor cores, fp64",
    "tensor_tf32": "tensor cores, tf32",
    "tensor_bf16": "tensor cores, bf16 with fp32 accumulation",
    "tensor_fp16": "tensor cores, fp16 with fp32 accumulation",
    "tensor_fp16_acc16": "tensor cores, fp16 with fp16 accumulation",
    "tensor_fp8": "tensor cores, fp8 with fp32 accumulation",
    "tensor_fp8_acc16": "tensor cores, fp8 with fp16 accumulation",
    "tensor_int8": "tensor cores, int8",
    "tensor_int4": "tensor cores, int4",
    "tensor_fp6": "tensor cores, fp6 (or fp4 at its rate) with fp32 accumulation",
    "tensor_fp6_acc16": "tensor cores, fp6 (or fp4 at its rate) with fp16 accumulation",
    "tensor_fp4": "tensor cores, fp4",
    "cuda_fp64": "CUDA cores, fp64",
    "cuda_fp32": "CUDA cores, fp32",
    "cuda_fp16": "CUDA cores, fp16",
}
_FP32_ACCUMULATE = ("tensor_tf32", "tensor_bf16", "tensor_fp16", "tensor_fp8")


@define(frozen=True)
class Architecture:
    """One compute capability: what an SM does in a clock."""

    compute_capability: str
    name: str
    source: str
    ops_per_clock_per_sm: dict[str, float]


@define(frozen=True)
class Model:
    """One product."""

    name: str
    match: re.Pattern[str]
    architecture: Architecture
    sm_count: int
    boost: Quantity
    tensor_clock: Quantity
    half_rate: bool
    memory: Quantity
    bandwidth: Quantity
    l2_cache: Quantity
    source: str
    printed: dict[str, Quantity]  # peaks NVIDIA prints, dense
    own_ops: dict[str, float]  # where the product differs from its architecture

    def ops(self) -> dict[str, float]:
        return {**self.architecture.ops_per_clock_per_sm, **self.own_ops}

    def computed(self) -> dict[str, Quantity]:
        """All peaks by the formula, at the clocks the printed ones belong to."""
        return computed_peaks(self.ops(), self.sm_count, self.boost, self.tensor_clock, self.half_rate)

    def peaks(self) -> dict[str, Quantity]:
        return {**self.computed(), **self.printed}


@define(frozen=True)
class HardwareData:
    """The whole file."""

    architectures: dict[str, Architecture]
    models: list[Model]
    half_rate_names: re.Pattern[str]
    no_tensor_core_names: re.Pattern[str]
    l2_bytes_per_clock_per_slice: int


def computed_peaks(
    ops: dict[str, float], sm_count: int, clock: Quantity, tensor_clock: Quantity, half_rate: bool
) -> dict[str, Quantity]:
    """SMs x clock x operations per clock and SM, for every data type."""
    peaks = {}
    for kind, per_clock in ops.items():
        rate = per_clock / 2 if half_rate and kind in _FP32_ACCUMULATE else per_clock
        # fp64 runs on units of its own, at the clock of the CUDA cores.
        chosen = tensor_clock if kind.startswith("tensor_") and kind != "tensor_fp64" else clock
        peaks[kind] = Quantity(rate * sm_count * chosen.of("Hz"), "FLOP/s")
    return peaks


@cache
def hardware_data() -> HardwareData:
    raw = read_toml(__package__, "gpus.toml")
    architectures = {
        capability: Architecture(capability, a["name"], a["source"], dict(a["ops_per_clock_per_sm"]))
        for capability, a in raw["architecture"].items()
    }
    models = []
    for g in raw["gpu"]:
        boost = Quantity(g["boost_mhz"] * 1e6, "Hz")
        models.append(
            Model(
                name=g["name"],
                match=re.compile(g["match"]),
                architecture=architectures[g["compute_capability"]],
                sm_count=g["sm_count"],
                boost=boost,
                tensor_clock=Quantity(g["tensor_mhz"] * 1e6, "Hz") if "tensor_mhz" in g else boost,
                half_rate=g.get("half_rate_fp32_accumulate", False),
                memory=Quantity(g["memory_gb"] * 1e9, "B"),
                bandwidth=Quantity(g["bandwidth_gb_per_s"] * 1e9, "B/s"),
                l2_cache=Quantity(g["l2_mib"] * 2**20, "B"),
                source=g["source"],
                printed={kind: Quantity(value * 1e12, "FLOP/s") for kind, value in g.get("tflops", {}).items()},
                own_ops=dict(g.get("ops_per_clock_per_sm", {})),
            )
        )
    return HardwareData(
        architectures,
        models,
        re.compile(raw["half_rate_names"]),
        re.compile(raw["no_tensor_core_names"]),
        raw["l2_bytes_per_clock_per_slice"],
    )
