"""One region evaluated: its work and time against the GPU, verdicts with their evidence, and what could be won."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from attrs import Factory, define, evolve

from llm_perf_opt.analysis.code_lines import LaunchedFrom
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.analysis.rules.all_rules import fix_words
from llm_perf_opt.analysis.verdicts import times
from llm_perf_opt.analysis.verdicts.breakdown import rule_summaries, signature_records, time_by_bound, time_by_family
from llm_perf_opt.analysis.verdicts.by_line import kernel_sources, line_records, places_of_kernels, with_lines
from llm_perf_opt.analysis.verdicts.communication_costs import Communication, OddCollective, RankWaiting, UnevenStages
from llm_perf_opt.analysis.verdicts.counted_work import Amounts
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated, could_be_a_graph, from_graphs
from llm_perf_opt.analysis.verdicts.facts import fusion_facts, kernel_facts, made_by_torch, rate_facts, time_facts
from llm_perf_opt.analysis.verdicts.free import Free
from llm_perf_opt.analysis.verdicts.idle_causes import (
    IdlePart,
    by_engine,
    idle_parts,
    undisturbed,
    with_cause,
    within_the_gpu,
)
from llm_perf_opt.analysis.verdicts.kernel_limits import KernelLimits
from llm_perf_opt.analysis.verdicts.launched import Launched
from llm_perf_opt.analysis.verdicts.launches import Launches, at_pace
from llm_perf_opt.analysis.verdicts.opportunities import opportunities
from llm_perf_opt.analysis.verdicts.roofs import Peaks, Roofed, RoofTable, against_roofs, bounds, is_complete
from llm_perf_opt.analysis.verdicts.rules import UNKNOWN, CounterQuality, Facts, cannot_tell, evaluate, verdict_rules
from llm_perf_opt.analysis.verdicts.utilisation import utilisations
from llm_perf_opt.analysis.verdicts.work import Formula, region_work
from llm_perf_opt.metrics.catalogue import DRAM_ROLES
from llm_perf_opt.metrics.families import MEMCPY, MULTIPLYING, OTHER
from llm_perf_opt.metrics.groups import MetricGroups, groups_for
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds, shown
from llm_perf_opt.regions.code import Place
from llm_perf_opt.regions.idle import GpuSide, IdleTime
from llm_perf_opt.regions.labels import counted as count_of
from llm_perf_opt.regions.model import (
    FamilyTime,
    NCUProfileRegion,
    RegionPerformance,
    RegionWork,
    SpeedOfLight,
    TimeSplit,
    Utilisation,
    Verdict,
)
from llm_perf_opt.regions.timing import Steps, Timing

WORKLOAD_DOMAIN = "LLM"  # the built-in workload marks its stages there
_TURNS = 0.75  # of the work that several GPUs could do at once, up to which they do not work together
_UNEVEN = 0.6  # of the work of the busiest GPU, up to which another one has too little
_GPUS_NAMED = 8
_FEWEST_LAUNCHES = 3  # of a whole recording, below which nothing about the program is certain
_UNCOUNTED = 0.02  # part of the kernel time above which uncounted matrix products are mentioned


@define(eq=False)
class SteadyRegion:
    """A region as it is once the program is warm."""

    region: NCUProfileRegion
    launches: Launches | None  # None where there are no counters
    inside: int  # instances that steady regions around it hold, its own warm-up among them


class WaitingFacts(Protocol):
    """What a timeline says about the waiting of a region, by its key (`analysis.waiting`)."""

    def idle(self, key: str, *, by_gpu: bool = False) -> IdleTime | None: ...
    def launched(self, key: str) -> Launched | None: ...
    def gpu_side(self, key: str) -> GpuSide | None: ...
    def exposed_copies(self, key: str) -> int: ...
    def copied(self, key: str) -> Mapping[Place, float]: ...
    @property
    def torch(self) -> bool: ...
    @property
    def gpu_times(self) -> Mapping[int, int]: ...


class CodeFacts(Protocol):
    """Which lines launch the kernels of a region, by its key (`analysis.code_lines`)."""

    @property
    def source(self) -> str: ...
    def launches(self, key: str) -> list[LaunchedFrom]: ...
    def callers(self, key: str) -> dict[Place, Place]: ...


@define(eq=False)
class Inputs:
    """What verdicts need that is not in the report."""

    options: ReportOptions
    gpu_facts: dict[int, dict[str, Any]]
    good: set[str]  # counters that may be used
    odd: list[str]  # counters whose unit is not what it should be
    has_counters: bool
    launches_of: Callable[[str, NCUProfileRegion], Launches | None] | None  # by scope; None where there are no counters
    steady: Mapping[str, Mapping[str, SteadyRegion]]  # by scope and key; a region that is not there has no warm-up
    # By scope and key: nanoseconds of a steady instance without a profiler, where that was measured.
    undisturbed: Mapping[str, Mapping[str, float]] = Factory(dict)
    timed_on_gpu: Collection[str] = ()  # keys of those that the GPU's clock timed
    waiting: Mapping[str, WaitingFacts] = Factory(dict)  # by scope; none where nothing is known of it
    code: Mapping[str, CodeFacts] = Factory(dict)  # by scope: which lines launch; none where nothing is known of it
    slowest: Mapping[str, str] = Factory(dict)  # of ranks together: the scope of the rank that takes longest, by key
    # By scope and key, where there are several ranks: how long each waits for those that come later.
    rank_waiting: Mapping[str, Mapping[str, RankWaiting]] = Factory(dict)
    uneven_stages: UnevenStages | None = None  # of a pipeline, or of ranks with the same work
    odd_collectives: Mapping[str, OddCollective] = Factory(dict)  # by key; only where there is one rank
    clock: tuple[float, str] | None = None  # of a GPU that is held down: against its highest, and in words


@define(eq=False)
class Evaluator:
    """What all regions of a scope have in common."""

    gpu: GpuHardware | None  # the one GPU model of the scope; None where there are several, or none
    gpus: int  # GPUs one process uses side by side
    # By identity of the list of kinds, then by device; -1 for launches whose device is not known.
    tables: dict[int, dict[int, RoofTable]]
    inputs: Inputs
    scope: str = ""
    waiting: WaitingFacts | None = None  # None where nothing is known of this scope
    code: CodeFacts | None = None  # the same
    phases: Mapping[str, Timing] = Factory(dict)  # of a server: its kinds of steps by name
    launches_known: bool = True  # most kernels have a launching call: which region they belong to can be told

    def performance(
        self,
        region: NCUProfileRegion,
        launches: Launches,
        steps: Sequence[NCUProfileRegion],
        signatures: int,
        rank_waiting: RankWaiting | None = None,
        told: Steps | None = None,
    ) -> RegionPerformance:
        """`steps`: the regions inside this one that make tokens. `signatures`: how many to list.

        `rank_waiting`: where there are ranks. `told`: what the names of the instances say of each, of a server's steps.
        """
        measured = self._measured(region)
        alone = measured or self._alone(region)
        pace = times.gpu_pace(region, measured) if measured and region.key in self.inputs.timed_on_gpu else 1.0
        launches = launches if pace == 1.0 else evolve(launches, time_ns=at_pace(launches.time_ns, pace))
        split, side = self._split(region, alone, pace, measured=measured is not None)
        if split.exposed_collectives is not None:
            split.exposed_collectives = split.exposed_collectives * (1 / self.gpus)  # they wait side by side
        idle = self._idle(region, split)
        if idle is not None and region.is_whole_recording:
            split = times.once_warm(split, idle)
        graphable = could_be_a_graph(region, split)
        lacks = launches.share_without_tensor_work > _UNCOUNTED
        work, amounts = region_work(region, self.inputs.good, self._formula(region), lacks_tensor_work=lacks)
        roofed = against_roofs(launches, self.tables[id(launches.kinds)])
        bound = bounds(roofed)
        by_bound, limits = time_by_bound(launches, bound), KernelLimits.of(roofed, bound)
        families = time_by_family(region, roofed)
        used = self._utilisation(split, amounts, families)
        light = times.speed_of_light(split, roofed)
        self._say_what_is_missing(work, roofed, region)
        facts = Facts()
        kernel_facts(facts, roofed, by_bound)
        limits.add_facts(facts)
        stages = self.inputs.uneven_stages
        uneven = stages if stages is not None and stages.region == region.key else None
        odd = self.inputs.odd_collectives.get(region.key)
        communication = Communication.of(region, split, rank_waiting, uneven, odd)
        communication.add_facts(facts, times.now(split))
        time_facts(facts, region, split, families, launches)
        fusion_facts(facts, region, launches)
        rate_facts(facts, split, work, used)
        facts.numbers["could_use_fp8"] = self._could_use_fp8(work)
        capability = re.match(r"\d{1,3}(?=\.|$)", self.gpu.compute_capability) if self.gpu else None
        facts.numbers["compute_capability"] = int(capability[0]) if capability else None  # the major number
        if self.inputs.clock is not None:
            facts.numbers["clock_share"], facts.words["clock_words"] = self.inputs.clock
        facts.words["gpu"] = self.gpu.name if self.gpu and self.gpu.name else "the GPU"
        sampled = any(kind.amounts is not None and kind.family != MEMCPY for kind, _ in launches.timed_kinds)
        facts.words["counters_command"] = self.command(region, all_types=sampled)
        gpu_verdict = self._kernel_verdict(region, facts, roofed, work)
        if split.launches or self.launches_known or region.time_source != "timeline":
            verdict = _region_verdict(region, split, facts, gpu_verdict)
        else:
            verdict = cannot_tell("launches", facts)
        torch = self.waiting.torch if self.waiting is not None else bool(self.inputs.waiting) or made_by_torch(launches)
        action = partial(_action, torch)
        if idle is not None and verdict.bound in ("launch", "host") and split.launches:
            verdict = with_cause(verdict, idle, facts, graphable, from_graphs(region), action)
        verdict = communication.doubted(_with_doubt(verdict, split), action)
        if 0 < split.launches < _FEWEST_LAUNCHES and verdict.bound != UNKNOWN and region.is_whole_recording:
            reason = f"the recording holds no more than {count_of(split.launches, 'launch')}"
            verdict = evolve(verdict, confidence="low", confidence_reasons=[*verdict.confidence_reasons, reason])
        if side is not None:
            verdict = evolve(verdict, text=f"{_steps(side)} {verdict.text}")
        if self.gpus > 1 and verdict.bound == "gpu":
            verdict = _with_turns(verdict, split, self.gpus, self.waiting.gpu_times if self.waiting else {})
        kernel_time = launches.kernel_time
        unclassified = sum(f.time.value for f in families if f.family == OTHER)
        listed, existing = signature_records(roofed, signatures) if signatures else ([], 0)
        sources = self.code.launches(region.key) if self.code is not None else []
        callers = self.code.callers(region.key) if self.code is not None else {}
        lines, lines_known = line_records(sources, roofed, idle.lines if idle is not None else [], callers)
        found = []
        if light is not None:
            launched = self.waiting.launched(region.key) if self.waiting is not None else None
            if launched is not None and pace != 1.0:
                launched = evolve(launched, time_ns=at_pace(launched.time_ns, pace))
            launched = launched or Launched.of_sums(launches, places_of_kernels(sources))
            free = Free.all_of(launched, _waiting(region, light, split, verdict, graphable, idle))
            known = Evaluated(
                *(region, split, light, families, limits, communication, verdict, facts, launched, free, self.gpu),
                torch=torch,
                steps=told,
                phases=self.phases,
                copied=self.waiting.copied(region.key) if self.waiting is not None and _copies(split) else {},
            )
            found = opportunities(known)
        counted = times.token_count(region, steps, told) if region.time_source == "timeline" else None
        return RegionPerformance(
            work=work,
            time=split,
            verdict=verdict,
            gpu_verdict=gpu_verdict,
            utilisation=used,
            intensity=work.flops / work.dram if work.flops and work.dram and work.dram.value else None,
            ridge=self._ridge(amounts),
            bound_time=by_bound,
            families=families,
            unclassified_share=unclassified / kernel_time if kernel_time else None,
            speed_of_light=light,
            tokens=times.token_rate(counted, light, alone or times.now(split) or split.wall),
            opportunities=found,
            signatures=with_lines(listed, sources),
            signatures_omitted=existing - len(listed),
            ncu_rules=rule_summaries(region.rules),
            idle=idle,
            gpu_side=side,
            lines=lines,
            sources=kernel_sources(sources, self.inputs.options.top),
            lines_known=lines_known,
            lines_are_functions=self.code is not None and self.code.source == "functions",
        )

    def _split(
        self, region: NCUProfileRegion, alone: Quantity | None, pace: float, *, measured: bool
    ) -> tuple[TimeSplit, GpuSide | None]:
        """The time of a region; from the GPU's side where its ranges end before their work does."""
        split = times.time_split(region, alone, measured=measured, pace=pace)
        if self.waiting is None:
            return split, None
        side = self.waiting.gpu_side(region.key) if times.returns_early(split) else None
        if side is not None:
            split = times.from_gpu_side(split, side)
        if _copies(split):
            split.exposed_copies = nanoseconds(self.waiting.exposed_copies(region.key) * pace)
        return split, side

    def _idle(self, region: NCUProfileRegion, split: TimeSplit) -> IdleTime | None:
        if self.waiting is None or split.idle is None or split.wall is None or not split.wall.value:
            return None
        if (split.idle / split.wall).of("ratio") < verdict_rules().thresholds["least_opportunity"]:
            return None
        found = self.waiting.idle(region.key, by_gpu=split.basis == "gpu")
        if found is None:
            return None
        found = by_engine(found, region.name) if self.phases else found
        memory = region.inclusive.memory
        if memory.device_count and not memory.host_count:
            found = within_the_gpu(found)
        # Of a region that holds warm-up, gaps of that are no idle time of its steady part.
        same = split.profiled_wall is None and found.total_ns <= split.idle.of("ns")
        return found if same else undisturbed(found, split.idle.of("ns"))

    def _formula(self, region: NCUProfileRegion) -> Formula:
        """FLOPs by formula. A stage that repeats may be one region around its repeats, or one region for each."""
        formula = self.inputs.options.formula
        found = formula.get(region.key) or formula.get(region.name)
        if not found:
            return Formula()
        repeats, instances = int(found.get("repeats", 1)), region.instances or 1
        runs = instances if repeats > 1 and instances >= repeats else repeats * instances
        names = ("flops", "counter", "tensor_cores")
        return Formula(*(Quantity(found[name] * runs, "FLOP") if name in found else None for name in names))

    def _measured(self, region: NCUProfileRegion) -> Quantity | None:
        """What all instances of a region take without a profiler, as timed from inside the program."""
        each = self.inputs.undisturbed.get(self.scope, {}).get(region.key)
        known = each is not None and region.time_source == "timeline" and region.instances
        return Quantity(each * region.instances, "ns") if known and each and region.instances else None

    def _alone(self, region: NCUProfileRegion) -> Quantity | None:
        """The same by stage 1 of the built-in workload, of runs that have no file of every instance."""
        one = self.inputs.options.alone.get("/".join(region.path)) if region.domain == WORKLOAD_DOMAIN else None
        if one is None or region.time_source != "timeline" or not region.instances:
            return None
        return Quantity(one * 1e9 * region.instances, "ns")

    def _utilisation(self, split: TimeSplit, amounts: Amounts, families: Sequence[FamilyTime]) -> list[Utilisation]:
        if self.gpu is None:
            return []
        if amounts.total("tensor_") is None and any(f.family in MULTIPLYING for f in families):
            # FLOPs of the CUDA cores alone would make matrix products look idle.
            amounts = evolve(amounts, flops={})
        wall = None if times.returns_early(split) else split.wall
        bases = {"wall": wall, "busy": times.gpu_time(split)}
        calibrated = Peaks.calibrated(self.gpu)
        peaks = [Peaks.printed(self.gpu), *([calibrated] if calibrated else [])]
        return utilisations(amounts, {k: v for k, v in bases.items() if v is not None}, peaks, self.gpus)

    def _ridge(self, amounts: Amounts) -> Quantity | None:
        """The bend of the roof for the data type that does most of the work."""
        if self.gpu is None or self.gpu.bandwidth is None:
            return None
        counted = {k: v for k, v in amounts.flops.items() if k in self.gpu.peaks and v}
        kind = max(counted, key=lambda k: counted[k]) if counted else "tensor_bf16"
        peak = self.gpu.peaks.get(kind)
        return None if peak is None else peak / self.gpu.bandwidth

    def _could_use_fp8(self, work: RegionWork) -> float:
        wide = sum(work.tensor[k].value for k in ("tensor_bf16", "tensor_fp16") if k in work.tensor)
        return float(bool(self.gpu and "tensor_fp8" in self.gpu.peaks and wide))

    def _say_what_is_missing(self, work: RegionWork, roofed: Roofed, region: NCUProfileRegion) -> None:
        kernel_time = roofed.launches.kernel_time
        if not self.inputs.has_counters or not kernel_time:
            return
        uncounted = sum(
            time
            for kind, time in roofed.launches.timed_kinds
            if kind.amounts is not None and kind.amounts.flops and not (is_complete(kind) or kind.lacks_tensor_work)
        )
        without = roofed.launches.share_without_tensor_work
        if without > _UNCOUNTED and (work.tensor or work.cuda_core):
            work.missing.append(
                "FLOPs of the tensor cores: their operations were not counted in kernels that take "
                f"{100 * without:.0f} % of the kernel time. Run: {self.command(region)}"
            )
        if uncounted > _UNCOUNTED * kernel_time:
            work.missing.append(
                f"FLOPs of matrix products and attention that take {100 * (uncounted / kernel_time):.0f} % of the kernel time: they "
                f"ran in a data type, or on CUDA cores, that was not counted. Run: {self.command(region, all_types=True)}"
            )
        if work.tensor and not work.cuda_core:
            work.missing.append("FLOPs of the CUDA cores: their counters (SASS instructions) were not collected.")
        if not work.tensor and not work.cuda_core:
            work.missing.append(f"FLOPs: no counter of operations was collected. Run: {self.command(region)}")
        if work.dram is None and any(counter.role in DRAM_ROLES for counter in self._groups().metrics):
            work.missing.append(f"DRAM traffic: it was not counted. Run: {self.command(region)}")
        elif work.dram is None:
            work.missing.append("DRAM traffic: this GPU shares its memory with the CPU and has no counter of it.")

    def command(self, region: NCUProfileRegion, all_types: bool = False) -> str:
        """The command line that would collect the counters."""
        commands = verdict_rules().commands
        name = f"{region.domain}@{'/'.join(region.path)}" if region.domain else "/".join(region.path)
        simple = re.fullmatch(r"[\w@/.+ ][\w@/.+ -]*", name) and not any(
            "@" in part or "/" in part for part in region.path
        )
        # Annotations of the PyTorch profiler are no ranges that ncu could be pointed at.
        include = f" --include {shlex.quote(name)}" if simple and region.nvtx_include else ""
        if not all_types:
            return str(commands["profile"]).format(include=include)
        metrics = ",".join(counter.name for counter in self._groups().all_tensor_work())
        return str(commands["all_types"]).format(include=include, metrics=metrics)

    def _groups(self) -> MetricGroups:
        """What the GPU can count; where it is not known, what is asked of such GPUs."""
        return groups_for(self.gpu.compute_capability if self.gpu else None)[0]

    def _kernel_verdict(self, region: NCUProfileRegion, facts: Facts, roofed: Roofed, work: RegionWork) -> Verdict:
        if not roofed.launches.kernel_time:
            if region.inclusive.memory.count:
                return cannot_tell("host_copies", facts)
            untimed = any(kernel.total_ms is None for kernel in region.kernels)
            return cannot_tell("durations" if untimed else "kernel_times" if region.inclusive.metrics else "gpu", facts)
        known = roofed.analysed_share
        if known < 0.5:
            no_peaks = self.gpu is None or self.gpu.basis == "unknown"
            return cannot_tell("peaks" if no_peaks and self.inputs.has_counters else "known_share", facts)
        reasons = ["times are ncu's, not of the undisturbed program"] if region.time_source == "ncu" else []
        quality = CounterQuality(known, work.spread, reasons)
        return evaluate("kernels", facts, quality) or cannot_tell("known_share", facts)


