"""Kernel families and short names, on the names of all recordings: the share that stays unclassified is small."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import RECORDINGS, SHARED, read
from llm_perf_opt.metrics.families import (
    OTHER,
    Rule,
    _alternatives,
    _without_parameters,
    families,
    family_of,
    is_fusable,
    label_of,
    rules,
)
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.names import short_kernel_name

PUBLIC = SHARED / "public"
# Kernels written for one tutorial: nothing in their names says what they do.
HAND_WRITTEN = {"NVIDIA+nsight-training+manual_nvtx.ncu-rep"}


def time_by_name(path: Path) -> dict[str, float]:
    found = read(path)
    times: dict[str, float] = {}
    if isinstance(found, Timeline):
        duration = found.kernels.end - found.kernels.start
        for number in np.unique(found.kernels.name).tolist():
            times[found.strings[number]] = float(duration[found.kernels.name == number].sum())
    else:
        for action in found.actions:
            if action.kind == "kernel":
                times[action.name] = times.get(action.name, 0.0) + (action.time_ns() or 0.0)
    return times


def unclassified(path: Path) -> float:
    times = time_by_name(path)
    whole = sum(times.values())
    return sum(t for name, t in times.items() if family_of(name) == OTHER) / whole if whole else 0.0


OWN = sorted(
    [*RECORDINGS.glob("nsys-*.sqlite.*"), *RECORDINGS.glob("kineto-*"), *RECORDINGS.glob("ncu-2025*.ncu-rep*")]
)
OTHERS = (
    sorted(p for p in PUBLIC.glob("*") if p.name.endswith((".sqlite", ".ncu-rep", ".json.gz")))
    if PUBLIC.is_dir()
    else []
)


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_hardly_anything_of_our_recordings_stays_unclassified(path: Path) -> None:
    assert unclassified(path) < 0.01


@pytest.mark.process
@pytest.mark.skipif(not OTHERS, reason="recordings of others are not on this machine")
def test_hardly_anything_of_other_programs_stays_unclassified() -> None:
    shares = {path.name: unclassified(path) for path in OTHERS if path.name not in HAND_WRITTEN}
    assert {name: share for name, share in shares.items() if share >= 0.03} == {}


@pytest.mark.parametrize(
    ("name", "family", "short"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "gemm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>(T1::Params)",
            "gemm",
            "cutlass_80_simt_sgemm_128x32_8x5_tn_align1",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_split_k_kernel__5x_cublas",
            "gemm",
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_64x256x8_split_k",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
            "attention",
            "cudnn_sdpa_sm90_flash_fprop_wgmma_f16_64x128x128",
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>, false>(pytorch_flash::Flash_fwd_params)",
            "attention",
            "flash_fwd_kernel<Flash_fwd_kernel_traits>",
        ),
        ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)", "norm", "RMSNormKernel"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "rope", "rotary_embedding_kernel"),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)>(int)",
            "elementwise",
            "elementwise_kernel<MulFunctor>",
        ),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const, std::array<char *, (unsigned long)2>>(int)",
            "copy",
            "unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<(int)8, at::native::<unnamed>::silu_kernel(at::TensorIteratorBase &)::[lambda() (instance 1)]>(int)",
            "activation",
            "vectorized_elementwise_kernel<silu_kernel>",
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >()", "reduction", "reduce_kernel<MeanOps>"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float> > >()", "sampling", "reduce_kernel<ArgMaxOps>"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)", "softmax", "softmax_warp_forward"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>()", "embedding", "indexSelectLargeIndex"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("triton_poi_fused_add_mul_0", "elementwise", "triton_poi_fused_add_mul_0"),
        ("triton_red_fused_mean_3", "reduction", "triton_red_fused_mean_3"),
        ("triton_per_fused_native_layer_norm_2", "norm", "triton_per_fused_native_layer_norm_2"),
        ("triton_tem_fused_mm_5", "gemm", "triton_tem_fused_mm_5"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)", "convolution", "winogradForwardData4x4"),
        ("my_secret_kernel", OTHER, "my_secret_kernel"),
        ("move_particles(Particle *, int, curandStateXORWOW *)", OTHER, "move_particles"),
    ],
)  # fmt: skip
def test_names_tell_the_family(name: str, family: str, short: str) -> None:
    assert family_of(name) == family
    assert short_kernel_name(name) == short


def test_kernels_of_libraries_and_engines_have_their_family() -> None:
    names = tomllib.loads((Path(__file__).parent / "kernel_names.toml").read_text())
    assert {name: family_of(name) for name in names} == names


def test_every_family_has_a_label() -> None:
    assert all(label_of(name) for name in families())
    assert is_fusable("elementwise")
    assert not is_fusable("gemm")
    assert not is_fusable(OTHER)


@pytest.mark.parametrize("path", OWN[:1], ids=lambda p: p.name)
def test_short_names_are_short(path: Path) -> None:
    assert all(len(short_kernel_name(name)) <= 80 for name in time_by_name(path))


def as_one_expression(name: str) -> str:
    """What `families.toml` says, read in the plainest way."""
    head = _without_parameters(name)
    fitting = (rule.family for rule in rules() if re.search(rule.pattern, head, re.IGNORECASE))
    return next(fitting, OTHER)


@pytest.mark.process
@pytest.mark.parametrize("path", [*OWN, *OTHERS], ids=lambda p: p.name)
def test_rules_that_are_searched_word_by_word_say_the_same_of_every_recorded_name(path: Path) -> None:
    for name in time_by_name(path):
        assert family_of(name) == as_one_expression(name), name


# Words of the rules whole and in parts, and what stands between words.
PIECES = sorted({*(w for rule in rules() for w in re.findall(r"\w+", rule.pattern)), *"_ <>(),:ksxE19\n", "::", "er"})


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.booleans())
def test_rules_that_are_searched_word_by_word_say_the_same_of_any_name(name: str, loud: bool) -> None:
    name = name.upper() if loud else name
    assert family_of(name) == as_one_expression(name)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.family)
def test_a_rule_is_looked_for_by_words_that_are_not_in_every_name(rule: Rule) -> None:
    parts = _alternatives(rule.pattern)
    assert "|".join(word if regex is None else regex.pattern for word, regex in parts) == rule.pattern.lower()
    assert [word for word, _ in parts if len(word) < 2] == []


@given(st.data())
def test_a_rule_needs_the_word_that_it_is_looked_for_by(data: st.DataObject) -> None:
    word, regex = data.draw(st.sampled_from([part for rule in rules() for part in _alternatives(rule.pattern)]))
    if regex is not None:
        assert word in data.draw(st.from_regex(regex))
