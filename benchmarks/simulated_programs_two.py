"""More programs on the paper machine (`simulated_machine.py`), by someone who had not built the product.

In the style of programs that exist: FSDP and Megatron, DeepSpeed pipelines and off-loading, LoRA, GRPO, vLLM, SGLang, TGI,
Whisper, Stable Diffusion, rerankers, quantised decode; and of the slips of every day: a value fetched for each parameter,
a cache that is copied, a rank that is late, a recording that begins in the middle. Several are well tuned.
`unseen/simulated_two.toml` has what an expert says about each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from simulated_machine import PID, Machine

NVJET = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
NVJET_SMALL = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
OLD = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
FLASH3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>, cute::tuple<cute::C<128>, cute::C<176>, cute::C<128>>, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, false, false, true, true, false, false, false, true, true, false, false>>>>(flash::FlashAttnFwdSm90::Params)"
FLASH2 = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>, false, true, false, false, true, true, false>(pytorch_flash::Flash_fwd_params)"
FLASH2_BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, true, false, cutlass::bfloat16_t>, false, true, false, false, true, true>(pytorch_flash::Flash_bwd_params)"
PAGED = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<1, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>, cute::tuple<cute::C<64>, cute::C<128>, cute::C<128>>, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, false, true, false, true, true, true>>>>(flash::FlashAttnFwdSm90::Params)"
CACHE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, long const*, long, long, long, int, int, int, float const*, float const*)"
NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, float, int, int)"
ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, int, long, long, int, int, int)"
ACT = "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>(c10::BFloat16*, c10::BFloat16 const*, int)"
REDUCE_ONE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)"
TRITON = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3"
TRITON_POINT = "triton_poi_fused_mul_silu_7"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float>>, std::array<char*, 3ul>>(int)"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}>(int)"
TO_BF16 = "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>>(int)"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float const*, float const*, float const*, float*, float*, float*)"
L2NORM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float>, unsigned int, float, 4>>(at::native::ReduceOp<float>)"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*)"
SELECT = "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::Half, long, unsigned int, 4, 4, -2, true>(at::cuda::detail::TensorInfo<c10::Half, unsigned int>)"
EXPAND = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1}>>(int)"
LOG_SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)"
LOG_SOFTMAX_BACK = "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float, float, float, at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue>(float*, float const*, float const*, long)"
NLL = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float*, long*, float*, bool, long, long, long, long)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MARLIN = "void marlin::Marlin<__nv_bfloat16, 1125899906843648l, 256, 1, 8, 8, true, 4, 8, false>(int4 const*, int4 const*, int4*, int4*, int4 const*, int4 const*, int const*, int, int, int, int, int*, bool, int)"
AWQ = "dequantize_weights(int*, __half*, int*, __half*, int, int)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"
CONV = "sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckcrs_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_tensor16x8x16_kernel_cudnn"
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)2>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, __half const*, __half*)"
TO_NCHW = "void cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)0>(cudnn::engines_precompiled::nhwc2nchw_params_t<float>, __half const*, __half*)"
BATCH_NORM = "void cudnn::bn_fw_tr_1C11_kernel_NHWC<__half, float, int, 512, 1, 1>(cudnn::bnFwTrParams)"
UNALIGNED = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align2>(cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align2::Params)"
TBE = "void split_embedding_codegen_forward_unweighted_vec_blocking_kernel<float, float, float, int, false, 32>(pta::PackedTensorAccessor64<float, 1, at::RestrictPtrTraits>)"
TBE_BACK = "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_warp_per_row_1<float, float, float, int, 2, 32, false>(pta::PackedTensorAccessor64<float, 1, at::RestrictPtrTraits>)"
SAMPLE = "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)2, (cub::BlockReduceAlgorithm)2, 4u, true, float, int>(float*, int*, int*, float*, int)"

MAIN = 7


def run_ahead(m: Machine, most: float, stream: int = MAIN) -> None:
    """The host is so far ahead of the GPU at most, as the queue of launches has it."""
    m.now = max(m.now, m.free.get(stream, 0.0) - most)


def op(m: Machine, operator: str, kernel: str, time: float, host: float = 10.0, **args: Any) -> float:
    with m.span("cpu_op", operator, **args):
        m.works(host)
        return m.kernel(kernel, time)


# -- several GPUs ------------------------------------------------------------------------------------


def fsdp_prefetched(m: Machine) -> None:
    """FSDP: weights of the next layer are gathered, and gradients scattered, beside the products of this one."""
    for step in range(5):
        with m.span("user_annotation", f"ProfilerStep#{step + 3}"):
            for way, kernels in (
                ("forward", ((NVJET, 900), (FLASH3, 420), (NVJET, 1_700), (TRITON, 90))),
                ("backward", ((NVJET, 1_800), (FLASH2_BACKWARD, 1_050), (NVJET, 3_400), (TRITON, 160))),
            ):
                gathered = m.kernel(GATHER, 800, stream=30, grid=24)
                for _ in range(24):
                    with m.span("user_annotation", f"FSDP::{'pre_forward' if way == 'forward' else 'pre_backward'}"):
                        m.works(40)
                        m.free[MAIN] = max(m.free.get(MAIN, 0.0), gathered)
                        gathered = m.kernel(GATHER, 800, stream=30, grid=24, after=m.free[MAIN])
                    for kernel, time in kernels:
                        done = op(m, "aten::mm" if kernel is NVJET else "TorchDynamo Cache Lookup", kernel, time)
                    if way == "backward":
                        with m.span("user_annotation", "FSDP::post_backward_reduce"):
                            m.works(30)
                            m.kernel(SCATTER, 900, stream=31, grid=24, after=done)
                    run_ahead(m, 6_000)
            m.free[MAIN] = max(m.free[MAIN], m.free[31])
            with m.span("user_annotation", "Optimizer.step#AdamW.step"):
                m.works(200)
                m.kernel(ADAM, 2_500)
        m.waits()


def fsdp_in_turn(m: Machine) -> None:
    """FSDP that gathers a layer when it is needed and not before: the products wait for it, half of the time."""
    for step in range(5):
        with m.span("user_annotation", f"ProfilerStep#{step + 3}"):
            for scale in (1.0, 2.0):
                for _ in range(24):
                    with (
                        m.span("user_annotation", "FullyShardedDataParallel.forward"),
                        m.span("cpu_op", "nccl:_all_gather_base"),
                    ):
                        m.works(60)
                        gathered = m.kernel(GATHER, 2_400, stream=30, grid=24, after=m.free.get(MAIN, 0.0))
                    m.free[MAIN] = max(m.free.get(MAIN, 0.0), gathered)
                    op(m, "aten::mm", NVJET, 420 * scale)
                    op(m, "aten::_flash_attention_forward", FLASH2, 230 * scale)
                    op(m, "aten::mm", NVJET, 880 * scale)
                    op(m, "aten::add", ADD, 60 * scale)
                    run_ahead(m, 9_000)
            m.kernel(ADAM, 1_200)
            m.waits()


def tensor_parallel(m: Machine, rank: int = 0) -> None:
    """Megatron, tensor parallel on two: two all-reduces in each layer, on its way: 26 % of the step, alike on both."""
    for step in range(5):
        with m.span("user_annotation", "train_step"), m.span("user_annotation", "forward-backward"):
            for _ in range(60):
                for kernel, time in ((NVJET, 820), (FLASH3, 330), (NVJET, 400)):
                    op(m, "aten::mm", kernel, time, 14)
                for kernel, time in ((NVJET, 1_100), (TRITON_POINT, 120)):
                    with m.span("cpu_op", "nccl:all_reduce"):
                        m.works(12)
                        done = m.kernel(REDUCE, 480, stream=26, grid=24, after=m.free[MAIN], spread=0.0)
                    m.free[MAIN] = max(m.free[MAIN], done)
                    op(m, "aten::mm", kernel, time, 14)
                run_ahead(m, 8_000)
        m.waits()
        m.now = max(m.now, 1_000_000.0 + (step + 1) * 230_000)  # both begin a step together


def uneven_pipeline(m: Machine, rank: int = 0) -> None:
    """DeepSpeed, four stages: the last one also has the head, and takes 14 ms for each micro batch where others take 8."""
    forward = (8_000.0, 8_000.0, 8_000.0, 14_000.0)
    micros, begin = 8, 1_001_000.0
    for _ in range(4):
        ends = [[0.0] * micros for _ in forward]
        for stage, time in enumerate(forward):
            for micro in range(micros):
                before = ends[stage - 1][micro] + 150 if stage else begin
                ends[stage][micro] = max(before, ends[stage][micro - 1] if micro else begin) + time
        backs = [[0.0] * micros for _ in forward]
        for stage in (3, 2, 1, 0):
            for micro in range(micros):
                before = ends[3][-1] if stage == 3 else backs[stage + 1][micro] + 150
                own = backs[stage][micro - 1] if micro else ends[stage][-1]
                backs[stage][micro] = max(before, own) + 2 * forward[stage]
        with m.span("user_annotation", "train_batch"):
            for table, previous, name in ((ends, rank - 1, "ForwardPass"), (backs, rank + 1, "BackwardPass")):
                scale = 1 if table is ends else 2
                for micro in range(micros):
                    time = forward[rank] * scale
                    if 0 <= previous < 4:
                        with m.span("user_annotation", "RecvActivation" if scale == 1 else "RecvGrad"):
                            m.works(30)
                            free = max(m.free.get(MAIN, 0.0), m.now + 5)
                            arrives = table[rank][micro] - time
                            m.kernel(SEND, max(arrives - free, 40.0), stream=20, grid=2, after=free, spread=0.0)
                            m.free[MAIN] = m.free[20]
                    with m.span("user_annotation", name):
                        for _ in range(20):
                            op(m, "aten::mm", NVJET, time / 20 - 0.5, 15)
                    if 0 <= rank + scale * (3 - 2 * scale) < 4:
                        m.kernel(SEND, 120, stream=21, grid=2, after=m.free[MAIN])
                    run_ahead(m, 5_000)
            m.waits(stream=None)
        begin = max(max(row) for row in backs) + 2_000
        m.now = max(m.now, begin)


def late_of_four(m: Machine, rank: int = 0) -> None:
    """Four ranks, and rank 2 comes 16 ms late to the all-reduce of each step: Python collects garbage on it."""
    for step in range(8):
        begin = 1_000_000.0 + step * 78_000
        m.now = max(m.now, begin)
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            if rank == 2:
                with m.span("python_function", "<built-in function collect>"):
                    m.now += 16_000
            for _ in range(25):
                op(m, "aten::mm", NVJET, 1_100)
                op(m, "aten::_flash_attention_forward", FLASH2, 500)
                op(m, "aten::add", MUL, 90)
            done = m.free[MAIN]
            with m.span("cpu_op", "nccl:all_reduce"):
                m.works(20)
                m.free[MAIN] = m.kernel(REDUCE, begin + 72_000 - done, stream=26, grid=24, after=done, spread=0.0)
            m.kernel(ADAM, 1_500)
            m.waits()


def uneven_experts(m: Machine, rank: int = 0) -> None:
    """Experts on two ranks; those of rank 1 get twice the tokens, so rank 0 waits in each all-to-all behind them."""
    time = 1_000_000.0
    for step in range(6):
        m.now = max(m.now, time)
        with m.span("user_annotation", f"train_iter {step}"):
            for layer in range(16):
                op(m, "aten::_flash_attention_forward", FLASH3, 600)
                starts = time + 1_200 + layer * 4_400
                for _kind, at, begin in (("dispatch", starts, m.free[MAIN]), ("combine", starts + 2_900, None)):
                    if begin is None:
                        begin = op(m, "fused_moe", "_grouped_gemm_kernel", 2_300 if rank else 1_150)
                    with m.span("cpu_op", "nccl:all_to_all"):
                        m.works(15)
                        begin = max(begin, m.now + 5)
                        m.free[MAIN] = m.kernel(SEND, at + 350 - begin, stream=22, grid=16, after=begin, spread=0.0)
                run_ahead(m, 4_000)
            m.waits()
        time += 16 * 4_400 + 3_000


def taking_turns(m: Machine) -> None:
    """device_map="auto": the first half of the layers on one GPU, the second on the other; one of them always waits."""
    for _ in range(12):
        with m.span("user_annotation", "generate_step"):
            for device, stream in ((0, 7), (1, 107)):
                m.device = device
                m.free[stream] = max(m.free.get(stream, 0.0), m.free.get(7, 0.0), m.free.get(107, 0.0))
                for _ in range(40):
                    for name, time in ((NVJET, 380), (FLASH2, 150), (MUL, 30)):
                        with m.span("cpu_op", "aten::linear"):
                            m.works(10)
                            m.kernel(name, time, stream=stream)
            m.waits(stream=107)


def two_at_once(m: Machine) -> None:
    """One process drives two GPUs, each of which it keeps busy; well tuned."""
    for _ in range(15):
        with m.span("user_annotation", "infer_batch"):
            for _ in range(40):
                for device, stream in ((0, 7), (1, 107)):
                    m.device = device
                    m.works(12)
                    m.kernel(CONV, 620, stream=stream)
                    m.kernel(BATCH_NORM, 60, stream=stream)
            run_ahead(m, 3_000, 107)
    m.waits(stream=None)


def reduced_decode(m: Machine) -> None:
    """Decode on eight GPUs by CUDA graphs: the small all-reduces of vLLM take 30 % of the graph, and nothing is beside."""
    nodes = [
        (name, time)
        for _ in range(48)
        for name, time in (
            (NVJET_SMALL, 14),
            (PAGED, 18),
            (REDUCE_ONE, 16),
            (NVJET_SMALL, 24),
            (ACT, 3),
            (REDUCE_ONE, 16),
        )
    ]
    for _ in range(60):
        with m.span("user_annotation", "execute_context_0(0)_generation_16(16)"):
            m.works(300)
            m.graph(nodes)
        m.works(150)
        run_ahead(m, 3_000)


# -- training ----------------------------------------------------------------------------------------


def tuned_pretraining(m: Machine) -> None:
    """Compiled, fused, FlashAttention 3, on one GPU: nothing left to do for the host, little for the GPU."""
    m.launches_by = "cuLaunchKernelEx"
    for step in range(6):
        with m.span("user_annotation", f"ProfilerStep#{step + 10}"):
            for way in ("CompiledFxGraph forward", "CompiledFunctionBackward"):
                scale = 1 if way.endswith("forward") else 2
                with m.span("cpu_op", f"## Call {way} ##"):
                    for _ in range(32):
                        for name, time in (
                            (TRITON, 38), (NVJET, 610), (FLASH3 if scale == 1 else FLASH2_BACKWARD, 470), (NVJET, 440),
                            (TRITON, 38), (NVJET, 1_900), (TRITON_POINT, 70), (NVJET, 1_000),
                        ):  # fmt: skip
                            m.works(4)
                            m.kernel(name, time * scale)
                        run_ahead(m, 20_000)
            m.kernel(ADAM, 4_000)
        m.waits()


def lora(m: Machine) -> None:
    """LoRA of rank 10: its products have kernels that read two values at a time, and take 46 % of the time."""
    wide: dict[str, Any] = {
        "Input Dims": [[8192, 4096], [4096, 4096]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }
    thin: dict[str, Any] = {"Input Dims": [[8192, 4096], [4096, 10]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    for step in range(6):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for _ in range(64):
                op(m, "aten::mm", NVJET, 460, **wide)
                op(m, "aten::mm", UNALIGNED, 230, **thin)
                op(m, "aten::mm", UNALIGNED, 250, **{**thin, "Input Dims": [[8192, 10], [10, 4096]]})
                op(m, "aten::add_", MUL, 55)
            m.kernel(ADAM, 60)
            m.waits()


def clipped_one_by_one(m: Machine) -> None:
    """Gradients are clipped by a norm that is fetched for each of 500 parameters: 16 of 43 ms, GPU idle."""
    for step in range(10):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for _ in range(18):
                op(m, "aten::mm", NVJET, 900)
                op(m, "aten::_flash_attention_forward", FLASH2, 400)
            m.waits()
            with m.span("user_annotation", "clip_grad"), m.span("python_function", "train.py(131): clip_grad"):
                for _ in range(500):
                    op(m, "aten::linalg_vector_norm", L2NORM, 3.5, 8)
                    with m.span("cpu_op", "aten::item"), m.span("cpu_op", "aten::_local_scalar_dense"):
                        m.copy("DtoH", 4, 1, pinned=True)
                        m.waits()
            m.kernel(ADAM, 1_500)
            m.waits()


def casts_of_weights(m: Machine) -> None:
    """autocast with a cache that is off: each product casts its fp32 weight to bf16 before, 37 % of the time."""
    for _ in range(14):
        with m.span("user_annotation", "forward"):
            for _ in range(64):
                op(m, "aten::to", TO_BF16, 150)
                op(m, "aten::linear", NVJET, 210)
                op(m, "aten::layer_norm", LAYER_NORM, 45)
            m.waits()


def large_vocabulary(m: Machine) -> None:
    """Cross entropy over 256k words in fp32: casts, log-softmax and its gradient take 38 % of the step."""
    for step in range(8):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for _ in range(16):
                op(m, "aten::mm", NVJET, 1_050)
                op(m, "aten::_flash_attention_forward", FLASH2, 300)
            op(m, "aten::mm", NVJET, 4_000)
            op(m, "aten::to", EXPAND, 4_800)
            with m.span("cpu_op", "aten::cross_entropy_loss"):
                op(m, "aten::_log_softmax", LOG_SOFTMAX, 5_600)
                op(m, "aten::nll_loss_forward", NLL, 30)
            op(m, "aten::_log_softmax_backward_data", LOG_SOFTMAX_BACK, 6_900)
            op(m, "aten::to", TO_BF16, 4_500)
            op(m, "aten::mm", NVJET, 8_000)
            m.kernel(ADAM, 1_500)
            m.waits()


def zero_offload(m: Machine) -> None:
    """DeepSpeed ZeRO-Offload: gradients go to pinned memory, Adam runs on the CPU for 130 of 236 ms, weights come back."""
    for _ in range(6):
        with m.span("user_annotation", "DeepSpeedEngine.forward"):
            for _ in range(30):
                op(m, "aten::mm", NVJET, 1_000)
        with m.span("user_annotation", "DeepSpeedEngine.backward"):
            for _ in range(30):
                op(m, "aten::mm", NVJET, 2_000)
                m.copy("DtoH", 10e6, 24, stream=33, pinned=True, after=m.free[MAIN])
            m.waits(stream=None)
        with m.span("user_annotation", "DeepSpeedEngine.step"):
            with m.span("python_function", "deepspeed/ops/adam/cpu_adam.py(103): step"):
                m.works(130_000)
            m.copy("HtoD", 300e6, 24, pinned=True)
            m.waits()


def saved_beside(m: Machine) -> None:
    """Checkpoints are copied to pinned memory on a stream of their own and written by another thread; nothing waits."""
    for step in range(24):
        with m.span("user_annotation", "train_step"):
            for _ in range(24):
                op(m, "aten::mm", NVJET, 1_300)
                op(m, "aten::_flash_attention_forward", FLASH3, 420)
            run_ahead(m, 15_000)
        if step % 8 == 3:
            with m.span("user_annotation", "async_save"):
                m.works(400)
                done = m.copy("DtoH", 1_400e6, 24, stream=41, pinned=True)
                m.other_thread(
                    "python_function",
                    "torch/distributed/checkpoint/filesystem.py(303): _write_files_from_queue",
                    done,
                    done + 90_000,
                    PID + 5,
                )
    m.waits()


def activations_fetched(m: Machine) -> None:
    """Hidden states of each batch go to pageable memory for an index: 220 MB at 6 GB/s, 37 of 62 ms."""
    for _ in range(16):
        with m.span("user_annotation", "embed_corpus"):
            for _ in range(30):
                op(m, "aten::linear", NVJET, 560)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 240)
            with m.span("cpu_op", "aten::to"), m.span("cpu_op", "aten::_to_copy"), m.span("cpu_op", "aten::copy_"):
                m.copy("DtoH", 220e6, 6)
            m.works(300)


def evaluated_by_item(m: Machine) -> None:
    """Evaluation: .item() after each batch of 4 ms, then metrics on the host for 5 ms."""
    for _ in range(60):
        with m.span("user_annotation", "validation_step"):
            for _ in range(10):
                op(m, "aten::linear", NVJET, 280)
                op(m, "aten::gelu", GELU, 40)
            with m.span("cpu_op", "aten::item"), m.span("cpu_op", "aten::_local_scalar_dense"):
                m.copy("DtoH", 4, 1, pinned=True)
                m.waits()
            with m.span("python_function", "sklearn/metrics/_classification.py(1120): f1_score"):
                m.works(5_000)


def trainer_collates(m: Machine) -> None:
    """A trainer without ranges for its loader: the main thread collates for 30 of 56 ms, as the functions of Python say."""
    for step in range(14):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            with ExitStack() as stack:
                for name in (
                    "transformers/trainer.py(5080): get_batch_samples",
                    "torch/utils/data/dataloader.py(701): __next__",
                    "torch/utils/data/dataloader.py(757): _next_data",
                    "torch/utils/data/_utils/fetch.py(43): fetch",
                    "transformers/data/data_collator.py(758): __call__",
                ):
                    stack.enter_context(m.span("python_function", name))
                m.works(30_000)
            m.copy("HtoD", 1e6, 5)
            for _ in range(30):
                op(m, "aten::mm", NVJET, 620)
                op(m, "aten::_flash_attention_forward", FLASH2, 240)
            m.waits()


def retried(m: Machine) -> None:
    """Memory is short: every second step the allocator frees all it holds (80 cudaFree) and takes it again."""
    for step in range(16):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for layer in range(20):
                if step % 2 and layer == 10:
                    with m.span("cpu_op", "aten::empty"):
                        m.waits("cudaDeviceSynchronize")
                        for _ in range(80):
                            m.call("cudaFree", m.about(420))
                        for _ in range(12):
                            m.call("cudaMalloc", m.about(1_300))
                op(m, "aten::mm", NVJET, 950)
                op(m, "aten::mm", NVJET, 800)
            m.waits()


def tuned_on_the_way(m: Machine) -> None:
    """Triton tries its kernels for 6 s in the first step; the forty behind it keep the GPU busy."""
    for step in range(41):
        with m.span("user_annotation", "train_step"):
            if step == 0:
                with m.span("python_function", "triton/runtime/autotuner.py(171): run"):
                    for _ in range(120):
                        with m.span("python_function", "triton/compiler/compiler.py(226): compile"):
                            m.works(46_000)
                        for _ in range(30):
                            m.kernel("_attn_fwd", 130)
                        m.waits("cudaDeviceSynchronize")
            for _ in range(40):
                op(m, "_attention", "_attn_fwd", 410, 20)
                op(m, "aten::mm", NVJET, 700)
            m.waits()


def layouts(m: Machine) -> None:
    """A ResNet in half precision without channels_last: cuDNN turns each input and output about, 36 % of the time."""
    for _ in range(25):
        with m.span("user_annotation", "forward"):
            for _ in range(53):
                with m.span("cpu_op", "aten::cudnn_convolution"):
                    m.works(16)
                    m.kernel(TO_NHWC, 70)
                    m.kernel(CONV, 190)
                    m.kernel(TO_NCHW, 65)
                op(m, "aten::cudnn_batch_norm", BATCH_NORM, 50)
            m.waits()


def old_products(m: Machine) -> None:
    """An H100 whose products still run with kernels made for the A100: 82 % of the time."""
    for _ in range(10):
        with m.span("user_annotation", "encoder"):
            for _ in range(48):
                op(m, "aten::linear", OLD, 1_150)
                op(m, "aten::gelu", GELU, 80)
                op(m, "aten::layer_norm", LAYER_NORM, 70)
                op(m, "aten::_flash_attention_forward", FLASH2, 110)
            m.waits()


def embeddings(m: Machine) -> None:
    """A recommender: lookups in tables take 64 % of a step that keeps the GPU busy; copies are pinned and beside it."""
    for step in range(30):
        with m.span("user_annotation", f"## train_pipeline {step} ##"):
            m.copy("HtoD", 60e6, 24, stream=44, pinned=True)
            op(m, "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", TBE, 4_600, 60)
            for _ in range(6):
                op(m, "aten::addmm", NVJET, 480)
                op(m, "aten::relu", ADD, 50)
            op(m, "fbgemm::split_embedding_backward", TBE_BACK, 5_900, 60)
            for _ in range(4):
                op(m, "aten::mm", NVJET, 650)
            run_ahead(m, 9_000)
    m.waits()


# -- inference ---------------------------------------------------------------------------------------


def grpo(m: Machine) -> None:
    """GRPO: rollouts by Hugging Face's generate, launch by launch, take 78 %; rewards 4 %; the update, busy, the rest."""
    for _ in range(3):
        with m.span("user_annotation", "generate_completions"):
            for _ in range(50):
                with m.span("cpu_op", "decode"):
                    for _ in range(28):
                        for operator, name, time in (
                            ("aten::linear", NVJET_SMALL, 7), ("aten::mul", MUL, 2.5), ("aten::cat", CAT, 4),
                            ("aten::scaled_dot_product_attention", FLASH2, 8), ("aten::linear", NVJET_SMALL, 6),
                            ("aten::add", ADD, 2.5), ("aten::linear", NVJET_SMALL, 11), ("aten::silu", MUL, 2.5),
                        ):  # fmt: skip
                            op(m, operator, name, time, 22)
        m.waits()
        with (
            m.span("user_annotation", "compute_rewards"),
            m.span("python_function", "trl/rewards/accuracy.py(31): verify"),
        ):
            m.works(16_000)
        with m.span("user_annotation", "policy_update"):
            for _ in range(28):
                op(m, "aten::mm", NVJET, 1_500)
                op(m, "aten::_flash_attention_forward", FLASH2, 700)
            m.kernel(ADAM, 1_500)
            m.waits()


