"""Facts of a region: the bare numbers the verdict rules compare, and the words their texts are filled with."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.analysis.families import label_of
from llm_perf_opt.analysis.verdicts.breakdown import weighted_percent
from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.analysis.verdicts.times import gpu_time
from llm_perf_opt.analysis.verdicts.utilisation import pick
from llm_perf_opt.regions.model import FamilyTime, NCUProfileRegion, RegionWork, TimeSplit, Utilisation
from llm_perf_opt.regions.quantity import Quantity, nanoseconds, shown

_FAMILIES_TOLD = 4
_NAMED = {"cuda_core": "CUDA cores", "dram": "DRAM", "l2": "L2", "": "not known"}
BOUNDS = ("tensor", "cuda_core", "dram", "l2", "latency")


@define
class Facts:
    """Numbers by name, None where not known; and words for the texts."""

    numbers: dict[str, float | None] = Factory(dict)
    words: dict[str, str] = Factory(dict)

    def share(self, name: str, value: float | None) -> None:
        """A number that is told in per cent."""
        self.numbers[name] = value
        self.words[name] = "–" if value is None else shown(Quantity(value, "ratio"))

    def amount(self, name: str, quantity: Quantity | None) -> None:
        self.words[name] = shown(quantity)


def kernel_facts(facts: Facts, roofed: Roofed, by_bound: dict[str, Quantity]) -> None:
    """How the kernel time divides by what bounds the kernels."""
    kernel_time = float(roofed.launches.time_ns.sum())
    parts = (
        {name: by_bound[name].value / kernel_time if name in by_bound else 0.0 for name in (*BOUNDS, "")}
        if kernel_time
        else {}
    )
    for name in BOUNDS:
        facts.share(f"{name}_share", parts.get(name))
    facts.share("unknown_share", parts.get(""))
    facts.share("known_share", 1 - parts[""] if parts else None)
    facts.share("largest_share", max(parts[name] for name in BOUNDS) if parts else None)
    told = sorted(parts.items(), key=lambda item: -item[1])
    facts.words["parts"] = ", ".join(f"{_NAMED.get(n, n)} {part:.0%}" for n, part in told if part >= 0.005)
    occupancy = weighted_percent(roofed.launches, "occupancy")
    facts.words["occupancy_words"] = "" if occupancy is None else f", occupancy {occupancy:.0f} %"


def time_facts(facts: Facts, region: NCUProfileRegion, split: TimeSplit, families: Sequence[FamilyTime]) -> None:
    """Waiting, launches, communication."""
    idle = None
    if split.wall is not None and split.idle is not None and split.wall.value:
        idle = (split.idle / split.wall).of("ratio")
    facts.share("idle_share", idle)
    for name in ("wall", "idle", "gap_per_launch", "mean_kernel"):
        facts.amount(name, getattr(split, name))
    for name in ("gap_per_launch", "mean_kernel"):
        value: Quantity | None = getattr(split, name)
        facts.numbers[f"{name}_us"] = None if value is None else value.of("s") * 1e6
    facts.words["launches"] = f"{split.launches:,}"
    collective = next((f.time for f in families if f.family == "collective"), nanoseconds(0))
    host = split.host_copies or nanoseconds(0)
    facts.amount("collective_time", collective)
    facts.amount("host_copy_time", host)
    busy = gpu_time(split)
    whole = busy.value if busy else 0.0
    facts.share("collective_share", collective.value / whole if whole else None)
    facts.share("communication_share", min((collective.value + host.value) / whole, 1.0) if whole else None)
    told = [f"{label_of(f.family)} {f.share:.0%}" for f in families[:_FAMILIES_TOLD] if f.share and f.share >= 0.01]
    facts.words["family_parts"] = ", ".join(told) or "–"
    count = region.inclusive.kernel_count
    facts.share("graph_share", region.graph_kernels / count if count else None)


def rate_facts(facts: Facts, split: TimeSplit, work: RegionWork, used: Sequence[Utilisation]) -> None:
    """How fast the work went."""
    for metric in ("mfu", "mbu"):
        reached = pick(used, metric, "busy")
        facts.share(f"{metric}_busy", reached.value if reached else None)
    busy = gpu_time(split)
    for name, amount in (("dram_rate", work.dram), ("l2_rate", work.l2)):
        facts.amount(name, amount / busy if amount is not None and busy is not None and busy.value else None)
