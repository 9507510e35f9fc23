"""Programs that are not plain PyTorch, on the paper machine of `paper_nsys.py`: what people have recorded with nsys.

llama.cpp, TensorRT, JAX, Megatron, servers, CUDA C++, video, data frames; several processes, GPUs and threads; recordings
that begin late or end early. Several are well tuned. `unseen/paper.toml` has what an expert says about each.
"""

from __future__ import annotations

from pathlib import Path

from paper_nsys import Paper, Programs, Thread

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"
RTX4090 = "NVIDIA GeForce RTX 4090"
RTX3090 = "NVIDIA GeForce RTX 3090"
V100 = "Tesla V100-SXM2-16GB"
T4 = "Tesla T4"

MMVQ = "void mul_mat_vec_q<(ggml_type)12, 1, false, false>(const void *, const void *, const int *, ggml_cuda_mm_fusion_args_device, float *, unsigned int)"
MMQ = "void mul_mat_q<(ggml_type)12, 128, false>(const char *, const int *, const int *, const int *, float *, float *, int, int, int, int, int)"
FIXUP = "void mul_mat_q_stream_k_fixup<(ggml_type)12, 128, false>(const int *, const int *, float *, const float *, int, int, int)"
QUANTIZE = "quantize_q8_1(const float *, void *, long, long, long, long, long, unsigned int, unsigned int)"
QUANTIZE_MMQ = "void quantize_mmq_q8_1<(mmq_q8_1_ds_layout)1>(const float *, const int *, void *, long, long, long, long, long, int, int)"
RMS = "void rms_norm_f32<1024, true, false>(const float *, float *, int, long, long, long, float, const float *)"
ROPE_GGML = "void rope_norm<true, false, float, float>(const float *, float *, int, int, int, int, int, const int *, float, float, float)"
FATTN_VEC = "void flash_attn_ext_vec<128, 1, (ggml_type)1, (ggml_type)1, false>(const char *, const char *, const char *, const char *, const char *, const int *, float *, float2 *)"
FATTN_MMA = "void flash_attn_ext_f16<128, 128, 16, 4, false, false>(const char *, const char *, const char *, const char *, const char *, const int *, float *, float2 *)"
COPY_GGML = "void cpy_flt<cpy_1_flt<float, __half>>(const char *, char *, int, int, int, int, int, int, int, int, int)"
GLU = "void unary_gated_op_kernel<op_silu, float>(const float *, const float *, float *, long, long, long, long)"
ADD_GGML = (
    "void k_bin_bcast<op_add, float, float, float>(const float *, const float *, float *, int, int, int, uint3, uint3)"
)
FMHA = "fmha_v2_flash_attention_bf16_64_128_S_qkv_128_causal_sm90_kernel_nl"
NVJET = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
NVJET_SMALL = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
TRT_CONV = "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw_vect_c_32_tilesize256x128x64_stage3_warpsize4x2x1_g1_tensor16x8x32_t1r3s3_kernel_trt"
TRT_SMALL = "trt_volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1"
TRT_POINT = "generatedNativePointwise"
TRT_COPY = "void cuInt8::nchwTonhwc<float, 32, 32, 2>(float const*, __half*, int, int, int, int, int, int, cuInt8::ReducedDivisorParameters, int)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FLASH = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>, false, false, false, false, true, true, false, false>(flash::Flash_fwd_params)"
FLASH_BWD = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, true, false, cutlass::bfloat16_t>, false, true, false, false, true, true, false>(flash::Flash_bwd_params)"
NORM_VLLM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, float, int, int)"
ACT_VLLM = "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>(c10::BFloat16*, c10::BFloat16 const*, int)"
SGEMM_V100 = "volta_sgemm_128x64_nn"
SGEMM_A100 = "ampere_sgemm_128x64_tn"
EIGEN = "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<Eigen::TensorMap<Eigen::Tensor<float, 1, 1, int>, 16, Eigen::MakePointer>, Eigen::TensorCwiseBinaryOp<Eigen::internal::scalar_sum_op<float, float>>> const>, Eigen::GpuDevice>, int>(float, int)"
DGEMM = "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1::Params)"

PROGRAMS = Programs()
program, simulate = PROGRAMS.add, PROGRAMS.simulate


# -- llama.cpp -----------------------------------------------------------------------------------