def chunked_prefill(m: Machine) -> None:
    """vLLM with asynchronous scheduling: most steps decode by a graph, every sixth also reads 2,048 tokens; 98 % busy."""
    for step in range(60):
        mixed = step % 6 == 5
        name = (
            f"execute_context_1(2048)_generation_{40 + step % 7}({40 + step % 7})"
            if mixed
            else f"execute_context_0(0)_generation_{40 + step % 7}({40 + step % 7})"
        )
        with m.span("user_annotation", name):
            m.works(500)
            if mixed:
                for _ in range(32):
                    for kernel, time in (
                        (NVJET, 620),
                        (ROPE, 12),
                        (CACHE, 10),
                        (PAGED, 210),
                        (NORM, 18),
                        (NVJET, 1_300),
                        (ACT, 60),
                    ):
                        m.works(6)
                        m.kernel(kernel, time)
            else:
                m.graph(
                    [
                        pair
                        for _ in range(32)
                        for pair in ((NVJET_SMALL, 70), (PAGED, 60), (NORM, 4), (NVJET_SMALL, 120), (ACT, 6))
                    ]
                )
        with m.span("user_annotation", "sample_tokens"):
            m.works(80)
            m.kernel(SAMPLE, 55)
            m.copy("DtoH", 256, 1, stream=50, pinned=True, after=m.free[MAIN])
        run_ahead(m, 7_000)


