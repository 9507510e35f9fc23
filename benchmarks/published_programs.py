"""Recordings as people publish them most: nsys exports of PyTorch LLM programs, on the paper machine of `paper_nsys.py`.

nanoGPT, the Hugging Face Trainer and generate(), emit_nvtx, vLLM's profiled benchmark, CUDA graphs traced whole and by
node, FSDP and DDP ranks. Situations as they come, not corner cases. `unseen/published.toml` has what an expert says of
each, written before the product was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper_nsys import Paper, Programs, Thread

PROGRAMS = Programs()
program, simulate = PROGRAMS.add, PROGRAMS.simulate
H100, A100, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4"
RTX3090, RTX4090 = "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090"

E = "void at::native::vectorized_elementwise_kernel<4, at::native::"
ADD = E + "CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char *, (int)3>>(int, T2, T3)"
ADD_F = E + "CUDAFunctor_add<float>, at::detail::Array<char *, (int)3>>(int, T2, T3)"
MUL = (
    E
    + "BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float>>, at::detail::Array<char *, (int)3>>(int, T2, T3)"
)
GELU = (
    E
    + "GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)::[lambda() (instance 2)]::operator ()() const::[lambda() (instance 4)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
GELU_BACK = (
    E
    + "GeluBackwardCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)::[lambda() (instance 2)]::operator ()() const::[lambda() (instance 4)], at::detail::Array<char *, (int)3>>(int, T2, T3)"
)
SILU = (
    E
    + "silu_kernel(at::TensorIteratorBase &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 5)], at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
FILL = E + "FillFunctor<float>, at::detail::Array<char *, (int)1>>(int, T2, T3)"
CAST = (
    E
    + "bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
COPY = "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 12)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
NEG = (
    E
    + "neg_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 2)], at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
POW = (
    E
    + "pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase &, T2)::[lambda(float) (instance 1)], at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
RSQRT = (
    E
    + "rsqrt_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 2)], at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
MEAN = "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, (int)4>>(T3)"
NORM2 = "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float>, unsigned int, float, (int)4>>(T3)"
SUM = "void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator ()(at::TensorIterator &)::[lambda(float, float) (instance 1)]>, unsigned int, c10::BFloat16, (int)4>>(T3)"
DROPOUT = "void at::native::<unnamed>::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, (int)1, (int)8, bool>(at::cuda::detail::TensorInfo<const T1, T3>, at::cuda::detail::TensorInfo<T1, T3>, at::cuda::detail::TensorInfo<T6, T3>, T3, T2, at::PhiloxCudaState)"
LN = "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, T2, const T1 *, const T1 *, const T1 *, T2 *, T2 *, T1 *)"
LN_BACK = "void at::native::<unnamed>::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>(const T1 *, const T1 *, const T2 *, const T2 *, const T1 *, T1 *, int)"
SOFTMAX = "void <unnamed>::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, (int)10, (bool)0, (bool)0>(T2 *, const T1 *, int, int, int, const bool *, int, bool)"
SOFTMAX_BIG = "void at::native::<unnamed>::cunn_SoftMaxForward<(int)8, c10::BFloat16, float, c10::BFloat16, at::native::<unnamed>::SoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
SOFTMAX_BACK = "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)8, c10::BFloat16, float, c10::BFloat16, at::native::<unnamed>::SoftMaxBackwardEpilogue>(T2 *, const T4 *, const T4 *, long)"
MASK = (
    E
    + "<unnamed>::masked_fill_kernel(at::TensorIterator &, const c10::Scalar &)::[lambda() (instance 1)]::operator ()() const::[lambda(c10::BFloat16, bool) (instance 1)], at::detail::Array<char *, (int)3>>(int, T2, T3)"
)
LOGSM = "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, at::native::<unnamed>::LogSoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
LOGSM_BACK = "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, float, float, float, at::native::<unnamed>::LogSoftMaxBackwardEpilogue>(T2 *, const T4 *, const T4 *, long)"
NLL = "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(T1 *, T1 *, const T1 *, const T3 *, const T1 *, bool, long, long, long, long)"
EMB = "void at::native::<unnamed>::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, (int)2, (int)2, (int)-2, (bool)1>(at::cuda::detail::TensorInfo<T1, T3>, at::cuda::detail::TensorInfo<const T1, T3>, at::cuda::detail::TensorInfo<const T2, T3>, int, int, T3, T3, long)"
CATK = "void at::native::<unnamed>::CatArrayBatchedCopy_aligned16_contig<at::native::<unnamed>::OpaqueType<(unsigned int)2>, unsigned int, (int)4, (int)128, (int)1>(T1 *, at::native::<unnamed>::CatArrInputTensorMetadata<T1, T2, T4, T5>, at::native::<unnamed>::TensorSizeStride<T2, (unsigned int)4>, int, T2)"
ARGMAX = "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, (int)4>>(T3)"
GEMM_A = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
GEMM_B = "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_nn"
GEMM_C = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nt"
GEMM_H = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
GEMM_HN = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
GEMM_HT = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
SMALL_H = "nvjet_tst_64x64_64x13_1x4_h_bz_splitK_TNT"
GEMM_T4 = "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn"
SGEMM = "ampere_sgemm_128x64_tn"
SGEMM_N = "ampere_sgemm_128x128_nn"
SGEMM_T = "ampere_sgemm_128x32_sliced1x4_nt"
GEMV_A = "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<(int)64, (int)128, (int)128, (int)4, (bool)0, (bool)0, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<(int)64, (int)128, (int)128, (int)4, cutlass::bfloat16_t>>, (bool)0, (bool)1, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0, (bool)0>(pytorch_flash::Flash_fwd_params)"
FLASH_BACK = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<(int)64, (int)128, (int)128, (int)8, (int)4, (int)4, (int)4, (bool)0, (bool)0, cutlass::bfloat16_t>, (bool)0, (bool)1, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0>(pytorch_flash::Flash_bwd_params)"
FA3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<(int)2, cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>, cute::tuple<cute::C<(int)128>, cute::C<(int)128>, cute::C<(int)128>>, (int)128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, (bool)1, (bool)0, (bool)0, (bool)1, (bool)1>>>>(T1::Params)"
SPLIT = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, (int)4, (bool)0, (bool)0, cutlass::half_t>, (bool)0, (bool)0, (bool)0, (bool)0, (bool)1, (bool)0, (bool)1, (bool)0>(Flash_fwd_params)"
ADAM_FUSED = "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimizerTensorListMetadata<(int)4>, at::native::<unnamed>::FusedAdamMathFunctor<float, (int)4, (at::native::ADAM_MODE)1, (bool)0>, const float *, double, double, double, double, double, bool, const float *, const float *>(T1, T2, T3...)"
ADAM_EACH = "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)4>, at::native::<unnamed>::PointwiseOpListFunctor<float, (int)4>, std::divides<float>>(T1, T2, T3...)"
LAMBDA = (
    E
    + "AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>, at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
ADDCMUL = (
    E
    + "addcmul_cuda_kernel(at::TensorIteratorBase &, const c10::Scalar &)::[lambda(float, float, float) (instance 1)], at::detail::Array<char *, (int)4>>(int, T2, T3)"
)
SQRT = (
    E
    + "sqrt_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 2)], at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
V_NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, T1 *, const T1 *, float, int, int)"
V_ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *, T1 *, const T1 *, int, long, long, int, int, int)"
V_ACT = (
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)"
)
V_CACHE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(const T1 *, const T1 *, T2 *, T2 *, const long *, long, long, long, int, int, int, const float *, const float *)"
MMVQ = "void mul_mat_vec_q<(ggml_type)12, (int)1, (bool)0>(const void *, const void *, const int *, float *, int, int, int, int, int, int)"
MMVQ6 = "void mul_mat_vec_q<(ggml_type)14, (int)1, (bool)0>(const void *, const void *, const int *, float *, int, int, int, int, int, int)"


def ahead(host: Thread, most: float = 12_000) -> None:
    """PyTorch's host runs ahead of the GPU until the queue of launches is full."""
    host.now = max(host.now, host.done() - most)


