"""MFU and MBU: work over time over peak, on wall and on busy time, with the denominators stated.

With several data types MFU is the time their FLOPs would take at the peak of each, over the time they took:
for one type that is the usual FLOPs over time over peak.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.verdicts.counters import Amounts
from llm_perf_opt.analysis.verdicts.roofs import Peaks, seconds_at_peak
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import Utilisation


def utilisations(amounts: Amounts, times: dict[str, Quantity], peaks: list[Peaks], gpus: int) -> list[Utilisation]:
    """`times`: by "wall" and "busy". `gpus`: how many work side by side in that time."""
    found = []
    for denominators in peaks:
        at_peak = seconds_at_peak(amounts, denominators)
        roof = "tensor" if at_peak.get("tensor") else "cuda_core"
        flops = {
            k: v for k, v in amounts.flops.items() if v and k.startswith("tensor_" if roof == "tensor" else "cuda_")
        }
        for basis, time in times.items():
            if not time.value:
                continue
            if at_peak.get(roof):
                found.append(
                    Utilisation(
                        "mfu",
                        basis,
                        denominators.basis,
                        (Quantity(at_peak[roof], "s") / time).of("ratio") / gpus,
                        Quantity(sum(flops.values()), "FLOP"),
                        time,
                        {k: denominators.flops[k] * gpus for k in flops},
                    )
                )
            if "dram" in at_peak and denominators.bandwidth is not None:
                found.append(
                    Utilisation(
                        "mbu",
                        basis,
                        denominators.basis,
                        (Quantity(at_peak["dram"], "s") / time).of("ratio") / gpus,
                        Quantity(amounts.bytes["dram"], "B"),
                        time,
                        {"bandwidth": denominators.bandwidth * gpus},
                    )
                )
    return found


def pick(found: Sequence[Utilisation], metric: str, time_basis: str, calibrated: bool = False) -> Utilisation | None:
    """One of them."""
    return next(
        (
            u
            for u in found
            if u.metric == metric and u.time_basis == time_basis and (u.peak_basis == "calibrated") == calibrated
        ),
        None,
    )
