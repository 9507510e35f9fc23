"""More of what people record with nsys, on the paper machine of `paper_nsys.py`.

Trees and graphs, molecular dynamics, compilers of engines, threads that hold one another up, programs that write
checkpoints, two recordings of one job. `unseen/paper_two.toml` has what an expert says about each.
"""

from __future__ import annotations

from pathlib import Path

from paper_nsys import Paper, Programs
from paper_programs import (
    A100,
    ACT_VLLM,
    FLASH,
    FLASH_BWD,
    H100,
    NORM_VLLM,
    NVJET,
    NVJET_SMALL,
    RTX4090,
    T4,
    TRT_CONV,
    TRT_POINT,
    V100,
    collective,
    ranks_of,
)

ATEN = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>>(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
GEMM_A100 = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
ALIGN1 = "void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_256x128_tn_align1>(cutlass_75_tensorop_f16_s1688gemm_f16_256x128_tn_align1::Params)"
CONV_V100 = "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1"
TO_NHWC = "void nchwToNhwcKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)2>(int, int, int, int, __half const*, __half*, float, float)"
TO_NCHW = "void nhwcToNchwKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)2>(int, int, int, int, __half const*, __half*, float, float)"
RADIX = "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<unsigned int, cub::NullType, int>::Policy900, false, unsigned int, cub::NullType, int, int>(int*, int*, int*, unsigned int*, unsigned int const*, cub::NullType*, cub::NullType const*, int, int, int)"
FFT = "void vector_fft<512u, EPT<8u>, 8u, (padding_t)1, (twiddle_t)0, (loadstore_modifier_t)2, unsigned int, float>(kernel_arguments_t<unsigned int>)"

PROGRAMS = Programs()
program, simulate = PROGRAMS.add, PROGRAMS.simulate


@program
def boosted_trees(folder: Path) -> list[Path]:
    """For each level of a tree a few kernels, then 4 KB to the host, which decides on splits."""
    paper = Paper(51, A100)
    host = paper.thread(name="xgboost")
    for _ in range(500):
        for name, time in (
            ("void xgboost::tree::SharedMemHistKernel<xgboost::detail::GradientPairInternal<float>, true>(int)", 90),
            ("void xgboost::tree::EvaluateSplitsKernel<128>(xgboost::tree::EvaluateSplitSharedInputs)", 25),
            ("void dh::LaunchNKernel<>(unsigned long, int)", 6),
        ):
            host.kernel(name, time)
        host.copy("DtoH", 4096, 2)
        host.works(170)
    return [paper.write(folder / "xgboost.sqlite")]


@program
def loader_behind_poll(folder: Path) -> list[Path]:
    """Training; the main thread is in poll() for 60 of 105 ms of each step: workers have no batch ready."""
    paper = Paper(52, A100)
    host = paper.thread(name="python3.11")
    for _ in range(16):
        host.os("poll", 60_000)
        host.works(700)
        host.copy("HtoD", 38e6, 20, pinned=True)
        for _ in range(36):
            for name, time in ((GEMM_A100, 700), (ATEN, 60), (FLASH_BWD, 350)):
                host.kernel(name, time)
        host.copy("DtoH", 4, 0.5)
    return [paper.write(folder / "train.sqlite")]


@program
def images_well_fed(folder: Path) -> list[Path]:
    """Decoding of images and inference on two streams, both always busy enough."""
    paper = Paper(53, A100)
    host = paper.thread(name="dali_trt")
    ready = 0.0
    for _ in range(60):
        done = 0.0
        for name, time in (
            ("void nvjpeg::idct_kernel<short>(int)", 700),
            ("void dali::kernels::resampling::BatchedSeparableResample<float, unsigned char>(int)", 500),
        ):
            done = host.kernel(name, time, stream=20, grid=3000)
        for _ in range(30):
            host.kernel(TRT_CONV, 210, stream=21, after=ready, grid=432)
        ready = done
        host.waits_until(host.done(21) - 9000)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "dali.sqlite")]