def _llama_layer(scale: float) -> list[tuple[str, float]]:
    head = [(RMS, 2.2), (QUANTIZE, 1.6), (MMVQ, 11 * scale), (MMVQ, 4 * scale), (MMVQ, 4 * scale), (ROPE_GGML, 1.7)]
    middle = [
        (ROPE_GGML, 1.7),
        (COPY_GGML, 1.6),
        (COPY_GGML, 1.6),
        (FATTN_VEC, 6.0),
        (QUANTIZE, 1.6),
        (MMVQ, 11 * scale),
    ]
    return [
        *head,
        *middle,
        (ADD_GGML, 1.5),
        (RMS, 2.2),
        (QUANTIZE, 1.6),
        (MMVQ, 27 * scale),
        (MMVQ, 27 * scale),
        (GLU, 1.8),
        (QUANTIZE, 1.6),
        (MMVQ, 27 * scale),
        (ADD_GGML, 1.5),
    ]


def _llama_token(host: Thread, layers: int, scale: float, launch: float, graph: str = "", think: float = 250) -> None:
    host.works(60)
    host.copy("HtoD", 4096 * 4, 6, call="cudaMemcpyAsync")
    kernels = [*_llama_layer(scale) * layers, (MMVQ, 130 * scale)]
    if graph:
        host.graph(kernels, launch=40, whole=graph == "whole")
    else:
        for name, time in kernels:
            host.kernel(name, time, launch=launch, grid=(4096 if name is MMVQ else 32, 1, 1), block=128)
    host.copy("DtoH", 128256 * 4, 12)
    host.sync()
    host.works(think)  # sampling


@program
def llama_decode_7b(folder: Path) -> list[Path]:
    paper = Paper(1, RTX4090)
    host = paper.thread(name="llama-cli")
    for _ in range(48):
        _llama_token(host, 32, 1.15, 3.4)
    return [paper.write(folder / "llama.sqlite")]


@program
def llama_decode_small(folder: Path) -> list[Path]:
    paper = Paper(2, H100)
    host = paper.thread(name="llama-server")
    for _ in range(60):
        _llama_token(host, 16, 0.16, 5.2, think=120)
    return [paper.write(folder / "llama.sqlite")]


@program
def llama_decode_graph(folder: Path) -> list[Path]:
    paper = Paper(3, H100)
    host = paper.thread(name="llama-server")
    for _ in range(80):
        _llama_token(host, 28, 0.5, 5.2, graph="node", think=180)
    return [paper.write(folder / "llama.sqlite")]


@program
def llama_prefill(folder: Path) -> list[Path]:
    paper = Paper(4, RTX3090)
    host = paper.thread(name="llama-bench")
    for _ in range(12):
        host.copy("HtoD", 512 * 4096 * 4, 6)
        for _ in range(32):
            for name, time in (
                (RMS, 12),
                (QUANTIZE_MMQ, 22),
                (MMQ, 540),
                (FIXUP, 8),
                (MMQ, 150),
                (FIXUP, 6),
                (ROPE_GGML, 11),
            ):
                host.kernel(name, time, grid=(82, 1, 1), launch=3.6)
            for name, time in (
                (FATTN_MMA, 160),
                (QUANTIZE_MMQ, 20),
                (MMQ, 380),
                (ADD_GGML, 14),
                (QUANTIZE_MMQ, 22),
                (MMQ, 1010),
                (GLU, 40),
                (QUANTIZE_MMQ, 50),
                (MMQ, 960),
                (ADD_GGML, 14),
            ):
                host.kernel(name, time, grid=(82, 1, 1), launch=3.6)
        host.sync()
        host.works(300)
    return [paper.write(folder / "bench.sqlite")]


@program
def llama_load_then_decode(folder: Path) -> list[Path]:
    paper = Paper(5, RTX4090)
    host = paper.thread(name="llama-cli")
    host.api("cudaMalloc", 900)
    for _ in range(290):  # tensor by tensor: read from the file, then copied
        host.os("read", 21_000)
        host.copy("HtoD", 14.5e6, 5.2, call="cudaMemcpyAsync")
        host.sync()
    for _ in range(64):
        _llama_token(host, 32, 1.15, 3.4)
    return [paper.write(folder / "cli.sqlite")]


# -- TensorRT, TensorRT-LLM, Triton ------------------------------------------------------------------


