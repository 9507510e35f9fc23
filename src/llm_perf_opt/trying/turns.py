"""A trial in order: the program as it is, each lever checked once, the promising timed in turns, the best together.

Results come first: a lever is timed only if it took effect and the program still computes the same. The run that checks
it also says about how fast it is, so that a lever which is slower, or far behind another that excludes it, costs no
more runs. Runs that are timed alternate (A B C A B C): what drifts, drifts for all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from attrs import define

from llm_perf_opt.comparing.comparison import NOT_COMPARABLE, UNSURE, WORSE
from llm_perf_opt.comparing.evaluation import Settings, compare
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.regions.fixes import Fix
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.trying.attempts import FAILED, LEFT_OUT, NOT_APPLIED, REFUSED, Attempt, Trial
from llm_perf_opt.trying.choice import choose_levers, lacking, predicted_gain
from llm_perf_opt.trying.levers import ROUNDING, Lever
from llm_perf_opt.trying.output_comparison import NOT_COMPARED, Agreement, Reference
from llm_perf_opt.trying.process_notes import ProcessNotes
from llm_perf_opt.trying.program_runs import ProgramRuns, Run

_NO_TIME = "the budget was spent"
_NOT_PULLED = (False, "no process pulled it")
_MORE_RUNS = re.compile(r"measure both with llm-perf measure --runs (\d+)")  # as `comparing` says it
_SLOWER = 1.3  # times: a lever that is this much slower in its check is not timed
_BEHIND = 1.25  # times: nor is one that is this far behind another that excludes it
_OTHER_KERNELS = ("rounding", "precision")  # what a lever says it changes, if it is for other kernels
_KERNELS = 6  # names of new ones that are kept
_CALLS = 4  # of generate(), so that one or two of them are warm, whatever the first ones compile
_REPEATS_S = 30.0  # that repeated calls may take in a run


@define
class Wanted:
    """What is asked for."""

    levers: Sequence[Lever] = ()  # none: those that the fixes ask for
    runs: int = 3
    budget_s: float | None = None
    fixes: Sequence[Fix] = ()
    more: Sequence[Lever] = ()  # beside those


def run_trial(runs: ProgramRuns, wanted: Wanted, command: list[str]) -> Trial:
    """All of it; an interrupt ends it, and what is known by then is in `Interrupted.trial`."""
    session = _Session(runs, wanted, Trial(command))
    try:
        session.take()
    except KeyboardInterrupt:
        session.trial.notes.append("The trial was interrupted; levers without a verdict were not tried to the end.")
        raise Interrupted(session.trial) from None
    return session.trial


class Interrupted(KeyboardInterrupt):
    """With what was found out before."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial


