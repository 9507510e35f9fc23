"""From the folder of a sweep to one comparison over all its jobs: sweep.json, sweep.md and sweep.html."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.comparing_sides import write_files
from llm_perf_opt.comparing.sweep import Sweep, compare_jobs
from llm_perf_opt.comparing.sweep_files import render_sweep_html, render_sweep_md
from llm_perf_opt.errors import UserError
from llm_perf_opt.options import flatten
from llm_perf_opt.rundir.layout import SWEEP_FILES
from llm_perf_opt.rundir.manifest import Manifest
from llm_perf_opt.untrusted import read_json

if TYPE_CHECKING:
    from llm_perf_opt.regions.model import NCUProfileRegionReport

_LARGEST_METRICS = 1 << 22
_ENDED = ("done", "failed", "interrupted")
_SEVERAL = re.compile(r"\+{0,2}(?P<key>[A-Za-z0-9_./@-]+)=(?:[^\[{(\"']*,|(?:choice|range|interval|glob)\()")


def read_sweep(folder: Path) -> Sweep:
    """All runs below a folder, by the order of their names."""
    from llm_perf_opt.rundir.inventory import take_inventory

    runs = {run.path.relative_to(folder).as_posix(): run for run in take_inventory(folder).runs if run.path != folder}
    configurations: dict[str, dict[str, object]] = {}
    reports, problems = {}, {}
    typed: list[str] = []
    for name in sorted(runs, key=lambda one: [(len(part), part) for part in one.split("/")]):
        run = runs[name]
        if run.manifest is None:
            configurations[name], problems[name] = {}, run.problem
            continue
        configurations[name] = dict(flatten(run.manifest.settings))
        typed = typed or _typed(run.manifest)
        if run.state not in _ENDED:
            problems[name] = run.problem or "It was killed before it was done."
            continue
        try:
            reports[name] = _report_of(run.path)
        except UserError as error:
            problems[name] = error.message
    if len(configurations) < 2:
        raise UserError(
            f"There are not two runs in {folder}.",
            "Give the folder of a sweep (deep_profile_runner -m …), or one with several runs.",
        )
    made = {name: tokens for name in reports if (tokens := _made(runs[name].path))}
    return compare_jobs(configurations, reports, problems, typed=typed, made=made)


def _made(run: Path) -> float | None:
    """New tokens of a batch, as the built-in workload counted them."""
    try:
        found = read_json(run / "torch_profiler" / "metrics.json", _LARGEST_METRICS)
        tokens, runs = (found["timing"][name] for name in ("new_tokens", "runs"))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return tokens / runs if isinstance(tokens, int) and isinstance(runs, int) and tokens > 0 and runs > 0 else None


def _report_of(run: Path) -> NCUProfileRegionReport:
    """The report that a job has left; of one that leaves recordings alone, as on a machine without a GPU, made of those."""
    from llm_perf_opt.analysis.report_options import ReportOptions
    from llm_perf_opt.api.reporting import make_report
    from llm_perf_opt.report.json_report import read_report

    if (run / "report.json").exists():
        return read_report(run)
    return make_report([str(run)], ReportOptions(), quiet=True)


def _typed(manifest: Manifest) -> list[str]:
    """The keys that were given several values: `model=a,b`."""
    found = [_SEVERAL.match(word) for word in manifest.command]
    return [one["key"].split("@")[0].replace("/", ".") for one in found if one is not None]


def write_sweep(sweep: Sweep, out: Path, *, force: bool = False) -> list[Path]:
    from llm_perf_opt.json_output import SCHEMA_VERSION

    content = {"schema_version": SCHEMA_VERSION, **sweep.as_json()}
    texts = (json.dumps(content, indent=1, allow_nan=False) + "\n", render_sweep_md(sweep), render_sweep_html(sweep))
    return write_files(dict(zip(SWEEP_FILES, texts, strict=True)), out, force=force)
