"""Fix rules: what each recognises, what it leaves alone, and what it promises.

On traces whose every launch is known, and on recordings of an H200 before and after the fix, with the gain measured.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import RECORDINGS
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.analysis.rules.all_rules import RULES, fix_words
from llm_perf_opt.analysis.rules.gains import generation_of
from llm_perf_opt.readers.kineto import read_kineto
from llm_perf_opt.readers.measured import read_measured
from llm_perf_opt.regions.fixes import Answer, Fix
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.tensors import EXPANDED, STRIDED, Tensor, as_text, from_text

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import rules

H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
BF16, FP32 = "c10::BFloat16", "float"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda(at::TensorIteratorBase&)>"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11, false, false>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"

Operator = tuple[str, list[Any]]  # name, and dims of its inputs, or (dims, type) or (dims, type, strides)
Launch = tuple[str, float, list[Operator]]  # kernel, µs, operators around it


def recorded(launches: list[Launch], steps: int = 4, lines: Sequence[int] = ()) -> bytes:
    """A trace of steps that launch all of this one behind the other, the host ahead of the GPU.

    `lines`: of `train.py`, the line of the function that makes each launch.
    """
    events: list[dict[str, Any]] = []
    host, gpu, correlation = 1000.0, 1000.0, 0

    def event(category: str, name: str, start: float, length: float, **args: Any) -> None:
        pid, tid = (0, 7) if category == "kernel" else (10, 10)
        whole = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(start, 3)}
        events.append(whole | {"dur": round(length, 3), "args": args})

    for _ in range(steps):
        begin = host
        for number, (kernel, length, operators) in enumerate(launches):
            correlation += 1
            if lines:
                event("python_function", f"train.py({lines[number]}): f{lines[number]}", host - 0.1, 4.8)
            for depth, (name, inputs) in enumerate(operators):
                event("cpu_op", name, host + 0.1 * depth, 4 - 0.2 * depth, **given(inputs))
            event("cuda_runtime", "cudaLaunchKernel", host + 2.0, 0.5, correlation=correlation)
            gpu = max(gpu, host + 3.0)
            event("kernel", kernel, gpu, length, correlation=correlation, device=0, stream=7)
            host, gpu = host + 5.0, gpu + length
        host = max(host, gpu - 100)
        event("user_annotation", "step", begin, host - begin - 1)
    return json.dumps({"deviceProperties": [H200], "traceEvents": events}).encode()


def given(inputs: list[Any]) -> dict[str, Any]:
    if not inputs:
        return {}
    full = [(one, BF16, None) if isinstance(one, list) else (*one, None)[:3] for one in inputs]
    return {
        "Input Dims": [dims for dims, _, _ in full],
        "Input type": [kind for _, kind, _ in full],
        "Input Strides": [strides or [] for _, _, strides in full],
    }


def fixes(launches: list[Launch], lines: Sequence[int] = ()) -> dict[str, Fix]:
    return {fix.rule: fix for fix in reported(recorded(launches, lines=lines)).answer.fixes}


def reported(trace: bytes) -> NCUProfileRegionReport:
    return build_report([read_kineto(io.BytesIO(trace), "trace.json")], ReportOptions())


def mm(rows: int, columns: int, depth: int, kernel: str = GEMM, us: float = 0.0, kind: str = BF16) -> Launch:
    """A product; of no time given, at 70 % of the peak."""
    time = us or 2 * rows * columns * depth / 989.5e12 / 0.7 * 1e6
    inputs = [([rows, depth], kind), ([depth, columns], kind)]
    return kernel, time, [("aten::linear", []), ("aten::mm", inputs)]


def elementwise(us: float, count: int = 1) -> list[Launch]:
    return [(ELEMENTWISE, us, [("aten::tanh", [[8192, 8192]])])] * count


def copy(us: float, source: Any, target: Any, *around: str) -> Launch:
    return COPY, us, [*((name, []) for name in around), ("aten::copy_", [target, source])]


def cast(us: float, old: str, new: str) -> Launch:
    dims = [8192, 8192]
    return CAST, us, [("aten::to", []), ("aten::_to_copy", []), ("aten::copy_", [(dims, new), (dims, old)])]


BIG = mm(8192, 4096, 4096)
HEADS = [8, 8, 4, 1024, 128]
SCORES = [64, 2048, 2048]
ATTENTION: Launch = (FLASH, 300.0, [("aten::scaled_dot_product_attention", [[8, 32, 256, 128]] * 3)])


def bmm(rows: int, columns: int, depth: int, us: float) -> Launch:
    return GEMM, us, [("aten::bmm", [[64, rows, depth], [64, depth, columns]])]


SHOWN: dict[str, tuple[list[Launch], float]] = {  # rule -> launches that show it, and the µs a step would gain
    "gemm.align": ([mm(8192, 50257, 768, "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_tn_align1", 4000)], 3087),
    "gemm.fp32": ([mm(4096, 4096, 4096, "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_simt_sgemm", 2700, FP32)], 2303),
    "gemm.old_kernel": ([mm(8192, 4096, 4096, "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", 1400, FP32)], 606),
    "fuse.elementwise": ([BIG, *elementwise(60, 8)], 420),
    "attention.unfused": ([bmm(2048, 2048, 128, 250), (SOFTMAX, 300, []), bmm(2048, 128, 2048, 200)], 552),
    "attention.repeat_kv": (
        [copy(150, (HEADS, BF16, [1 << 20, 1 << 17, 0, 128, 1]), HEADS, "aten::reshape", "aten::clone")] * 2 + [ATTENTION],
        300,
    ),
    "cast.pingpong": ([cast(60, FP32, BF16), mm(8192, 2048, 2048), cast(60, BF16, FP32)] * 2, 240),
    "copy.layout": (
        [BIG, copy(100, ([32, 16, 256, 128], BF16, [524288, 128, 2048, 1]), [32, 16, 256, 128], "aten::contiguous", "aten::clone")],
        100,
    ),
    "memory.bound": ([mm(16, 28672, 8192, us=115)] * 8, 460),
    "cache.concat": (
        [("void at::native::CatArrayBatchedCopy<…>", 100, [("aten::cat", [([[16, 16, 4096, 128], [16, 16, 1, 128]], "TensorList")])])] * 2 + [ATTENTION],
        200,
    ),
    "logits.all": (
        [mm(8192, 128256, 4096), ("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps>", 10, [("aten::argmax", [[4, 128256]])])],
        12_000,
    ),
    "optimizer.fused": (
        [
            ("void at::native::multi_tensor_apply_kernel<at::native::LerpFunctor>", 300, []),
            *[("void at::native::multi_tensor_apply_kernel<at::native::BinaryOpFunctor>", 300, [])] * 7,
        ],
        1700,
    ),
    "recompute": (
        [
            mm(8192, 4096, 4096),
            ("void gelu_kernel", 50, [("aten::gelu", [[8192, 4096]])]),
            (GEMM, 400, [("autograd::engine::evaluate_function: GeluBackward0", []), ("aten::linear", []), ("aten::mm", [[8192, 4096], [4096, 4096]])]),
            ("void gelu_kernel", 50, [("autograd::engine::evaluate_function: GeluBackward0", []), ("aten::gelu", [[8192, 4096]])]),
            (GEMM, 400, [("autograd::engine::evaluate_function: MmBackward0", []), ("MmBackward0", []), ("aten::mm", [[8192, 4096], [4096, 4096]])]),
        ],
        450,
    ),
    "loss.fp32": (
        [
            (CAST, 1500, [("aten::to", []), ("aten::copy_", [([8192, 128256], FP32), ([8192, 128256], BF16)])]),
            ("void cunn_SoftMaxForward<…>", 3000, [("aten::_log_softmax", [([8192, 128256], FP32)])]),
            ("void cunn_SoftMaxBackward<…>", 3000, [("aten::_log_softmax_backward_data", [([8192, 128256], FP32)])]),
        ],
        5440,
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", SHOWN)
def test_a_rule_sees_its_case_and_promises_what_the_roof_allows(rule: str) -> None:
    launches, gain = SHOWN[rule]
    found = fixes(launches)
    assert rule in found, {name: fix.gain_ns for name, fix in found.items()}
    fix = found[rule]
    assert fix.gain_ns == pytest.approx(gain * 1e3, rel=0.1)
    assert fix.gain_interval_ns
    low, high = fix.gain_interval_ns
    assert low <= fix.gain_ns <= high
    # Nothing of it is promised by another rule.
    assert not {other for other in found if other not in (rule, "launch.graph")}, found


LAYOUT = copy(
    100, ([32, 16, 256, 128], BF16, [524288, 128, 2048, 1]), [32, 16, 256, 128], "aten::contiguous", "aten::clone"
)


def test_the_lines_of_a_fix_are_those_of_the_launches_that_it_took() -> None:
    """One kernel at three places: two change a layout, one of them twice a step; the third fills a cache, as it must."""
    fills = copy(300, ([32, 16, 256, 128], BF16), [32, 16, 256, 128])
    found = fixes([BIG, LAYOUT, BIG, LAYOUT, BIG, LAYOUT, BIG, fills, BIG], [1, 20, 1, 20, 1, 30, 1, 40, 1])
    fix = found["copy.layout"]
    assert {line.line: line.time_ns for line in fix.lines} == pytest.approx({20: 200e3, 30: 100e3})
    assert fix.lines[0].function == "f20"


@pytest.mark.parametrize("rule", SHOWN)
def test_the_times_of_a_fix_s_lines_add_up_to_what_it_takes(rule: str) -> None:
    """Each launch on a line of its own: those that the rule took, and no other, are named."""
    launches, _ = SHOWN[rule]
    report = reported(recorded(launches, lines=range(1, len(launches) + 1)))
    (found,) = [one for one in report.opportunities if one.rule == rule]
    assert sum(line.time_ns or 0.0 for line in found.lines) == pytest.approx(found.time.of("ns"), rel=1e-6)
    (fix,) = [fix for fix in report.answer.fixes if fix.rule == rule]
    assert {line.line for line in fix.lines} <= set(range(1, len(launches) + 1))
    spent = {line.line: line.time_ns for line in fix.lines}
    assert spent == pytest.approx({number: 1e3 * launches[number - 1][1] for number in spent}, abs=2)


def test_waiting_that_a_rule_takes_from_another_keeps_its_lines() -> None:
    """Experts in a loop wait at their own lines; that waiting is `launch.graph` elsewhere."""
    expert: list[Launch] = [
        ("void at::native::DeviceSelectSweepKernel", 1, [("aten::where", []), ("aten::nonzero", [[4096]])]),
        mm(16, 2048, 2048, us=1),
        ("void at::native::indexFuncLargeIndex", 1, [("aten::index_add_", [[4096, 2048]])]),
    ]
    fix = fixes(expert * 16, [11, 12, 13] * 16)["moe.loop"]
    spent = {line.line: line.time_ns or 0.0 for line in fix.lines}
    assert set(spent) == {11, 12, 13}
    assert min(spent.values()) > 3 * 16e3  # a microsecond of the GPU, and four in which it waits


def test_each_copy_has_the_line_that_makes_it() -> None:
    events = []

    def event(category: str, name: str, start: float, length: float, **args: Any) -> None:
        pid, tid = (0, 7) if category == "gpu_memcpy" else (10, 10)
        common = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        events.append({**common, "ts": start, "dur": length, "args": args})

    event("user_annotation", "step", 0, 10_000)
    for number, (line, length) in enumerate(((7, 3000), (8, 1000))):
        begin = 100 + 4000 * number
        event("python_function", f"train.py({line}): load", begin, 60)
        event("cuda_runtime", "cudaMemcpyAsync", begin + 10, 20, correlation=number)
        copied = {"correlation": number, "device": 0, "bytes": 1 << 20}
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin + 100, length, **copied)
    trace = json.dumps({"deviceProperties": [H200], "traceEvents": events}).encode()
    (fix,) = [fix for fix in reported(trace).answer.fixes if fix.rule == "copy.host"]
    assert {line.line: line.time_ns for line in fix.lines} == pytest.approx({7: 3e6, 8: 1e6})


def test_kernels_of_cuda_cores_are_about_their_type_whatever_alignment_they_were_made_for() -> None:
    """A vision transformer of 768 in fp32 on an H200: sizes are aligned, its kernels end in align1 all the same."""
    found = fixes([mm(12608, 3072, 768, "cutlass_80_simt_sgemm_256x128_8x4_nn_align1", 1200, FP32)])
    assert set(found) - {"launch.graph"} == {"gemm.fp32"}


ALIGNED = mm(8192, 50304, 768)
FINE: dict[str, list[Launch]] = {
    "aligned": [ALIGNED],
    "tf32": [mm(8192, 4096, 4096, "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", us=900, kind=FP32)],
    "one elementwise kernel": [BIG, *elementwise(60)],
    "a product, softmax of a router, top-k": [BIG, (SOFTMAX, 10, []), ("void at::native::sbtopk::gatherTopK", 10, []), BIG],
    "a fused attention": [BIG, ATTENTION, BIG],
    "a rotary embedding": [
        ATTENTION,
        ("void at::native::CatArrayBatchedCopy<…>", 40, [("aten::cat", [([[16, 16, 4096, 64]] * 2, "TensorList")])]),
        ATTENTION,
    ],
    "a picture and a prompt that are put together": [
        BIG,
        ("void at::native::CatArrayBatchedCopy<…>", 200, [("aten::cat", [([[16, 2880, 5120], [16, 64, 5120]], "TensorList")])]),
        BIG,
    ],
    "a large batch": [mm(4096, 28672, 8192)],
    "weights that stay in the cache": [mm(16, 1024, 1024, us=3)] * 4,
    "a fused optimiser": [("void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>", 900, [])],
    "Adam of Apex and DeepSpeed": [
        BIG,
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float>(long)", 900, []),
    ],
    "Adam of Transformer Engine": [
        BIG,
        ("void transformer_engine::multi_tensor_apply::multi_tensor_apply_kernel<TensorListMetadata<5>, transformer_engine::multi_tensor_adam::AdamFunctorMaster<__nv_bfloat16>>", 900, []),
    ],
    "gradients that are unscaled": [
        BIG,
        ("void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<1>, at::native::UnaryOpFunctor<float, 1, 1, 0>, at::native::_amp_foreach_non_finite_check_and_unscale_cuda_>", 200, []),
    ],
    "a fused cross entropy between the products of logits and gradients": [(GEMM, 400, []), ("liger_cross_entropy_kernel", 180, []), (GEMM, 400, [])] * 4,
    "the softmax of a router before the products of experts": [(GEMM, 3, []), (SOFTMAX, 3, []), (GEMM, 400, []), (GEMM, 400, [])] * 4,
    "logits that are all looked at": [mm(8192, 128256, 4096), ("void argmax", 10, [("aten::argmax", [[8192, 128256]])])],
    "a gradient": [
        mm(8192, 4096, 4096),
        (GEMM, 400, [("autograd::engine::evaluate_function: MmBackward0", []), ("MmBackward0", []), ("aten::mm", [[8192, 4096], [4096, 4096]])]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_is_fine_gets_no_fix(name: str) -> None:
    assert set(fixes(FINE[name])) - {"launch.graph"} == set()


@pytest.mark.parametrize(
    ("kernel", "written_for"),
    [
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", 8),
        ("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1", 8),
        ("nvjet_sm90_tst_64x64_64x13_2x1_v_bz_TNT", 9),
        ("nvjet_sm100_tst_32x64_64x16_4x1_v_bz_splitK_bias_TNN", 10),  # of B200 itself, no older GPU
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_Ab32_Bb_dynB_sm100f", 10),
        ("cutlass3x_sm120_tensorop_gemm", 12),
        ("gemm", None),
    ],
)
def test_for_which_gpu_a_kernel_was_written(kernel: str, written_for: int | None) -> None:
    assert generation_of(kernel) == written_for


@pytest.mark.parametrize(("gpu", "newer"), [(H200, True), ({**H200, "name": "Tesla V100", "computeMajor": 7}, False)])
def test_only_types_that_the_gpu_has_are_recommended(
    gpu: dict[str, Any], newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "H200", gpu)
    action = fixes([*SHOWN["gemm.fp32"][0]])["gemm.fp32"].action
    assert "fp16" in action
    assert ("TF32" in action, "bf16" in action) == (newer, newer)


def test_pieces_of_compiled_code_are_not_called_many_launches() -> None:
    """Short kernels, each entered as a piece of compiled code of its own."""

    def pieces(count: int) -> list[Launch]:
        kernels = [("triton_poi_fused_add_0", 2.0, [(f"Torch-Compiled Region: {n}/0", [])]) for n in range(count)]
        return [kernels[n % count] for n in range(40)]

    assert set(fixes(pieces(8))) == {"compile.breaks"}
    assert set(fixes(pieces(1))) == {"launch.graph"}


def test_experts_in_a_loop_are_one_fix() -> None:
    expert: list[Launch] = [
        ("void at::native::DeviceSelectSweepKernel", 5, [("aten::where", []), ("aten::nonzero", [[4096]])]),
        ("void at::native::index_elementwise_kernel", 10, [("aten::index", [[4096, 2048]])]),
        mm(128, 2048, 2048, us=10),
        ("void at::native::indexFuncLargeIndex", 10, [("aten::index_add_", [[4096, 2048]])]),
    ]
    found = fixes(expert * 16)
    assert set(found) == {"moe.loop"}
    assert found["moe.loop"].because.startswith("16 experts")
    assert "moe.loop" not in fixes(expert * 2 + [BIG] * 4)
    # A decoder with a static cache: attention turns its mask into values with where, and nobody selects rows.
    mask = ("void at::native::elementwise_kernel", 5, [("aten::scaled_dot_product_attention", []), ("aten::where", [])])
    layer = [
        mask,
        mm(128, 2048, 2048, us=10),
        ("index_elementwise_kernel", 10, [("aten::index_copy_", [[4096, 2048]])]),
    ]
    assert "moe.loop" not in fixes(layer * 16)
    # Rows are selected and put back, as embeddings are, hundreds of launches apart.
    apart = [expert[0], expert[1], *([mm(128, 2048, 2048, us=10)] * 60), expert[3]]
    assert "moe.loop" not in fixes(apart * 12)


def _expert(rows: int, us: float = 10) -> list[Launch]:
    """Of SwiGLU, with weights of its own."""
    up = mm(rows, 1408, 2048, us=us)
    return [up, up, *elementwise(2), mm(rows, 2048, 1408, us=us)]


def test_experts_that_take_slices_of_sorted_tokens_are_one_fix() -> None:
    """As in DeepSeek's code: nothing is selected or put back between them."""
    experts = [launch for number in range(32) for launch in _expert(8 + 7 * number % 40)]
    found = fixes(experts)
    assert set(found) == {"moe.loop"}
    assert found["moe.loop"].because.startswith("32 experts")
    # Layers of a dense model, one behind the other, and prompts of several lengths, one after the other.
    assert "moe.loop" not in fixes(_expert(64) * 32)
    prompts = [launch for number in range(32) for launch in [*_expert(8 + 7 * number % 40), ATTENTION]]
    assert "moe.loop" not in fixes(prompts)