class _Session:
    def __init__(self, runs: ProgramRuns, wanted: Wanted, trial: Trial) -> None:
        self.runs, self.wanted, self.trial = runs, wanted, trial
        self.began = time.monotonic()
        self.typical_s = 0.0  # a run of the program as it is
        self.once_s = 0.0  # what the program compiles by itself
        self.unchanged: Run | None = None  # that levers are checked against

    def take(self) -> None:
        reference = self._look()
        counts = reference.base.counts
        self.trial.counts = {name: counts[name] for name in sorted(counts)}
        chosen = self.wanted.levers or choose_levers(self.wanted.fixes, reference.base)
        for lever in [*chosen, *self.wanted.more]:
            place = next((reference.base.places[need] for need in lever.needs if need in reference.base.places), "")
            attempt = Attempt([lever], place=place)
            self.trial.attempts.append(attempt)
            if why := lacking(lever, reference.base):
                attempt.verdict, attempt.reason = NOT_APPLIED, why
        checked = [a for a in self.trial.attempts if a.verdict == LEFT_OUT and self._check(a, reference)]
        self._time(worth_timing(checked))
        together = self._best_together()
        if together is not None:
            self.trial.together = together
            if self._check(together, reference):
                self._time([together])

    # -- runs that are not timed --------------------------------------------------------------------

    def _look(self) -> Reference:
        """The program as it is, twice, and once with its weights moved by rounding."""
        first = self._run("the program as it is")
        if first.problem:
            raise UserError(f"Nothing was tried: {first.problem}.", "Mend the program first.", ExitCode.WORKLOAD_FAILED)
        if not first.notes.models:
            raise UserError(
                "Nothing was tried: no PyTorch model was called where levers can be pulled.",
                "Levers act on calls of modules, as in model(x), in a Python that reads its environment.",
                ExitCode.NOTHING_CAPTURED,
            )
        self.once_s = self.runs.once_seconds(first)
        self.typical_s = first.seconds
        self.runs.repeat = repeats(first.notes)
        self.runs.longest = first.notes.counts.get("longest cache", 0)
        if more := self.runs.repeat[1]:
            self.trial.notes.append(
                f"The program calls generate() {_times(self.runs.repeat[0])}; in trials the last call is made {more} more"
                f" time{'s' * (more > 1)}, with and without levers alike, so that warm calls are compared."
            )
        again = self._run("the program as it is, again: its own noise")
        rounded = self._run("the program with its weights moved by their last digit: what rounding does", [ROUNDING])
        # The second has the repeated calls, too; the first agrees with it as far as it goes.
        known = [first.notes] if again.problem else [again.notes, first.notes]
        self.unchanged = first if again.problem else again
        self.typical_s = max(self.typical_s, self.unchanged.seconds)
        return Reference(known, None if rounded.problem else rounded.notes)

    def _check(self, attempt: Attempt, reference: Reference) -> bool:
        """Whether it takes effect and leaves the results what they are."""
        if self._is_late():
            attempt.reason = _NO_TIME
            return False
        run = self._run(f"{attempt.title}: does it take effect, are the results the same?", attempt.levers)
        if run.problem:
            attempt.verdict, attempt.reason = FAILED, run.problem
            return False
        found = [
            (True, lever.about) if lever.command else run.notes.evidence.get(lever.name, _NOT_PULLED)
            for lever in attempt.levers
        ]
        attempt.applied = all(applied for applied, _ in found)
        attempt.evidence = "; ".join(text for _, text in found)
        if not attempt.applied:
            attempt.verdict = NOT_APPLIED
            attempt.reason = next(text for applied, text in found if not applied)
            return False
        if self._runs_the_same(attempt, reference.base, run.notes):
            attempt.applied, attempt.verdict = False, NOT_APPLIED
            attempt.reason = f"the same kernels run as without it ({attempt.evidence})"
            return False
        precision = next((lever.precision for lever in attempt.levers if lever.precision), "")
        other = next((lever.changes for lever in attempt.levers if lever.command), "")
        attempt.outputs = Agreement(NOT_COMPARED, other) if other else reference.compare(run.notes, precision)
        attempt.warmup_s = max(self.runs.once_seconds(run) - self.once_s, 0.0)
        if attempt.outputs.is_refused:
            attempt.verdict, attempt.reason = REFUSED, attempt.outputs.detail
            return False
        if self.unchanged is not None:
            self._compare(attempt, [self.unchanged], [run])
        return True

    def _runs_the_same(self, attempt: Attempt, base: ProcessNotes, new: ProcessNotes) -> bool:
        """Is a step of the same launches and kernels, though other kernels are what the lever is for?"""
        if base.launches is None or new.launches is None:
            return False
        attempt.launches = (base.launches, new.launches)
        attempt.new_kernels = [short_kernel_name(name) for name in new.kernels if name not in base.kernels][:_KERNELS]
        attempt.evidence += f"; launches of a step {base.launches:,} → {new.launches:,}"
        promised = any(lever.changes.startswith(_OTHER_KERNELS) for lever in attempt.levers)
        return promised and attempt.launches[0] == attempt.launches[1] and base.kernels == new.kernels

    # -- runs that are timed ------------------------------------------------------------------------

    def _time(self, attempts: Sequence[Attempt]) -> None:
        """In turns: the program as it is, then with each lever, and again."""
        base: list[Run] = []
        timed: list[list[Run]] = [[] for _ in attempts]
        going = list(range(len(attempts)))
        for number in range(1, self.wanted.runs + 1):
            if not going or self._is_late(len(going)):
                break
            of = f"({number} of {self.wanted.runs})"
            base.append(self._run(f"timed as it is {of}", outputs=False))
            for place in list(going):
                attempt = attempts[place]
                run = self._run(f"timed with {attempt.title} {of}", attempt.levers, outputs=False)
                if run.problem:
                    attempt.verdict, attempt.reason = FAILED, run.problem
                    going.remove(place)
                    continue
                timed[place].append(run)
                self._compare(attempt, base, timed[place])
        for attempt, found in zip(attempts, timed, strict=True):
            if len(found) < self.wanted.runs and not attempt.reason:
                many = f"timed {_times(len(found))}" if found else "timed in its check alone"
                attempt.reason = f"{_NO_TIME}: {many}"

    def _compare(self, attempt: Attempt, base: Sequence[Run], timed: Sequence[Run]) -> None:
        attempt.runs = len(timed)
        before = self.runs.side("as it is", [run for run in base if not run.problem])
        after = self.runs.side(attempt.title, timed, attempt.levers[0].items)
        if before is None or after is None:
            attempt.verdict, attempt.reason = UNSURE, "no stage could be timed"
            return
        attempt.comparison = compare(before, after, Settings())
        attempt.verdict = attempt.comparison.verdict
        unclear = attempt.verdict in (UNSURE, NOT_COMPARABLE)
        reasons = [_MORE_RUNS.sub(r"add --runs \1", reason) for reason in attempt.comparison.reasons[:2]]
        attempt.reason = "; ".join(reasons) if unclear else ""
        stage = attempt.stage
        if stage is not None:
            regions = attempt.comparison.regions
            attempt.predicted_gain = predicted_gain(attempt.levers, self.wanted.fixes, regions, stage)

    def _best_together(self) -> Attempt | None:
        """Levers that won and go together, the best first; None where there are not two."""
        named = bool(self.wanted.levers)
        won = [a for a in self.trial.attempts if a.won and (a.is_harmless or named) and not a.levers[0].command]
        chosen: list[Attempt] = []
        for attempt in sorted(won, key=lambda a: -(a.gain or 0.0)):
            if all(attempt.levers[0].goes_with(other.levers[0]) for other in chosen):
                chosen.append(attempt)
        return Attempt([a.levers[0] for a in chosen], place=chosen[0].place) if len(chosen) > 1 else None

    # -- time ---------------------------------------------------------------------------------------

    def _run(self, title: str, levers: Sequence[Lever] = (), *, outputs: bool = True) -> Run:
        return self.runs.run(f"try: {title}", levers, outputs=outputs)

    def _is_late(self, more: int = 0) -> bool:
        """Would the next run, and those that belong to it, end after the budget?"""
        budget = self.wanted.budget_s
        return budget is not None and time.monotonic() - self.began + (1 + more) * self.typical_s > budget


def worth_timing(checked: Sequence[Attempt]) -> list[Attempt]:
    """Without those that their check says are slower, or far behind another that excludes them: they keep its result."""
    found = []
    for attempt in checked:
        gain = attempt.gain or 1.0
        ahead = [
            other
            for other in checked
            if (other.gain or 1.0) > _BEHIND * gain and not attempt.levers[0].goes_with(other.levers[0])
        ]
        if gain < 1 / _SLOWER:
            attempt.verdict = WORSE
        elif ahead:
            best = max(ahead, key=lambda other: other.gain or 0.0)
            attempt.reason = f"timed once: {best.title} is faster, and the two exclude each other"
        else:
            found.append(attempt)
    return found


def repeats(notes: ProcessNotes) -> tuple[int, int]:
    """Which `generate()` of the program to call again, and how often: few programs make enough warm calls."""
    made = notes.counts.get("generate", 0)
    if not 0 < made < _CALLS or notes.processes > 1:
        return (0, 0)
    each_s = max(notes.counts.get("ms in generate", 0) / made / 1000, 1e-3)
    return made, min(_CALLS - made, max(round(_REPEATS_S / each_s), 1))


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
