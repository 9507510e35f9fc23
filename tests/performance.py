"""Verdicts, roofs and signatures made by hand, with numbers that are easy to check in a picture."""

from __future__ import annotations

from attrs import evolve

from llm_perf_opt.analysis.verdicts.conclusion import conclude
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.model import (
    KernelRecord,
    NCUProfileRegion,
    NCUProfileRegionReport,
    Opportunity,
    RegionPerformance,
    RegionWork,
    SignatureRecord,
    SpeedOfLight,
    TimeSplit,
    TokenRate,
    Utilisation,
    Verdict,
)

BANDWIDTH = Quantity(4.8e12, "B/s")
PEAK = Quantity(989.5e12, "FLOP/s")


def evaluate(report: NCUProfileRegionReport) -> NCUProfileRegionReport:
    """A report whose main scope has a verdict for every region; every second kernel does no FLOPs."""
    scope = report.main_scope
    assert scope is not None
    hardware = [
        GpuHardware(
            device=0,
            name="NVIDIA H200",
            model="H200",
            basis="datasheet",
            source="made for a test",
            bandwidth=BANDWIDTH,
            peaks={"tensor_bf16": PEAK, "tensor_fp8": PEAK * 2},
            calibrated_bandwidth=BANDWIDTH * 0.9,
            calibrated_peaks={"tensor_bf16": PEAK * 0.8},
        )
    ]
    regions = [evolve(region, kernels=_with_families(region.kernels)) for region in scope.regions]
    regions = [evolve(region, performance=_performance(region)) for region in regions]
    evaluated = evolve(scope, kernels=_with_families(scope.kernels), regions=regions)
    stages = [region.key for region in scope.regions if region.parent is None]
    opportunities = [
        Opportunity(
            region=key,
            kind="waiting",
            family="",
            text="the GPU waits for the host",
            time=nanoseconds(3e6),
            recoverable=nanoseconds(2e6),
            of=nanoseconds(9e6),
            advice="Capture it in a CUDA graph.",
            rule="launch.graph",
            because="the GPU waits for the host",
        )
        for key in stages
    ]
    scopes = [evaluated if one is scope else one for one in report.scopes]
    report = evolve(report, scopes=scopes, hardware=hardware, stages=stages, opportunities=opportunities)
    return evolve(report, answer=conclude(report))


def _with_families(kernels: list[KernelRecord]) -> list[KernelRecord]:
    return [evolve(kernel, family=_family(kernel.kernel_name)) for kernel in kernels]


def _family(name: str) -> str:
    return "gemm" if "nvjet" in name or "gemm" in name else "elementwise" if "elementwise" in name else "other"


def _performance(region: NCUProfileRegion) -> RegionPerformance:
    wall = nanoseconds(float(region.wall_ns or 1))
    verdict = Verdict("launch", "launch-bound", "The GPU waits for launches.", "high", advice="Use a CUDA graph.")
    return RegionPerformance(
        work=RegionWork(tensor={"tensor_bf16": Quantity(1e12, "FLOP")}, missing=["CUDA-core FLOPs were not counted."]),
        time=TimeSplit(wall=wall),
        verdict=verdict,
        gpu_verdict=verdict,
        utilisation=[
            Utilisation("mfu", "wall", "datasheet", 0.125, Quantity(1e12, "FLOP"), wall, {"tensor_bf16": PEAK}),
            Utilisation("mbu", "busy", "datasheet", 0.25, Quantity(1e9, "B"), wall, {"dram": BANDWIDTH}),
        ],
        intensity=Quantity(12.5, "FLOP/B"),
        speed_of_light=SpeedOfLight(
            now=wall,
            limit=wall * 0.25,
            above_roof=wall * 0.25,
            waiting=wall * 0.5,
            other_work=wall * 0.0,
            analysed_share=1.0,
            limit_over_now=0.25,
        ),
        tokens=TokenRate(Quantity(8, "token"), Quantity(64, "token/s"), limit=Quantity(256, "token/s")),
        signatures=[_signature(kernel, number) for number, kernel in enumerate(region.kernels)],
    )


def _signature(kernel: KernelRecord, number: int) -> SignatureRecord:
    works = number % 2 == 0
    return SignatureRecord(
        kernel_name=kernel.kernel_name,
        short_name=kernel.short_name,
        family=kernel.family,
        device=kernel.device,
        grid=[132, 1, 1],
        block=[256, 1, 1],
        calls=kernel.calls,
        time=nanoseconds((kernel.total_ms or 0.0) * 1e6),
        share=None,
        samples=3,
        intensity=Quantity(5.0 * (number + 1), "FLOP/B") if works else None,
        flop_rate=Quantity(1e14, "FLOP/s") if works else None,
        dram_rate=Quantity(1e12 / (number + 1), "B/s"),
        roof="dram",
        recoverable=nanoseconds(1e3),
    )