def test_logits_that_were_shifted_between_head_and_loss_are_those_of_the_loss() -> None:
    """Of 8192 positions the last of each sequence has no next word: transformers shifts and copies them, in fp32."""
    shifted, whole = [4, 2047, 128256], [4, 2048, 128256]
    launches: list[Launch] = [
        mm(8192, 128256, 2048),
        (CAST, 1500, [("aten::to", []), ("aten::copy_", [(whole, FP32), (whole, BF16)])]),
        copy(2000, (shifted, FP32, [2048 * 128256, 128256, 1]), (shifted, FP32), "aten::contiguous", "aten::clone"),
        ("void cunn_SoftMaxForward<…>", 3000, [("aten::_log_softmax", [([8188, 128256], FP32)])]),
    ]
    found = fixes(launches)
    assert set(found) == {"loss.fp32"}
    assert found["loss.fp32"].gain_ns > 4_000e3


def test_parameters_that_are_updated_one_by_one_are_a_fix_of_the_optimiser() -> None:
    """Eight operators for each, of which the host takes longer to launch than the GPU to run."""
    names = ["mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"]
    kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    parameter: list[Launch] = [(kernel, 2, [(f"aten::{name}", [([1024, 1024], FP32)])]) for name in names]
    found = fixes(parameter * 20)
    assert next(iter(found)) == "optimizer.fused"
    assert found["optimizer.fused"].because.startswith("20 parameters are updated one by one")
    waiting = 20 * 8 * 3e3  # 5 µs of the host for every 2 µs of the GPU
    assert waiting * 0.5 < found["optimizer.fused"].gain_ns < waiting + 20 * 8 * 2e3
    assert "optimizer.fused" not in fixes(parameter * 4)
    # RMSprop goes through them the same way, and has no fused version.
    assert "optimizer.fused" not in fixes([one for one in parameter if one[2][0][0] != "aten::lerp_"] * 20)


