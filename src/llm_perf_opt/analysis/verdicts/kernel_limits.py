"""What holds kernels back inside the SMs: L1 and shared memory, occupancy, grids that do not fill the GPU.

Such kernels are taken out of what their family could win at its roof: that time is won by other means, if at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import numpy as np
from attrs import define

from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.analysis.verdicts.launches import Kind
from llm_perf_opt.analysis.verdicts.roofs import Floats, Roofed
from llm_perf_opt.analysis.verdicts.rules import Facts
from llm_perf_opt.metrics.quantity import nanoseconds
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.regions.labels import counted as count_of
from llm_perf_opt.regions.model import RuleFinding
from llm_perf_opt.regions.names import short_kernel_name

_KERNELS_NAMED = 3
_PLACES = "blocks"  # that an SM has for blocks, however small they are
_FEW_BLOCKS = 32
_HALF = 50.0  # %
_LOW = 0.5  # occupancy that is too little to hide latency …
_LEAST = 0.5  # of what could be won at best
_REACHED = 0.7  # … where the launch has as many warps resident as that lets it, more or less


@define(frozen=True)
class Occupancy:
    """Warps that a kernel's needs let an SM hold, of those it can, and which need is the limit."""

    allowed: float
    limit: str


def occupancy_of(kind: Kind) -> Occupancy | None:
    """None where ncu did not say, or where nothing but the number of warps is the limit."""
    if kind.fill.get("warps", 0.0) <= 0:
        return None
    fits = {what: blocks for what, blocks in kind.fill.items() if what != "waves" and blocks > 0}
    least = min(fits.values())
    names = [what for what, blocks in fits.items() if blocks == least and what != "warps"]
    return Occupancy(least / fits["warps"], " and ".join(names)) if least < fits["warps"] else None


def lacks_occupancy(kind: Kind) -> bool:
    """Are there too few warps to hide latency, because of what each block needs?

    Kernels on the tensor cores want few: they keep their data in flight by other means.
    """
    found, amounts = occupancy_of(kind), kind.amounts
    if found is None or amounts is None or found.allowed > _LOW or kind.fill.get("waves", 0.0) < 1:
        return False
    on_tensor_cores = amounts.total("tensor_") or amounts.percent.get("tensor")
    return not on_tensor_cores and amounts.percent.get("occupancy", 0.0) >= 100 * _REACHED * found.allowed


def leaves_sms_idle(kind: Kind) -> bool:
    """Has a launch too few blocks for all SMs? Where ncu did not say: fewer than a small GPU has SMs."""
    waves = kind.fill.get("waves", 0.0)
    return waves < 1 if waves > 0 else 0 < prod(kind.grid or (0,)) < _FEW_BLOCKS


def _mask(roofed: Roofed, fits: Callable[[Kind], bool]) -> Bools:
    launches = roofed.launches
    return np.array([fits(launches.kinds[which]) for which in launches.which.tolist()], dtype=np.bool_)