def ops(host: Thread, work: Sequence[tuple[str, float]], python: float = 5.5, **args: object) -> None:
    for name, time in work:
        host.works(python)
        host.kernel(name, time, **args)  # type: ignore[arg-type]
    ahead(host)


def item(host: Thread) -> None:
    """Tensor.item()."""
    host.works(4)
    host.copy("DtoH", 4, 0.004)
    host.sync()


GPT2_FORWARD = [
    *((LN, 22), (GEMM_A, 140), (FLASH, 95), (COPY, 14), (GEMM_A, 55), (DROPOUT, 30), (ADD, 26)),
    *((LN, 22), (GEMM_A, 190), (GELU, 62), (GEMM_B, 185), (DROPOUT, 30), (ADD, 26)),
]
GPT2_BACKWARD = [
    *((MUL, 30), (GEMM_B, 190), (GEMM_C, 195), (SUM, 24), (GELU_BACK, 84), (GEMM_B, 185), (GEMM_C, 190), (SUM, 60)),
    *((LN_BACK, 48), (ADD, 26), (MUL, 30), (GEMM_B, 55), (GEMM_C, 60), (SUM, 24), (FLASH_BACK, 260), (CATK, 42)),
    *((GEMM_B, 140), (GEMM_C, 150), (SUM, 45), (LN_BACK, 48), (ADD, 26)),
]


def smaller(work: Sequence[tuple[str, float]], by: float, least: float = 1.8) -> list[tuple[str, float]]:
    return [(name, max(time / by, least)) for name, time in work]


@program
def nanogpt_a100(folder: Path) -> list[Path]:
    """nanoGPT, GPT-2 124M eager in bf16, batch 12 of 1024, no NVTX; loss fetched every tenth step."""
    paper = Paper(1601, A100)
    host = paper.thread(name="python")
    for step in range(12):
        host.works(250)
        for _ in range(2):
            host.copy("HtoD", 98_304, 8, pinned=True)
        ops(host, [(EMB, 25), (EMB, 9), (ADD, 22), (DROPOUT, 30), *GPT2_FORWARD * 12, (LN, 22), (GEMM_A, 1350)])
        ops(host, [(CAST, 1100), (LOGSM, 1900), (NLL, 14), (LOGSM_BACK, 2300), (CAST, 1050)])
        ops(host, [(GEMM_B, 1300), (GEMM_C, 1380), *GPT2_BACKWARD * 12], python=4)
        ops(host, [(NORM2, 120), (MUL, 60), (ADAM_FUSED, 900), (ADAM_FUSED, 850)], python=40)
        if step % 10 == 0:
            item(host)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "nanogpt.sqlite")]


@program
def char_model_4090(folder: Path) -> list[Path]:
    """The Shakespeare model of nanoGPT (6 layers of 384) on a 4090, ranges by torch.cuda.nvtx; everything is tiny."""
    paper = Paper(1602, RTX4090)
    host = paper.thread(name="python")
    for _ in range(30):
        with host.span("step"):
            with host.span("data"):
                host.works(120)
                host.copy("HtoD", 131_072, 9, pinned=True)
                host.copy("HtoD", 131_072, 9, pinned=True)
            with host.span("forward"):
                ops(
                    host, smaller([(EMB, 25), (ADD, 22), *GPT2_FORWARD * 6, (LN, 20), (GEMM_A, 60), (LOGSM, 40)], 14), 7
                )
            with host.span("backward"):
                ops(host, smaller([(LOGSM_BACK, 60), *GPT2_BACKWARD * 6], 14), 5)
            with host.span("optimizer"):
                ops(host, [(NORM2, 6), *[(LAMBDA, 3), (ADDCMUL, 3)] * 4, *[(ADAM_EACH, 9)] * 10], 22)
            item(host)
    return [paper.write(folder / "char.sqlite")]


