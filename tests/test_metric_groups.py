"""Levels of metrics: every name exists on the chip, every level costs what NVIDIA's scheduler says, no type is missed."""

from __future__ import annotations

import tarfile
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import RECORDINGS, counters, plain_bytes, recording
from llm_perf_opt.metrics.data_types import canonical, types_in_use, types_of_name
from llm_perf_opt.metrics.groups import LEVELS, MetricGroups, all_groups, groups_for, groups_of_chip, lower_levels
from llm_perf_opt.nsight.ncu.argv import DEFAULT_METRICS
from metric_names import allowed_suffixes, exists, parse_query_metrics, unknown_metrics

GROUPS = all_groups()
BY_NCU = ["ga100", "ga102", "ad102", "gh100", "gb100", "gb202"]
REQUIRED = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]
SHARES_MEMORY_WITH_THE_CPU = {"ga10b", "gb10b", "gb20b"}

each_group = pytest.mark.parametrize("groups", GROUPS, ids=lambda g: g.architecture)


@lru_cache
def names_by_cupti() -> dict[str, dict[str, str]]:
    with tarfile.open(RECORDINGS / "cupti-13.0-metrics-by-chip.tar.xz") as archive:
        files = {m.name: archive.extractfile(m) for m in archive.getmembers()}
        return {
            name.removesuffix(".txt"): dict(line.split() for line in file.read().decode().splitlines())
            for name, file in files.items()
            if file is not None
        }


def names_of(groups: MetricGroups) -> dict[str, str]:
    """All names of a chip, as they were recorded; a chip that says its names are from nowhere has no list yet."""
    if not groups.names_from:
        pytest.skip(f"no list of the metrics of {groups.chip} was recorded")
    return names_by_cupti()[groups.chip]


@lru_cache
def names_by_ncu() -> dict[str, dict[str, str]]:
    """Names of the chips for which the list of ncu itself was recorded."""
    with tarfile.open(RECORDINGS / "ncu-2025.3.1-metrics-by-chip.tar.xz") as archive:
        found = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:
                (names,) = parse_query_metrics(file.read().decode()).values()
                found[member.name.removeprefix("m_").removesuffix(".txt")] = names
        return found


# -- names exist -----------------------------------------------------------------------------------


@each_group
def test_every_metric_exists_on_the_chip_with_its_suffix(groups: MetricGroups) -> None:
    known = names_of(groups)
    assert [str(u) for u in unknown_metrics((m.name for m in groups.metrics), known)] == []
    # And for the other way round: a base name alone would pass, but ncu then collects every suffix.
    assert all("." in m.name for m in groups.metrics)


@pytest.mark.parametrize("chip", BY_NCU)
def test_every_metric_is_in_the_list_that_ncu_itself_prints(chip: str) -> None:
    groups = groups_of_chip(chip)
    assert groups is not None
    assert unknown_metrics((m.name for m in groups.metrics), names_by_ncu()[chip]) == []


@pytest.mark.parametrize("chip", BY_NCU)
def test_the_lists_of_cupti_are_those_of_ncu(chip: str) -> None:
    """So the chips that only CUPTI was asked about can be trusted as well."""
    of_ncu = {n for n in names_by_ncu()[chip] if "Triage" not in n}
    of_cupti = {n for n in names_by_cupti()[chip] if "Triage" not in n and not n.endswith("_realtime")}
    assert of_cupti - of_ncu == set()
    assert of_ncu - set(names_by_cupti()[chip]) == set()


def test_a_metric_that_does_not_exist_is_caught() -> None:
    known = names_by_cupti()["gb202"]
    (unknown,) = unknown_metrics(["dram__bytes_read.sum", "dram__bytes_op_write.sum"], known)
    assert unknown.name == "dram__bytes_read.sum"
    assert "dram__bytes_op_read.sum" in unknown.nearest


# -- roles -----------------------------------------------------------------------------------------


@each_group
def test_levels_build_upon_each_other(groups: MetricGroups) -> None:
    sizes = [len(groups.of_level(level, groups.data_types)) for level in LEVELS]
    assert sizes == sorted(set(sizes))
    assert [m.name for m in groups.of_level("time")] == ["gpu__time_duration.sum"]
    assert groups.of_level("full", groups.data_types) == groups.metrics
    assert {m.role for m in groups.of_level("full")} >= {"cuda_core_ops"}
    assert "cuda_core_ops" not in {m.role for m in groups.of_level("stalls")}