def test_what_experts_wait_for_is_part_of_the_gain() -> None:
    """Each expert's launches take the host longer than the GPU."""
    expert: list[Launch] = [
        ("void at::native::DeviceSelectSweepKernel", 1, [("aten::where", []), ("aten::nonzero", [[4096]])]),
        mm(16, 2048, 2048, us=1),
        ("void at::native::indexFuncLargeIndex", 1, [("aten::index_add_", [[4096, 2048]])]),
    ]
    found = fixes(expert * 16)
    assert set(found) == {"moe.loop"}
    idle = 16 * 3 * 4e3  # 5 µs of the host for every µs of the GPU
    assert found["moe.loop"].gain_ns > 0.8 * idle


@pytest.mark.parametrize(("gradient", "again"), [("MmBackward0", True), ("SwigluBackward", False)])
def test_a_forward_operator_in_a_gradient_of_pytorch_is_computed_again(gradient: str, again: bool) -> None:
    """A gradient that somebody wrote may call one; PyTorch's own never do, but for what was not saved."""
    gelu = [("aten::gelu", [[8192, 4096]])]
    backward = [(f"autograd::engine::evaluate_function: {gradient}", []), (gradient, [])]
    found = fixes([BIG, ("void gelu_kernel", 100, gelu), BIG, ("void gelu_kernel", 100, [*backward, *gelu]), BIG])
    assert ("recompute" in found) == again