@program
def trainer_t4(folder: Path) -> list[Path]:
    """Hugging Face Trainer, BERT in fp16 on a T4, the collator tokenises in the main process; no NVTX, OS calls traced."""
    paper = Paper(1603, T4)
    host = paper.thread(name="python3")
    layer = [(GEMM_T4, 900), (GEMM_T4, 320), (SOFTMAX, 420), (GEMM_T4, 330), (GEMM_T4, 310), (ADD, 180), (LN, 150)]
    layer += [(GEMM_T4, 1150), (GELU, 420), (GEMM_T4, 1130), (ADD, 180), (LN, 150)]
    for _ in range(15):
        host.works(95_000)
        for _ in range(4):
            host.copy("HtoD", 65_536, 4)
        ops(host, layer * 12, 9)
        ops(host, [(name, time * 2) for name, time in layer * 12], 6)
        ops(host, [(NORM2, 600), (MUL, 900)], 30)
        item(host)
        ops(host, [(ADAM_EACH, 1100)] * 8, 60)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "trainer.sqlite", schema="2022")]


@program
def emitted_loader(folder: Path) -> list[Path]:
    """GPT-2 fine-tuning under emit_nvtx on a 3090, DataLoader with num_workers=0: half of each step is `__next__`."""
    paper = Paper(1604, RTX3090)
    host = paper.thread(name="python")
    engine = paper.thread(tid=4790)
    number = 0
    for _ in range(14):
        with host.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            host.works(88_000)
        with host.span(f"aten::to, op_id = {number}"):
            host.copy("HtoD", 65_536, 5)
        for name, time in GPT2_FORWARD * 12:
            number += 1
            kind = "aten::linear" if "gemm" in name else "aten::layer_norm" if name == LN else "aten::add"
            with host.span(f"{kind}, seq = {number}, op_id = {number}, sizes = [[4, 1024, 768], [768, 768]]"):
                host.works(9)
                host.kernel(name, time * 1.1)
            ahead(host)
        engine.now = host.now + 30
        for name, time in GPT2_BACKWARD * 12:
            number += 1
            kind = "AddmmBackward0" if "gemm" in name else "GeluBackward0" if name == GELU_BACK else "AddBackward0"
            with engine.span(f"autograd::engine::evaluate_function: {kind}, op_id = {number}"):
                engine.works(8)
                engine.kernel(name, time * 1.1)
            ahead(engine)
        host.now = engine.now + 20
        with host.span("Optimizer.step#AdamW.step"):
            ops(host, [(ADAM_EACH, 700)] * 8, 40)
        item(host)
    return [paper.write(folder / "emit.sqlite")]


LLAMA_TOKEN = [
    *((POW, 2.4), (MEAN, 3.6), (ADD_F, 1.8), (RSQRT, 1.8), (MUL, 2.2), (CAST, 2.0), (MUL, 2.1)),
    *(
        (GEMV_A, 24),
        (GEMV_A, 24),
        (GEMV_A, 24),
        (MUL, 2),
        (NEG, 2),
        (CATK, 2.6),
        (MUL, 2),
        (ADD, 2),
        (MUL, 2),
        (NEG, 2),
    ),
    *((CATK, 2.6), (MUL, 2), (ADD, 2), (CATK, 4.0), (CATK, 4.0), (SPLIT, 9), (GEMV_A, 24), (ADD, 2)),
    *((POW, 2.4), (MEAN, 3.6), (ADD_F, 1.8), (RSQRT, 1.8), (MUL, 2.2), (CAST, 2.0), (MUL, 2.1)),
    *((GEMV_A, 60), (SILU, 2.6), (GEMV_A, 60), (MUL, 2.4), (GEMV_A, 62), (ADD, 2)),
]


@program
def generate_eager_a100(folder: Path) -> list[Path]:
    """generate() of a 7B model in fp16, eager, batch 1, no NVTX: the host needs 18 µs for each of 1,250 kernels."""
    paper = Paper(1605, A100)
    host = paper.thread(name="python")
    ops(host, [(EMB, 5), *[(n, max(t * 6, 3)) for n, t in LLAMA_TOKEN] * 32, (GEMV_A, 300)], 9)
    for _ in range(48):
        host.works(600)
        ops(host, [(EMB, 3), *LLAMA_TOKEN * 32, (GEMV_A, 160), (CAST, 3), (ARGMAX, 14)], 14)
        item(host)
    return [paper.write(folder / "generate.sqlite")]


def decode_nodes(rows: float = 1.0) -> list[tuple[str, float]]:
    layer = [(V_NORM, 2.6), (SMALL_H, 19), (V_ROPE, 2.4), (V_CACHE, 2.2), (SPLIT, 8 * rows), (SMALL_H, 13)]
    return [*[*layer, (V_NORM, 2.6), (SMALL_H, 76), (V_ACT, 3), (SMALL_H, 40)] * 32, (SMALL_H, 330)]


@program
def graphs_whole(folder: Path) -> list[Path]:
    """Llama-3-8B on an H100, ranges prefill and decode; decode replays a CUDA graph, traced as a whole (nsys's default)."""
    paper = Paper(1606, H100)
    host = paper.thread(name="python")
    for _ in range(4):
        with host.span("prefill"):
            layer = [(V_NORM, 22), (GEMM_H, 380), (V_ROPE, 18), (FA3, 210), (GEMM_H, 250), (V_NORM, 22), (GEMM_H, 1700)]
            ops(host, [*[*layer, (V_ACT, 60), (GEMM_H, 850)] * 32, (SMALL_H, 330)], 8)
            host.sync()
        for _ in range(64):
            with host.span("decode"):
                host.works(60)
                host.copy("HtoD", 2048, 2, pinned=True)
                host.graph(decode_nodes(), whole=True)
                host.kernel(ARGMAX, 18)
                host.copy("DtoH", 8, 0.01)
                host.sync()
    return [paper.write(folder / "decode_whole.sqlite")]