def synchronous_engine(m: Machine) -> None:
    """A graph of 5.5 ms a step; then the engine updates, detokenises and schedules for 4 ms, one after the other."""
    nodes = [
        pair for _ in range(36) for pair in ((NVJET_SMALL, 55), (PAGED, 30), (NORM, 4), (NVJET_SMALL, 60), (ACT, 4))
    ]
    for _ in range(70):
        with m.span("user_annotation", "EngineCore.step"):
            with (
                m.span("user_annotation", "schedule"),
                m.span("python_function", "vllm/v1/core/sched/scheduler.py(158): schedule"),
            ):
                m.works(1_200)
            with m.span("user_annotation", "execute_model"):
                m.works(250)
                m.graph(nodes)
                m.kernel(SAMPLE, 50)
                m.copy("DtoH", 256, 1, pinned=True)
                m.waits("cudaEventSynchronize")
            with (
                m.span("user_annotation", "update_from_output"),
                m.span("python_function", "vllm/v1/core/sched/scheduler.py(720): update_from_output"),
            ):
                m.works(1_300)
            with (
                m.span("user_annotation", "detokenize"),
                m.span("python_function", "vllm/v1/engine/output_processor.py(290): process_outputs"),
            ):
                m.works(1_500)


def overlap_scheduler(m: Machine) -> None:
    """SGLang whose scheduler runs one step ahead: ranges of 0.6 ms for steps of 6 ms; the GPU is busy for 99 %."""
    nodes = [
        pair for _ in range(40) for pair in ((NVJET_SMALL, 52), (PAGED, 38), (NORM, 3), (NVJET_SMALL, 48), (ACT, 5))
    ]
    for _ in range(45):
        with m.span("python_function", "sglang/srt/managers/scheduler.py(712): event_loop_overlap"):
            with m.span("python_function", "sglang/srt/managers/scheduler.py(1302): get_next_batch_to_run"):
                m.works(700)
            with m.span("user_annotation", "step[DECODE bs=64]"):
                m.works(400)
                m.graph(nodes)
            m.copy("DtoH", 256, 1, pinned=True)
            with m.span(
                "python_function",
                "sglang/srt/managers/scheduler_output_processor_mixin.py(196): process_batch_result_decode",
            ):
                m.works(1_500)
                m.now = max(m.now, m.free[MAIN] - 6_500)


