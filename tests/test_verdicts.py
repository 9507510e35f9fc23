"""Verdicts, by hand: cases whose FLOPs, bytes and times are known exactly, and the recordings of an H200."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from conftest import counters, recording, regions_of, report, timeline
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.verdicts.counted_work import amounts_of, with_totals
from llm_perf_opt.analysis.verdicts.rules import CounterQuality, Facts, verdict_rules
from llm_perf_opt.analysis.verdicts.rules import evaluate as rules_say
from llm_perf_opt.metrics.quantity import Quantity, total
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo, Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport, RegionPerformance
from llm_perf_opt.report.answer import answer
from test_join_rules import result
from test_join_rules import timeline as made

PEAK, BANDWIDTH = 989.5e12, 4.8e12  # of an H200: bf16, dense; memory
BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
READ, WRITTEN, L2, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum", "gpu__time_duration.sum"
INFO = {name: MetricInfo("byte", "sum") for name in (READ, WRITTEN, L2)} | {
    BF16: MetricInfo("", "sum"),
    TIME: MetricInfo("ns", "sum"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": MetricInfo("%", "mean"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": MetricInfo("warp", "mean"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": MetricInfo("warp", "mean"),
}
H200 = {"name": "NVIDIA H200", "sm_count": 132, "clock_hz": 1_980_000_000, "compute_capability": "9.0", "l2_slices": 96}
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
COPY = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::direct_copy_kernel_cuda>(int)"


def sample(name: str, stack: list[str], **values: float) -> Action:
    metrics = {BF16: values.get("flops", 0.0), READ: values.get("read", 0.0), WRITTEN: values.get("written", 0.0)}
    if "l2" in values:
        metrics[L2] = values["l2"]
    metrics[TIME] = values.get("time", 1.0)
    action = result({"": stack}, name=name)
    action.metrics = metrics
    return action


def evaluated(
    recording: Timeline,
    *actions: Action,
    facts: dict[str, Any] | None = H200,
    info: dict[str, MetricInfo] = INFO,
    **options: Any,
) -> NCUProfileRegionReport:
    if facts is not None:
        recording.gpu_facts = {0: facts}
    inputs: list[Any] = [recording]
    if actions:
        inputs.append(CounterSet("counters.ncu-rep", "ncu-rep", list(actions), dict(info)))
    return build_report(inputs, ReportOptions(**options))


def performance(found: NCUProfileRegionReport, key: str) -> RegionPerformance:
    region = regions_of(found.main_scope)[key]
    assert region.performance is not None
    return region.performance


def used(of: RegionPerformance, metric: str, basis: str, peak: str = "datasheet") -> float:
    (one,) = [u for u in of.utilisation if (u.metric, u.time_basis, u.peak_basis) == (metric, basis, peak)]
    return one.value


# -- one matrix product, one copy, one launch-bound loop ---------------------------------------------------


def one_gemm(**options: Any) -> NCUProfileRegionReport:
    """2 x 8192³ FLOPs in 1.5 ms, 384 MiB of traffic; the range is 2 ms."""
    flops, traffic = 2 * 8192**3, 3 * 8192 * 8192 * 2
    recording = made([("gemm", 0, 2_000_000)], [(GEMM, 100, 1_500_000)])
    return evaluated(
        recording,
        sample(GEMM, ["gemm"], flops=flops, read=traffic * 2 / 3, written=traffic / 3, time=1_600_000),
        **options,
    )


def test_one_matrix_product() -> None:
    of = performance(one_gemm(), "gemm")
    flops = 2 * 8192**3
    assert of.work.flops == Quantity(flops, "FLOP")
    assert of.work.tensor == {"tensor_bf16": Quantity(flops, "FLOP")}
    # 1.0995e12 FLOP in 1.5 ms are 733 TFLOP/s, 74.1 % of 989.5; over 2 ms 55.6 %.
    assert used(of, "mfu", "busy") == pytest.approx(flops / 1.5e-3 / PEAK)
    assert used(of, "mfu", "busy") == pytest.approx(0.7408, abs=1e-4)
    assert used(of, "mfu", "wall") == pytest.approx(0.5556, abs=1e-4)
    assert used(of, "mbu", "busy") == pytest.approx(3 * 8192 * 8192 * 2 / 1.5e-3 / BANDWIDTH)
    assert of.intensity is not None
    assert of.ridge is not None
    assert of.intensity.of("FLOP/B") == pytest.approx(8192 / 3)
    assert of.ridge.of("FLOP/B") == pytest.approx(PEAK / BANDWIDTH)
    assert (of.gpu_verdict.bound, of.gpu_verdict.confidence) == ("tensor", "high")
    assert of.verdict.bound == "tensor"
    assert "75.0 % of the wall time" in of.verdict.text
    (one,) = of.signatures
    assert (one.roof, one.bound, one.calls, one.samples) == ("tensor", "tensor", 1, 1)
    assert one.shares["tensor"] == pytest.approx(0.7408, abs=1e-4)
    assert one.time_at_roof is not None
    assert one.recoverable is not None
    assert one.time_at_roof.of("s") == pytest.approx(flops / PEAK)
    assert one.recoverable.of("s") == pytest.approx(1.5e-3 - flops / PEAK)


def test_speed_of_light_adds_up() -> None:
    of = performance(one_gemm(), "gemm")
    light = of.speed_of_light
    assert light is not None
    assert light.now == Quantity(2_000_000, "ns")
    assert light.waiting == Quantity(500_000, "ns")
    assert light.above_roof.of("s") == pytest.approx(1.5e-3 - 2 * 8192**3 / PEAK)
    assert light.limit.of("s") == pytest.approx(2 * 8192**3 / PEAK)
    assert (light.limit + light.above_roof + light.waiting + light.other_work).value == pytest.approx(light.now.value)
    assert [o.kind for o in of.opportunities] == ["waiting", "kernels"]


def test_one_copy() -> None:
    """1 GiB read and written in 0.5 ms: 4.29 TB/s."""
    size = 2**30
    recording = made([("copy", 0, 510_000)], [(COPY, 100, 500_000)])
    of = performance(
        evaluated(recording, sample(COPY, ["copy"], read=size, written=size, l2=2 * size, time=520_000)), "copy"
    )
    assert of.work.dram == Quantity(2 * size, "B")
    assert used(of, "mbu", "busy") == pytest.approx(2 * size / 0.5e-3 / BANDWIDTH)
    assert used(of, "mbu", "busy") == pytest.approx(0.8948, abs=1e-4)
    assert not [u for u in of.utilisation if u.metric == "mfu"]
    assert of.work.flops is None  # of the CUDA cores nothing was counted
    assert of.signatures[0].flops is None
    assert (of.gpu_verdict.bound, of.verdict.bound) == ("dram", "dram")
    (fewer,) = [o for o in of.opportunities if o.rule == "memory.bound"]
    assert fewer.recoverable.of("s") == pytest.approx(2 * size / BANDWIDTH / 2)  # half the bytes, half the time
    assert "4.29 TB/s" in of.gpu_verdict.text
    assert of.families[0].family == "copy"
    assert "quantise" not in fewer.advice + of.gpu_verdict.advice  # there are no weights
    assert "smaller data type" in fewer.advice


def copies(ranges: list[tuple[str, int, int]], rows: list[tuple[str, int, int, int]]) -> Timeline:
    """Copies (name, launch, duration, bytes) and no kernels."""
    recording = made(ranges, [(name, launch, time) for name, launch, time, _ in rows])
    recording.copies, recording.kernels = recording.kernels, recording.copies
    recording.copies.bytes = np.array([size for *_, size in rows], dtype=np.int64)
    return recording


def test_a_plain_copy_is_a_memcpy_and_needs_no_counters() -> None:
    """PyTorch copies with cudaMemcpyAsync: the timeline knows its bytes, each read and written."""
    size = 2**30
    rows = [("[memcpy Device-to-Device]", 100, 500_000, size), ("[memset]", 500_200, 1_000, 1024)]
    of = performance(evaluated(copies([("copy", 0, 510_000)], rows)), "copy")
    moved = 2 * size + 1024
    assert of.work.copied == of.work.dram == Quantity(moved, "B")
    assert used(of, "mbu", "busy") == pytest.approx(moved / 0.501e-3 / BANDWIDTH)
    assert (of.verdict.bound, of.gpu_verdict.bound) == ("dram", "dram")
    assert [(f.family, f.calls) for f in of.families] == [("memcpy", 2)]
    light = of.speed_of_light
    assert light is not None
    assert light.limit.of("s") == pytest.approx(moved / BANDWIDTH, rel=1e-3)


def test_a_region_of_copies_does_not_take_the_counters_of_others() -> None:
    """Counters were taken in the region beside it: its copies are known from the timeline alone."""
    size = 2**30
    recording = made([("gemm", 0, 2_000_000), ("copy", 2_000_000, 2_510_000)], [(GEMM, 100, 1_500_000)])
    beside = copies([("copy", 2_000_000, 2_510_000)], [("[memcpy Device-to-Device]", 2_000_100, 500_000, size)])
    recording.strings += beside.strings
    recording.copies = evolve(beside.copies, name=beside.copies.name + len(recording.strings) - len(beside.strings))
    found = evaluated(recording, sample(GEMM, ["gemm"], flops=2 * 8192**3, read=2**28, written=2**27, time=1_600_000))
    for scope in found.scopes:
        of = next(r.performance for r in scope.regions if r.key == "copy")
        assert of is not None
        assert (of.verdict.bound, of.gpu_verdict.bound) == ("dram", "dram")
        assert of.speed_of_light is not None
        assert of.speed_of_light.limit.of("s") == pytest.approx(2 * size / BANDWIDTH, rel=1e-3)


def test_copies_to_the_host_are_communication() -> None:
    rows = [("[memcpy Host-to-Device]", 100, 900_000, 2**24)]
    of = performance(evaluated(copies([("load", 0, 1_000_000)], rows)), "load")
    assert of.verdict.bound == "communication"
    assert "copies between host and GPU 900 µs" in of.verdict.text
    assert of.gpu_verdict.bound == "unknown"
    assert [o.kind for o in of.opportunities] == ["host copies", "waiting"]


def test_work_side_by_side_is_told() -> None:
    """Two products of 1 ms that overlap by half: 2 ms of kernels in 1.5 ms."""
    recording = made([("r", 0, 1_600_000)], [(GEMM, 0, 1_000_000), (GEMM, 500_000, 1_000_000)])
    action = sample(GEMM, ["r"], flops=0.5 * PEAK * 1e-3, read=1, written=1, time=1_000_000)
    of = performance(evaluated(recording, action), "r")
    assert of.time.overlap == Quantity(500_000, "ns")
    assert of.time.busy == Quantity(1_500_000, "ns")
    light = of.speed_of_light
    assert light is not None
    # Half of each kernel is above its roof; side by side a saved millisecond saves three quarters of one.
    assert light.above_roof.value == pytest.approx(750_000)
    assert light.limit.value == pytest.approx(750_000)


def loop() -> Timeline:
    """100 kernels of 2 µs, one every 20 µs, in a range of 2 ms."""
    return made([("loop", 0, 2_000_000)], [("tiny_elementwise_kernel", 20_000 * i + 10, 2_000) for i in range(100)])


def test_a_launch_bound_loop() -> None:
    of = performance(evaluated(loop()), "loop")
    assert (of.verdict.bound, of.verdict.title, of.verdict.confidence) == ("launch", "launch-bound", "high")
    assert of.time.gap_per_launch == Quantity(18_000, "ns")
    assert of.time.idle == Quantity(1_800_000, "ns")
    assert "90.0 % of the wall time (1.8 ms of 2 ms)" in of.verdict.text
    assert {e.fact for e in of.verdict.evidence} == {"idle_share", "gap_per_launch_us", "cause_share"}
    waiting, fusable = of.opportunities
    assert (waiting.rule, fusable.rule) == ("launch.graph", "fuse.elementwise")
    assert waiting.recoverable == Quantity(1_700_000, "ns")  # a microsecond for each of 100 launches stays
    assert "1.8 ms of 2 ms" in waiting.text


def test_waiting_that_the_profiler_may_have_caused_is_not_called_certain() -> None:
    """Kernels of 15 µs, and 20 µs between them: about what tracing adds to a launch."""
    rows = [("k", 35_000 * i, 15_000) for i in range(100)]
    found = performance(evaluated(made([("prefill", 0, 3_500_000)], rows)), "prefill").verdict
    assert (found.bound, found.confidence) == ("launch", "low")
    assert "as little as 0 %" in found.confidence_reasons[-1]
    wide = [("k", 75_000 * i, 15_000) for i in range(100)]
    assert performance(evaluated(made([("prefill", 0, 7_500_000)], wide)), "prefill").verdict.confidence == "high"


def test_what_makes_a_verdict_unsure_is_named_last() -> None:
    facts = Facts({"working_share": 0.682}, {"working_share": "68.2 %", "basis": "wall time", "family_parts": "copies"})
    found = rules_say("gpu", facts, CounterQuality(coverage=1.0, spread=None, reasons=["times are ncu's"]))
    assert found
    assert found.confidence_reasons == [
        "counters cover 100 % of the kernel time",
        "times are ncu's",
        "close to the threshold (working share 68.2 %, where the threshold is 65.0 %)",
    ]


def test_the_wall_time_of_the_program_alone_is_the_one_that_counts() -> None:
    rows = [("k", 35_000 * i, 15_000) for i in range(100)]
    recording = made([("prefill", 0, 3_500_000)], rows, domains={"prefill": "LLM"})
    found = evaluated(recording, alone={"prefill": 1.6e-3})
    assert "1.6 ms wall time without a profiler (3.5 ms under it), GPU working 93.8 %" in answer(found)[0]
    assert found.answer.where.startswith("LLM@prefill takes 1.6 ms.")
    of = performance(found, "LLM@prefill")
    assert (of.time.wall, of.time.profiled_wall) == (Quantity(1.6e6, "ns"), Quantity(3.5e6, "ns"))
    assert of.time.idle is not None
    assert of.time.idle.of("s") == pytest.approx(0.1e-3)
    assert of.verdict.bound == "gpu"
    light = of.speed_of_light
    assert light is not None
    assert (light.now, light.waiting.of("s")) == (Quantity(1.6e6, "ns"), pytest.approx(0.1e-3))
    # A range of somebody else with the same name is not the stage that was timed.
    other = performance(evaluated(made([("prefill", 0, 3_500_000)], rows), alone={"prefill": 1.6e-3}), "prefill")
    assert other.time.profiled_wall is None


def test_without_counters_only_times_are_evaluated() -> None:
    found = evaluated(loop())
    of = performance(found, "loop")
    assert of.gpu_verdict.bound == "unknown"
    assert of.gpu_verdict.text.startswith("Cannot tell, because 100.0 % of the kernel time has no counters")
    assert of.gpu_verdict.next_step == "llm-perf profile --include loop -- CMD"
    assert of.utilisation == []
    assert of.work.flops is None
    assert "NO_COUNTERS" in {d.code for d in found.diagnostics}


def test_a_busy_gpu_without_counters_is_gpu_bound() -> None:
    of = performance(evaluated(made([("step", 0, 1_000_000)], [(GEMM, 0, 950_000)])), "step")
    assert (of.verdict.bound, of.verdict.confidence) == ("gpu", "high")
    assert "95.0 % of the wall time, mostly on matrix products (100 %)" in of.verdict.text
    assert of.verdict.next_step.startswith("llm-perf profile")


def test_long_gaps_are_not_launches() -> None:
    recording = made([("load", 0, 10_000_000)], [("k", 10, 1_000), ("k", 5_000_000, 1_000)])
    assert performance(evaluated(recording), "load").verdict.bound == "host"


def test_without_a_timeline_the_verdict_is_that_of_the_kernels() -> None:
    action = sample(GEMM, ["gemm"], flops=2 * 8192**3, read=1e8, written=1e8, time=1_500_000)
    set_of = CounterSet("c.ncu-rep", "ncu-rep", [action], dict(INFO), gpu_facts={0: H200})
    action.device = 0
    of = performance(build_report([set_of], ReportOptions()), "gemm")
    assert of.verdict.bound == of.gpu_verdict.bound == "tensor"
    assert "there is no timeline" in of.verdict.text
    assert "times are ncu's" in " ".join(of.gpu_verdict.confidence_reasons)
    assert used(of, "mfu", "busy") == pytest.approx(2 * 8192**3 / 1.5e-3 / PEAK)


def test_a_range_that_returns_early_is_timed_by_its_work() -> None:
    recording = made([("call", 0, 10_000)], [(GEMM, 10, 1_500_000)])
    of = performance(
        evaluated(recording, sample(GEMM, ["call"], flops=2 * 8192**3, read=1e8, written=1e8, time=1_500_000)), "call"
    )
    assert of.verdict.bound == "tensor"
    assert "On the GPU it takes 1.5 ms, idle for 0 ns." in of.verdict.text
    assert (of.time.basis, of.time.wall, of.time.idle) == ("gpu", Quantity(1_500_000, "ns"), Quantity(0, "ns"))
    assert of.time.after_return == Quantity(1_490_011, "ns")


def test_waiting_for_work_of_others_is_told_apart() -> None:
    recording = made([("launch", 0, 100), ("wait", 200, 2_000_000)], [(GEMM, 10, 1_900_000), ("k", 1_950_000, 100)])
    of = performance(evaluated(recording), "wait")
    assert of.verdict.bound == "other_work"
    light = of.speed_of_light
    assert light is not None
    assert light.other_work.value > 1_800_000
    assert [o for o in of.opportunities if o.kind == "waiting" and o.recoverable.value > 100_000] == []


# -- what bounds kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "bound"),
    [
        ({"read": 2.2e9, "written": 0.2e9}, "dram"),  # 0.5 ms of 1 ms at 4.8 TB/s
        ({"read": 1e7, "written": 1e7, "l2": 7e9}, "l2"),  # 7 TB/s of 12.2
        ({"read": 1e7, "written": 1e7, "l2": 1e9}, "latency"),
        ({"flops": 0.6 * PEAK * 1e-3, "read": 1e8, "written": 1e7}, "tensor"),
    ],
)
def test_kernels_are_bound_by_the_roof_they_run_near(values: dict[str, float], bound: str) -> None:
    name = GEMM if "flops" in values else "some_elementwise_kernel"
    recording = made([("r", 0, 1_010_000)], [(name, 1, 1_000_000)])
    of = performance(evaluated(recording, sample(name, ["r"], time=1_000_000, **values)), "r")
    assert of.gpu_verdict.bound == bound
    assert list(of.bound_time) == [bound]
    assert bound != "latency" or "no roof: 1 launch of 1 ms on average" in of.gpu_verdict.text


def test_no_single_limit_is_balanced() -> None:
    names = {"a_elementwise": {"read": 2e9, "written": 0.4e9}, GEMM: {"flops": 0.6 * PEAK * 1e-3}, "b_elementwise": {}}
    kernels = [(name, 1_100_000 * i, 1_000_000) for i, name in enumerate(names)]
    recording = made([("r", 0, 3_300_000)], kernels)
    samples = [sample(name, ["r"], time=1_000_000, **values) for name, values in names.items()]
    of = performance(evaluated(recording, *samples), "r")
    assert of.gpu_verdict.bound == "balanced"
    assert "DRAM 33 %, latency 33 %" in of.gpu_verdict.text.replace("tensor 33 %, ", "")


def test_occupancy_and_stalls_are_told_where_collected() -> None:
    action = sample("some_elementwise_kernel", ["r"], read=1e6, written=1e6, time=1_000_000)
    action.metrics |= {
        "sm__warps_active.avg.pct_of_peak_sustained_active": 12.0,
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 6.0,
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 2.0,
    }
    recording = made([("r", 0, 1_010_000)], [("some_elementwise_kernel", 1, 1_000_000)])
    of = performance(evaluated(recording, action), "r")
    assert of.gpu_verdict.bound == "latency"
    assert "occupancy 12 %, warps wait mostly for data from memory (75 % of their waiting)" in of.gpu_verdict.text


def test_collectives_and_host_copies_are_communication() -> None:
    recording = made(
        [("step", 0, 1_000_000)], [("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1, 700_000), (GEMM, 800_000, 100_000)]
    )
    of = performance(evaluated(recording), "step")
    assert of.verdict.bound == "communication"
    assert "collectives 700 µs" in of.verdict.text


def test_a_data_type_that_was_not_counted_is_not_called_idle() -> None:
    """An fp16 product under the bf16 counter: its FLOPs are missing, not zero."""
    name = "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT"
    recording = made([("r", 0, 1_010_000)], [(name, 1, 1_000_000)])
    of = performance(evaluated(recording, sample(name, ["r"], read=1e8, written=1e8, time=1_000_000)), "r")
    assert of.gpu_verdict.bound == "unknown"
    assert of.opportunities == []
    assert any(
        "100 % of the kernel time" in text and "sm__ops_path_tensor_src_fp16.sum" in text for text in of.work.missing
    )
    assert not [u for u in of.utilisation if u.metric == "mfu"]


def test_samples_of_other_sizes_do_not_describe_a_launch() -> None:
    """The same kernel sampled where it took ten times as long: another problem size."""
    recording = made([("small", 0, 100_000)], [("k_elementwise", 1, 90_000)])
    of = performance(
        evaluated(recording, sample("k_elementwise", ["large"], read=4e9, written=4e8, time=900_000)), "small"
    )
    assert of.gpu_verdict.bound == "unknown"
    assert of.speed_of_light is not None
    assert of.speed_of_light.analysed_share == 0


def test_several_data_types_share_the_tensor_cores() -> None:
    info = {**INFO, "sm__ops_path_tensor_src_fp8.sum": MetricInfo("", "sum")}
    action = sample(GEMM, ["r"], flops=0.25 * PEAK * 1e-3, read=1e6, written=1e6, time=1_000_000)
    action.metrics["sm__ops_path_tensor_src_fp8.sum"] = 0.25 * 1979e12 * 1e-3
    of = performance(evaluated(made([("r", 0, 1_010_000)], [(GEMM, 1, 1_000_000)]), action, info=info), "r")
    assert used(of, "mfu", "busy") == pytest.approx(0.5)
    (one,) = [u for u in of.utilisation if (u.metric, u.time_basis) == ("mfu", "busy")]
    assert set(one.peaks) == {"tensor_bf16", "tensor_fp8"}


def test_a_counter_in_a_strange_unit_is_not_used() -> None:
    info = {**INFO, READ: MetricInfo("Gbyte", "sum")}
    found = evaluated(loop(), sample("tiny_elementwise_kernel", ["loop"], read=1.0, written=1e3, time=2_000), info=info)
    assert performance(found, "loop").work.dram is None
    assert "COUNTER_UNITS" in {d.code for d in found.diagnostics}


# -- hardware in the report --------------------------------------------------------------------------------


def test_an_unknown_gpu_gets_no_figures_and_a_word() -> None:
    found = evaluated(
        loop(),
        sample("tiny_elementwise_kernel", ["loop"], read=1e3, written=1e3, time=2_000),
        facts={"name": "NVIDIA X"},
    )
    of = performance(found, "loop")
    assert of.utilisation == []
    assert of.verdict.bound == "launch"  # times need no peaks
    assert of.gpu_verdict.text == "Cannot tell, because the peaks of NVIDIA X are not known."
    (told,) = [d for d in found.diagnostics if d.code == "HARDWARE_UNKNOWN"]
    assert "NVIDIA X" in told.message
    assert "--hardware" in told.fix


def test_the_user_s_figures_are_used() -> None:
    of = performance(one_gemm(hardware={"tensor_bf16": "1000TFLOP/s"}), "gemm")
    assert used(of, "mfu", "busy") == pytest.approx(2 * 8192**3 / 1.5e-3 / 1000e12)


def test_both_denominators_are_shown() -> None:
    calibration = {
        "gpu": "NVIDIA H200",
        "peaks": {"tensor_bf16": {"value": 750e12, "unit": "FLOP/s"}},
        "bandwidth": {"value": 4.2e12, "unit": "B/s"},
    }
    of = performance(one_gemm(calibrations=[calibration]), "gemm")
    assert used(of, "mfu", "busy") == pytest.approx(0.7408, abs=1e-4)
    assert used(of, "mfu", "busy", "calibrated") == pytest.approx(2 * 8192**3 / 1.5e-3 / 750e12)
    assert used(of, "mbu", "wall", "calibrated") == pytest.approx(3 * 8192 * 8192 * 2 / 2e-3 / 4.2e12)


# -- FLOPs by formula --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "instances", "expected"),
    [
        ({"flops": 1e12, "repeats": 1}, 1, 1e12),
        ({"flops": 1e12, "repeats": 1}, 3, 3e12),
        ({"flops": 1e12, "repeats": 8}, 1, 8e12),  # one region around eight steps
        ({"flops": 1e12, "repeats": 8}, 8, 8e12),  # one region for each of eight steps
    ],
)
def test_a_formula_counts_for_every_run_of_the_region(
    formula: dict[str, float], instances: int, expected: float
) -> None:
    ranges = [("stage", 1000 * i, 1000 * i + 900) for i in range(instances)]
    recording = made(ranges, [("k", 1000 * i + 1, 100) for i in range(instances)])
    assert performance(evaluated(recording, formula={"stage": formula}), "stage").work.formula == Quantity(
        expected, "FLOP"
    )


def test_counted_and_formula_are_compared_and_explained() -> None:
    exact = performance(one_gemm(formula={"gemm": {"flops": 2 * 8192**3}}), "gemm").work
    assert exact.counted_over_formula == pytest.approx(1)
    assert "agree with the work" in exact.formula_note
    padded = performance(one_gemm(formula={"gemm": {"flops": 8192**3}}), "gemm").work
    assert padded.counted_over_formula == pytest.approx(2)
    assert "padded" in padded.formula_note
    assert (
        "50 % of the model's work"
        in performance(one_gemm(formula={"gemm": {"flops": 4 * 8192**3}}), "gemm").work.formula_note
    )


def test_whole_tiles_explain_what_tensor_cores_do_beyond_the_formula() -> None:
    needed = 2 * 8192**3 / 10
    shapes = {"flops": needed, "counter": 1.1 * needed, "tensor_cores": 8 * needed}
    work = performance(one_gemm(formula={"gemm": shapes}), "gemm").work
    assert work.torch_counter == Quantity(1.1 * needed, "FLOP")
    assert work.counted_over_formula == pytest.approx(10)
    assert "alone make 8.00 times" in work.formula_note


# -- stages, tokens ----------------------------------------------------------------------------------------


def test_tokens_come_from_the_instances_of_decode_steps() -> None:
    steps = [("decode_step", 1_000_000 * i, 1_000_000 * i + 900_000) for i in range(4)]
    recording = made([("decode", 0, 4_000_000), *steps], [("k", 1_000_000 * i + 10, 300_000) for i in range(4)])
    tokens = performance(evaluated(recording), "decode").tokens
    assert tokens is not None
    assert tokens.tokens == Quantity(4, "token")
    assert tokens.now.of("token/s") == pytest.approx(1000)
    assert tokens.gpu_only is not None
    assert tokens.gpu_only.of("token/s") == pytest.approx(4 / 1.2e-3)
    assert tokens.limit is None  # without counters the limit is not known
    assert performance(evaluated(made([("prefill", 0, 100)], [("k", 1, 10)])), "prefill").tokens is None


def test_steps_that_check_the_guesses_of_a_smaller_model_make_nobody_knows_how_many_tokens() -> None:
    steps = [("decode_step", 1_000_000 * i, 1_000_000 * i + 900_000) for i in range(4)]
    drafts = [("draft", 1_000_000 * i + 10, 1_000_000 * i + 400_000) for i in range(4)]
    kernels = [("k", 1_000_000 * i + 500_000, 300_000) for i in range(4)]
    report = evaluated(made([("decode", 0, 4_000_000), *steps, *drafts], kernels))
    assert performance(report, "decode").tokens is performance(report, "decode/decode_step").tokens is None


@pytest.mark.parametrize(
    ("name", "is_step"),
    [("decode_step", True), ("decode_step_12", True), ("decode step", True), ("decode/step", False), ("generate_token", True),
     ("decode", False), ("step", False), ("decoder_layer", False), ("prefill", False)],
)  # fmt: skip
def test_names_of_decode_steps(name: str, is_step: bool) -> None:
    assert bool(re.search(verdict_rules().token_step, name)) == is_step


def test_stages_are_outermost_and_have_gpu_work() -> None:
    ranges = [("prefill", 0, 100), ("layer0", 10, 90), ("idle", 100, 110), ("decode", 110, 210)]
    recording = made(ranges, [("k", 20, 5), ("k", 120, 5)])
    assert evaluated(recording).stages == ["prefill", "decode"]


def test_a_wrapper_is_no_stage() -> None:
    ranges = [("generate", 0, 1000), ("prefill", 10, 450), ("decode", 470, 990)]
    recording = made(ranges, [("k", 20, 5), ("k", 510, 5)])
    assert evaluated(recording).stages == ["generate/prefill", "generate/decode"]


def test_a_region_whose_parts_hold_little_of_its_time_is_the_stage() -> None:
    ranges = [("step", 0, 1000), ("gather", 10, 40), ("call", 500, 600)]
    recording = made(ranges, [("k", 20, 5), ("k", 510, 5), ("k", 700, 50)])
    assert evaluated(recording).stages == ["step"]


# -- the recordings of an H200 -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> NCUProfileRegionReport:
    return report(
        "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite", "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config"
    )


def test_decode_is_launch_bound(demo: NCUProfileRegionReport) -> None:
    of = performance(demo, "LLM@decode")
    assert (of.verdict.bound, of.verdict.confidence) == ("launch", "high")
    region = regions_of(demo.main_scope)["LLM@decode"]
    assert region.gpu_idle_ns is not None
    assert region.wall_ns is not None
    assert region.gpu_idle_ns / region.wall_ns > 0.9
    assert of.gpu_verdict.bound == "latency"  # kernels of 3 µs
    assert demo.opportunities[0].region == "LLM@decode"
    assert demo.opportunities[0].kind == "waiting"


def test_prefill_is_matrix_products_and_elementwise_kernels(demo: NCUProfileRegionReport) -> None:
    of = performance(demo, "LLM@prefill")
    assert [f.family for f in of.families[:3]] == ["gemm", "elementwise", "copy"]
    assert of.gpu_verdict.bound == "balanced"
    gemm = of.families[0]
    assert gemm.time_at_roof is not None
    assert 0.65 < (gemm.time_at_roof / gemm.time).of("ratio") < 0.85
    best = of.signatures[0]
    assert (best.family, best.bound) == ("gemm", "tensor")
    assert any(o.kind == "fusion" and "elementwise" in o.family and "copy" in o.family for o in of.opportunities)


def test_mfu_of_prefill_by_hand(demo: NCUProfileRegionReport) -> None:
    """From range replay (the truth) and from the model's shapes."""
    (truth,) = [a for a in counters("decoder-8layers-warm-app-range").actions if a.push_pop == {"LLM": ["prefill"]}]
    region = regions_of(demo.main_scope)["LLM@prefill"]
    assert region.gpu_busy_ns is not None
    assert region.wall_ns is not None
    of = performance(demo, "LLM@prefill")
    flops = truth.metrics[BF16]
    assert used(of, "mfu", "busy") == pytest.approx(flops / (region.gpu_busy_ns * 1e-9) / PEAK, rel=0.002)
    assert used(of, "mfu", "wall") == pytest.approx(flops / (region.wall_ns * 1e-9) / PEAK, rel=0.002)
    traffic = truth.metrics[READ] + truth.metrics[WRITTEN]
    assert used(of, "mbu", "busy") == pytest.approx(traffic / (region.gpu_busy_ns * 1e-9) / BANDWIDTH, rel=0.03)
    # Projections of 8 layers for 2048 tokens, the last token's logits in a tile of 8 rows, causal attention.
    hidden, inner, heads, kv, tokens, layers, words = 2048, 6144, 2048, 1024, 2048, 8, 151936
    matrices = hidden * (heads + 2 * kv) + heads * hidden + 3 * hidden * inner
    projections = 2 * tokens * layers * matrices
    logits = 2 * 8 * hidden * words
    attention = 2 * 2 * tokens * tokens * heads * layers
    assert projections + logits + attention / 2 < flops < projections + logits + 0.6 * attention
    assert of.work.flops is not None
    assert of.work.flops.value == pytest.approx(flops, rel=0.001)


