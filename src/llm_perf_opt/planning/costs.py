"""What a capture costs: from data to begin with, then from this machine's own runs.

The price of a pass differs from machine to machine by several times (driver, CPU, memory to save), so every
finished run is remembered in a small file of the user's cache, and the median of the last ones counts.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, define, evolve

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.files import cache_folder, write_text
from llm_perf_opt.metrics.catalogue import TIME
from llm_perf_opt.package_data import read_toml
from llm_perf_opt.regions.columns import Action
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.untrusted import read_json

if TYPE_CHECKING:
    from llm_perf_opt.planning.plan import PlannedCapture

_FILE = "costs.json"
_FORMAT = 1
_TIME = TIME.partition(".")[0]


@define(frozen=True)
class Costs:
    """Seconds of the parts of a capture."""

    startup_s: float
    program_slowdown: float
    launch_overhead_s: float
    pass_s: float
    source: str  # for people: where the numbers come from
    runs: int = 0  # earlier runs of this machine they were learned from

    def fixed_s(self, program_s: float) -> float:
        """A capture that profiles nothing."""
        return self.startup_s + program_s * self.program_slowdown

    def launch_s(self, passes: int, *, time_only: bool = False) -> float:
        return self.launch_overhead_s + (0.0 if time_only else passes * self.pass_s)

    def capture_s(self, program_s: float, launches: int, passes: int, *, time_only: bool = False) -> float:
        return self.fixed_s(program_s) + launches * self.launch_s(passes, time_only=time_only)


@define(frozen=True)
class Observation:
    """What one capture really took."""

    seconds: float
    program_s: float  # what of the program ran, by itself: by the timeline's run, which is a little longer
    launches: int
    passes: int  # of all launches together
    time_only: bool = False


def take_time_only(metrics: Iterable[str]) -> bool:
    """Are these metrics the duration and nothing else, which costs no pass?"""
    return {metric.partition(".")[0] for metric in metrics} <= {_TIME}


def passes_of_sets() -> dict[str, int]:
    """Of ncu's own sets, as far as they have been counted."""
    return {str(name): int(passes) for name, passes in _data()["passes_of_sets"].items()}


@cache
def _data() -> dict[str, Any]:
    return read_toml(__package__, "costs.toml")


def default_costs() -> Costs:
    """Costs where nothing has been learned yet."""
    seconds = dict(_data()["default"])
    gpu = seconds.pop("gpu")
    return Costs(**seconds, source=f"as measured on an {gpu}; the first run on this machine will tell its own")


def learned(observations: Sequence[Observation]) -> Costs:
    """Costs of a machine from its earlier runs: the median price of a pass, and of a launch without counters."""
    known, rules = default_costs(), _data()["learning"]
    enough = [o for o in observations if o.launches >= rules["least_launches"] and math.isfinite(o.seconds)]
    bare = [o for o in enough if o.time_only][-rules["runs_used"] :]
    counted = [o for o in enough if not o.time_only and o.passes > 0][-rules["runs_used"] :]
    if bare:
        overhead = statistics.median((o.seconds - known.fixed_s(o.program_s)) / o.launches for o in bare)
        known = evolve(known, launch_overhead_s=min(max(overhead, 0.0), rules["most_pass_s"]))
    if counted:
        prices = [
            (o.seconds - known.fixed_s(o.program_s) - o.launches * known.launch_overhead_s) / o.passes for o in counted
        ]
        price = min(max(statistics.median(prices), rules["least_pass_s"]), rules["most_pass_s"])
        known = evolve(known, pass_s=price)
    runs = len(bare) + len(counted)
    if not runs:
        return known
    return evolve(known, runs=runs, source=f"learned from {runs} earlier run{'s' if runs > 1 else ''} on this machine")


# -- from a run ------------------------------------------------------------------------------------


@define(frozen=True)
class RunFacts:
    """What is known of the machine and of the program before counters are planned."""

    costs: Costs
    diagnostics: list[Diagnosis] = Factory(list)
    compute_capability: str | None = None  # of the first GPU of this machine
    program_s: float | None = None  # how long the program ran under nsys

    def capability(self, report: NCUProfileRegionReport) -> str | None:
        """Of the GPU that was recorded, where the recording says so."""
        recorded = next((gpu.compute_capability for gpu in report.hardware if gpu.compute_capability), None)
        return recorded or self.compute_capability

    def seconds(self, report: NCUProfileRegionReport) -> float:
        """How long the program runs: under nsys is near enough; of a foreign timeline, what it spans."""
        span = report.main_scope.totals.span_ns if report.main_scope else None
        return float(self.program_s if self.program_s is not None else (span or 0) / 1e9)


def facts_of(manifest: Mapping[str, Any]) -> RunFacts:
    """From the manifest of a run, as JSON, and what earlier runs on its machine cost."""
    costs, diagnostics = known_costs(costs_file(), machine_of(manifest))
    here = next((gpu.get("compute_cap") for gpu in manifest.get("gpus_before") or [] if gpu.get("compute_cap")), None)
    return RunFacts(costs, diagnostics, here, seconds_under_nsys(manifest.get("steps") or []))


