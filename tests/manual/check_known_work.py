"""Compares the report of `known_work.py` with what the program did. Exit code 1 where they differ."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import llm_perf_opt
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionPerformance


class Checks:
    """Collects what holds and what does not."""

    def __init__(self) -> None:
        self.failed = 0

    def near(self, what: str, found: float | None, expected: float, tolerance: float) -> None:
        error = abs(found / expected - 1) if found is not None and expected else float("inf")
        value = "nothing" if found is None else f"{found:.6g}"
        self._say(
            error <= tolerance,
            f"{what}: {value}, expected {expected:.6g} ({100 * error:.2f} % off, {100 * tolerance:g} % allowed)",
        )

    def holds(self, what: str, true: bool) -> None:
        self._say(true, what)

    def _say(self, true: bool, text: str) -> None:
        self.failed += not true
        print(("ok    " if true else "WRONG ") + text)


def check(report: NCUProfileRegionReport, truth: dict[str, Any]) -> int:
    """How many checks failed."""
    checks = Checks()
    scope = report.main_scope
    regions = {r.name: r for r in scope.regions if r.domain == "HAND"} if scope else {}
    gpu = report.hardware[0]
    checks.holds(f"the GPU is known: {gpu.name} as {gpu.model or gpu.basis}", bool(gpu.peaks))
    for name, part in truth["parts"].items():
        region = regions.get(name)
        evaluated = region.performance if region else None
        checks.holds(f"region {name} is there and evaluated", evaluated is not None)
        if region is not None and evaluated is not None:
            _common(checks, name, region, evaluated, part)
            _PARTS[name](checks, report, region, evaluated, part)
    print(f"{checks.failed} checks failed" if checks.failed else "all checks hold")
    return checks.failed


def _common(
    checks: Checks, name: str, region: NCUProfileRegion, evaluated: RegionPerformance, part: dict[str, Any]
) -> None:
    light = evaluated.speed_of_light
    checks.holds(f"{name}: it has a speed of light", light is not None)
    if light is not None:
        whole = light.limit + light.above_roof
        for part_of_it in (light.waiting, light.other_work):
            whole = whole if part_of_it is None else whole + part_of_it
        checks.near(f"{name}: parts of its time add up", whole.value, light.now.value, 1e-6)
    checks.near(f"{name}: wall time", (region.wall_ns or 0) * 1e-9, part["wall_s"], 0.05)


def _gemm(
    checks: Checks,
    report: NCUProfileRegionReport,
    region: NCUProfileRegion,
    evaluated: RegionPerformance,
    part: dict[str, Any],
) -> None:
    peak = report.hardware[0].peaks["tensor_bf16"].of("FLOP/s")
    checks.near("gemm: FLOPs", evaluated.work.flops.value if evaluated.work.flops else None, part["flops"], 0.005)
    checks.near("gemm: MFU on busy time", _used(evaluated, "mfu", "busy"), part["flops"] / part["event_s"] / peak, 0.02)
    checks.near("gemm: MFU on wall time", _used(evaluated, "mfu", "wall"), part["flops"] / part["wall_s"] / peak, 0.02)
    checks.holds(
        f"gemm: kernels are tensor-bound ({evaluated.gpu_verdict.text})", evaluated.gpu_verdict.bound == "tensor"
    )
    checks.holds(f"gemm: family {evaluated.families[0].family}", evaluated.families[0].family == "gemm")


def _copy(
    checks: Checks,
    report: NCUProfileRegionReport,
    region: NCUProfileRegion,
    evaluated: RegionPerformance,
    part: dict[str, Any],
) -> None:
    """A plain copy (a memcpy, its bytes from the timeline), or the same with a kernel (its bytes from counters)."""
    name, bandwidth = region.name, report.hardware[0].bandwidth
    checks.near(f"{name}: DRAM bytes", evaluated.work.dram.value if evaluated.work.dram else None, part["bytes"], 0.03)
    if bandwidth is not None:
        expected = part["bytes"] / part["event_s"] / bandwidth.of("B/s")
        checks.near(f"{name}: bandwidth on busy time", _used(evaluated, "mbu", "busy"), expected, 0.03)
    checks.holds(f"{name}: memory-bound ({evaluated.gpu_verdict.text})", evaluated.gpu_verdict.bound == "dram")
    wanted = ("memcpy",) if name == "copy" else ("elementwise", "copy")
    checks.holds(f"{name}: family {evaluated.families[0].family}", evaluated.families[0].family in wanted)


def _launch_loop(
    checks: Checks,
    report: NCUProfileRegionReport,
    region: NCUProfileRegion,
    evaluated: RegionPerformance,
    part: dict[str, Any],
) -> None:
    checks.holds(f"launch_loop: launch-bound ({evaluated.verdict.text})", evaluated.verdict.bound == "launch")
    checks.near("launch_loop: kernels", region.inclusive.kernel_count, part["count"], 0)
    idle = (region.gpu_idle_ns or 0) / (region.wall_ns or 1)
    checks.holds(f"launch_loop: the GPU waits most of the time ({100 * idle:.1f} %)", idle > 0.5)


_PARTS = {"gemm": _gemm, "copy": _copy, "kernel_copy": _copy, "launch_loop": _launch_loop}


def _used(evaluated: RegionPerformance, metric: str, basis: str) -> float | None:
    found = [
        u.value
        for u in evaluated.utilisation
        if (u.metric, u.time_basis) == (metric, basis) and u.peak_basis != "calibrated"
    ]
    return found[0] if found else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="run directory of llm-perf profile, or a report.json")
    parser.add_argument("truth", help="folder, or file, the program wrote")
    args = parser.parse_args()
    truth = Path(args.truth)
    # Of several runs the first: that of the timeline. Under ncu times are not those of the program.
    file = min(truth.glob("truth-*.json")) if truth.is_dir() else truth
    return 1 if check(llm_perf_opt.load(args.run).data, json.loads(file.read_text())) else 0


if __name__ == "__main__":
    sys.exit(main())