def eager_server(m: Machine) -> None:
    """TGI without CUDA graphs: decode, 86 % of the time, is 9 launches a layer of 5 µs each, 26 µs apart."""
    for request in range(3):
        with m.span("user_annotation", "prefill"):
            for _ in range(32):
                for name, time in ((NVJET, 420), (ROPE, 8), (FLASH2, 120), (NORM, 8), (NVJET, 880), (ACT, 30)):
                    m.works(9)
                    m.kernel(name, time)
            m.waits()
        for _ in range(30 if request else 24):
            with m.span("user_annotation", "decode"):
                for _ in range(32):
                    for name, lasts in (
                        (NORM, 2.5), (NVJET_SMALL, 9), (ROPE, 2.2), (CACHE, 2.2), (PAGED, 8), (NVJET_SMALL, 7), (NORM, 2.5),
                        (NVJET_SMALL, 13), (ACT, 2.4),
                    ):  # fmt: skip
                        m.works(21)
                        m.kernel(name, lasts)
                m.waits()


def transcription(m: Machine) -> None:
    """Whisper: the encoder takes 60 ms, 100 tokens of the decoder 9 ms each, of which the GPU works for 1.8."""
    for _ in range(2):
        with m.span("user_annotation", "encode"), m.span("python_function", "whisper/model.py(188): forward"):
            for _ in range(32):
                op(m, "aten::linear", NVJET, 900)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 700)
                op(m, "aten::gelu", GELU, 120)
            m.waits()
        with m.span("user_annotation", "decode"):
            for _ in range(50):
                with m.span("python_function", "whisper/decoding.py(154): logits"):
                    for _ in range(32):
                        for operator, name, time in (
                            ("aten::layer_norm", LAYER_NORM, 3), ("aten::linear", NVJET_SMALL, 6), ("aten::cat", CAT, 4),
                            ("aten::scaled_dot_product_attention", FLASH2, 6), ("aten::linear", NVJET_SMALL, 6),
                            ("aten::gelu", GELU, 2.5), ("aten::linear", NVJET_SMALL, 8), ("aten::add", ADD, 2.5),
                        ):  # fmt: skip
                            op(m, operator, name, time, 27)
                    m.copy("DtoH", 4, 1, pinned=True)
                    m.waits()