def test_speed_of_light_of_the_recording_adds_up(demo: NCUProfileRegionReport) -> None:
    for region in regions_of(demo.main_scope).values():
        of = region.performance
        assert of is not None
        light = of.speed_of_light
        assert light is not None
        parts = total([light.limit, light.above_roof, *(p for p in (light.waiting, light.other_work) if p)], "ns")
        assert parts.value == pytest.approx(light.now.value, rel=1e-9), region.key
        assert light.limit.value > 0
        memory = region.inclusive.memory
        on_the_gpu = (region.inclusive.gpu_time_ns or 0) + memory.time_ns - memory.host_time_ns
        assert sum(t.value for t in of.bound_time.values()) == pytest.approx(on_the_gpu)
        known = [f.recoverable.value for f in of.families if f.recoverable is not None]
        assert sum(known) == pytest.approx(light.above_roof.value, rel=0.02), region.key
        assert sum(o.recoverable.value for o in of.opportunities) <= light.now.value * 1.001


def test_opportunities_are_ranked_by_recoverable_time(demo: NCUProfileRegionReport) -> None:
    values = [o.recoverable.of("ns") for o in demo.opportunities]
    assert values == sorted(values, reverse=True)
    assert all(0 < o.recoverable.value <= o.time.value <= o.of.value for o in demo.opportunities)


