"""Measured peaks of a GPU, next to its printed ones: which calibration belongs to which GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from llm_perf_opt.metrics.hardware.data import PEAKS
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import Quantity


def apply_calibration(
    gpu: GpuHardware, facts: Mapping[str, Any], calibrations: Sequence[Mapping[str, Any]]
) -> GpuHardware:
    """The same GPU with what was measured on it; as it is where nothing was."""
    found = _matching(gpu, str(facts.get("uuid") or ""), calibrations)
    if found is None:
        return gpu
    peaks = {kind: _quantity(value) for kind, value in found.get("peaks", {}).items() if kind in PEAKS}
    bandwidth = found.get("bandwidth")
    same = _uuid(found) and _uuid(found) == _bare(str(facts.get("uuid") or ""))
    return evolve(
        gpu,
        calibrated_peaks=peaks,
        calibrated_bandwidth=_quantity(bandwidth) if bandwidth else None,
        calibration=f"measured {found.get('measured_at', 'at an unknown time')} on "
        + ("this GPU" if same else f"a GPU of the same model ({found.get('gpu', '?')})")
        + f" with torch {found.get('torch', '?')}, driver {found.get('driver', '?')}",
    )


def _matching(gpu: GpuHardware, uuid: str, calibrations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    bare = _bare(uuid)
    by_uuid = [c for c in calibrations if bare and _uuid(c) == bare]
    by_name = [c for c in calibrations if gpu.name and c.get("gpu") == gpu.name]
    return next(iter(by_uuid or by_name), None)


def _uuid(calibration: Mapping[str, Any]) -> str:
    return _bare(str(calibration.get("uuid") or ""))


def _bare(uuid: str) -> str:
    """`GPU-1825e7cc-…` of nvidia-smi is `1825e7cc-…` elsewhere; nothing but zeros stands for a removed one."""
    text = uuid.lower().removeprefix("gpu-").strip()
    return text if text.strip("0-") else ""


def _quantity(value: Mapping[str, Any]) -> Quantity:
    return Quantity(float(value["value"]), str(value["unit"]))
