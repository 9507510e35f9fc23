"""A kernel's own limit: L1 and shared memory, occupancy, a grid that does not fill the GPU; by hand, and in ncu's reports."""

from __future__ import annotations

import pytest

from conftest import SHARED, counters, read, recording, report
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.verdicts.counted_work import amounts_of
from llm_perf_opt.analysis.verdicts.kernel_limits import lacks_occupancy, occupancy_of
from llm_perf_opt.analysis.verdicts.launches import Kind
from llm_perf_opt.analysis.verdicts.roofs import shares_of_peak
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo
from llm_perf_opt.regions.model import RegionPerformance
from test_join_rules import result

PUBLIC = SHARED / "public"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
BYTES_OF_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
TIME = "gpu__time_duration.sum"
INFO = {name: MetricInfo("%", "mean") for name in (SM, MEMORY, DRAM, L2, L1, TENSOR, OCCUPANCY)}
ACTIVE, ELAPSED = "sm__cycles_active.avg", "gpc__cycles_elapsed.max"
INFO |= {name: MetricInfo("cycle", "sum") for name in (ACTIVE, ELAPSED)}
INFO |= {TIME: MetricInfo("ns", "sum"), BYTES_OF_SECTOR: MetricInfo("byte/sector", "mean")}
FITS = {"waves": 4.0, "registers": 3.0, "shared memory": 8.0, "warps": 8.0, "blocks": 16.0}


def kernel(
    name: str = "stencil", *, time: float = 100_000, fill: dict[str, float] | None = None, **percent: float
) -> Action:
    names = {"sm": SM, "memory": MEMORY, "dram": DRAM, "l2": L2, "l1": L1, "tensor": TENSOR, "occupancy": OCCUPANCY}
    names |= {"active": ACTIVE, "elapsed": ELAPSED}
    made = result({"": ["step"]}, name=name)
    made.device, made.fill = 0, fill or {}
    made.metrics = {names[what]: value for what, value in percent.items() if what in names} | {TIME: time}
    if "used_bytes" in percent:
        made.metrics[BYTES_OF_SECTOR] = percent["used_bytes"]
    return made


def evaluated(*actions: Action) -> RegionPerformance:
    found = build_report([CounterSet("c.ncu-rep", "ncu-rep", list(actions), dict(INFO))], ReportOptions())
    assert found.main_scope is not None
    (region,) = found.main_scope.regions
    assert region.performance is not None
    return region.performance


@pytest.mark.parametrize(
    ("percent", "bound"),
    [
        ({"sm": 10, "memory": 86, "dram": 1, "l2": 1, "l1": 97}, "l1"),
        ({"sm": 10, "memory": 86, "dram": 1, "l2": 1}, "l1"),  # neither L2 nor DRAM is what is busy
        ({"sm": 10, "memory": 90, "dram": 90, "l2": 40, "l1": 60}, "dram"),
        ({"sm": 1, "memory": 2, "dram": 1, "l2": 2, "l1": 70}, "latency"),  # L1 is busy on the one SM that works
        ({"sm": 50, "memory": 45, "dram": 20, "l2": 45, "l1": 30}, "latency"),
        ({"sm": 85, "memory": 30, "dram": 20, "l2": 25, "l1": 30}, "sm"),
        ({"sm": 85, "memory": 30, "dram": 20, "l2": 25, "l1": 30, "tensor": 84}, "tensor"),
        # ncu's memory throughput leaves out parts of L1: cycles tell what L1 did over the whole launch.
        ({"sm": 6, "memory": 49, "dram": 0.5, "l2": 0.4, "l1": 98, "active": 553, "elapsed": 563}, "l1"),
        ({"sm": 2, "memory": 59, "dram": 18, "l2": 17, "l1": 99, "active": 249, "elapsed": 420}, "l1"),  # of 64 SMs
        ({"sm": 0, "memory": 1, "dram": 0, "l2": 1, "l1": 61, "active": 9, "elapsed": 3078}, "latency"),
        ({"sm": 13, "memory": 90, "dram": 90, "l2": 94, "l1": 27}, "dram"),  # what DRAM moves goes through L2
        ({"sm": 4, "memory": 19}, "latency"),
        ({"sm": 12, "memory": 78}, "unknown"),  # which level of it?
    ],
)
def test_the_busiest_unit_is_the_limit(percent: dict[str, float], bound: str) -> None:
    of = evaluated(kernel(**percent))
    assert (of.verdict.bound, of.signatures[0].bound or "unknown") == (bound, bound)


def test_a_matrix_product_whose_operations_were_not_counted_still_has_a_limit_by_ncu() -> None:
    assert evaluated(kernel("my_gemm", sm=30, memory=88, dram=88, l2=30, l1=20)).verdict.bound == "dram"


