"""Programs on the paper machine (`simulated_machine.py`): how each spends its time is written here, so the truth is known.

`unseen/simulated.toml` has what an expert says about each. Kinds of programs that no recording at hand is of: pipelines,
mixtures of experts, off-loading, speculative decoding, evaluation, checkpoints, garbage collection.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulated_machine import PID, Machine

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
NVJET = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
SGEMM = "ampere_sgemm_128x64_tn"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>(Flash_fwd_params)"
FLASH_BACKWARD = (
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>(Flash_bwd_params)"
)
PAGED = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>>(Flash_fwd_params)"
NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, float, int, int)"
ACT = "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>(c10::BFloat16*, c10::BFloat16 const*, int)"
ELEMENT = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>>(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
MULTIPLY = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>, std::array<char*, 2ul>>(int)"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}, std::array<char*, 2ul>, 4>(int)"
MAXIMUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxNanFunctor<float>, unsigned int, float, 4>>(at::native::ReduceOp<float>)"
FP8 = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize2x1x1_algo2_execute_segment_k_off_kernel__5x_cublas"
CONV = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn"
GROUP_NORM = "void at::native::RowwiseMomentsCUDAKernel<c10::BFloat16>(long, c10::BFloat16, c10::BFloat16 const*, c10::BFloat16*, c10::BFloat16*)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
EXPERTS = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int>>>>(Params)"
TOPK = (
    "void vllm::moe::topkGatingSoftmax<8, 64, 4, 16>(float const*, bool const*, float*, int, int*, int*, int, int, int)"
)
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, at::native::FusedAdamMathFunctor<float, 4>>(at::native::TensorListMetadata<4>)"
SAMPLE = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float, unsigned int>)"

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def layers(m: Machine, count: int, scale: float = 1.0, host: float = 12.0) -> float:
    """Blocks of a transformer, launched one kernel after the other."""
    done = 0.0
    for _ in range(count):
        with m.span("cpu_op", "aten::linear"):
            m.works(host)
            m.kernel(GEMM, 180 * scale)
        with m.span("cpu_op", "aten::_flash_attention_forward"):
            m.works(host)
            m.kernel(FLASH, 120 * scale)
        with m.span("cpu_op", "aten::linear"):
            m.works(host)
            done = m.kernel(GEMM, 350 * scale)
        with m.span("cpu_op", "aten::add"):
            m.works(host)
            done = m.kernel(ELEMENT, 25 * scale)
    return done


def asynchronous_server(m: Machine) -> None:
    """Decode steps of a server that runs ahead: one CUDA graph each, the ranges end before the GPU has begun."""
    nodes = [
        (name, time) for _ in range(32) for name, time in ((GEMM, 62), (PAGED, 55), (NORM, 4), (GEMM, 130), (ACT, 6))
    ]
    for _ in range(40):
        with (
            m.span("user_annotation", "execute_context_0(0)_generation_48(48)"),
            m.span("cpu_op", "vllm::model_forward"),
        ):
            m.works(350)
            m.graph(nodes)
        with m.span("user_annotation", "sample"):
            m.works(60)
            m.kernel(SAMPLE, 40)
        m.works(300)
        m.now = max(m.now, m.free[7] - 9_000)  # one step ahead


def pipeline_stage(m: Machine) -> None:
    """A middle stage of a pipeline: it waits in receives for half of each step, at the start and the end of it."""
    for step in range(6):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for micro in range(8):
                received = m.kernel(SEND, 9_000 if micro in (0, 1, 6, 7) else 300, stream=20, grid=8)
                with m.span("user_annotation", "forward_step"):
                    m.works(200)
                    m.free[7] = max(m.free.get(7, 0.0), received)
                    done = layers(m, 8, 0.9)
                m.kernel(SEND, 250, stream=21, grid=8, after=done)
                m.free[20] = max(m.free[20], done)
            m.waits(stream=None)


def experts(m: Machine) -> None:
    """Experts on several GPUs: two all-to-alls a layer, alike in length, beside which nothing runs: 40 % of the time."""
    for step in range(8):
        with m.span("user_annotation", f"train_step_{step}"):
            for _ in range(24):
                done = m.kernel(FLASH, 300)
                m.works(60)
                m.kernel(TOPK, 12)
                sent = m.kernel(SEND, 420, stream=24, grid=16, after=max(done, m.free[7]))
                m.free[7] = max(m.free[7], sent)
                m.works(60)
                done = m.kernel(EXPERTS, 900)
                sent = m.kernel(SEND, 420, stream=24, grid=16, after=done)
                m.free[7] = max(m.free[7], sent)
                m.kernel(ELEMENT, 30)
            m.waits(stream=None)


def pinned_loader(m: Machine) -> None:
    """Input comes too late: 62 of 100 ms of each step in the loader. Copies are pinned."""
    for step in range(12):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            with m.span("user_annotation", NEXT):
                m.works(62_000)
            m.copy("HtoD", 38e6, 24, pinned=True)
            layers(m, 56, 1.0, 25)
            m.waits()


def diffusion(m: Machine) -> None:
    """Fifty steps of a U-Net, which keep the GPU busy."""
    for step in range(50):
        with m.span("user_annotation", f"denoise_{step}"):
            for _ in range(60):
                m.works(18)
                m.kernel(CONV, 210)
                m.kernel(GROUP_NORM, 24)
                m.works(10)
                m.kernel(FLASH, 90)
        m.now = max(m.now, m.free[7] - 4_000)
    m.waits()


def fp8_training(m: Machine) -> None:
    """Products in fp8 take half of the time; casts, maxima and scaling around them, kernel by kernel, the rest."""
    for step in range(8):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for _ in range(64):
                for name, op, time in (
                    (MAXIMUM, "aten::amax", 45),
                    (MULTIPLY, "aten::mul", 60),
                    (CAST, "aten::to", 70),
                    (FP8, "aten::_scaled_mm", 260),
                    (MULTIPLY, "aten::mul", 55),
                ):
                    with m.span("cpu_op", op):
                        m.works(8)
                        m.kernel(name, time)
            m.waits()


def rollouts(m: Machine) -> None:
    """Reinforcement learning: the environment steps on the host for 24 ms, the policy takes 1.5 ms."""
    for _ in range(40):
        with m.span("user_annotation", "rollout_step"):
            with m.span("user_annotation", "policy"):
                layers(m, 8, 0.15, 10)
                m.copy("DtoH", 4096, 2, pinned=True)
                m.waits()
            with (
                m.span("user_annotation", "env.step"),
                m.span("python_function", "gymnasium/vector/sync_vector_env.py(198): step"),
            ):
                m.works(24_000)


def offloaded(m: Machine) -> None:
    """Weights come from pageable memory for every layer, and the GPU waits for each."""
    for _ in range(6):
        with m.span("user_annotation", "generate_token"):
            for _ in range(32):
                with m.span("cpu_op", "aten::copy_"):
                    m.works(15)
                    m.copy("HtoD", 100e6, 11)
                layers(m, 1, 0.6)
            m.waits()


def offloaded_beside(m: Machine) -> None:
    """Weights come from pinned memory on a stream of their own, one layer ahead: nothing waits for them."""
    for _ in range(6):
        with m.span("user_annotation", "generate_batch"):
            for _ in range(32):
                m.works(15)
                m.copy("HtoD", 40e6, 24, stream=30, pinned=True)
                layers(m, 3, 1.6)
            m.waits()


def speculative(m: Machine) -> None:
    """A draft model, eager: 5 passes of 260 launches of 3 µs each; then the large model verifies."""
    for _ in range(15):
        with m.span("user_annotation", "draft"):
            for _ in range(5):
                for _ in range(260):
                    with m.span("cpu_op", "aten::linear"):
                        m.works(9)
                        m.kernel(GEMM, 3)
                m.copy("DtoH", 512, 2, pinned=True)
                m.waits()
        with m.span("user_annotation", "verify"):
            layers(m, 40, 0.15, 3)
            m.waits()


def checkpoints(m: Machine) -> None:
    """Twenty steps of 110 ms, and after each ten a checkpoint of 3 s: copies to pageable memory, then the disk."""
    for step in range(20):
        with m.span("user_annotation", "train_step"):
            layers(m, 160, 1.0, 12)
            m.waits()
        if step % 10 == 9:
            with (
                m.span("user_annotation", "save_checkpoint"),
                m.span("python_function", "torch/serialization.py(944): save"),
            ):
                for _ in range(40):
                    m.copy("DtoH", 60e6, 5)
                    m.works(2_000)
                with m.span("python_function", "torch/serialization.py(1210): _save"):
                    m.works(2_400_000)


def evaluation(m: Machine) -> None:
    """Sixty steps that keep the GPU busy, and an evaluation between them, which does not."""
    for step in range(60):
        with m.span("user_annotation", "train_step"):
            layers(m, 70, 1.0, 12)
            m.waits()
        if step % 30 == 29:
            with m.span("user_annotation", "evaluate"):
                for _ in range(20):
                    layers(m, 10, 0.3, 12)
                    m.waits()
                    m.works(3_000)


def collected(m: Machine) -> None:
    """Every fifth step stops for 160 ms, in which Python collects garbage."""
    for step in range(20):
        with m.span("user_annotation", f"ProfilerStep#{step}"), m.span("python_function", "train.py(88): train_step"):
            layers(m, 40, 1.0, 12)
            if step % 5 == 4:
                with m.span("python_function", "<built-in function collect>"):
                    m.works(160_000)
            layers(m, 20, 1.0, 12)
            m.waits()


def accumulated(m: Machine) -> None:
    """Four micro batches, gradients reduced in the last one alone, beside the backward pass: 5 % of it is left over."""
    for step in range(8):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for micro in range(4):
                layers(m, 12, 0.8)
                for block in range(12):
                    m.works(15)
                    m.kernel(FLASH_BACKWARD, 260)
                    m.kernel(GEMM, 620)
                    if micro == 3 and block % 3 == 2:
                        m.kernel(REDUCE, 1_500, stream=26, grid=24, after=m.free[7])
            m.free[7] = max(m.free[7], m.free[26])
            m.kernel(ADAM, 900)
            m.waits()


def looked_at(m: Machine) -> None:
    """After every block a value is fetched to decide what to do; the host starts again from nothing each time."""
    for _ in range(20):
        with m.span("user_annotation", "step"):
            for _ in range(30):
                for _ in range(4):
                    with m.span("cpu_op", "aten::mm"):
                        m.works(14)
                        m.kernel(GEMM, 95)
                with m.span("cpu_op", "aten::item"), m.span("cpu_op", "aten::_local_scalar_dense"):
                    m.copy("DtoH", 4, 1, pinned=True)
                    m.waits()
                m.works(240)


def allocations(m: Machine) -> None:
    """The cache of the allocator is emptied in every step: half of the time is cudaMalloc and cudaFree."""
    for step in range(10):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            for _ in range(24):
                with m.span("cpu_op", "aten::empty"):
                    m.call("cudaMalloc", m.about(900))
                layers(m, 1, 1.2)
                m.waits()
            for _ in range(24):
                m.call("cudaFree", m.about(450))


def compiled_first(m: Machine) -> None:
    """The first step compiles for 9 s; the thirty others keep the GPU busy for 95 %."""
    for step in range(31):
        with m.span("user_annotation", f"train_step_{step}"):
            if step == 0:
                with m.span("cpu_op", "compile_fx (dynamo_timed)"):
                    m.works(9_000_000)
            layers(m, 40, 1.0, 10)
            m.waits()


def single_precision(m: Machine) -> None:
    """Products in fp32 on an A100, without TF32: 85 % of the time."""
    for _ in range(10):
        with m.span("user_annotation", "forward"):
            for _ in range(48):
                m.works(10)
                m.kernel(SGEMM, 900, grid=1024)
                m.kernel(MULTIPLY, 60)
        m.waits()


def many_parameters(m: Machine) -> None:
    """An optimizer that goes from parameter to parameter: 1,500 launches of 2.5 µs in each step; the model takes 9 ms."""
    for _ in range(12):
        with m.span("user_annotation", "train_step"):
            with m.span("user_annotation", "forward_backward"):
                layers(m, 14, 1.0, 10)
            with m.span("user_annotation", "Optimizer.step#AdamW.step"), m.span("cpu_op", "Optimizer.step#AdamW.step"):
                for _ in range(300):
                    for op, name in (
                        ("aten::mul_", MULTIPLY),
                        ("aten::lerp_", ELEMENT),
                        ("aten::addcmul_", ELEMENT),
                        ("aten::sqrt", MULTIPLY),
                        ("aten::addcdiv_", ELEMENT),
                    ):
                        with m.span("cpu_op", op):
                            m.works(8)
                            m.kernel(name, 2.5)
            m.waits()


def writer_thread(m: Machine) -> None:
    """The main thread waits for a lock while another one tokenises; 20 of 32 ms of each step."""
    for _ in range(25):
        with m.span("user_annotation", "serve_batch"):
            begin = m.now
            with m.span("python_function", "threading.py(327): wait"):
                m.works(20_000)
            m.other_thread("python_function", "tokenizers/server.py(41): encode_batch", begin, m.now - 50, PID + 8)
            layers(m, 17, 1.0, 12)
            m.waits()


# -- of the second round: written after what the first got wrong had been mended ---------------------


def one_reduction(m: Machine) -> None:
    """All gradients are reduced at once after the backward pass: 32 of 104 ms, and nothing runs beside it."""
    for step in range(8):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            layers(m, 106, 1.0, 12)
            with m.span("cpu_op", "nccl:all_reduce"):
                m.free[7] = m.kernel(REDUCE, 32_000, stream=26, grid=24, after=m.free[7])
            m.kernel(ADAM, 700)
            m.waits()


def host_loader(m: Machine) -> None:
    """No workers: the main thread reads and collates, 35 of 62 ms; then a copy from pageable memory."""
    for _ in range(15):
        with m.span("user_annotation", "train_step"):
            with m.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                for _ in range(8):
                    with m.span("cpu_op", "aten::stack"):
                        m.works(4_400)
            with m.span("cpu_op", "aten::copy_"):
                m.copy("HtoD", 19e6, 7)
            layers(m, 36, 1.0, 12)
            m.waits()


def graphs_apart(m: Machine) -> None:
    """Decode by CUDA graphs of 4 ms; between two of them the scheduler takes 5 ms."""
    for _ in range(50):
        with m.span("user_annotation", "decode_step"):
            m.graph([(name, 25.0) for _ in range(40) for name in (GEMM, PAGED, GEMM, NORM)])
            m.waits()
        with m.span("user_annotation", "schedule"), m.span("python_function", "engine/scheduler.py(210): schedule"):
            m.works(5_000)


def loop_over_experts(m: Machine) -> None:
    """A mixture of experts in plain PyTorch: for each of 32 experts the host fetches which tokens are its own."""
    for _ in range(6):
        with m.span("user_annotation", "forward"):
            for _ in range(8):
                layers(m, 1, 0.5)
                for _ in range(32):
                    with m.span("cpu_op", "aten::nonzero"):
                        m.kernel("void at::native::flag_kernel<bool>(int)", 3)
                        m.copy("DtoH", 8, 1, pinned=True)
                        m.waits()
                    for _ in range(3):
                        with m.span("cpu_op", "aten::mm"):
                            m.works(10)
                            m.kernel(GEMM, 14)
                    with m.span("cpu_op", "aten::index_add_"):
                        m.works(8)
                        m.kernel(
                            "void at::native::indexFuncLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(int)",
                            5,
                        )


def plain_attention(m: Machine) -> None:
    """Attention as product, scaling, mask, softmax, product: half of the time."""
    softmax = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, false>(float*, float const*, int, int, int)"
    for _ in range(10):
        with m.span("user_annotation", "forward"):
            for _ in range(24):
                for op, name, time in (
                    ("aten::linear", GEMM, 260),
                    ("aten::bmm", GEMM, 90),
                    ("aten::div", MULTIPLY, 110),
                    ("aten::add", ELEMENT, 120),
                    ("aten::_softmax", softmax, 140),
                    ("aten::bmm", GEMM, 90),
                    ("aten::linear", GEMM, 300),
                ):
                    with m.span("cpu_op", op):
                        m.works(10)
                        m.kernel(name, time)
            m.waits()


def two_streams(m: Machine) -> None:
    """Two models side by side on streams of their own, which keep the GPU busy together."""
    for _ in range(40):
        with m.span("user_annotation", "pair"):
            for _ in range(20):
                m.works(15)
                m.kernel(GEMM, 180, stream=13, grid=60)
                m.kernel(CONV, 170, stream=14, grid=60)
            m.waits(stream=None)


def scaled(m: Machine) -> None:
    """Mixed precision with a scaler, which fetches one value a step: nothing beside 95 ms of kernels."""
    for step in range(10):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            layers(m, 138, 1.0, 12)
            with m.span("cpu_op", "aten::_amp_foreach_non_finite_check_and_unscale_"):
                m.kernel(MULTIPLY, 300)
            with m.span("cpu_op", "aten::item"):
                m.copy("DtoH", 4, 1, pinned=True)
                m.waits()
            m.works(120)
            m.kernel(ADAM, 900)


def logged(m: Machine) -> None:
    """Every tenth step writes histograms of all weights: 400 ms on the host, beside 10 steps of 27 ms."""
    for step in range(40):
        with m.span("user_annotation", "step"):
            layers(m, 40, 1.0, 12)
            m.waits()
        if step % 10 == 9:
            with (
                m.span("user_annotation", "log_histograms"),
                m.span("python_function", "tensorboard/summary.py(355): histogram"),
            ):
                for _ in range(40):
                    m.copy("DtoH", 2e6, 5)
                    m.works(10_000)


def loaded_then_served(m: Machine) -> None:
    """No ranges: weights are read and copied for 4 s; then requests, which keep the GPU busy for 90 % of 2 s."""
    for _ in range(40):
        with m.span("python_function", "safetensors/torch.py(313): load_file"):
            m.works(90_000)
        m.copy("HtoD", 120e6, 12)
    for _ in range(60):
        layers(m, 44, 1.0, 12)
        m.waits()
        m.works(2_600)


def small_and_bare(m: Machine) -> None:
    """No ranges, no operators: 30,000 launches of 4 µs, 9 µs apart."""
    for _ in range(7_500):
        for name in (GEMM, ELEMENT, NORM, MULTIPLY):
            m.works(8)
            m.kernel(name, 4)


def cleaned_up(m: Machine) -> None:
    """Twenty steps of 27 ms; then the range of the whole run stays open for 2 s, in which the host writes results."""
    with m.span("user_annotation", "main"):
        for _ in range(20):
            with m.span("user_annotation", "batch"):
                layers(m, 40, 1.0, 12)
                m.waits()
        with m.span("user_annotation", "write_results"), m.span("python_function", "json/__init__.py(120): dump"):
            m.works(2_000_000)


def odd_shapes(m: Machine) -> None:
    """A vocabulary of an odd size: products whose kernels read two values at a time take 70 % of the time."""
    odd = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_nn_align2>(cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_nn_align2::Params)"
    for _ in range(20):
        with m.span("user_annotation", "forward"):
            layers(m, 8, 1.0)
            for _ in range(12):
                with m.span("cpu_op", "aten::mm"):
                    m.works(12)
                    m.kernel(odd, 1_100)
            m.waits()


# -- of the third round ------------------------------------------------------------------------------


def late_rank(m: Machine, rank: int = 0) -> None:
    """Rank 1 comes 20 ms late to the all-reduce of every step of 52 ms, because its loader takes so long."""
    for step in range(8):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            begin = m.now
            if rank:
                with m.span("user_annotation", NEXT):
                    m.now += 20_000
            layers(m, 44, 1.0, 12)
            ready, ends = m.free[7], begin + 52_000
            with m.span("cpu_op", "nccl:all_reduce"):
                m.free[7] = m.kernel(REDUCE, ends - ready, stream=26, grid=24, after=ready, spread=0.0)
            m.call("cudaStreamSynchronize", ends + 100 - m.now)


def operators_alone(m: Machine) -> None:
    """No annotations: a model whose operators cost the host 35 µs each, and the GPU 6."""
    for _ in range(30):
        for _ in range(100):
            for op, name in (("aten::linear", GEMM), ("aten::add", ELEMENT), ("aten::silu", MULTIPLY)):
                with m.span("cpu_op", op):
                    m.works(30)
                    m.kernel(name, 6)


def no_requests(m: Machine) -> None:
    """A server without load: 35 ms of waiting for a request, 9 ms of work."""
    for _ in range(30):
        with m.span("python_function", "<built-in method poll of select.epoll object at 0x7f>"):
            m.works(35_000)
        with m.span("user_annotation", "handle_request"):
            layers(m, 13, 1.0, 12)
            m.waits()


def copied_about(m: Machine) -> None:
    """Half of the time are copies from one place of the GPU to another, as of contiguous()."""
    for _ in range(12):
        with m.span("user_annotation", "forward"):
            for _ in range(40):
                with m.span("cpu_op", "aten::contiguous"):
                    m.works(10)
                    m.copy("DtoD", 600e6, 1_500)
                layers(m, 1, 0.7)
            m.waits()


def slow_link(m: Machine) -> None:
    """Batches come from pinned memory on a stream of their own, ahead of time; but the link is slower than the GPU."""
    for _ in range(15):
        with m.span("user_annotation", "train_step"):
            with m.span("cpu_op", "aten::copy_"):
                arrived = m.copy("HtoD", 600e6, 24, stream=30, pinned=True)
            m.free[7] = max(m.free.get(7, 0.0), arrived)
            layers(m, 20, 1.0, 12)
            m.waits()


def compiled_again(m: Machine) -> None:
    """Every other step has a new length, and is compiled anew for 700 ms; steps take 27 ms otherwise."""
    for step in range(16):
        with m.span("user_annotation", "step"):
            if step % 2 == 0:
                with m.span("cpu_op", "compile_fx.<locals>.fw_compiler_base (dynamo_timed)"):
                    m.works(700_000)
            layers(m, 40, 1.0, 10)
            m.waits()


def checkpointed(m: Machine) -> None:
    """Activations are not kept: each block runs forward again in the backward pass, a quarter of the time."""
    for step in range(8):
        with m.span("user_annotation", f"ProfilerStep#{step}"):
            layers(m, 20, 1.0, 12)
            for _ in range(20):
                with m.span("cpu_op", "autograd::engine::evaluate_function: CheckpointFunctionBackward"):
                    m.works(3)
                    with m.span("cpu_op", "CheckpointFunctionBackward"):
                        layers(m, 1, 1.0, 12)
                        m.kernel(FLASH_BACKWARD, 320)
                        m.kernel(GEMM, 1_050)
            m.kernel(ADAM, 800)
            m.waits()


PROGRAMS: dict[str, tuple[Callable[[Machine], None], int]] = {
    function.__name__: (function, seed)
    for seed, function in enumerate(
        (
            *(asynchronous_server, pipeline_stage, experts, pinned_loader, diffusion, fp8_training, rollouts),
            *(
                offloaded,
                offloaded_beside,
                speculative,
                checkpoints,
                evaluation,
                collected,
                accumulated,
                looked_at,
                allocations,
            ),
            *(compiled_first, single_precision, many_parameters, writer_thread),
            *(
                one_reduction,
                host_loader,
                graphs_apart,
                loop_over_experts,
                plain_attention,
                two_streams,
                scaled,
                logged,
            ),
            *(loaded_then_served, small_and_bare, cleaned_up, odd_shapes),
            *(late_rank, operators_alone, no_requests, copied_about, slow_link, compiled_again, checkpointed),
        )
    )
}


def simulate(program: str, form: str, folder: Path) -> list[Path]:
    """`form`: `trace`, `sqlite`, `old sqlite` (without tables of what numbers mean), or `ranks` (two traces)."""
    function, seed = PROGRAMS[program]
    gpu = ("NVIDIA A100-SXM4-80GB", 108) if function is single_precision else ("NVIDIA H100 80GB HBM3", 132)
    if form == "ranks":
        paths = []
        for rank in (0, 1):
            machine = Machine(seed + rank, *gpu)
            late_rank(machine, rank)
            group = {"backend": "nccl", "rank": rank, "world_size": 2}
            paths.append(machine.write_trace(folder / f"{program}_rank{rank}.json.gz", distributedInfo=group))
        return paths
    machine = Machine(seed, *gpu)
    function(machine)
    if form == "trace":
        return [machine.write_trace(folder / f"{program}.json.gz")]
    return [machine.write_sqlite(folder / f"{program}.sqlite", old=form != "sqlite")]
