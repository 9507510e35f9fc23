"""What could be won back in a region, by cause, most first: waiting, fusable kernels, kernels above their roof."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from llm_perf_opt.analysis.verdicts.communication_costs import Communication
from llm_perf_opt.analysis.verdicts.kernel_limits import KernelLimits
from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.metrics.families import COLLECTIVE, HOST_COPY, is_fusable, label_of
from llm_perf_opt.metrics.quantity import nanoseconds, shown, total
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.regions.model import FamilyTime, Opportunity, RuleFinding, SpeedOfLight, TimeSplit, Verdict
from llm_perf_opt.regions.names import short_kernel_name

_KERNELS_NAMED = 3
Make = Callable[..., Opportunity]  # with the region filled in


def opportunities(
    key: str,
    label: str,
    split: TimeSplit,
    light: SpeedOfLight | None,
    families: Sequence[FamilyTime],
    limits: KernelLimits,
    communication: Communication,
    rules: Sequence[RuleFinding],
    verdict: Verdict,
    from_graphs: bool = False,
) -> list[Opportunity]:
    """All that are worth a line, ranked. `label`: the region's name, safe to show.

    `from_graphs`: most kernels come from CUDA graphs already.
    """
    if light is None:
        return []
    make = partial(Opportunity, region=key, of=light.now)
    roofed, scale = limits.roofed, overlap_scale(split)
    fusable = [f for f in families if is_fusable(f.family)]
    others = [f for f in families if not is_fusable(f.family) and f.family not in (HOST_COPY, COLLECTIVE)]
    found = [
        _waiting(make, label, split, light, verdict, from_graphs),
        _host_copies(make, label, split, light),
        *communication.opportunities(make, label, light),
        *limits.opportunities(make, label, light, rules, scale),
        *(
            _kernels(make, label, light, group, roofed, ~limits.claimed, scale)
            for group in (fusable, *([f] for f in others))
        ),
    ]
    least = light.now * verdict_rules().thresholds["least_opportunity"]
    return ranked([o for o in found if o is not None and o.recoverable >= least])


def ranked(found: Iterable[Opportunity]) -> list[Opportunity]:
    return sorted(found, key=lambda o: -o.recoverable.of("ns"))


def _waiting(
    make: Make, label: str, split: TimeSplit, light: SpeedOfLight, verdict: Verdict, from_graphs: bool
) -> Opportunity | None:
    if not light.waiting.value or not split.launches:
        return None
    kind = "waiting_host" if verdict.bound == "host" else "waiting_graphs" if from_graphs else "waiting"
    advice = verdict_rules().advice[kind]
    gap = f", {shown(split.gap_per_launch)} per launch" if split.gap_per_launch is not None else ""
    return make(
        kind="waiting",
        family="",
        text=f"{label}: the GPU waits {shown(light.waiting)} of {shown(light.now)} for the host ({split.launches:,} {'launch' if split.launches == 1 else 'launches'}{gap}): {advice}",
        time=light.waiting,
        recoverable=light.waiting,
        advice=advice,
    )


def _host_copies(make: Make, label: str, split: TimeSplit, light: SpeedOfLight) -> Opportunity | None:
    if split.host_copies is None or not split.host_copies.value:
        return None
    advice = verdict_rules().advice["host_copies"]
    return make(
        kind="host copies",
        family=HOST_COPY,
        text=f"{label}: copies between host and GPU, {shown(split.host_copies)} of {shown(light.now)}: {advice}",
        time=split.host_copies,
        recoverable=split.host_copies * overlap_scale(split),
        advice=advice,
    )


def _kernels(
    make: Make, label: str, light: SpeedOfLight, group: Sequence[FamilyTime], roofed: Roofed, left: Bools, scale: float
) -> Opportunity | None:
    """`left`: rows of launches that no other opportunity speaks of."""
    known = [f for f in group if f.recoverable is not None]
    if not known:
        return None
    time = total([f.time for f in group], "ns")
    launches, names = roofed.launches, {f.family for f in group}
    mine = np.array([launches.kinds[which].family in names for which in launches.which.tolist()], dtype=np.bool_)
    recoverable = nanoseconds(float(roofed.recoverable_ns[mine & left].sum())) * scale
    at_roof = total([f.time_at_roof for f in known if f.time_at_roof is not None], "ns")
    analysed = total([f.analysed for f in known if f.analysed is not None], "ns")
    reached = shown(at_roof / analysed) if analysed.value else "–"
    fusable = is_fusable(group[0].family)
    titles = " + ".join(label_of(f.family) for f in group[:3]) + (" + others" if len(group) > 3 else "")
    rows = _longest(roofed, names)
    advice = _advice(group[0].family, fusable, rows, roofed).format(share_of_roof=reached)
    what = "fusable" if fusable else "above the roof"
    return make(
        kind="fusion" if fusable else "kernels",
        family="+".join(f.family for f in group),
        text=f"{label}: {titles}, {shown(time)} of {shown(light.now)}, up to {shown(recoverable)} of it {what}: {advice}",
        time=time,
        recoverable=recoverable,
        advice=advice,
        kernels=list(dict.fromkeys(short_kernel_name(roofed.launches.kinds[k].kernel_name) for k in rows)),
    )


def _longest(roofed: Roofed, families: set[str]) -> list[int]:
    """Kinds of these families whose launches take most of the time above the roof, each kernel once."""
    launches, lost = roofed.launches, roofed.recoverable_ns
    by_name: dict[str, tuple[float, int]] = {}
    for row, kind in enumerate(launches.which.tolist()):
        one = launches.kinds[kind]
        if one.family in families:
            time, _ = by_name.get(one.kernel_name, (0.0, kind))
            by_name[one.kernel_name] = (time + float(lost[row]), kind)
    ranked = sorted(by_name.values(), reverse=True)
    return [kind for _, kind in ranked[:_KERNELS_NAMED]]


def _advice(family: str, fusable: bool, kinds: list[int], roofed: Roofed) -> str:
    texts = verdict_rules().advice
    if fusable:
        return texts["fusion"]
    if family == "gemm" and kinds:
        row = roofed.launches.which.tolist().index(kinds[0])
        return texts.get(f"gemm_{roofed.roof[row]}", texts["gemm"])
    return texts.get(family, texts["other"])