@program
def trtllm_whole_graphs(folder: Path) -> list[Path]:
    paper = Paper(6, H100)
    host = paper.thread(name="trtllm-bench")
    decode = [(NVJET_SMALL, 62.0), (FMHA, 18.0), (NVJET_SMALL, 44.0), (NVJET_SMALL, 150.0)] * 32
    for _ in range(64):
        host.copy("HtoD", 20_000, 10, pinned=True)
        host.graph(decode, whole=True, launch=30)
        for name, time in (
            ("void tensorrt_llm::kernels::invokeAddBiasEndMask<__half>(__half*, __half const*)", 5),
            ("void tensorrt_llm::kernels::topKStage1<float, 128, 8>(float const*, float*, int*, float*)", 19),
            ("void tensorrt_llm::kernels::topKStage2Sampling<float, 256>(int const*, float*, int**)", 9),
        ):
            host.kernel(name, time, launch=4)
        host.copy("DtoH", 4096, 8, pinned=True)
        host.sync("cudaEventSynchronize")
        host.works(210)
    return [paper.write(folder / "bench.sqlite")]


@program
def trt_enqueue_bound(folder: Path) -> list[Path]:
    paper = Paper(7, T4)
    host = paper.thread(name="trtexec")
    for _ in range(120):
        host.copy("HtoD", 150_528 * 4, 11, pinned=True)
        for layer in range(110):
            host.kernel(TRT_SMALL if layer % 2 else TRT_POINT, 3.6 if layer % 2 else 2.4, launch=8.0, grid=40)
        host.copy("DtoH", 4000, 6, pinned=True)
        host.sync("cudaEventSynchronize")
        host.works(9)
    return [paper.write(folder / "trtexec.sqlite")]


@program
def trt_int8_tuned(folder: Path) -> list[Path]:
    paper = Paper(8, A100)
    host = paper.thread(name="trtexec")
    loaded = 0.0
    for _ in range(60):
        kernels = [(TRT_CONV, 96.0), (TRT_CONV, 71.0), (TRT_CONV, 132.0)] * 17
        ready = host.copy("HtoD", 38e6, 24, pinned=True, stream=14)
        for name, time in [(TRT_COPY, 55.0), *kernels]:
            host.kernel(name, time, launch=4.2, grid=432, after=loaded)
        loaded = ready
        host.copy("DtoH", 256_000, 10, pinned=True, stream=15, after=host.done())
        if _ % 4 == 3:
            host.sync("cudaEventSynchronize")
    return [paper.write(folder / "trtexec.sqlite")]


@program
def triton_server_idle(folder: Path) -> list[Path]:
    """Two instances of a model; requests arrive every 40 ms."""
    paper = Paper(9, A100)
    instances = [paper.thread(tid=4720 + n, name="tritonserver") for n in range(2)]
    for n, host in enumerate(instances):
        host.stream = 20 + n
    arrives = 1e6
    for request in range(110):
        host = instances[request % 2]
        host.os("pthread_cond_wait", max(arrives - host.now, 5.0))
        host.waits_until(arrives)
        host.copy("HtoD", 600_000, 11, pinned=True)
        for layer in range(55):
            host.kernel(TRT_CONV if layer % 3 == 0 else TRT_POINT, 105 if layer % 3 == 0 else 22, launch=4.4, grid=216)
        host.copy("DtoH", 40_000, 9, pinned=True)
        host.sync()
        arrives += paper.near(20_000, 0.5)
    return [paper.write(folder / "triton.sqlite")]


# -- JAX, TensorFlow -----------------------------------------------------------------------------------


@program
def jax_train_tuned(folder: Path) -> list[Path]:
    paper = Paper(10, H100)
    host = paper.thread(name="python3")
    layer = [
        ("gemm_fusion_dot_265", 310.0),
        ("loop_multiply_fusion_4", 62.0),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
            240.0,
        ),
        (NVJET, 480.0),
        ("input_reduce_fusion_12", 55.0),
        ("loop_convert_fusion_3", 40.0),
    ]
    for _ in range(14):
        host.works(800)
        for _ in range(4):  # command buffers, run ahead
            host.graph(layer * 12, gap=1.0, launch=90)
        host.kernel("loop_select_fusion", 90, launch=5)
        if _ % 7 == 6:
            host.copy("DtoH", 4, 1, pinned=True)
            host.sync()
    return [paper.write(folder / "jax.sqlite")]


@program
def jax_eager(folder: Path) -> list[Path]:
    """Operators outside jit: each is its own program, dispatched from Python."""
    paper = Paper(11, A100)
    host = paper.thread(name="python3")
    for step in range(700):
        host.works(85)
        host.kernel(
            ("loop_add_fusion", "loop_multiply_fusion", "wrapped_reduce", "loop_exponential_fusion")[step % 4],
            5.5,
            launch=6,
            call="cuLaunchKernel",
            grid=128,
        )
    return [paper.write(folder / "jax.sqlite")]