@program
def molecular_dynamics(folder: Path) -> list[Path]:
    """Forces on the GPU, the long-range part on the CPU: 420 of 700 µs of each step the GPU waits for that."""
    paper = Paper(54, RTX4090)
    host = paper.thread(name="gmx")
    for _ in range(900):
        host.copy("HtoD", 300_000, 12, pinned=True)
        host.kernel(
            "void gmx::nbnxn_kernel_ElecEw_VdwLJCombGeom_F_cuda(NBAtomDataGpu, NBParamGpu, gmx::GpuPairlist, bool)",
            240,
            grid=6000,
        )
        host.copy("DtoH", 300_000, 12, pinned=True)
        host.sync("cudaStreamSynchronize")
        host.works(410)
    return [paper.write(folder / "md.sqlite")]


@program
def two_recordings_one_late(folder: Path) -> list[Path]:
    """Two ranks, a file each, clocks 3 s apart; rank 0 comes 8 ms late to each all-reduce of a step of 24 ms."""
    paper = Paper(55, H100)
    hosts = [paper.thread(9000 + rank, name="python3") for rank in range(2)]
    hosts[1].device = 1
    for _ in range(24):
        hosts[0].works(8600)
        hosts[1].works(600)
        for host in hosts:
            for _ in range(14):
                host.kernel(NVJET, 620)
                host.kernel(FLASH_BWD, 330)
        collective(hosts, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1800)
        for host in hosts:
            host.kernel(ATEN, 300)
            host.sync("cudaStreamSynchronize")
    paths = []
    for rank, host in enumerate(hosts):
        own = Paper(56, H100)
        own.names, own.processes = paper.names, {host.pid: "python3"}
        for table, rows in paper.rows.items():
            mine = [
                dict(row) for row in rows if row.get("globalPid", row.get("globalTid", 0) & ~0xFFFFFF) == host.process
            ]
            for row in mine:
                row["start"] += rank * 3_000_000_000
                row["end"] += rank * 3_000_000_000
                row |= {"deviceId": 0} if "deviceId" in row else {}
            own.rows[table] = mine
        paths.append(own.write(folder / f"rank{rank}.sqlite"))
    return paths


@program
def two_processes_at_once(folder: Path) -> list[Path]:
    """Two launch-bound processes on one GPU (MPS): their kernels run side by side, neither waits for the other."""
    paper = Paper(57, H100)
    hosts = [paper.thread(9100 + n, name="python3") for n in range(2)]
    for _ in range(1500):
        for n, host in enumerate(hosts):
            host.works(9)
            host.kernel((NORM_VLLM, NVJET_SMALL, ACT_VLLM)[(_ + n) % 3], 7.5, launch=6)
    return [paper.write(folder / "mps.sqlite")]


@program
def checkpoint_in_between(folder: Path) -> list[Path]:
    """A checkpoint of 40 GB is written after 60 steps: 4.5 of 8.7 s in write()."""
    paper = Paper(58, H100)
    host = paper.thread(name="python3")
    for part in (60, 60):
        for _ in range(part):
            for _ in range(12):
                host.kernel(NVJET, 1900)
                host.kernel(FLASH_BWD, 900)
            host.kernel(ATEN, 400)
            host.copy("DtoH", 4, 0.5)
            host.works(150)
        if part == 60 and host.now < 5e6:
            for _ in range(450):
                host.os("write", 10_000)
    return [paper.write(folder / "train.sqlite")]


@program
def pins_in_the_loop(folder: Path) -> list[Path]:
    paper = Paper(59, A100)
    host = paper.thread(name="loader")
    for _ in range(90):
        host.api("cudaHostAlloc", 5200)
        host.copy("HtoD", 33e6, 24, pinned=True)
        host.kernel("void preprocess<unsigned char, float>(unsigned char const*, float*, int)", 900, grid=2000)
        host.sync()
        host.api("cudaFreeHost", 2600)
    return [paper.write(folder / "loader.sqlite")]


@program
def layouts_back_and_forth(folder: Path) -> list[Path]:
    paper = Paper(60, V100)
    host = paper.thread(name="darknet")
    for _ in range(40):
        for _ in range(50):
            for name, time in ((TO_NHWC, 85), (CONV_V100, 190), (TO_NCHW, 90)):
                host.kernel(name, time, grid=800)
        host.sync()
    return [paper.write(folder / "darknet.sqlite")]


