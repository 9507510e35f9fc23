"""What must be in a report for a command of the contract to count as done. Exit codes prove nothing, so none is looked at.

Each check takes what `report.json` holds, or the folder of a run, and yields what is wrong in words: nothing, if all is well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_perf_opt.readers.ncu_rep import read_ncu_rep
from llm_perf_opt.regions.columns import Action

Report = dict[str, Any]
# Percentage points: ncu measures the parts of a percentage in different passes, of different runs in application replay.
TOLERANCE = 2.0
FELL_BACK = "REPLAY_FELL_BACK"


def load(run: Path) -> Report:
    """The report of a run directory, or of a folder that `llm-perf report` wrote."""
    found: Report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return found


def regions(report: Report) -> list[dict[str, Any]]:
    """Of the scope that adds everything up."""
    scopes = {scope["scope"]: scope for scope in report["scopes"]}
    chosen = scopes.get("aggregate") or next(iter(scopes.values()), None)
    return list(chosen["regions"]) if chosen else []


def counters_of(region: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = region["inclusive"]["metrics"]
    return {name: value for name, value in found.items() if value["value"] is not None}


def counted(report: Report, at_least: int = 1) -> Iterator[str]:
    """Some region has counters that say more than how long it took, and not all of them nothing."""
    having = [
        r["key"]
        for r in regions(report)
        if any("time_duration" not in name and value["value"] for name, value in counters_of(r).items())
    ]
    if len(having) < at_least:
        yield f"{len(having)} regions have counters, {at_least} or more were expected"


def stages_counted(report: Report, least: float = 0.9) -> Iterator[str]:
    """Launches that ncu profiled stand for nearly all of the time of every stage: a few of a library's are not enough."""
    for region in regions(report):
        if region["key"] in report["stages"]:
            of_launches = [
                1.0 if value["coverage"] is None else value["coverage"]
                for name, value in counters_of(region).items()
                if "time_duration" not in name and value["source"] != "GPU sampling"
            ]
            if max(of_launches, default=0.0) < least:
                yield f"{region['key']}: counters cover {max(of_launches, default=0.0):.0%} of its time"


def timed(report: Report) -> Iterator[str]:
    """Every region has kernels and time; there is one."""
    if not regions(report):
        yield "there is no region"
    for region in regions(report):
        if region["inclusive"]["kernel_count"] and not region["inclusive"]["gpu_time_ns"]:
            yield f"{region['key']} has kernels and no time"
    if not any(region["inclusive"]["kernel_count"] for region in regions(report)):
        yield "no region has a kernel"


def in_range(report: Report) -> Iterator[str]:
    """Percentages are percentages, shares are shares, and nothing that is counted is negative."""
    for region in regions(report):
        for name, value in counters_of(region).items():
            # ncu's own: the busiest unit against the mean of all, which goes far beyond 100 % where few units work.
            bounded = value["unit"] == "%" and ".max." not in name
            top = 100 + TOLERANCE if bounded else float("inf")
            if not -TOLERANCE * (value["unit"] == "%") <= value["value"] <= top:
                yield f"{region['key']}: {name} is {value['value']:.1f} {value['unit']}"
            if not 0 <= (value["coverage"] if value["coverage"] is not None else 1) <= 1 + 1e-6:
                yield f"{region['key']}: {name} covers {value['coverage']:.3f} of the time"
        for used in (region["performance"] or {}).get("utilisation", []):
            if not 0 <= used["value"] <= 1 + TOLERANCE / 100:
                yield f"{region['key']}: {used['metric']} is {100 * used['value']:.1f} %"


def measured_by(report: Report, source: str) -> Iterator[str]:
    """Counters of some region come from this kind of replay."""
    sources = {value["source"] for region in regions(report) for value in counters_of(region).values()}
    if source not in sources:
        yield f"no counter comes from {source!r}, only from {sorted(sources)}"


def as_asked(report: Report) -> Iterator[str]:
    """The replay mode that was asked for gave the numbers."""
    yield from (d["message"] for d in report["diagnostics"] if d["code"] == FELL_BACK)


