"""`llm-perf compare BASE NEW`: is it faster, is that more than noise, and why."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json

if TYPE_CHECKING:
    from llm_perf_opt.comparing.comparison import Comparison
    from llm_perf_opt.comparing.side import Side

HELP = "compare two runs: is it faster, is that more than noise, and why"
DESCRIPTION = """\
Compares two run directories, measured runs, recordings (nsys, ncu, PyTorch traces), report.json or stored baselines,
in any combination. Regions are matched by path, kernels by signature. A change counts if it is more than noise, and its
causes add up to it. For a reliable verdict on times, give several runs per side (llm-perf measure --runs 5); launches,
synchronisations and bytes are exact with one.
"""
EXAMPLES = """\
examples:
  llm-perf compare runs/before runs/after
  llm-perf compare before.sqlite after.sqlite --fail-on worse
  llm-perf compare runs/main --save-baseline perf-baseline.json
  llm-perf compare perf-baseline.json runs/branch --budgets budgets.toml --fail-on worse
  llm-perf compare perf-baseline.json runs/branch --accept "the new tokenizer pads to 64"
"""
_SENTENCES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a run directory, a recording, a report.json or a baseline"
    parser.add_argument("base", metavar="BASE", help=f"the run to compare with: {what}")
    parser.add_argument(
        "new", metavar="NEW", nargs="?", help=f"the new run: {what}; may be left out with --save-baseline"
    )


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.api.comparing_sides import compare_sides, write_comparison
    from llm_perf_opt.api.reporting import refuse_ncu_expressions
    from llm_perf_opt.api.sides import open_side
    from llm_perf_opt.comparing.budgets import read_budgets
    from llm_perf_opt.regions.patterns import RegionFilter

    least = _parse_percent(arguments.min_change)
    limits = read_budgets(Path(arguments.budgets)) if arguments.budgets else []
    chosen = RegionFilter.of(arguments.include, arguments.exclude)
    refuse_ncu_expressions(chosen)
    quiet = arguments.json or arguments.quiet

    def side(path: str) -> Side:
        return open_side(path, chosen=chosen, attribution=arguments.attribution, quiet=quiet)

    if arguments.new is None:
        if not arguments.save_baseline or arguments.accept:
            raise UserError("Only one run was given, but comparing needs two.", "Give BASE and NEW.")
        written = _save(side(arguments.base), Path(arguments.save_baseline), arguments)
        if arguments.json:
            print_json({"baseline": str(written)})
        else:
            print(f"Written: {written}")
        return int(ExitCode.DONE)
    accepted = Path(arguments.base)
    if arguments.accept is not None:
        _check_accepted(accepted, arguments.accept)
    base, new = side(arguments.base), side(arguments.new)
    if base.label == new.label:  # `before/run.json` and `after/run.json`
        base.label, new.label = arguments.base, arguments.new
    found = compare_sides(base, new, min_change=least, exact=arguments.exact, limits=limits, learns=arguments.learn)
    written_files = write_comparison(found, Path(arguments.out), inputs=_inputs(arguments), force=arguments.force)
    if arguments.save_baseline:
        written_files.append(_save(new, Path(arguments.save_baseline), arguments))
    if arguments.accept is not None:
        written_files.append(_accept(base, new, found, accepted, arguments.accept))
    code = ExitCode.DONE if arguments.accept is not None else _exit_code(found, arguments.fail_on)
    arguments.code = code  # it counts, whether or not anybody reads on
    if arguments.json:
        print_json({**found.as_json(), "files": [str(file) for file in written_files], "exit_code": int(code)})
    elif arguments.quiet:
        print(found.verdict)
    else:
        _show(found, written_files, arguments)
    return int(code)


def _parse_percent(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", text.strip())
    if found is None or float(found[1]) >= 100:
        raise UserError(f"--min-change {text!r} is not a percentage.", "Give it as in 2% or 0.5%.")
    return float(found[1]) / 100


def _inputs(arguments: argparse.Namespace) -> list[Path]:
    return [Path(path) for path in (arguments.base, arguments.new, arguments.budgets) if path]


def _save(side: Side, file: Path, arguments: argparse.Namespace) -> Path:
    from llm_perf_opt.comparing.baseline import is_baseline, render_baseline
    from llm_perf_opt.report.files import make_folder, replaceable, write_text

    for path in replaceable([file], is_baseline, inputs=_inputs(arguments), force=arguments.force):
        print(f"Replacing {path}, which llm-perf did not write.", file=sys.stderr)
    make_folder(file.parent)
    return write_text(file, render_baseline(side))


def _check_accepted(file: Path, reason: str) -> None:
    from llm_perf_opt.comparing.baseline import is_baseline

    if not reason.strip():
        raise UserError("--accept needs a reason.", 'Say why the change is meant: --accept "longer prompts"')
    if not is_baseline(file):
        raise UserError(
            f"{file} is not a baseline file; --accept can only replace a baseline.",
            "Write one first: llm-perf compare RUN --save-baseline FILE",
        )


def _accept(base: Side, new: Side, found: Comparison, file: Path, reason: str) -> Path:
    """The new run takes the place of the baseline; what was let pass stays written in it."""
    from llm_perf_opt.comparing.baseline import render_baseline
    from llm_perf_opt.report.files import write_text

    at = datetime.now(UTC).isoformat(timespec="seconds")
    change = " ".join(found.sentences[:_SENTENCES])[:1000]
    new.accepted = [*base.accepted, {"at": at, "reason": reason[:1000], "change": change}][-50:]
    return write_text(file, render_baseline(new))


def _exit_code(found: Comparison, fail_on: str | None) -> ExitCode:
    states = {budget["state"] for budget in found.budgets}
    if fail_on and (found.verdict == "worse" or "over" in states):
        return ExitCode.WORSE
    if fail_on == "unsure" and (found.verdict in ("unsure", "not_comparable") or "unsure" in states):
        return ExitCode.UNSURE
    return ExitCode.DONE


def _show(found: Comparison, written: list[Path], arguments: argparse.Namespace) -> None:
    from llm_perf_opt.comparing.comparison_md import result_of
    from llm_perf_opt.regions.names import printable
    from llm_perf_opt.report.closing import print_closing
    from llm_perf_opt.report.terminal import console

    lines = list(found.reasons) if found.verdict == "not_comparable" else []
    if not found.regions and (patterns := [*arguments.include, *arguments.exclude]):
        lines.append(f"{', '.join(map(repr, patterns))} leaves no region that both sides have.")
    lines += found.sentences[:_SENTENCES]
    if len(found.sentences) > _SENTENCES:
        lines.append(f"{len(found.sentences) - _SENTENCES} more in the files.")
    lines += [f"budget {budget['state']}: {budget['text']}" for budget in found.budgets if budget["state"] != "kept"]
    lines += found.notes
    for line in lines:
        console().print(printable(line), markup=False, soft_wrap=True)
    page = next((file for file in written if file.suffix == ".html"), None)
    print_closing(result_of(found), page, _next_step(found, arguments))


def _next_step(found: Comparison, arguments: argparse.Namespace) -> str:
    new = shlex.quote(arguments.new)
    if found.verdict == "worse":
        worst = max((r for r in found.regions if r.verdict == "worse"), key=lambda r: r.delta_ns, default=None)
        return f"llm-perf show {new} {shlex.quote(worst.key)}" if worst else ""
    if found.verdict == "unsure":
        asked = re.search(r"llm-perf measure --runs (\d+)", " ".join(found.reasons))
        return f"time both several times: llm-perf measure --runs {asked[1] if asked else 5} -- CMD"
    if found.verdict == "not_comparable":
        if not found.regions and (arguments.include or arguments.exclude):
            return f"llm-perf ranges {shlex.quote(arguments.base)}"
        return "give two runs of the same program"
    return f"to make it the baseline for later runs: llm-perf compare {new} --save-baseline FILE"
