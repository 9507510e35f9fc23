"""Device attributes as ncu stores them with every result, in base units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Attributes of the device, and the factor to base units.
_DEVICE_FACTS = {
    "multiprocessor_count": ("sm_count", 1),
    "clock_rate": ("clock_hz", 1000),
    "total_memory": ("memory_bytes", 1),
    "l2_cache_size": ("l2_bytes", 1),
    "l2s_count": ("l2_slices", 1),
}


def device_facts(name: str, attribute: Callable[[str], int | None]) -> dict[str, Any]:
    """What the device attributes of ncu say of the GPU, under the names that the hardware data uses."""
    facts: dict[str, Any] = {"name": name}
    for source, (fact, factor) in _DEVICE_FACTS.items():
        if value := attribute(f"device__attribute_{source}"):
            facts[fact] = value * factor
    major, minor = (attribute(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    if major:
        facts["compute_capability"] = f"{major}.{minor or 0}"
    width, clock = (attribute(f"device__attribute_{part}") for part in ("global_memory_bus_width", "memory_clock_rate"))
    if width and clock:
        facts["bandwidth_bytes_per_s"] = width // 8 * clock * 1000 * 2  # two transfers a clock
    return facts