def test_no_share_of_a_roof_is_above_one(demo: NCUProfileRegionReport) -> None:
    for region in regions_of(demo.main_scope).values():
        assert region.performance is not None
        for record in region.performance.signatures:
            assert all(0 <= share <= 1 for share in record.shares.values()), record.short_name


def test_counters_alone_give_kernels_a_verdict() -> None:
    found = report("ncu-2025.3.1-h200-decoder-2layers-basic")
    of = performance(found, "LLM@prefill")
    assert of.verdict.bound == of.gpu_verdict.bound
    assert of.gpu_verdict.bound in ("balanced", "latency", "tensor")
    assert of.ncu_rules  # this report has ncu's own rules
    assert of.ncu_rules[0].weighted_speedup_percent is not None
    shares = [r.share_of_gpu_time for r in of.ncu_rules if r.share_of_gpu_time is not None]
    assert all(0 < share <= 1 for share in shares)


def test_range_results_alone_say_what_is_missing() -> None:
    of = performance(report("ncu-2025.3.1-h200-decoder-8layers-warm-app-range"), "LLM@prefill")
    assert of.work.flops is not None
    assert of.verdict.bound == of.gpu_verdict.bound == "unknown"
    assert "measured as a whole" in of.gpu_verdict.text


def test_two_ranks_on_one_gpu_count_as_one() -> None:
    found = report("nsys-2025.3.1-h200-ranks.sqlite")
    assert [g.model for g in found.hardware] == ["H200 SXM"]
    for scope in found.scopes:
        assert all(r.performance is not None for r in scope.regions if r.depth == 0)


