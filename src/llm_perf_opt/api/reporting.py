"""From recordings to the written report and the answer on the screen."""

from __future__ import annotations

import contextlib
import importlib
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
from attrs import define

from llm_perf_opt.api import inputs
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.errors import ExitCode, UnreadableInput, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.report.renderers import FORMATS, needs_launches

if TYPE_CHECKING:
    from llm_perf_opt.analysis.report_options import ReportOptions
    from llm_perf_opt.regions.columns import CounterSet, Recording, Timeline
    from llm_perf_opt.regions.model import NCUProfileRegionReport
    from llm_perf_opt.regions.patterns import RegionFilter
    from llm_perf_opt.rundir.draft import Draft
    from llm_perf_opt.rundir.state import RunState

# Where region folders go: beside a report, or inside a run directory.
BESIDE, INSIDE_RUN = "regions", "ncu/regions"
SELECTION = ("include", "exclude", "kernel_include", "kernel_exclude")


@define(frozen=True)
class Showing:
    """How the answer is told."""

    as_json: bool = False
    strict: bool = False  # exit with 6 where no region matches
    silent: bool = False  # only write
    quiet: bool = False  # say where the report is, and nothing else
    brief: bool = False  # the answer, the stages and what to fix; regions are in the files


def check_patterns(options: ReportOptions, *, ncu_expressions: bool = False) -> None:
    """Refuse malformed patterns before anything is read or run: a typo should not cost a long wait."""
    from llm_perf_opt.regions.patterns import NameFilter, RegionFilter

    patterns = RegionFilter.of(options.include, options.exclude)
    if not ncu_expressions:
        refuse_ncu_expressions(patterns)
    NameFilter.of(options.kernel_include, options.kernel_exclude)


def refuse_ncu_expressions(patterns: RegionFilter) -> None:
    for pattern in (*patterns.include, *patterns.exclude):
        if pattern.ncu is not None:
            raise UserError(
                f"{pattern.text!r} is an expression for ncu, which only ncu can evaluate.",
                "Use a region pattern here: globs, A/B, DOMAIN@NAME or regex:…",
            )


def make_report(
    paths: Sequence[str],
    options: ReportOptions,
    *,
    quiet: bool = False,
    calibration: str | None = None,
    formats: Collection[str] = (),
    built: NCUProfileRegionReport | None = None,
    known: Mapping[Path, Recording] | None = None,
) -> NCUProfileRegionReport:
    """Read every input and build one report. `calibration`: measured peaks instead of those kept on this machine.

    `formats`: what will be written of it. `built`: what `build_from` made of the same inputs and options.
    `known`: by file, recordings that were read already.
    """
    report = built or build_from(paths, options, quiet=quiet, calibration=calibration, formats=formats, known=known)
    run = Path(paths[0]) if len(paths) == 1 else None
    if run is None:
        return report
    if (state := _state_of(run)) is not None:
        report = _explained(report, _why_stopped(state), first=state.diagnostics)
    if run.is_dir():
        from llm_perf_opt.api.tried import with_tried

        report = with_tried(report, run)
    if facts := inputs.run_facts(run):
        from llm_perf_opt.regions.ranking import is_host_only

        report = attrs.evolve(report, environment={**report.environment, "run": facts})
        error = next((note for note in report.diagnostics if note.severity == "error" and note.fix), None)
        if error is not None and facts.get("state") == "failed" and is_host_only(report):
            # A profiler would show nothing of a program that does not run.
            report = attrs.evolve(report, answer=attrs.evolve(report.answer, do_first=error.fix))
    return report


