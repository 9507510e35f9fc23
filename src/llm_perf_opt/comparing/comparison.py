"""The finished comparison: plain classes, built once by `evaluation` and only read by the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import Factory, define, field

from llm_perf_opt.comparing.side import Floats, KernelUse
from llm_perf_opt.json_output import SCHEMA_VERSION

BETTER, WORSE, SAME, UNSURE, NOT_COMPARABLE = VERDICTS = ("better", "worse", "same", "unsure", "not_comparable")
COUNTS = "counts"  # what a verdict rests on where times do not count; the others are in `noise`
# How a kernel found its partner.
SIGNATURE, GRID, ORDER, NEW, GONE = "signature", "grid", "order of launches", "new", "gone"


@define(frozen=True)
class Cause:
    """A part of a region's change. All causes of a region add up to it."""

    # "idle" | "launches" | "new kernel" | "gone kernel" | "replaced kernel" | "graph" | "more work" | "less work"
    # | "slower kernel" | "faster kernel" | "clock" | "overlap" | "other" | "not recorded"
    kind: str
    what: str
    delta_ns: float


@define(frozen=True)
class ExactChange:
    """Something that is counted, per instance, on both sides."""

    what: str
    before: float
    after: float
    changed: bool = True


@define(frozen=True)
class KernelPair:
    """Work of one side and what does it on the other; one side may be empty."""

    before: tuple[KernelUse, ...]
    after: tuple[KernelUse, ...]
    how: str  # SIGNATURE | GRID | ORDER | NEW | GONE | "graph"

    @property
    def delta_ns(self) -> float:
        return sum(use.time_ns for use in self.after) - sum(use.time_ns for use in self.before)


@define(frozen=True, eq=False)
class RegionComparison:
    """One region of both sides; `key` is the new one's, where it has another."""

    key: str
    label: str
    parent: str | None
    depth: int
    verdict: str
    reason: str  # of "unsure", "same" and "not_comparable", what would settle it; else ""
    before_ns: float | None
    after_ns: float | None
    change: float | None  # relative: 0.12 is 12 % more
    interval: list[float] | None
    basis: str = ""  # what the verdict rests on: "runs" | "instances" | "nothing" | "counts"
    source: str = ""  # which times: "undisturbed" | "timeline" …
    instances: tuple[int, int] = (0, 0)
    decides: bool = False  # the verdict of the whole rests on it
    renamed_from: str = ""
    weight_ns: float = 0.0  # all steady instances of the new side together
    causes: list[Cause] = Factory(list)
    exact: list[ExactChange] = Factory(list)
    pairs: list[KernelPair] = field(factory=list, repr=False)
    times: tuple[Floats, Floats] = field(factory=lambda: (np.zeros(0), np.zeros(0)), repr=False)

    @property
    def by_counts(self) -> bool:
        return self.basis == COUNTS

    @property
    def delta_ns(self) -> float:
        return 0.0 if self.before_ns is None or self.after_ns is None else self.after_ns - self.before_ns

    @property
    def exact_changes(self) -> list[ExactChange]:
        return [change for change in self.exact if change.changed]

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "verdict": self.verdict,
            "reason": self.reason,
            "before_ns": _rounded(self.before_ns),
            "after_ns": _rounded(self.after_ns),
            "change": self.change,
            "interval": self.interval,
            "basis": self.basis,
            "source": self.source,
            "instances": list(self.instances),
            "decides": self.decides,
            "renamed_from": self.renamed_from or None,
            "causes": [
                {"kind": cause.kind, "what": cause.what, "delta_ns": round(cause.delta_ns, 3)} for cause in self.causes
            ],
            "exact": [
                {"what": one.what, "before": one.before, "after": one.after, "changed": one.changed}
                for one in self.exact
            ],
        }


@define(frozen=True, eq=False)
class Comparison:
    """Two sides, region by region."""

    base: str
    new: str
    verdict: str
    reasons: list[str]
    sentences: list[str]  # largest change first
    regions: list[RegionComparison] = field(repr=False)
    only_new: list[str] = Factory(list)  # keys of regions without a partner
    only_base: list[str] = Factory(list)
    notes: list[str] = Factory(list)
    budgets: list[dict[str, Any]] = Factory(list)  # see `budgets`

    @property
    def by_counts(self) -> bool:
        return any(region.by_counts for region in self.regions)

    def region(self, key: str) -> RegionComparison:
        """The region with this key; `KeyError` where there is none."""
        for region in self.regions:
            if region.key == key:
                return region
        raise KeyError(key)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict,
            "reasons": self.reasons,
            "base": self.base,
            "new": self.new,
            "sentences": self.sentences,
            "regions": [region.as_json() for region in self.regions],
            "new_regions": self.only_new,
            "gone_regions": self.only_base,
            "notes": self.notes,
            "budgets": self.budgets,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