@each_group
def test_each_level_has_the_roles_it_promises(groups: MetricGroups) -> None:
    roles = {level: {m.role for m in groups.of_level(level, groups.data_types)} for level in LEVELS}
    memory = set() if groups.chip in SHARES_MEMORY_WITH_THE_CPU else {"dram_read", "dram_write"}
    assert roles["roofline"] >= {"time", "l2", "tensor_ops", "cuda_core_ops", *memory}
    assert roles["bound"] >= {"sm_throughput", "memory_throughput", "occupancy", "pipe_utilisation"}
    assert roles["stalls"] >= {"warp_stall"}
    pipes = {m.pipe for m in groups.metrics if m.role == "pipe_utilisation"}
    assert pipes >= {"tensor", "fma", "alu", "lsu"}
    reasons = {m.reason for m in groups.metrics if m.role == "warp_stall"}
    assert reasons >= {"long_scoreboard", "math_pipe_throttle", "barrier", "not_selected", "wait"}


@each_group
def test_operation_counters_say_their_type_and_worth_and_others_do_not(groups: MetricGroups) -> None:
    for metric in groups.metrics:
        counts_work = metric.role in ("tensor_ops", "cuda_core_ops")
        assert counts_work == (metric.data_type is not None) == (metric.kind == "flops")
        assert metric.rollup == ("sum" if metric.name.endswith(".sum") else "mean")
        assert (metric.unit == "%") == ("pct" in metric.name)
        assert ("__sass_" in metric.name) == (metric.role == "cuda_core_ops")
    assert len({m.name for m in groups.metrics}) == len(groups.metrics)


def test_the_types_that_tensor_cores_of_each_generation_have() -> None:
    def tensor(capability: str) -> set[str | None]:
        return {m.data_type for m in groups_for(capability)[0].metrics if m.role == "tensor_ops"}

    assert tensor("7.5") == {"fp16", "int8", "int4"}
    assert tensor("8.0") == {"bf16", "fp16", "tf32", "fp64", "int8", "int4"}
    assert tensor("8.9") == tensor("8.0") | {"fp8"}
    assert tensor("9.0") == {"bf16", "fp16", "tf32", "fp8", "fp64", "int8"}
    assert tensor("10.0") == tensor("12.0") == tensor("9.0") | {"fp4"}


def test_deprecated_names_are_not_used() -> None:
    """On Ada the tensor pipe's own counter is deprecated for its second version."""
    ada = groups_of_chip("ad102")
    assert ada is not None
    assert "sm__pipe_tensor_cycles_active_v2" in names_by_cupti()["ad102"]
    assert {m.name.partition(".")[0] for m in ada.metrics if m.pipe == "tensor"} == {"sm__pipe_tensor_cycles_active_v2"}


# -- which GPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", REQUIRED)
def test_the_architectures_of_the_contract_are_known(capability: str) -> None:
    groups, diagnoses = groups_for(capability)
    assert capability in groups.compute_capabilities
    assert diagnoses == []


@pytest.mark.parametrize(
    ("capability", "chip"),
    [("7.2", "gv100"), ("8.8", "ga10b"), ("9.9", "gh100"), ("10.1", "gb100"), ("12.5", "gb20b"), ("12.10", "gb20b")],
)
def test_an_unknown_gpu_gets_the_nearest_lower_of_its_generation_and_a_word(capability: str, chip: str) -> None:
    groups, (diagnosis,) = groups_for(capability)
    assert groups.chip == chip
    assert diagnosis.code == "UNKNOWN_GPU_METRICS"
    assert capability in diagnosis.message


@pytest.mark.parametrize("capability", [None, "", "x", "9", "99.0", "6.1", "-1.0", "9.0.0"])
def test_nothing_known_of_the_gpu_is_told_too(capability: str | None) -> None:
    groups, (diagnosis,) = groups_for(capability)
    assert groups.architecture == "sm_90"
    assert diagnosis.severity == "warning"


def test_levels_below_a_level() -> None:
    assert lower_levels("full") == ["stalls", "bound", "roofline"]
    assert lower_levels("roofline") == lower_levels("time") == []


# -- passes ----------------------------------------------------------------------------------------


def test_the_metrics_of_today_are_the_roofline_of_a_bf16_model_in_one_pass() -> None:
    hopper, _ = groups_for("9.0")
    assert tuple(m.name for m in hopper.of_level("roofline", ["bf16"])) == DEFAULT_METRICS
    assert str(hopper.passes("roofline", ["bf16"])) == "1 pass"


@pytest.mark.parametrize("capability", [c for c in REQUIRED if c != "7.5"])
def test_a_bf16_roofline_takes_one_pass_on_every_chip(capability: str) -> None:
    groups, _ = groups_for(capability)
    assert groups.passes("roofline", ["bf16"]).passes == 1


