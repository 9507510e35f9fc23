"""The plan of the counters for a run: its timeline, the GPU's metric groups and what earlier runs cost.

Where the user chose launches, sections or a replay mode, those hold and nothing is planned (see choose.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import define

from llm_perf_opt import planning
from llm_perf_opt.analysis.traffic import moved_by_others
from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.metrics import groups_for
from llm_perf_opt.planning.by_choice import PlannedCapture, excluded, raw_expressions
from llm_perf_opt.planning.windows import Inside, Opened, gate_around, seen_inside
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import Action, Bools, Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.traffic import ROLES
from llm_perf_opt.request import ProfileRequest

# Without a budget of the user's, a further capture (a whole run of the program) is worth it where the first leaves
# more than this error, and as long as the whole stays within this time.
_GOOD_ENOUGH = 0.05
_LEAST_BUDGET_S = 90.0
_TIMES_ONE_CAPTURE = 2.5
# Share of the GPU time whose kind of launch has no sample: so little is nothing, and so much is worth another way.
_MISSED = 0.002
_MISSED_TOO_MUCH = 0.03
_MOST_OF_A_SIGNATURE = 32
# Results of one way over those of another: from where on it is cheaper, and up to where it may be dearer.
_CHEAPER, _DEARER = 0.8, 1.6


def plans(request: ProfileRequest) -> bool:
    """Is it ours to decide which launches are profiled?"""
    asked = request.counters
    given = asked.options
    return (
        asked.strategy == "auto"
        and asked.gating_nvtx
        and asked.sample == "all"
        and not request.picks_launches
        and not (given.set or given.sections)
        and given.replay_mode in (None, "kernel")
        and given.range_filter is None
        and not raw_expressions(request.report.include)
    )


def make_plan(
    file: Path, seen: NCUProfileRegionReport, request: ProfileRequest, about: Mapping[str, Any]
) -> planning.Plan | None:
    """The plan for a timeline; None where no region has kernels. `about`: the run's manifest as JSON."""
    launches = _launches(file, seen, request)
    if launches is None or not len(launches):
        return None
    groups, words = groups_for(_compute_capability(seen, about))
    costs, more_words = planning.known_costs(planning.costs_file(), planning.machine_of(about))
    asked = planning.Request(
        level=request.counters.level,
        metrics=request.counters.options.metrics,
        budget_s=request.counters.budget_s,
        program_s=_program_seconds(seen, about),
        launches=request.counters.launches,
        top_n=request.counters.top_n_kernels,
    )
    plan = planning.make_plan(launches, groups, asked, costs)
    if asked.budget_s is None and plan.captures:
        roomy = max(_LEAST_BUDGET_S, _TIMES_ONE_CAPTURE * plan.seconds)
        generous = attrs.evolve(asked, budget_s=roomy, target_error=_GOOD_ENOUGH)
        plan = attrs.evolve(planning.make_plan(launches, groups, generous, costs), budget_s=None)
    plan.diagnostics = [*words, *more_words, *plan.diagnostics]
    return plan


def forecasts(
    captures: Sequence[PlannedCapture], seen: NCUProfileRegionReport, about: Mapping[str, Any]
) -> list[planning.Forecast]:
    """What captures cost that the user chose by hand."""
    groups, _ = groups_for(_compute_capability(seen, about))
    costs, _ = planning.known_costs(planning.costs_file(), planning.machine_of(about))
    program_s = _program_seconds(seen, about)
    return [planning.forecast(c.options, c.expected, program_s, groups, costs) for c in captures]


@define
class Gated:
    """A plan whose captures are switched on and off from inside the program, as far as that can be."""

    plan: planning.Plan  # its captures are those of the plan before, or one that does for all of them
    gates: list[CaptureWindows | str]  # of each capture: its windows, or why it has none


def with_gates(
    plan: planning.Plan, file: Path, seen: NCUProfileRegionReport, request: ProfileRequest, opened: Opened
) -> Gated:
    """Windows for the captures of a plan, and the plan as it will come out with them."""
    launches = _launches(file, seen, request)
    marked = read_recording(file, launch_config=True, waymarks=True)
    if launches is None or launches.kernels is None or not isinstance(marked, Timeline):
        return Gated(plan, ["the timeline has no launches"] * len(plan.captures))
    inside = seen_inside(marked, launches.kernels, opened)
    kinds = planning.Wanted.of(launches)
    stop = not request.counters.run_to_end
    alone = _in_one(plan, launches, kinds, inside, stop=stop)
    if alone is not None:
        plan = attrs.evolve(plan, captures=[alone.capture])
    found: list[CaptureWindows | str] = []
    captures = []
    taken = np.zeros(len(launches), dtype=np.bool_)
    for capture in plan.captures:
        way = alone or _first_launches(capture, launches, inside, stop=stop)
        if alone is None and len(plan.captures) == 1 and capture.filter.takes_all_kernels:
            way = _better(way, _every_kind(capture, launches, kinds, inside, stop=stop), kinds, plan)
        if isinstance(way, str):
            found.append(way)
            captures.append(capture)
            taken |= capture.filter.taken(launches)
        else:
            found.append(way.gate)
            captures.append(_with_launches(way, plan.costs))
            taken |= way.taken
    if not any(isinstance(gate, CaptureWindows) for gate in found):
        return Gated(plan, found)
    return Gated(_as_it_comes_out(attrs.evolve(plan, captures=captures), launches, taken), found)


