"""Hardware as data: every printed peak agrees with SMs x clock x operations, every GPU finds its own, none is made up."""

from __future__ import annotations

import pytest

from conftest import RECORDINGS, read, recording
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics.hardware import find_hardware, parse_overrides
from llm_perf_opt.metrics.hardware.calibration import apply_calibration
from llm_perf_opt.metrics.hardware.data import PEAKS, Model, hardware_data
from llm_perf_opt.metrics.hardware.ncu_peaks import peaks_of
from llm_perf_opt.metrics.quantity import Quantity

MODELS = hardware_data().models


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_printed_peaks_are_dense(model: Model) -> None:
    """A figure with sparsity would be twice the product."""
    computed = model.computed()
    for kind, printed in model.printed.items():
        assert printed.of("FLOP/s") == pytest.approx(computed[kind].of("FLOP/s"), rel=0.03), kind
    # A clock that was chosen to make a sparse figure fit would be above the boost clock.
    assert 0.7 * model.boost.of("Hz") <= model.tensor_clock.of("Hz") <= model.boost.of("Hz")


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_every_entry_is_whole(model: Model) -> None:
    assert set(model.peaks()) <= set(PEAKS)
    assert {"cuda_fp32", "cuda_fp64", "tensor_fp16"} <= set(model.peaks())
    assert model.source
    assert 100e9 < model.bandwidth.of("B/s") < 10e12
    assert 1e6 < model.l2_cache.of("B") < 200e6
    assert 5e9 < model.memory.of("B") < 300e9


def test_the_generations_from_turing_to_blackwell_are_there() -> None:
    names = {m.name for m in MODELS}
    wanted = {
        "T4", "GeForce RTX 2080 Ti", "GeForce RTX 3090", "GeForce RTX 4090", "GeForce RTX 5090", "A10", "A30", "A40",
        "A100 SXM 40GB", "A100 SXM 80GB", "A100 PCIe 40GB", "A100 PCIe 80GB", "L4", "L40", "L40S", "RTX A6000",
        "RTX 6000 Ada", "RTX PRO 6000 Blackwell", "H100 SXM", "H100 PCIe", "H100 NVL", "H200 SXM", "H200 NVL", "H20",
        "GH200 96GB", "GH200 144GB", "B100", "B200", "GB200", "B300", "GB300",
    }  # fmt: skip
    assert wanted <= names
    assert len(names) == len(MODELS)


@pytest.mark.parametrize(
    ("name", "facts", "model"),
    [
        ("NVIDIA H200", {"sm_count": 132}, "H200 SXM"),
        ("NVIDIA H200 NVL", {}, "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", {"sm_count": 132}, "H100 SXM"),
        ("NVIDIA H100 PCIe", {"sm_count": 114}, "H100 PCIe"),
        ("NVIDIA H100 NVL", {"sm_count": 132}, "H100 NVL"),
        ("NVIDIA A100-SXM4-40GB", {}, "A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", {}, "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", {}, "A100 PCIe 80GB"),
        ("A100-PCIE-40GB", {}, "A100 PCIe 40GB"),
        ("NVIDIA GH200 480GB", {"memory_bytes": 101e9}, "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", {}, "GH200 144GB"),
        ("NVIDIA GeForce RTX 3080", {"sm_count": 68, "memory_bytes": 10e9}, "GeForce RTX 3080"),
        ("NVIDIA GeForce RTX 3080", {"sm_count": 70, "memory_bytes": 12e9}, "GeForce RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 4090", {}, "GeForce RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", {}, "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", {}, "RTX PRO 6000 Blackwell"),
        ("NVIDIA B200", {"sm_count": 148}, "B200"),
        ("NVIDIA B300 SXM6 AC", {}, "B300"),
        ("Tesla T4", {}, "T4"),
        ("NVIDIA L40S", {}, "L40S"),
        ("NVIDIA L4", {}, "L4"),
    ],
)
def test_names_find_their_model(name: str, facts: dict[str, float], model: str) -> None:
    found = find_hardware(0, {"name": name, **facts})
    assert (found.model, found.name) == (model, name)
    assert found.basis in ("datasheet", "computed")


def test_recordings_find_their_gpu() -> None:
    for name in ("nsys-*-train.sqlite", "ncu-*-names.ncu-rep", "kineto-torch", "ncu-2025.3.1-h200-live-raw.csv"):
        facts = read(recording(name)).gpu_facts[0]
        found = find_hardware(0, facts)
        assert (found.model, found.compute_capability, found.sm_count) == ("H200 SXM", "9.0", 132), name
        assert found.peaks["tensor_bf16"] == Quantity(989.5e12, "FLOP/s")
        assert found.bandwidth == Quantity(4.8e12, "B/s")


