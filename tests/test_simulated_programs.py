"""What is said about programs of many kinds, whose truth was decided before the report was read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simulated
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.regions.fixes import Answer
from simulated import ADD, FLASH, GEMM, GEMV, MUL, NORM, Program

CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, 4, 128, 1>(int)"
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(T1::Params)"
VECTOR_NORM = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float> > >(int)"
)


def layer(program: Program, product: float, host: float = 6.0) -> None:
    for name, kernel, length in (
        ("aten::layer_norm", NORM, 4.0),
        ("aten::linear", GEMM, product),
        ("aten::scaled_dot_product_attention", FLASH, product / 2),
        ("aten::add", ADD, 4.0),
        ("aten::linear", GEMM, product),
    ):
        program.op(name, (kernel, length), host=host)


def generate_then_train() -> Program:
    """As in reinforcement learning: tokens by small kernels, then a step of large ones."""
    program = Program()
    for _ in range(3):
        with program.range("generate"):
            for _ in range(400):
                program.op("aten::linear", (GEMV, 2.5), host=9)
        with program.range("train"):
            for _ in range(10):
                layer(program, 60)
            program.sync()
    return program


def clip_by_items() -> Program:
    """The norm of every gradient is asked for by itself."""
    program = Program()
    for _ in range(4):
        with program.range("clip"):
            for _ in range(60):
                program.op("aten::linalg_vector_norm", (VECTOR_NORM, 5.0))
                program.item()
    return program


def metrics_on_the_host() -> Program:
    program = Program()
    for _ in range(5):
        with program.range("forward"):
            for _ in range(6):
                layer(program, 60)
        with program.range("metrics"):
            program.copy("DtoH (Device -> Pageable)", 4_000_000, 400, waits=True)
            program.op("aten::topk", host=9000)
            program.op("aten::eq", host=3000)
    return program


def compiles_every_step() -> Program:
    program = Program()
    for number in range(8):
        with program.range("step"), program.range(f"Torch-Compiled Region: 0/{number}"):
            with program.within("compile_fx_inner (dynamo_timed)"):
                program.spend(40_000)
            for _ in range(10):
                program.op("aten::mm", (GEMM, 80))
    program.sync()
    return program


def producer_thread() -> Program:
    """The program waits at a queue for a thread that loads."""
    program = Program()
    for _ in range(8):
        with program.on(201), program.function("pipe.py(20): producer"), program.function("pipe.py(25): load_batch"):
            program.spend(30_000)
        with program.function("pipe.py(60): consume"):
            with program.function("queue.py(154): get"), program.function("threading.py(295): wait"):
                program.wait_until(program.now[201])
            for _ in range(8):
                layer(program, 60)
    program.sync()
    return program


def copies_before_each_request() -> Program:
    program = Program()
    for _ in range(8):
        with program.range("request"):
            program.copy("HtoD (Pageable -> Device)", 80_000_000, 9000, waits=True)
            for _ in range(8):
                layer(program, 60)
            program.sync()
    return program


def prefetched() -> Program:
    """Copies and collectives behind computation cost nothing."""
    program = Program(rank=0)
    for _ in range(8):
        with program.range("step"):
            program.copy("HtoD (Pinned -> Device)", 60_000_000, 1000, stream=20)
            program.op("c10d::allreduce_", (simulated.NCCL, 900.0), stream=24)
            for _ in range(20):
                layer(program, 100)
    program.sync()
    return program


def growing_cache() -> Program:
    program = Program()
    for _ in range(6):
        with program.range("decode"):
            for _ in range(24):
                program.op("aten::linear", (GEMV, 30.0))
                program.op("aten::cat", (CAT, 45.0))
                program.op("aten::cat", (CAT, 45.0))
                program.op("aten::scaled_dot_product_attention", (FLASH, 20.0))
    program.sync()
    return program


def joint_attention() -> Program:
    """Text and image are concatenated for attention: queries, keys and values. No cache."""
    program = Program()
    for _ in range(6):
        with program.range("denoise"):
            for _ in range(24):
                program.op("aten::linear", (GEMM, 90.0))
                for _ in range(3):
                    program.op("aten::cat", (CAT, 12.0))
                program.op("aten::scaled_dot_product_attention", (FLASH, 60.0))
                program.op("aten::mul", (MUL, 12.0))
    program.sync()
    return program


def products_in_fp32() -> Program:
    """On the CUDA cores, whose kernels are all called align1."""
    program = Program()
    for _ in range(4):
        with program.range("train"):
            for _ in range(20):
                program.op("aten::linear", (SIMT, 800.0))
                program.op("aten::relu", (MUL, 15.0))
    program.sync()
    return program


def audio() -> Program:
    program = Program()
    for _ in range(6):
        with program.range("utterance"):
            with program.range("load_audio"):
                program.spend(12_000)
            with program.range("encoder"):
                for _ in range(12):
                    layer(program, 60)
                program.item()
    return program


CASES: list[tuple[Callable[[], Program], str, str, str]] = [
    (generate_then_train, "generate", "launch", "launch.graph"),
    (clip_by_items, "clip", "host", "host.sync"),
    (metrics_on_the_host, "metrics", "host", "host.python"),
    (compiles_every_step, "step", "host", "compile.again"),
    (producer_thread, "whole recording", "host", "host.data"),
    (copies_before_each_request, "request", "communication", "copy.pinned"),
    (prefetched, "step", "gpu", ""),
    (growing_cache, "decode", "gpu", "cache.concat"),
    (products_in_fp32, "train", "gpu", "gemm.fp32"),
    (audio, "utterance", "host", "host.data"),
]


def answer(program: Program, folder: Path, change: Callable[[dict[str, Any]], Any] = lambda found: found) -> Answer:
    path = program.write(folder / "trace.json", change)
    return make_report([str(path)], ReportOptions(), quiet=True).answer


@pytest.mark.parametrize(
    ("program", "stage", "verdict", "first"), CASES, ids=lambda one: getattr(one, "__name__", None)
)
def test_the_answer_is_what_the_program_is(
    program: Callable[[], Program], stage: str, verdict: str, first: str, tmp_path: Path
) -> None:
    found = answer(program(), tmp_path)
    assert (found.stage, found.verdict) == (stage, verdict)
    assert next((fix.rule for fix in found.fixes if fix.stage == stage), "") == first


def test_compiling_in_every_step_is_not_called_warm_up(tmp_path: Path) -> None:
    found = answer(compiles_every_step(), tmp_path)
    assert "Held up by compilation" in found.why
    assert "ompiled again" in found.fixes[0].because
    assert "warm" not in found.why.lower() + found.do_first.lower()


def test_time_on_the_host_is_told_by_operator(tmp_path: Path) -> None:
    why = answer(metrics_on_the_host(), tmp_path).why
    assert "aten::topk 45 ms in 5 gaps, aten::eq 15 ms in 5 gaps" in why


def test_copies_of_a_number_are_not_to_be_pinned(tmp_path: Path) -> None:
    assert "copy.pinned" not in [fix.rule for fix in answer(clip_by_items(), tmp_path).fixes]


def test_copies_are_called_copies(tmp_path: Path) -> None:
    found = answer(copies_before_each_request(), tmp_path)
    assert found.why.startswith("Copy-bound.")
    assert "pinned memory on the host" in found.do_first


def test_three_concatenations_before_attention_are_no_cache(tmp_path: Path) -> None:
    assert "cache.concat" not in [fix.rule for fix in answer(joint_attention(), tmp_path).fixes]


def in_quotes(document: dict[str, Any]) -> dict[str, Any]:
    for event in document["traceEvents"]:
        event.update({key: str(event[key]) for key in ("ts", "dur") if key in event})
    return document


def by_external_id(document: dict[str, Any]) -> dict[str, Any]:
    for event in document["traceEvents"]:
        if "correlation" in event.get("args", {}):
            event["args"]["External id"] = event["args"].pop("correlation")
    return document


def repeated_on_the_gpu(document: dict[str, Any]) -> dict[str, Any]:
    """As `gpu_user_annotation`, which is no further range."""
    events = document["traceEvents"]
    ranges = [event for event in events if event.get("cat") == "user_annotation"]
    events += [event | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7, "ts": event["ts"] + 50} for event in ranges]
    return document


@pytest.mark.parametrize("change", [in_quotes, by_external_id, repeated_on_the_gpu, lambda found: found["traceEvents"]])
def test_other_ways_to_write_a_trace_change_nothing(change: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    expected = answer(generate_then_train(), tmp_path)
    found = answer(generate_then_train(), tmp_path, change)
    assert (found.stage, found.verdict, found.fixes[0].rule) == ("generate", "launch", "launch.graph")
    assert found.fixes[0].gain_ns == pytest.approx(expected.fixes[0].gain_ns, rel=0.01)


def test_a_trace_of_operators_on_a_cpu_is_not_empty(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.op("aten::lstm_cell", host=90)
        program.op("aten::randn", host=5)
    found = answer(program, tmp_path)
    assert found.stage == "aten::lstm_cell"
    assert "Besides: aten::randn" in found.where
    assert "no GPU kernels" in found.why
