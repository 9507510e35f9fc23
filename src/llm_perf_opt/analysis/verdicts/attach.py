"""Evaluates the regions of a finished report: hardware, performance of the regions that matter, stages, opportunities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve

from llm_perf_opt.analysis.scopes import AGGREGATE
from llm_perf_opt.analysis.verdicts.launches import Kind, KindList, Launches, of_records, with_copies
from llm_perf_opt.analysis.verdicts.opportunities import ranked
from llm_perf_opt.analysis.verdicts.performance import Evaluator, Inputs, SteadyRegion
from llm_perf_opt.analysis.verdicts.roofs import Peaks, RoofTable
from llm_perf_opt.analysis.verdicts.stage_choice import inside, stages
from llm_perf_opt.analysis.verdicts.times import is_token_step, timing_once_warm
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.families import OTHER
from llm_perf_opt.metrics.hardware import find_hardware, parse_overrides
from llm_perf_opt.metrics.hardware.calibration import apply_calibration
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.ranking import heaviest
from llm_perf_opt.regions.timing import Timing

_DRAFT = "draft"  # as the injected code calls it
_MOST_REGIONS = 256  # evaluated in the main scope: the heaviest, each with the regions around it
_MOST_ELSEWHERE = 12  # outermost regions evaluated in each other scope
_MOST_WITH_SIGNATURES = 48  # of those, with a list of signatures
_MOST_EXPLAINED = 48  # regions of a scope whose waiting is looked into
# By identity, lists of kinds, and by GPU the roofs of those that were in them when they were last looked at.
_Tables = dict[int, tuple[list[Kind], dict[int, RoofTable]]]
_SHORT_LIST = 8  # signatures of a region deep in the tree


def attach(report: NCUProfileRegionReport, inputs: Inputs) -> NCUProfileRegionReport:
    """The report with `hardware`, `stages`, `opportunities` and the regions' `performance`."""
    report = evolve(report, hardware=_hardware(report, inputs))
    if not inputs.options.verdicts:
        return report
    main = report.main_scope
    chosen_stages = stages(main.regions) if main is not None else []
    plain = KindList()
    tables: _Tables = {}
    for scope in report.scopes:
        is_main = scope is main
        outermost = [r for r in scope.regions if r.depth == 0]
        chosen = heaviest(scope.regions, _MOST_REGIONS) if is_main else heaviest(outermost, _MOST_ELSEWHERE)
        detailed = {id(r) for r in heaviest(scope.regions, _MOST_WITH_SIGNATURES)} if is_main else set()
        if is_main:
            chosen = [*chosen, *(r for r in chosen_stages if r not in chosen)]
        steady = inputs.steady.get(scope.scope, {})
        homes = {region.key: _home(report, scope, region, inputs) for region in chosen}
        evaluated = [(region, _steady(homes[region.key], scope, region, inputs)) for region in chosen]
        rows = [(region, warm, _launches(homes[region.key], warm, inputs, plain)) for region, warm in evaluated]
        evaluator = _evaluator(report, scope, inputs, [launches for _, _, launches in rows], tables)
        # Guesses of a smaller model: as many tokens as it guessed right.
        drafted = frozenset(region.parent for region in scope.regions if region.name == _DRAFT)
        makes_one = (region for region in scope.regions if is_token_step(region) and region.key not in drafted)
        held = (_as_held(region, steady) for region in makes_one)
        steps = inside(scope.regions, (region for region in held if region.instances))
        explained = {id(r) for r in (*heaviest(chosen, _MOST_EXPLAINED), *(chosen_stages if is_main else ()))}
        for region, warm, launches in rows:
            home = homes[region.key].scope
            evaluator.waiting = inputs.waiting.get(home) if id(region) in explained else None
            evaluator.code = inputs.code.get(home) if id(region) in explained else None
            count = inputs.options.top if region.depth <= 1 else _SHORT_LIST
            signatures = count if id(region) in detailed and inputs.has_counters else 0
            waiting = inputs.rank_waiting.get(home, {}).get(region.key)
            told = region.timing.steps if region.timing is not None else None
            found = evaluator.performance(warm, launches, steps.get(region.key, []), signatures, waiting, told)
            uncounted = told is None and region.key in drafted
            found = evolve(found, instances=warm.instances, tokens=None if uncounted else found.tokens)
            region.performance = found if warm is region else evolve(found, steady=warm.inclusive)
            if region.is_whole_recording and region.timing is not None:
                region.timing = timing_once_warm(region.timing, found.time.wall)
    return evolve(
        report,
        stages=[region.key for region in chosen_stages],
        opportunities=ranked(
            [o for region in chosen_stages if region.performance for o in region.performance.opportunities]
        ),
        unclassified_share=_unclassified(main) if main is not None else None,
        diagnostics=[*report.diagnostics, *_diagnoses(report, inputs)],
    )


def _home(report: NCUProfileRegionReport, scope: Scope, region: NCUProfileRegion, inputs: Inputs) -> Scope:
    """Whose region is evaluated: of several ranks together, that of the rank that takes longest."""
    name = inputs.slowest.get(region.key) if scope.scope == AGGREGATE else None
    return scope if name is None else report.scope(name)


