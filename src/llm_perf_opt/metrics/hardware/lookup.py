"""From what a recording knows of a GPU to its peaks: the data first, device attributes second, never a default.

A name that the data knows wins, checked against SM count and memory (a MIG slice, a smaller variant). A GPU
that is not in the data is computed from its attributes. Where neither is possible its peaks stay empty, and
the report says what is missing and how to give it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from llm_perf_opt.metrics.hardware.data import Model, computed_peaks, hardware_data
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.hardware.user_figures import Overrides
from llm_perf_opt.metrics.quantity import Quantity, Unit

Facts = Mapping[str, Any]
_MIG = re.compile(r"\s+MIG\s+\S+$")
_HALF_RATE = "Tensor cores of this GPU run at half rate when they accumulate in fp32."
_SAME = 0.02  # relative difference below which two figures are one


def find_hardware(device: int | None, facts: Facts, overrides: Overrides | None = None) -> GpuHardware:
    """The peaks of one GPU, with their source and what was adjusted."""
    overrides = overrides or Overrides()
    name = str(facts.get("name") or "")
    model = _by_name(name, facts)
    if overrides.model:
        model = next(m for m in hardware_data().models if m.name == overrides.model)
    recorded = _recorded(device, name, facts)
    found = _computed(recorded) if model is None else _of_model(recorded, model)
    _add_l2(found, facts)
    if overrides.from_ncu:
        found = _with_peaks_of_ncu(found, facts.get("ncu_peaks") or Overrides())
    return _overridden(found, overrides)


def _by_name(name: str, facts: Facts) -> Model | None:
    """The product of this name; of several, the one whose SMs and memory are nearest to what was recorded."""
    bare = _MIG.sub("", name.strip())
    candidates = [m for m in hardware_data().models if m.match.fullmatch(bare)]
    capability = facts.get("compute_capability")
    if capability:
        candidates = [m for m in candidates if m.architecture.compute_capability == capability]

    def distance(model: Model) -> tuple[float, float]:
        sms, memory = facts.get("sm_count"), facts.get("memory_bytes")
        return (abs(model.sm_count - sms) if sms else 0.0, abs(model.memory.of("B") / memory - 1) if memory else 0.0)

    return min(candidates, key=distance) if candidates else None


def _recorded(device: int | None, name: str, facts: Facts) -> GpuHardware:
    """What the recording itself says."""
    return GpuHardware(
        device=device,
        name=name,
        model="",
        basis="unknown",
        source="",
        compute_capability=str(facts.get("compute_capability") or ""),
        sm_count=facts.get("sm_count"),
        clock=_amount(facts.get("clock_hz"), "Hz"),
        memory=_amount(facts.get("memory_bytes"), "B"),
        l2_cache=_amount(facts.get("l2_bytes"), "B"),
        bandwidth=_amount(facts.get("bandwidth_bytes_per_s"), "B/s"),
    )


def _of_model(found: GpuHardware, model: Model) -> GpuHardware:
    """With the figures of a product, adjusted to what was recorded."""
    peaks, bandwidth = model.peaks(), model.bandwidth
    is_slice = bool(_MIG.search(found.name))
    notes = [_HALF_RATE] if model.half_rate else []
    if found.sm_count and found.sm_count != model.sm_count:
        part = found.sm_count / model.sm_count
        peaks = {kind: peak * part for kind, peak in peaks.items()}
        notes.append(
            f"The recording has {found.sm_count} SMs, the {model.name} {model.sm_count}: its peaks were scaled to them."
        )
        if is_slice and found.memory is not None:
            bandwidth = bandwidth * min((found.memory / model.memory).of("ratio"), 1.0)
            notes.append("Of the memory bandwidth the slice has the part that it has of the memory.")
    recorded = found.bandwidth
    if recorded is not None and abs((recorded / model.bandwidth).of("ratio") - 1) > _SAME and not is_slice:
        notes.append(
            f"The device attributes give {recorded.value / 1e9:,.0f} GB/s of memory bandwidth, "
            f"the data sheet {model.bandwidth.value / 1e9:,.0f} GB/s, which is the one used."
        )
    return evolve(
        found,
        name=found.name or model.name,
        model=model.name,
        basis="datasheet" if model.printed else "computed",
        source=model.source,
        compute_capability=model.architecture.compute_capability,
        sm_count=found.sm_count or model.sm_count,
        clock=found.clock or model.boost,
        memory=found.memory or model.memory,
        l2_cache=found.l2_cache or model.l2_cache,
        bandwidth=bandwidth,
        peaks=peaks,
        notes=notes,
    )


def _computed(found: GpuHardware) -> GpuHardware:
    """A GPU that is not in the data, from its device attributes."""
    data, sms, clock = hardware_data(), found.sm_count, found.clock
    architecture = data.architectures.get(found.compute_capability)
    if architecture is None or not sms or clock is None:
        needed = {"its architecture": architecture, "its SM count": sms, "its clock": clock}
        lacking = ", ".join(what for what, have in needed.items() if not have)
        found.notes.append(f"The hardware data does not know it, and the recording lacks {lacking}.")
        return found
    half_rate = bool(data.half_rate_names.search(found.name))
    ops = architecture.ops_per_clock_per_sm
    if data.no_tensor_core_names.search(found.name):
        half_rate = False
        ops = {kind: per_clock for kind, per_clock in ops.items() if not kind.startswith("tensor_")}
        found.notes.append("This GPU has no tensor cores.")
    found.peaks = computed_peaks(ops, sms, clock, clock, half_rate)
    found.basis = "computed"
    found.source = (
        f"computed from the device attributes: {sms} SMs x {clock.value / 1e6:,.0f} MHz x operations per clock of "
        f"{architecture.name} ({architecture.source})"
    )
    found.notes += [_HALF_RATE] if half_rate else []
    return found


def _add_l2(found: GpuHardware, facts: Facts) -> None:
    slices = facts.get("l2_slices")
    if slices and found.clock is not None:
        per_clock = slices * hardware_data().l2_bytes_per_clock_per_slice
        found.l2_bandwidth = Quantity(per_clock * found.clock.of("Hz"), "B/s")


def _with_peaks_of_ncu(found: GpuHardware, measured: Overrides) -> GpuHardware:
    if not measured.names():
        lacking = "There are no roofline metrics of ncu, which --set roofline collects: these peaks are not ncu's."
        return evolve(found, notes=[*found.notes, lacking])
    basis = "ncu" if found.basis == "unknown" else f"{found.basis} and ncu"
    return _replaced(evolve(found, basis=basis), measured, "ncu's roofline metrics")


def _overridden(found: GpuHardware, overrides: Overrides) -> GpuHardware:
    if not overrides.names():
        return found
    basis = "given" if found.basis == "unknown" else found.basis
    return _replaced(evolve(found, basis=basis), overrides, "the user")


def _replaced(found: GpuHardware, figures: Overrides, source: str) -> GpuHardware:
    return evolve(
        found,
        source=found.source or source,
        bandwidth=figures.bandwidth or found.bandwidth,
        l2_bandwidth=figures.l2_bandwidth or found.l2_bandwidth,
        peaks={**found.peaks, **figures.peaks},
        notes=[*found.notes, f"Given by {source}: {', '.join(figures.names())}."],
    )


def _amount(value: Any, unit: Unit) -> Quantity | None:
    return Quantity(float(value), unit) if value else None
