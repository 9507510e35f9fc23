"""What several ranks say of each other, as `report.json` holds it (`ranks`)."""

from __future__ import annotations

from attrs import define


@define(frozen=True)
class RankTime:
    """One rank in the collectives that all ranks have in common."""

    rank: int | None
    label: str
    source: str
    clock_offset_ns: int  # its clock against that of the first, by the ends of the collectives, halfway through
    collectives_ns: int
    waiting_ns: int  # of that, for ranks that came later
    caused_waiting_ns: int  # the longest wait of another, over the collectives to which this one came last
    longest_ns: int  # what the collective with the longest wait took here
    clock_drift_ppm: float = 0.0  # how much faster its clock goes than that of the first; 0: not seen


@define(frozen=True)
class RankSkew:
    """What the collectives of several ranks say together: who waits, and for whom."""

    ranks: list[RankTime]
    collectives: int  # that all have in common
    residual_ns: int  # nine of ten ends lie so close together once the clocks are aligned
    transfer_ns: int  # the collectives as the last rank sees them: without waiting
    late: str | None  # the rank that the others wait for most
    longest: str  # kernel of the collective with the longest wait
    clocks: int = 0  # that were aligned: one of each recording
    by_order: bool = False  # nothing but their order says which collectives are the same ones


@define(frozen=True)
class CollectiveUse:
    """Collectives of one kind in one region, as one rank has them."""

    region: str  # key of the innermost around them; empty: none
    kind: str  # "all-reduce" | "all-gather" | …
    ranks: int | None  # that take part; None: not recorded
    calls: int  # on one rank
    bytes: int | None  # of all of them on one rank: the larger of what it gives and gets; None: not recorded
    median_bytes: int | None  # of one
    time_ns: int  # of their kernels
    exposed_ns: int  # of that, no other kernel ran on the rank's GPU
    waiting_ns: int | None  # of that, for ranks that came later; None: only one rank is known
    transfer_ns: int | None  # once all were there
    bandwidth: float | None  # bytes a second over the transfer; over all of the time where waiting is not known
    bus_bandwidth: float | None  # the same as a link sees it, as NCCL's tests count; None: ranks are not known


@define(frozen=True)
class RankRow:
    """One rank, step by step."""

    rank: int
    label: str
    times_ns: list[int]
    waiting_ns: list[int] | None  # of that, in collectives for ranks that came later; None: not recorded
    transfer_ns: list[int] | None  # of that, in collectives once all were there
    median_ns: int  # of the steady steps
    memory_peak_bytes: int | None
    energy_j: float | None  # of a steady step
    why: str  # what it does differently from the others; empty: nothing that counts
    computing_ns: int | None = None  # of a step, its GPU without collectives that nothing else runs beside; on average


@define(frozen=True)
class RankSteps:
    """Ranks by steps: the instances of a region that all ranks have, in their order."""

    region: str  # its key
    all_steps: int  # that every rank has
    warmup: int  # of those listed, the first that are warm-up on some rank
    common_ns: list[int]  # of each step, the longest of all ranks
    common_median_ns: int  # of the steady ones
    ranks: list[RankRow]


_MOST_NAMED = 4


def differing_ranks(steps: RankSteps) -> str:
    """What ranks do differently, in words; empty where none stands out. Of two, each differs from the other."""
    differing = [row for row in steps.ranks if row.why]
    if len(differing) == len(steps.ranks) > 2:
        return ""
    return "; ".join(f"{row.label}: {row.why}" for row in differing[:_MOST_NAMED])


@define(frozen=True)
class RankLoad:
    """What one rank has to do of something that all wait for."""

    label: str
    time_ns: int  # on average
    idle_share: float  # of the common time


@define(frozen=True)
class Imbalance:
    """Work that ranks share unequally."""

    kind: str  # "experts": between the all-to-alls around them | "stages": of a pipeline, in a step
    sections: int  # how often each rank does it
    common_ns: int  # of one: as long as it takes until all are done, on average
    lost_share: float  # of the GPUs' time meanwhile, in which they do not compute
    uneven_share: float  # of that time, what is lost because one rank has more to do than the others
    most: str  # the rank that has most to do
    ranks: list[RankLoad]