def test_uncoalesced_loads_tell_what_l1_does_too_much() -> None:
    of = evaluated(kernel(sm=10, memory=86, dram=1, l2=1, l1=97, used_bytes=8))
    best = of.opportunities[0]
    assert best.rule == "l1.bound"
    assert best.recoverable.of("ns") == pytest.approx(0.86 * 0.75 * 100_000)  # 24 of 32 bytes are not used
    assert "25.0 % of the bytes" in best.advice
    of = evaluated(kernel(sm=10, memory=86, dram=1, l2=1, l1=97))
    assert of.opportunities[0].recoverable.of("ns") == pytest.approx(0.86 * 0.5 * 100_000)  # half the requests


def test_a_product_that_waits_is_not_told_to_move_fewer_bytes() -> None:
    of = evaluated(kernel("small_gemm", sm=0.4, memory=3.3, dram=3.3, l2=1.3, l1=27))
    assert (of.verdict.bound, of.opportunities[0].rule) == ("latency", "gemm.shape")


def test_a_kernel_of_few_blocks_is_told_to_launch_more() -> None:
    one = kernel("add", sm=0, memory=2, dram=2, l2=1, l1=1)
    one.grid, one.block = (1, 1, 1), (256, 1, 1)
    (best,) = evaluated(one).opportunities
    assert best.rule == "kernel.slow"
    assert "1 block of 256 threads do not fill the GPU" in best.advice


def test_gains_never_exceed_the_time() -> None:
    of = evaluated(
        kernel(sm=10, memory=86, dram=1, l2=1, l1=97, used_bytes=1),
        kernel("spmv", fill=FITS, sm=20, memory=20, dram=20, l2=10, l1=10, occupancy=36),
        kernel("gather", sm=20, memory=20, dram=20, l2=10, l1=10, occupancy=90),
    )
    assert {o.rule for o in of.opportunities} == {"l1.bound", "occupancy", "kernel.slow"}
    assert sum(o.recoverable.of("ns") for o in of.opportunities) <= 300_000


def test_occupancy_is_the_limit_where_registers_keep_warps_out() -> None:
    of = evaluated(kernel(fill=FITS, sm=20, memory=20, dram=20, l2=10, l1=10, occupancy=36))
    (best,) = of.opportunities
    assert best.rule == "occupancy"
    assert best.recoverable.of("ns") == pytest.approx(100_000 * 5 / 8)  # 3 of 8 blocks fit
    assert "registers let 38 % of the warps be resident" in best.text
    assert of.verdict.bound == "latency"
    assert of.verdict.advice.startswith("Raise occupancy: registers")


@pytest.mark.parametrize(
    ("changed", "percent"),
    [
        ({"waves": 0.2}, {"occupancy": 36.0}),  # a grid that does not fill the GPU has another problem
        ({"registers": 8.0}, {"occupancy": 36.0}),  # as many fit as there is room for
        ({}, {"occupancy": 10.0}),  # not even those that fit are there
        ({}, {"occupancy": 36.0, "tensor": 30.0}),  # products keep data in flight by other means
    ],
)
def test_low_occupancy_is_not_always_the_limit(changed: dict[str, float], percent: dict[str, float]) -> None:
    values = {"sm": 20.0, "dram": 20.0, **percent}
    names = {"sm": SM, "dram": DRAM, "occupancy": OCCUPANCY, "tensor": TENSOR}
    amounts = amounts_of({names[what]: value for what, value in values.items()})
    assert lacks_occupancy(Kind("k", "other", amounts=amounts_of({SM: 20, DRAM: 20, OCCUPANCY: 36}), fill=FITS))
    assert not lacks_occupancy(Kind("k", "other", amounts=amounts, fill=FITS | changed))


def test_blocks_of_one_warp_are_told_to_have_more_threads() -> None:
    of = evaluated(
        kernel(
            fill=FITS | {"blocks": 16.0, "warps": 48.0, "registers": 84.0, "shared memory": 28.0},
            sm=12,
            memory=41,
            dram=41,
            l2=28,
            l1=18,
            occupancy=33,
        )
    )
    (found,) = [one for one in of.opportunities if one.rule == "occupancy"]
    assert of.verdict.bound == "latency"
    assert "blocks of more threads" in found.advice
    assert "registers" not in found.advice + of.verdict.advice


def test_long_kernels_that_hardly_use_the_memory_are_not_told_to_fuse() -> None:
    copies = [
        kernel(name, time=16e6, sm=1, memory=16, dram=0.3, l2=16, l1=1, occupancy=83)
        for name in ("copyData", "copyDataToo")
    ]
    assert [one.rule for one in evaluated(*copies).opportunities] == ["kernel.slow"]


