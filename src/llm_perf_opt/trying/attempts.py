"""The finished trial: plain classes, written as `try.json` and only read by the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import Factory, define

from llm_perf_opt.comparing.comparison import BETTER, Comparison, RegionComparison
from llm_perf_opt.comparing.noise import NOTHING
from llm_perf_opt.json_output import SCHEMA_VERSION
from llm_perf_opt.trying.levers import Lever
from llm_perf_opt.trying.output_comparison import NOT_COMPARED, SAME, WITHIN_NOISE, Agreement

REFUSED, NOT_APPLIED, FAILED, LEFT_OUT = "refused", "not applied", "failed", "left out"


@define
class Attempt:
    """One lever, or several together."""

    levers: Sequence[Lever]
    applied: bool = False
    evidence: str = ""  # how that is known, or why not
    launches: tuple[int, int] | None = None  # of one step, as it is and with it
    new_kernels: Sequence[str] = ()  # of that step: those that do not run without it
    outputs: Agreement = Factory(lambda: Agreement(NOT_COMPARED))
    verdict: str = LEFT_OUT  # of comparing: "better" | "worse" | "same" | "unsure"; or one of those above
    reason: str = ""
    comparison: Comparison | None = None
    predicted_gain: float | None = None
    warmup_s: float | None = None  # compiling and capturing, more than without it
    place: str = ""  # the line of the program where the patch belongs
    runs: int = 0

    @property
    def name(self) -> str:
        return " + ".join(lever.name for lever in self.levers)

    @property
    def title(self) -> str:
        return " + ".join(lever.title for lever in self.levers)

    @property
    def expected_warmup_s(self) -> float:
        """About what it takes to compile, before that is known."""
        return max(lever.warmup_s for lever in self.levers)

    @property
    def _deciding(self) -> list[RegionComparison]:
        """Without those that ran too seldom, if there are others: a single cold prefill is no gain."""
        regions = [r for r in (self.comparison.regions if self.comparison else ()) if r.decides]
        timed = [region for region in regions if region.before_ns and region.after_ns]
        return [region for region in timed if region.basis != NOTHING] or timed

    @property
    def stage(self) -> RegionComparison | None:
        """The region that takes most of the time."""
        return max(self._deciding, key=lambda r: (r.before_ns or 0) * max(r.instances[0], 1), default=None)

    @property
    def gain(self) -> float | None:
        """By what factor it is faster, over all stages that decide."""
        before = sum((region.before_ns or 0) * region.instances[0] for region in self._deciding)
        after = sum((region.after_ns or 0) * region.instances[0] for region in self._deciding)
        return before / after if after else None

    @property
    def interval(self) -> list[float] | None:
        """Of the gain in the main stage."""
        stage = self.stage
        if stage is None or stage.interval is None:
            return None
        return [1 / (1 + stage.interval[1]), 1 / (1 + stage.interval[0])]

    @property
    def pays_off_after(self) -> int | None:
        """Instances of the main stage that its warm-up costs as much as."""
        stage = self.stage
        if not (self.warmup_s and stage and stage.before_ns and stage.after_ns and stage.after_ns < stage.before_ns):
            return None
        return round(self.warmup_s * 1e9 / (stage.before_ns - stage.after_ns))

    @property
    def won(self) -> bool:
        return self.verdict == BETTER and not self.outputs.is_refused

    @property
    def is_harmless(self) -> bool:
        return self.outputs.state in (SAME, WITHIN_NOISE)

    def as_json(self) -> dict[str, Any]:
        stage = self.stage
        return {
            "name": self.name,
            "title": self.title,
            "levers": [lever.name for lever in self.levers],
            "rules": sorted({rule for lever in self.levers for rule in lever.rules}),
            "applied": self.applied,
            "evidence": self.evidence,
            "launches": list(self.launches) if self.launches else None,
            "new_kernels": list(self.new_kernels),
            "verdict": self.verdict,
            "reason": self.reason,
            "stage": stage.key if stage else None,
            "before": stage.before_ns if stage else None,
            "after": stage.after_ns if stage else None,
            "gain": self.gain,
            "interval": self.interval,
            "predicted_gain": self.predicted_gain,
            "outputs": self.outputs.state,
            "outputs_detail": self.outputs.detail,
            "difference": _number(self.outputs.amount),
            "tolerance": _number(self.outputs.tolerance),
            "warmup_s": self.warmup_s,
            "pays_off_after": self.pays_off_after,
            "runs": self.runs,
            "changes": "; ".join(lever.changes for lever in self.levers),
            "patch": [lever.patch for lever in self.levers if lever.patch],
            "place": self.place or None,
            "regions": [
                region.as_json() for region in (self.comparison.regions if self.comparison else ()) if region.decides
            ],
        }


@define
class Trial:
    """All of it."""

    command: list[str]
    attempts: list[Attempt] = Factory(list)
    together: Attempt | None = None
    counts: dict[str, int] = Factory(dict)  # what the program did, that levers act on
    notes: list[str] = Factory(list)

    @property
    def best(self) -> Attempt | None:
        """Of those with the results of the program, or else of those with other precision."""
        won = [a for a in (*self.attempts, *([self.together] if self.together else [])) if a.won]
        harmless = [a for a in won if a.is_harmless]
        return max(harmless or won, key=lambda a: a.gain or 0.0, default=None)

    def as_json(self) -> dict[str, Any]:
        from llm_perf_opt.trying.words import three_sentences

        best = self.best
        return {
            "schema_version": SCHEMA_VERSION,
            "command": self.command,
            "best": best.name if best else None,
            "sentences": three_sentences(self),
            "levers": [attempt.as_json() for attempt in self.attempts],
            "together": self.together.as_json() if self.together else None,
            "program": self.counts,
            "notes": self.notes,
        }


def _number(value: float | None) -> float | None:
    """JSON has no infinity: outputs that are no numbers differ by all they are."""
    return None if value is None else min(value, 1e9)
