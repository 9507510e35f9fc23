"""What several ranks say of each other, as `report.json` holds it (`ranks`)."""

from __future__ import annotations

from attrs import define


@define(frozen=True)
class RankTime:
    """One rank in the collectives that all ranks have in common."""

    rank: int | None
    label: str
    source: str
    clock_offset_ns: int  # its clock against that of the first, by the ends of the collectives
    collectives_ns: int
    waiting_ns: int  # of that, for ranks that came later
    caused_waiting_ns: int  # the longest wait of another, over the collectives to which this one came last
    longest_ns: int  # what the collective with the longest wait took here


@define(frozen=True)
class RankSkew:
    """What the collectives of several ranks say together: who waits, and for whom."""

    ranks: list[RankTime]
    collectives: int  # that all have in common
    residual_ns: int  # nine of ten ends lie so close together once the clocks are aligned
    transfer_ns: int  # the collectives as the last rank sees them: without waiting
    late: str | None  # the rank that the others wait for most
    longest: str  # kernel of the collective with the longest wait