def test_a_timeline_alone_reads_the_copies_between_host_and_gpu() -> None:
    source = timeline("train")
    names = [source.strings[n] for n in source.copies.name.tolist()]
    duration = (source.copies.end - source.copies.start).tolist()
    crossing = sum(d for name, d in zip(names, duration, strict=True) if "Host" in name)
    assert crossing > 0
    found = report(recording("nsys-*-train.sqlite"))
    scope = found.main_scope
    assert scope is not None
    inside = sum(r.inclusive.memory.host_time_ns for r in scope.regions if r.depth == 0 and r.range_kind == "push_pop")
    assert inside <= crossing


# -- the tables --------------------------------------------------------------------------------------------


def test_rates_of_sections_become_totals() -> None:
    info = {
        "dram__bytes.sum.per_second": MetricInfo("byte/s", "mean"),
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed": MetricInfo("inst/cycle", "mean"),
        "smsp__cycles_elapsed.avg": MetricInfo("cycle", "mean"),
        TIME: MetricInfo("ns", "sum"),
    }
    action = Action("kernel", "k", metrics={
        "dram__bytes.sum.per_second": 1e12,
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed": 50.0,
        "smsp__cycles_elapsed.avg": 1000.0,
        TIME: 2_000.0,
    })  # fmt: skip
    (found,) = with_totals([CounterSet("c", "ncu-rep", [action], info)])
    amounts = amounts_of(found.actions[0].metrics)
    assert amounts.bytes["dram"] == pytest.approx(1e12 * 2e-6)
    assert amounts.flops["cuda_fp32"] == pytest.approx(2 * 50 * 1000)
    assert "dram__bytes.sum" not in action.metrics  # the recording itself is left as it is


