"""A profiling run in order: measure, timeline, counters, verify, report.

A failed step keeps what the others captured, and the report is built from that. Nothing is launched before
the whole request has been checked against the installed tools (preparation.py).
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs
from attrs import define

from llm_perf_opt import inject, planning
from llm_perf_opt.api.reporting import INSIDE_RUN, SELECTION, Showing, build_from, make_report, publish
from llm_perf_opt.api.source_text import with_source
from llm_perf_opt.capture.context import ANNOTATION_LOG, KeptRun, ResumeState, RunContext, Tools
from llm_perf_opt.capture.preload import preload
from llm_perf_opt.capture.preparation import known_patterns, ready
from llm_perf_opt.capture.progress_reporter import ProgressReporter
from llm_perf_opt.capture.resume import begin_again, changes, drop_earlier, find_results, missing
from llm_perf_opt.capture.server_window import nothing_is_explained
from llm_perf_opt.capture.steps.counters import COUNTERS
from llm_perf_opt.capture.steps.measure import MEASURE
from llm_perf_opt.capture.steps.stage_timings import STAGE_TIMINGS
from llm_perf_opt.capture.steps.timeline import TIMELINE
from llm_perf_opt.capture.steps.verify import VERIFY
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.nsight.messages import STATES
from llm_perf_opt.nsight.outcome import of_rule
from llm_perf_opt.options import in_keys
from llm_perf_opt.process.bytecode import bytecode_cache
from llm_perf_opt.process.interrupts import STOPS, Interrupts
from llm_perf_opt.process.supervise import InterruptedTwice, handling
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.closing import print_failure
from llm_perf_opt.report.renderers import FORMATS
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.draft import Draft
from llm_perf_opt.rundir.state import state_of


def resume_profile(
    request: ProfileRequest, directory: RunDirectory, *, as_json: bool = False, quiet: bool = False
) -> int:
    """Take what a run lacks and report it; the exit code of the run. `request`: what the run was asked for."""
    try:
        state = find_results(directory, request)
        lacking = missing(request, state)
        tools = Tools(None, None)
        if lacking:
            request, tools = _ready_for_the_rest(request, state)
        directory.drop_unfinished()  # also of a run that was whole, and killed while its report was written
        changed = changes(directory.manifest, request.command, (tools.nsys, tools.ncu)) if lacking else []
        if lacking or directory.manifest.state != "done":
            begin_again(directory, state, lacking, changed)
    except BaseException:  # an interrupt too: whoever resumes next must not find the run locked
        directory.release()
        raise
    nothing = "nothing to do: every step of this run is whole; the report is built again"
    ProgressReporter(quiet=quiet or as_json)(f"still to take: {', '.join(lacking)}" if lacking else nothing)
    return run_profile(request, tools, directory, as_json=as_json, quiet=quiet, state=state)


def _ready_for_the_rest(request: ProfileRequest, state: ResumeState) -> tuple[ProfileRequest, Tools]:
    """Check a request for what is missing: a tool that has nothing to do need not be there."""
    nsys = TIMELINE.needs_nsys(request, state)
    ncu = bool(COUNTERS.missing(request, state) or VERIFY.missing(request, state))
    if not (nsys or ncu):
        return request, Tools(None, None)
    needed = attrs.evolve(
        request,
        timeline=attrs.evolve(request.timeline, enable=nsys),
        counters=attrs.evolve(request.counters, enable=ncu),
    )
    checked, tools = ready(needed)
    counters = attrs.evolve(request.counters, options=checked.counters.options)
    return attrs.evolve(request, counters=counters), tools


def run_profile(
    request: ProfileRequest,
    tools: Tools,
    directory: RunDirectory,
    *,
    as_json: bool = False,
    quiet: bool = False,
    silent: bool = False,
    state: ResumeState | None = None,
    timelines: dict[Path, Timeline] | None = None,
    kept: KeptRun | None = None,
) -> int:
    """Take the recordings of a request and report them; the exit code of the run.

    `quiet`: print where the report is, and nothing else but errors. `silent`: the report is written, but not
    shown: the caller prints something else. `state`: what is there already.
    `timelines`: where the timeline is put once it was read, for a caller that needs it too. `kept`: where the measured
    run is kept for a trial.
    """
    log = directory.path / ANNOTATION_LOG
    ranges = request.counters.enable and request.counters.windows
    showing = Showing(as_json, request.strict, silent, quiet=quiet, brief=True)
    reporter = ProgressReporter(quiet=quiet, silent=as_json, label=request.label)
    try:
        interrupts = Interrupts(once=True)  # SIGTERM ends a run as Ctrl-C does, its report too
        with handling(STOPS, interrupts), bytecode_cache() as bytecode:
            environment = inject.environment(request.annotate.mode, request.annotate.depth, ranges=ranges, log=log)
            read = {} if timelines is None else timelines
            context = RunContext(
                *(request, tools, directory, reporter, environment, state or ResumeState(), bytecode),
                timelines=read,
                kept=kept,
            )
            try:
                return _Session(context, showing, interrupts, hands_on=timelines is not None).run()
            finally:
                context.drop_head_start()
    finally:
        directory.background.end()
        with contextlib.suppress(OSError):  # of a table that an interrupt came upon while it was noted
            directory.drop_unfinished()
        directory.release()


@define
class _Session:
    """A run, from its first step to its report."""

    context: RunContext
    showing: Showing
    interrupts: Interrupts
    hands_on: bool = False  # the caller needs the timeline, too
    built: NCUProfileRegionReport | None = None  # the report, but for what the run says of its own end
    draft: Draft | None = None  # files of it that are written already

    def run(self) -> int:
        run, directory = self.context, self.context.directory
        if run.resume.resumed and directory.manifest.state == "done":  # nothing is taken, so nothing is noted
            return self._report(ExitCode.DONE)
        self._begin()
        try:
            with self._ending_in_order():
                self._take_steps()
                self.interrupts.check()
                self._build_while_waiting()
            code = run.code
            directory.finish("interrupted" if run.stopped else "done" if code == ExitCode.DONE else "failed")
            if run.interrupted_twice:
                raise InterruptedTwice
            self.interrupts.again()
            if run.resume.resumed and code == ExitCode.DONE:
                drop_earlier(directory)
            result = self._report(code)
            if planning.chooses_launches(run.request) and not (run.resume.resumed or run.stopped):
                with contextlib.suppress(UserError):  # a later forecast is worse, and nothing else
                    planning.learn(attrs.asdict(directory.manifest), run.results, run.planned)
        except KeyboardInterrupt:  # everything captured is in the directory, and its manifest says how the run ended
            again = f"llm-perf report {shlex.quote(str(directory.path))}"
            run.report_progress(f"interrupted: there is no report yet; make it with: {again}")
            return int(ExitCode.INTERRUPTED)
        finally:
            self._discard()
        return result

    def _begin(self) -> None:
        """Note in the run directory what is run, with which tools."""
        run, directory, manifest = self.context, self.context.directory, self.context.directory.manifest
        tools = (run.tools.nsys, run.tools.ncu)
        manifest.tools |= {tool.name: f"{tool.version} ({tool.path})" for tool in tools if tool is not None}
        patterns = known_patterns(run.request)
        manifest.selection = {name: getattr(patterns, name) for name in SELECTION}
        directory.save()
        if not run.request.timings:  # the built-in workload writes its own
            directory.write_yaml("inputs.yaml", {"command": manifest.workload})
        run.report_progress(f"run directory: {directory.path}")
        if run.request.serving.is_asked and run.request.timeline.enable:
            run.note(diagnose("SERVER_COUNTERS.taken" if run.request.counters.enable else "SERVER_COUNTERS"))
        for problem in inject.problems(run.request.command) if run.request.annotate.mode != "off" else ():
            run.note(diagnose("NOT_ANNOTATED.foreseen", problem=problem))

    def _take_steps(self) -> None:
        """All steps in order, each only where those before allow it."""
        run = self.context
        if run.request.timeline.enable or run.request.counters.enable:
            run.directory.background.start(preload, lambda _: None)
        if not (STAGE_TIMINGS.take(run) and MEASURE.take(run)):
            return
        self.interrupts.check()
        timeline = TIMELINE.take(run)
        self.interrupts.check()
        if self.hands_on and timeline is not None:
            with contextlib.suppress(UserError):  # the report says why
                run.read_timeline(timeline)
        if run.tools.ncu is not None and not run.stopped and (timeline is not None or not run.request.timeline.enable):
            VERIFY.take(run, *COUNTERS.take(run, timeline))
        if timeline is not None:
            run.report_progress(
                "note: recordings of nsys carry the environment of the program; "
                f"before you share one: llm-perf scrub {run.directory.path}"
            )

    @contextlib.contextmanager
    def _ending_in_order(self) -> Iterator[None]:
        """Whatever ends the captures, what was captured is reported and the manifest says how the run ended."""
        run = self.context
        try:
            try:
                yield
            except KeyboardInterrupt as interrupt:  # between two supervised commands: they handle signals themselves
                run.stopped = True
                run.interrupted_twice = run.interrupted_twice or isinstance(interrupt, InterruptedTwice)
                run.failures.append(ExitCode.INTERRUPTED)
                when = "twice" if run.interrupted_twice else "between two steps"
                run.note(of_rule(STATES["INTERRUPTED"], signal=when))
            except UserError as error:
                run.failures.append(error.code)
                run.note(diagnose("RUN_FAILED", message=error.message, fix=error.fix))
            except OSError as error:  # such as a folder that somebody removed between two steps
                run.failures.append(ExitCode.NOTHING_CAPTURED)
                run.note(diagnose("RUN_FAILED.by_system", why=error.strerror or error, file=error.filename))
        except BaseException:  # a mistake of ours, or one more interrupt: the run must not look as if it went on
            run.directory.finish("interrupted" if run.stopped else "failed")
            raise

    def _build_while_waiting(self) -> None:
        """Begin the report while the tools' own tables of the captures are still being written; wait for those."""
        run, directory = self.context, self.context.directory
        self.interrupts.again()
        directory.ask_gpus()
        try:
            if not run.failures:  # what failed once would fail, and perhaps take its time, twice
                self._begin_report()
            directory.background.wait()
            self.interrupts.check()
        except KeyboardInterrupt as interrupt:
            self._discard()
            raise (InterruptedTwice if run.stopped else KeyboardInterrupt) from interrupt
        with contextlib.suppress(UserError):
            directory.save()

    def _begin_report(self) -> None:
        """All of the report that does not depend on how the run ended."""
        from llm_perf_opt.report.write import draft_folders

        path, request = self.context.directory.path, self.context.request
        try:
            built = build_from(
                [str(path)],
                known_patterns(request),
                quiet=True,
                calibration=request.calibration,
                formats=FORMATS,
                known={**self.context.timelines, **self.context.counters},
            )
            self.built = built if self.context.resume.resumed else with_source(built)
            self.draft = draft_folders(self.built, path, top=request.report.top, regions=INSIDE_RUN)
        except (UserError, OSError):  # the same again, and printed, when the report is written
            self._discard()

    def _discard(self) -> None:
        if self.draft is not None:
            self.draft.discard()
        self.built = self.draft = None

    def _report(self, code: ExitCode) -> int:
        """The report of what was captured; without anything, the reasons."""
        run, directory = self.context, self.context.directory
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
                built=self.built,
                known={**run.timelines, **run.counters},
            )
            if run.request.by_keys:
                worded = [attrs.evolve(d, message=in_keys(d.message), fix=in_keys(d.fix)) for d in report.diagnostics]
                report = attrs.evolve(report, diagnostics=worded)
            matched = publish(
                report,
                directory.path,
                regions=INSIDE_RUN,
                top=run.request.report.top,
                showing=self.showing,
                draft=self.draft,
            )
        except UserError as error:
            if code == ExitCode.DONE:
                code = ExitCode.NOTHING_CAPTURED
                directory.finish("failed")
            is_known = not run.request.timeline.enable and nothing_is_explained(directory.manifest.diagnostics)
            if (code == ExitCode.NOTHING_CAPTURED and not is_known) or report is not None:
                run.note(diagnose("NO_REPORT", message=error.message, fix=error.fix))
            if self.showing.as_json:
                _print_failure(directory, code)
            elif not (self.showing.quiet or self.showing.silent) and code != ExitCode.INTERRUPTED:
                print_failure(directory.manifest.diagnostics, directory.manifest.command, directory.path)
            return int(code)
        return int(code) or matched


def _print_failure(directory: RunDirectory, code: ExitCode) -> None:
    state = state_of(directory.path)
    diagnostics = [attrs.asdict(d) for d in state.diagnostics] if state else []
    found = {"out": str(directory.path), "matched": False, "diagnostics": diagnostics, "exit_code": int(code)}
    print_json(found)