def safety_on_the_host(m: Machine) -> None:
    """Stable Diffusion: thirty steps that keep the GPU busy for 1.2 s; then a check of the picture on the CPU for 1.5 s."""
    for _ in range(3):
        with m.span("user_annotation", "unet"):
            for _ in range(30):
                for _ in range(50):
                    m.works(20)
                    m.kernel(CONV, 480)
                    m.kernel(GELU, 40)
                    m.kernel(FLASH2, 260)
                run_ahead(m, 9_000)
            m.waits()
        with m.span("user_annotation", "vae_decode"):
            for _ in range(30):
                m.works(20)
                m.kernel(CONV, 3_000)
            m.copy("DtoH", 12e6, 4)
        with (
            m.span("user_annotation", "safety_checker"),
            m.span("python_function", "diffusers/pipelines/stable_diffusion/safety_checker.py(49): forward"),
        ):
            m.works(1_500_000)


def tokenised_in_line(m: Machine) -> None:
    """An embedding server: tokenisation on the main thread, 21 ms, then a model that needs 9."""
    for _ in range(40):
        with m.span("user_annotation", "encode_batch"):
            with (
                m.span("user_annotation", "tokenize"),
                m.span("python_function", "transformers/tokenization_utils_fast.py(530): _batch_encode_plus"),
            ):
                m.works(21_000)
            m.copy("HtoD", 130e3, 3)
            with m.span("user_annotation", "model"):
                for _ in range(24):
                    op(m, "aten::linear", NVJET, 240)
                    op(m, "aten::scaled_dot_product_attention", FLASH2, 110)
                    op(m, "aten::gelu", GELU, 25)
                m.copy("DtoH", 1e6, 4)


def one_pair_at_a_time(m: Machine) -> None:
    """A reranker that scores pair after pair: 24 layers, 11 launches each, 4 µs of work, 17 µs apart."""
    for _ in range(60):
        with m.span("user_annotation", "score_pair"):
            for _ in range(24):
                for operator, name, time in (
                    *(("aten::linear", NVJET_SMALL, 5.0),) * 3, ("aten::scaled_dot_product_attention", FLASH2, 5),
                    ("aten::linear", NVJET_SMALL, 4), ("aten::add", ADD, 2), ("aten::layer_norm", LAYER_NORM, 3),
                    ("aten::linear", NVJET_SMALL, 6), ("aten::gelu", GELU, 2), ("aten::linear", NVJET_SMALL, 6), ("aten::layer_norm", LAYER_NORM, 3),
                ):  # fmt: skip
                    op(m, operator, name, time, 12)
            m.copy("DtoH", 4, 1, pinned=True)
            m.waits()


def beams(m: Machine) -> None:
    """Beam search: the cache of all layers is copied into the new order of beams after each token, 57 % of the time."""
    for _ in range(40):
        with m.span("user_annotation", "beam_step"):
            for _ in range(32):
                op(m, "aten::linear", NVJET, 75, 6)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 45, 6)
                op(m, "aten::linear", NVJET, 70, 6)
            with m.span("user_annotation", "reorder_cache"):
                for _ in range(64):
                    op(m, "aten::index_select", SELECT, 128, 9)
            run_ahead(m, 4_000)


def concatenated_cache(m: Machine) -> None:
    """A long conversation: keys and values are concatenated anew in each layer for each token, 48 % of the time."""
    for _ in range(40):
        with m.span("user_annotation", "decode_token"):
            for _ in range(32):
                op(m, "aten::linear", NVJET_SMALL, 45, 7)
                op(m, "aten::cat", CAT, 62, 7)
                op(m, "aten::cat", CAT, 62, 7)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 50, 7)
                op(m, "aten::linear", NVJET_SMALL, 38, 7)
            run_ahead(m, 4_000)


def marlin(m: Machine) -> None:
    """Four-bit weights by Marlin, one request, CUDA graphs, asynchronous: 97 % busy; what a decode can be."""
    nodes = [
        pair
        for _ in range(60)
        for pair in ((MARLIN, 21), (ROPE, 2), (PAGED, 9), (MARLIN, 15), (NORM, 2.5), (MARLIN, 44), (ACT, 2.5))
    ]
    for _ in range(60):
        with m.span("user_annotation", "execute_context_0(0)_generation_1(1)"):
            m.works(300)
            m.graph(nodes, gap=0.3)
        m.works(200)
        run_ahead(m, 4_000)