def test_texts_of_rules_can_be_filled() -> None:
    """Every name in braces is one that facts make."""
    of = performance(
        evaluated(loop(), sample("tiny_elementwise_kernel", ["loop"], read=1e3, written=1e3, time=2_000)), "loop"
    )
    assert of.verdict.text
    texts = [t for rule in verdict_rules().rules for t in (rule.text, *(a.text for a in rule.advice))]
    names = {name for text in texts for name in re.findall(r"\{(\w+)\}", text)}
    made_words = {
        "communication_share", "communication_parts", "idle_share", "idle", "wall", "gap_per_launch", "launches",
        "counted_launches", "mean_kernel", "others_share", "working_share", "family_parts", "tensor_share", "mfu_words", "dram_share", "mbu_words",
        "l2_share", "l2_words", "cuda_core_share", "latency_share", "occupancy_words", "parts", "basis",
        "l1_share", "l1_words", "sm_share", "sector_use_share", "occupancy_limit", "block_words", "fp64_share",
        "skew_share", "waiting_rank", "late_rank", "late_why", "late_words", "rank_waiting", "transfer_words", "busier_rank_share", "late_stage_share", "late_time", "mean_time",
        "migration_share", "migration",
    }  # fmt: skip
    assert names <= made_words


# -- what must not change a verdict, and graphs kernel by kernel ------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("choice", [{"kernel_include": ["*nvjet*"]}, {"kernel_exclude": ["regex:elementwise|Cat"]}])
def test_a_kernel_filter_changes_counts_and_not_verdicts(choice: dict[str, list[str]]) -> None:
    inputs = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")
    everything, chosen = report(*inputs), report(*inputs, **choice)
    of_all, of_chosen = regions_of(everything.main_scope), regions_of(chosen.main_scope)
    assert of_chosen.keys() == of_all.keys()
    fewer = [key for key in of_all if of_chosen[key].inclusive.kernel_count < of_all[key].inclusive.kernel_count]
    assert {"LLM@decode", "LLM@prefill"} <= set(fewer)
    for key, region in of_all.items():
        assert (region.performance is None) == (of_chosen[key].performance is None)
        if region.performance is not None:
            assert performance(chosen, key).verdict == region.performance.verdict
            assert performance(chosen, key).gpu_verdict == region.performance.gpu_verdict
            assert performance(chosen, key).speed_of_light == region.performance.speed_of_light
    assert chosen.opportunities == everything.opportunities
    assert chosen.stages == everything.stages
    listed = {s.kernel_name for s in performance(chosen, "LLM@decode").signatures}
    assert listed < {s.kernel_name for s in performance(everything, "LLM@decode").signatures}
    assert "KERNELS_CHOSEN" in {d.code for d in chosen.diagnostics}
    assert "KERNELS_CHOSEN" not in {d.code for d in everything.diagnostics}


