"""How a GPU was while a program ran by itself: part of what readers hand over (`columns.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

# Why a GPU was slower than it can be: bits of NVML, as far as they are worth a word.
SLOWED = {
    0x4: "its power limit was reached",
    0x8: "the hardware slowed it down",
    0x20: "it was too hot (slowed down by the driver)",
    0x40: "it was too hot (slowed down by the hardware)",
    0x80: "the power supply asked it to slow down",
}


@define(eq=False)
class GpuSamples:
    """One GPU in one run. -1 in a column: it does not say."""

    run: int
    uuid: str
    name: str
    power_limit_mw: int
    max_sm_mhz: int
    time: NDArray[np.int64]  # nanoseconds, on the clock of the ranges
    energy_mj: NDArray[np.int64]  # a counter
    sm_mhz: NDArray[np.int64]
    memory_mhz: NDArray[np.int64]
    power_mw: NDArray[np.int64]
    temperature: NDArray[np.int64]
    reasons: NDArray[np.int64]  # bits, see SLOWED
    memory_used: NDArray[np.int64]  # bytes, of all processes
    others: list[dict[str, Any]] = Factory(list)  # processes that are not the program's: pid, name, bytes, percent

    def within(self, start: int, end: int) -> slice:
        """The samples from one moment to another."""
        return slice(*np.searchsorted(self.time, (start, end)).tolist())


COLUMNS = ("time", "energy_mj", "sm_mhz", "memory_mhz", "power_mw", "temperature", "reasons", "memory_used")
