"""MFU and MBU: work over time over peak, on wall and on busy time, with the denominators stated.

With several data types MFU is the time their FLOPs would take at the peak of each, over the time they took:
for one type that is the usual FLOPs over time over peak.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.verdicts.counted_work import Amounts
from llm_perf_opt.analysis.verdicts.roofs import Peaks, seconds_at_peak
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import Utilisation


def utilisations(amounts: Amounts, times: dict[str, Quantity], peaks: list[Peaks], gpus: int) -> list[Utilisation]:
    """`times`: by "wall" and "busy". `gpus`: how many work side by side in that time."""
    found = []
    for peak in peaks:
        at_peak = seconds_at_peak(amounts, peak)
        roof, prefix = ("tensor", "tensor_") if at_peak.get("tensor") else ("cuda_core", "cuda_")
        flops = {k: v for k, v in amounts.flops.items() if v and k.startswith(prefix)}
        parts = []
        if at_peak.get(roof):
            denominators = {k: peak.flops[k] * gpus for k in flops}
            parts.append(("mfu", at_peak[roof], Quantity(sum(flops.values()), "FLOP"), denominators))
        if "dram" in at_peak and peak.bandwidth is not None:
            denominators = {"bandwidth": peak.bandwidth * gpus}
            parts.append(("mbu", at_peak["dram"], Quantity(amounts.bytes["dram"], "B"), denominators))
        for basis, time in times.items():
            for metric, seconds, work, denominators in parts if time.value else ():
                value = (Quantity(seconds, "s") / time).of("ratio") / gpus
                found.append(Utilisation(metric, basis, peak.basis, value, work, time, denominators))
    return found


def pick(found: Sequence[Utilisation], metric: str, time_basis: str) -> Utilisation | None:
    """The one against the printed peaks."""
    printed = (u for u in found if u.peak_basis != "calibrated")
    return next((u for u in printed if (u.metric, u.time_basis) == (metric, time_basis)), None)