def test_kernels_of_a_graph_are_gpu_work_and_the_graph_is_one_launch() -> None:
    found = report("nsys-*-graph_node.sqlite")
    regions = regions_of(found.main_scope)
    replay = regions["LLM@replay_all"]
    assert replay.inclusive.kernel_count == replay.graph_kernels == 90
    assert replay.graph_replays == regions["LLM@replay_all/decode_step"].graph_replays == 6
    of = performance(found, "LLM@replay_all")
    assert of.time.launches == 6
    # The first replay is warm-up: once warm, the GPU works most of the time.
    assert (of.verdict.bound, of.verdict.title) == ("gpu", "GPU-bound")
    # What already is a graph is not told to become one.
    waiting = [o for o in of.opportunities if o.kind == "waiting"]
    assert waiting
    assert "launch.graph" not in {o.rule for o in waiting}


def test_the_same_graph_traced_as_one_block_has_as_many_launches() -> None:
    nodes, blocks = (report(f"nsys-*-graph_{kind}.sqlite") for kind in ("node", "whole"))
    assert performance(nodes, "LLM@replay_all").time.launches == performance(blocks, "LLM@replay_all").time.launches


def test_regions_of_a_capture_alone_have_no_gpu_work() -> None:
    assert performance(report("nsys-*-graph_node.sqlite"), "LLM@capture").verdict.title == "no GPU work"