def named_only(report: Report, *patterns: str) -> Iterator[str]:
    """Every outermost region has one of these names."""
    paths = {(region["domain"], *region["path"]) for region in regions(report)}
    for region in regions(report):
        own = (region["domain"], *region["path"])
        is_outermost = not any(own[:depth] in paths for depth in range(2, len(own)))
        if is_outermost and not any(re.search(pattern, region["key"]) for pattern in patterns):
            yield f"{region['key']} was not asked for"


def nothing_matched(report: Report, code: str) -> Iterator[str]:
    """No such kernel is in the program, and the report says so and still has its regions and times."""
    if code not in {d["code"] for d in report["diagnostics"]}:
        yield f"the report does not say {code}"
    yield from timed(report)


def results_of(run: Path) -> list[Action]:
    """Everything ncu profiled for the report; the capture that verifies it is another matter."""
    files = [file for file in sorted((run / "ncu").glob("*.ncu-rep")) if file.stem != "verify"]
    return [action for file in files for action in read_ncu_rep(file, file.name).actions]


def kernels_match(actions: list[Action], pattern: str, most: int | None = None) -> Iterator[str]:
    """ncu profiled kernels of this name, no others, and not more than were asked for."""
    names = {str(action.demangled or action.name) for action in actions}
    if not names:
        yield "ncu profiled nothing"
    yield from (f"{name[:100]} was not asked for" for name in sorted(names) if not re.search(pattern, name))
    if most is not None and len(actions) > most:
        yield f"{len(actions)} launches were profiled, {most} were asked for"


def one_launch_shown(report: Report, actions: list[Action]) -> Iterator[str]:
    """The numbers that ncu took of one launch are those in the report, every one of them."""
    if len(actions) != 1:
        yield f"ncu profiled {len(actions)} launches, not one"
        return
    (action,) = actions
    shown = report["launches"]
    if len(shown) != 1:
        yield f"the report shows {len(shown)} launches"
        return
    if shown[0]["kernel_name"] != action.name:
        yield f"the report shows {shown[0]['kernel_name'][:80]}, ncu profiled {action.name[:80]}"
    told = {name: counter["value"] for name, counter in shown[0]["metrics"].items()}
    differing = [name for name, value in action.metrics.items() if told.get(name) != value]
    if differing or not told:
        yield f"{len(differing)} of {len(action.metrics)} counters of the launch are not in the report: {differing[:3]}"


def verified(report: Report, most: float = 0.1) -> Iterator[str]:
    """Regions were measured as wholes, and what follows from the shapes alone is the same both ways."""
    rows = report["verification"]
    if not rows:
        yield "nothing was verified"
    exact = [row for row in rows if "ops_path_tensor" in row["metric"] and row["ratio"] is not None]
    if rows and not exact:
        yield "tensor operations were not verified"
    for row in exact:
        if abs(row["ratio"] - 1) > most:
            yield f"{row['region']}: {row['metric']} is {row['ratio']:.3f} of what was measured"


def work_by_formula(report: Report, least: float = 0.9, most: float = 1.25) -> Iterator[str]:
    """FLOPs that were counted are those of the formula, a little more for tiles that few rows do not fill (those
    of an expert); where rows are fewest, in a decode step, tiles make several times of it, and the report says so."""
    for region in regions(report):
        work = (region["performance"] or {}).get("work", {})
        ratio, covered = work.get("counted_over_formula"), work.get("coverage")
        if ratio is None:
            continue
        if ratio < least or (ratio > most and "whole tiles" not in work.get("formula_note", "")):
            yield f"{region['key']}: counted FLOPs are {ratio:.2f} times those of the formula, coverage {covered}"


def sections_shown(run: Path, *titles: str) -> Iterator[str]:
    """ncu's own page of the sections that were asked for."""
    file = run / "ncu" / "sections_report.txt"
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    yield from (f"sections_report.txt has no section {title!r}" for title in titles if f"Section: {title}" not in text)


def stage_timings(run: Path) -> Iterator[str]:
    """Stage 1 timed its stages."""
    file = run / "torch_profiler" / "metrics.json"
    stages = json.loads(file.read_text(encoding="utf-8"))["timing"]["stages"] if file.exists() else []
    if not stages or any(stage["milliseconds"]["mean"] <= 0 for stage in stages):
        yield "there are no times of stages"
