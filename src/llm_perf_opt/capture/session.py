"""A profiling run from start to report: timeline, plan, counters, report.

A failed step keeps what the others captured, and the report is built from that. Nothing is launched before
the whole request has been checked against the installed tools.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
from attrs import define, field

from llm_perf_opt import inject as annotate
from llm_perf_opt import planning
from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.api.reporting import (
    INSIDE_RUN,
    SELECTION,
    Showing,
    build_from,
    check_patterns,
    make_report,
    publish,
)
from llm_perf_opt.capture import durations
from llm_perf_opt.capture.preload import preload
from llm_perf_opt.capture.progress_reporter import Speaker
from llm_perf_opt.capture.recording import (
    Captured,
    export_timeline,
    first_failure,
    record_counters,
    record_timeline,
    run_plainly,
    write_raw,
    write_summary,
)
from llm_perf_opt.capture.resume import Kept, as_order, begin_again, changes, drop_earlier, look
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.nsight.help_text import validate
from llm_perf_opt.nsight.messages import STATES
from llm_perf_opt.nsight.ncu.argv import ncu_arguments, without_unknown_defaults
from llm_perf_opt.nsight.ncu.replay_modes import fell_back, left_out, next_mode, split_metrics
from llm_perf_opt.nsight.nsys.argv import nsys_arguments
from llm_perf_opt.nsight.nsys.gpu_metrics import with_sampling
from llm_perf_opt.nsight.outcome import Outcome, absent_metrics, diagnose
from llm_perf_opt.nsight.tools import Asked, Tool, known_options
from llm_perf_opt.options import in_keys
from llm_perf_opt.planning import CounterPlan, PlannedCapture
from llm_perf_opt.planning.by_hand import instances_to_take
from llm_perf_opt.planning.windows import unseen
from llm_perf_opt.process.supervise import GivenUp
from llm_perf_opt.readers.marker_ranges import without_waymarks
from llm_perf_opt.readers.ncu_rep import read_ncu_rep
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Action, Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.renderers import FORMATS
from llm_perf_opt.report.text import counted
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.compress import unpack_again
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.state import state_of

# A capture that is switched on and off from inside has failed where it gives less than this part of what was planned,
# and some windows have nothing at all.
_FEW_RESULTS = 0.7


@define
class Tools:
    """The profilers of a run; None where it needs none."""

    nsys: Tool | None
    ncu: Tool | None


def ready(request: ProfileRequest, asked: Asked | None = None) -> tuple[ProfileRequest, Tools]:
    """Check a request and find its tools, before anything is created or launched. `asked`: the tools, since before.

    The request comes back with defaults of ours left out that the installed ncu does not know.
    """
    check_program(request.command)
    if not (request.timeline.enable or request.counters.enable):
        raise UserError(
            "Neither a timeline nor counters were asked for, so there is nothing to do.",
            "Set pipeline.nsys.enable=true or pipeline.ncu.enable=true.",
        )
    if request.counters.launches < 1:
        raise UserError("launches=0 profiles nothing.", "Give 1 or more launches of each kernel.")
    check_patterns(request.report, ncu_expressions=request.counters.enable)
    instances_to_take(request.counters.sample, 1)
    with asked or Asked(nsys=request.timeline.enable, ncu=request.counters.enable) as answers:
        tools = Tools(*answers.tools())
    if tools.nsys is not None:
        _refuse_unknown(nsys_arguments("run", options=request.timeline.options), tools.nsys)
    if tools.ncu is not None:
        options = without_unknown_defaults(request.counters.options, known_options(tools.ncu))
        _refuse_unknown(ncu_arguments("run", options=options), tools.ncu)
        request = attrs.evolve(request, counters=attrs.evolve(request.counters, options=options))
    return request, tools


def check_program(command: list[str]) -> None:
    """Refuse a command that cannot be started."""
    if not command:
        raise UserError(
            "There is no program to profile.", "Give it after --, as in: llm-perf profile -- python my_model.py"
        )
    if shutil.which(command[0]) is None:
        raise UserError(
            f"There is no program {command[0]!r} on this machine.", "Check the spelling, or give its full path."
        )


def _refuse_unknown(arguments: list[str], tool: Tool) -> None:
    for diagnosis in validate(arguments, known_options(tool), str(tool)):
        if diagnosis.severity == "error":
            raise UserError(diagnosis.message, diagnosis.fix)


def resume_profile(
    request: ProfileRequest, directory: RunDirectory, *, as_json: bool = False, quiet: bool = False
) -> int:
    """Take what a run lacks and report it; the exit code of the run. `request`: what the run was asked for."""
    try:
        kept = look(directory, request)
        lacking = kept.missing(request)
        tools = Tools(None, None)
        if lacking:  # a tool that has nothing to do need not be there
            nsys = request.timeline.enable and (kept.timeline is None or kept.without_summary)
            needs = attrs.evolve(
                request,
                timeline=attrs.evolve(request.timeline, enable=nsys),
                counters=attrs.evolve(request.counters, enable=kept.needs_ncu(request)),
            )
            checked, tools = ready(needs) if nsys or needs.counters.enable else (needs, tools)
            options = checked.counters.options
            request = attrs.evolve(request, counters=attrs.evolve(request.counters, options=options))
        directory.drop_unfinished()  # also of a run that was whole, and killed while its report was written
        changed = changes(directory.manifest, request.command, (tools.nsys, tools.ncu)) if lacking else []
        if lacking or directory.manifest.state != "done":
            begin_again(directory, kept, lacking, changed)
    except BaseException:  # an interrupt too: whoever resumes next must not find the run locked
        directory.release()
        raise
    said = f"still to take: {', '.join(lacking)}" if lacking else "nothing to do: every step of this run is whole"
    Speaker(quiet=quiet or as_json)(f"{said}; the report is built again" if not lacking else said)
    return run_profile(request, tools, directory, as_json=as_json, quiet=quiet, kept=kept)


def run_profile(
    request: ProfileRequest,
    tools: Tools,
    directory: RunDirectory,
    *,
    as_json: bool = False,
    quiet: bool = False,
    silent: bool = False,
    kept: Kept | None = None,
    timelines: dict[Path, Timeline] | None = None,
) -> int:
    """Take the recordings of a request and report them; the exit code of the run.

    `quiet`: say where the report is, and nothing else but errors. `silent`: the report is written, but not
    shown: somebody else has the word. `kept`: what is there already. `timelines`: where a timeline is put once it was
    read, so that nobody has to read it again.
    """
    try:
        with _terminated_as_interrupted():
            return _run_profile(request, tools, directory, as_json, quiet, silent, kept or Kept(), timelines)
    finally:
        directory.aside.end()
        with contextlib.suppress(OSError):  # of a table that an interrupt came upon while it was noted
            directory.drop_unfinished()
        directory.release()


def _run_profile(
    request: ProfileRequest,
    tools: Tools,
    directory: RunDirectory,
    as_json: bool,
    quiet: bool,
    silent: bool,
    kept: Kept,
    timelines: dict[Path, Timeline] | None,
) -> int:
    log = directory.path / "annotate.jsonl"
    ranges = request.counters.enable and request.counters.windows
    environment = annotate.environment(request.annotate.mode, request.annotate.depth, ranges=ranges, log=log)
    showing = Showing(as_json, request.strict, silent, quiet=quiet, brief=True)
    speaker = Speaker(quiet=quiet, silent=as_json)
    read = {} if timelines is None else timelines
    run = _Run(request, tools, directory, speaker, environment, kept, read, hands_on=timelines is not None)
    if kept.resumed and directory.manifest.state == "done":  # nothing is taken, so nothing is noted
        return _report(run, ExitCode.DONE, showing)
    directory.manifest.tools |= {t.name: f"{t.version} ({t.path})" for t in (tools.nsys, tools.ncu) if t is not None}
    patterns = known_patterns(request)
    directory.manifest.selection = {name: getattr(patterns, name) for name in SELECTION}
    directory.save()
    if not request.timings:  # the built-in workload writes its own
        directory.write_yaml("inputs.yaml", {"command": directory.manifest.command})
    run.say(f"run directory: {directory.path}")
    for problem in annotate.problems(request.command) if request.annotate.mode != "off" else ():
        run.note(Diagnosis("NOT_ANNOTATED", "warning", problem))
    try:
        with _ending_in_order(run):
            run.take_all()
            run.build_meanwhile()
        code = run.code
        directory.finish("interrupted" if run.stopped else "done" if code == ExitCode.DONE else "failed")
        if run.given_up:
            raise GivenUp
        if kept.resumed and code == ExitCode.DONE:
            drop_earlier(directory)
        result = _report(run, code, showing)
        if planning.chooses_launches(request) and not kept.resumed:
            run.learn()
    except KeyboardInterrupt:  # everything captured is in the directory, and its manifest says how the run ended
        run.say(
            f"interrupted: there is no report yet; make it with: llm-perf report {shlex.quote(str(directory.path))}"
        )
        return int(ExitCode.INTERRUPTED)
    return result


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, its report too: nothing half-written is left."""

    def terminated(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


@contextlib.contextmanager
def _ending_in_order(run: _Run) -> Iterator[None]:
    """Whatever ends the captures, what was captured is reported and the manifest says how the run ended."""
    known = False  # how it ended, to whoever finishes the run
    try:
        yield
        known = True
    except KeyboardInterrupt as interrupt:  # between two supervised commands: they handle signals themselves
        run.stopped, run.given_up = True, isinstance(interrupt, GivenUp)
        run.failures.append(ExitCode.INTERRUPTED)
        run.note(diagnose(STATES["INTERRUPTED"], signal="twice" if run.given_up else "between two steps"))
        known = True
    except UserError as error:
        run.failures.append(error.code)
        run.note(Diagnosis("RUN_FAILED", "error", error.message, error.fix))
        known = True
    except OSError as error:  # such as a folder that somebody removed between two steps
        run.failures.append(ExitCode.NOTHING_CAPTURED)
        told = f"The run could not go on: {error.strerror or error} ({error.filename})."
        run.note(Diagnosis("RUN_FAILED", "error", told, "Check free space and rights; what was captured is kept."))
        known = True
    finally:
        if not known:  # a mistake of ours, or one more interrupt: the run must not look as if it went on
            run.directory.finish("interrupted" if run.stopped else "failed")


@define
class _Run:
    """A run in progress."""

    request: ProfileRequest
    tools: Tools
    directory: RunDirectory
    say: Speaker
    environment: dict[str, str]  # for the program, beside what it inherits
    kept: Kept  # of an earlier attempt
    timelines: dict[Path, Timeline]  # by file: read once, then passed on
    hands_on: bool = False  # whoever started the run wants the timeline, too
    planned: list[PlannedCapture] = field(factory=list)
    outcomes: list[Outcome] = field(factory=list)
    failures: list[ExitCode] = field(factory=list)  # beside those of the outcomes
    results: dict[str, list[Action]] = field(factory=dict)  # of the captures that succeeded, by name
    stopped: bool = False
    given_up: bool = False  # interrupted twice
    not_exported: bool = False  # there is a timeline that nsys itself could not read
    later_s: float = 0.0  # what the captures after the present one will take
    built: NCUProfileRegionReport | None = None  # the report, but for what the run says of its own end
    folders: list[Path] | None = None  # files of it that are written already

    @property
    def code(self) -> ExitCode:
        """The exit code of the run, as far as it came."""
        first = first_failure(self.outcomes)
        return first if first != ExitCode.DONE else next(iter(self.failures), ExitCode.DONE)

    def read_timeline(self, file: Path) -> None:
        """With all that planning and the reports need of it."""
        found = read_recording(file, launch_config=True, waymarks=True)
        if isinstance(found, Timeline):
            self.timelines[file] = found

    def take_all(self) -> None:
        """All steps in order, each only where those before allow it."""
        if not self.take_timings():
            return
        timeline = self.take_timeline()
        wants_timeline = self.request.timeline.enable
        if self.hands_on and timeline is not None:
            with contextlib.suppress(UserError):  # the report says why
                self.read_timeline(timeline)
        if self.tools.ncu is not None and not self.stopped and (timeline is not None or not wants_timeline):
            self.take_counters(timeline)
        if timeline is not None:
            self.say(
                "note: recordings of nsys carry the environment of the program; "
                f"before you share one: llm-perf scrub {self.directory.path}"
            )

    def build_meanwhile(self) -> None:
        """Begin the report while the tools' own tables of the captures are still being written; wait for those."""
        self.directory.ask_gpus()
        try:
            if not self.failures:  # what failed once would fail, and perhaps take its time, twice
                self._begin_report()
            self.directory.aside.wait()
        except KeyboardInterrupt as interrupt:
            self.built = self.folders = None
            raise (GivenUp if self.stopped else KeyboardInterrupt) from interrupt
        with contextlib.suppress(UserError):
            self.directory.save()

    def _begin_report(self) -> None:
        """All of the report that does not depend on how the run ended."""
        from llm_perf_opt.report.write import write_folders

        path, top = self.directory.path, self.request.report.top
        try:
            self.built = build_from(
                [str(path)],
                known_patterns(self.request),
                quiet=True,
                calibration=self.request.calibration,
                formats=FORMATS,
                timelines=self.timelines,
            )
            self.folders = write_folders(self.built, path, top=top, regions=INSIDE_RUN)
        except (UserError, OSError):  # the same again, and told, when the report is written
            self.built = self.folders = None

    def take_timings(self) -> bool:
        """The workload without a profiler; False where it failed, and so would everything else."""
        if not self.request.timings or self.kept.timings:
            return True
        title = "stage timings: the program runs without a profiler"
        with self.say.work(title, "stage timings", expected_s=self._known("stage1")):
            ran = run_plainly(self.directory, self.request.timings, tell=self.say)
        self.stopped = ran.ended.interrupted
        self.say(f"  {'done' if ran.code is None else 'failed'} in {planning.spoken_seconds(ran.ended.seconds)}")
        if ran.code is None:
            self._keep("stage1", ran.ended.seconds)
            return True
        self.failures.append(ran.code)
        for line in ran.last_words:
            self.say(f"  {line}")
        if not self.stopped:
            said = f' Its last words: "{ran.last_words[-1]}".' if ran.last_words else ""
            message = f"The program failed without any profiler (exit code {ran.ended.exit_code}).{said}"
            self.note(Diagnosis("WORKLOAD_FAILED", "error", message, "Make it run first; its output is in stage1.log."))
        return False

    def take_timeline(self) -> Path | None:
        nsys = self.tools.nsys
        if self.kept.timeline is not None or nsys is None:
            if self.kept.without_summary and self.kept.timeline is not None and nsys is not None:
                write_summary(self.directory, nsys, self.kept.timeline)
            return self.kept.timeline
        if self.kept.recording:
            self.say(f"timeline: {nsys} exports the recording that is there …")
            unpack_again(self.directory, "nsys/run.nsys-rep")  # nsys reads no packed ones
            exported = export_timeline(self.directory, nsys)
            if exported is None:
                self.failures.append(ExitCode.NOTHING_CAPTURED)
            return exported
        asked = self.request.timeline
        self.directory.aside.start(preload, lambda _: None)
        # Without counters of kernels nothing would be fitted to what is sampled.
        hz = asked.traffic_hz if self.tools.ncu is not None or self.kept.reports else 0
        sampling = with_sampling(asked.options, nsys, self.directory.path / "nsys", hz)
        if sampling.why_not is not None:
            self.note(sampling.why_not)
        with self.say.work(
            f"timeline: {nsys} runs the program", "timeline", expected_s=self._known("nsys")
        ) as progress:
            captured = record_timeline(
                self.directory,
                self.request.command,
                nsys,
                sampling.options,
                environment=self.environment,
                timeout_s=asked.timeout_s,
                max_bytes=asked.max_bytes,
                tell=self.say,
                progress=progress,
            )
        self._note(captured)
        if captured.file is None and captured.outcome.status != "nothing":  # recorded, but not exported
            self.failures.append(ExitCode.NOTHING_CAPTURED)
            self.not_exported = True
            for diagnosis in self.directory.manifest.steps[-1].diagnostics:
                self.say.diagnosis(diagnosis)
        if captured.outcome.status == "captured" and not self.stopped:
            self._keep("nsys", captured.ended.seconds)
        self._look_at_annotation()
        return captured.file

    def _look_at_annotation(self) -> None:
        """Say so where the program could not be annotated: its regions would be missing without a word."""
        annotated = annotate.read_log(self.directory.path / "annotate.jsonl")
        if annotated.unwatched:
            message = (
                f"Not all ranges of the program can be counted from inside it ({annotated.unwatched[0].rstrip('.')}). "
                "Where that matters, ncu's own filters choose the launches, instead of a switch inside the program."
            )
            fix = "Nothing is missing; it may take longer. To put nothing into the program: --no-windows"
            self.note(Diagnosis("RANGES_NOT_COUNTED", "info", message, fix))
        if self.request.annotate.mode == "off":
            return
        for trouble in [*annotated.troubles, annotated.message]:
            if trouble:
                fix = "See which commands can be annotated in docs/annotate.md; or mark ranges in the program."
                self.note(Diagnosis("NOT_ANNOTATED", "warning", trouble, fix))

    def take_counters(self, file: Path | None) -> None:
        numbers = attrs.evolve(known_patterns(self.request), verdicts=False)
        if file is not None and file not in self.timelines:
            self.read_timeline(file)
        seen = None if file is None else make_report([str(file)], numbers, quiet=True, timelines=self.timelines)
        if self.kept.captures is not None:
            plan = CounterPlan(self.kept.captures)
        else:
            plan = self._decide(seen, file)
            self.directory.manifest.captures = [as_order(capture) for capture in plan.captures]
            self.directory.save()
        self.planned = plan.captures
        if plan.skipped:
            if not plan.nothing_matched:
                self.note(Diagnosis("COUNTERS_SKIPPED", "warning", f"No counters were taken, because {plan.skipped}."))
            elif seen is not None and seen.main_scope is not None and seen.main_scope.regions:
                self.note(Diagnosis("NO_MATCHING_KERNELS", "warning", f"No counters were taken: {plan.skipped}."))
            else:  # the report says so, first thing
                self.say(f"counters: none, for {plan.skipped}.")
        if self.request.counters.budget_s is not None and plan.captures and not planning.chooses_launches(self.request):
            message = "The budget was not used: launches, instances, sections or a replay mode were chosen by hand."
            self.note(
                Diagnosis(
                    "BUDGET_NOT_USED", "info", message, "--timeout limits a capture; what it has by then is kept."
                )
            )
        for report in self.kept.without_table:
            if self.tools.ncu is not None:
                write_raw(self.directory, self.tools.ncu, report)
        for number, capture in enumerate(plan.captures):
            if not self.stopped and capture.name not in self.kept.reports:
                self.later_s = sum(c.seconds or 0.0 for c in plan.captures[number + 1 :])
                self._capture(capture, seen)
        if self.request.counters.verify and not self.stopped and not self.kept.verification:
            self._verify(plan, seen)

    def _verify(self, plan: CounterPlan, seen: NCUProfileRegionReport | None) -> None:
        """Measure the regions as wholes; what goes wrong here leaves everything else as it is."""
        why = ""
        if seen is None:
            why = "without a timeline nothing is estimated"
        elif not self.results and not self.kept.reports:
            why = "no counters were captured"
        else:
            capture = planning.plan_verification(seen, self.request, plan.captures)
            if isinstance(capture, str):
                why = capture
        if why:
            fix = "" if plan.skipped else "The report says for every value how it came about."
            self.note(Diagnosis("NOT_VERIFIED", "info", f"Nothing was verified, because {why}.", fix))
            return
        assert isinstance(capture, PlannedCapture)
        capture, refused = _without_refused(capture, "app-range")
        if refused is not None:
            self.note(refused)
        self.say("verifying: the program runs once for every pass of the counters, its regions measured as wholes")
        captured = self._replay(capture, "app-range", kept=False)
        self.outcomes.append(captured.outcome)
        if captured.file is None and not self.stopped:
            message = "Range replay gave nothing, so the estimates stand as they are, unverified."
            fix = f"See {self.directory.path}/ncu/{capture.name}.log; the estimates' own spread is in the report."
            self.note(Diagnosis("VERIFY_FAILED", "warning", message, fix))

    def _known(self, step: str) -> float | None:
        """What this step took the last time."""
        return durations.expected(step, self.request.known_as or self.request.command)

    def _keep(self, step: str, seconds: float) -> None:
        durations.remember(step, self.request.known_as or self.request.command, seconds)

    def learn(self) -> None:
        """Remember what the captures cost; a forecast is not worth a word where that fails."""
        if not self.stopped:
            with contextlib.suppress(UserError):
                planning.learn(attrs.asdict(self.directory.manifest), self.results, self.planned)

    def _decide(self, seen: NCUProfileRegionReport | None, file: Path | None) -> CounterPlan:
        """The plan of the counters, told and kept in the run directory."""
        facts = planning.facts_of(attrs.asdict(self.directory.manifest))
        ranges_seen = annotate.read_log(self.directory.path / "annotate.jsonl").ranges
        timeline = None if file is None else self.timelines.get(file)
        plan = planning.decide(self.request, seen, timeline, facts, ranges_seen)
        if file is not None and timeline is not None:
            self.timelines[file] = without_waymarks(timeline)  # marker ranges are for the plan alone
        if plan.table is None or not plan.captures:
            return plan
        for diagnosis in plan.diagnostics:
            self.note(diagnosis)
        self.directory.write_json("plan.json", planning.as_json(plan, self.request.command))
        self.say.plan(plan, plan.table)
        for capture in plan.captures:
            if capture.windows is not None:
                self.say(f"  ncu is switched on from inside the program, in {counted(capture.windows.count, 'range')}")
            elif self.request.counters.windows:
                self.say(f"  ncu looks at every launch of the program, which takes longer: {capture.no_windows}")
        return plan

    def _capture_gated(self, capture: PlannedCapture, seen: NCUProfileRegionReport | None) -> None:
        """A capture that is switched on and off from inside the program; without a gate where that gives nothing."""
        captured = self._replay(capture, capture.options.replay_mode or "kernel")
        gave = self._too_little(capture, captured)
        if self.stopped or not gave:
            self.outcomes.append(captured.outcome)
            return
        for diagnosis in captured.outcome.diagnoses:
            diagnosis.severity = "info"  # it explains the other way; nothing is missing
        # From here on it does not count as taken: who is killed now takes it again.
        mine = [s for s in self.directory.manifest.steps if s.name == "ncu" and s.capture == capture.name]
        mine[-1].status = "failed"
        self.results.pop(capture.name, None)
        troubles = annotate.read_log(self.directory.path / "ncu" / f"{capture.name}-gate.jsonl").unwatched
        said = f" ({troubles[0].rstrip('.')})" if troubles else ""
        message = (
            f"Switching ncu on and off from inside the program gave {gave}{said}; its own filters are used instead."
        )
        self.note(Diagnosis("GATE_DID_NOT_OPEN", "info", message, "The program then runs to its end under ncu."))
        others = [attrs.evolve(other, name=f"{other.name}-ungated") for other in capture.alternatives]
        for other in others:
            if not self.stopped:
                self._capture(other, seen)
        if captured.file is not None and all(map(self._is_taken, others)):
            self.directory.aside.wait()  # its table is being written
            # Its launches were all taken again, and would count twice.
            captured.file.unlink(missing_ok=True)
            for table in [s for s in self.directory.manifest.steps if s.name == "raw" and s.capture == capture.name]:
                for name in table.files:
                    (captured.file.parent / name).unlink(missing_ok=True)

    def _too_little(self, capture: PlannedCapture, captured: Captured) -> str:
        """What a gated capture gave, in words, where that is so little that another way is worth it; else nothing."""
        outcome = captured.outcome
        if outcome.status == "nothing" and outcome.exit_code == ExitCode.NOTHING_CAPTURED:
            return "nothing"
        results = self.results.get(capture.name, [])
        if (
            outcome.status != "captured"
            or capture.windows is None
            or len(results) >= _FEW_RESULTS * (capture.expected or 0)
        ):
            return ""
        noted = annotate.read_log(self.directory.path / "ncu" / f"{capture.name}-gate.jsonl")
        some_never_came = bool(unseen(capture.windows, results)) or noted.windows < capture.windows.count
        return f"{len(results)} of {capture.expected} results" if some_never_came else ""

    def _is_taken(self, capture: PlannedCapture) -> bool:
        """Are there results of a capture, or of all that stand in for it?"""
        instead = [f"{other.name}-ungated" for other in capture.alternatives]
        return capture.name in self.results or (bool(instead) and all(name in self.results for name in instead))

    def _capture(self, capture: PlannedCapture, seen: NCUProfileRegionReport | None) -> None:
        """One capture; where its replay mode gives nothing, the next mode."""
        if capture.windows is not None:
            self._capture_gated(capture, seen)
            return
        asked, failed = capture.options.replay_mode or "kernel", None
        while True:
            mode = capture.options.replay_mode or "kernel"
            capture, refused = _without_refused(capture, mode)
            if refused is not None:
                self.note(refused)
            captured = self._replay(capture, mode)
            following = next_mode(mode, captured.outcome, enabled=self.request.counters.fallback)
            if following is None:
                self.outcomes.append(captured.outcome)
                if failed is not None and captured.file is not None:
                    told = fell_back(asked, mode, failed)
                    for diagnosis in failed.diagnoses:
                        diagnosis.severity = "info"  # it explains the other mode; nothing is missing
                    self.note(told)
                return
            failed = failed or captured.outcome
            self.say(f"  {mode} replay is not possible here; trying {following} …")
            capture = planning.in_replay_mode(capture, following, seen, self.request)

    def _replay(self, capture: PlannedCapture, mode: str, *, kept: bool = True) -> Captured:
        """Run ncu; `kept`: its results are values of the report."""
        assert self.tools.ncu is not None
        where = counted(len(capture.expressions), "region") if capture.expressions else "the whole program"
        what = counted(capture.expected, "launch") if capture.expected else "the chosen launches"
        title = f"counters: {self.tools.ncu} profiles {what if mode == 'kernel' else mode} in {where}"
        planned = capture.seconds if mode == "kernel" else None
        log = self.directory.path / "ncu" / f"{capture.name}-gate.jsonl"
        gate = capture.windows

        def environment() -> dict[str, str]:
            of_gate = {} if gate is None else gate.environment(log.with_suffix(".json"), log)
            return annotate.under_ncu(self.environment, gated=gate is not None) | of_gate

        with self.say.work(title, "counters", expected_s=planned, later_s=self.later_s) as progress:
            captured = record_counters(
                self.directory,
                self.request.command,
                self.tools.ncu,
                capture.name,
                capture.options,
                capture.expressions,
                environment=environment,
                timeout_s=self.request.counters.timeout_s,
                expected=capture.expected if mode == "kernel" else None,
                progress=progress,
                ended_on_purpose=lambda: annotate.read_log(log).ended_before,
                tell=self.say,
            )
        self._worded(captured.outcome.diagnoses)
        self.say.step(captured)
        self.stopped = captured.ended.interrupted
        if kept and captured.file is not None and captured.outcome.status == "captured":
            self._look_inside(capture, captured.file)
        return captured

    def _look_inside(self, capture: PlannedCapture, file: Path) -> None:
        """ncu takes any metric name and collects those it knows: what it dropped is told by what is missing."""
        try:
            results = read_ncu_rep(file, file.name).actions
        except UserError as error:  # ncu exited with 0, and yet it did not finish its report
            self.failures.append(ExitCode.NOTHING_CAPTURED)
            self.note(Diagnosis("REPORT_UNREADABLE", "error", error.message, error.fix))
            return
        self.results[capture.name] = results
        found = {name for action in results for name in action.metrics}
        dropped = absent_metrics(capture.options.metrics, found) if results and capture.options.metrics else None
        if dropped is not None:
            self.note(dropped)

    def _worded(self, diagnoses: list[Diagnosis]) -> None:
        """Advice in the words of whoever asked; in place, for the manifest holds the same objects."""
        for diagnosis in diagnoses if self.request.by_keys else ():
            diagnosis.message, diagnosis.fix = in_keys(diagnosis.message), in_keys(diagnosis.fix)

    def _note(self, captured: Captured) -> None:
        self._worded(captured.outcome.diagnoses)
        self.say.step(captured)
        self.outcomes.append(captured.outcome)
        self.stopped = captured.ended.interrupted

    def note(self, diagnosis: Diagnosis) -> None:
        self._worded([diagnosis])
        if diagnosis not in self.directory.manifest.diagnostics:  # a resumed run may come by twice
            self.directory.manifest.diagnostics.append(diagnosis)
        with contextlib.suppress(UserError):  # where nothing can be written any more, it is still said
            self.directory.save()
        self.say.diagnosis(diagnosis)


def known_patterns(request: ProfileRequest) -> ReportOptions:
    """The options of the report without expressions that only ncu can evaluate."""
    options = request.report
    return attrs.evolve(
        options,
        include=[p for p in options.include if not p.startswith("ncu:")],
        exclude=[p for p in options.exclude if not p.startswith("ncu:")],
    )


def _without_refused(capture: PlannedCapture, mode: str) -> tuple[PlannedCapture, Diagnosis | None]:
    """Leave out metrics the mode cannot take; a list that would be empty stays, and ncu says why."""
    split = split_metrics(mode, capture.options.metrics)
    if not split.left_out or not (split.taken or capture.options.sections or capture.options.set):
        return capture, None
    kept = attrs.evolve(capture.options, metrics=tuple(split.taken))
    return attrs.evolve(capture, options=kept), left_out(mode, split.left_out)


def _report(run: _Run, code: ExitCode, showing: Showing) -> int:
    """The report of what was captured; without anything, the reasons."""
    directory = run.directory
    report = None
    try:
        if run.not_exported:  # a report would only try the same again
            again = f"The recording is kept; try it again: llm-perf report {shlex.quote(str(directory.path))}"
            raise UserError("There is no report: nsys could not export the timeline.", again)
        report = make_report(
            [str(directory.path)],
            known_patterns(run.request),
            quiet=True,
            calibration=run.request.calibration,
            formats=FORMATS,
            built=run.built,
            timelines=run.timelines,
        )
        if run.request.by_keys:
            worded = [attrs.evolve(d, message=in_keys(d.message), fix=in_keys(d.fix)) for d in report.diagnostics]
            report = attrs.evolve(report, diagnostics=worded)
        matched = publish(
            report,
            directory.path,
            regions=INSIDE_RUN,
            top=run.request.report.top,
            showing=showing,
            folders=run.folders,
        )
    except UserError as error:
        if code == ExitCode.DONE:
            code = ExitCode.NOTHING_CAPTURED
            directory.finish("failed")
        if code == ExitCode.NOTHING_CAPTURED or report is not None:
            run.note(Diagnosis("NO_REPORT", "error", error.message, error.fix))
        if showing.as_json:
            state = state_of(directory.path)
            told = [attrs.asdict(d) for d in state.diagnostics] if state else []
            print(
                json.dumps({"out": str(directory.path), "matched": False, "diagnostics": told, "exit_code": int(code)})
            )
        return int(code)
    return int(code) or matched
