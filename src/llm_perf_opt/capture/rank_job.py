"""One llm-perf for each rank of a job: `srun llm-perf profile -- python train.py`, or mpirun, or torchrun --no-python.

Ranks that were not chosen become the program itself. The others take one recording each, in a run directory of their
own below a folder they share, for all ranks have to run the program together, and so the same number of times: once.
One of them may run it under ncu instead (`--counter-rank`): its counters are joined to the timelines of the others.
Whoever is done last makes the report of all; `llm-perf report FOLDER` makes it again, or where a rank was lost.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import attrs
from attrs import define

from llm_perf_opt.api import inputs
from llm_perf_opt.api.reporting import INSIDE_RUN, Showing, make_report, publish
from llm_perf_opt.capture.preparation import check_program, known_patterns
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.inject.place import Place, place_in_job
from llm_perf_opt.json_output import print_json
from llm_perf_opt.nsight.ncu.rank_options import LONGEST_S, Lockstep, without_collectives
from llm_perf_opt.nsight.nsys.gpu_metrics import RankOnNode
from llm_perf_opt.options.of_jobs import CHOSEN_RANKS, COUNTER_RANK
from llm_perf_opt.options.of_trials import TRY
from llm_perf_opt.report.renderers import FORMATS
from llm_perf_opt.request import CounterRequest, ProfileRequest
from llm_perf_opt.rundir.command_lines import clean_step
from llm_perf_opt.rundir.inventory import RUNS
from llm_perf_opt.rundir.job import JobFacts, claim_merge, join_job, ranks_over, wanted_ranks
from llm_perf_opt.rundir.layout import rank_folder

_PATIENCE_S = 20.0  # that the first rank waits for the others, once it is done
_LOOK_S = 0.5
_LARGEST_MERGE = 1 << 30  # bytes of recordings: more is not read while GPUs of a job stand idle
# Ranks on this node; and what says that each has a GPU of its own.
_ON_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")
_ALIKE = re.compile(r"(\d{1,6})(\(x\d+\))?")  # Slurm's words for as many on each node
_OWN_GPU = ("SLURM_GPUS_PER_TASK",)
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@define(frozen=True)
class RankJob:
    """This rank of a job, which is profiled."""

    folder: Path  # that all ranks share
    place: Place
    choice: str
    out: Path  # of this rank
    counted: str | None = None  # the rank that is run under ncu, or all; None: none is

    def explain(self, request: ProfileRequest) -> Diagnosis:
        """How the ranks run the program, and what that means for times and counters."""
        if self.counted is None:
            return diagnose("RANKS_START_ONCE")
        if not request.counters.enable:
            return diagnose("RANKS_START_ONCE.counted", rank=self.counted)
        options = request.counters.options
        words = ["ncu", "--kernel-name-base", "mangled", "-k", options.kernel_name or "", *options.extra_args]
        return diagnose(
            "COUNTERS_OF_RANK", place=self.place.label, launches=request.counters.launches, command=shlex.join(words)
        )

    @property
    def expected(self) -> int | None:
        """How many ranks are profiled; None where nobody says."""
        wanted = wanted_ranks(self.choice, self.place.size)
        return len(wanted) if wanted is not None else self.place.nodes if self.choice == "one-per-node" else None

    @property
    def is_first(self) -> bool:
        return self.place.rank == min(wanted_ranks(self.choice, self.place.size) or {0})

    def is_complete(self) -> bool:
        return self.expected is not None and len(ranks_over(self.folder)) >= self.expected

    def finish(self, request: ProfileRequest, code: int, *, as_json: bool, quiet: bool) -> int:
        """After this rank's own run: the report of all, where this rank is the one to make it. The exit code of the rank."""
        why = "It was interrupted." if code == ExitCode.INTERRUPTED else None
        if why is None and self._is_to_merge():
            why = self._merge(request, as_json=as_json, quiet=quiet)
        if why:
            again = f"llm-perf report {shlex.quote(str(self.folder))}"
            print(f"[{self.place.label}] {why} The report of all ranks: {again}", file=sys.stderr)
        if as_json and why != "":
            print_json({"rank": self.place.rank, "node": self.place.node, "out": str(self.out), "exit_code": code})
        return code

    def _is_to_merge(self) -> bool:
        """The last to end is, or the first of all when it has waited long enough: a rank was lost, or takes much longer."""
        deadline = time.monotonic() + _PATIENCE_S if self.is_first else 0.0
        while not self.is_complete():
            if time.monotonic() > deadline:
                return self.is_first
            time.sleep(_LOOK_S)
        return claim_merge(self.folder, self.place.rank)

    def _merge(self, request: ProfileRequest, *, as_json: bool, quiet: bool) -> str:
        """Empty where the report was made; else why not."""
        try:
            size = sum(file.stat().st_size for file in inputs.expand(self.folder))
            if size > _LARGEST_MERGE:
                return f"The recordings of all ranks are {size / 1e9:.1f} GB, too large to be read inside the job."
            report = make_report(
                [str(self.folder)],
                known_patterns(request),
                quiet=True,
                calibration=request.calibration,
                formats=FORMATS,
            )
            showing = Showing(as_json, quiet=quiet, brief=True)
            publish(report, self.folder, regions=INSIDE_RUN, top=request.report.top, showing=showing)
        except UserError as error:
            return str(error)
        except OSError as error:
            return f"{error.strerror or error}: {error.filename}."
        return ""