def test_what_is_not_measured_says_so() -> None:
    ampere, _ = groups_for("8.0")
    assert ampere.passes("roofline", ["bf16"]).source == "calculated"
    assert str(ampere.passes("bound")) == "10 passes (calculated)"


@pytest.mark.parametrize(
    ("name", "passes"), [("names", 1), ("decoder-8layers-warm-per-launch-config", 1), ("graph-nodes-kernel-replay", 1)]
)
def test_passes_of_recorded_captures(name: str, passes: int) -> None:
    """What ncu took for the metrics in the recording, and what is planned for them."""
    hopper, _ = groups_for("9.0")
    found = counters(name)
    asked = {n for a in found.actions for n in a.metrics if n.endswith(".sum") and n.count(".") == 1}
    assert {a.passes for a in found.actions} == {passes}
    assert hopper.passes_of(sorted(asked)).passes == passes


@each_group
@given(data=st.data())
def test_more_never_takes_fewer_passes(groups: MetricGroups, data: st.DataObject) -> None:
    types = data.draw(st.sets(st.sampled_from(groups.data_types)))
    more = types | data.draw(st.sets(st.sampled_from(groups.data_types)))
    levels = [groups.passes(level, types).passes for level in LEVELS]
    assert levels == sorted(levels)
    for level in LEVELS:
        assert 1 <= groups.passes(level, types).passes <= groups.passes(level, more).passes


def test_metrics_chosen_by_hand_are_never_planned_too_cheap_where_their_level_is_known() -> None:
    hopper, _ = groups_for("9.0")
    bound = [m.name for m in hopper.of_level("bound", ["bf16"])]
    assert hopper.passes_of(bound) == hopper.passes("bound", ["bf16"])
    assert hopper.passes_of(["gpu__time_duration.sum"]).passes == 1
    assert hopper.passes_of(["dram__bytes_read.sum"]).passes == 1
    one, other = hopper.passes_of(["sm__throughput.avg.pct_of_peak_sustained_elapsed"]), hopper.passes_of(["a", "b"])
    assert one.source == other.source == "estimated"


# -- the list of ncu -------------------------------------------------------------------------------


def test_the_output_of_query_metrics_is_understood() -> None:
    text = plain_bytes(recording("query-metrics-tu102")).decode()
    (names,) = parse_query_metrics(text).values()
    assert list(parse_query_metrics(text)) == ["tu102"]
    assert names["dram__bytes_read"] == "counter"
    assert names["dram__throughput"] == "throughput"
    assert names["lts__t_sector_hit_rate"] == "ratio"
    # A description that goes on over further lines adds no names.
    assert {n for n in names if n not in names_by_cupti()["tu102"]} == set()
    assert len(names) > 1500
    turing = groups_of_chip("tu102")
    assert turing is not None
    assert unknown_metrics((m.name for m in turing.metrics), names) == []


def test_several_chips_and_devices_in_one_output_are_kept_apart() -> None:
    text = "Chip gh100\n----\nMetric Name\n----\nsm__a  Counter\n\nDevice NVIDIA L4 (AD104)\n----\nsm__b  Ratio  %  x\n"
    assert parse_query_metrics(text) == {"gh100": {"sm__a": "counter"}, "ad104": {"sm__b": "ratio"}}
    assert parse_query_metrics("==ERROR== no chip\n") == {}


@given(st.text())
def test_any_text_can_be_asked_for_metrics(text: str) -> None:
    for names in parse_query_metrics(text).values():
        assert all("__" in name for name in names)


@pytest.mark.parametrize(
    ("metric", "there"),
    [
        ("dram__bytes_read.sum", True),
        ("dram__bytes_read", True),
        ("dram__bytes_read.sum.per_second", True),
        ("dram__bytes_read.ratio", False),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", True),
        ("sm__throughput.sum", False),
        ("lts__t_sector_hit_rate.pct", True),
        ("launch__grid_size", True),
        ("regex:dram__.*", True),
        ("flop_count_hp", False),
        ("sm__ops_path_tensor_src_bf16_dst_fp32.sum", True),
    ],
)
def test_suffixes_follow_the_kind_of_a_metric(metric: str, there: bool) -> None:
    assert exists(metric, names_by_cupti()["gh100"]) is there


def test_a_name_that_does_not_exist_is_shown_with_the_nearest() -> None:
    first, second = map(str, unknown_metrics(["dram__byte_read.sum", "sm__throughput.sum"], names_by_cupti()["gh100"]))
    assert "dram__byte_read.sum (nearest: dram__bytes_read.sum" in first
    assert "sm__throughput.sum.pct_of_peak_sustained" in second


def test_the_suffixes_are_those_that_ncu_lists() -> None:
    assert len(allowed_suffixes("counter")) == 44
    assert len(allowed_suffixes("throughput")) == 8
    assert allowed_suffixes("ratio") == ("max_rate", "pct", "ratio")


