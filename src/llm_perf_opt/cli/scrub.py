"""`llm-perf scrub RUN`: a copy of a run that can be given away."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.cli.report import stem
from llm_perf_opt.errors import ExitCode, UnreadableInput, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.rundir.layout import MANIFEST

if TYPE_CHECKING:
    from llm_perf_opt.regions.model import NCUProfileRegionReport
    from llm_perf_opt.rundir.scrub.run import Result

HELP = "make a copy of a run or a recording that can be shared"
DESCRIPTION = """\
Makes a copy without the environment, the command line, secrets, host and user names and the paths of your
home. A recording of nsys contains all of them; it is rebuilt from what a report reads. Regions, times and
counters stay exactly as they are. What cannot be cleaned (.nsys-rep) is dropped, and so are unknown files
and what the program printed; all are named. The copy is then searched for every known secret,
and its report is compared with that of the original; if either check fails, nothing is written.
"""
EXAMPLES = """\
examples:
  llm-perf scrub tmp/profile-output/20250101-120000
  llm-perf scrub run.sqlite counters.ncu-rep --out to-share
  llm-perf scrub run1 --in-place
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="+", metavar="RUN|FILE", help="a run directory, or recordings")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.regions.names import visible
    from llm_perf_opt.rundir.generation import list_again
    from llm_perf_opt.rundir.scrub.run import scrub

    inputs = [Path(path) for path in dict.fromkeys(arguments.input)]
    if len(inputs) > 1 and any(path.is_dir() for path in inputs):
        raise UserError("Only one run can be scrubbed at a time.", "Run llm-perf scrub for each of them.")
    out = Path(arguments.out or f"{stem(arguments.input[0])}-scrubbed")
    if not arguments.in_place:
        _refuse_what_is_there(out, inputs)
    # Beside the goal, so that the finished copy only has to be renamed; private until then.
    beside = (
        (inputs[0] if inputs[0].is_dir() else inputs[0].parent).absolute()
        if arguments.in_place
        else out.absolute().parent
    )
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".llm-perf-scrub-", dir=beside) as name:
            copy, scratch = Path(name) / "copy", Path(name) / "scratch"
            copy.mkdir()
            scratch.mkdir()
            result = scrub(inputs, copy, scratch, os.environ)
            compared = _compare(result)
            if arguments.in_place:
                _replace(copy, result)
                list_again(beside)
            else:
                _publish(copy, out)
    except OSError as error:
        raise UserError(
            f"The copy cannot be written: {error.strerror or error} ({error.filename}).",
            "Choose another folder with --out.",
        ) from error
    if arguments.quiet and not arguments.json:
        for warning in result.warnings:  # what stays against expectation is printed even where nothing else is
            print(f"warning: {visible(warning, 500)}", file=sys.stderr)
        print("" if arguments.in_place else out, end="" if arguments.in_place else "\n")
    else:
        _print_result(result, None if arguments.in_place else out, compared, arguments.json)
    return int(ExitCode.DONE)


def _refuse_what_is_there(out: Path, inputs: list[Path]) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists and is not empty.", "Choose another folder with --out.")
    for path in inputs:
        if path.is_dir() and out.absolute().resolve().is_relative_to(path.resolve()):
            raise UserError(f"{out} is inside the run itself.", "Choose a folder outside of it with --out.")


def _compare(result: Result) -> list[str]:
    """The report of the copy must say what that of the original says: scopes that were compared."""
    from llm_perf_opt.rundir.scrub.run import StillPrivate

    try:
        before = _report([original for original, _ in result.pairs]) if result.pairs else None
    except UnreadableInput as error:
        _leave_out_damaged(result, error)
        before = _report([original for original, _ in result.pairs]) if result.pairs else None
    if before is None:
        return []
    after = _report([copy for _, copy in result.pairs])
    exactly = not _tells_of_code(before)
    if _content(before, evaluated=exactly) != _content(after, evaluated=exactly):
        raise StillPrivate(
            "The report of the cleaned copy differs from that of the original.",
            "Nothing was written. Please report this; it should never happen.",
        )
    return [scope.scope for scope in before.scopes]