def test_attributes_of_ncu_give_the_bandwidth_of_nsys() -> None:
    """Bus width x memory clock x 2, and what nsys stores, are one figure."""
    by_nsys = read(recording("nsys-*-train.sqlite")).gpu_facts[0]
    by_ncu = read(recording("ncu-*-names.ncu-rep")).gpu_facts[0]
    for fact in ("bandwidth_bytes_per_s", "clock_hz", "memory_bytes", "l2_bytes", "sm_count", "compute_capability"):
        assert by_nsys[fact] == by_ncu[fact], fact


def test_an_unknown_gpu_is_computed_from_its_attributes() -> None:
    facts = {
        "name": "NVIDIA H300",
        "compute_capability": "9.0",
        "sm_count": 100,
        "clock_hz": 2_000_000_000,
        "bandwidth_bytes_per_s": 5e12,
    }
    found = find_hardware(0, facts)
    assert (found.basis, found.model) == ("computed", "")
    assert found.peaks["tensor_bf16"] == Quantity(100 * 2e9 * 4096, "FLOP/s")
    assert found.bandwidth == Quantity(5e12, "B/s")
    assert "100 SMs x 2,000 MHz" in found.source


def test_an_unknown_geforce_runs_at_half_rate() -> None:
    facts = {"compute_capability": "8.9", "sm_count": 76, "clock_hz": 2_000_000_000}
    laptop = find_hardware(0, {"name": "NVIDIA GeForce RTX 4090 Laptop GPU", **facts})
    server = find_hardware(0, {"name": "NVIDIA L77", **facts})
    assert laptop.basis == server.basis == "computed"
    assert 2 * laptop.peaks["tensor_bf16"].value == server.peaks["tensor_bf16"].value
    assert laptop.peaks["tensor_fp16_acc16"] == server.peaks["tensor_fp16_acc16"]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"name": "NVIDIA X"},
        {"name": "NVIDIA X", "compute_capability": "9.0", "sm_count": 100},
        {"name": "NVIDIA X", "compute_capability": "99.0", "sm_count": 100, "clock_hz": 1e9},
    ],
)
def test_nothing_is_made_up(facts: dict[str, object]) -> None:
    found = find_hardware(0, facts)
    assert (found.basis, found.peaks, found.bandwidth) == ("unknown", {}, None)
    assert "lacks" in found.notes[0]