def _as_it_comes_out(plan: planning.Plan, launches: planning.LaunchTable, taken: Bools) -> planning.Plan:
    """A plan with what it says of its samples, where other launches are taken than it was made for."""
    sampled = launches.counts(taken) > 0
    stands_in = planning.stood_in_for(launches, taken)
    counts = zip(launches.counts(taken).tolist(), stands_in.tolist(), strict=True)
    known = dict(zip(launches.signatures, counts, strict=True))
    signatures = [_resampled(s, *known[s.signature]) if s.signature in known else s for s in plan.signatures]
    times = launches.times()
    told = float(times[sampled | stands_in].sum() / max(int(times.sum()), 1))
    error = planning.expected_error(launches, taken)
    words = [d for d in plan.diagnostics if d.code != "KERNELS_VARY"]
    vary = next((d for d in plan.diagnostics if d.code == "KERNELS_VARY"), None)
    if vary is not None and error > _GOOD_ENOUGH:
        words.append(planning.kernels_vary(error, vary.fix))
    return attrs.evolve(plan, signatures=signatures, coverage=told, error=error, diagnostics=words)


def _in_one(
    plan: planning.Plan, launches: planning.LaunchTable, kinds: planning.Wanted, inside: Inside | str, *, stop: bool
) -> _Way | None:
    """The way of a plan's first capture, where windows let that tell as much as all of its captures."""
    first, *others = plan.captures
    if not others or not first.filter.takes_all_kernels:
        return None
    way = _every_kind(first, launches, kinds, inside, stop=stop)
    if isinstance(way, str) or not _affordable(way, plan):
        return None
    together = np.zeros(len(launches), dtype=np.bool_)
    for capture in plan.captures:
        together |= capture.filter.taken(launches)
    as_much = kinds.missed(way.taken) <= kinds.missed(together) + _MISSED
    good = planning.expected_error(launches, way.taken) <= max(_GOOD_ENOUGH, plan.error or 0.0)
    return attrs.evolve(way, capture=attrs.evolve(way.capture, name="run")) if as_much and good else None


@define(eq=False)
class _Way:
    """How to get at the launches of a capture from inside the program."""

    gate: CaptureWindows
    capture: planning.Capture
    taken: Bools


def _first_launches(
    capture: planning.Capture, launches: planning.LaunchTable, inside: Inside | str, *, stop: bool
) -> _Way | str:
    """Windows around the launches that the filter alone would take, as far as they are needed."""
    assert launches.kernels is not None
    wanted = planning.needed(launches, capture.filter.taken(launches))
    around = gate_around(inside, launches.kernels[wanted], stop=stop)
    if isinstance(around, str):
        return around
    gate, windows = around
    return _Way(gate, capture, capture.filter.taken(launches, windows[launches.kernels]))


def _every_kind(
    capture: planning.Capture,
    launches: planning.LaunchTable,
    kinds: planning.Wanted,
    inside: Inside | str,
    *,
    stop: bool,
) -> _Way | str:
    """Windows around launches of every kind, wherever they are, and as many of a signature as that takes."""
    assert launches.kernels is not None
    if isinstance(inside, str):
        return inside
    chosen = planning.cover(kinds, inside.tops[launches.kernels], early=stop)
    around = gate_around(inside, launches.kernels[chosen], stop=stop, exact=True)
    if isinstance(around, str):
        return around
    gate, windows = around
    seen = windows[launches.kernels]
    some = capture.filter
    taken = some.taken(launches, seen)
    if some.launch_count is not None:
        everything = attrs.evolve(some, launch_count=None).taken(launches, seen)
        least, short = kinds.missed(everything) + _MISSED, kinds.short(everything)
        for count in range(some.launch_count + 1, _MOST_OF_A_SIGNATURE + 1):
            if kinds.missed(taken) <= least and kinds.short(taken) <= short:
                break
            some = attrs.evolve(some, launch_count=count)
            taken = some.taken(launches, seen)
    return _Way(gate, attrs.evolve(capture, filter=some), taken)