@program
def jax_input_starved(folder: Path) -> list[Path]:
    """The iterator of the data set makes the step wait: 38 ms of 71 ms."""
    paper = Paper(12, H100)
    host = paper.thread(name="python3")
    for _ in range(24):
        host.os("pthread_cond_wait", 38_000)
        host.copy("HtoD", 25e6, 22, pinned=True)
        for _ in range(40):
            host.kernel("gemm_fusion_dot_17", 500, launch=5)
            host.kernel("loop_add_fusion_2", 120, launch=5)
            host.kernel("input_reduce_fusion_5", 130, launch=5)
        host.sync()
        host.works(600)
    return [paper.write(folder / "jax.sqlite")]


@program
def tensorflow_v100_fp32(folder: Path) -> list[Path]:
    """An export of 2020."""
    paper = Paper(13, V100)
    host = paper.thread(name="python")
    for _ in range(16):
        host.works(500)
        for _ in range(30):
            for name, time in (
                (SGEMM_V100, 900),
                (EIGEN, 95),
                (SGEMM_V100, 700),
                (EIGEN, 60),
                ("void tensorflow::BiasNHWCKernel<float>(int, float const*, float const*, float*, int)", 40),
            ):
                host.kernel(name, time, launch=6)
        host.copy("DtoH", 4, 1)
    return [paper.write(folder / "tf.sqlite", schema="2020")]


# -- several ranks and GPUs ------------------------------------------------------------------------------


def ranks_of(paper: Paper, count: int = 2) -> list[Thread]:
    hosts = []
    for rank in range(count):
        host = paper.thread(5000 + rank, name="python3.10")
        host.device = rank
        hosts.append(host)
    return hosts


def collective(hosts: list[Thread], name: str, time: float, stream: int | None = None, launch: float = 9.0) -> None:
    """All ranks run it from when each has reached it until the last has done its part."""
    paper = hosts[0].paper
    starts = [max(host.now + launch + 2.5, host.done(stream)) for host in hosts]
    end = max(starts) + paper.near(time)
    for host, start in zip(hosts, starts, strict=True):
        host.kernel(name, end - start, stream=stream, launch=launch, grid=24, block=512, spread=0.0)


@program
def megatron_tensor_parallel(folder: Path) -> list[Path]:
    """Two ranks over PCIe, one recording: all-reduces alone on the GPU for half of the time."""
    paper = Paper(14, A100, A100)
    hosts = ranks_of(paper)
    for _ in range(10):
        for host in hosts:
            host.works(500)
        for _ in range(24):
            for kernels in (((NVJET, 300), (FLASH, 120), (NVJET, 150)), ((NVJET, 420), (ACT_VLLM, 40), (NVJET, 400))):
                for host in hosts:
                    for name, time in kernels:
                        host.kernel(name, time)
                collective(hosts, ALL_REDUCE, 780)
    return [paper.write(folder / "megatron.sqlite")]


@program
def zero3_overlapped(folder: Path) -> list[Path]:
    """Gathers of the next layer run beside the products of this one."""
    paper = Paper(15, H100, H100)
    hosts = ranks_of(paper)
    for _ in range(6):
        for host in hosts:
            host.works(300)
        for _ in range(40):
            collective(hosts, ALL_GATHER, 700, stream=30)
            for host in hosts:
                for name, time in ((NVJET, 420), (FLASH_BWD, 310), (NVJET, 500), ("multi_tensor_apply_kernel", 40)):
                    host.kernel(name, time)
            collective(hosts, REDUCE_SCATTER, 350, stream=31)
            for host in hosts:
                host.sync("cudaEventSynchronize") if _ == 0 else None
        for host in hosts:
            host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "zero3.sqlite")]


@program
def rank_with_a_slow_host(folder: Path) -> list[Path]:
    """Rank 1 (GPU 1) does 14 ms of something on its host in each step; GPU 0 waits in the all-reduce."""
    paper = Paper(16, H100, H100)
    hosts = ranks_of(paper)
    for _ in range(20):
        hosts[0].works(700)
        hosts[1].works(14_700)
        for host in hosts:
            for _ in range(12):
                host.kernel(NVJET, 700)
                host.kernel(FLASH_BWD, 300)
        collective(hosts, ALL_REDUCE, 1500)
        for host in hosts:
            host.kernel(
                "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, at::native::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>>()",
                900,
            )
            host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "fsdp.sqlite")]


