"""The GPU work of every region of a timeline, by signature: worked out when somebody asks for a region."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from attrs import Factory, define, evolve, field

from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.analysis.verdicts.launches import Launches
from llm_perf_opt.comparing.side import KernelUse, SignatureKey, rest_of, shortened
from llm_perf_opt.regions.columns import Int64s, Timeline, Work
from llm_perf_opt.regions.kernel_rows import KernelRows, exclusive_rows, lift, rows_per_region
from llm_perf_opt.regions.rollup import Selection
from llm_perf_opt.regions.signatures import Signature, describe_signatures

_MOST_USES = 500  # signatures of one region, listed one by one
_MOST_LAUNCHES = 600  # of one instance, whose order is looked at


@define(eq=False)
class WorkTable:
    """Of the steady instances of a scope."""

    warmth: SteadyTimeline
    selection: Selection
    launches: Mapping[int, Launches] | None  # by region, with what one launch does; None without counters
    _rows: dict[int, tuple[KernelRows, Int64s]] | None = None
    _described: list[Signature] = Factory(list)
    _label: Int64s = field(factory=lambda: np.zeros(0, dtype=np.int64))
    _by_host: Int64s | None = None  # kernels in the order of their launches
    _others: dict[str, dict[int, tuple[KernelRows, Int64s]]] = Factory(dict)  # copies and graphs

    @property
    def timeline(self) -> Timeline:
        return self.warmth.timeline

    @property
    def has_counters(self) -> bool:
        return self.launches is not None

    def uses_of(self, number: int, instances: int) -> list[KernelUse]:
        """Per instance of a region: kernels, copies and whole graphs."""
        found = self._counted_kernels(number, instances) if self.launches is not None else None
        if found is None:
            self._describe()
            found = _uses(self._rows or {}, number, instances, self._use_of_signature)
        for kind, work in (("copy", self.timeline.copies), ("graph", self.timeline.graphs)):
            found += self._other_work(kind, work, number, instances)
        return shortened(found, _MOST_USES)

    def _describe(self) -> None:
        """Kernels by signature, of all regions; once."""
        if self._rows is None:
            self._label, self._described = describe_signatures(self.timeline)
            lifted, kernels = self.warmth.lifted, self.timeline.kernels
            rows = exclusive_rows(kernels, lifted, self.selection.kernels, self._label)
            self._rows = rows_per_region(lift(rows, lifted))

    def _use_of_signature(self, label: int, calls: float, time: float) -> KernelUse:
        signature = self._described[label]
        return KernelUse(signature.shown or signature.name, calls, time, signature.grid or (), signature.block or ())

    def _counted_kernels(self, number: int, instances: int) -> list[KernelUse] | None:
        """The same with counters; several kinds of one signature are one."""
        assert self.launches is not None
        launches = self.launches.get(number)
        if launches is None:
            return None
        found: dict[object, KernelUse] = {}
        columns = (launches.which.tolist(), launches.calls.tolist(), launches.time_ns.tolist())
        for which, calls, time in zip(*columns, strict=True):
            kind = launches.kinds[which]
            amounts = kind.amounts
            use = KernelUse(
                kind.kernel_name,
                calls / instances,
                time / instances,
                tuple(kind.grid),
                tuple(kind.block),
                flops=kind.flops,
                tensor=None if amounts is None else amounts.total("tensor_"),
                dram=None if amounts is None else amounts.bytes.get("dram"),
            )
            found[use.signature] = _together(found[use.signature], use) if use.signature in found else use
        return list(found.values())

    def _other_work(self, kind: str, work: Work, number: int, instances: int) -> list[KernelUse]:
        if not len(work):
            return []
        if kind not in self._others:
            lifted, selection = self.warmth.lifted, self.selection
            membership = lifted.copies if kind == "copy" else lifted.graphs
            which = selection.copies if kind == "copy" else selection.graphs
            of_kind = evolve(lifted, kernels=membership)
            self._others[kind] = rows_per_region(lift(exclusive_rows(work, of_kind, which, work.name), of_kind))
        rows, strings = self._others[kind], self.timeline.strings

        def use(label: int, calls: float, time: float) -> KernelUse:
            return KernelUse(strings[label] if label >= 0 else kind, calls, time, kind=kind)

        return _uses(rows, number, instances, use)

    def order_of(self, number: int) -> list[SignatureKey]:
        """Signatures in the order of launches, of the steady instance in the middle."""
        self._describe()
        timeline, ranges, kernels = self.timeline, self.timeline.ranges, self.timeline.kernels
        steady = self.selection.ranges[self.warmth.attribution.range_region[self.selection.ranges] == number]
        if not len(steady):
            return []
        if self._by_host is None:
            self._by_host = np.argsort(kernels.host_time, kind="stable")
        typical = int(steady[np.argsort(timeline.ranges.duration[steady])[len(steady) // 2]])
        at = np.searchsorted(kernels.host_time, [ranges.start[typical], ranges.end[typical]], sorter=self._by_host)
        inside = self._by_host[at[0] : at[1]]
        inside = inside[kernels.process[inside] == ranges.process[typical]][:_MOST_LAUNCHES]
        return [self._use_of_signature(label, 0.0, 0.0).signature for label in self._label[inside].tolist()]


def _uses(
    rows: Mapping[int, tuple[KernelRows, Int64s]],
    number: int,
    instances: int,
    use: Callable[[int, float, float], KernelUse],
) -> list[KernelUse]:
    """Rows of one region per instance, devices added up; of very many the longest, and the rest as one."""
    if number not in rows:
        return []
    table, which = rows[number]
    labels, place = np.unique(table.label[which], return_inverse=True)
    calls, total = (
        np.bincount(place.reshape(-1), weights=column[which], minlength=len(labels)) / instances
        for column in (table.calls, table.total)
    )
    order = np.argsort(-total, kind="stable")
    kept, rest = order[:_MOST_USES], order[_MOST_USES:]
    found = [use(*one) for one in zip(labels[kept].tolist(), calls[kept].tolist(), total[kept].tolist(), strict=True)]
    return [*found, rest_of(calls[rest].sum(), total[rest].sum())] if len(rest) else found


def _together(one: KernelUse, other: KernelUse) -> KernelUse:
    """Launches of one signature that differ in what they do."""
    calls = one.calls + other.calls

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None or not calls else (a * one.calls + b * other.calls) / calls

    return evolve(
        one,
        calls=calls,
        time_ns=one.time_ns + other.time_ns,
        flops=mean(one.flops, other.flops),
        tensor=mean(one.tensor, other.tensor),
        dram=mean(one.dram, other.dram),
    )
