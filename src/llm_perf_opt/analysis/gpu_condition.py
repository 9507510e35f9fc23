"""How the GPUs were while the program was measured, and what of that makes its times differ from what they could be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.analysis.energy import Energy
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.gpu_samples import SLOWED, GpuSamples
from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.names import visible

_IDLE, _POWER_LIMIT = 0x1, 0x4
_OFTEN = 0.05  # part of the samples in which a GPU was slowed down
_SPREAD = 0.03  # between the medians of runs: more is said, and why
_CLOCKS = 0.01  # between the clocks of runs: less explains nothing
_HEAVY = 0.05  # part of the time of all outermost regions: less is not worth a word
_BUSY = 1.0  # percent of the GPU's time: another process that uses less only holds memory


def gpu_facts(timeline: Timeline, energy: Energy | None) -> dict[str, Any]:
    """For the report: each GPU in each run while ranges were open, and where the energy went."""
    if not timeline.gpus:
        return {}
    facts: dict[str, Any] = {"gpu_use": [_summary(timeline, gpu) for gpu in timeline.gpus]}
    if energy is not None:
        parts = {"regions_j": energy.total - energy.no_region, "no_region_j": energy.no_region}
        facts["energy"] = {"counter_j": energy.total, **parts}
    return facts


def gpu_diagnoses(timeline: Timeline, regions: list[NCUProfileRegion]) -> list[Diagnosis]:
    """What the reader must know of the GPUs, and why runs differ."""
    return [*_slowed(timeline), *_shared(timeline), *_runs_differ(timeline, regions)]


def _during(timeline: Timeline, gpu: GpuSamples) -> slice:
    """The samples of a GPU while ranges of its run were open."""
    runs = np.array([process.run for process in timeline.processes], dtype=np.int64)
    mine = runs[timeline.ranges.process] == gpu.run
    if not mine.any():
        return slice(0, 0)
    return gpu.within(int(timeline.ranges.start[mine].min()), int(timeline.ranges.end[mine].max()))


def _summary(timeline: Timeline, gpu: GpuSamples) -> dict[str, Any]:
    during = _during(timeline, gpu)
    reasons = gpu.reasons[during]
    return {
        "run": gpu.run + 1,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "samples": len(reasons),
        "sm_mhz": _three(gpu.sm_mhz[during]),
        "max_sm_mhz": gpu.max_sm_mhz if gpu.max_sm_mhz >= 0 else None,
        "memory_mhz": _three(gpu.memory_mhz[during]),
        "power_w": _three(gpu.power_mw[during] / 1e3),
        "power_limit_w": gpu.power_limit_mw / 1e3 if gpu.power_limit_mw >= 0 else None,
        "temperature_c": _three(gpu.temperature[during]),
        "memory_used_bytes": _three(gpu.memory_used[during]),
        "slowed": {why: share for bit, why in SLOWED.items() if (share := _share(reasons, bit)) > 0},
        "others": gpu.others,
    }


def _three(values: NDArray[Any]) -> list[float] | None:
    """Least, median and most of what is known."""
    known = values[values >= 0]
    return [float(known.min()), float(np.median(known)), float(known.max())] if len(known) else None


def _share(reasons: NDArray[np.int64], bit: int) -> float:
    known = reasons[reasons >= 0]
    return float(((known & bit) != 0).mean()) if len(known) else 0.0


def _slowed(timeline: Timeline) -> list[Diagnosis]:
    found: dict[int, tuple[float, GpuSamples]] = {}
    for gpu in timeline.gpus:
        for bit in SLOWED:
            share = _share(gpu.reasons[_during(timeline, gpu)], bit)
            if share >= max(_OFTEN, found.get(bit, (0.0,))[0]):
                found[bit] = share, gpu
    return [_slowdown(timeline, bit, *facts) for bit, facts in found.items()]


def _slowdown(timeline: Timeline, bit: int, share: float, gpu: GpuSamples) -> Diagnosis:
    clocks = _three(gpu.sm_mhz[_during(timeline, gpu)])
    clock = f"{clocks[1]:.0f}" if clocks else "unknown"
    name, part, most = visible(gpu.name, 60), f"{100 * share:.0f} %", gpu.max_sm_mhz
    if bit == _POWER_LIMIT:
        limit = f"{gpu.power_limit_mw / 1e3:.0f}"
        return diagnose("GPU_POWER_LIMIT", gpu=name, share=part, limit=limit, clock=clock, most=most)
    return diagnose("GPU_SLOWED", gpu=name, share=part, why=SLOWED[bit], clock=clock, most=most)


def held_down_clock(timelines: Iterable[Timeline]) -> tuple[float, str] | None:
    """The lowest clock of a GPU against its highest, where something else than its power limit holds it down."""
    found = []
    for timeline in timelines:
        for gpu in timeline.gpus:
            during = _during(timeline, gpu)
            reasons, clock = gpu.reasons[during], _three(gpu.sm_mhz[during])
            if clock and gpu.max_sm_mhz > 0 and max(_share(reasons, _POWER_LIMIT), _share(reasons, _IDLE)) < _OFTEN:
                found.append((clock[1] / gpu.max_sm_mhz, f"{clock[1]:.0f} of {gpu.max_sm_mhz} MHz"))
    return min(found, default=None)


def _shared(timeline: Timeline) -> list[Diagnosis]:
    """Others on the GPU; those of all runs together, each once."""
    found = {(gpu.uuid, other["pid"]): (gpu, other) for gpu in timeline.gpus for other in gpu.others}
    if not found:
        return []
    names = []
    for _, other in list(found.values())[:4]:
        used = f"{other['percent']:.0f} % of its time" if other["percent"] >= 0 else "a share that is not known"
        size = f", {other['bytes'] / 2**30:.1f} GiB" if other["bytes"] >= 0 else ""
        names.append(f"{visible(other['name'], 40) or 'a process'} ({other['pid']}): {used}{size}")
    busy = any(not 0 <= other["percent"] < _BUSY for _, other in found.values())
    more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
    gpu = next(iter(found.values()))[0]
    others = "; ".join(names) + more
    if busy:
        return [diagnose("GPU_SHARED", gpu=visible(gpu.name, 60), others=others)]
    return [diagnose("GPU_SHARED.memory", gpu=visible(gpu.name, 60), others=others)]


def _runs_differ(timeline: Timeline, regions: list[NCUProfileRegion]) -> list[Diagnosis]:
    if any(process.warm for process in timeline.processes):
        return []  # passes of stage 1, one after the other: its own report has their spread
    keys = {region.key for region in regions}
    outer = [r for r in regions if r.parent not in keys and r.timing is not None]
    whole = sum(r.timing.steady.total_ns for r in outer if r.timing)
    worst: tuple[float, NCUProfileRegion, list[int]] | None = None
    for region in outer:
        medians = region.timing.run_medians_ns if region.timing else None
        if medians and len(medians) > 1 and region.timing and region.timing.steady.total_ns >= _HEAVY * whole:
            spread = (max(medians) - min(medians)) / max(float(np.median(medians)), 1.0)
            if spread > _SPREAD and (worst is None or spread > worst[0]):
                worst = spread, region, medians
    if worst is None:
        return []
    spread, region, medians = worst
    why = _why_runs_differ(timeline, medians)
    return [
        diagnose(
            "RUNS_DIFFER", region=visible(region.key, 120), runs=len(medians), spread=f"{100 * spread:.1f} %", why=why
        )
    ]


def _why_runs_differ(timeline: Timeline, medians: list[int]) -> str:
    """What differed between the runs besides."""
    reasons = []
    clocks = [found[1] for gpu in timeline.gpus if (found := _three(gpu.sm_mhz[_during(timeline, gpu)]))]
    if clocks and max(clocks) > (1 + _CLOCKS) * min(clocks):
        reasons.append(f"the clock of the GPU was between {min(clocks):.0f} and {max(clocks):.0f} MHz")
    slow = {
        SLOWED[bit]
        for gpu in timeline.gpus
        for bit in SLOWED
        if _share(gpu.reasons[_during(timeline, gpu)], bit) >= _OFTEN
    }
    reasons += sorted(slow)
    if any(gpu.others for gpu in timeline.gpus):
        reasons.append("other processes used the GPU")
    waits = [process.cpu_wait for process in timeline.processes if process.cpu_wait is not None]
    if waits and max(waits) >= _OFTEN:
        reasons.append(
            "other programs used the CPUs: the threads of the program waited for one for "
            f"{100 * min(waits):.0f} to {100 * max(waits):.0f} % of the time in which they were ready"
        )
    rest = medians[1:]
    if max(rest) * (1 + _SPREAD) < medians[0] and 2 * (max(rest) - min(rest)) < medians[0] - min(rest):
        reasons.append("the first run was the slowest, perhaps because files and compiled code were not cached yet")
    if reasons:
        return f"What else differed: {'; '.join(reasons)}."
    of_gpu = "Neither the clocks nor other users of the GPU explain it" if timeline.gpus else "Nothing explains it"
    return f"{of_gpu}{', and nobody else used the CPUs' if waits else ''}: look at what the program does differently."