def dequantised(m: Machine) -> None:
    """AWQ whose weights are unpacked to fp16 before each product: 58 % of the time; the GPU is busy."""
    for _ in range(12):
        with m.span("user_annotation", "forward"):
            for _ in range(128):
                with m.span("cpu_op", "WQLinearMMFunction"):
                    m.works(9)
                    m.kernel(AWQ, 175)
                    m.kernel(NVJET, 95)
                op(m, "aten::mul", MUL, 14, 6)
            run_ahead(m, 5_000)
        m.waits()


def many_rows(m: Machine) -> None:
    """Decode of 64 requests by CUDA graphs, without ranges, the host a step ahead: 98 % busy with products and attention."""
    nodes = [
        pair for _ in range(32) for pair in ((NVJET_SMALL, 88), (PAGED, 96), (NORM, 4), (NVJET_SMALL, 140), (ACT, 7))
    ]
    for _ in range(80):
        m.works(900)
        m.graph(nodes)
        m.kernel(SAMPLE, 60)
        run_ahead(m, 8_000)


def drafts_by_graph(m: Machine) -> None:
    """Speculative decoding, all by graphs: 4 drafts of 1 ms, verification of 9 ms, and 1 ms of the host to accept: 90 % busy."""
    draft = [pair for _ in range(12) for pair in ((NVJET_SMALL, 40), (PAGED, 20), (NVJET_SMALL, 22))]
    verify = [pair for _ in range(40) for pair in ((NVJET_SMALL, 90), (PAGED, 50), (NORM, 4), (NVJET_SMALL, 80))]
    for _ in range(60):
        with m.span("user_annotation", "draft_tokens"):
            for _ in range(4):
                m.graph(draft)
        with m.span("user_annotation", "verify_tokens"):
            m.graph(verify)
            m.kernel(SAMPLE, 70)
            m.copy("DtoH", 512, 1, pinned=True)
            m.waits()
        with m.span("user_annotation", "accept"):
            m.works(1_000)


def sampled_on_the_host(m: Machine) -> None:
    """Logits of 64 requests go to NumPy each step: 33 MB to pageable memory, 6 ms, and 7 ms of choice; the model takes 10."""
    for _ in range(40):
        with m.span("user_annotation", "generate_step"):
            m.graph([pair for _ in range(32) for pair in ((NVJET_SMALL, 90), (PAGED, 80), (NVJET_SMALL, 140))])
            with m.span("user_annotation", "sample"), m.span("python_function", "sampler.py(44): sample"):
                with m.span("cpu_op", "aten::to"), m.span("cpu_op", "aten::copy_"):
                    m.copy("DtoH", 33e6, 5.5)
                with m.span("python_function", "sampler.py(61): choose"):
                    m.works(7_000)
            m.copy("HtoD", 512, 1)


def repeated_heads(m: Machine) -> None:
    """Keys and values are copied for each of eight heads of queries before attention: 40 % of the time."""
    for _ in range(12):
        with m.span("user_annotation", "prefill"):
            for _ in range(40):
                op(m, "aten::linear", NVJET, 350)
                for _ in "kv":
                    with (
                        m.span("python_function", "transformers/models/llama/modeling_llama.py(187): repeat_kv"),
                        m.span("cpu_op", "aten::reshape"),
                        m.span("cpu_op", "aten::clone"),
                    ):
                        op(m, "aten::copy_", EXPAND, 210)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 230)
                op(m, "aten::linear", NVJET, 80)
            m.waits()


def long_prompt(m: Machine) -> None:
    """A prompt of 128k tokens: attention takes 88 % of the time, with FlashAttention 3; busy throughout."""
    for _ in range(4):
        with m.span("user_annotation", "prefill_131072"):
            for _ in range(32):
                op(m, "aten::linear", NVJET, 5_200)
                op(m, "flash_attn_3::fwd", FLASH3, 92_000)
                op(m, "aten::linear", NVJET, 7_400)
            m.waits()


def scan_in_python(m: Machine) -> None:
    """A state-space model whose scan is a loop over 512 positions: four kernels of 3 µs for each."""
    for _ in range(4):
        with m.span("user_annotation", "mixer"):
            op(m, "aten::linear", NVJET, 400)
            for _ in range(512):
                for operator, name in (
                    ("aten::mul", MUL),
                    ("aten::mul", MUL),
                    ("aten::add", ADD),
                    ("aten::einsum", NVJET_SMALL),
                ):
                    op(m, operator, name, 3, 14)
            op(m, "aten::linear", NVJET, 400)
            m.waits()


def boxes(m: Machine) -> None:
    """Detection: after 7 ms of convolutions, 90 classes are filtered one by one, each with nonzero and a fetch: 12 ms."""
    for _ in range(40):
        with m.span("user_annotation", "backbone"):
            for _ in range(40):
                op(m, "aten::cudnn_convolution", CONV, 170)
        with m.span("user_annotation", "postprocess"):
            for _ in range(90):
                op(m, "aten::gt", ADD, 3, 8)
                with m.span("cpu_op", "aten::nonzero"):
                    m.kernel("void at::native::flag_kernel<bool>(int)", 4)
                    m.copy("DtoH", 8, 1, pinned=True)
                    m.waits()
                op(
                    m,
                    "torchvision::nms",
                    "void vision::ops::nms_kernel_impl<float>(int, double, float const*, unsigned long long*)",
                    9,
                    12,
                )
                with m.span("cpu_op", "aten::index"):
                    m.works(8)
                    m.copy("DtoH", 800, 1, pinned=True)
                    m.waits()


def few_requests(m: Machine) -> None:
    """A server that waits: 250 ms in the event loop, then a request of 18 ms that keeps the GPU busy."""
    for _ in range(12):
        with (
            m.span("python_function", "asyncio/base_events.py(1922): _run_once"),
            m.span("python_function", "selectors.py(451): select"),
        ):
            m.works(250_000)
        with m.span("python_function", "server/app.py(77): embed"):
            for _ in range(20):
                op(m, "aten::linear", NVJET, 560)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 300)
            m.waits()


def taken_each_time(m: Machine) -> None:
    """A program in C++: in each round memory is taken, filled, used for 1 ms, read back and given back; no ranges."""
    for _ in range(120):
        for _ in range(3):
            m.call("cudaMalloc", m.about(700))
        m.copy("HtoD", 3e6, 8)
        m.kernel("stencil_kernel(float const*, float*, int, int)", 1_000, grid=4096)
        m.waits("cudaDeviceSynchronize")
        m.copy("DtoH", 3e6, 8)
        for _ in range(3):
            m.call("cudaFree", m.about(500))


def frames(m: Machine) -> None:
    """Video frames go up in pageable memory, 60 MB each; 11 ms of 19, then 8 ms of convolutions."""
    for _ in range(50):
        with m.span("user_annotation", "process_frame"):
            with m.span("cpu_op", "aten::copy_"):
                m.copy("HtoD", 60e6, 5.5)
            for _ in range(20):
                op(m, "aten::cudnn_convolution", CONV, 330)
                op(m, "aten::relu_", ADD, 60)
            m.waits()