def build_from(
    paths: Sequence[str],
    options: ReportOptions,
    *,
    quiet: bool = False,
    calibration: str | None = None,
    formats: Collection[str] = (),
    known: Mapping[Path, Recording] | None = None,
) -> NCUProfileRegionReport:
    """A report without what a run says of itself, which may still change: all that takes time."""
    check_patterns(options)
    run = Path(paths[0]) if len(paths) == 1 else None
    state = _state_of(run) if run is not None else None
    if state is not None and not chooses(options):
        # The report of a run shows what the run was asked for, unless something else is asked for now.
        asked = attrs.evolve(options, **{k: v for k, v in state.selection.items() if k in SELECTION})
        with contextlib.suppress(UserError):  # of a manifest that makes no sense, all is reported
            check_patterns(asked, ncu_expressions=True)
            options = asked
    side = inputs.find_side_inputs(paths, calibration)
    options = attrs.evolve(options, calibrations=side.calibrations, formula=side.formula, alone=side.undisturbed)
    truth, unreadable = inputs.read_verification(paths)
    try:
        report = _build(paths, options, formats, truth, quiet, known or {})
    except UnreadableInput as error:
        if state is None or not state.reasons:
            raise
        told = f"{paths[0]} contains no recording. {state.reasons}"
        errors = (note.fix for note in state.diagnostics if note.severity == "error" and note.fix)
        again = next(errors, "Run it again; the logs in its folder say what happened.")
        from llm_perf_opt.rundir.state import RESUMABLE

        if state.made_by in RESUMABLE:
            again = f"Once that is fixed, record what is missing: llm-perf profile --resume {shlex.quote(paths[0])}"
        raise UserError(told, again, ExitCode.NOTHING_CAPTURED) from error
    cpu = inputs.ran_on_cpu(run) if run is not None else ""
    # A model that was told to run on a CPU has no kernels: nothing went wrong.
    why = diagnose("NO_KERNELS.on_cpu", cpu=cpu) if cpu else None
    return _explained(report, why, last=[*side.notes, *unreadable])


def _state_of(run: Path) -> RunState | None:
    from llm_perf_opt.rundir.job import is_job, state_of_job  # here: most commands only want names of this module
    from llm_perf_opt.rundir.state import state_of

    return state_of_job(run) if is_job(run) else state_of(run)


def _build(
    paths: Sequence[str],
    options: ReportOptions,
    formats: Collection[str],
    truth: CounterSet | None,
    quiet: bool,
    known: Mapping[Path, Recording],
) -> NCUProfileRegionReport:
    files = inputs.Inputs.of(paths, known)
    if not files.are_timelines():
        recordings = inputs.load(files, quiet=quiet, meanwhile=lambda: _import_what_follows(formats, quiet))
        options = attrs.evolve(options, launch_detail=needs_launches(formats))
        from llm_perf_opt.analysis.build import build_report  # after reading, during which it is imported

        return build_report(recordings, options, files.inputs, truth, files.measured_runs(quiet=quiet))
    from llm_perf_opt.analysis.build import build_streamed_report

    options = attrs.evolve(options, launch_detail=needs_launches(formats))
    first: list[inputs.Inputs] = [files]

    def read() -> Iterator[Timeline]:
        """The ranks of a job: one in memory at a time, whatever their number."""
        now = first.pop() if first else inputs.Inputs.of(paths)
        return cast("Iterator[Timeline]", now.recordings(quiet=quiet, launch_config=False))

    report = build_streamed_report(read, options, files.inputs, files.measured_runs(quiet=quiet))
    return _explained(report, None, last=files.describe_unreadable())


def _import_what_follows(formats: Collection[str], quiet: bool) -> None:
    """While another process reads: it takes as long as a small file does."""
    needs_launches(formats)
    later = ["numpy.ma", "llm_perf_opt.api.poorer", "llm_perf_opt.report.write"]  # the first by `numpy.unique`
    shown = ("accounting", "closing", "line_rows", "region_table", "step_rows")
    rich = ("rich.console", "rich.markup", "rich.table")
    later += [] if quiet else [*(f"llm_perf_opt.report.{name}" for name in shown), *rich]
    for module in later:
        importlib.import_module(module)


def chooses(options: ReportOptions) -> bool:
    """Did somebody choose regions or kernels?"""
    return any(getattr(options, name) for name in SELECTION)


def _explained(
    report: NCUProfileRegionReport,
    no_kernels: Diagnosis | None,
    *,
    first: Sequence[Diagnosis] = (),
    last: Sequence[Diagnosis] = (),
) -> NCUProfileRegionReport:
    """The report with more diagnoses. `no_kernels`: the cause of missing kernels, where one is known."""
    from llm_perf_opt.analysis.verdicts.conclusion import conclude

    own = [no_kernels if no_kernels and d.code == no_kernels.code else d for d in report.diagnostics]
    report = attrs.evolve(report, diagnostics=[*first, *own, *last])
    return attrs.evolve(report, answer=conclude(report))  # the reason may be another


