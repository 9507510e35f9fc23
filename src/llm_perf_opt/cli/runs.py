"""`llm-perf runs list|show|sweep|history|prune|compress`: what lies in the folder of runs, and how it stays small."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.cli.arguments import add_options
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.options import options_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from llm_perf_opt.comparing.history import ProgramHistory
    from llm_perf_opt.rundir.compress import Packing
    from llm_perf_opt.rundir.inventory import Run
    from llm_perf_opt.rundir.prune import Decision, Removal

HELP = "list runs, show one or their history, remove old ones, compress large recordings"
DESCRIPTION = """\
Works on run directories below a folder (default: tmp/profile-output). prune and compress only say what they
would do until --yes is given. Files that llm-perf did not write, links, and runs in progress are left alone
and named.
"""
EXAMPLES = """\
examples:
  llm-perf runs list
  llm-perf runs show tmp/profile-output/20250101-120000
  llm-perf runs sweep tmp/profile-output/20250101-120000
  llm-perf runs history --out history
  llm-perf runs prune --keep 10 --max-size 2GB
  llm-perf runs prune --keep 10 --yes
  llm-perf runs compress tmp/profile-output/20250101-120000 --yes
"""
_STEP = ("name", "capture", "status", "exit_code", "seconds")
_FOLDER = "a run, or a folder of runs (default: tmp/profile-output)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="list|show|sweep|history|prune|compress", required=True)
    for name, help_text, nargs, metavar, run_it in (
        ("list", "list the runs, newest first, with state, size and result", "?", "FOLDER", _list),
        ("show", "show how a run went, what is in it and what it lacks", None, "RUN", _show),
        ("prune", "remove old runs; a dry run unless --yes is given", "?", "FOLDER", _prune),
        (
            "sweep",
            "compare all jobs of a sweep: a table, the Pareto front, the best configuration",
            None,
            "FOLDER",
            _sweep,
        ),
        ("history", "show how the regions of all runs changed over time", "?", "FOLDER", _history),
        (
            "compress",
            "pack large recordings, which stay readable; a dry run unless --yes is given",
            "*",
            "RUN",
            _compress,
        ),
    ):
        sub = actions.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            epilog="\n".join(["examples:", *(line for line in EXAMPLES.splitlines() if f" runs {name}" in line)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        # The verb has the option too; without SUPPRESS the default here would overwrite it.
        as_json = "print one JSON object instead of text"
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=as_json)
        needed = "a run directory" if name == "show" else "the folder of a sweep"
        sub.add_argument("folder", nargs=nargs, metavar=metavar, help=_FOLDER if nargs else needed)
        add_options(sub, options_of(f"runs {name}"), grouped=False)
        sub.set_defaults(action_run=run_it)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.action_run(arguments)
    return code


# -- list and show ---------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.rundir.command_lines import shell_text
    from llm_perf_opt.rundir.inventory import RUNS, take_inventory

    found = take_inventory(Path(arguments.folder) if arguments.folder else RUNS)
    if arguments.json:
        others = [{"path": str(path), "reason": reason} for path, reason in found.others]
        return _print_json(
            folder=str(found.folder), bytes=found.bytes, runs=[_fields(run) for run in found.runs], others=others
        )
    if not found.runs:
        print(f"There are no runs in {_shown(found.folder)}.")
    for run_ in found.runs:
        command = shell_text(run_.manifest.command) if run_.manifest else run_.problem
        when = _local(run_.started).strftime("%Y-%m-%d %H:%M")
        size = _size(run_.bytes) if run_.manifest else "–"  # which files are ours is not known
        print(f"{run_.state:<11} {size:>8}  {when}  {_shown(run_.path)}  {_shown(command, 60)}")
        if result := _result(run_):
            print(f"{'':<20}  {result}")
    if found.runs:
        print(f"{len(found.runs)} run{'s' if len(found.runs) != 1 else ''}, {_size(found.bytes)} in total")
    for path, reason in found.others:
        print(f"not a run: {_shown(path)} ({reason})")
    return int(ExitCode.DONE)


def _result(run: Run) -> str:
    """What came of a run: what its trial found, why it failed, or where its report says the time goes."""
    from llm_perf_opt.report.headline import read_headline, read_trial_result

    notes = run.manifest.diagnostics if run.manifest and run.state == "failed" else []
    failure = next((_shown(note.message, 400) for note in notes if note.severity == "error"), "")
    return failure or read_trial_result(run.path) or read_headline(run.path).get("where", "")


def _local(moment: datetime) -> datetime:
    """The time here; at the ends of the calendar, where there may be none, the time as it is."""
    try:
        return moment.astimezone()
    except (OverflowError, ValueError, OSError):
        return moment


def _show(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.rundir.command_lines import shell_text
    from llm_perf_opt.rundir.draft import settle
    from llm_perf_opt.rundir.inventory import look_at
    from llm_perf_opt.rundir.manifest import read_manifest

    path = Path(arguments.folder)
    mixture = settle(path) if path.is_dir() else None
    found = look_at(path)
    manifest = found.manifest or read_manifest(path)  # which says what is wrong with it
    following = _next_commands(found)
    if arguments.json:
        return _print_json(
            **_fields(found),
            settings=manifest.settings,
            tools=manifest.tools,
            steps=[{field: getattr(step, field) for field in _STEP} for step in manifest.steps],
            resumed=manifest.resumed,
            files=[
                {"name": f.name, "bytes": f.bytes, "ours": f.is_ours, "reason": f.why_not_ours} for f in found.files
            ],
            report_problem=mixture.message if mixture else "",
            next=following,
        )
    print(f"{_shown(path)}: {found.state}, {_size(found.bytes)}")
    print(f"  command   {_shown(shell_text(manifest.command), 400)}")
    print(f"  started   {_shown(manifest.started_at)}, finished {_shown(manifest.finished_at or '–')}")
    for name, tool in manifest.tools.items():
        print(f"  {_shown(name, 9):<9} {_shown(tool)}")
    for step in manifest.steps:
        seconds = f" in {step.seconds:.1f} s" if step.seconds is not None else ""
        label = f"{step.name} {step.capture}".strip()
        print(f"  step      {_shown(label)}: {_shown(step.status)}{seconds}")
    for again in manifest.resumed:
        print(
            f"  resumed   {_shown(str(again.get('at')))}: {_shown(', '.join(map(str, again.get('took') or [])), 300)}"
        )
    for file in sorted(found.files, key=lambda file: -file.bytes)[:12]:
        note = "" if file.is_ours else f"  ({file.why_not_ours})"
        print(f"  {_size(file.bytes):>9} {_shown(file.name)}{note}")
    if len(found.files) > 12:
        print(f"            and {len(found.files) - 12} smaller files")
    noted = (*manifest.diagnostics, *(d for s in manifest.steps for d in s.diagnostics))
    for diagnosis in (*noted, mixture) if mixture else noted:
        if diagnosis.severity != "info":
            print(f"  {_shown(diagnosis.severity)}: {_shown(diagnosis.message, 400)}")
    for command in following:
        print(f"  → {_shown(command, 400)}")
    return int(ExitCode.DONE)


def _next_commands(run_: Run) -> list[str]:
    """What one would type next."""
    from llm_perf_opt.rundir.state import RESUMABLE

    place, manifest = shlex.quote(str(run_.path)), run_.manifest
    ended = run_.state in ("failed", "interrupted", "killed")
    resume = [f"llm-perf profile --resume {place}"] if ended and manifest and manifest.made_by in RESUMABLE else []
    return [*resume, f"llm-perf report {place}"]


def _fields(run_: Run) -> dict[str, Any]:
    from llm_perf_opt.report.headline import read_headline

    manifest = run_.manifest
    return {
        "path": str(run_.path),
        "state": run_.state,
        "started_at": manifest.started_at if manifest else None,
        "finished_at": manifest.finished_at if manifest else None,
        "command": manifest.command if manifest else None,
        "bytes": run_.bytes,
        "foreign": [{"name": file.name, "reason": file.why_not_ours} for file in run_.foreign],
        "problem": run_.problem,
        "result": read_headline(run_.path) or None,
    }


# -- history -----------------------------------------------------------------------------------------


def _sweep(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.api.sweeps import read_sweep, write_sweep
    from llm_perf_opt.comparing.sweep_files import rows

    folder = Path(arguments.folder)
    found = read_sweep(folder)
    written = write_sweep(found, Path(arguments.out or folder), force=arguments.force)
    if arguments.json:
        return _print_json(**found.as_json(), files=[str(file) for file in written])
    for row in rows(found):
        print(_shown("  ".join(row), 400))
    result = " ".join(f"{sentence}." for sentence in found.sentences) or "No two jobs can be compared."
    best = next(iter(found.best.values()), None)
    _print_end(arguments, written, result, f"llm-perf show {shlex.quote(str(folder / best))}" if best else "")
    return int(ExitCode.DONE)


def _print_end(arguments: argparse.Namespace, written: Sequence[Path], result: str, following: str) -> None:
    """As every verb that leaves a page."""
    from llm_perf_opt.report.closing import print_closing

    page = next((file for file in written if file.suffix == ".html"), None)
    others = [file.name for file in written if file != page]
    if arguments.quiet:
        print(_shown(page or result, 400))
        return
    if others:
        print(f"Written to {_shown(written[0].parent)}: {_shown(', '.join(others))}")
    print_closing(result, page, following)


def _history(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.api.run_history import read_history, write_history
    from llm_perf_opt.comparing.history_page import describe_change
    from llm_perf_opt.regions.labels import counted
    from llm_perf_opt.rundir.inventory import RUNS

    folder = Path(arguments.folder) if arguments.folder else RUNS
    programs, failed = read_history(folder)
    written = write_history(programs, Path(arguments.out), force=arguments.force) if arguments.out else []
    if arguments.json:
        others = [{"run": run_, "reason": reason} for run_, reason in failed]
        shown = [program.as_json() for program in programs]
        return _print_json(programs=shown, unreadable=others, files=[str(file) for file in written])
    for program in programs:
        print(f"{_shown(' '.join(program.command) or 'recordings', 100)}: {counted(len(program.runs), 'run')}")
        changed = [region for region in program.regions if region.changes]
        for region in changed:
            for change in region.changes:
                print(f"  {_shown(region.key)} {_shown(describe_change(change), 300)}")
        if not changed:
            print("  nothing changed")
    if not programs:
        print(f"There are no runs with regions in {_shown(folder)}.")
    for run_, reason in failed:
        print(f"left out {_shown(run_)}: {_shown(reason, 400)}")
    if written:
        _print_end(arguments, written, *_history_in_words(programs, folder))
    return int(ExitCode.DONE)


def _history_in_words(programs: Sequence[ProgramHistory], folder: Path) -> tuple[str, str]:
    """What changed last, and the command that says why."""
    from llm_perf_opt.comparing.history_page import describe_change

    changes = [(c, region, program) for program in programs for region in program.regions for c in region.changes]
    if not changes:
        return "No region of any program changed.", ""
    change, region, program = max(changes, key=lambda found: found[2].runs.index(found[0].run))
    at = program.runs.index(change.run)
    before, after = (shlex.quote(str(folder / program.runs[number])) for number in (max(at - 1, 0), at))
    return f"The last change: {region.key} {describe_change(change)}.", f"llm-perf compare {before} {after}"


# -- prune -----------------------------------------------------------------------------------------


def _prune(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.options.values import bytes_of
    from llm_perf_opt.rundir.inventory import RUNS, take_inventory
    from llm_perf_opt.rundir.prune import carry_out, decide

    if arguments.keep is None and arguments.max_size is None:
        raise UserError("It is not clear which runs to keep.", "Give --keep N, --max-size 2GB, or both.")
    limit = None if arguments.max_size is None else bytes_of(arguments.max_size)
    folder = Path(arguments.folder) if arguments.folder else RUNS
    inventory = take_inventory(folder)
    decision = decide(inventory, arguments.keep, limit)
    if arguments.yes:
        carry_out(decision, folder)
    failed = any(removal.problem for removal in decision.removals)
    if arguments.json:
        _print_json(
            folder=str(folder),
            dry_run=not arguments.yes,
            removed=[_removal_fields(r) for r in decision.removals if not r.problem],
            failed=[{"path": str(r.run.path), "reason": r.problem} for r in decision.removals if r.problem],
            kept=[str(run_.path) for run_ in decision.kept],
            left=[
                *({"path": str(run_.path), "reason": reason} for run_, reason in decision.spared),
                *({"path": str(path), "reason": reason} for path, reason in inventory.others),
            ],
            bytes_left=decision.bytes_left,
            too_large=decision.too_large,
        )
    else:
        _say_pruned(decision, inventory.others, done=arguments.yes)
    return int(ExitCode.BAD_INPUT if failed else ExitCode.DONE)


def _removal_fields(removal: Removal) -> dict[str, Any]:
    # Before anything was done: what would stay behind.
    left = removal.left or [(file.name, file.why_not_ours) for file in removal.run.foreign]
    return {
        "path": str(removal.run.path),
        "bytes": removal.bytes or removal.run.bytes,
        "reason": removal.reason,
        "left": [{"name": name, "reason": reason} for name, reason in left],
    }


def _say_pruned(decision: Decision, others: Iterable[tuple[Path, str]], *, done: bool) -> None:
    word = "removed" if done else "would remove"
    freed = 0
    for removal in decision.removals:
        if removal.problem:
            print(f"left {_shown(removal.run.path)}: {_shown(removal.problem, 400)}")
            continue
        entry = _removal_fields(removal)
        freed += entry["bytes"]
        print(f"{word} {_shown(removal.run.path)} ({_size(entry['bytes'])}): {removal.reason}")
        for file in entry["left"]:
            print(f"  left in it: {_shown(file['name'])}: {file['reason']}")
    for run_, reason in decision.spared:
        print(f"left {_shown(run_.path)} ({run_.state}): {_shown(reason, 400)}")
    for path, reason in others:
        print(f"left {_shown(path)}: {reason}")
    print(f"{'Freed' if done else 'This would free'} {_size(freed)}; {_size(decision.bytes_left)} of runs remain.")
    if decision.too_large:
        print("That is more than the limit: what is left cannot be removed here.")
    if not done and decision.removals:
        print("Nothing was removed. Add --yes to do it.")


# -- compress --------------------------------------------------------------------------------------


def _compress(arguments: argparse.Namespace) -> int:
    import attrs

    from llm_perf_opt.rundir.compress import Packing, candidates, compress
    from llm_perf_opt.rundir.directory import RunDirectory
    from llm_perf_opt.rundir.inventory import OVER, RUNS, take_inventory

    folders = [Path(folder) for folder in dict.fromkeys(arguments.folder)] or [RUNS]
    entries: list[dict[str, Any]] = []
    code = ExitCode.DONE

    def report_progress(name: str) -> None:
        if not arguments.json:
            print(f"packing {_shown(run_.path / name)} …", file=sys.stderr, flush=True)

    for run_ in [run_ for folder in folders for run_ in take_inventory(folder).runs]:
        files: list[Packing] = []
        problem = "" if run_.state in OVER else run_.problem
        if not problem and not arguments.yes:
            files = [Packing(file.name, file.bytes) for file in candidates(run_.files)]
        elif not problem:
            try:
                directory = RunDirectory.reopen(run_.path)
            except UserError as error:
                problem = error.message
            else:
                try:
                    files = compress(directory, arguments.format, report_progress)
                except OSError as error:
                    lost = f"{error.strerror} ({error.filename}). Nothing is lost."
                    problem, code = f"It could not be packed completely: {lost}", ExitCode.BAD_INPUT
                finally:
                    directory.release()
        entries.append({"path": str(run_.path), "problem": problem, "files": [attrs.asdict(file) for file in files]})
    if arguments.json:
        _print_json(dry_run=not arguments.yes, runs=entries)
    else:
        _print_packed(entries, done=arguments.yes)
    return int(code)


def _print_packed(entries: list[dict[str, Any]], *, done: bool) -> None:
    before = after = 0
    for run_ in entries:
        if run_["problem"]:
            print(f"left {_shown(run_['path'])}: {_shown(run_['problem'], 400)}")
        for file in run_["files"]:
            name = _shown(Path(run_["path"]) / file["name"])
            if file["packed_bytes"] is not None:
                before, after = before + file["bytes"], after + file["packed_bytes"]
                print(f"packed {name}: {_size(file['bytes'])} → {_size(file['packed_bytes'])}")
            elif done:
                print(f"left {name}: {file['detail']}")
            else:
                before += file["bytes"]
                print(f"would pack {name} ({_size(file['bytes'])})")
    if done:
        print(f"Packed {_size(before)} into {_size(after)}.")
    elif before:
        print(f"{_size(before)} could be packed. Nothing was changed; add --yes to do it.")
    else:
        print("There is nothing to pack.")


def _print_json(**content: Any) -> int:
    print_json(content)
    return int(ExitCode.DONE)


def _shown(text: object, longest: int = 200) -> str:
    from llm_perf_opt.regions.names import visible

    return visible(str(text), longest)


def _size(size: int) -> str:
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size} B"