def both_ways_beside(m: Machine) -> None:
    """Three streams: pictures up, convolutions, results down, each beside the others; the convolutions fill the time."""
    up = m.copy("HtoD", 90e6, 24, stream=51, pinned=True)
    for _ in range(60):
        with m.span("user_annotation", "chunk"):
            m.free[MAIN] = max(m.free.get(MAIN, 0.0), up)
            up = m.copy("HtoD", 90e6, 24, stream=51, pinned=True)
            for _ in range(16):
                m.works(12)
                done = m.kernel(CONV, 400)
            m.copy("DtoH", 40e6, 24, stream=52, pinned=True, after=done)
            run_ahead(m, 4_000)
    m.waits(stream=None)


def middle_of_a_run(m: Machine) -> None:
    """Launch by launch, as many programs; the recording begins and ends in the middle of a step."""
    begin = m.now
    for step in range(14):
        with m.span("user_annotation", f"train_step_{step}"):
            for _ in range(300):
                op(m, "aten::linear", NVJET_SMALL, 7, 25)
                op(m, "aten::add", ADD, 3, 25)
            m.waits()
    m.recorded(begin + 13_000, begin + 210_000)


def end_of_a_run(m: Machine) -> None:
    """Steps wait 40 of 70 ms for their loader; the recording ends in the middle of one."""
    begin = m.now
    for _ in range(12):
        with m.span("user_annotation", "training_step"):
            with m.span("user_annotation", "[pl][profile][_TrainingEpochLoop].train_dataloader_next"):
                m.works(40_000)
            for _ in range(25):
                op(m, "aten::mm", NVJET, 800)
                op(m, "aten::mm", NVJET, 400)
            m.waits()
    m.recorded(begin + 25_000, begin + 660_000)


def slow_host(m: Machine) -> None:
    """A host whose launches cost 14 µs, under kernels of 9 µs; no ranges and no operators."""
    m.launch = 14.0
    for _ in range(6_000):
        for name, time in ((NVJET_SMALL, 14), (ADD, 5)):
            m.works(3)
            m.kernel(name, time)


def engine(m: Machine) -> None:
    """TensorRT-LLM: graphs of 7 ms, one enqueued ahead, ranges in C++ on the host for 1 ms: 98 % busy."""
    nodes = [pair for _ in range(32) for pair in (
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x128x128_warpgroupsize1x1x1_bias_f16_execute_segment_k_off_kernel__5x_cublas", 70),
        ("kernel_mha(KernelParams)", 45),
        ("void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16, __nv_fp8_e4m3, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, int, int)", 4),
        ("void tensorrt_llm::kernels::cutlass_kernels::gemm::fused_gated_gemm_swiglu<__nv_fp8_e4m3>(Params)", 98),
    )]  # fmt: skip
    for _ in range(60):
        with m.span("user_annotation", "executor::forwardAsync"):
            with m.span("user_annotation", "TllmRuntime::executeContext"):
                m.works(500)
                m.graph(nodes)
            with m.span("user_annotation", "decoderStepAsync"):
                m.works(200)
                m.kernel("void tensorrt_llm::kernels::topKStage1<float, 128, 8>(float const*, float*, int*)", 40)
        run_ahead(m, 6_000)


# -- of the last round: written after what the first had got wrong had been mended -----------------------


def neighbours(m: Machine) -> None:
    """A graph network: neighbours are sampled on the host for 14 ms, features go up from pageable memory for 11; 10 of work."""
    for _ in range(30):
        with m.span("user_annotation", "train_batch"):
            with (
                m.span("user_annotation", "sample_neighbors"),
                m.span("python_function", "dgl/sampling/neighbor.py(410): sample_neighbors"),
            ):
                m.works(14_000)
            with m.span("cpu_op", "aten::to"), m.span("cpu_op", "aten::copy_"):
                m.copy("HtoD", 66e6, 6)
            for _ in range(12):
                op(m, "aten::index_select", SELECT, 250)
                op(m, "aten::mm", NVJET, 480)
                op(m, "aten::relu", ADD, 80)
            m.waits()


def searched_on_the_host(m: Machine) -> None:
    """Speech: 12 ms of an encoder, probabilities come down pinned in 1 ms, and the host searches beams for 30 ms."""
    for _ in range(25):
        with m.span("user_annotation", "transcribe_batch"):
            for _ in range(24):
                op(m, "aten::linear", NVJET, 300)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 190)
            m.copy("DtoH", 24e6, 24, pinned=True)
            m.waits()
            with (
                m.span("user_annotation", "ctc_decode"),
                m.span("python_function", "pyctcdecode/decoder.py(514): decode_beams"),
            ):
                m.works(30_000)


def two_networks(m: Machine) -> None:
    """Generator and discriminator, each busy; the host is far ahead."""
    conv = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x256x64_warpgroupsize2x1x1_g1_execute_segment_k_off_kernel__5x_cudnn"
    for _ in range(20):
        for name in ("discriminator_step", "generator_step"):
            with m.span("user_annotation", name):
                for _ in range(30):
                    op(m, "aten::cudnn_convolution", conv, 700)
                    op(m, "aten::leaky_relu", ADD, 45)
                m.kernel(ADAM, 700)
            run_ahead(m, 10_000)
    m.waits()


def eight_bits(m: Machine) -> None:
    """LLM.int8() token by token: six small kernels for each product, 25 µs apart."""
    for _ in range(25):
        with m.span("user_annotation", "generate_token"):
            for _ in range(24 * 4):
                with m.span("python_function", "bitsandbytes/autograd/_functions.py(287): forward"):
                    for operator, name, time in (
                        ("aten::abs", ADD, 2.5), ("bitsandbytes::int8_vectorwise_quant", "void kInt8VectorQuant<__half, 1024, 0>(__half*, signed char*, float*, float, int, int)", 3),
                        ("bitsandbytes::int8_linear_matmul", "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x64_64x6_tn_align16>(cutlass_80_tensorop_i16832gemm_s8_128x64_64x6_tn_align16::Params)", 8),
                        ("bitsandbytes::int8_mm_dequant", "void kdequant_mm_int32_fp16<4, 512>(int*, float*, float*, __half*, __half*, int, int, int)", 3),
                        ("aten::mul", MUL, 2.5), ("aten::add", ADD, 2.5),
                    ):  # fmt: skip
                        op(m, operator, name, time, 20)
            m.waits()