def test_a_backward_that_is_a_stage_of_its_own_shows_that_the_forward_runs_again() -> None:
    """The first forward is in another stage; PyTorch's own gradients call several of its operators all the same."""
    node = [("autograd::engine::evaluate_function: MmBackward0", []), ("MmBackward0", [])]
    gelu, norm = ("aten::gelu", [[8192, 4096]]), ("aten::layer_norm", [[8192, 4096]])
    again: list[Launch] = [("void gelu_kernel", 100, [*node, gelu]), ("void layer_norm_kernel", 100, [*node, norm])]
    assert fixes([BIG, *again, BIG])["recompute"].gain_ns == pytest.approx(200e3, rel=0.1)
    assert "recompute" not in fixes([BIG, again[0], BIG])  # one alone may be of a gradient that somebody wrote


@pytest.mark.parametrize("gigabytes", [40, 135])
def test_checkpoints_are_left_alone_where_memory_is_full(gigabytes: int, tmp_path: Path) -> None:
    """An H200 has 141 GB."""
    content = json.loads(rules._as_measured(1.5))
    for row in content["processes"][0]["rows"]:
        row[6] = gigabytes * 10**9
    (tmp_path / "measured.json").write_text(json.dumps(content), encoding="utf-8")
    timeline = read_kineto(io.BytesIO(recorded(SHOWN["recompute"][0])), "trace.json")
    measured = [read_measured(tmp_path / "measured.json")]
    found = {fix.rule: fix for fix in build_report([timeline], ReportOptions(), measured=measured).answer.fixes}
    assert ("recompute" in found) == (gigabytes == 40)
    if found:
        assert "no more than 40 GB of 141 GB" in found["recompute"].because