@program
def graphs_by_node(folder: Path) -> list[Path]:
    """The same decode, nodes traced: products of one row that read 16 GB of weights for each token."""
    paper = Paper(1607, H100)
    host = paper.thread(name="python")
    for _ in range(60):
        with host.span("decode"):
            host.works(60)
            host.copy("HtoD", 2048, 2, pinned=True)
            host.graph(decode_nodes())
            host.kernel(ARGMAX, 18)
            host.copy("DtoH", 8, 0.01)
            host.sync()
    return [paper.write(folder / "decode_nodes.sqlite")]


@program
def vllm_bench(folder: Path) -> list[Path]:
    """vLLM's benchmark with --profile, 8B on an H100, 64 sequences, graphs by node, no NVTX; the host takes 1.6 ms between."""
    paper = Paper(1608, H100)
    host = paper.thread(name="VLLM::EngineCore")
    for step in range(70):
        host.works(1100)
        for size in (512, 512, 4096):
            host.copy("HtoD", size, 1, pinned=True)
        host.graph(decode_nodes(4.0), launch=60)
        ops(host, [(SMALL_H, 330), (CAST, 30), (SOFTMAX_BIG, 60), (ARGMAX, 45)], 25)
        host.copy("DtoH", 512, 0.2, pinned=True)
        host.sync("cudaEventSynchronize")
        host.works(400)
        if step % 20 == 7:
            ops(host, [(V_NORM, 22), (GEMM_H, 300), (FA3, 150), (GEMM_H, 200), (GEMM_H, 1300), (GEMM_H, 650)] * 32, 9)
    return [paper.write(folder / "vllm.sqlite")]


@program
def fsdp_rank(folder: Path) -> list[Path]:
    """Rank 0 of an FSDP job over Ethernet: each layer is gathered before it is used, little runs beside."""
    paper = Paper(1609, A100)
    host = paper.thread(name="python")
    for _ in range(5):
        with host.span("train_step"):
            for way, scale in (("forward", 1.0), ("backward", 2.0)):
                with host.span(way):
                    for _ in range(32):
                        host.works(90)
                        gathered = host.kernel(GATHER, 4200, stream=20, grid=24, after=host.done() - 600)
                        host.paper.free[host._key(None, 0)] = max(host.done(), gathered)
                        ops(host, [(n, t * 6 * scale) for n, t in GPT2_FORWARD if "gemm" in n or "flash" in n], 8)
                        ops(host, [(LN, 80 * scale), (ADD, 60 * scale)], 8)
                        if way == "backward":
                            host.kernel(SCATTER, 4600, stream=21, grid=24, after=host.done())
                            host.paper.free[host._key(20, 0)] = host.done(21)
            with host.span("optimizer"):
                host.paper.free[host._key(None, 0)] = max(host.done(), host.done(21))
                ops(host, [(ADAM_FUSED, 1800)] * 3, 60)
            item(host)
    return [paper.write(folder / "fsdp_rank0.sqlite")]


@program
def ddp_late_rank(folder: Path) -> list[Path]:
    """DDP on two GPUs, a file for each rank; rank 1 reads its batches slowly, rank 0 waits in the all-reduce."""
    papers = [Paper(1610 + rank, A100) for rank in range(2)]
    hosts = [paper.thread(pid=5000 + rank, name="python") for rank, paper in enumerate(papers)]
    for _ in range(12):
        ready = []
        for rank, host in enumerate(hosts):
            start = host.now
            with host.span("load_batch"):
                host.works(1_500 if rank == 0 else 46_000)
            with host.span("forward"):
                ops(host, GPT2_FORWARD * 12, 6)
            with host.span("backward"):
                ops(host, GPT2_BACKWARD * 12, 5)
            ready.append(host.done())
            assert start < host.now
        end = max(ready) + 2_800
        for host, own in zip(hosts, ready, strict=True):
            host.kernel(ALLREDUCE, end - own, stream=20, grid=24, after=own, spread=0.0)
            host.paper.free[host._key(None, 0)] = max(host.done(), end)
            with host.span("optimizer"):
                ops(host, [(ADAM_FUSED, 900)] * 2, 40)
            item(host)
    return [paper.write(folder / f"rank{rank}.sqlite") for rank, paper in enumerate(papers)]


@program
def items_everywhere(folder: Path) -> list[Path]:
    """A loop that logs: loss.item(), accuracy.item() and the norm of each gradient, one by one, in each step."""
    paper = Paper(1612, RTX4090)
    host = paper.thread(name="python")
    for _ in range(20):
        with host.span("train_step"):
            with host.span("forward"):
                ops(host, smaller(GPT2_FORWARD * 12, 5), 6)
            item(host)
            with host.span("backward"):
                ops(host, smaller(GPT2_BACKWARD * 12, 5), 5)
            with host.span("log_grad_norms"):
                for _ in range(148):
                    host.works(12)
                    host.kernel(NORM2, 4)
                    item(host)
            with host.span("optimizer"):
                ops(host, [(ADAM_FUSED, 350)] * 2, 40)
    return [paper.write(folder / "logging.sqlite")]


@program
def pageable_images(folder: Path) -> list[Path]:
    """Fine-tuning a vision-language model: `.to(device)` of 400 MB of pageable pixels in each step."""
    paper = Paper(1613, A100)
    host = paper.thread(name="python")
    for _ in range(10):
        with host.span("step"):
            with host.span("to_device"):
                host.copy("HtoD", 403_000_000, 5.2)
                host.copy("HtoD", 262_144, 3)
            with host.span("forward"):
                ops(host, GPT2_FORWARD * 16, 6)
            with host.span("backward"):
                ops(host, GPT2_BACKWARD * 16, 5)
            with host.span("optimizer"):
                ops(host, [(ADAM_FUSED, 900)] * 3, 40)
            item(host)
    return [paper.write(folder / "vlm.sqlite")]