def _why_stopped(state: RunState) -> Diagnosis | None:
    """Of a run that was stopped, the missing kernels have another cause than of one that has none."""
    if not {"TIMED_OUT", "INTERRUPTED", "RECORDING_TOO_LARGE", "RUN_UNFINISHED"} & {d.code for d in state.diagnostics}:
        return None
    return diagnose("NO_KERNELS.stopped")


def publish(
    report: NCUProfileRegionReport,
    out: Path,
    formats: Collection[str] = FORMATS,
    *,
    regions: str = BESIDE,
    top: int = 30,
    showing: Showing | None = None,
    draft: Draft | None = None,
    force: bool = False,
) -> int:
    """Write the files, show the answer, and choose the exit code. `draft`: see `write_report`.

    No formats: the report is only shown. `force`: whatever is there is replaced.
    """
    from llm_perf_opt.analysis.build import matched_anything
    from llm_perf_opt.api.poorer import why_kept
    from llm_perf_opt.report.write import write_report
    from llm_perf_opt.rundir.draft import settle

    showing = showing or Showing()
    matched = matched_anything(report)
    notes = [found] if formats and out.is_dir() and (found := settle(out)) else []
    kept = why_kept(report, out, matched=matched) if formats and draft is None and not force else ""
    files: list[Path] = []
    replaced: list[str] = []
    if kept:
        notes = [diagnose("REPORT_KEPT", out=out, reason=kept), *notes]
    elif formats:
        files = write_report(report, out, formats, top, regions, draft, force=force, replaced=replaced)
    report = attrs.evolve(report, diagnostics=[*report.diagnostics, *notes])
    if showing.as_json:
        print_json(_summary(report, out, files, matched) | {"replaced": replaced})
    elif not showing.silent:
        _show(report, out, files, regions, showing)
        for place in replaced:
            print(f"Replaced {out / place}, which llm-perf did not write.", file=sys.stderr)
        for note in notes:
            print(f"warning: {note.message} {note.fix}", file=sys.stderr)
    return int(ExitCode.NOTHING_MATCHED if showing.strict and not matched else ExitCode.DONE)


def _show(report: NCUProfileRegionReport, out: Path, files: list[Path], regions: str, showing: Showing) -> None:
    """The answer for people, and where the files are."""
    from llm_perf_opt.regions.names import printable
    from llm_perf_opt.report.closing import next_of, print_closing, result_of
    from llm_perf_opt.report.terminal import console, show_report
    from llm_perf_opt.report.view import view_of

    if not showing.quiet:
        show_report(view_of(report), brief=showing.brief)
    names = [f.name for f in files if f.parent == out]
    names += [f"{regions}/"] if any(f.is_relative_to(out / regions) for f in files) else []
    page = out / "report.html"
    if page in files:
        names.remove(page.name)
    if showing.quiet:
        console().print(printable(str(page if page in files else out)), markup=False, soft_wrap=True)
        return
    if names:
        console().print(printable(f"Written to {out}: {', '.join(names)}"), markup=False, soft_wrap=True)
    if files:  # a report that was only shown has its files, and who asked for it knows where
        print_closing(result_of(report), page if page in files else None, next_of(report, out))


def _summary(report: NCUProfileRegionReport, out: Path, files: list[Path], matched: bool) -> dict[str, Any]:
    """What a program wants to know without opening the report."""
    return {
        "out": str(out),
        "files": [str(f.relative_to(out)) for f in files],
        "matched": matched,
        "answer": attrs.asdict(report.answer),
        "scopes": [
            {
                "scope": s.scope,
                "kernel_count": s.totals.kernel_count,
                "gpu_time_ns": s.totals.gpu_time_ns,
                "regions": len(s.regions),
            }
            for s in report.scopes
        ],
        "available_ranges": report.available_ranges,
        "diagnostics": [attrs.asdict(d) for d in report.diagnostics],
    }