def test_softmax_of_attention_is_no_loss() -> None:
    """Scores in fp32 over a long sequence are as wide as a vocabulary, and are cast likewise."""
    scores: list[Launch] = [
        (CAST, 1500, [("aten::to", []), ("aten::copy_", [([8192, 128256], FP32), ([8192, 128256], BF16)])]),
        ("void cunn_SoftMaxForward<…>", 3000, [("aten::_softmax", [([8192, 128256], FP32)])]),
    ]
    assert "loss.fp32" in fixes([*SHOWN["loss.fp32"][0]])
    assert "loss.fp32" not in fixes(scores)


def staged(parts: list[tuple[str, list[Launch]]]) -> Answer:
    """The answer about steps of named parts, one behind the other."""
    trace = json.loads(recorded([launch for _, launches in parts for launch in launches]))
    for step in [event for event in trace["traceEvents"] if event["name"] == "step"]:
        trace["traceEvents"].remove(step)
        begin = step["ts"]
        for name, launches in parts:
            end = begin + 5.0 * len(launches)
            trace["traceEvents"].append(step | {"name": name, "ts": begin, "dur": end - begin - 1})
            begin = end
    timeline = read_kineto(io.BytesIO(json.dumps(trace).encode()), "trace.json")
    return build_report([timeline], ReportOptions()).answer