def test_a_mig_slice_has_a_part_of_the_peaks() -> None:
    whole = find_hardware(0, {"name": "NVIDIA H100 80GB HBM3"})
    part = find_hardware(0, {"name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "sm_count": 60, "memory_bytes": 40e9})
    assert part.peaks["tensor_bf16"].value == pytest.approx(whole.peaks["tensor_bf16"].value * 60 / 132)
    assert part.bandwidth is not None
    assert whole.bandwidth is not None
    assert part.bandwidth.value == pytest.approx(whole.bandwidth.value / 2)
    assert any("60 SMs" in note for note in part.notes)


def test_l2_slices_give_the_bandwidth_of_the_white_paper() -> None:
    """A100: 5120 bytes per clock."""
    found = find_hardware(0, {"name": "NVIDIA A100-SXM4-80GB", "l2_slices": 80, "clock_hz": 1_410_000_000})
    assert found.l2_bandwidth == Quantity(5120 * 1.41e9, "B/s")


def test_the_user_may_overrule() -> None:
    given = parse_overrides({"bandwidth": "4.9 TB/s", "peaks": {"tensor_bf16": "800TFLOP/s"}})
    found = find_hardware(0, {"name": "NVIDIA H200"}, given)
    assert found.bandwidth == Quantity(4.9e12, "B/s")
    assert found.peaks["tensor_bf16"] == Quantity(800e12, "FLOP/s")
    assert found.peaks["tensor_fp8"] == Quantity(1979e12, "FLOP/s")
    assert any("Given by the user: bandwidth, tensor_bf16" in note for note in found.notes)
    unknown = find_hardware(0, {"name": "?"}, parse_overrides({"model": "a10"}))
    assert (unknown.model, unknown.basis) == ("A10", "datasheet")
    only = find_hardware(0, {"name": "?"}, parse_overrides({"bandwidth": "1TB/s"}))
    assert (only.basis, only.bandwidth) == ("given", Quantity(1e12, "B/s"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bandwith": "4TB/s"}, "did you mean bandwidth"),
        ({"bandwidth": "4.8e12"}, "no unit"),
        ({"bandwidth": 4.8e12}, "no unit"),
        ({"bandwidth": "4.8 TFLOP/s"}, "B/s is needed"),
        ({"tensor_bf16": "989 GB/s"}, "FLOP/s is needed"),
        ({"tensor_bf16": "0 TFLOP/s"}, "not above 0"),
        ({"bandwidth": "1e400TB/s"}, "too large"),
        ({"bandwidth": "9" * 400 + "B/s"}, "too large"),
        ({"model": "H100"}, "no GPU model"),
        ({"peaks": 3}, "peaks=3 is not known"),
    ],
)
def test_bad_overrides_name_the_key(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_overrides(settings)
    assert said in str(error.value)
    assert error.value.fix


def calibration(**changes: object) -> dict[str, object]:
    return {
        "gpu": "NVIDIA H200",
        "uuid": "1825e7cc-6d1b-a3ac-d9bf-66534f906620",
        "measured_at": "2026-01-01T00:00:00+00:00",
        "torch": "2.11",
        "driver": "580",
        "peaks": {"tensor_bf16": {"value": 7.5e14, "unit": "FLOP/s"}},
        "bandwidth": {"value": 4.2e12, "unit": "B/s"},
        **changes,
    }


def test_a_calibration_finds_its_gpu_by_uuid_then_by_name() -> None:
    gpu = find_hardware(0, {"name": "NVIDIA H200"})
    other = calibration(uuid="ffffffff-0000-0000-0000-000000000001", bandwidth={"value": 4e12, "unit": "B/s"})
    mine = calibration()
    by_uuid = apply_calibration(gpu, {"uuid": "GPU-1825E7CC-6d1b-a3ac-d9bf-66534f906620"}, [other, mine])
    assert by_uuid.calibrated_bandwidth == Quantity(4.2e12, "B/s")
    assert "on this GPU" in by_uuid.calibration
    by_name = apply_calibration(gpu, {"uuid": "00000000-0000-0000-0000-000000000000"}, [other, mine])
    assert by_name.calibrated_bandwidth == Quantity(4e12, "B/s")
    assert "same model" in by_name.calibration
    assert apply_calibration(gpu, {}, [calibration(gpu="NVIDIA L4")]).calibration == ""


def test_fp6_on_rtx_blackwell_is_half_as_fast_as_fp8_whatever_it_accumulates_in() -> None:
    peaks = find_hardware(0, {"name": "NVIDIA GeForce RTX 5090"}).peaks
    assert peaks["tensor_fp6"] == peaks["tensor_fp6_acc16"]
    assert peaks["tensor_fp6"].value == pytest.approx(peaks["tensor_fp8_acc16"].value / 2, rel=0.01)


def test_peaks_can_come_from_the_roofline_metrics_of_ncu() -> None:
    """Of a recording: an H200 reaches what its data sheet says within the difference of the clocks."""
    path = str(RECORDINGS / "ncu-2025.3.1-h200-decoder-2layers-basic.ncu-rep.xz")
    usual, measured = (
        make_report([path], ReportOptions(hardware=given), quiet=True).hardware[0] for given in ({}, {"peaks": "ncu"})
    )
    assert measured.basis == "datasheet and ncu"
    assert measured.notes == ["Given by ncu's roofline metrics: bandwidth, cuda_fp64, cuda_fp32."]
    assert usual.bandwidth != measured.bandwidth
    assert measured.bandwidth is not None
    assert usual.bandwidth is not None
    assert measured.bandwidth.of("B/s") == pytest.approx(usual.bandwidth.of("B/s"), rel=0.01)
    assert measured.peaks["cuda_fp32"].of("FLOP/s") == pytest.approx(usual.peaks["cuda_fp32"].of("FLOP/s"), rel=0.02)
    assert (
        measured.peaks["tensor_bf16"] == usual.peaks["tensor_bf16"]
    )  # the recording has no metrics of the tensor roof


def test_roofline_metrics_of_the_tensor_cores_give_their_peaks() -> None:
    """Operations a clock of all SMs, as ncu's chart of the tensor roof multiplies them with the clock of the SMs."""
    fast, slow = ({"sm__cycles_elapsed.avg.per_second": clock} for clock in (1.5e9, 1.2e9))
    name = "sm__ops_path_tensor_src_bf16_dst_fp32.sum.peak_sustained"
    found = peaks_of([{**fast, name: 540672.0}, {**slow, name: 540672.0}])
    assert found.peaks == {"tensor_bf16": Quantity(540672.0 * 1.5e9, "FLOP/s")}
    assert peaks_of([{name: 540672.0}]).names() == []  # no clock, no peak
    assert peaks_of([{**fast, name: float("inf")}]).names() == []


def test_without_roofline_metrics_the_peaks_say_so() -> None:
    gpu = find_hardware(0, {"name": "NVIDIA H200"}, parse_overrides({"peaks": "ncu"}))
    assert gpu.basis == "datasheet"
    assert "--set roofline" in gpu.notes[-1]