@program
def emptied_cache(folder: Path) -> list[Path]:
    """torch.cuda.empty_cache() in each step: cudaFree and cudaMalloc again and again."""
    paper = Paper(1614, RTX3090)
    host = paper.thread(name="python")
    for _ in range(15):
        with host.span("train_step"):
            for half in (GPT2_FORWARD, GPT2_BACKWARD):
                for layer in range(12):
                    if layer % 2 == 0:
                        for _ in range(3):
                            host.api("cudaMalloc", 480)
                    ops(host, smaller(half, 1.5), 6)
            ops(host, [(ADAM_FUSED, 800)] * 2, 40)
            item(host)
            for _ in range(36):
                host.api("cudaFree", 620)
    return [paper.write(folder / "cache.sqlite")]


@program
def float32_training(folder: Path) -> list[Path]:
    """Training in float32 on an A100 without TF32, as PyTorch's default is; no NVTX."""
    paper = Paper(1615, A100)
    host = paper.thread(name="python")
    names = {GEMM_A: SGEMM, GEMM_B: SGEMM_N, GEMM_C: SGEMM_T}
    for _ in range(6):
        for half in (GPT2_FORWARD, GPT2_BACKWARD):
            ops(host, [(names.get(n, n), t * (12 if n in names else 2)) for n, t in half] * 12, 6)
        ops(host, [(ADAM_EACH, 500)] * 8, 40)
        item(host)
    return [paper.write(folder / "fp32.sqlite")]


@program
def eager_attention(folder: Path) -> list[Path]:
    """attn_implementation="eager" with 4,096 tokens: scores, mask, softmax, dropout as kernels of their own."""
    paper = Paper(1616, H100)
    host = paper.thread(name="python")
    scores = [(GEMM_H, 420), (LAMBDA, 560), (ADD, 800), (SOFTMAX_BIG, 900), (CAST, 620), (DROPOUT, 700), (GEMM_HN, 410)]
    back = [
        (GEMM_H, 420),
        (GEMM_HT, 420),
        (MUL, 800),
        (SOFTMAX_BACK, 1250),
        (LAMBDA, 560),
        (GEMM_HN, 410),
        (GEMM_HT, 410),
    ]
    for _ in range(5):
        with host.span("forward"):
            ops(
                host,
                [
                    *[
                        (LN, 60),
                        (GEMM_H, 330),
                        *scores,
                        (GEMM_H, 110),
                        (ADD, 50),
                        (GEMM_H, 880),
                        (SILU, 90),
                        (GEMM_H, 440),
                    ]
                    * 24
                ],
                8,
            )
        with host.span("backward"):
            ops(
                host,
                [
                    *[
                        (GEMM_HN, 440),
                        (GEMM_HT, 440),
                        (MUL, 140),
                        (GEMM_HN, 880),
                        (GEMM_HT, 880),
                        *back,
                        (GEMM_HN, 330),
                        (GEMM_HT, 330),
                        (LN_BACK, 110),
                    ]
                    * 24
                ],
                6,
            )
        with host.span("optimizer"):
            ops(host, [(ADAM_FUSED, 2500)] * 3, 50)
        item(host)
    return [paper.write(folder / "attention.sqlite")]


@program
def looped_adam(folder: Path) -> list[Path]:
    """An optimiser of one's own: a loop over 290 parameters with seven small kernels for each, longer than the backward."""
    paper = Paper(1617, RTX3090)
    host = paper.thread(name="python")
    for _ in range(15):
        with host.span("forward"):
            ops(host, smaller(GPT2_FORWARD * 12, 2), 6)
        with host.span("backward"):
            ops(host, smaller(GPT2_BACKWARD * 12, 2), 5)
            host.sync("cudaDeviceSynchronize")
        with host.span("optimizer.step"):
            for _ in range(290):
                ops(host, [(LAMBDA, 5), (ADD_F, 6), (LAMBDA, 5), (ADDCMUL, 7), (SQRT, 5), (ADD_F, 5), (ADDCMUL, 7)], 11)
        host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "adam.sqlite")]


@program
def compiled_three_steps(folder: Path) -> list[Path]:
    """Three iterations under nsys, the first of which compiles for 38 s; the other two take 60 ms each."""
    paper = Paper(1618, H100)
    host = paper.thread(name="python")
    triton = "triton_poi_fused__to_copy_add_mul_7"
    for step in range(3):
        with host.span(f"iteration {step}"):
            if step == 0:
                for _ in range(60):
                    host.works(620_000)
                    host.api("cuModuleLoadData", 900)
                    host.kernel(triton, 40, call="cuLaunchKernel")
            work = [
                (triton, 40),
                (GEMM_H, 300),
                (FA3, 160),
                (GEMM_H, 110),
                ("triton_red_fused_native_layer_norm_3", 40),
            ]
            ops(host, [*work, (GEMM_H, 700), ("triton_poi_fused_gelu_9", 60), (GEMM_H, 350)] * 36, 4)
            host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "three.sqlite")]