@program
def tensor_parallel_graphs(folder: Path) -> list[Path]:
    """vLLM on two GPUs: graphs with small all-reduces of its own, a ninth of the time."""
    paper = Paper(61, H100, H100)
    hosts = ranks_of(paper)
    reduce = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)"
    layer = [
        (NVJET_SMALL, 30.0),
        (FLASH, 40.0),
        (NVJET_SMALL, 24.0),
        (reduce, 11.0),
        (NORM_VLLM, 4.0),
        (NVJET_SMALL, 52.0),
        (ACT_VLLM, 4.0),
        (NVJET_SMALL, 30.0),
        (reduce, 11.0),
        (NORM_VLLM, 4.0),
    ]
    for _ in range(20):
        for host in hosts:
            host.works(350)
            host.graph(layer * 32, launch=50, gap=0.7)
            host.copy("DtoH", 256, 1, pinned=True)
            host.sync("cudaEventSynchronize")
        both = max(host.now for host in hosts)
        for host in hosts:
            host.waits_until(both)
    return [paper.write(folder / "vllm.sqlite")]


@program
def builds_an_engine(folder: Path) -> list[Path]:
    """TensorRT times thousands of tactics; between them its builder compiles."""
    paper = Paper(62, T4)
    host = paper.thread(name="trtexec")
    for layer in range(60):
        host.works(95_000)
        host.api("cuModuleLoadDataEx", 24_000)
        for _ in range(40):
            host.kernel(TRT_CONV if layer % 2 else TRT_POINT, 300, grid=80)
            host.sync("cudaEventSynchronize")
            host.works(20)
    return [paper.write(folder / "build.sqlite")]


@program
def vocabulary_of_50257(folder: Path) -> list[Path]:
    paper = Paper(63, A100)
    host = paper.thread(name="python3")
    for _ in range(30):
        host.works(300)
        for _ in range(12):
            for name, time in ((GEMM_A100, 300), (ATEN, 40), (FLASH_BWD, 160), (GEMM_A100, 420)):
                host.kernel(name, time)
        for _ in range(3):
            host.kernel(ALIGN1, 5200, grid=(200, 64, 1))
        host.copy("DtoH", 4, 0.5)
    return [paper.write(folder / "gpt2.sqlite")]


@program
def sorts_with_scratch(folder: Path) -> list[Path]:
    """thrust::sort in a loop: each call allocates scratch memory, waits, and frees it."""
    paper = Paper(64, A100)
    host = paper.thread(name="particles")
    for _ in range(700):
        host.api("cudaMalloc", 160)
        for _ in range(4):
            host.kernel(RADIX, 32, grid=600)
        host.sync("cudaStreamSynchronize")
        host.api("cudaFree", 190)
    return [paper.write(folder / "particles.sqlite")]


@program
def transforms_in_a_graph(folder: Path) -> list[Path]:
    paper = Paper(65, A100)
    host = paper.thread(name="imaging")
    for _ in range(120):
        host.graph(
            [
                (FFT, 210.0),
                ("void multiply_by_filter(float2*, float2 const*, int)", 80.0),
                (FFT, 215.0),
                ("void reconstruct<16>(float2 const*, float*, int)", 340.0),
            ]
            * 3,
            launch=20,
        )
        host.waits_until(host.done() - 3000)
    host.sync("cudaStreamSynchronize")
    return [paper.write(folder / "imaging.sqlite")]


@program
def cache_reordered(folder: Path) -> list[Path]:
    """Beam search copies the whole cache within the GPU for each token: 60 % of the time."""
    paper = Paper(66, A100)
    host = paper.thread(name="python3")
    for _ in range(50):
        for _ in range(24):
            host.kernel(GEMM_A100, 95)
            host.kernel(ATEN, 12)
            host.copy("DtoD", 140e6, 800)
        host.copy("DtoH", 64, 0.5)
        host.works(120)
    return [paper.write(folder / "beam.sqlite")]


@program
def asks_an_event(folder: Path) -> list[Path]:
    """The host asks an event over and over; the GPU is busy."""
    paper = Paper(67, RTX4090)
    host = paper.thread(name="miner")
    for _ in range(60):
        host.kernel("void ethash_search<8>(unsigned long, unsigned int*)", 9000, grid=8192)
        while host.now < host.done() - 40:
            host.api("cudaEventQuery", 1.1)
            host.works(6)
    host.sync("cudaStreamSynchronize")
    return [paper.write(folder / "miner.sqlite")]