def join(request: ProfileRequest, made_by: str) -> tuple[ProfileRequest, RankJob] | None:
    """This rank's part of a job: what it is asked for, and where it goes. None where there are no ranks.

    A rank that was not chosen does not come back: it is the program from now on.
    """
    place, choice, counted = place_in_job(), request.value(CHOSEN_RANKS), request.value(COUNTER_RANK)
    if place is None:
        wanted_ranks(choice, None)
        if choice != CHOSEN_RANKS.default or counted is not None:
            option = "--ranks" if counted is None else "--counter-rank"
            raise UserError(
                f"{option} selects ranks of a launcher, but this process is not one of them.",
                "Start one llm-perf for each rank: srun llm-perf …, mpirun llm-perf …, or torchrun --no-python … llm-perf …",
            )
        return None
    _refuse_several_runs(request)
    check_program(request.command)
    _check_counted(counted, choice, place, request)
    if not _is_chosen(place, choice):
        _become(request.command)
    folder = Path(request.out) if request.out else _folder_of(place)
    if any(os.environ.get(name, "0") not in ("", "0") for name in _RESTARTS) and (
        (folder / rank_folder(place.rank)).exists()
    ):
        print(
            f"[{place.label}] started again by its launcher: it runs undisturbed now; {folder} keeps its first run.",
            file=sys.stderr,
        )
        _become(request.command)
    command = clean_step(request.command, request.command, show=request.show_command)
    facts = JobFacts(place.job, place.launcher, place.size, choice, made_by, command)
    out = join_job(folder, facts, place.rank)
    # One start of the program on every rank: it is recorded, or only timed.
    recorded = request.timeline.enable
    measure = attrs.evolve(request.measure, enable=not recorded)
    counters = attrs.evolve(request.counters, enable=False, run_to_end=True)
    wanted = request.counters.enable  # --no-counters is for a timeline alone
    timeline = attrs.evolve(request.timeline, rank=_on_node(place) if wanted else None)
    if counted in ("all", str(place.rank)):
        timeline, counters = attrs.evolve(timeline, enable=False), _beside_others(counters, counted, place)
    request = attrs.evolve(
        request, out=str(out), label=place.label, measure=measure, timeline=timeline, counters=counters
    )
    return request, RankJob(folder, place, choice, out, counted)


def _on_node(place: Place) -> RankOnNode:
    """What the launcher says of the ranks on this node, and of their GPUs."""
    said = (_ALIKE.fullmatch(os.environ.get(name, "")) for name in _ON_NODE)
    ranks = next((int(found[1]) for found in said if found), None)
    if ranks is None and place.nodes == 1:
        ranks = place.size
    own = any(os.environ.get(name, "0") not in ("", "0") for name in _OWN_GPU)
    return RankOnNode(place.local, ranks, os.environ.get("CUDA_VISIBLE_DEVICES", ""), own)


def _check_counted(counted: str | None, choice: str, place: Place, request: ProfileRequest) -> None:
    """Refuse, on all ranks alike, a rank for counters that is not there or not profiled."""
    if counted is None or counted == "all":
        return
    if not counted.isdecimal() or len(counted) > 6 or (place.size is not None and int(counted) >= place.size):
        last = "" if place.size is None else f", 0 to {place.size - 1}"
        raise UserError(f"--counter-rank {counted!r} is not a rank of this job.", f"Give its number{last}, or all.")
    wanted = wanted_ranks(choice, place.size) if choice != "one-per-node" else {0}
    if wanted is not None and int(counted) not in wanted:
        raise UserError(
            f"--counter-rank {counted} is not among the ranks that are profiled, --ranks {choice}.",
            "Name it in both, or leave out --ranks.",
        )
    if not request.counters.enable:
        raise UserError("--counter-rank collects counters, and --no-counters collects none.", "Give one of them.")


def _beside_others(asked: CounterRequest, counted: str, place: Place) -> CounterRequest:
    """One start under ncu, in step with ranks that are not, or that are too."""
    lockstep = None
    if counted == "all":
        if place.size is None:
            raise UserError(f"{place.launcher} does not say how many ranks there are.", "Name one: --counter-rank 0")
        lockstep = Lockstep(place.size, os.environ.get("MASTER_ADDR") or "127.0.0.1")
    return attrs.evolve(
        asked,
        enable=True,
        options=without_collectives(asked.options, asked.launches),
        windows=False,
        fallback=False,
        verify=False,
        timeout_s=asked.timeout_s or LONGEST_S,
        lockstep=lockstep,
    )


def _refuse_several_runs(request: ProfileRequest) -> None:
    if request.measure.runs > 1 or request.value(TRY):
        option = "--try" if request.value(TRY) else "--runs"
        raise UserError(
            f"{option} runs the program several times, but the ranks of a job run it together.",
            f"Leave out {option}, or put one llm-perf around the launcher: llm-perf … -- torchrun …",
        )


def _is_chosen(place: Place, choice: str) -> bool:
    wanted = wanted_ranks(choice, place.size)
    if choice != "one-per-node":
        return wanted is None or place.rank in wanted
    if place.local is None:
        raise UserError("The launcher does not say which rank is the first on its node.", "Name the ranks: --ranks 0,8")
    return place.local == 0


def _folder_of(place: Place) -> Path:
    """The same name on all ranks, without asking one another."""
    if not place.job:
        raise UserError(
            f"{place.launcher} does not say which job this is, so the ranks cannot agree on a folder.",
            "Give a folder that all of them can access: --out DIR",
        )
    return RUNS / re.sub(r"[^A-Za-z0-9._-]", "_", place.job)[:100]


def _become(command: Sequence[str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what it becomes would, too
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(command[0], list(command))  # noqa: S606 - the user's own program, without a shell
