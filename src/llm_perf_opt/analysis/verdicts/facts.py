"""Facts of a region: the bare numbers the verdict rules compare, and the words their texts are filled with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_perf_opt.analysis.verdicts.breakdown import main_stall, weighted_percent
from llm_perf_opt.analysis.verdicts.counted_work import amounts_of
from llm_perf_opt.analysis.verdicts.launches import Launches
from llm_perf_opt.analysis.verdicts.roofs import ROOFS, Roofed, shares_of_peak
from llm_perf_opt.analysis.verdicts.rules import Facts, verdict_rules
from llm_perf_opt.analysis.verdicts.times import gpu_time, now, returns_early
from llm_perf_opt.analysis.verdicts.utilisation import pick
from llm_perf_opt.metrics.families import COLLECTIVE, HOST_COPY, MULTIPLYING, OTHER, PEER_COPY, label_of
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds, shown
from llm_perf_opt.regions.frameworks import is_of_torch
from llm_perf_opt.regions.labels import counted
from llm_perf_opt.regions.model import FamilyTime, NCUProfileRegion, RegionWork, TimeSplit, Utilisation
from llm_perf_opt.regions.names import short_kernel_name, visible

_FAMILIES_NAMED = 4
_MOST = 0.5  # of the time
_FP64_BUSIEST = re.compile(r"^FP64\b[^.]*? is the highest-utilized pipeline \((\d+(?:\.\d+)?)%\)")
_HIDDEN = 0.1  # of copies or collectives, up to which they run beside other work: that is what the GPU works on
_NAMED = {"cuda_core": "CUDA cores", "dram": "DRAM", "l2": "L2", "l1": "L1", "sm": "SM pipes", "": "not known"}
BOUNDS = (*ROOFS, "latency")


def kernel_facts(facts: Facts, roofed: Roofed, by_bound: dict[str, Quantity]) -> None:
    """How the kernel time divides by what bounds the kernels."""
    parts: dict[str, float] = {}
    if kernel_time := roofed.launches.kernel_time:
        parts = {name: by_bound[name].value / kernel_time if name in by_bound else 0.0 for name in (*BOUNDS, "")}
    for name in BOUNDS:
        facts.share(f"{name}_share", parts.get(name))
    facts.share("unknown_share", parts.get(""))
    facts.share("known_share", 1 - parts[""] if parts else None)
    facts.share("largest_share", max(parts[name] for name in BOUNDS) if parts else None)
    largest = sorted(parts.items(), key=lambda item: -item[1])
    facts.words["parts"] = ", ".join(f"{_NAMED.get(n, n)} {100 * part:.0f} %" for n, part in largest if part >= 0.005)
    occupancy = weighted_percent(roofed.launches, "occupancy")
    stall = main_stall(roofed.launches)
    facts.words["occupancy_words"] = "" if occupancy is None else f", occupancy {occupancy:.0f} %"
    if stall is not None:
        facts.words["occupancy_words"] += (
            f", warps wait mostly for {stall[0]} ({100 * stall[1]:.0f} % of their waiting)"
        )


def _pipe_facts(facts: Facts, region: NCUProfileRegion) -> None:
    """The SMs' busiest pipe: that for 64-bit floats by ncu's rule about it, the tensor cores by the names of kernels."""
    facts.words["reached_words"] = _reached(region)
    if not region.inclusive.metrics:
        return  # a timeline alone, with many regions and names
    told = ((finding, _FP64_BUSIEST.search(finding.message)) for finding in region.rules)
    busy = [float(found[1]) / 100 for one, found in told if found and (one.share_of_gpu_time or 0.0) >= _MOST]
    facts.share("fp64_share", max(busy, default=None))
    named = verdict_rules().named_kernels["tensor_cores"]
    times = [(kernel.total_ms or 0.0, re.search(named, kernel.kernel_name, re.I)) for kernel in region.kernels]
    whole = sum(time for time, _ in times)
    facts.share("tensor_named_share", sum(time for time, found in times if found) / whole if whole else None)


def _reached(region: NCUProfileRegion) -> str:
    """The unit that results say is busiest, for where they have no times."""
    shares = shares_of_peak(amounts_of({name: value.value for name, value in region.inclusive.metrics.items()}))
    if not shares:
        return ""
    unit = max(shares, key=lambda one: shares[one])
    return (
        f"; the busiest unit that was counted is {_NAMED.get(unit, unit)}, at {shares[unit]:.0%} of its peak on average"
    )


def made_by_torch(launches: Launches) -> bool:
    """By the names of kernels, which are all that counters alone have."""
    return any(is_of_torch(kind.kernel_name) for kind in launches.kinds)


def time_facts(
    facts: Facts, region: NCUProfileRegion, split: TimeSplit, families: Sequence[FamilyTime], launches: Launches
) -> None:
    """Waiting, launches, communication."""
    _pipe_facts(facts, region)
    idle = None
    if split.wall is not None and split.idle is not None and split.wall.value and not returns_early(split):
        idle = (split.idle / split.wall).of("ratio")
    facts.share("idle_share", idle)
    facts.share("working_share", None if idle is None else 1 - idle)
    others = None
    if idle is not None and split.busy is not None and split.wall is not None:
        others = max(1 - idle - (split.busy / split.wall).of("ratio"), 0.0)
    facts.share("others_share", others)
    for name in ("wall", "idle", "gap_per_launch", "mean_kernel"):
        facts.amount(name, getattr(split, name))
    for name in ("gap_per_launch", "mean_kernel"):
        value: Quantity | None = getattr(split, name)
        facts.numbers[f"{name}_us"] = None if value is None else value.of("s") * 1e6
    facts.amount("host_copies", split.host_copies)
    facts.words["basis"] = "wall time" if split.basis == "host" else "time of its steps"
    facts.numbers["launches"] = split.launches
    facts.words["launches"] = f"{split.launches:,}"
    facts.words["counted_launches"] = counted(split.launches, "launch")
    # What runs beside computation costs nothing.
    collective = split.exposed_collectives or nanoseconds(0)
    known = split.exposed_copies is not None
    host = (split.exposed_copies if known else split.host_copies) or nanoseconds(0)
    memory = region.inclusive.memory
    peers = memory.peer_count > 0 and 2 * memory.peer_time_ns >= memory.host_time_ns
    copied = f"{'exposed ' if known else ''}copies between {'GPUs' if peers else 'host and GPU'}"
    parts = (("exposed collectives", collective), (copied, host))
    facts.words["communication_parts"] = ", ".join(f"{name} {shown(part)}" for name, part in parts if part.value)
    told = memory.pageable_time_ns + memory.pinned_time_ns
    facts.share("pageable_share", memory.pageable_time_ns / told if told else 0.0 if peers else None)
    whole = now(split)
    time = whole.value if whole else 0.0
    facts.share("collective_share", collective.value / time if time else None)
    moved = nanoseconds(memory.migration_time_ns)
    facts.share("migration_share", moved.value / time if time else None)
    facts.amount("migration", moved)
    facts.share("communication_share", min((collective.value + host.value) / time, 1.0) if time else None)
    kernels = sum(f.time.value for f in families)
    multiplying = sum(f.time.value for f in families if f.family in MULTIPLYING)
    facts.numbers["multiplying_share"] = multiplying / kernels if kernels else None
    exposed = dict.fromkeys((HOST_COPY, PEER_COPY), host) if known else {}
    exposed |= {COLLECTIVE: collective} if split.exposed_collectives is not None else {}
    shown_of = [f for f in families if f.family not in exposed or exposed[f.family].value > _HIDDEN * f.time.value]
    all_of = sum(f.share or 0.0 for f in shown_of) or 1.0
    named = [(f, f.share / all_of) for f in shown_of[:_FAMILIES_NAMED] if f.share and f.share >= 0.01 * all_of]
    parts_of = [f"{label_of(f.family)} ({100 * share:.0f} %{_most_of(f, launches)})" for f, share in named]
    facts.words["family_parts"] = ", ".join(parts_of) or "–"
    count = region.inclusive.kernel_count
    facts.share("graph_share", region.graph_kernels / count if count else None)


def _most_of(family: FamilyTime, launches: Launches) -> str:
    """The kernel that most of the time of no known kind is in: its kind would tell nothing."""
    if family.family != OTHER:
        return ""
    times: dict[str, int] = {}
    for kind, time in launches.timed_kinds:
        if kind.family == OTHER:
            times[kind.kernel_name] = times.get(kind.kernel_name, 0) + time
    longest = max(times, key=lambda name: times[name], default="")
    most = longest and 2 * times[longest] >= family.time.of("ns")
    return f", most of it {visible(short_kernel_name(longest), 80)}" if most else ""


def fusion_facts(facts: Facts, region: NCUProfileRegion, launches: Launches) -> None:
    """Launches that could be fused with each other: those of one instance.

    Without a timeline nothing says what ran one after the other; then different kernels are counted.
    """
    if region.time_source == "timeline":
        together = int(launches.calls.sum()) / max(region.instances or 1, 1)
    else:
        together = len({kind.kernel_name for kind, _ in launches.timed_kinds})
    facts.numbers["fusable_together"] = together


def rate_facts(facts: Facts, split: TimeSplit, work: RegionWork, used: Sequence[Utilisation]) -> None:
    """How fast the work went, in words that are empty where it is not known."""
    busy = gpu_time(split)

    def rate(amount: Quantity | None) -> Quantity | None:
        return amount / busy if amount is not None and busy is not None and busy.value else None

    mfu, mbu = (pick(used, metric, "busy") for metric in ("mfu", "mbu"))
    dram, l2 = rate(work.dram), rate(work.l2)
    facts.words["mfu_words"] = "" if mfu is None else f"; over all kernels {100 * mfu.value:.1f} % of it is reached"
    facts.words["mbu_words"] = (
        "" if mbu is None else f"; over all kernels {100 * mbu.value:.1f} % of it is reached ({shown(dram)})"
    )
    facts.words["l2_words"] = (f", {shown(l2)} over all kernels" if l2 else "") + (
        "" if mbu is None else f", while DRAM is at {100 * mbu.value:.1f} %"
    )
