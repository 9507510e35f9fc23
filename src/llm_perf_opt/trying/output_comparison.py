"""Whether a program still computes the same: outputs under a lever against those without, in units of its own noise.

Two kinds of noise are measured, not assumed: what two unchanged runs differ by, and what rounding does to this model
(a run with each weight moved by one unit in its last place). A difference of a few times that is what other kernels
must cause; more is another result. Calls are compared in order. Where a near tie makes a text go on with another token,
what comes after cannot be compared, and need not be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

import numpy as np
from attrs import astuple, define

from llm_perf_opt.trying.process_notes import NAMED, REPEATED, Computed, ProcessNotes

SAME, WITHIN_NOISE, DIFFERENT, NOT_COMPARED = "same", "within noise", "different", "not compared"
_TIMES_NOISE = (
    3.0  # other kernels do about half of what moved weights do; a wrong product of few columns, five times that
)
_TOLD = 64  # values: of fewer, what is systematic cannot be told from chance
_WIDEST = 0.25  # of the size of the outputs: what may differ by more than this could be anything
_EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
# What a lever may differ by that says it computes in less: a few roundings of that.
_PRECISIONS = {"bfloat16": 2.0**-4, "float16": 2.0**-7, "tf32": 2.0**-7, "int8": 2.0**-3, "fp8": 2.0**-2}
_ROUNDINGS = 16  # that is: so many of its last digits
_NAMES = {"outputs": "outputs of the model", "loss": "losses", "tokens": "generated tokens", NAMED: "named outputs"}


@define(frozen=True)
class Agreement:
    """Of the outputs of two runs."""

    state: str  # SAME | WITHIN_NOISE | DIFFERENT | NOT_COMPARED
    detail: str = ""
    amount: float | None = None  # root mean square of the difference, as a part of that of the outputs; the largest
    tolerance: float | None = None  # at the place of it
    by_precision: bool = False  # different, by no more than the precision explains that the lever says it computes in

    @property
    def is_refused(self) -> bool:
        return self.state == DIFFERENT and not self.by_precision


@define(frozen=True)
class _Distance:
    """Of two tensors, as parts of the size of the outputs."""

    rms: float = 0.0  # root mean square of the difference
    largest: float = 0.0
    systematic: float = 0.0  # what all values differ by in the same direction, or in their size

    def is_more_than(self, allowed: _Distance) -> bool:
        return any(mine > theirs for mine, theirs in zip(astuple(self), astuple(allowed), strict=True))


class Reference:
    """The program as it is: what it computes, and how much of that is noise."""

    def __init__(self, runs: Sequence[ProcessNotes], rounded: ProcessNotes | None) -> None:
        self.base = runs[0]
        repeats = list(runs[1:])
        self._noise = {key: _growing(key, self.base, [*repeats, *([rounded] if rounded else [])]) for key in self.keys}
        self.unstable = ""
        for key, noise in ((key, _growing(key, self.base, repeats)) for key in self.keys):
            if len(noise) and noise[0].rms > _WIDEST:
                self.unstable = f"{_NAMES[key[1]]} of two unchanged runs differ: give the program a seed"
        others = [*repeats, *([rounded] if rounded else [])]
        # Texts that take another way by noise alone: then that of a lever may, too.
        self.wanders = any(_first_other(self.base, other) is not None for other in others)

    @property
    def keys(self) -> list[tuple[str, str]]:
        return list(self.base.computed)

    def tolerance(self, key: tuple[str, str], place: int, dtype: str) -> _Distance:
        """At one call. Noise has no direction: what is systematic may be no more than one time the noise."""
        noise = self._noise.get(key, [])
        found = noise[min(place, len(noise) - 1)] if noise else _Distance()
        least = _EPSILONS.get(dtype, 0.0)
        rms = max(_TIMES_NOISE * found.rms, least)
        systematic = max(_TIMES_NOISE * found.systematic, rms / _TIMES_NOISE)
        return _Distance(rms, max(_TIMES_NOISE * found.largest, 4 * least), systematic)

    def compare(self, new: ProcessNotes, precision: str = "") -> Agreement:
        """What a run under a lever computed."""
        if not self.keys:
            return Agreement(NOT_COMPARED, "nothing was found that the program computes: name it with --output")
        if self.unstable:
            return Agreement(NOT_COMPARED, self.unstable)
        found = [_Channel(self, key, new, _PRECISIONS.get(precision, 0.0)).compare() for key in self.keys]
        for chosen in (
            [one for one in found if one.is_refused],
            [one for one in found if one.state == DIFFERENT],
            [one for one in found if one.state == WITHIN_NOISE],
        ):
            if chosen:
                return max(chosen, key=lambda one: one.amount or 0.0)
        # Texts that differ where nothing else does, after the last call that was kept.
        doubts = [one for key, one in zip(self.keys, found, strict=True) if key[1] == "tokens" and one.state != SAME]
        known = [one for one in found if one.state != NOT_COMPARED]
        return [*doubts, *known, *found][0]


class _Channel:
    """One kind of output, of one rank."""

    def __init__(self, reference: Reference, key: tuple[str, str], new: ProcessNotes, allowed: float) -> None:
        self.reference, self.key, self.new, self.allowed = reference, key, new, allowed
        self.name = _NAMES[key[1]]

    def compare(self) -> Agreement:
        base, new = self.reference.base, self.new
        before, after = base.computed[self.key], new.computed.get(self.key, [])
        if not after:
            return Agreement(DIFFERENT, f"{self.name}: there are none any more", 1.0)
        if self.key[1] == "tokens":
            return self._texts(before, after)
        worst, at, compared, precision = 0.0, 0.0, 0, False
        wanders, apart = "", False
        for place, (old, now) in enumerate(zip(before, after, strict=False)):
            if apart and old.given == now.given and len(old.given) > len(before[place - 1].given):
                apart = False  # a new prompt, and the same
            if apart:
                continue
            if old.given != now.given and place:
                reason = self._other_way(before[place - 1], after[place - 1], old, now)
                if not reason:
                    return Agreement(
                        DIFFERENT,
                        f"from call {old.call} on, the model is given other tokens from the same outputs",
                        1.0,
                    )
                wanders, apart = wanders or reason, True
                continue
            allowed = self.reference.tolerance(self.key, place, old.dtype)
            tolerance = allowed.rms
            if tolerance > _WIDEST:
                break  # noise grows along a run; what is beyond cannot be told
            if old.shape != now.shape and self.key[1] == NAMED:
                return Agreement(DIFFERENT, f"{self.name} have other words, or more or fewer numbers", 1.0)
            if old.shape != now.shape:
                return Agreement(DIFFERENT, f"{self.name} have the shape {now.shape} in place of {old.shape}", 1.0)
            found = _difference(old, now)
            rms = found.rms
            if found.is_more_than(allowed):
                if not rms <= self._allowed(tolerance, old.dtype):
                    text = f"{self.name} differ from call {old.call} on, by {_percent(rms)} of their size"
                    if rms <= tolerance < 1 and found.systematic > allowed.systematic:
                        text += f", in one direction, where noise makes {_percent(allowed.systematic)}"
                    return Agreement(DIFFERENT, text, rms, tolerance)
                precision = True
            compared += 1
            if rms > worst:
                worst, at = rms, tolerance
        if not compared:
            return Agreement(NOT_COMPARED, f"the noise of {self.name} is too large: rounding alone changes them")
        whole = not wanders and compared == min(len(before), len(after)) and _same_repeats(base, new)
        if whole and base.calls[self.key] != new.calls.get(self.key):
            counts = f"{new.calls.get(self.key)} calls in place of {base.calls[self.key]}"
            return Agreement(DIFFERENT, f"{self.name}: {counts}", 1.0)
        calls = f"{compared} call{'s' * (compared > 1)} compared{wanders}"
        if precision:
            text = f"{self.name} differ by {_percent(worst)} of their size, which its lower precision explains; {calls}"
            return Agreement(DIFFERENT, text, worst, at, by_precision=True)
        if worst == 0 and not wanders:
            return Agreement(SAME, f"{self.name}: {calls}, not a bit differs", 0.0, at)
        text = f"{self.name} differ by {_percent(worst)} of their size at most, noise is {_percent(at)}; {calls}"
        return Agreement(WITHIN_NOISE, text, worst, at)

    def _allowed(self, tolerance: float, dtype: str) -> float:
        """By the precision of the lever: what its rounding makes of outputs grows along a run as that of the program does."""
        epsilon = _EPSILONS.get(dtype)
        coarser = self.allowed / _ROUNDINGS / epsilon if epsilon else 0.0
        return max(self.allowed, min(coarser * tolerance, _WIDEST)) if self.allowed else 0.0

    def _other_way(self, old: Computed, now: Computed, following: Computed, now_following: Computed) -> str:
        """Why a text goes on with another token; nothing where noise is no reason."""
        call = following.call
        if call > old.call + 1:  # not every call of a long run is kept
            return f"; before call {call}, the text continued differently"
        most = self.reference.tolerance(self.key, 0, old.dtype).largest
        near = 2 * max(most, 4 * self.allowed) * old.rms
        # Rows whose next token is another; a tie may fall either way though the first of both is the same.
        tokens = list(zip(following.given, now_following.given, strict=False))
        rows = range(len(old.gap)) if len(tokens) != len(old.gap) else [n for n, (a, b) in enumerate(tokens) if a != b]
        gaps = [min(old.gap[n], *now.gap[n : n + 1]) for n in rows]
        if gaps and all(gap <= near for gap in gaps):
            return f"; from call {call} on, the text continues differently after a near tie"
        if self.reference.wanders:
            return f"; from call {call} on, the text continues differently, as it does by noise alone"
        return ""

    def _texts(self, before: Sequence[Computed], after: Sequence[Computed]) -> Agreement:
        for number, (old, now) in enumerate(zip(before, after, strict=False), 1):
            if old.shape == now.shape and np.array_equal(old.sample, now.sample):
                continue
            size = min(len(old.sample), len(now.sample))
            differ = np.flatnonzero(old.sample[:size] != now.sample[:size])
            place = int(differ[0]) if len(differ) else size
            models = (self.key[0], "outputs") in self.reference.keys
            text = f"generated tokens differ from token {place + 1} of text {number} on"
            # Then the outputs that chose them say whether noise is the reason.
            return Agreement(NOT_COMPARED if models else DIFFERENT, text, None if models else 1.0)
        if len(before) != len(after) and _same_repeats(self.reference.base, self.new):
            return Agreement(DIFFERENT, f"{len(after)} texts in place of {len(before)}", 1.0)
        return Agreement(SAME, f"{sum(len(one.sample) for one in before)} generated tokens are the same", 0.0)


def _same_repeats(one: ProcessNotes, other: ProcessNotes) -> bool:
    """Else one of them has calls that the trial added."""
    return one.counts.get(REPEATED) == other.counts.get(REPEATED)


def _difference(old: Computed, now: Computed) -> _Distance:
    """Infinite where one is no number."""
    if len(old.sample) != len(now.sample):
        return _Distance(*3 * [float("inf")])
    lost = np.isnan(old.sample) != np.isnan(now.sample)
    if lost.any():
        return _Distance(*3 * [float("inf")])
    if not len(old.sample):
        return _Distance()
    difference = np.nan_to_num(old.sample - now.sample)
    size = max(float(np.nan_to_num(old.rms)), float(np.sqrt(np.mean(np.square(np.nan_to_num(old.sample))))), 1e-30)
    whole = abs(float(np.nan_to_num(old.rms)) - float(np.nan_to_num(now.rms)))  # of all of the tensor
    rms = max(float(np.sqrt(np.mean(np.square(difference)))), whole)
    systematic = max(abs(float(difference.mean())), whole) if len(difference) >= _TOLD else 0.0
    return _Distance(rms / size, max(float(np.abs(difference).max()), whole) / size, systematic / size)


def _growing(key: tuple[str, str], base: ProcessNotes, others: Sequence[ProcessNotes]) -> list[_Distance]:
    """The noise up to each call: what differs once, is carried on."""
    found: list[_Distance] = []
    most = _Distance()
    for pairs in _in_step(key, base, others):
        for old, now in pairs:
            one = _difference(old, now)
            most = _Distance(*map(max, astuple(most), astuple(one)))
        found.append(most)
    return found


def _in_step(
    key: tuple[str, str], base: ProcessNotes, others: Sequence[ProcessNotes]
) -> Iterator[list[tuple[Computed, Computed]]]:
    """Call by call, those of other runs that were given the same."""
    together = [True] * len(others)
    for place, old in enumerate(base.computed.get(key, [])):
        pairs = []
        for number, other in enumerate(others):
            theirs = other.computed.get(key, [])
            together[number] &= place < len(theirs) and theirs[place].given == old.given
            if together[number]:
                pairs.append((old, theirs[place]))
        yield pairs


def _first_other(base: ProcessNotes, other: ProcessNotes) -> int | None:
    """The first call that is given other tokens."""
    for key, before in base.computed.items():
        for place, (old, now) in enumerate(zip(before, other.computed.get(key, []), strict=False)):
            if old.given != now.given:
                return place
    return None


def _percent(value: float) -> str:
    """Two digits, and never an exponent."""
    return f"{format(Decimal(f'{100 * value:.2g}'), 'f')} %"