@program
def two_gpus_one_lazy(folder: Path) -> list[Path]:
    """One process, a thread for each GPU; the second GPU gets a fifth of the work and then waits."""
    paper = Paper(17, A100, A100)
    hosts = [paper.thread(tid=4730 + n, name="render") for n in range(2)]
    for n, host in enumerate(hosts):
        host.device = n
    for _ in range(25):
        for n, host in enumerate(hosts):
            for _ in range(40 if n == 0 else 8):
                host.kernel("void integrate_paths<512>(Scene, Ray*, float4*, int)", 1000, grid=4096)
            host.sync("cudaStreamSynchronize")
        both = max(host.now for host in hosts)
        for host in hosts:
            host.os("pthread_barrier_wait", max(both - host.now, 1.0))
            host.waits_until(both)
            host.works(150)
    return [paper.write(folder / "render.sqlite")]


@program
def peer_copies(folder: Path) -> list[Path]:
    """Two pipeline stages in one process: activations cross PCIe between them, nothing runs beside that."""
    paper = Paper(18, RTX3090, RTX3090)
    host = paper.thread(name="pipeline")
    for _ in range(60):
        host.device = 0
        for _ in range(6):
            host.kernel("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn", 500, grid=(32, 16, 1))
        done = host.copy("PtoP", 96e6, 11.5, call="cudaMemcpyPeerAsync", to=1)
        host.device = 1
        for _ in range(3):
            host.kernel(
                "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn", 500, grid=(32, 16, 1), after=done
            )
        host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "pipeline.sqlite")]


@program
def nccl_tests(folder: Path) -> list[Path]:
    paper = Paper(19, H100, H100)
    hosts = ranks_of(paper)
    for _ in range(200):
        collective(hosts, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1400)
    for host in hosts:
        host.sync("cudaStreamSynchronize")
    return [paper.write(folder / "all_reduce_perf.sqlite")]


@program
def two_processes_one_gpu(folder: Path) -> list[Path]:
    """They take turns: each waits for the other's kernels, the GPU never stops."""
    paper = Paper(20, A100)
    hosts = [paper.thread(6000 + n, name=f"worker{n}") for n in range(2)]
    for _ in range(220):
        for host in hosts:
            for _ in range(4):
                host.kernel(
                    "void convolve_separable<32>(float const*, float*, int, int)", 900, exclusive=True, grid=2048
                )
    for host in hosts:
        host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "workers.sqlite")]


# -- serving ---------------------------------------------------------------------------------------------


@program
def vllm_v1_graphs(folder: Path) -> list[Path]:
    """The engine's process alone uses the GPU; a step is one graph and a sampler."""
    paper = Paper(21, H100)
    paper.processes[7000] = "vllm"
    host = paper.thread(7001, name="VLLM::EngineCore")
    layer = [
        (NVJET_SMALL, 40.0),
        (FLASH, 34.0),
        (NVJET_SMALL, 30.0),
        (NORM_VLLM, 4.0),
        (NVJET_SMALL, 95.0),
        (ACT_VLLM, 5.0),
        (NVJET_SMALL, 60.0),
        (NORM_VLLM, 4.0),
    ]
    for _ in range(45):
        host.works(650)
        host.copy("HtoD", 9000, 6, pinned=True)
        host.graph(layer * 36, launch=60)
        for name, time in (
            (NVJET_SMALL, 180.0),
            (
                "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)2, (cub::BlockReduceAlgorithm)2, 4u, true, float, int>(float*, int*, int*, float*, int)",
                60.0,
            ),
        ):
            host.kernel(name, time)
        host.copy("DtoH", 256, 2, pinned=True)
        host.sync("cudaEventSynchronize")
        host.works(300)
    return [paper.write(folder / "vllm.sqlite")]


@program
def sglang_without_graphs(folder: Path) -> list[Path]:
    paper = Paper(22, H100)
    host = paper.thread(7100, name="sglang::scheduler")
    layer = [
        (NORM_VLLM, 2.6),
        (NVJET_SMALL, 6.5),
        (
            "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 64u, 8u, 16u, __nv_bfloat16, long>(__nv_bfloat16*)",
            2.2,
        ),
        (
            "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 1u, 8u, flashinfer::DefaultAttention<false, false, false, false>>(flashinfer::BatchDecodeParams<__nv_bfloat16>)",
            7.5,
        ),
        (NVJET_SMALL, 5.0),
        (NORM_VLLM, 2.6),
        (NVJET_SMALL, 9.0),
        (ACT_VLLM, 2.4),
        (NVJET_SMALL, 7.0),
    ]
    for _ in range(30):
        host.works(900)
        for _ in range(32):
            for name, time in layer:
                host.works(7)
                host.kernel(name, time, launch=6.5)
        host.copy("DtoH", 64, 1, pinned=True)
        host.sync("cudaEventSynchronize")
    return [paper.write(folder / "sglang.sqlite")]


