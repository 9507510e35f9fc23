"""A last set of what people record with nsys, on the paper machine of `paper_nsys.py`.

Offloaded loops, MPI, kernels from Python, links that are full, modules loaded again and again, memory that is prefetched.
`unseen/paper_three.toml` has what an expert says about each.
"""

from __future__ import annotations

from pathlib import Path

from paper_nsys import Paper, Programs
from paper_programs import A100, FLASH, H100, MMVQ, NVJET_SMALL, RTX3090, RTX4090, V100

PROGRAMS = Programs()
program, simulate = PROGRAMS.add, PROGRAMS.simulate


@program
def offloaded_loops(folder: Path) -> list[Path]:
    """OpenACC: each loop copies its arrays to the GPU and back."""
    paper = Paper(71, V100)
    host = paper.thread(name="cloverleaf")
    for _ in range(150):
        host.copy("HtoD", 32e6, 11, pinned=True, call="cuMemcpyHtoDAsync_v2")
        host.kernel("nvkernel__Z10ideal_gas_v_F1L27_4", 900, call="cuLaunchKernel", grid=4000)
        host.copy("DtoH", 16e6, 12, pinned=True, call="cuMemcpyDtoHAsync_v2")
        host.sync("cuStreamSynchronize")
        host.works(60)
    return [paper.write(folder / "clover.sqlite")]


@program
def halo_exchange(folder: Path) -> list[Path]:
    """Four ranks of MPI on four GPUs; edges go through the host, and MPI_Waitall takes 1.6 of 4 ms of each step."""
    paper = Paper(72, A100, A100, A100, A100)
    hosts = [paper.thread(8000 + rank, name="lulesh") for rank in range(4)]
    for rank, host in enumerate(hosts):
        host.device = rank
    for _ in range(80):
        for host in hosts:
            for _ in range(6):
                host.kernel("void CalcForces<double>(double const*, double*, int)", 350, grid=2000)
            host.copy("DtoH", 500_000, 12, pinned=True)
            host.sync("cudaStreamSynchronize")
            host.os("poll", 1600)
            host.copy("HtoD", 500_000, 12, pinned=True)
        both = max(host.now for host in hosts)
        for host in hosts:
            host.waits_until(both)
    return [paper.write(folder / "lulesh.sqlite")]


@program
def kernels_from_python(folder: Path) -> list[Path]:
    """Numba: 70 µs of Python for each launch of a kernel of 18 µs."""
    paper = Paper(73, RTX3090)
    host = paper.thread(name="python3")
    for step in range(2500):
        host.works(62)
        host.kernel(
            (
                "cudapy::__main__::advect[abi:v1][abi:c8tJTC](Array<float, 2, C, mutable, aligned>)",
                "cudapy::__main__::pressure[abi:v2](Array<float, 2, C, mutable, aligned>)",
            )[step % 2],
            18,
            call="cuLaunchKernel",
            launch=8,
        )
    return [paper.write(folder / "numba.sqlite")]


@program
def layers_over_four_gpus(folder: Path) -> list[Path]:
    """device_map="auto": each GPU has a quarter of the layers, and waits for the other three."""
    paper = Paper(74, A100, A100, A100, A100)
    host = paper.thread(name="python3")
    before = 0.0
    for _ in range(40):
        for gpu in range(4):
            host.device = gpu
            for _ in range(16):
                before = host.kernel(
                    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", 70, after=before
                )
                before = host.kernel(
                    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<c10::Half, c10::Half, c10::Half, at::native::binary_internal::MulFunctor<float>>>(at::TensorIteratorBase&)>(int)",
                    15,
                    after=before,
                )
            before = host.copy("PtoP", 300_000, 20, call="cudaMemcpyPeerAsync", to=(gpu + 1) % 4, after=before)
        host.device = 3
        host.sync("cudaStreamSynchronize")
        host.works(90)
    return [paper.write(folder / "auto.sqlite")]


@program
def full_link(folder: Path) -> list[Path]:
    """Pinned, double-buffered, beside the kernels: the link carries data for 98 % of the time, kernels need 40 %."""
    paper = Paper(75, A100)
    host = paper.thread(name="scan")
    for chunk in range(120):
        stream = 13 + chunk % 3
        host.copy("HtoD", 200e6, 24, pinned=True, stream=stream)
        host.kernel("void filter_rows<long>(long const*, bool*, long)", 3400, stream=stream, grid=8000)
        if chunk % 3 == 2:
            host.waits_until(paper.engine[(0, "HtoD")] - 9000)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "scan.sqlite")]