@pytest.mark.parametrize(("us", "confidence", "stage"), [(2.9, "low", "late"), (1.0, "high", "early")])
def test_a_stage_that_waits_only_because_of_the_profiler_is_not_looked_at_first(
    us: float, confidence: str, stage: str
) -> None:
    """Launches every 5 µs, and 4 at the least without a profiler: kernels of 2.9 µs fill most of that. `early` is the longest."""
    short: list[Launch] = [("void radix_sort_kernel", us, [("aten::sort", [])])] * 400
    alone = staged([("early", short)])
    assert (alone.verdict, alone.confidence) == ("launch", confidence)
    assert staged([("early", short), ("late", elementwise(300, 4))]).stage == stage


def test_where_all_stages_may_wait_only_because_of_the_profiler_the_longest_is_looked_at_first() -> None:
    def sorts(us: float, count: int) -> list[Launch]:
        return [("void radix_sort_kernel", us, [("aten::sort", [])])] * count

    assert staged([("late", sorts(2.8, 398))]).confidence == "low"
    assert staged([("early", sorts(2.9, 400)), ("late", sorts(2.8, 398))]).stage == "early"


def test_what_stages_that_differ_in_a_number_take_together_is_told() -> None:
    """Each of four layers is hardly longer than the head."""
    layers = [(f"layers.{n}.mlp", [BIG] * 3) for n in range(4)]
    answer = staged([*layers, ("head", [BIG] * 2)])
    assert answer.stage.startswith("layers.")
    assert "the 4 stages layers.*.mlp, which are alike, take " in answer.where
    assert re.search(r", 8[4-7]\.\d % of the time of all stages \(head ", answer.where)
    assert "alike" not in staged([("layers.0.mlp", [BIG] * 3), ("head", [BIG] * 2)]).where


