"""Bytes that a whole GPU moves over time, as nsys samples them while it records a timeline.

Counters of single launches do not tell all of it: what a kernel writes stays in the L2 cache and reaches DRAM later,
and ncu, which works between any two launches, is in the way of that. Here nothing is in the way, and nothing is
sampled out: of every interval, the bytes of all its kernels and copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import define, field

from llm_perf_opt.metrics.catalogue import names_of

if TYPE_CHECKING:
    from llm_perf_opt.regions.columns import Bools, Int64s

# nsys samples these in one pass, by all names that chips have for them; of the work of the tensor cores it has no such
# counter.
ROLES = {role: names_of(role) for role in ("dram_read", "dram_write", "l2")}
COUNTERS = tuple(name for names in ROLES.values() for name in names)
SOURCE = "GPU sampling"  # of a metric that was had from this
_LOST = 1.5  # intervals longer than this many usual ones: samples in between were lost


@define(eq=False)
class Traffic:
    """One GPU's bytes, by counter: of each interval, which lasts until the next begins."""

    start: Int64s
    bytes: dict[str, Int64s]
    step: int = field(init=False)  # the usual length of an interval, in ns
    _until: dict[str, Int64s] = field(init=False)  # before each interval, and after the last
    _lost: Int64s = field(init=False)  # how many intervals before each are too long to be whole

    def __attrs_post_init__(self) -> None:
        self._until = {name: np.concatenate([[0], np.cumsum(values)]) for name, values in self.bytes.items()}
        steps = np.diff(self.start)
        self.step = int(np.median(steps)) if len(steps) else 0
        too_long = steps > _LOST * self.step
        self._lost = np.concatenate([[0], np.cumsum(too_long)])

    def __len__(self) -> int:
        return len(self.start)

    def until(self, counter: str, interval: Int64s) -> Int64s:
        """Bytes moved before an interval began."""
        return self._until[counter][interval]

    def whole(self, first: Int64s, last: Int64s) -> Bools:
        """Were all samples taken from one interval up to the begin of another?"""
        whole: Bools = self._lost[last] == self._lost[first]
        return whole


@define(frozen=True, eq=False)
class SampledGpu:
    """What one GPU moved, and whose work on a device of that number ran there: GPUs of other ranks may be called alike."""

    device: int
    first_process: int  # of the timeline; up to, and without, `end_process`
    end_process: int
    traffic: Traffic