@program
def module_in_the_loop(folder: Path) -> list[Path]:
    """A kernel is compiled for each call anew (parameters in its source): 28 of 41 ms of each step, all the time."""
    paper = Paper(76, RTX4090)
    host = paper.thread(name="python3")
    for _ in range(60):
        host.works(1500)
        host.api("cuLinkAddData_v2", 18_000)
        host.api("cuModuleLoadDataEx", 10_000)
        for _ in range(12):
            host.kernel("evaluate_expression(float const*, float*, int)", 1000, call="cuLaunchKernel", grid=3000)
        host.sync("cuStreamSynchronize")
        host.api("cuModuleUnload", 300)
    return [paper.write(folder / "expr.sqlite")]


@program
def whole_graphs_and_a_slow_host(folder: Path) -> list[Path]:
    """Steps are graphs, recorded as blocks of 4 ms; between two the host works for 6 ms."""
    paper = Paper(77, H100)
    host = paper.thread(7201, name="python3")
    for _ in range(60):
        host.graph([(NVJET_SMALL, 60.0), (FLASH, 40.0)] * 39, whole=True, launch=30)
        host.copy("DtoH", 512, 1, pinned=True)
        host.sync("cudaEventSynchronize")
        host.works(6000)
    return [paper.write(folder / "engine.sqlite")]


@program
def prefetched_memory(folder: Path) -> list[Path]:
    """Managed memory, prefetched on a stream of its own while kernels of the chunk before run."""
    paper = Paper(78, A100)
    host = paper.thread(name="stream")
    at = 1e6
    for _ in range(60):
        host.api("cudaMemPrefetchAsync", 45)
        at = max(at, host.now)
        for _ in range(8):
            at = host.migrates("UVM_HTOD", at, 12e6, 21) + 5
            paper.rows["CUPTI_ACTIVITY_KIND_MEMCPY"][-1]["migrationCause"] = 3
        for _ in range(4):
            host.kernel("void transform<float>(float*, long)", 2000, grid=4000)
        host.waits_until(host.done() - 8200)
        at = max(at, host.done() - 8000)
    host.sync("cudaDeviceSynchronize")
    return [paper.write(folder / "stream.sqlite")]


@program
def many_small_moves(folder: Path) -> list[Path]:
    """Rows are moved one by one within the GPU: 60,000 copies of 2 µs."""
    paper = Paper(79, A100)
    host = paper.thread(name="index")
    for _ in range(150):
        for _ in range(200):
            host.copy("DtoD", 4096, 3)
        host.kernel("void build_index(int const*, int*, int)", 80)
        host.sync()
    return [paper.write(folder / "index.sqlite")]


@program
def speculative_llama(folder: Path) -> list[Path]:
    """llama.cpp with a draft model: short graphs of the draft, one of the model, the host in between."""
    paper = Paper(80, RTX4090)
    host = paper.thread(name="llama-server")
    for _ in range(50):
        for _ in range(4):
            host.graph(
                [(MMVQ, 14.0), ("void rms_norm_f32<256, true, false>(float const*, float*, int)", 2.0)] * 48, launch=35
            )
            host.copy("DtoH", 500_000, 11)
            host.works(160)
        host.graph(
            [(MMVQ, 62.0), ("void rms_norm_f32<256, true, false>(float const*, float*, int)", 2.0)] * 100, launch=45
        )
        host.copy("DtoH", 2_500_000, 11)
        host.works(420)
    return [paper.write(folder / "server.sqlite")]


@program
def slow_start_then_fine(folder: Path) -> list[Path]:
    """12 s of imports and loading without a call, then 3 s of work that is fine; CUDA's first call was early."""
    paper = Paper(81, H100)
    host = paper.thread(name="python3")
    host.api("cuInit", 9000)
    host.kernel(
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        3,
    )
    host.works(12_000_000)
    for _ in range(120):
        for _ in range(20):
            host.kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", 800)
            host.kernel(FLASH, 400)
        host.sync()
        host.works(200)
    return [paper.write(folder / "job.sqlite")]