@program
def tuned_step(folder: Path) -> list[Path]:
    """cudaProfilerStart around six steps of compiled, tuned pretraining on an H100: the GPU works all the time."""
    paper = Paper(1619, H100)
    host = paper.thread(name="python")
    red, poi = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_4", "triton_poi_fused_mul_silu_5"
    for _ in range(6):
        with host.span("step"):
            ops(
                host,
                [
                    (red, 55),
                    (GEMM_H, 620),
                    (FA3, 480),
                    (GEMM_H, 400),
                    (red, 55),
                    (GEMM_H, 2100),
                    (poi, 110),
                    (GEMM_H, 1050),
                ]
                * 32,
                4,
            )
            ops(host, [(GEMM_H, 2600), ("triton_red_fused__log_softmax_9", 700), (GEMM_HN, 2600), (GEMM_HT, 2600)], 4)
            back = [(GEMM_HN, 1050), (GEMM_HT, 1050), (poi, 200), (GEMM_HN, 2100), (GEMM_HT, 2100), (red, 110)]
            ops(
                host,
                [*back, (GEMM_HN, 400), (GEMM_HT, 400), (FLASH_BACK, 1150), (GEMM_HN, 620), (GEMM_HT, 620), (red, 110)]
                * 32,
                3,
            )
            ops(host, [(NORM2, 300), (ADAM_FUSED, 3300), (ADAM_FUSED, 3300)], 40)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "tuned.sqlite")]


@program
def llama_cpp(folder: Path) -> list[Path]:
    """llama-bench -n 128 of a 7B model in Q4_K on a 4090: a graph for each token, products with one row of 4-bit weights."""
    paper = Paper(1620, RTX4090)
    host = paper.thread(name="llama-bench")
    norm = "void rms_norm_f32<(int)1024, (bool)1>(const float *, float *, int, long, long, long, float, const float *)"
    quant = "void quantize_q8_1(const float *, void *, long, long, long, long, long, int, int)"
    attention = (
        "void flash_attn_vec_ext_f16<(int)128, (int)1, (int)8, (ggml_type)1, (ggml_type)1, (bool)0>(const char *)"
    )
    rope = (
        "void rope_norm<(bool)1, (bool)0, float>(const float *, float *, int, int, int, int, int, const int *, float)"
    )
    layer = [(norm, 2.2), (quant, 1.7), (MMVQ, 11), (MMVQ, 11), (MMVQ6, 13), (rope, 1.6), (rope, 1.6), (attention, 8)]
    layer += [(quant, 1.7), (MMVQ, 11), (norm, 2.2), (quant, 1.7), (MMVQ, 28), (MMVQ, 28), (quant, 1.7), (MMVQ6, 38)]
    for _ in range(128):
        host.works(90)
        host.copy("HtoD", 16_384, 3)
        host.graph([*layer * 32, (norm, 2.2), (quant, 1.7), (MMVQ6, 115)], launch=180, gap=0.4)
        host.copy("DtoH", 128_000, 10)
        host.sync()
    return [paper.write(folder / "llama.sqlite")]


@program
def pipeline_on_host(folder: Path) -> list[Path]:
    """Whisper through a Hugging Face pipeline: features on the CPU for 700 ms of each clip, then 240 ms of GPU work."""
    paper = Paper(1621, T4)
    host = paper.thread(name="python3")
    for _ in range(8):
        for _ in range(14):
            host.works(49_000)
            host.os("read", 900)
        host.copy("HtoD", 960_000, 4)
        ops(
            host,
            [(GEMM_T4, 420), (GEMM_T4, 160), (SOFTMAX, 210), (GEMM_T4, 160), (GELU, 150), (LN, 60), (ADD, 60)] * 32,
            8,
        )
        for _ in range(60):
            ops(host, [(GEMM_T4, 22), (GEMM_T4, 14), (SOFTMAX, 5), (LN, 4), (ADD, 3)] * 16, 10)
            item(host)
    return [paper.write(folder / "whisper.sqlite")]


@program
def vllm_eager(folder: Path) -> list[Path]:
    """vLLM with enforce_eager on an H100, eight sequences, ranges around execute_model: 350 small launches for each step."""
    paper = Paper(1622, H100)
    host = paper.thread(name="VLLM::EngineCore")
    layer = [(V_NORM, 2.6), (SMALL_H, 12), (V_ROPE, 2.4), (V_CACHE, 2.2), (SPLIT, 8), (SMALL_H, 8), (V_NORM, 2.6)]
    for _ in range(60):
        host.works(500)
        with host.span("execute_model"):
            host.copy("HtoD", 1024, 1, pinned=True)
            ops(host, [*[*layer, (SMALL_H, 26), (V_ACT, 3), (SMALL_H, 15)] * 32, (SMALL_H, 200), (ARGMAX, 20)], 15)
        host.copy("DtoH", 64, 0.05, pinned=True)
        host.sync()
    return [paper.write(folder / "eager.sqlite")]


@program
def ddp_in_one_file(folder: Path) -> list[Path]:
    """torchrun on two GPUs under one nsys: two processes in a file, gradients reduced beside the backward."""
    paper = Paper(1623, A100, A100)
    hosts = [paper.thread(pid=6000 + rank, name="python") for rank in range(2)]
    for rank, host in enumerate(hosts):
        host.device = rank
    for _ in range(8):
        for host in hosts:
            with host.span("forward"):
                ops(host, GPT2_FORWARD * 12, 6)
            with host.span("backward"):
                for _ in range(12):
                    ops(host, GPT2_BACKWARD, 5)
                    host.kernel(ALLREDUCE, 900, stream=20, grid=24, after=host.done(), spread=0.0)
            host.paper.free[host._key(None, host.device)] = max(host.done(), host.done(20))
            with host.span("optimizer"):
                ops(host, [(ADAM_FUSED, 900)] * 2, 40)
            item(host)
        together = max(host.now for host in hosts)
        for host in hosts:
            host.now = together
    return [paper.write(folder / "torchrun.sqlite")]


