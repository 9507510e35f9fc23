"""Traces of a server whose every step is known: the scheduler, the step, its kernels, and what comes after it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

from attrs import define

from llm_perf_opt.readers.kineto import read_kineto
from llm_perf_opt.regions.columns import Timeline

H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
GEMM = "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_TNT"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>>"


@define
class ServedStep:
    """One round of the engine's loop, in µs."""

    phase: str = "decode_step"
    batch: int = 8
    tokens: int = 0  # 0: one of each request
    kernel_us: float = 100.0
    kernels: int = 20
    launch_us: float = 5.0  # between two launches, where there is no graph
    graph: bool = True
    schedule_us: float = 50.0
    update_us: float = 50.0
    fill_us: float = 0.0  # a kernel between steps, in no range
    moved_us: float = 0.0  # the same in the step
    waits: bool = True  # the host, for the GPU; else it runs ahead of it


def served(steps: Iterable[ServedStep], *, named: bool = True) -> Timeline:
    """`named`: the steps say what they did, as those of a server."""
    return read_kineto(io.BytesIO(trace_of(steps, named=named)), "trace.json")


def trace_of(steps: Iterable[ServedStep], *, named: bool = True) -> bytes:
    """The host waits for the GPU at the end of each step, as an engine that needs the tokens; or it runs ahead."""
    events: list[dict[str, Any]] = []
    correlation, now, at = 0, 1000.0, 0.0

    def event(category: str, name: str, start: float, length: float, **args: Any) -> None:
        pid, tid = (0, 7) if category == "kernel" else (10, 10)
        whole = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(start, 3)}
        events.append(whole | {"dur": round(length, 3), "args": args})

    def kernel(name: str, at: float, length: float, of: int, node: int = 0) -> None:
        args = {"graph node id": node} if node else {}
        event("kernel", name, at, length, correlation=of, device=0, stream=7, **args)

    for step in steps:
        event("user_annotation", "schedule", now, step.schedule_us)
        now += step.schedule_us + 5
        if step.fill_us:
            correlation += 1
            event("cuda_runtime", "cudaLaunchKernel", now, 2.0, correlation=correlation)
            kernel(FILL, now + 3, step.fill_us, correlation)
            now += step.fill_us + 10
        tokens, begin = step.tokens or step.batch, now
        now += 10
        if step.graph:
            correlation += 1
            event("cuda_runtime", "cudaGraphLaunch", now, 8.0, correlation=correlation)
            at = max(at, now + 10)
            for number in range(step.kernels):
                kernel(GEMM, at, step.kernel_us, correlation, node=100 * step.batch + number + 1)
                at += step.kernel_us + 1
            now += 10
        else:
            at = max(at, now)
            for _ in range(step.kernels):
                correlation += 1
                event("cuda_runtime", "cudaLaunchKernel", now, 2.0, correlation=correlation)
                at = max(at, now + 3)
                kernel(GEMM, at, step.kernel_us, correlation)
                at, now = at + step.kernel_us, now + step.launch_us
        if step.moved_us:
            correlation += 1
            event("cuda_runtime", "cudaLaunchKernel", now, 2.0, correlation=correlation)
            kernel(FILL, max(at, now + 3), step.moved_us, correlation)
            at = max(at, now + 3) + step.moved_us
        if step.waits:
            event("cuda_runtime", "cudaStreamSynchronize", now, max(at - now, 1.0), correlation=0)
            now = max(at, now) + 5
        numbers = f", batch = {step.batch}, tokens = {tokens}, new = {step.batch}" if named else ""
        event("user_annotation", step.phase + numbers, begin, now - begin)
        now += 5
        event("user_annotation", "update", now, step.update_us)
        now += step.update_us + 5
    return json.dumps({"deviceProperties": [H200], "traceEvents": events}).encode()