# -- data types ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT", ("bf16",)),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", ("fp16",)),
        ("nvjet_sm90_hss_320x128", ("fp16",)),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", ("fp8",)),
        ("nvjet_ootst_128x64_Avec16UE4M3_Bvec16UE4M3", ("fp4",)),
        ("nvjet_sss_tf32_128x256_TNT", ("tf32",)),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", ("bf16",)),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64", ("fp16",)),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", ("tf32",)),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4", ("fp32_cuda",)),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", ("bf16",)),
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn", ("fp16",)),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", ("fp16",)),
        ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8", ("fp16",)),
        ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8", ("bf16",)),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4", ("tf32",)),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(T1::Params)", ("fp32_cuda",)),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1>(T1::Params)", ("fp64",)),
        ("volta_sgemm_64x64_nt", ("fp32_cuda",)),
        ("void gemm::sm80_dmma_kernel<double>", ("fp64",)),
        (
            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::collective::CollectiveMma<"
            "cutlass::bfloat16_t, cute::TiledMMA<cute::MMA_Atom<cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_SS<>>>>>>",
            ("bf16",),
        ),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", ("half",)),
        (
            "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>",
            ("bf16",),
        ),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", ("fp16",)),
        ("fmhaSm100fKernel_QkvBfloat16OBfloat16H64PagedKvCausalP64", ("bf16",)),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_Ab32_Bb32_t128x16x256u2", ("fp4", "fp8")),
        ("void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 64u>", ("fp8",)),
        ("triton_tem_fused_mm_0", ("unknown",)),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128>", ()),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>", ()),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ()),
    ],
)
def test_types_are_told_from_real_kernel_names(name: str, types: tuple[str, ...]) -> None:
    assert types_of_name(name) == types


BF16, FP16 = "nvjet_sm90_tst_128x128", "nvjet_sm90_hsh_128x128"
SDPA, TRITON, SGEMM = "cudnn_generated_sdpa_f16_knob", "triton_tem_fused_mm_0", "volta_sgemm_64x64_nt"


def test_sixteen_bits_are_what_the_other_kernels_or_the_model_are() -> None:
    assert types_in_use([(BF16, 90), (SDPA, 10)]).types == ("bf16",)
    assert types_in_use([(FP16, 90), (SDPA, 10)]).types == ("fp16",)
    assert types_in_use([(SDPA, 10)], "torch.bfloat16").types == ("bf16",)
    assert types_in_use([(FP16, 50), (SDPA, 50)], "bfloat16").types == ("fp16", "bf16")
    # Nobody knows: both are counted, and it is told.
    open_question = types_in_use([(SDPA, 10)])
    assert set(open_question.types) == {"bf16", "fp16"}
    assert "16 bits" in open_question.reasons[0]


def test_matrix_kernels_without_a_type_in_their_name_are_never_left_uncounted() -> None:
    assert types_in_use([(TRITON, 10)], "float16").types == ("fp16",)
    assert types_in_use([(TRITON, 10), (BF16, 1)]).types == ("bf16",)
    assert set(types_in_use([(TRITON, 10)]).types) == {"bf16", "fp16"}


def test_types_with_next_to_no_time_are_left_out_and_named() -> None:
    found = types_in_use([(BF16, 9990), (SGEMM, 10)])
    assert found.types == ("bf16",)
    assert found.left_out == ("fp32_cuda",)
    assert found.share == {"bf16": 0.999, "fp32_cuda": 0.001}
    assert types_in_use([(BF16, 96), (SGEMM, 4)]).left_out == ("fp32_cuda",)
    assert types_in_use([(BF16, 94), (SGEMM, 6)]).types == ("bf16", "fp32_cuda")


def test_a_program_without_matrix_work_has_no_types() -> None:
    assert types_in_use([]).types == types_in_use([("copy_kernel", 5)]).types == ()


@pytest.mark.parametrize(
    ("spoken", "meant"),
    [("torch.bfloat16", "bf16"), ("fp16", "fp16"), ("float32", "tf32"), ("FP8", "fp8"), ("auto", None), (None, None)],
)
def test_types_are_known_by_many_names(spoken: str | None, meant: str | None) -> None:
    assert canonical(spoken) == meant


@given(st.lists(st.tuples(st.text(), st.integers(0, 10**9))), st.sampled_from([None, "bfloat16", "float16", "x"]))
def test_any_names_have_types(kernels: list[tuple[str, int]], model: str | None) -> None:
    found = types_in_use(kernels, model)
    assert not {"half", "unknown"} & set(found.types)
    assert set(found.types).isdisjoint(found.left_out)