def late_reader(m: Machine, rank: int = 0) -> None:
    """Rank 0 reads its shard from a slow disk in every step: rank 1 waits 25 of 70 ms for it in the first all-gather."""
    for step in range(8):
        begin = 1_000_000.0 + step * 72_000
        m.now = max(m.now, begin)
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            if rank == 0:
                with m.span("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                    m.now += 25_000
            for layer in range(16):
                with m.span("cpu_op", "nccl:_all_gather_base"):
                    m.works(20)
                    ready = max(m.now + 8, m.free.get(MAIN, 0.0))
                    arrives = begin + 25_700 + layer * 2_700
                    m.free[MAIN] = m.kernel(GATHER, arrives - ready, stream=30, grid=24, after=ready, spread=0.0)
                op(m, "aten::mm", NVJET, 1_300)
                op(m, "aten::_flash_attention_forward", FLASH2, 700)
            m.kernel(ADAM, 900)
            m.waits()


def scheduler_on_the_host(m: Machine) -> None:
    """Each step of a diffusion: 30 ms of a U-Net, then its result goes down, a scheduler in NumPy takes 13 ms, and up again."""
    for _ in range(25):
        with m.span("user_annotation", "denoising_step"):
            for _ in range(40):
                m.works(15)
                m.kernel(NVJET, 400)
                m.kernel(FLASH2, 350)
            m.copy("DtoH", 1e6, 6)
            with (
                m.span("user_annotation", "scheduler_step"),
                m.span("python_function", "pipeline/scheduler.py(88): step"),
            ):
                m.works(13_000)
            m.copy("HtoD", 1e6, 6)


def graph_trees(m: Machine) -> None:
    """torch.compile with CUDA graphs: each forward is one replay of 5 ms, launched ahead; fused kernels, 99 % busy."""
    nodes = [
        pair
        for _ in range(24)
        for pair in ((TRITON, 12), (NVJET, 70), (FLASH2, 40), (NVJET, 35), (TRITON_POINT, 16), (NVJET, 60))
    ]
    for _ in range(60):
        with m.span("user_annotation", "score_batch"), m.span("cpu_op", "CUDAGraphTreeManager.run"):
            m.works(200)
            m.copy("HtoD", 60e3, 10, pinned=True)
            m.graph(nodes, gap=0.2)
        run_ahead(m, 9_000)
    m.waits()


def experts_beside(m: Machine) -> None:
    """Experts whose all-to-alls run beside the attention of the other half of the batch: 2 % of the time is left over."""
    for step in range(6):
        with m.span("user_annotation", f"iteration {step}"):
            for _ in range(32):
                m.works(60)
                done = m.kernel(FLASH3, 700)
                sent = m.kernel(SEND, 640, stream=24, grid=16, after=done)
                m.kernel(NVJET, 750)
                m.free[MAIN] = max(m.free[MAIN], sent)
                m.works(30)
                done = m.kernel("_grouped_gemm_kernel", 1_500)
                m.kernel(SEND, 640, stream=24, grid=16, after=done)
                m.kernel(NVJET, 700)
                run_ahead(m, 9_000)
            m.free[MAIN] = max(m.free[MAIN], m.free[24])
        m.waits(stream=None)


def starved(m: Machine) -> None:
    """Four workers that are too slow: three steps of 45 ms have their batch, the fourth waits 130 ms for it."""
    for step in range(24):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            with m.span("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                m.works(130_000 if step % 4 == 3 else 300)
            m.copy("HtoD", 20e6, 24, pinned=True)
            for _ in range(30):
                op(m, "aten::mm", NVJET, 1_000)
                op(m, "aten::_flash_attention_forward", FLASH2, 480)
            m.waits()


def perplexity(m: Machine) -> None:
    """Logits of every position go to pageable memory, 300 MB in 55 ms, of 125 ms a batch."""
    for _ in range(12):
        with m.span("user_annotation", "evaluate_batch"):
            for _ in range(32):
                op(m, "aten::linear", NVJET, 1_500)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 650)
            with m.span("cpu_op", "aten::to"), m.span("cpu_op", "aten::copy_"):
                m.copy("DtoH", 300e6, 5.5)


def retrieval(m: Machine) -> None:
    """Two layers of attention over items looked up by index_select, which takes 42 % of the time; busy. No cache is there."""
    for _ in range(60):
        with m.span("user_annotation", "score_users"):
            for _ in range(4):
                op(m, "aten::index_select", SELECT, 620)
            for _ in range(2):
                op(m, "aten::linear", NVJET, 900)
                op(m, "aten::scaled_dot_product_attention", FLASH2, 350)
                op(m, "aten::linear", NVJET, 450)
            run_ahead(m, 5_000)
    m.waits()


def pictures(m: Machine) -> None:
    """A range called sample: 700 ms of a U-Net, a picture that comes down in 4 ms, and is written as PNG for 320 ms."""
    for _ in range(6):
        with m.span("user_annotation", "sample"):
            for _ in range(30):
                for _ in range(40):
                    m.works(15)
                    m.kernel(NVJET, 380)
                    m.kernel(FLASH2, 200)
            m.copy("DtoH", 25e6, 6)
            with m.span("python_function", "PIL/Image.py(2470): save"):
                m.works(320_000)


A100 = ("NVIDIA A100-SXM4-80GB", 108)
H100 = ("NVIDIA H100 80GB HBM3", 132)
H200 = ("NVIDIA H200", 132)
GPUS = {
    "layouts": A100,
    "boxes": A100,
    "beams": A100,
    "both_ways_beside": A100,
    "two_at_once": A100,
    "frames": A100,
    "dequantised": A100,
    "engine": H200,
    "long_prompt": H200,
}
RANKS = {"tensor_parallel": 2, "uneven_pipeline": 4, "late_of_four": 4, "uneven_experts": 2, "late_reader": 2}
ALIKE: tuple[Callable[[Machine], None], ...] = (
    *(fsdp_prefetched, fsdp_in_turn, taking_turns, two_at_once, reduced_decode, tuned_pretraining, lora, clipped_one_by_one),
    *(casts_of_weights, large_vocabulary, zero_offload, saved_beside, activations_fetched, evaluated_by_item, trainer_collates),
    *(retried, tuned_on_the_way, layouts, old_products, embeddings, grpo, chunked_prefill, synchronous_engine, overlap_scheduler),
    *(eager_server, transcription, safety_on_the_host, tokenised_in_line, one_pair_at_a_time, beams, concatenated_cache, marlin),
    *(dequantised, many_rows, drafts_by_graph, sampled_on_the_host, repeated_heads, long_prompt, scan_in_python, boxes),
    *(few_requests, taken_each_time, frames, both_ways_beside, middle_of_a_run, end_of_a_run, slow_host, engine),
    *(neighbours, searched_on_the_host, two_networks, eight_bits, scheduler_on_the_host, graph_trees, experts_beside, starved),
    *(perplexity, retrieval, pictures),
)  # fmt: skip
APART: tuple[Callable[[Machine, int], None], ...] = (
    tensor_parallel,
    uneven_pipeline,
    late_of_four,
    uneven_experts,
    late_reader,
)
PROGRAMS = {one.__name__: one for one in (*ALIKE, *APART)}


def simulate(program: str, form: str, folder: Path) -> list[Path]:
    """`form`: `trace`, `sqlite`, `old sqlite`, or `ranks` (a trace of each)."""
    gpu = GPUS.get(program, H100)
    if form == "ranks":
        run = next(one for one in APART if one.__name__ == program)
        paths = []
        for rank in range(RANKS[program]):
            machine = Machine(900 + rank, *gpu)
            run(machine, rank)
            group = {"backend": "nccl", "rank": rank, "world_size": RANKS[program]}
            paths.append(machine.write_trace(folder / f"{program}_rank{rank}.json.gz", distributedInfo=group))
        return paths
    machine = Machine(500 + len(program), *gpu)
    next(one for one in ALIKE if one.__name__ == program)(machine)
    if form == "trace":
        return [machine.write_trace(folder / f"{program}.json.gz")]
    return [machine.write_sqlite(folder / f"{program}.sqlite", old=form != "sqlite")]