# -- CUDA C++ -----------------------------------------------------------------------------------------------


@program
def stencil(folder: Path) -> list[Path]:
    paper = Paper(23, A100)
    host = paper.thread(name="stencil")
    for _ in range(900):
        host.kernel("void stencil2d<32, 8>(float const*, float*, int, int)", 1200, grid=(256, 1024, 1))
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "stencil.sqlite")]


@program
def synchronised_each_launch(folder: Path) -> list[Path]:
    paper = Paper(24, A100)
    host = paper.thread(name="heat")
    for _ in range(1500):
        for name in ("compute_flux(double const*, double*, int)", "update_cells(double*, double const*, int)"):
            host.kernel(name, 22, grid=512)
            host.sync("cudaDeviceSynchronize")
            host.works(14)
    return [paper.write(folder / "heat.sqlite")]


@program
def malloc_in_loop(folder: Path) -> list[Path]:
    paper = Paper(25, RTX3090)
    host = paper.thread(name="kmeans")
    for _ in range(350):
        for _ in range(3):
            host.api("cudaMalloc", 210)
        host.kernel("assign_clusters(float const*, float const*, int*, int, int, int)", 180, grid=800)
        host.kernel("sum_clusters(float const*, int const*, float*, int*, int, int, int)", 120, grid=800)
        host.waits_until(host.done())
        for _ in range(3):
            host.api("cudaFree", 260)
    return [paper.write(folder / "kmeans.sqlite")]


@program
def pageable_copies(folder: Path) -> list[Path]:
    paper = Paper(26, RTX3090)
    host = paper.thread(name="denoise")
    for _ in range(50):
        host.works(200)
        host.copy("HtoD", 100e6, 6.1, call="cudaMemcpy")
        host.kernel("void nlm_denoise<7, 21>(uchar4 const*, uchar4*, int, int, float)", 2300, grid=8000)
        host.copy("DtoH", 100e6, 6.4, call="cudaMemcpy")
    return [paper.write(folder / "denoise.sqlite")]


@program
def pinned_copies_in_a_row(folder: Path) -> list[Path]:
    """Pinned, and asynchronous, but all in the default stream: copy, compute, copy back, one after the other."""
    paper = Paper(27, A100)
    host = paper.thread(name="pipeline")
    for _ in range(70):
        host.copy("HtoD", 200e6, 24, pinned=True)
        host.kernel("void transform_batch<float4>(float4 const*, float4*, long)", 5200, grid=8000)
        host.copy("DtoH", 200e6, 23, pinned=True)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "pipeline.sqlite")]


@program
def streams_overlap(folder: Path) -> list[Path]:
    """Four streams: copies of one chunk run beside the kernels of another."""
    paper = Paper(28, A100)
    host = paper.thread(name="pipeline")
    for chunk in range(160):
        stream = 13 + chunk % 4
        host.copy("HtoD", 60e6, 24, pinned=True, stream=stream)
        host.kernel(
            "void transform_batch<float4>(float4 const*, float4*, long)", 3900, grid=8000, stream=stream, exclusive=True
        )
        host.copy("DtoH", 60e6, 23, pinned=True, stream=stream)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "pipeline.sqlite")]


@program
def tiny_kernels(folder: Path) -> list[Path]:
    """A tree walked level by level: ten thousands of kernels of 2.5 µs, launched one after the other."""
    paper = Paper(29, H100)
    host = paper.thread(name="bvh")
    for _ in range(60):
        for level in range(200):
            host.kernel(
                ("scan_level(Node*, int)", "split_level(Node*, int*, int)")[level % 2], 2.4, grid=16, launch=5.1
            )
        host.sync("cudaStreamSynchronize")
        host.works(40)
    return [paper.write(folder / "bvh.sqlite")]


@program
def memset_each_iteration(folder: Path) -> list[Path]:
    paper = Paper(30, A100)
    host = paper.thread(name="sparse")
    for _ in range(400):
        host.memset(2.6e9, 1650)
        host.kernel("void scatter_add<float>(int const*, float const*, float*, long)", 420, grid=4000)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "sparse.sqlite")]


