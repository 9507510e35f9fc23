"""PyTorch traces of programs that never ran: a host and a GPU simulated, so that the truth is decided beforehand.

A `Program` has threads that take time and launch, and streams that work in order. What it writes looks like the file of
the PyTorch profiler: operators, calls, kernels, copies, ranges on both sides, functions of Python.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MAIN = 100  # the thread that most programs have
LAUNCH = 4.0  # µs that a launching call takes
DELAY = 3.0  # µs from a call to the first moment its work may begin
RETURN = 4.0  # µs from the end of work to the return of the call that waits for it
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "numSms": 132}
H100 |= {"computeMajor": 9, "computeMinor": 0}

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
SGEMM = "ampere_sgemm_128x64_tn"
GEMV = "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false, false>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int)"
MUL = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> > >(int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >(flash::Flash_fwd_params)"
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, float const*, int)"
)
TRITON = "triton_poi_fused_add_mul_silu_3"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Program:
    """Times are microseconds."""

    def __init__(self, pid: int = MAIN, start: float = 5_000_000.0, rank: int | None = None) -> None:
        self.pid, self.rank = pid, rank
        self.now: dict[int, float] = {MAIN: start}  # of each thread
        self.free: dict[int, float] = {}  # since when each stream has nothing to do
        self.events: list[Event] = []
        self.thread = MAIN
        self._start, self._number = start, 0

    # -- the host ------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        return self.now.setdefault(self.thread, self._start)

    def spend(self, length: float) -> None:
        self.now[self.thread] = self.time + length

    def wait_until(self, moment: float) -> None:
        self.now[self.thread] = max(self.time, moment)

    @contextlib.contextmanager
    def on(self, thread: int) -> Iterator[None]:
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    @contextlib.contextmanager
    def _event(self, category: str, name: str, **args: Any) -> Iterator[None]:
        begin, at = self.time, len(self.events)
        yield
        self.events.insert(at, self._made(category, name, begin, self.time - begin, self.thread, args))

    def range(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self._event("user_annotation", name)

    def function(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Of Python, as `with_stack` records it: `train.py(12): step`."""
        return self._event("python_function", name)

    def within(self, name: str, **args: Any) -> contextlib.AbstractContextManager[None]:
        return self._event("cpu_op", name, **args)

    def op(self, name: str, *kernels: tuple[str, float], host: float = 10.0, stream: int = 7, **args: Any) -> None:
        """An operator that launches kernels, each with its time on the GPU. `host`: what it takes besides the calls."""
        with self.within(name, **args):
            self.spend(host)
            for kernel, length in kernels:
                self.launch(kernel, length, stream)

    def call(self, name: str, length: float, **args: Any) -> None:
        with self._event("cuda_runtime", name, **args):
            self.spend(length)

    def sync(self, name: str = "cudaStreamSynchronize", streams: list[int] | None = None) -> None:
        with self._event("cuda_runtime", name, correlation=self._next()):
            self.spend(2)
            self.wait_until(max((self.free.get(s, 0) + RETURN for s in streams or self.free), default=0))

    # -- the GPU -------------------------------------------------------------------------------------------

    def launch(
        self, kernel: str, length: float, stream: int = 7, call: str = "cudaLaunchKernel", grid: int = 264
    ) -> None:
        number = self._next()
        self.call(call, LAUNCH, correlation=number)
        args = {"device": 0, "stream": stream, "correlation": number, "grid": [grid, 1, 1], "block": [128, 1, 1]}
        self._work("kernel", kernel, length, stream, args)

    def graph(self, kernels: list[tuple[str, float]], stream: int = 7) -> None:
        number = self._next()
        self.call("cudaGraphLaunch", 12, correlation=number)
        for node, (kernel, length) in enumerate(kernels):
            args = {"device": 0, "stream": stream, "correlation": number, "graph node id": node + 1}
            self._work("kernel", kernel, length, stream, args | {"grid": [264, 1, 1], "block": [128, 1, 1]})

    def copy(self, kind: str, size: int, length: float, stream: int = 7, *, waits: bool = False) -> None:
        """`HtoD (Pageable -> Device)`. A copy from pageable memory to the host waits."""
        number = self._next()
        args = {"device": 0, "stream": stream, "correlation": number, "bytes": size}
        with self._event("cuda_runtime", "cudaMemcpyAsync", correlation=number):
            self.spend(LAUNCH)
            self._work("gpu_memcpy", f"Memcpy {kind}", length, stream, args)
            if waits:
                self.wait_until(self.free[stream] + RETURN)

    def item(self, stream: int = 7) -> None:
        """`tensor.item()`: a copy of four bytes that is waited for."""
        with self.within("aten::item"), self.within("aten::_local_scalar_dense"):
            self.copy("DtoH (Device -> Pageable)", 4, 1.5, stream)
            self.sync(streams=[stream])

    def wait_for(self, other: int, stream: int = 7) -> None:
        """A stream goes on when another one has done what it has now."""
        self.free[stream] = max(self.free.get(stream, 0), self.free.get(other, 0))

    def _work(self, category: str, name: str, length: float, stream: int, args: Event) -> None:
        begin = max(self.time + DELAY, self.free.get(stream, 0))
        self.free[stream] = begin + length
        event = self._made(category, name, begin, length, stream, args)
        self.events.append(event | {"pid": 0})

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _made(self, category: str, name: str, begin: float, length: float, thread: int, args: Event) -> Event:
        event = {"ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": thread}
        return event | {"ts": round(begin, 3), "dur": round(length, 3)} | ({"args": args} if args else {})

    # -- the file ------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        label = {"ph": "M", "name": "process_labels", "pid": self.pid, "tid": 0, "ts": 0, "args": {"labels": "CPU"}}
        made: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [H100]}
        if self.rank is not None:
            made["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": 2}
        return made | {"traceEvents": [label, *self.events]}

    def write(self, path: Path, change: Callable[[dict[str, Any]], Any] = lambda document: document) -> Path:
        path.write_text(json.dumps(change(self.document())), encoding="utf-8")
        return path