def _leave_out_damaged(result: Result, error: UnreadableInput) -> None:
    """A recording that cannot be read is not shared; the others are."""
    for original, copy in list(result.pairs):
        try:
            _report([original])
        except UnreadableInput as damage:
            (name,) = [name for name in result.sources if copy.as_posix().endswith(f"/{name}")]
            copy.unlink()
            result.pairs.remove((original, copy))
            del result.sources[name]
            for file in result.files:
                if file.path == name:
                    file.action, file.detail = "left out", damage.message
    if not result.sources:
        raise error


def _report(paths: list[Path]) -> NCUProfileRegionReport:
    from llm_perf_opt.analysis.report_options import ReportOptions
    from llm_perf_opt.api.reporting import make_report

    return make_report([str(path) for path in paths], ReportOptions(), quiet=True)


def _tells_of_code(report: NCUProfileRegionReport) -> bool:
    """Whether it names lines of the program: a copy has their files without folders, and no stacks."""
    found = (region.performance for scope in report.scopes for region in scope.regions)
    return any(known is not None and (known.lines or (known.idle and known.idle.lines)) for known in found)


def _content(report: NCUProfileRegionReport, *, evaluated: bool) -> Any:
    """Everything measured, and nothing that depends on where the files are. `evaluated`: also what follows from it."""
    import attrs

    scopes = report.scopes
    if not evaluated:
        scopes = [attrs.evolve(s, regions=[attrs.evolve(r, performance=None) for r in s.regions]) for s in scopes]
    return scopes, report.coverage


def _publish(copy: Path, out: Path) -> None:
    if out.exists():
        out.rmdir()  # it is empty
    # What was made in a private folder gets the permissions of any other new folder.
    mask = os.umask(0)
    os.umask(mask)
    copy.chmod(0o777 & ~mask)
    copy.rename(out)


def _replace(copy: Path, result: Result) -> None:
    """Clean files first, then what they make superfluous: a failure in between loses nothing."""
    for name, source in result.sources.items():
        made = copy / name
        if made.name.removesuffix(".gz").removesuffix(".xz").endswith(".sqlite") and ".sqlite" not in source.name:
            # Exported here from nsys's own format, which goes.
            shutil.move(made, source.with_name(made.name))
            source.unlink()
        else:
            made.replace(source)
    for path in result.dropped:
        path.unlink()


def _print_result(result: Result, out: Path | None, compared: list[str], as_json: bool) -> None:
    import attrs

    if as_json:
        content = {
            "out": str(out) if out else None,
            "files": [attrs.asdict(file) for file in result.files],
            "warnings": result.warnings,
            "secrets_searched": result.secrets,
            "not_checked": result.not_checked,
            "scopes_compared": compared,
        }
        print_json(content)
        return
    from llm_perf_opt.regions.names import visible
    from llm_perf_opt.report.closing import print_closing
    from llm_perf_opt.report.terminal import console
    from llm_perf_opt.report.text import counted

    say = console()
    for file in result.files:
        detail = f": {visible(file.detail, 400)}" if file.detail else ""
        say.print(f"{file.action:<9} {visible(file.path, 120)}{detail}", markup=False, soft_wrap=True)
    for warning in result.warnings:
        say.print(f"warning   {visible(warning, 500)}", markup=False, soft_wrap=True)
    searched = f"Searched the copy for {counted(result.secrets, 'known secret')}: none was found"
    searched += ", but see the warnings." if result.warnings else "."
    same = " Its report has the same numbers as before." if compared else ""
    say.print(f"{searched}{same}", markup=False, soft_wrap=True)
    for what in result.not_checked:
        say.print(f"Not checked: {what}.", markup=False, soft_wrap=True)
    written = f"Written to {out}" if out else "The originals were replaced."
    print_closing(written, None, _next_step(result, out) if out else "", leaves_page=False)


def _next_step(result: Result, out: Path) -> str:
    """Of a run its copy, of recordings each of theirs."""
    places = [out] if (out / MANIFEST).is_file() else [out / copy.name for _, copy in result.pairs]
    return f"llm-perf report {shlex.join(map(str, places))}" if places else ""
