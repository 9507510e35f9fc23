"""A trial in order: the program as it is, each lever once, outputs compared, the best timed in turns, then together.

Every run is timed, and notes a little of what it computes. So the first lever has its factor after two runs; the run
that tells what rounding does is made only for levers that are worth it, and a lever whose outputs differ is refused
before it is timed again. Runs that are timed again alternate (A B C A B C): what drifts, drifts for all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from attrs import define

from llm_perf_opt.comparing.comparison import NOT_COMPARABLE, UNSURE
from llm_perf_opt.comparing.evaluation import Settings, compare
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.regions.fixes import Fix
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.trying.attempts import FAILED, LEFT_OUT, NOT_APPLIED, REFUSED, Attempt, Trial
from llm_perf_opt.trying.choice import choose_levers, lacking, predicted_gain
from llm_perf_opt.trying.economy import is_slower, repeats, step_to_look_at, times, worth_timing
from llm_perf_opt.trying.levers import ROUNDING, Lever
from llm_perf_opt.trying.output_comparison import NOT_COMPARED, Agreement, Reference
from llm_perf_opt.trying.process_notes import ProcessNotes
from llm_perf_opt.trying.program_runs import ProgramRuns, Run

_NO_TIME = "the budget was spent"
_NOT_PULLED = (False, "no process pulled it")
_MORE_RUNS = re.compile(r"measure both with llm-perf measure --runs (\d+)")  # as `comparing` says it
_OTHER_KERNELS = ("rounding", "precision")  # what a lever says it changes, if it is for other kernels
_KERNELS = 6  # names of new ones that are kept


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
        self.unchanged: list[Run] = []  # of the program as it is
        self.rounded: Run | None = None  # with its weights moved by rounding
        self.timed: dict[int, list[Run]] = {}  # by identity of the attempt

    def take(self) -> None:
        self._begin()
        notes = self.unchanged[0].notes
        chosen = self.wanted.levers or choose_levers(self.wanted.fixes, notes)
        for lever in [*chosen, *self.wanted.more]:
            place = next((notes.places[need] for need in lever.needs if need in notes.places), "")
            attempt = Attempt([lever], place=place)
            self.trial.attempts.append(attempt)
            if why := lacking(lever, notes):
                attempt.verdict, attempt.reason = NOT_APPLIED, why
        self._try([a for a in self.trial.attempts if a.verdict == LEFT_OUT])
        if (together := self._best_together()) is not None:
            self.trial.together = together
            self._try([together])

    def _begin(self) -> None:
        """The program as it is: what it does, how long that takes, and what it computes."""
        first = self.runs.first or self._run("the program as it is")
        if first.problem:
            raise UserError(f"Nothing was tried: {first.problem}.", "Fix the program first.", ExitCode.WORKLOAD_FAILED)
        if not first.notes.models:
            raise UserError(
                "Nothing was tried: no PyTorch model was called that levers can act on.",
                "Levers act on calls of modules, as in model(x), in a Python process that reads its environment.",
                ExitCode.NOTHING_CAPTURED,
            )
        self.unchanged.append(first)
        counts = first.notes.counts
        self.trial.counts = {name: counts[name] for name in sorted(counts)}
        self.runs.repeat = repeats(first.notes)
        self.runs.longest = counts.get("longest cache", 0)
        self.runs.look_at = step_to_look_at(first.notes, self.runs.repeat)
        called, more = self.runs.repeat
        if more:
            self.trial.notes.append(
                f"The program calls generate() {times(called)}; in trials the last call is made {more} more"
                f" time{'s' * (more > 1)}, with and without levers alike, so that warm calls are compared."
            )
        least = 3 * first.seconds
        if self._left(least) < 0:
            self.trial.notes.append(
                f"The budget is short: one lever alone takes about {least:.0f} s more. It is tried anyway."
            )

    def _try(self, attempts: Sequence[Attempt]) -> None:
        """Once each; outputs of those that are no slower; then the best again, in turns."""
        ran: list[Attempt] = []
        # Time for the run that tells what rounding does is kept. One is tried whatever the budget, the quickest then.
        fit = [attempt for attempt in attempts if self._left(self._needed(attempt)) >= 0]
        for attempt in fit or sorted(attempts, key=lambda one: one.expected_warmup_s):
            if ran and self._left(self._needed(attempt)) < 0:
                attempt.reason = _NO_TIME
            elif self._run_once(attempt):
                ran.append(attempt)
        for attempt in attempts if fit else ():
            if attempt not in fit:
                attempt.reason = _NO_TIME
        named = bool(self.wanted.levers)
        told = [attempt for attempt in ran if named or not is_slower(attempt)]
        good = [attempt for attempt in told if self._evaluate_outputs(attempt)]
        for attempt in ran:
            if attempt not in told:
                attempt.outputs = Agreement(NOT_COMPARED, "it is slower")
        chosen = [attempt for attempt in worth_timing(good) if self._took_effect(attempt)]
        self._time(chosen)
        for attempt in chosen:
            if attempt.runs > 1:
                self._evaluate_outputs(attempt)  # with all runs of the program as it is, and all of the lever

    # -- one lever, once ----------------------------------------------------------------------------

    def _run_once(self, attempt: Attempt) -> bool:
        """Whether it ran, and says that it took effect; about how fast it is."""
        run = self._run(attempt.title, attempt.levers)
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
        attempt.warmup_s = max(self.runs.once_seconds(run) - self.runs.once_seconds(self.unchanged[0]), 0.0)
        self.timed[id(attempt)] = [run]
        self._compare(attempt, self.unchanged)
        return True

    def _took_effect(self, attempt: Attempt) -> bool:
        """By launches and kernels of a step, whatever the lever says: a run of its own, for looking takes time."""
        if any(lever.command for lever in attempt.levers) or self._left(self._usual()) < 0:
            return True
        base = self._rounding().notes
        if base.launches is None:  # no GPU
            return True
        new = self._run(f"{attempt.title}: its kernels", attempt.levers, look=True).notes
        if new.launches is None:
            return True
        attempt.launches = (base.launches, new.launches)
        attempt.new_kernels = [short_kernel_name(name) for name in new.kernels if name not in base.kernels][:_KERNELS]
        attempt.evidence += f"; launches of a step {base.launches:,} → {new.launches:,}"
        promised = any(lever.changes.startswith(_OTHER_KERNELS) for lever in attempt.levers)
        if not promised or base.launches != new.launches or base.kernels != new.kernels:
            return True
        attempt.applied, attempt.verdict = False, NOT_APPLIED
        attempt.comparison, attempt.runs = None, 0
        attempt.reason = f"the same kernels run as without it ({attempt.evidence})"
        return False

    def _evaluate_outputs(self, attempt: Attempt) -> bool:
        """Whether the results are still what they are, in every run of it."""
        other = next((lever.changes for lever in attempt.levers if lever.command), "")
        if other:
            attempt.outputs = Agreement(NOT_COMPARED, other)
            return True
        attempt.outputs = self._agreement(attempt)
        if attempt.outputs.is_refused and len(self.unchanged) < 2:  # or does the program differ by itself?
            self.unchanged.append(self._run("the program as it is, again: its own noise"))
            attempt.outputs = self._agreement(attempt)
        if attempt.outputs.is_refused:
            attempt.verdict, attempt.reason = REFUSED, attempt.outputs.detail
            attempt.comparison, attempt.runs = None, 0  # how fast another result comes, says nothing
        return not attempt.outputs.is_refused

    def _agreement(self, attempt: Attempt) -> Agreement:
        """The worst of its runs."""
        rounded = self._rounding()
        reference = Reference(_most_calls_first(self.unchanged), None if rounded.problem else rounded.notes)
        precision = next((lever.precision for lever in attempt.levers if lever.precision), "")
        found = [reference.compare(run.notes, precision) for run in self.timed[id(attempt)]]
        return max(found, key=lambda one: (one.is_refused, one.state == NOT_COMPARED, one.amount or 0.0))

    def _rounding(self) -> Run:
        """What rounding does to this model; also a run whose times do not count, for a look at its kernels."""
        if self.rounded is None:
            self.rounded = self._run(
                "what rounding does to the results: weights moved by their last digit", [ROUNDING], look=True
            )
        return self.rounded

    # -- again, in turns ------------------------------------------------------------------------------

    def _time(self, attempts: Sequence[Attempt]) -> None:
        """As it is, then with each lever, and again; what ran before counts where it is like the others."""
        going = list(attempts)
        base = [run for run in self.unchanged if not self.runs.repeat[1] or run.repeated]
        for number in range(1 if len(base) < 1 else 2, self.wanted.runs + 1):
            if not going or self._left((1 + len(going)) * self._usual()) < 0:
                break
            of = f"({number} of {self.wanted.runs})"
            if len(base) < self.wanted.runs:
                base.append(self._run(f"timed as it is {of}"))
                self.unchanged.append(base[-1])
            for attempt in list(going) if number > 1 else ():
                run = self._run(f"timed with {attempt.title} {of}", attempt.levers)
                if run.problem:
                    attempt.verdict, attempt.reason = FAILED, run.problem
                    going.remove(attempt)
                else:
                    self.timed[id(attempt)].append(run)
        for attempt in going:
            if base:
                self._compare(attempt, base)
            if attempt.runs < self.wanted.runs and not attempt.reason:
                attempt.reason = f"{_NO_TIME}: timed {times(attempt.runs)}"

    def _compare(self, attempt: Attempt, base: Sequence[Run]) -> None:
        timed = self.timed[id(attempt)]
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
        if len(chosen) < 2 or self._left(2 * self._usual()) < 0:
            return None
        return Attempt([a.levers[0] for a in chosen], place=chosen[0].place)

    # -- time ---------------------------------------------------------------------------------------

    def _run(self, title: str, levers: Sequence[Lever] = (), *, look: bool = False) -> Run:
        return self.runs.run(f"try: {title}", levers, look=look)

    def _usual(self) -> float:
        """What a run takes."""
        return max(run.seconds for run in self.unchanged)

    def _needed(self, attempt: Attempt) -> float:
        """To try it once, and tell what rounding does."""
        return 2 * self._usual() + attempt.expected_warmup_s

    def _left(self, needed: float) -> float:
        """Of the budget, after so many seconds more."""
        budget = self.wanted.budget_s
        return 1.0 if budget is None else budget - (time.monotonic() - self.began) - needed


def _most_calls_first(runs: Sequence[Run]) -> list[ProcessNotes]:
    """The first is compared with: one whose calls were repeated, as those of levers are, if there is one."""
    good = [run for run in runs if not run.problem]
    return [run.notes for run in sorted(good, key=lambda run: not run.repeated)]