def machine_of(manifest: Mapping[str, Any]) -> str | None:
    """What the price of a pass depends on, as one string: GPU, driver, ncu; None where the manifest does not tell."""
    gpus = manifest.get("gpus_before") or []
    version = str((manifest.get("tools") or {}).get("ncu", "")).split(" ")[0]
    if not gpus or not version:
        return None
    parts = (str(gpus[0].get("name", "")), str(gpus[0].get("driver_version", "")), version)
    return " | ".join(part.strip() or "?" for part in parts)


def seconds_under_nsys(steps: Iterable[Mapping[str, Any]]) -> float | None:
    """How long the program ran under nsys, by the steps of a manifest; not how long nsys took to refuse it."""
    ran = [s for s in steps if s.get("name") == "nsys" and s.get("seconds") and s.get("status") != "refused"]
    return float(ran[-1]["seconds"]) if ran else None


def observe(
    manifest: Mapping[str, Any],
    results: Mapping[str, Sequence[Action]],
    ended_after_s: Mapping[str, float] | None = None,
) -> list[Observation]:
    """What the captures of a run took. `results`: of each capture, by name.

    `ended_after_s`: of captures that ended the program early, how much of it they ran; their price of a
    launch is known all the same. Captures that were cut off, or whose program's own time is not known, say nothing.
    """
    steps = manifest.get("steps") or []
    whole_s = seconds_under_nsys(steps)
    if whole_s is None:
        return []
    found = []
    for step in steps:
        name = str(step.get("capture") or step.get("name"))
        actions = results.get(name, ())
        if step.get("name") != "ncu" or step.get("status") != "captured" or not step.get("seconds") or not actions:
            continue
        if any(action.kind != "kernel" for action in actions):  # regions as wholes have another price
            continue
        found.append(
            Observation(
                seconds=float(step["seconds"]),
                program_s=min((ended_after_s or {}).get(name, whole_s), whole_s),
                launches=len(actions),
                passes=sum(action.passes or 1 for action in actions),
                time_only=take_time_only(metric for action in actions for metric in action.metrics),
            )
        )
    return found


def learn(
    manifest: Mapping[str, Any], results: Mapping[str, Sequence[Action]], captures: Iterable[PlannedCapture]
) -> None:
    """Remember what the captures of a run took, also of one that ended as soon as its samples were in.

    `captures`: as they were planned; one that was replaced by its alternatives has no results of its own.
    """
    machine = machine_of(manifest)
    if machine is not None:
        early = {capture.name: capture.program_s for capture in captures if capture.program_s is not None}
        remember(costs_file(), machine, observe(manifest, results, early))


# -- the user's cache ------------------------------------------------------------------------------


def costs_file() -> Path:
    """Where this user's costs are kept."""
    return cache_folder() / _FILE


def load_observations(file: Path) -> tuple[dict[str, list[Observation]], list[Diagnosis]]:
    """All that is remembered, by machine. A file that cannot be used is passed over with a word."""
    try:
        raw = read_json(file)
        if raw["format"] != _FORMAT:
            raise ValueError(f"its format is {raw['format']!r}")
        found = {str(key): [_observation(row) for row in rows] for key, rows in raw["machines"].items()}
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return {}, [diagnose("COSTS_UNREADABLE", file=file, why=type(error).__name__)]
    return found, []


def known_costs(file: Path, machine: str | None) -> tuple[Costs, list[Diagnosis]]:
    """Costs for a machine: learned where it has run before."""
    found, diagnoses = load_observations(file)
    return learned(found.get(machine or "", [])), diagnoses


def remember(file: Path, machine: str, observations: Sequence[Observation]) -> list[Diagnosis]:
    """Add observations of a machine. That it cannot be written loses a forecast, not a run."""
    if not observations:
        return []
    found, diagnoses = load_observations(file)
    found[machine] = [*found.get(machine, []), *observations][-_data()["learning"]["runs_kept"] :]
    content = {"format": _FORMAT, "machines": {k: [attrs.asdict(o) for o in rows] for k, rows in found.items()}}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        diagnoses.append(diagnose("COSTS_NOT_KEPT", file=file, why=error.strerror or error))
    return diagnoses


def _observation(row: Mapping[str, Any]) -> Observation:
    made = Observation(
        seconds=float(row["seconds"]),
        program_s=float(row["program_s"]),
        launches=int(row["launches"]),
        passes=int(row["passes"]),
        time_only=row["time_only"] is True,
    )
    counts = (made.launches, made.passes)
    if not (math.isfinite(made.seconds) and math.isfinite(made.program_s)) or not all(0 <= n < 2**53 for n in counts):
        raise ValueError("a run with impossible numbers")
    return made