@program
def one_huge_kernel(folder: Path) -> list[Path]:
    paper = Paper(31, RTX4090)
    host = paper.thread(name="brute")
    host.api("cudaMalloc", 140)
    host.copy("HtoD", 64e6, 9)
    host.kernel("search_nonces(unsigned int const*, unsigned long, unsigned long*)", 8_000_000, grid=65535)
    host.sync("cudaDeviceSynchronize")
    host.copy("DtoH", 8, 1)
    return [paper.write(folder / "brute.sqlite")]


@program
def waits_for_its_own_work(folder: Path) -> list[Path]:
    """`cudaMemcpy` is 97 % of the API's time: it waits for the kernels before it. The copy is 4 bytes."""
    paper = Paper(32, A100)
    host = paper.thread(name="solver")
    for _ in range(200):
        for _ in range(40):
            host.kernel(
                "void spmv_csr<double, 8>(int const*, int const*, double const*, double const*, double*, int)",
                130,
                grid=3000,
            )
            host.kernel("dot_kernel(double const*, double const*, double*, int)", 60, grid=512)
        host.copy("DtoH", 8, 0.5, call="cudaMemcpy")
        host.works(25)
    return [paper.write(folder / "solver.sqlite")]


@program
def fp64_products(folder: Path) -> list[Path]:
    paper = Paper(33, H100)
    host = paper.thread(name="vasp_std")
    for _ in range(260):
        host.kernel(DGEMM, 2100, grid=(64, 32, 1))
        host.kernel("void fft_3d_vpack<double2, 512>(double2*, double2 const*, int, int, int)", 400, grid=2000)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "vasp.sqlite")]


@program
def sgemm_on_a100(folder: Path) -> list[Path]:
    paper = Paper(34, A100)
    host = paper.thread(name="embed")
    for _ in range(40):
        host.works(100)
        for _ in range(24):
            host.kernel(SGEMM_A100, 850, grid=(64, 32, 1))
            host.kernel("void add_bias_gelu<float>(float*, float const*, int, int)", 60, grid=4000)
        host.sync()
    return [paper.write(folder / "embed.sqlite")]


@program
def unified_memory(folder: Path) -> list[Path]:
    """Managed memory that host and GPU touch in turns: kernels wait for pages."""
    paper = Paper(35, RTX3090)
    host = paper.thread(name="managed")
    for _ in range(30):
        start = host.now + 8
        done = host.kernel("void saxpy_update<float>(float*, float const*, float, long)", 82_000, grid=8000)
        at = start
        while at < done - 900:
            host.faults(at, at + 35, 64)
            at = host.migrates("UVM_HTOD", at + 40, 2e6, 4.2) + 15
        host.sync("cudaDeviceSynchronize")
        at = host.now
        for _ in range(60):
            at = host.migrates("UVM_DTOH", at + 20, 1e6, 5.5) + 60
        host.works(at - host.now + 500)
    return [paper.write(folder / "managed.sqlite")]


# -- data, video -------------------------------------------------------------------------------------------


@program
def transcode(folder: Path) -> list[Path]:
    """60 frames a second come from the decoder; scaling takes 0.4 ms, then the frame goes back."""
    paper = Paper(36, T4)
    host = paper.thread(name="ffmpeg")
    for _ in range(240):
        host.os("pthread_cond_wait", 14_300)
        host.copy("DtoD", 3.1e6, 120, call="cuMemcpy2DAsync_v2")
        host.kernel("Subsample_Bilinear_nv12", 390, grid=(60, 68, 1), call="cuLaunchKernel")
        host.copy("DtoH", 1.4e6, 9, call="cuMemcpy2DAsync_v2")
        host.sync("cuStreamSynchronize")
        host.works(450)
    return [paper.write(folder / "ffmpeg.sqlite")]


@program
def dataframe_from_file(folder: Path) -> list[Path]:
    """A group-by: reading the file takes 2.2 of 2.9 s."""
    paper = Paper(37, A100)
    host = paper.thread(name="python")
    for _ in range(11):
        for _ in range(50):
            host.os("pread64", 4000)
        host.copy("HtoD", 180e6, 5.8)
        for _ in range(30):
            host.kernel(
                "void cudf::io::parquet::gpu::gpuDecodePageData(cudf::io::parquet::gpu::PageInfo*, cudf::device_span<cudf::io::parquet::gpu::ColumnChunkDesc const>)",
                350,
                grid=900,
            )
            host.kernel(
                "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<int, int, int>::Policy900, false, int, int, int, int, int>(int*, int*, int*, int*, int const*, int*, int const*, int)",
                120,
                grid=900,
            )
            host.kernel(
                "void cudf::hash::groupby::compute_single_pass_aggs_fn<cuco::static_map<int, int>>(int)", 160, grid=900
            )
        host.sync()
        host.works(2000)
    return [paper.write(folder / "cudf.sqlite")]


