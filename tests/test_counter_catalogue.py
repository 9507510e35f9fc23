"""One catalogue: every counter that is collected, suggested or shown, on every chip from Volta to Blackwell."""

from __future__ import annotations

import re

import pytest

from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.verdicts.counted_work import amounts_of, usable
from llm_perf_opt.metrics.catalogue import counter_of, counters, role_of
from llm_perf_opt.metrics.groups import LEVELS, MetricGroups, all_groups, groups_for
from llm_perf_opt.metrics.hardware import find_hardware
from llm_perf_opt.metrics.hardware.data import hardware_data
from llm_perf_opt.package_data import read_toml
from llm_perf_opt.regions.columns import CounterSet, MetricInfo
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.report.answer import answer
from llm_perf_opt.report.text import counter_title, interesting_metrics
from metric_names import unknown_metrics
from test_join_rules import result, timeline
from test_metric_groups import SHARES_MEMORY_WITH_THE_CPU, each_group, names_by_cupti, names_of

GEMM = "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn"
DURATION = 1_000_000  # ns
# Nobody prints what these do at most: fp64 on tensor cores of chips that hardly have it, int8 of B300.
WITHOUT_A_PEAK = {"tensor_fp64": {"8.6", "8.9", "10.3", "12.0", "12.1"}, "tensor_int8": {"10.3"}}
WITHOUT_PEAKS = {"8.7", "11.0"}  # Jetson Orin and Thor


# -- the data --------------------------------------------------------------------------------------


@each_group
@pytest.mark.parametrize("level", LEVELS)
def test_every_counter_a_level_collects_has_role_meaning_unit_and_title(groups: MetricGroups, level: str) -> None:
    for counter in groups.of_level(level, groups.data_types):
        assert all((counter.role, counter.unit, counter.title))
        assert counter.meaning.endswith(".")
        assert not re.search(r"[{}]", counter.title + counter.meaning)
        known = counter_of(counter.name)
        assert known is not None
        assert known.role == role_of(counter.name) == counter.role
        assert counter_title(counter.name) == counter.title != counter.name


def test_titles_tell_the_counters_of_a_chip_apart() -> None:
    for groups in all_groups():
        titles = [counter.title for counter in groups.metrics]
        assert len(set(titles)) == len(titles), groups.architecture


def test_each_name_stands_once_and_exists_on_some_chip() -> None:
    names = [name for counter in counters() for name in counter.names]
    assert len(set(names)) == len(names)
    known = set().union(*names_by_cupti().values())
    assert [name for name in names if name.partition(".")[0] not in known] == []


def test_what_a_chip_lacks_has_or_calls_otherwise_is_in_the_catalogue() -> None:
    by_name = {counter.name: counter for counter in counters()}
    for architecture, raw in read_toml("llm_perf_opt.metrics", "chips.toml").items():
        assert all(by_name[name].common for name in raw.get("lacks", ())), architecture
        assert all(not by_name[name].common for name in raw.get("has", ())), architecture
        assert all(new in by_name[old].aka for old, new in raw.get("renamed", {}).items()), architecture


def test_an_amount_is_counted_once_whatever_its_names() -> None:
    both = {"sm__ops_path_tensor_src_bf16_dst_fp32.sum": 4.0, "smsp__ops_path_tensor_src_bf16_dst_fp32.sum": 4.0}
    assert amounts_of(both).flops == {"tensor_bf16": 4.0}
    assert amounts_of({"dram__bytes_op_read.sum": 64.0, "dram__sectors_op_read.sum": 2.0}).bytes == {"dram_read": 64.0}
    assert amounts_of({"dram__sectors_op_read.sum": 2.0}).bytes == {"dram_read": 64.0}


# -- every chip, from its counters to the words of the report ---------------------------------------


def report_of(
    groups: MetricGroups, names: list[str] | None = None, work: float = 1e9, launches: int = 1, samples: int = 1
) -> NCUProfileRegionReport:
    """Matrix products of 1 ms in a range: bytes 10⁹, work as given, in every counter of the chip's roofline or some."""
    kernels = [(GEMM, number * DURATION, DURATION) for number in range(launches)]
    recording = timeline([("step", 0, launches * DURATION + 10_000)], kernels)
    capability = groups.compute_capabilities[0]
    recording.gpu_facts = {
        0: {
            "name": f"NVIDIA {groups.architecture}",
            "compute_capability": capability,
            "sm_count": 100,
            "clock_hz": 2_000_000_000,
            "bandwidth_bytes_per_s": 3e12,
            "l2_slices": 80,
        }
    }
    collected = [c for c in groups.of_level("roofline", groups.data_types) if names is None or c.name in names]
    actions = []
    for _ in range(samples):
        action = result({"": ["step"]}, name=GEMM)
        action.metrics = {
            c.name: float(DURATION if c.role == "time" else work if c.kind == "flops" else 1e9) for c in collected
        }
        actions.append(action)
    # As ncu writes them: it counts operations of tensor cores without a unit.
    info = {c.name: MetricInfo("" if c.role == "tensor_ops" else c.unit, c.rollup) for c in collected}
    assert usable(info)[1] == []
    return build_report([recording, CounterSet("counters.ncu-rep", "ncu-rep", actions, info)], ReportOptions())


def step(report: NCUProfileRegionReport) -> NCUProfileRegion:
    assert report.main_scope is not None
    (region,) = report.main_scope.regions
    return region


