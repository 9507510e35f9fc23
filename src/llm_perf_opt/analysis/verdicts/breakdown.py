"""A region's time taken apart: by family, by what bounds the kernels, by signature, and by ncu's own rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_perf_opt.analysis.verdicts.launches import Kind, Launches
from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.metrics.catalogue import stall_words
from llm_perf_opt.metrics.families import GRAPH, HOST_COPY, MIGRATION, PEER_COPY
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.model import FamilyTime, NCUProfileRegion, RuleFinding, RuleSummary, SignatureRecord
from llm_perf_opt.regions.names import short_kernel_name

_MOST_RULES = 10


def time_by_bound(launches: Launches, bound: Sequence[str]) -> dict[str, Quantity]:
    """Kernel time by what bounds the kernels, most first; "" is not known."""
    found: dict[str, float] = {}
    for name, time in zip(bound, launches.time_ns.tolist(), strict=True):
        found[name] = found.get(name, 0.0) + time
    return {name: nanoseconds(found[name]) for name in sorted(found, key=lambda n: -found[n])}


def weighted_percent(launches: Launches, kind: str) -> float | None:
    """A percentage of ncu over the launches that have it, weighted by time."""
    amounts = [(one.amounts, time) for one, time in launches.timed_kinds]
    known = [(own.percent[kind], time) for own, time in amounts if own is not None and kind in own.percent]
    weight = sum(time for _, time in known)
    return sum(value * time for value, time in known) / weight if weight else None


def main_stall(launches: Launches) -> tuple[str, float] | None:
    """What warps wait for most, and its part of all waiting, weighted by time."""
    waits: dict[str, float] = {}
    for kind, time in launches.timed_kinds:
        if kind.amounts is not None and (whole := sum(kind.amounts.stalls.values())):
            for reason, value in kind.amounts.stalls.items():
                waits[reason] = waits.get(reason, 0.0) + value / whole * time
    if not waits:
        return None
    reason = max(waits, key=lambda r: waits[r])
    return stall_words(reason), waits[reason] / sum(waits.values())


def time_by_family(region: NCUProfileRegion, roofed: Roofed) -> list[FamilyTime]:
    """Time by family, most first: kernels, copies, whole graphs."""
    launches = roofed.launches
    rows: dict[str, list[int]] = {}
    for row, which in enumerate(launches.which.tolist()):
        rows.setdefault(launches.kinds[which].family, []).append(row)
    memory, stats = region.inclusive.memory, region.inclusive
    whole = launches.kernel_time + memory.host_time_ns + stats.graph_time_ns
    lost = roofed.recoverable_ns
    found = []
    for family, members in rows.items():
        at = np.array(members)
        one = _plain(family, int(launches.calls[at].sum()), float(launches.time_ns[at].sum()), whole)
        known = at[roofed.analysed[at]]
        if len(known):
            one.analysed = nanoseconds(float(launches.time_ns[known].sum()))
            one.time_at_roof = nanoseconds(float(roofed.at_roof_ns[known].sum()))
            one.recoverable = nanoseconds(float(lost[known].sum()))
            one.flops, one.dram = (_summed(launches, known.tolist(), what) for what in ("flops", "dram"))
        found.append(one)
    peers, migrations = memory.peer_count, memory.migration_count
    between = memory.host_time_ns - memory.peer_time_ns - memory.migration_time_ns
    for family, calls, time in (
        (HOST_COPY, memory.host_count - peers - migrations, between),
        (PEER_COPY, peers, memory.peer_time_ns),
        (MIGRATION, migrations, memory.migration_time_ns),
    ):
        if calls:
            found.append(_plain(family, calls, time, whole))
    if stats.graph_time_ns:
        found.append(_plain(GRAPH, stats.graph_launches, stats.graph_time_ns, whole))
    return sorted(found, key=lambda f: -f.time.value)


def _plain(family: str, calls: int, time: float, whole: float) -> FamilyTime:
    return FamilyTime(family, calls, nanoseconds(time), time / whole if whole else None)


def _summed(launches: Launches, rows: Sequence[int], what: str) -> Quantity | None:
    """FLOPs or bytes of all calls of some rows; None where none of them has any counted."""
    amounts = [(amount(launches.kinds[int(launches.which[row])], what), row) for row in rows]
    values = [one * int(launches.calls[row]) for one, row in amounts if one is not None]
    return Quantity(sum(values), "FLOP" if what == "flops" else "B") if values else None


def amount(kind: Kind, what: str) -> float | None:
    if what == "flops":
        return kind.flops
    return None if kind.amounts is None else kind.amounts.bytes.get(what)


def signature_records(roofed: Roofed, count: int) -> tuple[list[SignatureRecord], int]:
    """The longest, and how many there are. Launches of one signature that do the same FLOPs are one entry."""
    launches = roofed.launches
    groups: dict[object, list[int]] = {}
    for row, which in enumerate(launches.which.tolist()):
        kind = launches.kinds[which]
        flops = kind.flops
        # The inner dimension of a product is not in the signature; FLOPs tell such launches apart.
        work = None if flops is None else float(f"{flops:.2g}")
        key = (kind.kernel_name, kind.grid, kind.block, int(launches.device[row]), work, bool(roofed.analysed[row]))
        groups.setdefault(key, []).append(row)
    ordered = sorted(groups.values(), key=lambda rows: -int(launches.time_ns[rows].sum()))
    return [_signature(roofed, rows) for rows in ordered[:count]], len(ordered)


def _signature(roofed: Roofed, rows: list[int]) -> SignatureRecord:
    launches = roofed.launches
    kind = launches.kinds[int(launches.which[rows[0]])]
    time = nanoseconds(int(launches.time_ns[rows].sum()))
    device = int(launches.device[rows[0]])
    record = SignatureRecord(
        kernel_name=kind.kernel_name,
        short_name=short_kernel_name(kind.kernel_name),
        family=kind.family,
        device=None if device < 0 else device,
        grid=list(kind.grid),
        block=list(kind.block),
        calls=int(launches.calls[rows].sum()),
        time=time,
        share=time.value / launches.kernel_time if launches.kernel_time else None,
        samples=max(launches.kinds[int(launches.which[r])].samples for r in rows),
    )
    if not roofed.analysed[rows[0]]:
        return record
    record.flops, record.dram, record.l2 = (_summed(launches, rows, what) for what in ("flops", "dram", "l2"))
    if record.flops is not None and record.dram is not None and record.dram.value:
        record.intensity = record.flops / record.dram
    if time.value:
        record.flop_rate = None if record.flops is None else record.flops / time
        record.dram_rate = None if record.dram is None else record.dram / time
    weights = launches.time_ns[rows] / max(time.value, 1.0)
    near: dict[str, float] = {}
    for roof, shares in roofed.shares.items():
        if not np.isnan(shares[rows]).any():
            record.shares[roof] = float((shares[rows] * weights).sum())
            near[roof] = float((roofed.closeness[roof][rows] * weights).sum())
    record.roof = max(near, key=lambda r: (near[r] >= 1, record.shares[r]), default="")
    record.time_at_roof = nanoseconds(float(roofed.at_roof_ns[rows].sum()))
    record.recoverable = nanoseconds(float(roofed.recoverable_ns[rows].sum()))
    record.bound = record.roof if record.roof and near[record.roof] >= 1 else "latency"
    return record


def rule_summaries(findings: Sequence[RuleFinding]) -> list[RuleSummary]:
    """ncu's rules over all kernels, those that promise most first."""
    grouped: dict[tuple[str, str], list[RuleFinding]] = {}
    for finding in findings:
        grouped.setdefault((finding.rule, finding.title), []).append(finding)
    found = []
    for (rule, title), members in grouped.items():
        shares = [m.share_of_gpu_time for m in members if m.share_of_gpu_time is not None]
        speedups = [(m.share_of_gpu_time, m.estimated_speedup_percent) for m in members]
        promised = [share * percent for share, percent in speedups if share is not None and percent is not None]
        found.append(
            RuleSummary(
                rule=rule,
                title=title,
                kernels=len({m.kernel_name for m in members}),
                share_of_gpu_time=min(sum(shares), 1.0) if shares else None,
                weighted_speedup_percent=sum(promised) if promised else None,
                message=max(members, key=lambda m: m.share_of_gpu_time or 0.0).message,
            )
        )
    found.sort(key=lambda r: (-(r.weighted_speedup_percent or 0.0), -(r.share_of_gpu_time or 0.0)))
    return found[:_MOST_RULES]