@program
def llama3_vocabulary(folder: Path) -> list[Path]:
    """Fine-tuning Llama-3-8B with LoRA, no NVTX: logits of 128,256 words are turned to float32 and back."""
    paper = Paper(1624, H100)
    host = paper.thread(name="python")
    layer = [
        (LN, 30),
        (GEMM_H, 230),
        (FA3, 130),
        (GEMM_H, 150),
        (LN, 30),
        (GEMM_H, 1000),
        (SILU, 80),
        (MUL, 90),
        (GEMM_H, 500),
    ]
    for _ in range(6):
        ops(host, [(EMB, 20), *layer * 32, (GEMM_H, 4200)], 8)
        ops(
            host,
            [
                (CAST, 3900),
                (COPY, 5600),
                (LOGSM, 8200),
                (NLL, 40),
                (LOGSM_BACK, 9800),
                (COPY, 5600),
                (CAST, 3900),
                (GEMM_HN, 4200),
            ],
            9,
        )
        ops(host, [(n, t) for n, t in layer * 32], 6)
        ops(host, [(FLASH_BACK, 330)] * 32, 6)
        ops(host, [(ADAM_FUSED, 90)], 40)
        item(host)
    return [paper.write(folder / "lora.sqlite")]


# -- a second round -----------------------------------------------------------------------------------

KGEMM = "void kgemm_4bit_inference_naive<__half, (int)128, (int)16>(int, int, int, T1 *, unsigned char *, float *, const float *, T1 *, int, int, int, int)"
ONE_SHOT = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *, vllm::RankSignals, vllm::Signal *, T1 *, int, int)"
FP8 = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
XQA = "kernel_mha(const tensorrt_llm::kernels::KernelParams)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
ROPE_U = "_rope_embedding"
NORM_U = "_rms_layernorm_forward"
SWIGLU_U = "_fg_kernel"
LOSS_U = "_chunked_cross_entropy_forward"


@program
def four_bits_3090(folder: Path) -> list[Path]:
    """generate() of a 7B model in four bits (bitsandbytes) on a 3090, no NVTX: eager, 1,100 launches for each token."""
    paper = Paper(1701, RTX3090)
    host = paper.thread(name="python")
    layer = [
        (KGEMM if n is GEMV_A else n, 17 if n is GEMV_A and t < 50 else 44 if n is GEMV_A else t)
        for n, t in LLAMA_TOKEN
    ]
    for _ in range(40):
        host.works(700)
        ops(host, [(EMB, 3), *layer * 32, (GEMV_A, 290), (CAST, 3), (ARGMAX, 14)], 19)
        item(host)
    return [paper.write(folder / "bnb.sqlite")]


@program
def last_pipeline_stage(folder: Path) -> list[Path]:
    """Megatron-like ranges on the last rank of four pipeline stages: it waits for the first microbatches, and at the end."""
    paper = Paper(1702, H100)
    host = paper.thread(name="python")
    for step in range(5):
        with host.span(f"iteration {step + 10}"):
            with host.span("forward-backward-func"):
                for micro in range(8):
                    host.kernel(SENDRECV, 46_000 if micro == 0 else 1_500, stream=22, grid=2)
                    host.paper.free[host._key(None, 0)] = max(host.done(), host.done(22))
                    ops(host, [(GEMM_H, 600), (FA3, 300), (GEMM_H, 2100), (GEMM_H, 1000)] * 6, 8)
                    ops(host, [(GEMM_HN, 2000), (GEMM_HT, 2000), (FLASH_BACK, 800), (GEMM_HN, 1200)] * 6, 8)
                    host.kernel(SENDRECV, 900, stream=23, grid=2, after=host.done())
                host.kernel(SENDRECV, 44_000, stream=22, grid=2, after=host.done())
                host.paper.free[host._key(None, 0)] = max(host.done(), host.done(22))
            with host.span("optimizer"):
                ops(host, [(ADAM_FUSED, 2200)] * 3, 60)
            item(host)
    return [paper.write(folder / "stage3.sqlite")]


@program
def sentences_t4(folder: Path) -> list[Path]:
    """Sentence embeddings on a T4: tokenising between the batches takes as long as the batches; ranges by the user."""
    paper = Paper(1703, T4)
    host = paper.thread(name="python3")
    layer = [
        (GEMM_T4, 210),
        (SOFTMAX, 60),
        (GEMM_T4, 90),
        (ADD, 30),
        (LN, 25),
        (GEMM_T4, 260),
        (GELU, 60),
        (GEMM_T4, 250),
    ]
    for _ in range(40):
        with host.span("tokenize"):
            host.works(13_500)
        with host.span("forward"):
            for _ in range(3):
                host.copy("HtoD", 32_768, 3)
            ops(host, [*layer * 12, (MEAN, 40)], 9)
            host.copy("DtoH", 98_304, 3)
    return [paper.write(folder / "sentences.sqlite")]


@program
def synchronised_for_timing(folder: Path) -> list[Path]:
    """torch.cuda.synchronize() around forward, backward and step to print their times, as tutorials do; a small model."""
    paper = Paper(1704, RTX4090)
    host = paper.thread(name="python")
    for _ in range(25):
        for name, work in (
            ("forward", smaller(GPT2_FORWARD * 12, 4)),
            ("backward", smaller(GPT2_BACKWARD * 12, 4)),
            ("optimizer", [(ADAM_FUSED, 320)] * 2),
        ):
            with host.span(name):
                ops(host, work, 6)
                host.sync("cudaDeviceSynchronize")
            host.works(60)
    return [paper.write(folder / "timed.sqlite")]