@pytest.mark.parametrize(("operators", "share"), [(0, 0.775), (1, 0.755), (6, 0.58)])
def test_a_graph_is_not_promised_the_time_of_the_profiler_of_pytorch(operators: int, share: float) -> None:
    """Launches of 40 µs with 8 µs of work each, and 3.3 µs for each operator that is written down."""
    around: list[Operator] = [("aten::tanh", [[8192, 8192]])] * operators
    trace = json.loads(recorded([(ELEMENTWISE, 1.0, around)] * 40))
    for event in trace["traceEvents"]:
        event["ts"], event["dur"] = 8 * event["ts"], 8 * event["dur"]
    found = build_report([read_kineto(io.BytesIO(json.dumps(trace).encode()), "trace.json")], ReportOptions()).answer
    assert found.fixes[0].rule == "launch.graph"
    assert found.fixes[0].gain_share == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("us", "own", "told"), [(40, 0, False), (40, 400, True), (1500, 0, True)])
def test_another_stage_is_named_where_it_is_worth_a_look(us: float, own: float, told: bool) -> None:
    """Chains of elementwise kernels in `log`, and in `train`. Where `train` has none, nobody begins with 2 % elsewhere."""
    found = staged([("train", [BIG] * 8 + elementwise(own, 4 * bool(own))), ("log", elementwise(us, 4))])
    stages = {stage for fix in found.fixes for stage in (fix.stage, *(also.stage for also in fix.also))}
    assert ("log" in stages) == told, found


def test_graph_breaks_promise_only_the_time_between_pieces() -> None:
    """In each piece four launches, of which the first has to wait for its entry: 5 µs, as any other. The rest stays."""
    pieces = [
        ("triton_poi_fused_add_0", 2.0, [(f"Torch-Compiled Region: {n}/0", [])]) for n in range(8) for _ in range(4)
    ]
    assert "compile.breaks" not in fixes(pieces)


@pytest.mark.parametrize(("mhz", "reasons", "held"), [(900, 0, True), (900, 0x4, False), (1900, 0, False)])
def test_a_clock_that_is_held_down_is_told_unless_by_the_power_limit(
    mhz: int, reasons: int, held: bool, tmp_path: Path
) -> None:
    timeline = read_kineto(io.BytesIO(recorded([BIG])), "trace.json")
    content = json.loads(rules._as_measured(0.4))
    samples = [[number * 100_000, 0, mhz, 2600, 400_000, 60, reasons, 1] for number in range(90)]
    gpu = {"uuid": "GPU-1", "name": "NVIDIA H200", "power_limit_mw": 700_000, "max_sm_mhz": 1980, "others": []}
    content["gpus"] = [[gpu | {"samples": samples}]]
    content["processes"][0]["uuids"] = ["GPU-1"]
    (tmp_path / "measured.json").write_text(json.dumps(content), encoding="utf-8")
    measured = read_measured(tmp_path / "measured.json")
    found = {fix.rule: fix for fix in build_report([timeline], ReportOptions(), measured=[measured]).answer.fixes}
    assert ("gpu.clocks" in found) == held
    if held:
        assert found["gpu.clocks"].gain_share == pytest.approx(0.8 * (1 - 900 / 1980), rel=0.1)
        assert "900 of 1980 MHz" in found["gpu.clocks"].because


def test_rules_are_complete() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    for rule in RULES:
        for words in (rule.costs, rule.seen, rule.gain):
            assert words.endswith(".")
        assert not rule.title.endswith(".")
        assert rule.before
        assert rule.after != rule.before
        assert rule.unless.endswith(".")
    assert set(ids) <= set(fix_words())
    shown = [rule for rule in RULES if rule.id in LISTED]
    assert len(shown) == len(LISTED)


def test_tensors_are_written_as_text_and_back() -> None:
    text = as_text([BF16, "TensorList", "Scalar"], [[8, 4, 16], [[2, 3], [1, 3]], []], [[64, 0, 1], [], []])
    assert text == "bf16[8,4,16]x list[2,3] list[1,3] -"
    first, second, third, last = from_text(text)
    assert first == Tensor("bf16", (8, 4, 16), EXPANDED)
    assert first.bytes == 1024
    assert (second, third, last) == (Tensor("list", (2, 3)), Tensor("list", (1, 3)), None)
    assert from_text(as_text([FP32], [[4, 8]], [[1, 4]])) == (Tensor("fp32", (4, 8), STRIDED),)
    assert as_text(["Scalar"], [[]]) == ""