def _steady(home: Scope, scope: Scope, region: NCUProfileRegion, inputs: Inputs) -> NCUProfileRegion:
    """The region without its warm-up, at home."""
    steady = inputs.steady.get(home.scope, {})
    if region.key in steady:
        return steady[region.key].region
    return region if home is scope else next(r for r in home.regions if r.key == region.key)


def _as_held(region: NCUProfileRegion, steady: Mapping[str, SteadyRegion]) -> NCUProfileRegion:
    """A region with the number of instances that steady regions around it hold."""
    return evolve(region, instances=steady[region.key].inside) if region.key in steady else region


def _launches(scope: Scope, region: NCUProfileRegion, inputs: Inputs, plain: KindList) -> Launches:
    warm = inputs.steady.get(scope.scope, {}).get(region.key)
    if warm is not None and warm.region is region:
        found = warm.launches
    else:
        found = inputs.launches_of(scope.scope, region) if inputs.launches_of else None
    kernels = of_records(region.kernels, plain) if found is None else found
    return with_copies(kernels, region.inclusive.memory, region.device)


def _evaluator(
    report: NCUProfileRegionReport, scope: Scope, inputs: Inputs, launches: list[Launches], known: _Tables
) -> Evaluator:
    """`known`: the tables of the scopes before, whose kinds are those of this one and fewer."""
    hardware = {g.device: g for g in report.hardware if g.device is not None}
    used = {k.device for k in scope.kernels if k.device is not None} or set(hardware)
    gpus = [hardware[d] for d in sorted(used) if d in hardware]
    one = gpus[0] if gpus and all(g.peaks == gpus[0].peaks and g.bandwidth == gpus[0].bandwidth for g in gpus) else None
    if one is not None:
        hardware[-1] = one
    # Regions without kernels have a list of kinds of their own: a table of another list would evaluate them by
    # kernels they never launched.
    lists = {id(x.kinds): x.kinds for x in launches}
    tables: dict[int, dict[int, RoofTable]] = {}
    for number, kinds in lists.items():
        _, earlier = known.setdefault(number, (kinds, {}))
        for gpu in hardware.values():
            earlier[id(gpu)] = RoofTable.of(kinds, Peaks.printed(gpu), earlier.get(id(gpu)))
        tables[number] = {device: earlier[id(gpu)] for device, gpu in hardware.items()}
    totals = scope.totals
    return Evaluator(
        *(one, _side_by_side(report, scope), tables, inputs, scope.scope),
        phases=_phases(scope),
        launches_known=2 * totals.unknown_launch_count <= totals.kernel_count,
    )


def _phases(scope: Scope) -> dict[str, Timing]:
    """Of a server: the times of its steps by phase; where a phase has several regions, those of most instances."""
    found: dict[str, Timing] = {}
    for timing in sorted((r.timing for r in scope.regions if r.timing is not None), key=lambda one: one.instances):
        if timing.steps is not None:
            found[timing.steps.phase] = timing
    return found


def _side_by_side(report: NCUProfileRegionReport, scope: Scope) -> int:
    """GPUs that one process uses at a time: instances of one process are added up, those of several GPUs are not."""
    if scope.scope.startswith("device:"):
        return 1
    processes = [s for s in report.scopes if s.scope.startswith("process:")]
    chosen = [scope] if scope.scope.startswith("process:") else processes
    return max((len({k.device for k in s.kernels if k.device is not None}) for s in chosen), default=1) or 1


def _hardware(report: NCUProfileRegionReport, inputs: Inputs) -> list[GpuHardware]:
    names = {int(d): str(n) for d, n in report.environment.get("gpus", {}).items()}
    devices = {k.device for s in report.scopes for k in s.kernels if k.device is not None}
    overrides = parse_overrides(inputs.options.hardware)
    found = []
    for device in sorted({*names, *devices, *inputs.gpu_facts}):
        if devices and device not in devices:
            continue  # of the machine, but not used
        facts = {"name": names.get(device, ""), **inputs.gpu_facts.get(device, {})}
        gpu = find_hardware(device, facts, overrides)
        found.append(apply_calibration(gpu, facts, inputs.options.calibrations))
    return found


def _unclassified(scope: Scope) -> float | None:
    timed = [(k.total_ms, k.family) for k in scope.kernels if k.total_ms is not None]
    whole = sum(time for time, _ in timed)
    return sum(time for time, family in timed if family == OTHER) / whole if whole else None


def _diagnoses(report: NCUProfileRegionReport, inputs: Inputs) -> Iterable[Diagnosis]:
    unknown = {gpu.name: gpu for gpu in reversed(report.hardware) if gpu.basis == "unknown"}
    for gpu in unknown.values():
        if any(scope.kernels for scope in report.scopes):
            name = gpu.name or f"device {gpu.device}"
            yield diagnose("HARDWARE_UNKNOWN", gpu=name, notes=" ".join(gpu.notes))
    if inputs.odd:
        yield diagnose("COUNTER_UNITS", counters=", ".join(inputs.odd[:5]))
    if report.scopes and not inputs.has_counters and any(r.inclusive.kernel_count for r in report.scopes[0].regions):
        sampled = any(r.inclusive.metrics for r in report.scopes[0].regions)
        yield diagnose("NO_COUNTERS.bytes" if sampled else "NO_COUNTERS")