def _better(one: _Way | str, other: _Way | str, kinds: planning.Wanted, plan: planning.Plan) -> _Way | str:
    """The way that leaves out less, or costs less for as much."""
    if isinstance(one, str) or isinstance(other, str) or not _affordable(other, plan):
        return one
    missed, less = kinds.missed(one.taken), kinds.missed(other.taken)
    price = int(other.taken.sum()) / max(int(one.taken.sum()), 1)
    if missed > _MISSED_TOO_MUCH and less < missed / 2:
        return other if price <= _DEARER else one
    return other if price < _CHEAPER and less <= missed + _MISSED else one


def _affordable(way: _Way, plan: planning.Plan) -> bool:
    return plan.budget_s is None or _with_launches(way, plan.costs).seconds <= plan.budget_s


def _with_launches(way: _Way, costs: planning.Costs) -> planning.Capture:
    """The capture of a way with the launches it takes, and what they cost."""
    launches = int(way.taken.sum())
    saved = (way.capture.launches - launches) * costs.launch_s(way.capture.passes.passes)
    return attrs.evolve(way.capture, launches=launches, seconds=max(way.capture.seconds - saved, 0.0))


def _resampled(signature: planning.PlannedSignature, planned: int, stands_in: bool) -> planning.PlannedSignature:
    reason = signature.reason
    if signature.planned and not planned:
        reason = "no window holds any of its launches"
        if stands_in:
            reason = "another stands in for it: the same kernel on a grid of nearly the same size"
    return attrs.evolve(signature, planned=planned, turns=signature.turns if planned else (), reason=reason)


def _launches(file: Path, seen: NCUProfileRegionReport, request: ProfileRequest) -> planning.LaunchTable | None:
    """The launches of a timeline in the chosen regions."""
    timeline = read_recording(file, launch_config=True)
    scope = seen.main_scope
    if scope is None or not isinstance(timeline, Timeline):
        return None
    expressions, chosen = planning.selectable_regions(scope)
    attribution = attribute(timeline, request.report.attribution)
    launches = planning.describe_launches(timeline, attribution, expressions, chosen)
    # Other levels ask for more than bytes and operations, and metrics chosen by hand for nobody knows what.
    bytes_suffice = request.counters.level in ("time", "roofline") and not request.counters.options.metrics
    launches.bytes_are_known = bytes_suffice and _all_sampled(timeline)
    return launches


def _all_sampled(timeline: Timeline) -> bool:
    """Did nsys sample all counters of all devices that were used, with nobody else on them?"""
    used = set(np.unique(timeline.kernels.device).tolist())
    whole = {device for device, traffic in timeline.traffic.items() if len(traffic.bytes) == len(ROLES)}
    return bool(used) and used <= whole and not moved_by_others(timeline)


def captures_of(plan: planning.Plan, request: ProfileRequest) -> list[PlannedCapture]:
    """The captures of a plan as ncu is asked for them."""
    found = []
    for capture in plan.captures:
        options = capture.options(request.counters.options)
        options = attrs.evolve(options, nvtx_exclude=(*options.nvtx_exclude, *excluded(request)))
        found.append(
            PlannedCapture(
                "run" if len(plan.captures) == 1 else capture.name,
                attrs.evolve(options, nvtx_include=()),
                options.nvtx_include,
                capture.launches,
                capture.seconds,
            )
        )
    return found


def learn(manifest: Mapping[str, Any], captures: Mapping[str, Sequence[Action]]) -> None:
    """Remember what the captures of a finished run took. `captures`: the results of each, by its name."""
    machine = planning.machine_of(manifest)
    steps = [s for s in manifest["steps"] if s["name"] != "ncu" or s["status"] != "captured"]
    captured = [s for s in manifest["steps"] if s["name"] == "ncu" and s["status"] == "captured"]
    results = {}
    for step, (name, actions) in zip(captured, captures.items(), strict=False):
        steps.append({**step, "name": name})
        results[name] = actions
    if machine is not None and all(action.kind == "kernel" for actions in results.values() for action in actions):
        planning.remember(planning.costs_file(), machine, planning.observe({**manifest, "steps": steps}, results))


def _compute_capability(seen: NCUProfileRegionReport, about: Mapping[str, Any]) -> str | None:
    recorded = next((gpu.compute_capability for gpu in seen.hardware if gpu.compute_capability), None)
    here = next((gpu.get("compute_cap") for gpu in about.get("gpus_before", []) if gpu.get("compute_cap")), None)
    return recorded or here


def _program_seconds(seen: NCUProfileRegionReport, about: Mapping[str, Any]) -> float:
    """How long the program runs: under nsys is near enough; of a foreign timeline, what it spans."""
    measured = planning.seconds_under_nsys(about.get("steps", []))
    span = seen.main_scope.totals.span_ns if seen.main_scope else None
    return float(measured if measured is not None else (span or 0) / 1e9)