@define(eq=False)
class KernelLimits:
    """Rows of a region's launches that such a limit holds back."""

    roofed: Roofed
    l1: Bools
    occupancy: Bools

    @staticmethod
    def of(roofed: Roofed, bound: Sequence[str]) -> KernelLimits:
        waiting = np.array([name == "latency" for name in bound], dtype=np.bool_)
        near_l1 = np.array([name == "l1" for name in bound], dtype=np.bool_)
        return KernelLimits(roofed, near_l1, waiting & _mask(roofed, lacks_occupancy))

    @property
    def claimed(self) -> Bools:
        """Rows whose time is in one of the opportunities below."""
        return self.l1 | self.occupancy

    def add_facts(self, facts: Facts) -> None:
        """Numbers and words of the verdicts on kernels."""
        roofed, time = self.roofed, self.roofed.launches.time_ns
        whole = roofed.launches.kernel_time
        small = _mask(roofed, leaves_sms_idle)
        facts.share("small_grid_share", float(time[small].sum()) / whole if whole else None)
        facts.share("occupancy_share", float(time[self.occupancy].sum()) / whole if whole else None)
        facts.words["occupancy_limit"] = self._limit_words()
        facts.words["block_words"] = self._block_words()
        facts.numbers["occupancy_by_blocks"] = 1.0 if facts.words["block_words"] else 0.0
        reached = self._weighted(self.l1, roofed.shares["l1"])
        facts.words["l1_words"] = "" if reached is None else f": {100 * reached:.0f} % of it is reached"
        use = [
            kind.amounts.percent.get("sector_use") if kind.amounts else None for kind, _ in roofed.launches.timed_kinds
        ]
        facts.share(
            "sector_use_share",
            self._weighted(self.l1, np.array([np.nan if u is None else u / 100 for u in use], dtype=np.float64)),
        )

    def _weighted(self, rows: Bools, values: Floats) -> float | None:
        known = rows & ~np.isnan(values)
        time = self.roofed.launches.time_ns[known]
        return float((values[known] * time).sum() / time.sum()) if time.sum() else None

    def _limit_words(self) -> str:
        """`registers let 31 % of the warps be resident`, of the longest kernel."""
        kinds = self._longest(self.occupancy)
        found = occupancy_of(kinds[0]) if kinds else None
        return "" if found is None else f"{found.limit} let {100 * found.allowed:.0f} % of the warps be resident"

    def _block_words(self) -> str:
        """`blocks of 32 threads`, where the longest kernel fills an SM's places for blocks before its warps."""
        kinds = self._longest(self.occupancy)
        found = occupancy_of(kinds[0]) if kinds else None
        if found is None or found.limit != _PLACES:
            return ""
        return f"blocks of {count_of(prod(kinds[0].block), 'thread')}" if kinds[0].block else "small blocks"

    def _longest(self, rows: Bools) -> list[Kind]:
        """Kinds of some rows, each kernel once, those that take most time first."""
        launches = self.roofed.launches
        times: dict[str, tuple[int, Kind]] = {}
        for row in np.flatnonzero(rows).tolist():
            kind = launches.kinds[int(launches.which[row])]
            before = times.get(kind.kernel_name, (0, kind))
            times[kind.kernel_name] = (before[0] + int(launches.time_ns[row]), before[1])
        return [kind for _, kind in sorted(times.values(), key=lambda pair: -pair[0])]

    def found(self, said: Sequence[RuleFinding], scale: float, free: Floats, launched: Launched) -> Iterator[Found]:
        """`said`: what ncu's rules say of the region's kernels. `scale`: what a saved nanosecond saves the region.

        `free`: the part of each row that no rule has spoken for. `launched`: those of the region, one by one.
        """
        for rule, rows, gain in (
            ("l1.bound", self.l1, self._l1_gain),
            ("occupancy", self.occupancy, self._occupancy_gain),
        ):
            if not rows.any():
                continue
            kinds = self._longest(rows)
            names = {kind.kernel_name for kind in kinds}
            most = nanoseconds(float((gain() * free)[rows].sum()) * scale)
            yield Found(
                rule,
                "kernels",
                nanoseconds(float((self.roofed.launches.time_ns * free)[rows].sum())),
                most,
                family="+".join(dict.fromkeys(kind.family for kind in kinds)),
                words={"ncu_says": ncu_says_of(said, names)},
                kernels=[short_kernel_name(kind.kernel_name) for kind in kinds[:_KERNELS_NAMED]],
                texts=self._texts(rule),
                interval=(most * _LEAST, most),
                rows=launched.fits(partial(_is_one_of, names)),
            )

    def _texts(self, rule: str) -> str:
        if rule == "l1.bound":
            return "l1.bound.coalesce" if self._wastes_loads() else ""
        return "occupancy.blocks" if self._block_words() else ""

    def _wastes_loads(self) -> bool:
        facts = Facts()
        self.add_facts(facts)
        use = facts.numbers["sector_use_share"]
        return use is not None and use <= _LOW

    def _l1_gain(self) -> Floats:
        """What loads of nothing but used bytes would save, down to the next roof; at the least the time above the roof.

        Where nobody counted the bytes that are used: what half the requests would save.
        """
        roofed = self.roofed
        time = roofed.launches.time_ns.astype(np.float64)
        others = np.nan_to_num(np.stack([share for roof, share in roofed.shares.items() if roof != "l1"]))
        kinds = [kind.amounts for kind, _ in roofed.launches.timed_kinds]
        use = np.array([(a.percent.get("sector_use", _HALF) if a else _HALF) / 100 for a in kinds], dtype=np.float64)
        unused = np.nan_to_num(roofed.shares["l1"]) * np.clip(1 - use, 0.0, 1.0) * time
        gain: Floats = np.maximum(
            np.minimum(unused, time * (1 - others.max(axis=0, initial=0.0))), roofed.recoverable_ns
        )
        return gain

    def _occupancy_gain(self) -> Floats:
        """With twice the warps a kernel that waits takes half the time at best, and not less than at its roof."""
        kinds = [occupancy_of(kind) for kind, _ in self.roofed.launches.timed_kinds]
        missing = np.array([0.0 if found is None else 1 - found.allowed for found in kinds], dtype=np.float64)
        return np.minimum(missing * self.roofed.launches.time_ns, self.roofed.recoverable_ns)


def _is_one_of(names: set[str], kind: LaunchKind) -> bool:
    return kind.kernel in names


def ncu_says_of(said: Sequence[RuleFinding], kernels: set[str]) -> str:
    """The rule of ncu that promises most for these kernels, in its own words."""
    promising = [f for f in said if f.kernel_name in kernels and f.estimated_speedup_percent]
    best = max(
        promising, key=lambda f: (f.share_of_gpu_time or 0.0) * (f.estimated_speedup_percent or 0.0), default=None
    )
    return "" if best is None else f" (ncu: {best.title}, estimated speed-up {best.estimated_speedup_percent:.0f} %)"