@pytest.mark.parametrize("bad", [[-1, 2], [1 << 50], ["a"], [True], "x", None, [[[1]]]])
def test_damaged_dims_are_no_tensors(bad: Any) -> None:
    assert np.all([tensor is None for tensor in from_text(as_text([BF16], [bad]) or "-")])


# -- recordings of an H200 -----------------------------------------------------------------------------------

LISTED = {rules._constant(file, "RULE") for file in rules.PROGRAMS.glob("*.py")}
with tarfile.open(RECORDINGS / "fix-rules-h200.tar") as _tar:
    MEASURED = json.load(_tar.extractfile(rules.TIMES) or io.StringIO("{}"))["programs"]
    RECORDED = sorted(name.removesuffix(".json.gz") for name in _tar.getnames() if name.endswith(".json.gz"))


def fixes_of(recorded: str, tmp_path: Path) -> dict[str, Fix]:
    """Of the step of a recorded program, with the times that were measured."""
    name, variant = recorded.split(".")
    with tarfile.open(RECORDINGS / "fix-rules-h200.tar") as tar:
        trace = tar.extractfile(f"{recorded}.json.gz")
        assert trace
        timeline = read_kineto(trace, recorded)
    file = tmp_path / "measured.json"
    file.write_text(rules._as_measured(MEASURED[name][variant]["ms"]), encoding="utf-8")
    found = build_report([timeline], ReportOptions(), measured=[read_measured(file)]).answer.fixes
    return {fix.rule: fix for fix in found if fix.stage == rules.STEP}


@pytest.mark.parametrize("recorded", [name for name in RECORDED if name.endswith(".before")])
def test_the_gain_is_near_what_mending_gained(recorded: str, tmp_path: Path) -> None:
    name = recorded.split(".")[0]
    fix = fixes_of(recorded, tmp_path)[rules._constant(rules.PROGRAMS / f"{name}.py", "RULE")]
    gained = (MEASURED[name]["before"]["ms"] - MEASURED[name]["after"]["ms"]) * 1e6
    assert fix.gain_ns == pytest.approx(gained, rel=0.25)
    assert fix.gain_interval_ns
    low, high = fix.gain_interval_ns
    assert low <= gained <= high


def test_kernels_that_ran_slower_in_the_recording_promise_no_more_than_they_take_by_themselves(tmp_path: Path) -> None:
    """Its 8.1 ms of GPU work a step are 7.3 ms where no profiler looks: the recording ran at a lower clock."""
    fix = fixes_of("attention_repeat_kv.before", tmp_path)["attention.repeat_kv"]
    times = MEASURED["attention_repeat_kv"]
    assert fix.gain_ns / fix.gain_share == pytest.approx(times["before"]["ms"] * 1e6, rel=0.01)
    assert fix.gain_ns == pytest.approx((times["before"]["ms"] - times["after"]["ms"]) * 1e6, rel=0.05)


def test_kernels_have_their_operator_and_shapes_where_no_line_was_recorded() -> None:
    with tarfile.open(RECORDINGS / "fix-rules-h200.tar") as tar:
        trace = tar.extractfile("gemm_align.before.json.gz")
        assert trace
        report = build_report([read_kineto(trace, "trace.json.gz")], ReportOptions())
    assert report.main_scope
    step = next(region for region in report.main_scope.regions if region.name == rules.STEP).performance
    assert step
    assert "aten::linear 8192×50257×768" in {source.operator for source in step.sources}
    assert (step.lines, step.lines_known) == ([], None)


@pytest.mark.parametrize("recorded", [name for name in RECORDED if not name.endswith(".before")])
def test_mended_and_tuned_programs_get_no_fix_of_the_list(recorded: str, tmp_path: Path) -> None:
    assert set(fixes_of(recorded, tmp_path)) & LISTED == set()


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_the_benchmark_measures_records_and_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tiny, on the CPU: nothing is recognised there, and all of it is written down."""
    rules.main(["--device", "cpu", "--only", "cast", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "rules-h200.json").read_text(encoding="utf-8"))
    (row,) = found["rules"]
    assert (row["rule"], row["recognised"], row["changed_since"]) == ("cast.pingpong", False, False)
    assert row["before_ms"] > 0
    assert "| `cast.pingpong` |" in (tmp_path / "rules-h200.md").read_text(encoding="utf-8")