@each_group
def test_dram_l2_and_tensor_work_are_shown_on_every_chip(groups: MetricGroups) -> None:
    report = report_of(groups)
    region = step(report)
    assert region.performance is not None
    work = region.performance.work
    shared = groups.chip in SHARES_MEMORY_WITH_THE_CPU
    tensor = {c.amount for c in groups.metrics if c.role == "tensor_ops"}
    assert set(work.tensor) == tensor
    assert all(amount.value == 1e9 for amount in work.tensor.values())
    assert work.l2 is not None
    assert work.l2.value == 1e9
    assert (work.dram is None) == shared
    titles = [title for _, title, _ in interesting_metrics(region.inclusive.metrics)]
    assert ({"DRAM read", "DRAM written"} <= set(titles)) == (not shared)
    assert "L2 traffic" in titles
    assert sum(title.startswith("tensor FLOPs (") for title in titles) == len(tensor)
    words = " ".join(answer(report))
    assert ("2 GB of DRAM traffic" in words) == (not shared)
    assert f"{len(tensor)} GFLOP of tensor work" in words


@each_group
def test_tensor_work_of_every_type_counts_in_mfu_and_roof(groups: MetricGroups) -> None:
    (capability,) = groups.compute_capabilities
    for counter in [c for c in groups.metrics if c.role == "tensor_ops"]:
        basics = [c.name for c in groups.of_level("roofline")]
        performance = step(report_of(groups, [*basics, counter.name])).performance
        assert performance is not None
        mfu = [u for u in performance.utilisation if u.metric == "mfu"]
        if capability in WITHOUT_PEAKS or capability in WITHOUT_A_PEAK.get(counter.amount, ()):
            assert mfu == [], counter.name
            continue
        assert {counter.amount} == {kind for u in mfu for kind in u.peaks}, counter.name
        assert performance.speed_of_light is not None
        assert performance.speed_of_light.analysed_share == 1.0, counter.name
        assert performance.gpu_verdict.bound != "unknown", counter.name


def test_the_tensor_pipe_of_every_chip_is_a_roof() -> None:
    for groups in all_groups():
        pipes = {c.name: 50.0 for c in groups.metrics if (c.pipe or "").startswith("tensor")}
        assert pipes
        assert amounts_of(pipes).percent == {"tensor": 50.0 * len(pipes)}


def test_written_bytes_are_uncertain_on_chips_that_call_them_otherwise_too() -> None:
    for capability, written in (("9.0", "dram__bytes_write.sum"), ("12.0", "dram__bytes_op_write.sum")):
        metrics = step(report_of(groups_for(capability)[0], launches=8, samples=2)).inclusive.metrics
        assert metrics[written].spread == pytest.approx(0.07), written
        assert metrics[written.replace("write", "read")].spread == 0.0


# -- suggestions -----------------------------------------------------------------------------------


@each_group
def test_a_suggested_command_names_only_counters_of_the_chip(groups: MetricGroups) -> None:
    """A matrix product whose type was not counted: the report says what to run."""
    other = next(c.name for c in groups.metrics if c.role == "tensor_ops")
    performance = step(report_of(groups, [*(c.name for c in groups.of_level("roofline")), other], work=0.0)).performance
    assert performance is not None
    texts = [*performance.work.missing, performance.gpu_verdict.next_step or "", performance.gpu_verdict.text]
    suggested = [m for text in texts for given in re.findall(r"--metrics (\S+)", text) for m in given.split(",")]
    assert suggested, texts
    assert [str(u) for u in unknown_metrics(suggested, names_of(groups))] == []
    tensor = {c.data_type for c in groups.metrics if c.role == "tensor_ops"} - {"fp64"}
    known = {c.name: c for c in groups.metrics}
    assert {known[name].data_type for name in suggested if known[name].data_type} == tensor
    roles = {known[name].role for name in suggested}
    assert roles >= {"time", "l2", "tensor_ops"}
    assert ("dram_read" in roles) == (groups.chip not in SHARES_MEMORY_WITH_THE_CPU)


# -- peaks -----------------------------------------------------------------------------------------


@each_group
def test_every_counted_type_has_a_peak_where_one_is_known(groups: MetricGroups) -> None:
    (capability,) = groups.compute_capabilities
    architecture = hardware_data().architectures.get(capability)
    assert (architecture is None) == (capability in WITHOUT_PEAKS)
    if architecture is not None:
        amounts = {c.amount for c in groups.metrics if c.kind == "flops"}
        lacking = {amount for amount, where in WITHOUT_A_PEAK.items() if capability in where}
        assert amounts - set(architecture.ops_per_clock_per_sm) == lacking & amounts


@pytest.mark.parametrize(
    ("name", "has_tensor_cores"),
    [
        ("NVIDIA GeForce GTX 1660 Ti", False),
        ("NVIDIA GeForce GTX 1650 SUPER", False),
        ("NVIDIA T1000 8GB", False),
        ("Quadro T2000", False),
        ("NVIDIA T600 Laptop GPU", False),
        ("NVIDIA GeForce MX450", False),
        ("NVIDIA GeForce MX550", False),
        ("NVIDIA T500", False),
        ("NVIDIA CMP 30HX", False),
        ("NVIDIA CMP 40HX", True),
        ("NVIDIA GeForce RTX 2050", True),
        ("Quadro RTX 4000", True),
        ("NVIDIA T4G", True),
    ],
)
def test_turing_chips_without_tensor_cores_have_no_tensor_peaks(name: str, has_tensor_cores: bool) -> None:
    facts = {"name": name, "compute_capability": "7.5", "sm_count": 24, "clock_hz": 1_770_000_000}
    found = find_hardware(0, facts)
    assert any(kind.startswith("tensor_") for kind in found.peaks) == has_tensor_cores
    assert {"cuda_fp32", "cuda_fp16", "cuda_fp64"} <= set(found.peaks)
    assert ("This GPU has no tensor cores." in found.notes) == (not has_tensor_cores)