@program
def one_long_phase(folder: Path) -> list[Path]:
    """2 s of training, 5 s in which the GPU does nothing (a checkpoint is written, say), 1 s of training."""
    paper = Paper(38, H100)
    host = paper.thread(name="python3")
    for part in (100, 50):
        for _ in range(part):
            for _ in range(8):
                host.kernel(NVJET, 1600)
                host.kernel(FLASH_BWD, 800)
            host.sync()
            host.works(200)
        if part == 100:
            host.works(5_000_000)
    return [paper.write(folder / "train.sqlite")]


# -- what was recorded ----------------------------------------------------------------------------------------


@program
def start_of_the_program_only(folder: Path) -> list[Path]:
    """Context, modules, first launches: the GPU works 4 of 900 ms."""
    paper = Paper(39, H100)
    host = paper.thread(name="python3")
    host.api("cudaFree", 310_000)
    host.api("cudaMalloc", 400)
    for _ in range(6):
        host.api("cuLibraryLoadData", 60_000)
        host.kernel(NVJET, 300, launch=18_000)
        host.works(9000)
        host.kernel(NORM_VLLM, 300, launch=4000)
    host.sync()
    return [paper.write(folder / "start.sqlite")]


@program
def context_then_short_work(folder: Path) -> list[Path]:
    """The first cudaMalloc takes 98 % of the API's time, because it makes the context; the work itself is fine."""
    paper = Paper(40, RTX4090)
    host = paper.thread(name="vector_add")
    host.api("cudaMalloc", 240_000)
    host.api("cudaMalloc", 90)
    host.api("cudaMalloc", 85)
    host.copy("HtoD", 8e6, 6, call="cudaMemcpy")
    host.copy("HtoD", 8e6, 6, call="cudaMemcpy")
    host.kernel("vectorAdd(float const*, float const*, float*, int)", 38, grid=7813)
    host.copy("DtoH", 8e6, 6, call="cudaMemcpy")
    for _ in range(3):
        host.api("cudaFree", 120)
    return [paper.write(folder / "vector_add.sqlite")]


@program
def begins_in_the_middle(folder: Path) -> list[Path]:
    """The host runs 30 ms ahead; kernels that were launched before the recording have no launch in it."""
    paper = Paper(41, H100)
    host = paper.thread(name="trainer")
    for step in range(30):
        for _ in range(20):
            host.kernel(NVJET, 900)
            host.kernel(FLASH_BWD, 500)
        if step >= 2:
            host.waits_until(host.done() - 30_000)
    paper.window(1_200_000, 1_600_000)
    return [paper.write(folder / "trainer.sqlite")]


@program
def without_calls(folder: Path) -> list[Path]:
    """Kernels alone, and 3 ms of nothing between groups of them: what the host did is not in the file."""
    paper = Paper(42, A100)
    host = paper.thread(name="app")
    for _ in range(150):
        for _ in range(5):
            host.kernel("void filter_bank<64>(float const*, float*, int)", 500, grid=1000)
        host.sync()
        host.works(3000)
    return [paper.write(folder / "app.sqlite", without=("CUPTI_ACTIVITY_KIND_RUNTIME",))]


@program
def calls_without_gpu(folder: Path) -> list[Path]:
    """CUDA's calls were recorded, but nothing of the GPU (as where CUPTI cannot be had)."""
    paper = Paper(43, RTX4090)
    host = paper.thread(name="app")
    for _ in range(300):
        host.kernel("gemm", 300)
        host.kernel("relu", 20)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "app.sqlite", without=("CUPTI_ACTIVITY_KIND_KERNEL",))]


@program
def cut_off_eager(folder: Path) -> list[Path]:
    """A launch-bound loop, recorded for 100 ms out of its middle (`--delay`, `--duration`)."""
    paper = Paper(44, H100)
    host = paper.thread(name="python3")
    for _ in range(60):
        for _ in range(24):
            for name, time in (
                (NORM_VLLM, 2.4),
                (NVJET_SMALL, 6.0),
                (FLASH, 8.0),
                (NVJET_SMALL, 5.0),
                (ACT_VLLM, 2.2),
                (NVJET_SMALL, 8.5),
            ):
                host.works(12)
                host.kernel(name, time, launch=7)
        host.copy("DtoH", 4, 0.5)
    paper.window(1_030_000, 1_130_000)
    return [paper.write(folder / "python.sqlite")]