def _copies(split: TimeSplit) -> bool:
    """Between host and device."""
    return split.host_copies is not None and bool(split.host_copies.value)


def _action(torch: bool, rule: str) -> str:
    """What to do about a rule."""
    return fix_words()[rule].action_in(torch)


def _waiting(
    region: NCUProfileRegion,
    light: SpeedOfLight,
    split: TimeSplit,
    verdict: Verdict,
    graphable: bool,
    idle: IdleTime | None,
) -> list[IdlePart]:
    """The waiting of a region by what the host did meanwhile, where the recording shows it."""
    waiting = light.waiting_ns
    if not waiting or not split.launches:
        return []
    if idle is not None:
        return idle_parts(undisturbed(idle, waiting), graphable, graphs=from_graphs(region))
    rule = "host.unknown" if verdict.bound == "host" else "host.graphs" if from_graphs(region) else "launch.graph"
    each = "–" if split.gap_per_launch is None else shown(split.gap_per_launch)
    return [IdlePart(rule, waiting, f"{count_of(split.launches, 'launch')}, {each} each")]


def _with_turns(found: Verdict, split: TimeSplit, gpus: int, times_ns: Mapping[int, int]) -> Verdict:
    """Of several GPUs of a process, which hardly ever work together: the sum of their work is no more than its union.

    `times_ns`: how long each ran kernels, where that is known.
    """
    if split.kernels is None or not split.busy or not split.wall or split.kernels > split.busy * _TURNS * gpus:
        return found
    text = f"{found.text} Hardly more than one of the {gpus} GPUs works at a time"
    wall = split.wall.of("ns")
    order = sorted(times_ns, key=lambda gpu: times_ns[gpu])
    if len(order) != gpus:
        each = (split.kernels / split.wall).of("ratio") / gpus
        return evolve(found, text=f"{text}: each for {each:.0%} of the time on average.")
    parts = ", ".join(f"GPU {gpu} for {min(times_ns[gpu] / wall, 1.0):.0%}" for gpu in sorted(order)[:_GPUS_NAMED])
    text = f"{text}: {parts} of the time."
    least, most = order[0], order[-1]
    advice = "Let the GPUs work at the same time: several batches on their way, or a part of each layer on every GPU."
    if times_ns[least] <= _UNEVEN * times_ns[most]:
        advice = f"Give the GPUs the same work: GPU {least} waits while GPU {most} computes."
    return evolve(found, text=text, advice=advice, next_step="")


