"""The checker of the GPU programs finds what is wrong: a report that is right passes, each kind of mistake does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.regions.columns import CounterSet
from test_join_rules import timeline
from test_verdicts import COPY, GEMM, H200, INFO, sample

sys.path.insert(0, str(Path(__file__).parent / "manual"))
from check_known_work import check

TRUTH: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "parts": {
        "gemm": {"count": 1, "event_s": 1.5e-3, "wall_s": 1.51e-3, "flops": 2 * 8192**3},
        "kernel_copy": {"count": 1, "event_s": 2.0e-3, "wall_s": 2.01e-3, "bytes": 2 * 2**32},
        "launch_loop": {"count": 50, "event_s": 1e-3, "wall_s": 1e-3},
    },
}


def failures(flops: float = 1.0, bytes_moved: float = 1.0, launches: int = 50) -> int:
    kernels = [(GEMM, 1, 1_500_000), (COPY, 2_000_001, 2_000_000)]
    kernels += [("tiny_elementwise_kernel", 5_000_000 + 20_000 * i, 2_000) for i in range(launches)]
    ranges = [("gemm", 0, 1_510_000), ("kernel_copy", 2_000_000, 4_010_000), ("launch_loop", 5_000_000, 6_000_000)]
    recording = timeline(ranges, kernels, domains=dict.fromkeys(("gemm", "kernel_copy", "launch_loop"), "HAND"))
    recording.gpu_facts = {0: H200}
    samples = [
        sample(GEMM, ["gemm"], flops=flops * 2 * 8192**3, read=3e8, written=1e8, time=1_500_000),
        sample(COPY, ["kernel_copy"], read=bytes_moved * 2**32, written=bytes_moved * 2**32, time=2_000_000),
        sample("tiny_elementwise_kernel", ["launch_loop"], read=1e3, written=1e3, time=2_000),
    ]
    for action in samples:
        action.push_pop = {"HAND": action.push_pop[""]}
    return check(build_report([recording, CounterSet("c", "ncu-rep", samples, dict(INFO))], ReportOptions()), TRUTH)


def test_a_right_report_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert failures() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [{"flops": 1.03}, {"flops": 0.5}, {"bytes_moved": 1.04}, {"bytes_moved": 1e-6}, {"launches": 49}]
)
def test_a_wrong_report_does_not(wrong: dict[str, Any]) -> None:
    assert failures(**wrong) > 0