@program
def emitted_small(folder: Path) -> list[Path]:
    """emit_nvtx around a small fine-tuning: each operator costs the host 24 µs with its ranges, kernels take 10."""
    paper = Paper(1705, RTX3090)
    host = paper.thread(name="python")
    engine = paper.thread(tid=4801)
    number = 0
    for _ in range(12):
        with host.span("train_step"):
            with host.span("forward"):
                for name, time in GPT2_FORWARD * 12:
                    number += 1
                    with host.span(f"aten::op, seq = {number}, op_id = {number}"):
                        host.works(19)
                        host.kernel(name, max(time / 9, 2))
            engine.now = host.now + 20
            with host.span("backward"):
                for name, time in GPT2_BACKWARD * 12:
                    number += 1
                    with engine.span(f"autograd::engine::evaluate_function: MulBackward0, op_id = {number}"):
                        engine.works(19)
                        engine.kernel(name, max(time / 9, 2))
                host.now = engine.now + 20
            with host.span("Optimizer.step#AdamW.step"):
                ops(host, [(ADAM_FUSED, 300)] * 2, 60)
            item(host)
    return [paper.write(folder / "emit_small.sqlite")]


@program
def trtllm_fp8(folder: Path) -> list[Path]:
    """TensorRT-LLM's benchmark of a 8B model in fp8 on an H100, decode graphs traced whole, short gaps of the host."""
    paper = Paper(1706, H100)
    host = paper.thread(name="trtllm-bench")
    for step in range(120):
        host.works(220)
        host.copy("HtoD", 8192, 2, pinned=True)
        host.graph([*[(FP8, 11), (XQA, 9), (FP8, 8), (FP8, 42), (FP8, 22)] * 32, (FP8, 170)], whole=True, launch=40)
        host.kernel("void tensorrt_llm::kernels::topKStage1<float>(float const *, float *, int *)", 35)
        host.copy("DtoH", 4096, 1, pinned=True)
        host.sync("cudaEventSynchronize")
        if step % 30 == 0:
            ops(host, [(FP8, 260), (XQA, 160), (FP8, 180), (FP8, 900), (FP8, 460)] * 32, 6)
    return [paper.write(folder / "trtllm.sqlite")]


@program
def unsloth_3090(folder: Path) -> list[Path]:
    """Unsloth's LoRA of a 4-bit model on a 3090, Triton kernels of its own, no NVTX: the GPU works 97 %."""
    paper = Paper(1707, RTX3090)
    host = paper.thread(name="python3")
    dequant = "void kDequantizeBlockwise<__half, (int)512, (int)64, (int)8, (int)2>(float *, unsigned char *, float *, T1 *, int, int)"
    layer = [(NORM_U, 90), (dequant, 130), (GEMM_A, 900), (ROPE_U, 60), (FLASH, 420), (dequant, 90), (GEMM_A, 620)]
    layer += [(NORM_U, 90), (dequant, 360), (GEMM_A, 2400), (SWIGLU_U, 190), (dequant, 180), (GEMM_A, 1250)]
    for _ in range(4):
        ops(host, [(EMB, 20), *layer * 32, (GEMM_A, 3300), (LOSS_U, 1100)], 9)
        ops(host, [*[(n, t * 1.1) for n, t in layer] * 32, *[(FLASH_BACK, 1100)] * 32], 9)
        ops(host, [(ADAM_EACH, 60)] * 6, 50)
        item(host)
    return [paper.write(folder / "unsloth.sqlite")]


@program
def logits_to_host(folder: Path) -> list[Path]:
    """Perplexity of a test set: `logits.float().cpu()` of each batch, 823 MB to pageable memory, then numpy on the host."""
    paper = Paper(1708, A100)
    host = paper.thread(name="python")
    for _ in range(12):
        with host.span("batch"):
            ops(host, [*GPT2_FORWARD * 12, (GEMM_A, 500), (CAST, 600)], 7)
            host.copy("DtoH", 823_000_000, 3.1)
            host.works(60_000)
    return [paper.write(folder / "perplexity.sqlite")]


@program
def rollout_and_train(folder: Path) -> list[Path]:
    """TRL: `generate` of 40 tokens without graphs, then `train_step`, in turns; generation is four fifths of the time."""
    paper = Paper(1709, H100)
    host = paper.thread(name="python")
    token = [
        (n.replace("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", SMALL_H), max(t / 2.5, 1.6))
        for n, t in LLAMA_TOKEN
    ]
    for _ in range(3):
        with host.span("generate"):
            for _ in range(40):
                ops(host, [*token * 24, (SMALL_H, 60), (ARGMAX, 12)], 13)
                item(host)
        with host.span("train_step"):
            layer = [(GEMM_H, 600), (FA3, 250), (GEMM_H, 1300), (SILU, 120), (ADD, 60), (GEMM_H, 650)]
            ops(host, layer * 24 + [(n, 2 * t) for n, t in layer] * 24, 8)
            ops(host, [(ADAM_FUSED, 2500)] * 2, 40)
            item(host)
    return [paper.write(folder / "grpo.sqlite")]


@program
def vllm_two_gpus(folder: Path) -> list[Path]:
    """vLLM with tensor parallelism on two A100: a process for each GPU, graphs by node, all-reduces of its own inside."""
    paper = Paper(1710, A100, A100)
    workers = [paper.thread(pid=7000 + rank, name=f"VLLM::Worker_TP{rank}") for rank in range(2)]
    layer = [(V_NORM, 3.4), (GEMV_A, 29), (V_ROPE, 2.9), (V_CACHE, 2.6), (SPLIT, 19), (GEMV_A, 21), (ONE_SHOT, 11)]
    layer += [(V_NORM, 3.4), (GEMV_A, 105), (V_ACT, 3.9), (GEMV_A, 54), (ONE_SHOT, 11)]
    for rank, worker in enumerate(workers):
        worker.device = rank
    for _ in range(40):
        for worker in workers:
            worker.works(420)
            worker.copy("HtoD", 4096, 1, pinned=True)
            worker.graph(layer * 40, launch=90)
            ops(worker, [(GEMV_A, 310), (ARGMAX, 30)], 20)
            worker.copy("DtoH", 512, 0.2, pinned=True)
            worker.sync("cudaEventSynchronize")
        together = max(worker.now for worker in workers)
        for worker in workers:
            worker.now = together
    return [paper.write(folder / "vllm_tp2.sqlite")]