def _steps(side: GpuSide) -> str:
    """How the instances look from the GPU's side."""
    took, idle, between = (shown(nanoseconds(t)) for t in (side.time_ns, side.idle_ns, side.idle_between_ns))
    each = f" in {side.instances:,} steps, {side.each}" if side.step_ns else ""
    of_that = f", {between} of that between steps" if side.step_ns else ""
    return (
        f"The host runs ahead: the ranges end before their GPU work does. On the GPU it takes {took}{each}, "
        f"idle for {idle}{of_that}."
    )


def _region_verdict(region: NCUProfileRegion, split: TimeSplit, facts: Facts, kernels: Verdict) -> Verdict:
    """The verdict on the wall time; where the GPU is the limit, that of its kernels."""
    if region.time_source == "ncu":
        waiting = "" if kernels.bound == UNKNOWN else " Whether the GPU waits is not known: there is no timeline."
        return evolve(kernels, text=kernels.text + waiting)
    if split.wall is None or split.idle is None:
        no_gpu = region.time_source == "timeline" and split.busy is None
        return cannot_tell("gpu" if no_gpu else "idle_share", facts)
    if not split.launches:
        text = f"Nothing was launched on the GPU in {shown(split.wall)}."
        return Verdict(bound="host", title="no GPU work", text=text, confidence="high")
    if times.returns_early(split):
        before = (
            f"The range returns {shown(split.after_return)} before its GPU work is done, so its wall time says nothing; "
            "look at the range around it, or synchronise. "
        )
        limit = evaluate("region", facts) or kernels
        return evolve(limit, text=before + limit.text)
    found = evaluate("region", facts)
    if found is not None:
        return found
    if kernels.bound == UNKNOWN and (found := evaluate("gpu", facts)) is not None:
        return evolve(found, missing=kernels.missing, next_step=kernels.next_step)
    return evolve(
        kernels, text=f"The GPU works for {facts.words['working_share']} of the {facts.words['basis']}. {kernels.text}"
    )


def _with_doubt(found: Verdict, split: TimeSplit) -> Verdict:
    """Waiting that the profiler itself may have caused is not called certain."""
    if found.bound != "launch" or split.profiled_wall is not None or not split.wall or not split.idle:
        return found
    thresholds, wall, working = verdict_rules().thresholds, split.wall.of("ns"), (split.wall - split.idle).of("ns")
    added, least = (split.launches * thresholds[k] * 1e3 for k in ("profiler_us_per_launch", "host_us_per_launch"))
    alone = min(max(wall - added, least, working), wall)
    left = 1 - working / alone
    if left >= (next((e.threshold for e in found.evidence if e.fact == "idle_share"), None) or 0.0):
        return found
    reason = (
        f"a profiler adds up to {thresholds['profiler_us_per_launch']:g} µs to every launch; without it the GPU may wait for as "
        f"little as {100 * left:.0f} % of the time"
    )
    return evolve(found, confidence="low", confidence_reasons=[*found.confidence_reasons, reason])
