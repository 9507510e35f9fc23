"""From what a user names to a side of a comparison: run directories, recordings, reports, stored baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api import inputs
from llm_perf_opt.api.finished import finish_report, is_report, recordings_beside
from llm_perf_opt.comparing.baseline import is_baseline, read_baseline
from llm_perf_opt.comparing.side import Side
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.patterns import RegionFilter

if TYPE_CHECKING:
    from llm_perf_opt.regions.attribution import Mode
    from llm_perf_opt.regions.model import NCUProfileRegionReport


def open_side(
    path: str | Path, *, chosen: RegionFilter | None = None, attribution: Mode = "auto", quiet: bool = False
) -> Side:
    """One side, whatever it is stored as."""
    place = Path(path)
    chosen = chosen or RegionFilter()
    finish_report(place)
    if is_baseline(place):
        return _filtered(read_baseline(place), chosen)
    if is_report(place, alone=True) and not recordings_beside(place):
        from llm_perf_opt.comparing.reported import side_of_report
        from llm_perf_opt.report.json_report import read_report

        side = _filtered(side_of_report(read_report(place), place.name), chosen)
    else:
        side = _recorded([str(place)], chosen, attribution, quiet)
    add_facts(side, inputs.run_facts(place if place.is_dir() else place.parent) if _in_run(place) else {})
    return side


def side_of(report: NCUProfileRegionReport, recordings: Sequence[str], *, narrowed: bool) -> Side:
    """A report that is open; its recordings tell more, where they are still there. `narrowed`: to chosen regions."""
    from llm_perf_opt.comparing.reported import side_of_report

    modes: dict[str, Mode] = {"thread": "thread", "process": "process"}
    if recordings:
        patterns = report.selection if narrowed else {}
        chosen = RegionFilter.of(patterns.get("include_patterns", ()), patterns.get("exclude_patterns", ()))
        side = _recorded(recordings, chosen, modes.get(report.attribution, "auto"), quiet=True)
    else:
        name = str(report.inputs[0].get("path", "report")) if report.inputs else "report"
        side = side_of_report(report, name)
    facts = report.environment.get("run")
    add_facts(side, facts if isinstance(facts, dict) else {})
    return side


def _in_run(place: Path) -> bool:
    return place.is_dir() or place.name == "report.json"


def _recorded(paths: Sequence[str], chosen: RegionFilter, attribution: Mode, quiet: bool) -> Side:
    from llm_perf_opt.analysis.build import build_report
    from llm_perf_opt.analysis.report_options import ReportOptions
    from llm_perf_opt.comparing.collected import collect
    from llm_perf_opt.comparing.reported import side_of_report
    from llm_perf_opt.regions.columns import Timeline

    files = inputs.Inputs.of(paths)
    recordings = list(files.recordings(quiet=quiet, launch_config=True))
    label = Path(paths[0]).name or paths[0]
    if any(isinstance(recording, Timeline) for recording in recordings):
        side = collect(recordings, files.measured_runs(quiet=quiet), label, chosen, attribution)
    else:  # counters alone
        options = ReportOptions(include=[p.text for p in chosen.include], exclude=[p.text for p in chosen.exclude])
        side = side_of_report(build_report(recordings, options, files.inputs), label)
    side.diagnostics += [error.message for error in files.unreadable]
    return side


def _filtered(side: Side, chosen: RegionFilter) -> Side:
    """Of a stored side, the chosen regions; its domain is in the key."""
    if chosen.include or chosen.exclude:
        side.regions = {
            key: region for key, region in side.regions.items() if chosen.keeps(_domain(key), list(region.path))
        }
    return side


def _domain(key: str) -> str:
    name, at, _ = key.partition("@")
    return name if at and not name.endswith("\\") and "/" not in name else ""


_RUNNER = "llm_perf_opt.runners.llm_profile_runner"  # which runs the built-in models


def add_facts(side: Side, facts: dict[str, Any]) -> None:
    """What a run says of itself: its command, its inputs, when it began."""
    command = facts.get("workload") or facts.get("command")
    if isinstance(command, list):
        if _RUNNER in command and "--resolved" in command:  # what follows are files that every run names anew
            command = [*command[: command.index("--resolved")], *_settings(facts.get("settings"))]
        side.command = tuple(visible(str(word), 200) for word in command)
    if isinstance(facts.get("inputs"), str):
        side.inputs = facts["inputs"]
    if isinstance(facts.get("started_at"), str):
        side.made_at = facts["started_at"]


def _settings(settings: Any) -> list[str]:
    """`infer.batch_size=8` and so on: what a built-in model was run with. How it was profiled is no part of that."""
    words: list[str] = []
    left = [(str(name), value) for name, value in settings.items()] if isinstance(settings, dict) else []
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{name}.{key}", inner) for key, inner in value.items()]
        elif not name.startswith(("pipeline.", "run.")):
            words.append(f"{name}={value}")
    return sorted(words)