# -- what names of kernels tell where there are no counters -----------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        ("vectorized_elementwise_kernel<4, AddFunctor>", "fuse.elementwise"),
        ("triton_poi_fused_add_mul_0", None),  # a compiler has fused it
        ("volta_sgemm_64x64_nt", "gemm.fp32"),
        ("implicit_convolve_sgemm<float, float, 1024>", "gemm.fp32"),
        ("implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, 1024>", None),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "gemm.old_kernel"),  # on an H200
        ("nvjet_tst_128x64_64x8_1x2_h_bz_TNT", None),
    ],
)
def test_names_of_kernels_tell_what_to_do(kernel: str, rule: str | None) -> None:
    """Kernels of 40 µs without a pause: the GPU is the limit, and nothing was counted."""
    rows = [(kernel, 40_000 * i, 40_000) for i in range(100)]
    found = evaluated(made([("step", 0, 4_000_000)], rows))
    assert found.answer.verdict == "gpu"
    assert [fix.rule for fix in found.answer.fixes] == ([rule] if rule else [])
    assert found.answer.do_first.startswith(found.answer.fixes[0].action if rule else "Measure what limits its kernels")


def test_a_kernel_that_runs_once_is_not_to_be_fused() -> None:
    found = evaluated(made([("step", 0, 40_000)], [("vectorized_elementwise_kernel", 0, 40_000)]))
    assert found.answer.fixes == []