def test_a_product_in_fp32_at_the_memory_roof_is_told_to_move_fewer_bytes() -> None:
    of = evaluated(kernel("ampere_sgemm_128x64_tn", sm=48, memory=74, dram=74, l2=27, l1=48))
    assert {one.rule for one in of.opportunities} == {"memory.bound"}


def test_a_busy_memory_is_the_limit_even_if_the_sms_were_not_counted() -> None:
    assert evaluated(kernel("paged_attention_v2_kernel", memory=94.6, dram=94.6)).verdict.bound == "dram"


def test_results_without_durations_are_not_called_ranges() -> None:
    without = kernel(dram=93, memory=93)
    del without.metrics[TIME]
    of = evaluated(without)
    assert (
        of.verdict.text
        == "Cannot tell, because ncu collected no durations of the kernels; the busiest unit that was counted is DRAM, at 93% of its peak on average."
    )


def test_words_of_pytorch_are_kept_for_its_kernels() -> None:
    ours, theirs = (
        evaluated(kernel(name, sm=30, memory=20, dram=20, l2=10, l1=10)).opportunities[0]
        for name in ("sgemm_2d_blocktiling<8>", "at::native::sgemm_2d<8>")
    )
    assert (ours.rule, theirs.rule) == ("gemm.fp32", "gemm.fp32")
    assert "torch" not in ours.advice
    assert "torch" in theirs.advice


def test_a_grid_that_does_not_fill_the_gpu_is_named() -> None:
    of = evaluated(kernel(fill=FITS | {"waves": 0.1}, sm=2, memory=3, dram=1, l2=1, l1=33))
    assert of.verdict.bound == "latency"
    assert "too small to fill the GPU" in of.verdict.advice


def test_limits_of_occupancy_are_read_from_every_format() -> None:
    for name in ("ncu-2025.3.1-h200-basic-raw.csv", "ncu-2025.3.1-h200-basic-details.csv"):
        printed = read(recording(name))
        assert isinstance(printed, CounterSet)
        assert {"registers", "shared memory", "warps", "blocks"} <= printed.actions[0].fill.keys(), name
    actions = counters("decoder-2layers-basic").actions
    assert all(action.fill["warps"] >= 1 and action.fill["waves"] > 0 for action in actions)
    kinds = [Kind(a.name, "gemm", fill=a.fill) for a in actions if a.name.startswith("nvjet")]
    assert all(found and "shared memory" in found.limit for found in map(occupancy_of, kinds))


def disagreements(of: CounterSet) -> list[str]:
    """Kernels where ncu's own shares of peak and our verdict do not go together."""
    found = build_report([of], ReportOptions())
    bounds = {
        (s.kernel_name, tuple(s.grid)): s.bound
        for scope in found.scopes
        for region in scope.regions
        if region.performance is not None
        for s in region.performance.signatures
    }
    wrong = []
    for action in of.actions:
        bound = bounds.get((action.name, tuple(action.grid or ())))
        shares = shares_of_peak(amounts_of(action.metrics))
        # Where several launches are pooled, a share near the threshold may fall on either side.
        if bound == "latency" and max(shares.values(), default=0.0) > 0.7:
            wrong.append(f"{action.name}: near no roof beside {shares}")
        if bound in shares and shares[bound] < 0.3:
            wrong.append(f"{action.name}: {bound} beside {shares}")
    return wrong


def test_no_verdict_contradicts_ncu() -> None:
    assert disagreements(counters("decoder-2layers-basic")) == []


@pytest.mark.process
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public recordings are not here")
def test_public_reports_of_ncu() -> None:
    for path in sorted(PUBLIC.glob("*.ncu-rep")):
        found = read(path)
        assert isinstance(found, CounterSet)
        assert disagreements(found) == []


@pytest.mark.process
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public recordings are not here")
def test_a_product_that_keeps_l1_busy_is_not_near_no_roof() -> None:
    found = report(PUBLIC / "panjd123+cutlass+report-s4.ncu-rep")
    assert found.opportunities[0].rule == "l1.bound"
    assert found.opportunities[0].kernels[0].startswith("ReferenceGemm")
    assert found.main_scope is not None
    assert found.main_scope.regions[0].performance is not None
    assert found.main_scope.regions[0].performance.verdict.bound == "l1"


def test_the_report_of_a_recording_names_rules() -> None:
    rules = {o.rule for o in report("ncu-2025.3.1-h200-decoder-2layers-basic").opportunities}
    assert rules <= {"l1.bound", "occupancy", "kernel.slow", "attention.kernel", "gemm.shape", "fuse.elementwise"}
