"""Roofs: how long one launch would take at the peak of each resource, and how near to them launches ran.

Seconds at peak are kept, not fractions of a peak: they add up over data types, launches and kernels. A roof
is known only where both the work and the peak are: NaN elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.analysis.verdicts.counted_work import Amounts
from llm_perf_opt.analysis.verdicts.launches import Kind, Launches
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.metrics.families import MULTIPLYING
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import Quantity

Floats = NDArray[np.float64]
# Of L1 (with shared memory) and of the SMs' busiest pipe only ncu's own share of the peak is known.
UNITS = ("l1", "sm")
ROOFS = ("tensor", "cuda_core", "dram", "l2", *UNITS)
_SM_IDLE = 20.0  # % of the peak of the busiest pipe
_MORE = 5.0  # points by which the busiest pipe has to exceed the ones with a roof of their own
_LEVEL = 0.8  # of the memory's share of its peak, from which on a level is the one that it is about
_AS_BUSY = 0.9  # of L2's share of its peak: DRAM is as busy, more or less
_ALIKE = 3.0  # times of a launch and of its samples may differ by this factor


@define(frozen=True)
class Peaks:
    """The denominators of one GPU: data sheet or calibrated."""

    flops: dict[str, Quantity]
    bandwidth: Quantity | None
    l2_bandwidth: Quantity | None
    basis: str

    @staticmethod
    def printed(gpu: GpuHardware) -> Peaks:
        return Peaks(gpu.peaks, gpu.bandwidth, gpu.l2_bandwidth, gpu.basis)

    @staticmethod
    def calibrated(gpu: GpuHardware) -> Peaks | None:
        if not gpu.calibrated_peaks and gpu.calibrated_bandwidth is None:
            return None
        return Peaks(gpu.calibrated_peaks, gpu.calibrated_bandwidth, None, "calibrated")


def seconds_at_peak(amounts: Amounts, peaks: Peaks) -> dict[str, float]:
    """For each roof that can be told, the time the work would take at its peak."""
    found = {}
    for roof, prefix in (("tensor", "tensor_"), ("cuda_core", "cuda_")):
        counted = {k: v for k, v in amounts.flops.items() if k.startswith(prefix)}
        # Types without a FLOP need no peak, as long as the GPU's peaks are known at all.
        if counted and peaks.flops and all(k in peaks.flops or v == 0 for k, v in counted.items()):
            found[roof] = sum(v / peaks.flops[k].of("FLOP/s") for k, v in counted.items() if v)
    for roof, peak in (("dram", peaks.bandwidth), ("l2", peaks.l2_bandwidth)):
        if roof in amounts.bytes and peak is not None:
            found[roof] = amounts.bytes[roof] / peak.of("B/s")
    return found


def shares_of_peak(amounts: Amounts) -> dict[str, float]:
    """For each roof, the part of its peak that ncu itself says was reached."""
    found = {roof: amounts.percent[roof] / 100 for roof in ROOFS if roof in amounts.percent}
    pipes = [amounts.percent[pipe] for pipe in ("tensor", "cuda_core") if pipe in amounts.percent]
    # The busiest pipe is often the tensor cores', which have a roof of their own.
    if (pipes and amounts.percent.get("sm", 0.0) < max(pipes) + _MORE) or (not pipes and amounts.total("tensor_")):
        found.pop("sm", None)
    return found


def _closeness(roof: str, share: Floats, by_ncu: Floats) -> Floats:
    """How near to a roof launches ran: from 1 on they are bound by it. `by_ncu`: the share that ncu itself says."""
    limits = verdict_rules().thresholds
    if roof not in (*UNITS, "l2", "dram"):
        return share / limits["near_roof"]
    # ncu knows how much of the time these units are busy; bytes against a printed bandwidth are a guess.
    return np.where(np.isnan(by_ncu), share / limits["near_roof"], by_ncu / limits["near_unit"])


def _where_sms_work(share: Floats, active: Floats) -> Floats:
    """The same of L1 by the SMs that have work, in launches that leave others without: a grid that does not fill the GPU."""
    limits = verdict_rules().thresholds
    return np.where(share >= limits["near_roof"], active / limits["near_active_l1"], np.nan)


def is_complete(kind: Kind) -> bool:
    """Was counted what this kernel does? A matrix product without a FLOP ran in a data type nobody counted."""
    amounts = kind.amounts
    if amounts is None:
        return False
    by_ncu = _told_by_ncu(amounts)
    if kind.family not in MULTIPLYING:
        return by_ncu or "dram" in amounts.bytes or "dram" in amounts.percent
    # Where no pipe of the SMs has much to do, what they compute is not what limits it, whatever it is.
    idle = amounts.percent.get("sm", 100.0) < _SM_IDLE
    return idle or by_ncu or bool(kind.flops or amounts.percent.get("tensor")) or _all_counted(amounts)


def _told_by_ncu(amounts: Amounts) -> bool:
    """ncu's own shares of compute and of all memory leave nothing out; of a busy memory the level has to be known.

    A memory that is near its peak is the limit, whatever the SMs do.
    """
    if "memory" not in amounts.percent:
        return False
    levels = [amounts.percent[level] for level in ("dram", "l2", "l1") if level in amounts.percent]
    busy = amounts.percent["memory"]
    if busy < 100 * verdict_rules().thresholds["near_unit"]:
        return "sm" in amounts.percent
    return max(levels, default=0.0) >= _LEVEL * busy


def _all_counted(amounts: Amounts) -> bool:
    return "cuda_fp32" in amounts.flops and amounts.total("tensor_") is not None


@define(eq=False)
class RoofTable:
    """Seconds at each roof for one launch of each kind, on one GPU."""

    seconds: dict[str, Floats]  # roof -> one element per kind, NaN where unknown
    percent: dict[str, Floats]  # roof -> ncu's own share of peak, NaN where not collected
    complete: NDArray[np.bool_]
    sampled_ns: Floats  # what one launch took under ncu; NaN where it is not known
    l1_active: Floats  # ncu's share of the peak of L1 while SMs have work; NaN where not collected
    counted: NDArray[np.bool_]  # is anything known of a kind but its time?

    @staticmethod
    def of(kinds: Sequence[Kind], peaks: Peaks, earlier: RoofTable | None = None) -> RoofTable:
        """`earlier`: the table of the same list and peaks, from when it was shorter."""
        done = 0 if earlier is None else len(earlier.complete)
        if earlier is not None and done == len(kinds):
            return earlier
        table = RoofTable._of(kinds[done:], peaks)
        return table if earlier is None else earlier._followed_by(table)

    def _followed_by(self, more: RoofTable) -> RoofTable:
        return RoofTable(
            {roof: np.append(self.seconds[roof], more.seconds[roof]) for roof in ROOFS},
            {roof: np.append(self.percent[roof], more.percent[roof]) for roof in ROOFS},
            np.append(self.complete, more.complete),
            np.append(self.sampled_ns, more.sampled_ns),
            np.append(self.l1_active, more.l1_active),
            np.append(self.counted, more.counted),
        )

    @staticmethod
    def _of(kinds: Sequence[Kind], peaks: Peaks) -> RoofTable:
        seconds = {roof: np.full(len(kinds), np.nan) for roof in ROOFS}
        percent = {roof: np.full(len(kinds), np.nan) for roof in ROOFS}
        for row, kind in enumerate(kinds):
            if kind.amounts is not None:
                for roof, value in seconds_at_peak(kind.amounts, peaks).items():
                    seconds[roof][row] = value
                for roof, value in shares_of_peak(kind.amounts).items():
                    percent[roof][row] = value
        sampled = [np.nan if k.sampled_ns is None else k.sampled_ns for k in kinds]
        active = [np.nan if k.amounts is None else k.amounts.percent.get("l1_active", np.nan) / 100 for k in kinds]
        complete = np.array([is_complete(k) for k in kinds], dtype=np.bool_)
        times, l1_active = (np.array(one, dtype=np.float64) for one in (sampled, active))
        counted = np.array([kind.amounts is not None for kind in kinds], dtype=np.bool_)
        return RoofTable(seconds, percent, complete, times, l1_active, counted)


@define(eq=False)
class Roofed:
    """Launches of a region against the roofs; arrays with one element per row of launches."""

    launches: Launches
    shares: dict[str, Floats]  # of each roof, the part that was reached; NaN where unknown
    closeness: dict[str, Floats]  # the same over the part from which on it is the limit
    at_roof_ns: Floats  # all calls at the highest known roof; NaN where nothing is known
    analysed: NDArray[np.bool_]  # rows whose roof is known
    roof: list[str]  # the limiting roof of each row; "" where unknown

    @property
    def analysed_share(self) -> float:
        """Of the kernel time, launches whose roof is known."""
        whole = self.launches.kernel_time
        return float(self.launches.time_ns[self.analysed].sum()) / whole if whole else 0.0

    @cached_property
    def parts_above(self) -> dict[str, float]:
        """By kernel name, of those with counters: the part of their time above the roof."""
        sums: dict[str, list[float]] = {}
        kinds, time, lost = self.launches.timed_kinds, self.launches.time_ns, self.recoverable_ns
        for row in np.flatnonzero(self.analysed).tolist():
            both = sums.setdefault(kinds[row][0].kernel_name, [0.0, 0.0])
            both[0] += float(lost[row])
            both[1] += float(time[row])
        return {name: above / whole for name, (above, whole) in sums.items() if whole}

    @cached_property
    def recoverable_ns(self) -> Floats:
        """Time above the roof; 0 where it is not known."""
        time = self.launches.time_ns.astype(np.float64)
        return np.where(self.analysed, np.maximum(time - np.nan_to_num(self.at_roof_ns), 0.0), 0.0)


def against_roofs(launches: Launches, tables: dict[int, RoofTable]) -> Roofed:
    """`tables`: one per device; -1 is that of launches whose device is not known."""
    count = len(launches)
    if not any(table.counted[launches.which].any() for table in tables.values()):
        unknown = np.full(count, np.nan)
        nothing: dict[str, Floats] = dict.fromkeys(ROOFS, unknown)
        return Roofed(launches, nothing, nothing, unknown, np.zeros(count, dtype=np.bool_), [""] * count)
    seconds = {roof: np.full(count, np.nan) for roof in ROOFS}
    percent = {roof: np.full(count, np.nan) for roof in ROOFS}
    complete, l1_active = np.zeros(count, dtype=np.bool_), np.full(count, np.nan)
    for device in np.unique(launches.device).tolist():
        table = tables.get(device)
        if table is None:
            continue
        rows = np.flatnonzero(launches.device == device)
        kinds = launches.which[rows]
        # Samples of launches that took several times as long, or as short, describe others: the same kernel on
        # other sizes, sampled elsewhere. Under ncu a launch takes up to twice its time.
        mean = launches.time_ns[rows] / np.maximum(launches.calls[rows], 1)
        ratio = mean / np.where(table.sampled_ns[kinds] > 0, table.sampled_ns[kinds], np.nan)
        fits = np.isnan(ratio) | ((ratio >= 1 / _ALIKE) & (ratio <= _ALIKE))
        complete[rows] = table.complete[kinds] & fits
        l1_active[rows] = table.l1_active[kinds]
        for roof in ROOFS:
            seconds[roof][rows] = table.seconds[roof][kinds] * launches.calls[rows]
            percent[roof][rows] = table.percent[roof][kinds]
    time = np.maximum(launches.time_ns, 1).astype(np.float64)
    shares = {}
    for roof in ROOFS:
        # A share above 1 would be faster than light: counters and times of two different runs.
        own = np.minimum(seconds[roof] * 1e9 / time, 1.0)
        shares[roof] = np.where(np.isnan(own), percent[roof], own)
        seconds[roof] = np.where(np.isnan(seconds[roof]), percent[roof] * time * 1e-9, seconds[roof])
    stacked = np.stack([seconds[roof] for roof in ROOFS]) if count else np.zeros((len(ROOFS), 0))
    known = ~np.isnan(stacked)
    highest = np.where(known, stacked, -1.0)
    # All that DRAM moves goes through L2: where both are as busy, DRAM is what holds.
    dram, l2 = highest[ROOFS.index("dram")], highest[ROOFS.index("l2")]
    passing = dram >= _AS_BUSY * l2
    l2[passing] = -1.0
    # Counters of FLOPs that found none say nothing about a kernel that moves data: its memory roof has to be known.
    telling = known & ((stacked > 0) | np.array([[roof in ("dram", "l2")] for roof in ROOFS]))
    analysed = complete & telling.any(axis=0)
    at_roof = np.where(analysed, highest.max(axis=0, initial=-1.0) * 1e9, np.nan)
    closeness = {roof: _closeness(roof, shares[roof], percent[roof]) for roof in ROOFS}
    closeness["l2"] = np.where(passing & (closeness["dram"] >= 1), 0.0, closeness["l2"])
    closeness["l1"] = np.fmax(closeness["l1"], _where_sms_work(shares["l1"], l1_active))
    # Of the roofs it runs near, the one it is nearest to; a share of a unit that is no limit yet may be higher.
    near = np.where(known, np.stack([closeness[roof] for roof in ROOFS]) >= 1, False)
    best = (highest + near * (highest.max(initial=0.0) + 1)).argmax(axis=0) if count else np.zeros(0, dtype=np.int64)
    return Roofed(
        launches,
        shares,
        closeness,
        np.minimum(at_roof, launches.time_ns),
        analysed,
        [ROOFS[b] if ok else "" for b, ok in zip(best.tolist(), analysed.tolist(), strict=True)],
    )


def bounds(roofed: Roofed) -> list[str]:
    """What bounds each row: the roof it runs near, else latency; "" where it cannot be told."""
    return [
        "" if not roof else roof if roofed.closeness[roof][row] >= 1 else "latency"
        for row, roof in enumerate(roofed.roof)
    ]
